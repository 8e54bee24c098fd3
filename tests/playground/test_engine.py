"""The engine of the playground against torch in float64: every gradient, every switch, and whole training curves."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.data.baseline.ngrams import ngram_losses
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue
from qkv.randomness import generator

SMALL = {"d_vocab": 11, "d_model": 12, "d_mlp": 22, "n_layers": 2, "n_heads": 4, "n_ctx": 9}
REAL = {"d_vocab": 29, "d_model": 32, "d_mlp": 128, "n_layers": 2, "n_heads": 4, "n_ctx": 32}
USUAL = {"positions": True, "scale": True, "skip": True, "shared": False}
IDENTITY = dict.fromkeys(("W_Q", "W_K", "W_V", "W_O"), "identity")
WIRINGS = [dict(zip(USUAL, choice, strict=True)) for choice in itertools.product((True, False), repeat=4)]


def torch_model(sizes, wiring, held, *names, std=0.4):
    """Our model in the textbook layout, wired as an arm, in float64, with weights so large that all terms matter."""
    layout = Layout(
        positions="learned" if wiring["positions"] else "none",
        norm="layer" if wiring.get("norms", True) else "none",
        norm_eps=1e-5,
        mlp="gelu",
        tied=wiring.get("tied", False),
        start="gpt2",
        scale=wiring["scale"],
        skip=wiring["skip"],
    )
    model = build(ModelConfig(kind="CausalLM", sizes=Sizes(**sizes), layout=layout), 0).double()
    draws = generator("tests", "playground", *names)
    with torch.no_grad():
        for address, entry in ((e.address, e.parameter) for e in Catalogue(model)):
            values = torch.from_numpy(draws.normal(size=tuple(entry.shape)))
            entry.copy_(1 + 0.3 * values if address.endswith("gain") else std * values)
            if held.get(address.rsplit(".", 1)[-1]) == "identity":
                entry.copy_(torch.eye(*entry.shape))
    if wiring["shared"]:
        for block in model.blocks:
            block.attention.W_K = block.attention.W_Q
    return model


def parameters(model):
    """Address -> parameter; of W_K = W_Q the one matrix, under the name of W_Q."""
    seen = {}
    for name, p in model.named_parameters():
        seen[address(name)] = p
    return seen


def address(path):
    parts = [f"L{p}" if p.isdigit() else p for p in path.split(".")]
    return ".".join(p for p in parts if p not in ("embedding", "blocks", "attention", "mlp", "head"))


def batch_of(sizes, batch, length, *names):
    draws = generator("tests", "playground", "batch", *names)
    ids = draws.integers(0, sizes["d_vocab"], (batch, length))
    targets = np.where(draws.random((batch, length)) < 0.2, -1, draws.integers(0, sizes["d_vocab"], (batch, length)))
    return ids, targets


def loss_of(model, ids, targets):
    logits = model(torch.from_numpy(ids))
    return F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten(), ignore_index=-1), logits


def asked(ask, sizes, wiring, held, model, **more):
    weights = {a: p.detach().flatten().tolist() for a, p in parameters(model).items()}
    return {"ask": ask, "sizes": sizes, "wiring": wiring, "held": held, "weights": weights, **more}


def gradient_cases():
    for wiring, heads in itertools.product(WIRINGS, (1, 4)):
        yield SMALL | {"n_heads": heads}, wiring, {}, 3, 7
    for kinds in (("W_Q", "W_K"), ("W_V", "W_O"), tuple(IDENTITY)):
        yield SMALL, USUAL, {kind: "identity" for kind in kinds}, 3, 9
    yield SMALL | {"n_layers": 1}, USUAL, IDENTITY, 2, 1  # a single position
    for norms, tied in ((False, False), (True, True), (False, True)):
        yield SMALL, USUAL | {"norms": norms, "tied": tied}, {}, 3, 9
    yield REAL, USUAL, {}, 4, 32


@pytest.mark.parametrize("vectors", [True, False], ids=["webassembly", "javascript"])
def test_every_gradient_equals_torch_for_every_way_to_wire_it(run_node, vectors):
    wanted, asks = [], []
    for case, (sizes, wiring, held, batch, length) in enumerate(gradient_cases()):
        model = torch_model(sizes, wiring, held, case)
        ids, targets = batch_of(sizes, batch, length, case)
        asks.append(
            asked(
                "gradients",
                sizes,
                wiring,
                held,
                model,
                vectors=vectors,
                batch=batch,
                length=length,
                ids=ids.flatten().tolist(),
                targets=targets.flatten().tolist(),
            )
        )
        loss, logits = loss_of(model, ids, targets)
        loss.backward()
        right = (logits.argmax(-1).numpy() == targets)[targets >= 0].mean()
        wanted.append((loss.item(), right, {a: p.grad.numpy() for a, p in parameters(model).items()}))
    worst = 0.0
    for got, (loss, right, gradients) in zip(run_node("engine.mjs", asks), wanted, strict=True):
        assert got["vectors"] == vectors
        assert got["loss"] == pytest.approx(loss, rel=1e-12)
        assert got["accuracy"] == right
        assert got["gradients"].keys() == gradients.keys()
        for name, gradient in gradients.items():
            difference = np.linalg.norm(np.array(got["gradients"][name]) - gradient.ravel())
            length = np.linalg.norm(gradient)
            # one position has one pattern whatever W_Q is: a gradient of 0, up to the last bits of torch's sums
            assert difference <= 1e-6 * length + 1e-14, name
            worst = max(worst, difference / length if length > 1e-12 else 0.0)
    print(f"largest relative difference of a gradient from torch's: {worst:.1e}")


def test_webassembly_and_javascript_give_the_same_bits(run_node):
    asks = []
    for sizes, length in ((REAL, 32), (SMALL | {"n_heads": 1}, 7)):
        ids, targets = batch_of(sizes, 3, length, "bits")
        more = {"batch": 3, "length": length, "ids": ids.flatten().tolist(), "targets": targets.flatten().tolist()}
        model = torch_model(sizes, USUAL, {}, "bits")
        asks += [asked("gradients", sizes, USUAL, {}, model, vectors=vectors, **more) for vectors in (True, False)]
    got = run_node("engine.mjs", asks)
    assert [g.pop("vectors") for g in got] == [True, False] * 2
    assert got[0] == got[1] and got[2] == got[3]


# The last number is the spread of the weights. With 0.4, no division and no skip connections training is chaotic: a
# last digit grows to a hundredth within 200 steps, whoever computes; 0.18 is the start of the page itself.
ARMS = {
    "usual": (USUAL, 4, {}, "adam", 3e-3, 0.4),
    "sgd": (USUAL, 4, {}, "sgd", 0.3, 0.4),
    "frozen embeddings": (USUAL, 4, {"W_E": "freeze"}, "adam", 3e-3, 0.4),
    "frozen queries and keys": (USUAL, 4, {"W_Q": "freeze", "W_K": "freeze"}, "adam", 3e-3, 0.4),
    "frozen values and outputs": (USUAL, 4, {"W_V": "freeze", "W_O": "freeze"}, "adam", 3e-3, 0.4),
    "identity": (USUAL, 4, IDENTITY, "adam", 3e-3, 0.4),
    "W_K = W_Q, no positions": (USUAL | {"shared": True, "positions": False}, 4, {"W_V": "freeze"}, "adam", 1e-2, 0.4),
    "one head, not divided, no skip": (USUAL | {"scale": False, "skip": False}, 1, {}, "adam", 1e-3, 0.18),
}
BATCH, STEPS = 4, 200


def torch_curve(model, held, optimizer, rate, batches):
    free = [p for a, p in parameters(model).items() if a.rsplit(".", 1)[-1] not in held]
    rule = torch.optim.Adam(free, lr=rate) if optimizer == "adam" else torch.optim.SGD(free, lr=rate)
    losses = []
    for ids, targets in batches:
        loss, _ = loss_of(model, ids, targets)
        model.zero_grad()
        loss.backward()
        rule.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_two_hundred_steps_follow_torch_and_held_matrices_stay_as_they_were(run_node):
    batches = [batch_of(REAL, BATCH, 16, "curve", step) for step in range(STEPS)]
    steps = [{"ids": ids.ravel().tolist(), "targets": targets.ravel().tolist()} for ids, targets in batches]
    asks, models = [], []
    for wiring, heads, held, optimizer, rate, std in ARMS.values():
        sizes = REAL | {"n_ctx": 16, "n_heads": heads}
        models.append(torch_model(sizes, wiring, held, "curve", std=std))
        more = {"batch": BATCH, "length": 16, "steps": steps, "optimizer": optimizer, "rate": rate}
        asks.append(asked("curve", sizes, wiring, held, models[-1], **more))
    for got, ask, model, (_, _, held, optimizer, rate, _) in zip(
        run_node("engine.mjs", asks), asks, models, ARMS.values(), strict=True
    ):
        wanted = torch_curve(model, held, optimizer, rate, batches)
        np.testing.assert_allclose(got["losses"], wanted, rtol=1e-6)
        for name, p in parameters(model).items():
            values = np.array(got["weights"][name])
            np.testing.assert_allclose(values, p.detach().numpy().ravel(), rtol=1e-5, atol=1e-7)
            stayed = np.array_equal(values, ask["weights"][name])
            assert stayed == (name.rsplit(".", 1)[-1] in held), name


def test_gelu_holds_its_digits_in_the_tail_too(run_node):
    """Where 1 - Phi is lost beside 1: x Phi(x) by erfc."""
    points = [*np.linspace(-8.9, 8.9, 4001).tolist(), 0.0, 1e-300, -3.0, 3.0]
    ((values, _),) = run_node("engine.mjs", [{"ask": "gelu", "points": points}])
    np.testing.assert_allclose(values, [x * math.erfc(-x / math.sqrt(2)) / 2 for x in points], rtol=1e-11, atol=0)


def test_exp_and_gelu_hold_fifteen_digits(run_node):
    """Tables and short series, against NumPy and torch."""
    below = [*np.linspace(-700, 0, 7001).tolist(), *np.linspace(-2, 0, 2001).tolist(), -0.0, -1e-300]
    points = [*np.linspace(-12, 12, 9001).tolist(), 0.0, 1e-9, -1e-9, 1 / 256, -1 / 256, 9.0, -9.0, 400.0, -400.0]
    asks = [{"ask": "exp", "points": [*below, -1e5]}, {"ask": "gelu", "points": points}]
    exp, (values, slopes) = run_node("engine.mjs", asks)
    np.testing.assert_allclose(exp[:-1], np.exp(below), rtol=1e-15, atol=0)
    assert exp[-1] == 0.0
    x = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    gelu = F.gelu(x)
    gelu.sum().backward()
    np.testing.assert_allclose(values, gelu.detach().numpy(), rtol=1e-15, atol=2e-15)
    np.testing.assert_allclose(slopes, x.grad.numpy(), rtol=1e-15, atol=2e-15)


@pytest.mark.parametrize("task", ["recall", "sort", "addition", "words"])
def test_the_lines_of_a_task_are_what_counting_its_asked_for_tokens_gives(run_node, task):
    """Uniform, unigram and bigram by their formulas in baselines.js, in NumPy."""
    (got,) = run_node("engine.mjs", [{"ask": "lines", "task": task, "seed": 5}])
    n = got["d_vocab"]
    double = np.zeros((n, n))
    for batch in got["counted"]:
        ids, targets = np.array(batch["ids"]), np.array(batch["targets"])
        np.add.at(double, (ids[targets >= 0], targets[targets >= 0]), 1)
    ids, targets = (np.array(got["validation"][name]) for name in ("ids", "targets"))
    ids, targets = ids[targets >= 0], targets[targets >= 0]
    unigram = (double.sum(0) + 1) / (double.sum() + n)
    bigram = (double + 2 * unigram) / (double.sum(1, keepdims=True) + 2)
    wanted = [math.log(n), -np.log(unigram[targets]).mean(), -np.log(bigram[ids, targets]).mean()]
    assert [line["nats"] for line in got["lines"][:3]] == pytest.approx(wanted, rel=1e-12)


def test_ngrams_count_as_qkv_does(run_node):
    """The dashed line of the chart is the best order of the same Kneser-Ney models as in a report."""
    draws = generator("tests", "playground", "ngrams")
    following = draws.dirichlet(np.full(7, 0.3), size=(7, 7))
    stream = [0, 1]
    for _ in range(3000):
        stream.append(int(draws.choice(7, p=following[stream[-2], stream[-1]])))
    train, val = np.array(stream[:2600]), np.array(stream[2600:])
    (got,) = run_node(
        "engine.mjs", [{"ask": "ngrams", "train": train.tolist(), "val": [val.tolist()], "d_vocab": 7, "most": 6}]
    )
    wanted = [losses.mean() for losses in ngram_losses(train, val, 7, 6)]
    np.testing.assert_allclose(got[1:], wanted[1:], rtol=1e-12)
    assert min(got) == min(got[1:]) < got[1] - 0.01  # a third-order text: longer counts say more
