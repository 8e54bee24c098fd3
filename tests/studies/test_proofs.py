"""The short proofs of docs/answers/proofs.md, as experiments in float64."""

import math

import numpy as np
import pytest
import torch

from qkv.models import CausalLM, LayerNorm, Layout, ModelConfig, MultiHeadAttention, RMSNorm, SelfAttention, Sizes


@pytest.fixture
def normal():
    """Draws of a shape, the same for each test, whatever ran before it."""
    draws = np.random.default_rng(11)
    return lambda *shape: torch.from_numpy(draws.normal(size=shape))


def undoing(frozen: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
    """A [d_model, d_model] with frozen A = trained."""
    return torch.linalg.pinv(frozen) @ trained


@pytest.mark.parametrize("d_vocab, d_model", [(5, 8), (8, 8), (1, 3)])
def test_a_frozen_table_of_independent_rows_loses_nothing_to_linear_readers_of_a_row(d_vocab, d_model, normal):
    frozen, trained, reader = normal(d_vocab, d_model), normal(d_vocab, d_model), normal(d_model, 4)
    theirs = undoing(frozen, trained) @ reader
    torch.testing.assert_close(frozen @ theirs, trained @ reader, rtol=1e-9, atol=1e-9)


IDS = torch.tensor([[0, 3, 5, 1, 1, 4, 2], [2, 2, 0, 5, 3, 4, 1]])


def attention_over_both(frozen: torch.Tensor, trained: torch.Tensor, **more) -> tuple:
    """(output, record) of attention over the frozen table, its W_Q, W_K, W_V undoing that, and over the trained one."""
    theirs, ours = (MultiHeadAttention(8, 2, causal=True, **more).double() for _ in range(2))
    with torch.no_grad():
        ours.W_O.copy_(theirs.W_O)
        for name in ("W_Q", "W_K", "W_V"):
            getattr(ours, name).copy_(undoing(frozen, trained) @ getattr(theirs, name))
        return ours.forward_recorded(frozen[IDS]), theirs.forward_recorded(trained[IDS])


@pytest.mark.parametrize("rope_base", [0.0, 10000.0])
@pytest.mark.parametrize("norm", ["none", "rms", "layer"])
def test_queries_keys_and_values_over_a_frozen_table_can_be_those_over_the_trained_one(norm, rope_base, normal):
    norms = {"none": torch.nn.Identity(), "rms": RMSNorm(8, 1e-6), "layer": LayerNorm(8, 1e-6)}
    frozen, trained = (norms[norm].double()(normal(6, 8)).detach() for _ in range(2))
    (out, seen), (wanted, wanted_seen) = attention_over_both(frozen, trained, rope_base=rope_base)
    for name in ("q", "k", "v", "scores", "pattern"):
        torch.testing.assert_close(seen[name], wanted_seen[name], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-9)


def test_w_in_alone_cannot_undo_it_since_it_reads_the_row_with_what_attention_gives(normal):
    frozen, trained, W_in = normal(6, 8), normal(6, 8), normal(8, 12)
    (a, _), (wanted_a, _) = attention_over_both(frozen, trained)
    torch.testing.assert_close(a, wanted_a, rtol=1e-9, atol=1e-9)

    def missed(x: torch.Tensor, wanted: torch.Tensor) -> float:
        """What the best W_in' leaves open, as a share."""
        return float((x @ torch.linalg.lstsq(x, wanted).solution - wanted).norm() / wanted.norm())

    assert missed(frozen[IDS].flatten(0, 1), (trained[IDS] @ W_in).flatten(0, 1)) < 1e-9
    assert missed((frozen[IDS] + a).flatten(0, 1), ((trained[IDS] + a) @ W_in).flatten(0, 1)) > 0.1


@pytest.mark.parametrize("norm, same", [("none", True), ("rms", False)])
def test_a_whole_model_without_norms_can_be_the_trained_one_in_another_basis_of_its_stream(norm, same, normal):
    layout = Layout(positions="learned", norm=norm, mlp="gelu", tied=False, bias=True)  # type: ignore[arg-type]
    sizes = Sizes(d_vocab=6, d_model=8, n_layers=2, n_heads=2, n_ctx=7)
    theirs, ours = (CausalLM(ModelConfig(kind="CausalLM", sizes=sizes, layout=layout)).double() for _ in range(2))
    frozen, rest = normal(6, 8), normal(2, 8)
    reads, writes = ("W_Q", "W_K", "W_V", "W_in", "W_U"), ("W_pos", "W_O", "W_out", "b_O", "b_out")
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(0.4 * normal(*parameter.shape))
        trained = theirs.get_parameter("embedding.W_E")
        A = torch.linalg.inv(torch.cat((frozen, rest))) @ torch.cat((trained, normal(2, 8)))
        for (name, ours_here), there in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            kind = name.rpartition(".")[2]
            ours_here.copy_(A @ there if kind in reads else there @ torch.linalg.inv(A) if kind in writes else there)
        ours.get_parameter("embedding.W_E").copy_(frozen)
        assert torch.allclose(ours(IDS), theirs(IDS), rtol=1e-7, atol=1e-7) is same


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
    twice = layer.forward_recorded(400.0 * rows[:, [0, 1, 0, 2]])[1]["pattern"][0]
    torch.testing.assert_close(twice[0], torch.tensor([0.5, 0, 0.5, 0]).double(), rtol=0, atol=1e-6)


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


@pytest.mark.parametrize(
    "rope_base, what, same",
    [(0.0, "of each head", True), (0.0, "mixes heads", False), (1e4, "of each head", False), (1e4, "commutes", True)],
)
def test_which_maps_of_queries_and_keys_leave_a_model_of_two_heads_the_same(rope_base, what, same, normal):
    layer, x = MultiHeadAttention(8, 2, causal=True, rope_base=rope_base).double(), normal(1, 5, 8)
    real, imaginary = (torch.diag(part) for part in normal(2, 2))  # coordinates i and i + 2 are turned as one number
    M = {
        "of each head": lambda: torch.block_diag(normal(4, 4), normal(4, 4)),
        "mixes heads": lambda: normal(8, 8),
        "commutes": lambda: torch.block_diag(
            *2 * [torch.cat((torch.cat((real, imaginary), 1), torch.cat((-imaginary, real), 1)))]
        ),
    }[what]()
    with torch.no_grad():
        before = layer(x)
        layer.W_Q.copy_(layer.W_Q @ M)
        layer.W_K.copy_(layer.W_K @ torch.linalg.inv(M).T)
        assert torch.allclose(layer(x), before, rtol=1e-7, atol=1e-9) is same
