"""A step on one text buys what it says, and nothing of the model is changed by asking."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from qkv.errors import AddressError, UserError
from qkv.inspection.gradient_step import one_step
from qkv.inspection.one_text import float64_copy, one_text
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue
from qkv.randomness import generator
from qkv.tasks import find_task
from qkv.training.config import OptimizerConfig
from qkv.training.optimizers import make_optimizer

LETTERS = "abcdefghij"
TOKENIZER = SimpleNamespace(
    encode=lambda text, special=False: [LETTERS.index(c) for c in text],
    token=lambda i: LETTERS[i],
    d_vocab=10,
    special={"[MASK]": 9},
    around=(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)),
)


def made(kind: str = "CausalLM", **layout):
    sizes = Sizes(d_vocab=10, d_model=16, n_layers=2, n_heads=2, n_ctx=12)
    model = build(ModelConfig(kind=kind, sizes=sizes, layout=Layout(**({"tied": False} | layout))), 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += torch.from_numpy(generator("step", name).normal(0, 0.2, size=parameter.shape)).float()
    return model


def asked(model, text="abcabdcab", task="causal"):
    return one_text(find_task(task), TOKENIZER, model.sizes, text)


def test_a_byte_that_is_no_utf8_is_a_token_like_another(monkeypatch):
    monkeypatch.setattr(TOKENIZER, "encode", lambda text, special=False: [LETTERS.find(c) % 10 for c in text])
    assert asked(made(), "ab\udce9").n_targets == 2  # as a terminal hands on a byte of latin-1


def test_gradient_descent_buys_minus_rate_times_the_squared_gradient_to_first_order():
    model = made()
    text, errors = asked(model), []
    for rate in (1e-4, 1e-5):
        step = one_step(model, find_task("causal"), text, rate=rate)
        square = sum(part.grad_norm**2 for part in step.parts)
        assert step.descent.first_order == pytest.approx(-rate * square, rel=1e-12)
        assert step.descent.cosine == pytest.approx(1)
        errors.append(abs(step.descent.actual - step.descent.first_order))
        for part in step.parts:
            assert part.descent.first_order == pytest.approx(-rate * part.grad_norm**2, rel=1e-12)
            assert part.descent.actual == pytest.approx(part.descent.first_order, rel=0.02, abs=1e-11)
        assert sum(part.descent.first_order for part in step.parts) == pytest.approx(step.descent.first_order)
    assert errors[1] == pytest.approx(errors[0] / 100, rel=0.1)  # what is left out is of second order


def test_gradients_are_those_of_plain_autograd_by_matrix_head_and_row():
    model = made()
    text = asked(model)
    step = one_step(model, find_task("causal"), text, "L0.H1.W_Q,L1.W_in,W_E[a]", vocabulary={"a": 0})
    copied = float64_copy(model)
    logits = copied(text.batch.inputs)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), text.batch.targets).backward()
    catalogue = Catalogue(copied, {"a": 0})
    for part in step.parts:
        assert part.grad_norm == pytest.approx(float(catalogue.grad(part.address).norm()), rel=1e-10)
    assert len(step.parts) == 3 and step.own is None


@pytest.mark.parametrize("kind", ["sgd", "adamw", "muon"])
def test_an_optimizer_s_own_step_is_shown_with_its_cosine(kind):
    model = made()
    config = OptimizerConfig(kind=kind, lr=1e-4, muon_lr=1e-4, momentum=0.0)
    held = "L0.W_Q"

    def own(catalogue):
        catalogue.entry(held).parameter.grad = None
        make_optimizer(catalogue, config).step(1.0)

    step = one_step(model, find_task("causal"), asked(model), own=own)
    parts = {part.address: part for part in step.parts}
    assert parts[held].own is None
    assert step.own.actual == pytest.approx(step.own.first_order, rel=0.1)
    for address, part in parts.items():
        if address != held:
            expected = pytest.approx(1, abs=1e-9) if kind == "sgd" else pytest.approx(0.7, abs=0.31)
            assert part.own.cosine == expected, address


def test_asking_changes_nothing():
    model = made()
    before = Catalogue(model).state()
    before = {address: values.clone() for address, values in before.items()}
    one_step(model, find_task("causal"), asked(model), own=lambda c: make_optimizer(c, OptimizerConfig()).step(1.0))
    after = Catalogue(model).state()
    assert all(after[address].equal(values) for address, values in before.items())
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())


def test_a_text_is_asked_what_validation_asks():
    model = made()
    text = asked(model, "abcab")
    assert text.tokens == list("abca") and text.batch.targets.tolist() == [1, 2, 0, 1]
    logits = model(text.batch.inputs)
    expected = torch.nn.functional.cross_entropy(logits[0], text.batch.targets).detach()
    assert one_step(model, find_task("causal"), text).loss == pytest.approx(float(expected), rel=1e-5)
    masked = made("MaskedLM")
    text = asked(masked, "abcdefgh", "masked")
    assert text.n_targets == 1 and text.tokens.count("j") == 1 and len(text.tokens) == 8
    assert one_step(masked, find_task("masked"), text).n_targets == 1
    full = asked(made(), "abcabcabcabca")
    assert full.batch.inputs.shape == (1, 12) and full.n_targets == 12


@pytest.mark.parametrize("text", ["a", "abcabcabcabcab"])
def test_a_text_that_does_not_fit_is_refused(text):
    with pytest.raises(UserError, match="expected 2 to 13"):
        asked(made(), text)


def test_a_selector_that_matches_nothing_is_refused():
    with pytest.raises(AddressError):
        one_step(made(), find_task("causal"), asked(made()), "L7.W_Q")


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_no_step_down_is_refused(rate):
    with pytest.raises(UserError, match=f"rate is {rate}; expected a number above 0"):
        one_step(made(), find_task("causal"), asked(made(), "abcab"), rate=rate)
