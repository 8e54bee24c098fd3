"""Attention by plain products equals its formula in values and gradients, whatever is hidden and shared."""

import math

import pytest
import torch

from qkv.kernels import attention_products
from qkv.models.attention import attend, attend_explicit
from qkv.models.masks import Visible, visible

BATCH, N, D = 3, 7, 4


def heads(count: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, count, N, D, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def seen(kind: str, like: torch.Tensor) -> Visible:
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]])
    real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3, [True] + [False] * 6])
    cases = {
        "everything": {"causal": False},
        "causal": {"causal": True},
        "documents": {"causal": True, "documents": documents},
        "padding": {"causal": False, "keys": real},
    }
    return visible(N, N, like=like, **cases[kind])


def by_products(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, to: Visible) -> torch.Tensor:
    bias = attention_products.causal_bias(N, q) if to.causal else to.bias
    return attention_products.attend_by_products(q, k, v, bias, 0.3)


@pytest.mark.parametrize("at_once", [1, 2**20], ids=["in portions", "at once"])
@pytest.mark.parametrize("n_kv", [4, 2, 1])
@pytest.mark.parametrize("kind", ["everything", "causal", "documents", "padding"])
def test_attention_by_products_equals_its_formula_in_values_and_gradients(kind, n_kv, at_once, monkeypatch):
    monkeypatch.setattr(attention_products, "AT_ONCE", at_once)
    inputs = heads(4, 1), heads(n_kv, 2), heads(n_kv, 3)
    to, cotangent = seen(kind, inputs[0]), heads(4, 4).detach()
    fast, slow = by_products(*inputs, to), attend_explicit(*inputs, to, 0.3)[0]
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-13)
    for a, b in zip(
        torch.autograd.grad(fast, inputs, cotangent), torch.autograd.grad(slow, inputs, cotangent), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


def test_gradient_of_attention_by_products_equals_finite_differences():
    inputs = tuple(heads(count, seed)[:1, :, :4].detach().requires_grad_() for count, seed in ((2, 1), (1, 2), (1, 3)))
    bias = attention_products.causal_bias(4, inputs[0])
    assert torch.autograd.gradcheck(lambda q, k, v: attention_products.attend_by_products(q, k, v, bias, 0.5), inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rounding_error_is_of_the_size_of_the_fused_operators(dtype):
    exact = [
        torch.randn(2, 4, 128, 16, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in range(4)
    ]
    results = {}
    for name in ("exact", "products", "torch"):
        q, k, v, g = (x.to(torch.float64 if name == "exact" else dtype) for x in exact)
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        if name == "exact":
            z = attend_explicit(q, k, v, Visible(True, None), 0.25)[0]
        elif name == "products":
            z = attention_products.attend_by_products(q, k, v, attention_products.causal_bias(128, q), 0.25)
        else:
            z = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25)
        results[name] = [z.detach().double(), *(x.double() for x in torch.autograd.grad(z, (q, k, v), g))]
    for exact_value, ours, theirs in zip(results["exact"], results["products"], results["torch"], strict=True):
        error, yardstick = (ours - exact_value).norm(), (theirs - exact_value).norm()
        assert error <= 2 * yardstick, f"{float(error):.2e} against {float(yardstick):.2e}"


def test_under_autocast_it_multiplies_in_bfloat16_whatever_came_in():
    inputs = heads(4, 1, torch.float32), heads(2, 2, torch.float32), heads(2, 3, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        z = attend(*inputs, Visible(True, None), 0.3)
    assert z.dtype == torch.bfloat16
    exact = attend_explicit(*inputs, Visible(True, None), 0.3)[0]
    torch.testing.assert_close(z.float(), exact, rtol=0.02, atol=0.02)
    assert all(g.dtype == torch.float32 for g in torch.autograd.grad(z.float().sum(), inputs))


def test_attend_takes_it_where_it_is_faster(monkeypatch):
    taken = []
    monkeypatch.setattr(
        attention_products, "attend_by_products", lambda q, k, v, bias, scale: taken.append(q.dtype) or q
    )
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        attend(heads(2, 1, dtype), heads(2, 2, dtype), heads(2, 3, dtype), Visible(True, None), 1 / math.sqrt(D))
    assert taken == [torch.bfloat16, torch.float32]
    monkeypatch.setattr(attention_products, "LONGEST", {torch.float32: N - 1})
    attend(heads(2, 1, torch.float32), heads(2, 2, torch.float32), heads(2, 3, torch.float32), Visible(True, None), 1.0)
    assert len(taken) == 2


@pytest.mark.parametrize(("at_once", "kept"), [(2**20, True), (4 * N * N, False)])
def test_a_large_pattern_is_not_kept_and_its_gradients_are_the_same(at_once, kept, monkeypatch):
    inputs, cotangent = [heads(4, seed, torch.float32) for seed in (1, 2, 3)], heads(4, 4, torch.float32).detach()
    at_once_too = torch.autograd.grad(by_products(*inputs, Visible(True, None)), inputs, cotangent)
    monkeypatch.setattr(attention_products, "AT_ONCE", at_once)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        z = by_products(*inputs, Visible(True, None))
    assert (BATCH * 4 * N * N in sizes) == kept
    for ours, expected in zip(torch.autograd.grad(z, inputs, cotangent), at_once_too, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
