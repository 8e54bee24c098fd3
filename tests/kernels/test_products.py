"""Products of ours equal their formulas, by tiles and by vectors, whatever the sizes, the masks and the threads."""

import pytest
import torch

from qkv import native
from qkv.kernels import attention_products, elementwise
from qkv.kernels.reference import Formulas
from qkv.models.attention import attend, attend_explicit
from qkv.models.masks import Visible, visible

pytestmark = pytest.mark.skipif(native.load("vectors") is None, reason=native.why_not("vectors"))


class Ours:
    """Products of a dtype, tensors of it, and how near to float64 they are."""

    def __init__(self, by: elementwise.Multiplied) -> None:
        self.passes, self.by, self.dtype = by, by.by, by.by.dtype
        self.rounding = 1.0 if self.dtype == torch.bfloat16 else 2**-12

    def normal(self, *shape: int, seed: int = 0) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(self.dtype)

    def inputs(self, batch: int, heads: int, n_kv: int, queries: int, keys: int, d: int) -> list[torch.Tensor]:
        key = (batch, n_kv, keys, d)
        shapes = [(batch, heads, queries, d), key, key, (batch, heads, queries, d)]
        return [self.normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]

    def near(self, value: torch.Tensor, exact: torch.Tensor, share: float) -> None:
        """Within that share of the largest number, for bfloat16."""
        near(value, exact, self.rounding * share)

    def compare(self, to: Visible, given: list[torch.Tensor]) -> None:
        mine = differentiated(lambda q, k, v: attend(q, k, v, to, 0.3), *given)
        exact = differentiated(lambda q, k, v: attend_explicit(q, k, v, to, 0.3)[0], *(x.double() for x in given))
        for value, expected in zip(mine, exact, strict=True):
            self.near(value, expected, 2**-6)


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=["tiles", "vectors"])
def ours(request, monkeypatch):
    with elementwise.using(True):
        by = elementwise.chosen(torch.zeros(1), request.param)
        if not isinstance(by, elementwise.Multiplied):
            pytest.skip("this processor has no tiles of bfloat16")
        monkeypatch.setattr(by, "limits", elementwise.UNMEASURED[torch.bfloat16])  # large enough for what is tested
        yield Ours(by)


def near(value: torch.Tensor, exact: torch.Tensor, share: float) -> None:
    """Within that share of the largest number."""
    assert value.shape == exact.shape
    error = (value.double() - exact).abs().max() if exact.numel() else torch.zeros(())
    assert error <= share * exact.abs().max() + 1e-6, f"{float(error):.2e}"


SIZES = [(1, 1, 1), (5, 3, 7), (31, 16, 33), (32, 32, 32), (256, 48, 17), (257, 64, 80), (1030, 130, 65)]
SIZES += [(0, 3, 5), (530, 300, 2100), (270, 4100, 260), (40, 9000, 40)]  # none; and columns by parts


@pytest.mark.parametrize(("n", "a", "b"), SIZES)
def test_the_gradient_of_a_weight_is_that_of_float64_to_float32(ours, n, a, b):
    x, d = ours.normal(n, a), ours.normal(n, b, seed=1)
    dW, db = ours.by.weight_grad(x, d, summed=True)
    assert dW.dtype == db.dtype == torch.float32
    near(dW, x.double().t() @ d.double(), 4e-6)
    near(db, d.double().sum(0), 1e-6)
    again, none = ours.by.weight_grad(x, d, summed=False)
    assert none is None and torch.equal(again, dW)
    assert torch.equal(ours.by.weight_grad(x, d, summed=False, factor=0.3)[0], 0.3 * dW)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert all(map(torch.equal, ours.by.weight_grad(x, d, summed=True), (dW, db)))
    finally:
        torch.set_num_threads(threads)


def test_the_gradient_of_a_weight_takes_tensors_as_they_lie(ours):
    x, d = ours.normal(70, 2 * 48)[:, ::2], ours.normal(40, 70, seed=1).t()
    near(ours.by.weight_grad(x, d, summed=False)[0], x.double().t() @ d.double(), 4e-6)


def test_what_is_no_number_stays_so_where_it_is(ours):
    x, d = ours.normal(40, 40), ours.normal(40, 40, seed=1)
    d[3, 7] = float("nan")
    dW, db = ours.by.weight_grad(x, d, summed=True)
    assert dW[:, 7].isnan().all() and dW.isnan().sum() == 40 and db.isnan().nonzero().tolist() == [[7]]


FORMULAS = Formulas()
SHAPES = [(1, 1, 1), (5, 3, 7), (31, 40, 33), (32, 32, 32), (130, 65, 17), (300, 128, 336), (70, 336, 128)]
SHAPES += [(65, 512, 300)]  # tiles of its weights are laid by all threads together


def close(ours, found, exact) -> None:
    """Within the rounding of operands and results, of the largest number."""
    for mine, theirs in zip(found, exact, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            ours.near(mine, theirs, 2**-6)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("n", "k", "m"), SHAPES)
def test_products_and_what_follows_them_equal_their_formulas(ours, n, k, m, with_bias):
    by, wide, factor = ours.passes, torch.float64, k**-0.5
    y, d, x = ours.normal(n, k), ours.normal(n, m, seed=1), ours.normal(n, m, seed=2).float()
    W, W2 = (factor * ours.normal(k, m, seed=seed).float() for seed in (3, 4))
    bias = ours.normal(m, seed=5).float() if with_bias else None
    assert by.weight_dtype(W.numel(), ours.dtype) == torch.float32
    exact = [t if t is None else t.to(wide) for t in (y, W.to(ours.dtype), bias)]
    wide_d, wide_W2 = d.to(wide), W2.to(ours.dtype).to(wide)
    close(ours, by.product(y, W, bias), FORMULAS.product(*exact))
    close(ours, [by.plus_product(x, y, W, bias)], [FORMULAS.plus_product(x.to(wide), *exact)])
    close(ours, [by.product_back(d, W)], [FORMULAS.product_back(wide_d, exact[1])])
    close(
        ours,
        [by.sum_back(d, W, x.to(ours.dtype), W2)],
        [FORMULAS.sum_back(wide_d, exact[1], x.to(ours.dtype).to(wide), wide_W2)],
    )
    for kind in ("relu2", "gelu_tanh", "gelu"):
        found, theirs = (
            by.hidden(kind, y, W, bias),
            FORMULAS.hidden(kind, *(t if t is None else t.clone() for t in exact)),
        )
        ours.near(found[0], theirs[0], 2**-6)
        W_out = W.t().contiguous()
        back, none = by.hidden_back(kind, y, W_out, found[1], summed=True)
        back_exact, _ = FORMULAS.hidden_back(kind, exact[0], W_out.to(ours.dtype).to(wide), theirs[1], summed=True)
        assert none is None
        ours.near(back, back_exact, 2**-5)
    (s, kept), (theirs, of_formula) = by.gated(y, W, W2, bias), FORMULAS.gated(exact[0], exact[1], wide_W2, exact[2])
    ours.near(s, theirs, 2**-6)
    W_out = W.t().contiguous()
    found, expected = (
        by.gated_back(y, W_out, kept),
        FORMULAS.gated_back(exact[0], W_out.to(ours.dtype).to(wide), of_formula),
    )
    for mine, their in zip(found, expected, strict=True):
        ours.near(mine, their, 2**-5)


def test_a_large_matrix_is_left_to_torchs_product(ours, monkeypatch):
    by, sizes = ours.passes, elementwise.UNMEASURED[ours.dtype]
    assert by.weight_dtype(sizes.product + 1, ours.dtype) == ours.dtype
    assert by.weight_dtype(sizes.activated, ours.dtype, activated=True) == torch.float32
    assert by.weight_dtype(sizes.activated + 1, ours.dtype, activated=True) == ours.dtype
    monkeypatch.setattr(by, "limits", elementwise.Kernels(product=30, activated=39, gradient=elementwise.ANY_SIZE))
    monkeypatch.setattr(ours.by, "_made", None)  # what would be called
    y, W, x = ours.normal(3, 8), ours.normal(8, 5), torch.zeros(3, 5)
    assert torch.equal(by.product(y, W, None)[0], y @ W) and torch.equal(
        by.plus_product(x, y, W, None), (y @ W).float()
    )
    assert torch.equal(by.product_back(y @ W, W), y @ W @ W.t())
    assert by.hidden("relu2", y, W, None)[0].shape == by.gated(y, W, W, None)[0].shape == (3, 5)


def differentiated(call, q, k, v, dz):
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    z = call(q, k, v)
    return [z.detach(), *torch.autograd.grad(z, (q, k, v), dz.to(z.dtype))]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("batch", "heads", "n_kv", "n", "d"),
    [(1, 1, 1, 1, 1), (2, 4, 4, 64, 32), (3, 4, 2, 70, 24), (1, 6, 1, 33, 20), (2, 2, 2, 257, 64), (1, 2, 1, 529, 72)],
)
def test_attention_equals_its_formula_in_values_and_gradients(ours, batch, heads, n_kv, n, d, causal):
    given = ours.inputs(batch, heads, n_kv, n, n, d)
    assert attention_products.compiled_serves(*given[:2])
    ours.compare(Visible(causal, None), given)


@pytest.mark.parametrize(("queries", "keys"), [(1, 50), (47, 130), (300, 31)])
def test_attention_to_another_sequence_equals_its_formula(ours, queries, keys):
    ours.compare(Visible(False, None), ours.inputs(2, 4, 2, queries, keys, 16))


@pytest.mark.parametrize("kind", ["documents", "padding"])
def test_attention_under_a_mask_equals_its_formula(ours, kind):
    n = 75
    documents = torch.arange(n).repeat(3, 1) // torch.tensor([[9], [40], [80]])
    real = torch.arange(n) < torch.tensor([[75], [20], [1]])
    how = {"documents": {"causal": True, "documents": documents}, "padding": {"causal": False, "keys": real}}[kind]
    given = ours.inputs(3, 4, 2, n, n, 16)
    ours.compare(visible(n, n, like=given[0], **how), given)


def test_hidden_keys_have_no_part_to_the_bit(ours):
    """Whatever lies at a key that no query sees: neither values nor gradients know of it."""
    n, real = 60, torch.arange(60) < 37
    to = visible(n, n, causal=False, keys=real.repeat(2, 1), like=torch.zeros(1))
    q, k, v, dz = ours.inputs(2, 2, 2, n, n, 16)
    other = [x.clone() for x in (k, v)]
    for x in other:
        x[:, :, 37:] = 3 - x[:, :, 37:]
    one = differentiated(lambda q, k, v: attend(q, k, v, to, 0.3), q, k, v, dz)
    two = differentiated(lambda q, k, v: attend(q, k, v, to, 0.3), q, *other, dz)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not one[2][:, :, 37:].any() and not one[3][:, :, 37:].any()


def test_scores_of_any_size_have_a_pattern(ours):
    """Scores of thousands neither overflow nor lose the highest."""
    q, k, v, dz = ours.inputs(1, 1, 1, 40, 40, 32)
    ours.compare(Visible(True, None), [100 * q, 100 * k, v, dz])


@pytest.mark.parametrize("causal", [False, True])
def test_the_number_of_threads_changes_no_bit(ours, causal):
    before, results = torch.get_num_threads(), []
    given, (x, d) = ours.inputs(3, 4, 2, 300, 300, 24), (ours.normal(700, 70), ours.normal(700, 90, seed=1))
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(differentiated(lambda q, k, v: attend(q, k, v, Visible(causal, None), 0.3), *given))
            by, y, W = ours.passes, ours.normal(333, 40), ours.normal(40, 70, seed=1).float()
            results[-1] += [by.product(y, W, None)[0], *by.hidden("gelu", y, W, W[0])]
            results[-1] += [*ours.by.weight_grad(x, d, summed=True), *ours.by.weight_grad(d, x, summed=True)]
            wide = ours.normal(512, 300, seed=2).float()
            results[-1].append(by.product(ours.normal(90, 512), wide, None)[0])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, three) for one, three in zip(*results, strict=True))


def test_products_of_torch_are_the_same_before_and_after(ours):
    """Tiles are a thread's state, which torch's own products set up for themselves and may count on."""
    x, w = ours.normal(300, 200), ours.normal(200, 100, seed=1)
    before = x @ w
    for _ in range(3):
        ours.by.weight_grad(x, x, summed=False)
        assert torch.equal(x @ w, before)
        differentiated(lambda q, k, v: attend(q, k, v, Visible(True, None), 0.3), *ours.inputs(2, 2, 2, 40, 40, 16))
        assert torch.equal(x @ w, before)


def test_what_is_not_served_goes_another_way(ours):
    q, k = ours.normal(1, 1, 4, 8), ours.normal(1, 1, 4, 8)
    assert attention_products.compiled_serves(q, k) and not attention_products.compiled_serves(q.double(), k.double())
    wide = ours.normal(1, 1, 4, attention_products.WIDEST_COMPILED + 8)
    assert not attention_products.compiled_serves(wide, wide)
    many = ours.normal(1, 1, attention_products.LONGEST_COMPILED[ours.dtype] + 1, 8)
    assert not attention_products.compiled_serves(q, many)
    with elementwise.using(False):
        assert not attention_products.compiled_serves(q, k)
    exact = attend_explicit(wide, wide, wide, Visible(True, None), 0.01)[0]
    ours.near(attend(wide, wide, wide, Visible(True, None), 0.01), exact.double(), 2**-5)
