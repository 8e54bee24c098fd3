"""The short proofs of docs/answers/proofs.md, as experiments in float64."""

import math

import numpy as np
import pytest
import torch

from qkv.models import MultiHeadAttention, SelfAttention


@pytest.fixture
def normal():
    """Draws of a shape, the same for each test, whatever ran before it."""
    draws = np.random.default_rng(11)
    return lambda *shape: torch.from_numpy(draws.normal(size=shape))


@pytest.mark.parametrize("d_vocab, d_model", [(5, 8), (8, 8), (1, 3)])
def test_a_frozen_table_of_independent_rows_loses_nothing_to_linear_readers(d_vocab, d_model, normal):
    frozen, trained, reader = normal(d_vocab, d_model), normal(d_vocab, d_model), normal(d_model, 4)
    undoing = torch.linalg.pinv(frozen) @ trained @ reader
    torch.testing.assert_close(frozen @ undoing, trained @ reader, rtol=1e-9, atol=1e-9)


def test_the_whole_attention_layer_over_a_frozen_table_can_be_that_over_the_trained_one(normal):
    frozen, trained = normal(6, 8), normal(6, 8)
    theirs, ours = (MultiHeadAttention(8, 2, causal=True).double() for _ in range(2))
    with torch.no_grad():
        ours.W_O.copy_(theirs.W_O)
        for name in ("W_Q", "W_K", "W_V"):
            getattr(ours, name).copy_(torch.linalg.pinv(frozen) @ trained @ getattr(theirs, name))
    ids = torch.tensor([[0, 3, 5, 1, 1, 4, 2]])
    torch.testing.assert_close(ours(frozen[ids]), theirs(trained[ids]), rtol=1e-9, atol=1e-9)


def test_with_more_tokens_than_coordinates_some_tables_are_out_of_reach(normal):
    frozen, trained = torch.tensor([[1.0], [2.0]]).double(), torch.tensor([[1.0], [-1.0]]).double()
    best = torch.linalg.lstsq(frozen, trained).solution
    assert float((frozen @ best - trained).norm()) > 1.0
    big, wanted = normal(40, 8), normal(40, 8)
    assert float((big @ torch.linalg.lstsq(big, wanted).solution - wanted).norm()) > 0.5 * float(wanted.norm())


def identity_layer(d_model: int) -> SelfAttention:
    layer = SelfAttention(d_model).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.eye(d_model))
    return layer


def test_with_every_w_the_identity_the_length_of_the_rows_is_a_temperature(normal):
    rows = torch.nn.functional.normalize(normal(1, 6, 16), dim=-1)
    layer = identity_layer(16)
    for c in (1e-4, 0.5, 3.0, 40.0):
        out, seen = layer.forward_recorded(c * rows)
        scores = c**2 * (rows @ rows.mT) / math.sqrt(16)
        torch.testing.assert_close(seen["pattern"], scores.softmax(-1), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(out, seen["pattern"] @ (c * rows), rtol=1e-9, atol=1e-12)
    cold = layer.forward_recorded(1e-4 * rows)[1]["pattern"]
    hot = layer.forward_recorded(400.0 * rows)[1]["pattern"]
    torch.testing.assert_close(cold, torch.full_like(cold, 1 / 6), rtol=0, atol=1e-6)
    torch.testing.assert_close(hot, torch.eye(6).double()[None], rtol=0, atol=1e-6)


@pytest.mark.parametrize("degrees", [1.0, 60.0, 90.0, 179.0])
def test_the_same_model_can_have_any_angle_between_two_queries(degrees, normal):
    layer, x = SelfAttention(6, d_head=2, causal=True).double(), normal(1, 5, 6)
    before, seen = layer.forward_recorded(x)
    angle = math.radians(degrees)
    wanted = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]]).double()
    basis = torch.linalg.inv(seen["q"][0, :2].detach()) @ wanted
    with torch.no_grad():
        layer.W_Q.copy_(layer.W_Q @ basis)
        layer.W_K.copy_(layer.W_K @ torch.linalg.inv(basis).T)
    after, turned = layer.forward_recorded(x)
    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(turned["scores"], seen["scores"], rtol=1e-6, atol=1e-8)
    cosine = torch.nn.functional.cosine_similarity(turned["q"][0, 0], turned["q"][0, 1], dim=0)
    assert float(cosine.detach()) == pytest.approx(math.cos(angle), abs=1e-6)
