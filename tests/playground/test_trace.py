"""Every number of the walk against torch's automatic differentiation, on the model that comes with the page."""

import base64
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.tokenizers.encoding import WORD_OR_MARK
from qkv.views.learn.model import shipped
from tokenizers import Regex, pre_tokenizers

MODEL = shipped()
SIZES = {key: MODEL.settings[key] for key in ("d_vocab", "d_model", "d_mlp", "n_layers", "n_heads", "n_ctx")}
WIRINGS = {
    "as shipped": {"positions": True, "scale": True, "skip": True, "shared": False, "norms": False, "tied": False},
    "tied": {"positions": True, "scale": True, "skip": True, "shared": False, "norms": False, "tied": True},
}
TEXTS = ("हिन्दी भाषा, e\u0301te\u0301", "a‿b_c Ⅷ x² 5¼ ④ ௧௰ ⓐb", "it's 3.5!", "ไทย עברית عَرَبِي")
SENTENCE, ASKED, HEAD = "the queen sees the cat and she sings now .", 5, 0


def weights_at(step):
    def values(packed):
        return np.frombuffer(base64.b64decode(packed.data), "<f4").reshape(packed.shape)[step].astype(float)

    return {address: values(packed) for address, packed in MODEL.weights.items()}


def walked(W, ids, *, tied):
    """The same model in torch, one line a formula; every value keeps its gradient."""
    n, n_heads, width = len(ids), SIZES["n_heads"], SIZES["d_model"] // SIZES["n_heads"]
    seen = {}

    def kept(name, value):
        value.retain_grad()
        seen[name] = value
        return value

    def split(x):
        return x.reshape(n, n_heads, width).transpose(0, 1)

    x = kept("x", W["W_E"][ids] + W["W_pos"][:n])
    q, k, v = (kept(name, split(x @ W[f"L0.W_{name.upper()}"])) for name in "qkv")
    scores = kept("scores", q @ k.transpose(1, 2) / math.sqrt(width))
    masked = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    pattern = kept("pattern", masked.softmax(-1))
    z = kept("z", pattern @ v)
    out = kept("out", z.transpose(0, 1).reshape(n, -1) @ W["L0.W_O"])
    mid = x + out
    top = mid + F.gelu(mid @ W["L0.W_in"]) @ W["L0.W_out"]
    logits = kept("logits", top @ (W["W_E"].T if tied else W["W_U"]))
    loss = F.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    loss.backward()
    return loss.item(), seen


def test_words_are_those_of_the_tokenizer(run_node):
    splits = pre_tokenizers.Split(Regex(WORD_OR_MARK), "removed", invert=True)
    wanted = [[piece for piece, _ in splits.pre_tokenize_str(text)] for text in TEXTS]
    assert run_node("trace.mjs", [{"words": text} for text in TEXTS]) == wanted
    assert wanted[0][:2] == ["हिन्दी", "भाषा"]


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("step", range(len(MODEL.steps)))
def test_every_number_of_the_walk_equals_torch(run_node, wiring, step):
    arrays = weights_at(step)
    ids = [MODEL.tokens.index(word) for word in SENTENCE.split()]
    W = {a: torch.tensor(values, requires_grad=True) for a, values in arrays.items()}
    tied = WIRINGS[wiring]["tied"]
    loss, seen = walked(W, ids, tied=tied)
    (got,) = run_node(
        "trace.mjs",
        [
            {
                "sizes": SIZES, "wiring": WIRINGS[wiring], "ids": ids, "i": ASKED, "head": HEAD,
                "weights": {a: values.ravel().tolist() for a, values in arrays.items()},
            }
        ],
    )  # fmt: skip
    assert got["loss"] == pytest.approx(loss, rel=1e-10)
    for address, gradient in got["gradients"].items():
        np.testing.assert_allclose(gradient, W[address].grad.numpy().ravel(), rtol=1e-5, atol=1e-12, err_msg=address)
    at, upto = got["at"], ASKED + 1
    wanted = {
        "row": W["W_E"][ids[ASKED]], "rowBar": W["W_E"].grad[ids[ASKED]], "logitsBar": seen["logits"].grad[ASKED],
        "x": seen["x"][ASKED], "xBar": seen["x"].grad[ASKED],
        "out": seen["out"][ASKED], "outBar": seen["out"].grad[ASKED],
        "scores": seen["scores"][HEAD, ASKED, :upto], "scoresBar": seen["scores"].grad[HEAD, ASKED, :upto],
        "pattern": seen["pattern"][HEAD, ASKED, :upto], "patternBar": seen["pattern"].grad[HEAD, ASKED, :upto],
    }  # fmt: skip
    for name in "qkvz":
        wanted |= {name: seen[name][HEAD, ASKED], f"{name}Bar": seen[name].grad[HEAD, ASKED]}
    for name, values in wanted.items():
        np.testing.assert_allclose(at[name], values.detach().numpy(), rtol=1e-5, atol=1e-12, err_msg=name)
    parts = np.array([at["parts"][name] for name in "qkv"]).sum(0)
    np.testing.assert_allclose(parts + at["around"], at["xBar"], rtol=1e-9, atol=1e-12)
    tokens = torch.tensor(ids)
    by_rows = torch.zeros_like(W["W_E"]).index_add(0, tokens, seen["x"].grad)
    if not tied:  # then the gradient of W_U would be in it
        np.testing.assert_allclose(got["gradients"]["W_E"], by_rows.numpy().ravel(), rtol=1e-9, atol=1e-12)
