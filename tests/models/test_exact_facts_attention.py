"""Exact facts about what attention computes, each a sentence people argue about."""

import math

import numpy as np
import pytest
import torch

from qkv.models import Layout, ModelConfig, MultiHeadAttention, SelfAttention, Sizes, build
from qkv.models.norms import RMSNorm

EXACT = dict(rtol=0, atol=1e-12)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def heads_of(d_model: int = 6, n_heads: int = 2, **options) -> MultiHeadAttention:
    attention = MultiHeadAttention(d_model, n_heads, **options).double()
    for i, parameter in enumerate(attention.parameters()):
        parameter.data = normal(*parameter.shape, seed=10 + i) / 2
    return attention


def per_head(attention: MultiHeadAttention, name: str, head: int) -> torch.Tensor:
    """The columns of one head of W_Q, W_K, W_V or b_Q..., or its rows of W_O, as a view."""
    span = slice(head * attention.d_head, (head + 1) * attention.d_head)
    stored = getattr(attention, name).data
    return stored[span] if name in ("W_O",) or stored.ndim == 1 else stored[:, span]


@pytest.mark.parametrize("bias", [False, True])
def test_without_rotary_and_qk_norm_only_the_product_of_W_Q_and_W_K_matters(bias):
    attention, x = heads_of(bias=bias, causal=True), normal(2, 5, 6)
    before, record = attention.forward_recorded(x)
    for head in range(2):
        M = normal(3, 3, seed=20 + head) + 2 * torch.eye(3, dtype=torch.float64)
        for name in ("W_Q", "b_Q") if bias else ("W_Q",):
            part = per_head(attention, name, head)
            part.copy_(part.clone() @ M)
        for name in ("W_K", "b_K") if bias else ("W_K",):
            part = per_head(attention, name, head)
            part.copy_(part.clone() @ torch.linalg.inv(M).t())
    after, changed = attention.forward_recorded(x)
    torch.testing.assert_close(changed["scores"], record["scores"], **EXACT)
    torch.testing.assert_close(after, before, **EXACT)
    assert (changed["q"] - record["q"]).abs().max() > 0.1, "q itself did change"


@pytest.mark.parametrize("options", [dict(rope_base=100.0), dict(qk_norm=True)])
def test_with_rotary_positions_or_qk_norm_that_change_of_basis_is_another_function(options):
    attention, x = heads_of(d_model=8, causal=True, **options), normal(2, 5, 8)
    before = attention(x)
    M = normal(4, 4, seed=20) + 2 * torch.eye(4, dtype=torch.float64)
    for name, change in (("W_Q", M), ("W_K", torch.linalg.inv(M).t())):
        part = per_head(attention, name, 0)
        part.copy_(part.clone() @ change)
    assert (attention(x) - before).abs().max() > 1e-3


@pytest.mark.parametrize("bias", [False, True])
def test_only_the_product_of_W_V_and_W_O_matters(bias):
    attention, x = heads_of(bias=bias, qk_norm=False), normal(2, 5, 6)
    before = attention(x)
    for head in range(2):
        M = normal(3, 3, seed=20 + head) + 2 * torch.eye(3, dtype=torch.float64)
        for name in ("W_V", "b_V") if bias else ("W_V",):
            part = per_head(attention, name, head)
            part.copy_(part.clone() @ M)
        rows = per_head(attention, "W_O", head)
        rows.copy_(torch.linalg.inv(M) @ rows.clone())
    torch.testing.assert_close(attention(x), before, **EXACT)


def test_the_gain_of_the_norm_before_folds_into_W_Q_W_K_and_W_V():
    attention, norm, x = heads_of(causal=True), RMSNorm(6, 1e-6).double(), normal(2, 5, 6)
    norm.gain.data = normal(6, seed=3)
    before = attention(norm(x))
    for name in ("W_Q", "W_K", "W_V"):
        getattr(attention, name).data.mul_(norm.gain.data[:, None])
    norm.gain.data.fill_(1.0)
    torch.testing.assert_close(attention(norm(x)), before, **EXACT)


def softmax_x_x_x(X: np.ndarray) -> np.ndarray:
    """Attention without parameters, in five lines."""
    scores = X @ X.T / np.sqrt(X.shape[1])
    scores = scores - scores.max(axis=1, keepdims=True)
    weights = np.exp(scores)
    weights = weights / weights.sum(axis=1, keepdims=True)
    return weights @ X


@pytest.mark.parametrize("kind", [SelfAttention, MultiHeadAttention])
def test_identity_matrices_make_Q_K_and_V_equal_to_X_and_the_output_softmax_of_X_X_transposed_times_X(kind):
    attention = (SelfAttention(6) if kind is SelfAttention else MultiHeadAttention(6, 1)).double()
    for parameter in attention.parameters():
        parameter.data = torch.eye(6, dtype=torch.float64)
    x = normal(1, 5, 6)
    out, record = attention.forward_recorded(x)
    for name in "qkv":
        assert torch.equal(record[name].reshape(5, 6), x[0])
    np.testing.assert_allclose(out[0].detach().numpy(), softmax_x_x_x(x[0].numpy()), rtol=0, atol=1e-14)
    np.testing.assert_allclose(attention(x)[0].detach().numpy(), softmax_x_x_x(x[0].numpy()), rtol=0, atol=1e-14)


def test_the_start_identity_builds_a_model_with_q_k_and_v_equal_to_its_embedding_rows():
    layout = Layout(positions="none", norm="none", mlp="none", skip=False, start="identity")
    config = ModelConfig(
        kind="MaskedLM", sizes=Sizes(d_vocab=7, d_model=6, n_layers=1, n_heads=1, n_ctx=5), layout=layout
    )
    model, ids = build(config, 0).double(), torch.tensor([[3, 1, 6, 0, 3]])
    _, record = model.forward_recorded(ids)
    rows = model.embedding.W_E.detach()[ids]
    for name in "qkv":
        assert torch.equal(record[f"L0.{name}"][:, 0], rows)
    expected = softmax_x_x_x(rows[0].numpy())
    np.testing.assert_allclose(model.hidden(ids)[0].detach().numpy(), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("causal", [False, True])
def test_without_positions_bidirectional_attention_is_permutation_equivariant_and_causal_attention_is_not(causal):
    attention, x = heads_of(causal=causal), normal(1, 5, 6)
    order = torch.tensor([3, 0, 4, 1, 2])
    apart = (attention(x[:, order]) - attention(x)[:, order]).abs().max()
    assert apart > 1e-3 if causal else apart < 1e-12


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "learned", "rotary"])
def test_a_whole_bidirectional_model_sees_order_only_through_its_positions(positions):
    config = ModelConfig(
        kind="MaskedLM",
        sizes=Sizes(d_vocab=9, d_model=8, n_layers=2, n_heads=2, n_ctx=5),
        layout=Layout(positions=positions, start="xavier"),
    )
    model, ids = build(config, 0).double(), torch.tensor([[3, 1, 6, 0, 8]])
    order = torch.tensor([3, 0, 4, 1, 2])
    apart = (model(ids[:, order]) - model(ids)[:, order]).abs().max()
    assert apart < 1e-12 if positions == "none" else apart > 1e-6


def test_multi_head_output_is_the_sum_over_heads_of_A_X_W_V_W_O():
    attention, x = heads_of(d_model=6, n_heads=3), normal(2, 5, 6)
    out, record = attention.forward_recorded(x)
    total = torch.zeros_like(out)
    for head in range(3):
        W_V, W_O = per_head(attention, "W_V", head), per_head(attention, "W_O", head)
        total = total + record["pattern"][:, head] @ x @ W_V @ W_O
    torch.testing.assert_close(total, out, **EXACT)


def test_each_head_scores_by_a_bilinear_form_of_rank_at_most_d_head():
    attention, x = heads_of(d_model=6, n_heads=3), normal(1, 6, 6)
    _, record = attention.forward_recorded(x)
    for head in range(3):
        form = per_head(attention, "W_Q", head) @ per_head(attention, "W_K", head).t()
        assert torch.linalg.matrix_rank(form) == attention.d_head == 2
        scores = x[0] @ form @ x[0].t() / math.sqrt(2)
        torch.testing.assert_close(record["scores"][0, head], scores, **EXACT)


def test_equal_W_Q_and_W_K_without_rotary_positions_make_scores_symmetric():
    attention, x = heads_of(), normal(2, 5, 6)
    attention.W_K.data = attention.W_Q.data.clone()
    _, record = attention.forward_recorded(x)
    torch.testing.assert_close(record["scores"], record["scores"].mT, **EXACT)


def test_with_rotary_positions_they_make_the_scores_of_one_text_symmetric_but_not_the_form_at_a_distance():
    attention, x = heads_of(d_model=8, rope_base=10.0), normal(1, 8, 8)
    attention.W_K.data = attention.W_Q.data.clone()
    _, record = attention.forward_recorded(x)
    torch.testing.assert_close(record["scores"], record["scores"].mT, **EXACT)
    same = x[:, :1].expand(1, 8, 8)
    swapped = torch.cat((x[:, 1:2], x[:, :1]), dim=1)
    _, forward = attention.forward_recorded(torch.cat((x[:, :1], x[:, 1:2], same[:, 2:]), dim=1))
    _, backward = attention.forward_recorded(torch.cat((swapped, same[:, 2:]), dim=1))
    apart = forward["scores"][0, :, 0, 1] - backward["scores"][0, :, 0, 1]
    assert apart.abs().max() > 1e-3, "a before b scores otherwise than b before a"


@pytest.mark.parametrize("name", ["W_Q", "W_K", "W_V"])
def test_the_change_of_a_query_key_or_value_splits_into_its_input_its_matrix_and_both(name):
    attention, x, dx, dW = heads_of(), normal(2, 5, 6), normal(2, 5, 6, seed=1), normal(6, 6, seed=2)
    letter = name[-1].lower()
    before = attention.forward_recorded(x)[1][letter]
    W = getattr(attention, name).data.clone()
    getattr(attention, name).data += dW
    after = attention.forward_recorded(x + dx)[1][letter]
    parts = dx @ W + x @ dW + dx @ dW
    torch.testing.assert_close(after - before, parts.unflatten(-1, (2, 3)).transpose(1, 2), **EXACT)


def test_the_change_of_the_scores_splits_into_that_of_the_queries_that_of_the_keys_and_both():
    attention, x, dx = heads_of(), normal(2, 5, 6), normal(2, 5, 6, seed=1)
    _, a = attention.forward_recorded(x)
    attention.W_Q.data += normal(6, 6, seed=2)
    attention.W_K.data += normal(6, 6, seed=3)
    _, b = attention.forward_recorded(x + dx)
    dq, dk = b["q"] - a["q"], b["k"] - a["k"]
    split = (dq @ a["k"].mT + a["q"] @ dk.mT + dq @ dk.mT) / math.sqrt(3)
    torch.testing.assert_close(b["scores"] - a["scores"], split, **EXACT)
