"""The change of a product is exactly its terms: against NumPy's formula where it is linear, and in every layout."""

import numpy as np
import pytest
import torch

from qkv.inspection.one_text import float64_copy
from qkv.inspection.what_moved import first_queries_moved, what_moved
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.randomness import generator

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
LAYOUTS = {
    "rotary-qk-norm-grouped": dict(qk_norm=True, tied=False),
    "textbook": dict(positions="learned", norm="layer", tied=False),
    "post-norm-bias": dict(norm="layer", norm_place="post", positions="sinusoidal", bias=True),
    "side-by-side": dict(parallel=True, norm="layer", bias=True, rope_share=0.5),
    "bare": dict(positions="none", norm="none", mlp="none", skip=False),
}


def pair(kind="CausalLM", n_kv_heads=2, **layout):
    """A model at two steps: B is A and a generic movement of every parameter."""
    sizes = Sizes(d_vocab=10, d_model=16, n_layers=2, n_heads=4, n_kv_heads=n_kv_heads, n_ctx=8)
    models = [build(ModelConfig(kind=kind, sizes=sizes, layout=Layout(**layout)), 0) for _ in "AB"]
    with torch.no_grad():
        for which, model in enumerate(models):
            for name, parameter in model.named_parameters():
                for step in range(which + 1):
                    noise = generator("moved", name, step).normal(0, 0.2, size=parameter.shape)
                    parameter += torch.from_numpy(noise).float()
    return models


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_the_first_queries_of_several_texts_are_those_of_each(layout):
    texts = torch.cat([IDS, IDS.flip(1), IDS + 1 - (IDS > 8).long()])
    models = [float64_copy(model) for model in pair(**layout)]
    x = [model.forward_recorded(texts)[1]["L0.x"].detach() for model in models]
    found = first_queries_moved(*models, x)
    assert len(found) == 3
    for one, text in zip(found, texts, strict=True):
        alone = next(change for change in what_moved(*models, text[None]) if change.address == one.address == "L0.q")
        torch.testing.assert_close(one.after, alone.after, rtol=1e-12, atol=1e-13)
        assert one.shares == pytest.approx(alone.shares, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("kind", ["CausalLM", "MaskedLM"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("placed", [True, False])
def test_terms_sum_to_the_recorded_change(kind, layout, placed):
    a, b = pair(kind, **layout)
    records = [float64_copy(model).forward_recorded(IDS)[1] for model in (a, b)]
    found = what_moved(a, b, IDS, placed=placed)
    assert len(found) == 2 * (4 if placed else 3)
    for product in found:
        if placed:
            before, after = (record[product.address][0].detach().masked_fill_(
                record[product.address][0].isneginf(), 0) for record in records)  # fmt: skip
            torch.testing.assert_close(product.before, before, rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(product.after, after, rtol=1e-12, atol=1e-13)
        error = float((sum(product.terms.values()) - product.change).abs().max())
        assert error <= 1e-12 * float(product.change.norm())
        assert sum(product.shares.values()) == pytest.approx(1, abs=1e-12)
        for shares in (product.shares_by_head(), product.shares_by_token()):
            torch.testing.assert_close(sum(shares.values()), torch.ones_like(shares["both"]), rtol=1e-10, atol=1e-10)


def test_terms_are_the_formula_of_the_textbook():
    """dq = dx W_Q + x dW_Q + dx dW_Q, and ds = dq k^T + q dk^T + dq dk^T, in NumPy, by head."""
    a, b = pair(**LAYOUTS["textbook"], n_kv_heads=4)
    records = [float64_copy(m).forward_recorded(IDS)[1] for m in (a, b)]
    x = [record["L1.x"][0].detach().numpy() for record in records]
    found = {product.address: product for product in what_moved(a, b, IDS)}
    for letter in "QKV":
        W = [getattr(m.blocks[1].attention, f"W_{letter}").detach().double().numpy() for m in (a, b)]
        dx, dW = x[1] - x[0], W[1] - W[0]
        for name, expected in (("encodings", dx @ W[0]), ("matrix", x[0] @ dW), ("both", dx @ dW)):
            mine = found[f"L1.{letter.lower()}"].terms[name].transpose(0, 1).flatten(1).numpy()
            np.testing.assert_allclose(mine, expected, rtol=1e-10, atol=1e-12)
    q, k, scores = (found[f"L1.{name}"] for name in ("q", "k", "scores"))
    dq, dk, scale = q.change, k.change, 0.5
    expected = scale * (dq @ k.before.mT + q.before @ dk.mT + dq @ dk.mT)
    torch.testing.assert_close(scores.change, expected.tril(), rtol=1e-10, atol=1e-12)
    for name, side in (("W_Q", q.terms["matrix"] @ k.before.mT), ("W_K", q.before @ k.terms["matrix"].mT)):
        torch.testing.assert_close(scores.terms[name], (scale * side).tril(), rtol=1e-10, atol=1e-12)


def test_a_turn_turns_every_term_alike():
    a, b = pair(qk_norm=False, positions="rotary")
    turned = {p.address: p for p in what_moved(a, b, IDS)}
    plain = {p.address: p for p in what_moved(a, b, IDS, placed=False)}
    for address in plain:
        for name, share in plain[address].shares.items():
            assert turned[address].shares[name] == pytest.approx(share, abs=1e-12)


def test_an_unmoved_matrix_or_unmoved_encodings_have_no_share():
    a, b = pair(**LAYOUTS["textbook"])
    with torch.no_grad():
        for name, parameter in b.named_parameters():
            if "blocks.0.attention.W_Q" not in name:
                parameter.copy_(dict(a.named_parameters())[name])
    found = {p.address: p for p in what_moved(a, b, IDS)}
    assert found["L0.q"].shares == pytest.approx({"encodings": 0, "matrix": 1, "both": 0}, abs=1e-12)
    assert found["L0.scores"].shares["W_Q"] == pytest.approx(1) and np.isnan(found["L0.k"].shares["matrix"])
    assert found["L1.q"].shares["encodings"] == pytest.approx(1)
    assert found["L1.q"].shares["matrix"] == 0
