"""The hand-written parts equal the explicit path, in values and in gradients, and their gradients equal finite
differences.
"""

import itertools

import pytest
import torch
import torch.nn.functional as F

from qkv.kernels import autograd, blocks
from qkv.models import Layout, MaskedLM, ModelConfig, MultiHeadAttention, Sizes, build
from qkv.models.blocks import MLP
from qkv.models.masks import Visible
from qkv.models.norms import LayerNorm, RMSNorm

FAR = 1e-12


def look(name: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    """Float64, with every parameter (gains too) random."""
    module.double()
    generator = torch.Generator().manual_seed(5)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5
    return module


def gradients(module: torch.nn.Module, x: torch.Tensor, forward) -> list[torch.Tensor]:
    """The result, the gradient of x and that of every parameter, for a fixed random cotangent."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    y = forward(x)
    generator = torch.Generator().manual_seed(6)
    y.backward(torch.randn(y.shape, generator=generator, dtype=y.dtype))
    return [y.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]


def assert_same(fast: list[torch.Tensor], slow: list[torch.Tensor], atol: float = FAR) -> None:
    for a, b in zip(fast, slow, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=0, atol=atol)


ATTENTIONS = [
    dict(qk_norm=qk_norm, rope_base=base, n_kv_heads=kv, norm=norm, skip=skip, bias=bias)
    for (qk_norm, base), kv, (norm, skip), bias in itertools.product(
        [(True, 100.0), (False, 100.0), (True, 0.0), (False, 0.0)],
        [4, 2],
        [("rms", True), ("rms", False), ("layer", True), (None, True), (None, False)],
        ["none", "qkv", "all"],
    )
]


@pytest.mark.parametrize("case", ATTENTIONS, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_fused_attention_sublayer_equals_its_formula_in_values_and_gradients(case):
    norm = {"rms": RMSNorm(6, 1e-3), "layer": LayerNorm(6, 1e-3, bias=False), None: None}[case["norm"]]
    attention = MultiHeadAttention(
        6,
        4,
        n_kv_heads=case["n_kv_heads"],
        d_head=4,
        bias=case["bias"],
        qk_norm=case["qk_norm"],
        rope_base=case["rope_base"],
    )
    both = randomised(torch.nn.ModuleList([attention] + ([norm] if norm is not None else [])))
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    causal = Visible(True, None)
    fast = gradients(both, x, lambda x: blocks.attention(attention, x, causal, norm=norm, skip=case["skip"]))

    def formula(x: torch.Tensor) -> torch.Tensor:
        out = attention.mixed(x if norm is None else norm.plain(x), causal, hook=look)
        return x + out if case["skip"] else out

    slow = gradients(both, x, formula)
    assert_same(fast, slow)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["relu2", "swiglu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("norm", [RMSNorm(6, 1e-3), LayerNorm(6, 1e-3, bias=False), None])
@pytest.mark.parametrize("skip", [True, False])
def test_fused_mlp_sublayer_equals_its_formula_in_values_and_gradients(kind, norm, skip, bias):
    mlp = MLP(kind, 6, 10, bias=bias)
    both = randomised(torch.nn.ModuleList([mlp] + ([norm] if norm is not None else [])))
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    fast = gradients(both, x, lambda x: blocks.mlp(mlp, x, norm=norm, skip=skip))

    def formula(x: torch.Tensor) -> torch.Tensor:
        out = mlp(x if norm is None else norm.plain(x))
        return x + out if skip else out

    slow = gradients(both, x, formula)
    assert_same(fast, slow)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_gelu_tanh_keeps_its_values_and_slopes_where_it_is_a_line_or_nothing(dtype):
    mlp = MLP("gelu_tanh", 1, 1, bias=False).to(dtype)
    torch.nn.init.ones_(mlp.W_in)
    torch.nn.init.ones_(mlp.W_out)
    x = torch.tensor([-1e4, -30.0, -8.0, -1e-3, -0.0, 1e-3, 8.0, 30.0, 1e4], dtype=dtype)[
        :, None, None
    ].requires_grad_()
    y = blocks.mlp(mlp, x, skip=False)
    y.sum().backward()
    wide = x.detach().double().requires_grad_()
    expected = torch.nn.functional.gelu(wide, approximate="tanh")
    expected.sum().backward()
    close = {"rtol": 2e-6, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 2**-9}
    torch.testing.assert_close(y.double(), expected, **close)
    torch.testing.assert_close(x.grad.double(), wide.grad, **close)


def test_fused_rms_norm_equals_its_formula_in_values_and_gradients():
    norm = randomised(RMSNorm(7, 1e-3))
    x = torch.randn(2, 3, 7, dtype=torch.float64)
    assert_same(gradients(norm, x, norm), gradients(norm, x, norm.plain))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_rms_norm_keeps_the_dtype_of_its_input(dtype):
    norm = RMSNorm(8, 1e-6)
    x = torch.randn(2, 3, 8, dtype=dtype)
    assert norm(x).dtype == dtype
    torch.testing.assert_close(norm(x), norm.plain(x.float()).to(dtype))


def inputs(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def rms(gain: torch.Tensor) -> autograd.Norm:
    return autograd.Norm(gain, None, autograd.NormKind(1e-3, False))


def test_gradient_of_fused_layer_norm_equals_finite_differences():
    how = autograd.NormKind(1e-3, True)
    given = inputs((2, 3, 4), (4,), (4,))
    assert torch.autograd.gradcheck(lambda x, gain, bias: autograd.norm(x, autograd.Norm(gain, bias, how)), given)
    assert torch.autograd.gradcheck(lambda x, gain: autograd.norm(x, autograd.Norm(gain, None, how)), given[:2])


def test_gradient_of_fused_rms_norm_equals_finite_differences():
    assert torch.autograd.gradcheck(lambda x, gain: autograd.norm(x, rms(gain)), inputs((2, 3, 4), (4,)))


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("normed", [True, False])
def test_gradient_of_fused_projections_equals_finite_differences(turned, normed):
    angles = torch.rand(3, 2, dtype=torch.float64)
    heads = autograd.Heads(2, 1, 4, torch.polar(torch.ones_like(angles), angles) if turned else None, 1e-3)

    def project(x, gain, W_Q, W_K, W_V, b_Q, b_K, b_V, q_gain, k_gain):
        gains = (q_gain, k_gain) if normed else None
        return autograd.attention_in(x, rms(gain), (W_Q, W_K, W_V), (b_Q, b_K, b_V), gains, heads)

    given = inputs((1, 3, 3), (3,), (3, 8), (3, 4), (3, 4), (8,), (4,), (4,), (4,), (4,))
    if not normed:
        given[-2:] = [gain.detach() for gain in given[-2:]]
    assert torch.autograd.gradcheck(project, given)


def test_gradient_of_fused_attention_output_equals_finite_differences():
    assert torch.autograd.gradcheck(autograd.attention_out, inputs((2, 3, 4), (2, 2, 3, 2), (4, 4), (4,)))


@pytest.mark.parametrize("kind", ["relu2", "swiglu", "gelu", "gelu_tanh"])
def test_gradient_of_fused_mlp_equals_finite_differences(kind):
    def through(x, gain, W_in, W_gate, W_out, b_in, b_out):
        weights = (W_in, W_gate if kind == "swiglu" else None, W_out)
        return autograd.mlp(x, rms(gain), kind, weights, (b_in, b_out), residual=True)

    given = inputs((1, 3, 4), (4,), (4, 5), (4, 5), (5, 4), (5,), (4,))
    given[3] = given[3] if kind == "swiglu" else given[3].detach()
    assert torch.autograd.gradcheck(through, given)


LAYOUTS = {
    "modern": Layout(qk_norm=True, tied=False, start="normal"),
    "biased": Layout(positions="learned", norm="layer", mlp="gelu_tanh", bias=True, tied=False, start="normal"),
}
FROZEN = {
    "modern": ["W_E", "W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out", "norm1.gain", "qnorm.gain"],
    "biased": ["W_E", "W_Q", "W_K", "W_V", "W_O", "W_in", "W_out", "b_Q", "b_V", "b_O", "b_in", "b_out", "norm2.bias"],
}


@pytest.mark.parametrize(("name", "frozen"), [(name, frozen) for name in FROZEN for frozen in FROZEN[name]])
def test_freezing_one_matrix_leaves_the_other_gradients_as_they_were(name, frozen):
    config = ModelConfig(
        kind="CausalLM", sizes=Sizes(d_vocab=7, d_model=8, n_layers=2, n_heads=2, n_ctx=6), layout=LAYOUTS[name]
    )
    ids = torch.randint(0, 7, (2, 6), generator=torch.Generator().manual_seed(1))
    grads = []
    for freeze in (False, True):
        model = randomised(build(config, 0))
        for path, parameter in model.named_parameters():
            parameter.requires_grad_(not (freeze and path.endswith(frozen)))
        model(ids).square().mean().backward()
        grads.append({path: parameter.grad for path, parameter in model.named_parameters()})
    for path, grad in grads[1].items():
        if path.endswith(frozen):
            assert grad is None
        else:
            assert torch.equal(grad, grads[0][path]), path


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mlp", ["relu2", "swiglu", "gelu_tanh"])
def test_autocast_to_bfloat16_stays_near_float32_in_logits_and_gradients(mlp, bias):
    config = ModelConfig(
        kind="MaskedLM",
        sizes=Sizes(d_vocab=7, d_model=16, n_layers=2, n_heads=2, n_ctx=6),
        layout=Layout(qk_norm=True, mlp=mlp, bias=bias, start="xavier"),
    )
    model = build(config, 0)
    assert isinstance(model, MaskedLM)
    ids = torch.randint(0, 7, (2, 6), generator=torch.Generator().manual_seed(1))
    seen = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            hidden = model.hidden(ids)
            logits = model.unembed(hidden)
        assert hidden.dtype == torch.float32, "the residual stream stays in float32"
        F.cross_entropy(logits.float().flatten(0, 1), ids.flip(1).flatten()).backward()
        grads = [parameter.grad for parameter in model.parameters()]
        assert all(grad.dtype == torch.float32 for grad in grads)
        seen.append((hidden.detach(), torch.cat([grad.flatten() for grad in grads])))
    for exact, rounded in zip(*seen, strict=True):
        assert (exact - rounded).norm() <= 0.02 * exact.norm()
