"""Compiled passes equal torch's operators, in values and gradients, whatever the sizes and the number of threads."""

import itertools

import pytest
import torch

from qkv import native
from qkv.kernels import elementwise
from qkv.kernels.reference import Formulas, Heads, NormKind
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.tasks import Batch, Causal

pytestmark = pytest.mark.skipif(native.load("passes") is None, reason=native.why_not("passes"))

NEAR = {torch.float32: dict(rtol=2e-5, atol=2e-5), torch.bfloat16: dict(rtol=2**-7, atol=2**-6)}
DTYPES = [torch.float32, torch.bfloat16]
SIZES = [(1, 1), (3, 7), (33, 64), (130, 129)]


@pytest.fixture
def compiled() -> elementwise.Compiled:
    with elementwise.using(True):
        found = elementwise.compiled_for(torch.zeros(1))
    assert found is not None
    return found


FORMULAS = Formulas()


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(found, expected, dtype: torch.dtype, scale: float = 1.0) -> None:
    assert (found is None) == (expected is None)
    if found is not None:
        assert found.dtype == expected.dtype
        near = NEAR[dtype]
        torch.testing.assert_close(found.float(), expected.float(), rtol=near["rtol"], atol=near["atol"] * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("n", "d"), SIZES)
def test_norm_equals_its_formula(compiled, n, d, with_bias, centred, dtype):
    if d == 1 and centred:
        pytest.skip("one number less its mean is rounding alone")
    kind, x, gain = NormKind(1e-5, centred), 3 * normal(n, d) + 0.5, normal(d, seed=1)
    bias = normal(d, seed=2) if with_bias and centred else None
    (y, kept), (expected, of_formula) = (by.norm(x, gain, bias, kind, dtype) for by in (compiled, FORMULAS))
    same(y, expected, dtype)
    for onto in (None, normal(n, d, seed=4)):
        dy = normal(n, d, seed=3, dtype=dtype)
        back = compiled.norm_back(dy.clone(), kept, gain, bias, kind, onto)
        theirs = FORMULAS.norm_back(dy.float(), of_formula, gain, bias, kind, onto)
        for mine, their in zip(back, theirs, strict=True):
            same(mine, their, torch.float32, scale=n)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["relu2", "gelu", "gelu_tanh"])
@pytest.mark.parametrize(("n", "d"), SIZES)
def test_activation_and_its_slope_equal_their_formulas(compiled, n, d, kind, dtype):
    c, ds = 3 * normal(n, d, dtype=dtype), normal(n, d, dtype=dtype, seed=1)
    (s, kept), (expected, of_formula) = (by.activate(kind, c.clone()) for by in (compiled, FORMULAS))
    same(s, expected, dtype, scale=4)
    for summed in (False, True):
        dc, sums = compiled.slope(kind, ds.clone(), kept, summed=summed)
        theirs, their_sums = FORMULAS.slope(kind, ds.clone(), of_formula, summed=summed)
        same(dc, theirs, dtype, scale=4)
        same(sums, their_sums, dtype, scale=n)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "d"), SIZES)
def test_a_product_and_its_bias_equal_their_formulas_wherever_the_bias_is_added(compiled, n, d, dtype):
    y, W, bias, x = (normal(*shape, seed=seed) for seed, shape in enumerate(((n, 9), (9, d), (d,), (n, d))))
    y, W = y.to(dtype), W.to(dtype)
    for b in (None, bias, normal(2 * d, seed=5)[::2]):
        same(
            compiled.plus_product(x, y, W, b),
            FORMULAS.plus_product(x, y, W, b),
            torch.float32,
            scale=1 if dtype == torch.float32 else 4000,
        )
        (s, kept), (expected, theirs) = (by.activate("gelu_tanh", *by.product(y, W, b)) for by in (compiled, FORMULAS))
        same(s, expected, dtype, scale=9)
        same(kept, theirs, dtype, scale=3)


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh"])
def test_activations_keep_what_they_are_far_from_zero(compiled, kind):
    """A line, or nothing; infinite is infinite, and what is not a number stays so."""
    c = torch.tensor([-1e4, -100.0, -30.0, -10.0, 10.0, 30.0, 1e4, float("inf"), float("nan")])
    s, slope = (row[0] for row in compiled.activate(kind, c.clone()[None]))
    torch.testing.assert_close(s[:7], c[:7].clamp_min(0), rtol=0, atol=1e-20)
    torch.testing.assert_close(slope[:7], (c[:7] > 0).float(), rtol=0, atol=1e-20)
    assert s[7] == float("inf") and s[8].isnan() and slope[8].isnan()


@pytest.mark.parametrize("kind", ["relu2", "gelu", "gelu_tanh"])
def test_not_a_number_passes_through_in_bfloat16(compiled, kind):
    c = torch.full((3, 40), float("nan"), dtype=torch.bfloat16)
    s, slope = compiled.activate(kind, c.clone())
    assert s.isnan().all() and slope.isnan().all()


def test_erf_gelu_is_exact_to_float32(compiled):
    c = torch.linspace(-9, 9, 20_001)
    wide = c.double().requires_grad_()
    expected = torch.nn.functional.gelu(wide)
    (slope,) = torch.autograd.grad(expected.sum(), wide)
    s, found = (column[:, 0] for column in compiled.activate("gelu", c[:, None].clone()))
    assert (s - expected).abs().max() < 1e-6 and (found - slope).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "d"), SIZES)
def test_gate_and_its_slopes_equal_their_formulas(compiled, n, d, dtype):
    g, c, ds = (3 * normal(n, d, dtype=dtype, seed=seed) for seed in range(3))
    (s, kept), (expected, of_formula) = (by.gate(g, c) for by in (compiled, FORMULAS))
    same(s, expected, dtype, scale=9)
    found, theirs = compiled.gate_back(ds.clone(), g, c, kept), FORMULAS.gate_back(ds.clone(), g, c, of_formula)
    for mine, their in zip(found, theirs, strict=True):
        same(mine, their, dtype, scale=27)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("turned", "normed"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize(("n_heads", "n_kv", "d"), [(1, 1, 2), (4, 4, 32), (6, 2, 10)])
def test_heads_equal_their_formulas_up_to_the_order_of_coordinates(compiled, n_heads, n_kv, d, turned, normed, dtype):
    batch, pos, n = 2, 37, n_heads + 2 * n_kv
    angles = torch.rand(pos, d // 2, generator=torch.Generator().manual_seed(9)) * 6
    heads = Heads(n_heads, n_kv, d, torch.polar(torch.ones_like(angles), angles) if turned else None, 1e-5)
    h = normal(batch, pos, n, d, dtype=dtype)
    gains = (normal(d, seed=1), normal(d, seed=2)) if normed else None
    order = torch.arange(d).view(2, -1).t().flatten() if turned else torch.arange(d)  # pairs beside each other
    n_qk = n_heads + n_kv
    bias = normal(n, d, seed=8).to(dtype).float() if normed else None
    added = h if bias is None else (h.float() + bias).to(dtype)
    inputs = (added.clone(), None) if bias is None else (h.clone(), bias.flatten())
    sides, kept = compiled.place(*inputs, gains, heads)
    h, paired = added, torch.cat((added[:, :, :n_qk, order], added[:, :, n_qk:]), dim=2)
    theirs, of_formula = FORMULAS.place(paired.clone(), None, gains, heads)
    for i, (mine, their) in enumerate(zip(sides, theirs, strict=True)):
        assert mine.is_contiguous()
        same(mine[..., order] if i < 2 else mine, their, dtype, scale=4)
    cotangents = [normal(batch, heads_of, pos, d, dtype=dtype, seed=5) for heads_of in (n_heads, n_kv, n_kv)]
    for given in (cotangents, [None, cotangents[1], None], [cotangents[0], None, cotangents[2]]):
        dh, d_gains = compiled.place_back(tuple(given), kept, heads, h)
        for_them = [g if g is None or i == 2 else g[..., order] for i, g in enumerate(given)]
        their_dh, their_gains = FORMULAS.place_back(tuple(for_them), of_formula, heads, paired)
        same(torch.cat((dh[:, :, :n_qk, order], dh[:, :, n_qk:]), dim=2), their_dh, dtype, scale=4)
        assert (d_gains is None) == (their_gains is None)
        for mine, their in zip(d_gains or (), their_gains or (), strict=True):
            same(mine, their, dtype, scale=batch * pos)


LAYOUTS = {
    "modern": Layout(qk_norm=True, tied=False, start="normal"),
    "swiglu": Layout(mlp="swiglu", start="normal"),
    "gpt2": Layout(positions="learned", norm="layer", mlp="gelu_tanh", bias=True, start="normal"),
    "bert": Layout(positions="learned", norm="layer", norm_place="post", mlp="gelu", bias=True, start="normal"),
}


def loss_and_gradients(name: str, precision: torch.dtype, using: bool) -> tuple[float, dict[str, torch.Tensor]]:
    sizes = Sizes(d_vocab=40, d_model=48, n_layers=3, n_heads=3, n_ctx=24).resolved()
    model = build(ModelConfig(kind="CausalLM", sizes=sizes, layout=LAYOUTS[name]), 0)
    ids = torch.randint(40, (4, 25), generator=torch.Generator().manual_seed(1))
    with elementwise.using(using), torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
        loss, _ = Causal().loss(model, Batch(ids[:, :-1], ids[:, 1:].flatten()))
    loss.backward()
    return float(loss.detach()), {key: p.grad for key, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_whole_model_has_the_loss_and_gradients_of_the_formulas(name):
    loss, gradients = loss_and_gradients(name, torch.float32, True)
    expected, theirs = loss_and_gradients(name, torch.float32, False)
    assert loss == pytest.approx(expected, rel=1e-6) and gradients.keys() == theirs.keys()
    for key, gradient in gradients.items():
        assert (gradient - theirs[key]).norm() < 1e-5 * (theirs[key].norm() + 1e-3), key


@pytest.mark.parametrize("name", LAYOUTS)
def test_under_bfloat16_a_whole_model_is_as_near_to_float32_as_by_the_formulas(name):
    exact_loss, exact = loss_and_gradients(name, torch.float32, False)
    far = {using: loss_and_gradients(name, torch.bfloat16, using) for using in (True, False)}
    assert abs(far[True][0] - exact_loss) < max(2 * abs(far[False][0] - exact_loss), 1e-3 * exact_loss)
    total = {u: sum(float((g[key] - exact[key]).norm()) for key in exact) for u, (_, g) in far.items()}
    assert total[True] < 1.2 * total[False]


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_number_of_threads_changes_no_bit(name):
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            with elementwise.using(True):
                by, x = elementwise.chosen(torch.zeros(1), torch.float32), normal(300, 65)
                kind = NormKind(1e-5, name == "gpt2")
                y, kept = by.norm(x, x[0], None, kind, torch.bfloat16)
                found.append([y, *by.norm_back(x.bfloat16(), kept, x[0], None, kind, x)[:2]])
                s, a = by.activate({"gpt2": "gelu_tanh", "bert": "gelu"}.get(name, "relu2"), x.clone())
                found[-1] += [s, *by.slope("relu2", x.clone(), a, summed=True)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, three) for one, three in zip(*found, strict=True))


def test_what_another_float_type_needs_is_left_to_torch(compiled):
    with elementwise.using(True):
        assert isinstance(elementwise.chosen(torch.zeros(1, dtype=torch.float64), torch.float64), Formulas)
        assert isinstance(elementwise.chosen(torch.zeros(1), torch.float16), Formulas)
        assert isinstance(elementwise.chosen(torch.zeros(1), torch.float32, elementwise.WIDEST_HEAD + 1), Formulas)
    assert not elementwise.is_compiled()
