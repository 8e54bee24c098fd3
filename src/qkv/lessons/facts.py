"""The numbers that lessons reveal, computed from the model that comes with the page (one layer, no norms).

Each function has the name of a lesson and gives what its texts hold in braces, as words.
"""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.resources import files

import numpy as np

from qkv import one_file
from qkv.one_file import Array, Arrays
from qkv.words import listed, number, percent, relative

SENTENCE = "the queen sees the cat and she sings"
Facts = dict[str, str | int]


class Model:
    """The model at one step of its training: its matrices by address, heads apart."""

    def __init__(self, weights: Arrays, tokens: list[str], n_heads: int) -> None:
        d = weights["W_E"].shape[1]
        self.W_E, self.W_pos, self.W_U = weights["W_E"], weights["W_pos"], weights["W_U"]
        attention = [weights[f"L0.{name}"].reshape(d, n_heads, -1).swapaxes(0, 1) for name in ("W_Q", "W_K", "W_V")]
        self.attention = [*attention, weights["L0.W_O"].reshape(n_heads, -1, d)]
        self.mlp, self.tokens = (weights["L0.W_in"], weights["L0.W_out"]), tokens

    def ids(self, text: str) -> list[int]:
        """The tokens of a text whose words are all known."""
        return [self.tokens.index(word) for word in text.replace(".", " .").split()]

    def forward(self, text: str, attention: list[Array] | None = None) -> dict[str, Array]:
        """x, q, k, v, pattern, resid_post, p (of the next token) by position; q, k, v, pattern by head first."""
        ids = self.ids(text)
        x = (self.W_E[ids] + self.W_pos[: len(ids)])[None]
        out, (_, q, k, v, pattern, _) = one_file.attention(x, *(attention or self.attention))
        middle = x + out
        post = middle + one_file.mlp(middle, *self.mlp)[0]
        logits = post @ self.W_U
        p = np.exp(logits - logits.max(-1, keepdims=True))
        found = {"x": x, "q": q, "k": k, "v": v, "pattern": pattern, "post": post, "p": p / p.sum(-1, keepdims=True)}
        return {name: array[0] for name, array in found.items()}

    def losses(self, text: str, attention: list[Array] | None = None) -> Array:
        """-log p of each token after the first, in nats."""
        ids, p = self.ids(text), self.forward(text, attention)["p"]
        return -np.log(p[np.arange(len(ids) - 1), ids[1:]])


@lru_cache
def models() -> tuple[Model, Model, dict[str, int], list[str]]:
    """The model at initialization and at its end, facts about it, and sentences of its text."""
    with files("qkv.views.learn").joinpath("model.npz").open("rb") as file, np.load(file) as arrays:
        told = json.loads(str(arrays["facts"]))
        W = {name: arrays[name].astype(float) for name in arrays.files if name != "facts"}
    first, last = (
        Model({name: array[at] for name, array in W.items()}, told["tokens"], told["settings"]["n_heads"])
        for at in (0, -1)
    )
    sizes = {"steps": told["steps"][-1], "parameters": told["parameters"]}
    return first, last, sizes, told["text"].split("\n")[-201:-1]


AND = SENTENCE.split().index("and")


def _share(part: Array, whole: Array) -> str:
    """How much of a vector's squared length a part accounts for: its projection."""
    return percent(float((part * whole).sum() / (whole * whole).sum()))


def _moved(before: Array, after: Array) -> str:
    return relative(float(np.linalg.norm(after - before) / np.linalg.norm(before)), "its initial norm")


def _cosine(a: Array, b: Array) -> str:
    return number(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))


def _looker() -> int:
    """The head in which "and" looks most at the subject."""
    return int(models()[1].forward(SENTENCE)["pattern"][:, AND, 1].argmax())


def trained() -> Facts:
    """What moved between the first step and the last, and through which matrices the gradient of x comes."""
    first, last, sizes, _ = models()
    head = _looker()
    row, before, after = first.ids("queen")[0], first.forward(SENTENCE), last.forward(SENTENCE)
    x, W = before["x"][1], first.attention[0][head]
    dx, dW = after["x"][1] - x, last.attention[0][head] - W
    dq = after["q"][head, 1] - before["q"][head, 1]
    bars = gradient_paths(last)
    return {
        "steps": f"{sizes['steps']:,}",
        "head": head,
        "row": _moved(first.W_E[row], last.W_E[row]),
        "W_Q": _moved(W, W + dW),
        "q": _moved(before["q"][head, 1], after["q"][head, 1]),
        "by_x": _share(dx @ W, dq),
        "by_W": _share(x @ dW, dq),
        "by_both": _share(dx @ dW, dq),
        **{f"through_{name}": number(bars[name]) for name in bars},
    }


def gradient_paths(model: Model) -> dict[str, float]:
    """|q_bar W_Q^T|, |k_bar W_K^T| and |v_bar W_V^T| over the sentence, and |x_bar| without the skip connection."""
    ids, kept = model.ids(SENTENCE), model.forward(SENTENCE)
    x = kept["x"][None]
    out, inside = one_file.attention(x, *model.attention)
    middle = x + out
    mlp, hidden = one_file.mlp(middle, *model.mlp)
    post_bar = np.zeros_like(x)
    post_bar[0, :-1] = (kept["p"][:-1] - np.eye(len(model.W_U[0]))[ids[1:]]) @ model.W_U.T / (len(ids) - 1)
    out_bar = post_bar + one_file.mlp_backward(post_bar, hidden, *model.mlp)[0]
    whole = one_file.attention_backward(out_bar, inside, *model.attention)[0]
    zero, found = np.zeros_like(model.attention[0]), {"all": float(np.linalg.norm(whole))}
    for at, name in enumerate(("Q", "K", "V")):  # without a matrix, its path is closed; the bars stay what they are
        W_Q, W_K, W_V = (W if i == at else zero for i, W in enumerate(model.attention[:3]))
        part = one_file.attention_backward(out_bar, inside, W_Q, W_K, W_V, model.attention[3])[0]
        found[name] = float(np.linalg.norm(part))
    return found


def scores() -> Facts:
    """The score of "and" on the subject: where the head looks, and q . k as a sum."""
    first, last, _, _ = models()
    head, words = _looker(), SENTENCE.split()
    before, after = first.forward(SENTENCE), last.forward(SENTENCE)
    q, k = after["q"][head, AND], after["k"][head, 1]
    terms, root = q * k, float(np.sqrt(len(q)))
    top = int(after["pattern"][head, AND].argmax())
    ids = last.ids(SENTENCE)
    bilinear = last.attention[0][head] @ last.attention[1][head].T / root
    sources = {
        f"{a} with {b}": float(one @ bilinear @ other)
        for a, one in (("token", last.W_E[ids[AND]]), ("position", last.W_pos[AND]))
        for b, other in (("token", last.W_E[ids[1]]), ("position", last.W_pos[1]))
    }
    return {
        "head": head,
        "top": words[top],
        "weight": percent(float(after["pattern"][head, AND, top])),
        "weight_before": percent(float(before["pattern"][head, AND, top])),
        "n": len(terms),
        "terms": " + ".join(number(term) for term in terms).replace("+ -", "- "),
        "dot": number(float(terms.sum())),
        "score": number(float(terms.sum()) / root),
        "positive": int((terms > 0).sum()),
        "sources": listed([f"{number(value)} ({name})" for name, value in sources.items()]),
        "largest": max(sources, key=lambda name: abs(sources[name])),
    }


def induction() -> Facts:
    """Which head looks at the previous token, and whether a copy of random words is easier than the original."""
    last = models()[1]
    pattern = last.forward(SENTENCE)["pattern"]
    previous = np.diagonal(pattern, -1, 1, 2).mean(1)
    rng, n = np.random.default_rng(1), 12
    words = [word for word in last.tokens if word.isalpha()]
    losses = [last.losses(" ".join([*text, *text])) for text in (rng.permutation(words)[:n] for _ in range(50))]
    copies = np.mean([(each[: n - 1].mean(), each[n:].mean()) for each in losses], axis=0)
    return {
        "head": int(previous.argmax()),
        "previous": listed([f"H{head}: {percent(float(mass))}" for head, mass in enumerate(previous)]),
        "even": percent(float(np.mean([1 / (i + 1) for i in range(1, len(pattern[0]))]))),
        "original": number(copies[0], 3),
        "copy": number(copies[1], 3),
        "easier": "No" if copies[1] > copies[0] - 0.5 else "Yes",
    }


def contextual() -> Facts:
    """One word at two places, and one place behind another subject."""
    last = models()[1]
    she, he = last.ids("she he")
    here, there = last.forward(SENTENCE), last.forward(SENTENCE.replace("queen", "king"))
    a, b = (at for at, word in enumerate(SENTENCE.split()) if word == "the")
    return {
        "x": _cosine(here["x"][a], here["x"][b]),
        "post": _cosine(here["post"][a], here["post"][b]),
        "before": number(float(np.abs(here["post"][0] - there["post"][0]).max())),
        "changed": percent(
            float(np.linalg.norm(there["post"][AND] - here["post"][AND]) / np.linalg.norm(here["post"][AND]))
        ),
        "x_changed": number(float(np.abs(here["x"][AND] - there["x"][AND]).max())),
        "she": percent(float(here["p"][AND, she])),
        "he": percent(float(here["p"][AND, he])),
        "she_king": percent(float(there["p"][AND, she])),
        "he_king": percent(float(there["p"][AND, he])),
    }


def identity() -> Facts:
    """Scores with W_Q = W_K = I, and the loss when the trained matrices are replaced so."""
    _, last, _, texts = models()
    d, e = last.attention[0].shape[1:]
    slices = np.eye(d).reshape(d, d // e, e).swapaxes(0, 1)  # a head is its coordinates of x
    swapped = [slices, slices, *last.attention[2:]]
    heads = last.forward(SENTENCE, swapped)
    raw = heads["q"] @ heads["k"].swapaxes(1, 2)
    own = lambda pattern: percent(float(np.diagonal(pattern, 0, 1, 2)[:, 1:].mean()))  # noqa: E731
    loss = lambda attention: float(np.mean([last.losses(text, attention).mean() for text in texts]))  # noqa: E731
    return {
        "asymmetry": number(float(np.abs(raw - raw.swapaxes(1, 2)).max())),
        "own": own(last.forward(SENTENCE)["pattern"]),
        "own_identity": own(heads["pattern"]),
        "loss": number(loss(None), 3),
        "loss_identity": number(loss(swapped), 3),
        "texts": len(texts),
    }


def size() -> Facts:
    """The share of the tables, here and at the size of GPT-2, and when the W can undo a frozen W_E."""
    first, last, sizes, _ = models()
    rows, d = first.W_E.shape
    gpt2 = {"rows": 50_257, "d": 768, "n_ctx": 1024, "layers": 12}
    whole = gpt2["d"] * (gpt2["rows"] + gpt2["n_ctx"] + gpt2["layers"] * 12 * gpt2["d"])  # one table, no biases

    def left(width: int) -> float:
        frozen = first.W_E[:, :width]
        return float(np.linalg.norm(frozen @ np.linalg.pinv(frozen) @ last.W_E - last.W_E) / np.linalg.norm(last.W_E))

    return {
        "rows": rows,
        "d": d,
        "share": percent(rows * d / sizes["parameters"]),
        "share_gpt2": percent(gpt2["rows"] * gpt2["d"] / whole),
        "left": percent(left(d)),
        "narrow": d // 4,
        "left_narrow": percent(left(d // 4)),
    }


FACTS: Mapping[str, Callable[[], Facts]] = {
    each.__name__: each for each in (trained, scores, induction, contextual, identity, size)
}
"""Name of a lesson -> its numbers."""
