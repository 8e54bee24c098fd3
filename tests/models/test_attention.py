"""Attention against independent implementations, its masks, and its parts in use alone."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import ConfigError
from qkv.models import (
    KVCache,
    ModelConfig,
    MultiHeadAttention,
    SelfAttention,
    Sizes,
    attend,
    attend_explicit,
    build,
)
from qkv.models.masks import Visible, visible
from qkv.models.positions import Rotary, positions_within, rotate

EXACT = dict(rtol=0, atol=1e-12)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def torch_twin(ours: MultiHeadAttention, d_model: int) -> torch.nn.MultiheadAttention:
    theirs = torch.nn.MultiheadAttention(d_model, ours.n_heads, bias=ours.b_Q is not None, batch_first=True).double()
    theirs.in_proj_weight.data = torch.cat((ours.W_Q, ours.W_K, ours.W_V), dim=1).t().detach().clone()
    theirs.out_proj.weight.data = ours.W_O.t().detach().clone()
    if ours.b_Q is not None:
        theirs.in_proj_bias.data = torch.cat((ours.b_Q, ours.b_K, ours.b_V)).detach().clone()
        theirs.out_proj.bias.data = ours.b_O.detach().clone()
    return theirs


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_multi_head_attention_is_that_of_torch_in_values_and_gradients(bias, causal, masked):
    ours = MultiHeadAttention(8, 2, bias=bias, causal=causal).double()
    for i, parameter in enumerate(ours.parameters()):
        parameter.data = normal(*parameter.shape, seed=i + 1)
    theirs, mask = torch_twin(ours, 8), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    x, same = normal(2, 5, 8).requires_grad_(), normal(2, 5, 8).requires_grad_()
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    expected, _ = theirs(same, same, same, attn_mask=hidden, key_padding_mask=~mask if masked else None)
    for got in (ours(x, mask=mask if masked else None), ours.forward_recorded(x, mask=mask if masked else None)[0]):
        torch.testing.assert_close(got, expected, **EXACT)
    ours(x, mask=mask if masked else None).square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, same.grad, rtol=0, atol=1e-10)
    torch.testing.assert_close(ours.W_O.grad.t(), theirs.out_proj.weight.grad, rtol=0, atol=1e-10)
    joined = torch.cat((ours.W_Q.grad, ours.W_K.grad, ours.W_V.grad), dim=1)
    torch.testing.assert_close(joined.t(), theirs.in_proj_weight.grad, rtol=0, atol=1e-10)


def test_cross_attention_is_that_of_torch():
    ours = MultiHeadAttention(8, 2).double()
    theirs, x, context = torch_twin(ours, 8), normal(2, 5, 8), normal(2, 7, 8, seed=1)
    mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    expected, _ = theirs(x, context, context, key_padding_mask=~mask)
    torch.testing.assert_close(ours(x, context, mask=mask), expected, **EXACT)
    torch.testing.assert_close(ours.forward_recorded(x, context, mask=mask)[0], expected, **EXACT)
    with pytest.raises(ConfigError, match="give a mask of the context"):
        ours(x, context, documents=torch.zeros(2, 5, dtype=torch.long))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_explicit_attention_is_scaled_dot_product_attention(dtype, causal, kv_heads):
    q = normal(2, 4, 6, 8).to(dtype)
    k, v = normal(2, kv_heads, 6, 8, seed=1).to(dtype), normal(2, kv_heads, 6, 8, seed=2).to(dtype)
    expected = F.scaled_dot_product_attention(
        q, k.repeat_interleave(4 // kv_heads, 1), v.repeat_interleave(4 // kv_heads, 1), is_causal=causal
    )
    z, scores, pattern = attend_explicit(q, k, v, Visible(causal, None), 8**-0.5)
    atol = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(z, expected, rtol=0, atol=atol)
    torch.testing.assert_close(attend(q, k, v, Visible(causal, None), 8**-0.5), expected, rtol=0, atol=atol)
    torch.testing.assert_close(pattern, scores.softmax(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_module_of_half_precision_attends_and_keeps_its_type(dtype):
    x = normal(2, 5, 8)
    for module in (SelfAttention(8, causal=True), MultiHeadAttention(8, 2)):
        wide, found = module.double()(x), module.to(dtype).forward_recorded(x.to(dtype))[0]
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), wide, rtol=0, atol=0.05)
    model = build(ModelConfig(kind="CausalLM", sizes=Sizes(d_vocab=9, d_model=8, n_layers=2, n_heads=2, n_ctx=4)), 0)
    assert model.to(dtype).forward_recorded(torch.arange(4)[None])[0].dtype == dtype


def test_shared_key_value_heads_are_heads_with_equal_matrices():
    shared, full = MultiHeadAttention(8, 4, n_kv_heads=2).double(), MultiHeadAttention(8, 4).double()
    full.W_Q.data, full.W_O.data = shared.W_Q.data, shared.W_O.data
    for name in ("W_K", "W_V"):
        per_head = getattr(shared, name).data.unflatten(1, (2, 2)).repeat_interleave(2, dim=1)
        getattr(full, name).data = per_head.flatten(1)
    x = normal(2, 5, 8)
    torch.testing.assert_close(shared(x), full(x), **EXACT)


def test_self_attention_is_multi_head_attention_of_one_head():
    one, many = (
        SelfAttention(6, d_head=4, causal=True, seed=3).double(),
        MultiHeadAttention(6, 1, d_head=4, causal=True),
    )
    many.load_state_dict(one.state_dict())
    x, mask = normal(2, 5, 6), torch.tensor([[True] * 5, [True, True, True, False, False]])
    torch.testing.assert_close(one(x, mask), many.double()(x, mask=mask), **EXACT)


def test_attention_of_its_own_seed_starts_the_same_everywhere():
    assert torch.equal(MultiHeadAttention(8, 2, seed=5).W_Q, MultiHeadAttention(8, 2, seed=5).W_Q)
    assert not torch.equal(MultiHeadAttention(8, 2, seed=5).W_Q, MultiHeadAttention(8, 2, seed=6).W_Q)


@settings(max_examples=60, deadline=None)
@given(
    n_key=st.integers(1, 7),
    back=st.integers(0, 6),
    causal=st.booleans(),
    padding=st.none() | st.lists(st.booleans(), min_size=14, max_size=14),
    packing=st.none() | st.lists(st.integers(0, 2), min_size=14, max_size=14),
)
def test_visible_is_the_conjunction_of_causality_padding_and_documents(n_key, back, causal, padding, packing):
    n_query = max(1, n_key - back)
    keys = None if padding is None else torch.tensor(padding).view(2, 7)[:, :n_key]
    documents = None if packing is None else torch.tensor(packing).view(2, 7)[:, :n_key]
    to = visible(
        n_query, n_key, causal=causal, keys=keys, documents=documents, like=torch.zeros((), dtype=torch.float64)
    )
    q, k, v = normal(2, 1, n_query, 3), normal(2, 1, n_key, 3, seed=1), normal(2, 1, n_key, 3, seed=2)
    z = attend(q, k, v, to, 1.0)
    torch.testing.assert_close(z, attend_explicit(q, k, v, to, 1.0)[0], **EXACT)
    for row in range(2):
        for i in range(n_query):
            place = n_key - n_query + i
            order = [j for j in range(n_key) if j <= place or not causal]
            seen = [
                j
                for j in order
                if (keys is None or keys[row, j]) and (documents is None or documents[row, j] == documents[row, place])
            ]
            seen = seen or order  # a query that sees nothing is padding; its result only has to be finite
            scores = np.array([float(q[row, 0, i] @ k[row, 0, j]) for j in seen])
            weights = np.exp(scores - scores.max())
            expected = (weights / weights.sum()) @ v[row, 0, seen].numpy()
            np.testing.assert_allclose(z[row, 0, i].numpy(), expected, rtol=0, atol=1e-12)


def test_rotary_turns_keep_lengths_and_make_scores_depend_on_distance_only():
    cos, sin, turn = Rotary(8, 100.0).tables(20, torch.float64, torch.device("cpu"))
    q, k = normal(8), normal(8, seed=1)
    turned_q, turned_k = rotate(q.expand(20, 8), cos, sin), rotate(k.expand(20, 8), cos, sin)
    torch.testing.assert_close(turned_q.norm(dim=1), q.norm().expand(20), **EXACT)
    scores = turned_q @ turned_k.t()
    for distance in range(1, 10):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.complex(cos, sin), turn)


def test_positions_begin_anew_at_each_sequence():
    assert positions_within(4, None, None) is None
    mask = torch.tensor([[False, False, True, True], [True, True, True, False]])
    assert positions_within(4, mask, None).tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
    documents = torch.tensor([[0, 0, 1, 1], [5, 6, 6, 6]])
    assert positions_within(4, None, documents).tolist() == [[0, 1, 0, 1], [0, 0, 1, 2]]


def test_a_cache_refuses_more_positions_than_it_was_made_for():
    cache = KVCache(1, 1, 1, 3, 2)
    cache.append(0, torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2))
    cache.advance(2)
    with pytest.raises(ConfigError, match="4 positions do not fit into a cache of n_ctx = 3"):
        cache.append(0, torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("mask", [torch.ones(2, 3), torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 1) > 0])
def test_a_mask_that_is_not_bool_or_not_of_all_keys_is_refused_with_what_was_expected(mask):
    for module in (SelfAttention(8), MultiHeadAttention(8, 2, causal=True)):
        with pytest.raises(ConfigError, match=r"expected bool \[batch, 3\], True for real tokens"):
            module(normal(2, 3, 8).float(), mask=mask)


@pytest.mark.parametrize("setting", [dict(bias="q"), dict(rope_base=-10000.0), dict(rope_base=1.0)])
def test_a_setting_of_an_attention_alone_is_checked_as_in_a_model(setting):
    with pytest.raises(ConfigError, match="unknown value for attention_bias 'q'|expected a number above 1"):
        MultiHeadAttention(8, 2, **setting)


def test_scores_are_divided_by_the_root_of_d_head_unless_told_otherwise():
    scaled, plain = MultiHeadAttention(8, 2).double(), MultiHeadAttention(8, 2, scale=False).double()
    x = normal(1, 4, 8)
    ratio = plain.forward_recorded(x)[1]["scores"] / scaled.forward_recorded(x)[1]["scores"]
    torch.testing.assert_close(ratio, torch.full_like(ratio, math.sqrt(4)))


def test_a_table_made_under_inference_mode_serves_training_later():
    attention = MultiHeadAttention(8, 2, causal=True, rope_base=100.0)
    x = torch.randn(1, 4, 8)
    with torch.inference_mode():
        attention(x)
    attention(x).sum().backward()
    assert attention.W_Q.grad is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(d_head=-1), "d_head is -1"),
        (dict(d_head=3, start="identity"), "needs one head as wide as the model"),
        (dict(start="xaver"), "did you mean 'xavier'"),
    ],
)
def test_self_attention_refuses_what_does_not_fit_in_one_sentence(given, message):
    with pytest.raises(ConfigError, match=message):
        SelfAttention(8, **given)
