"""Products by the processor's tiles equal their formulas, whatever the sizes, the masks and the number of threads."""

import pytest
import torch

from qkv.models import fused_attend, passes
from qkv.models.attention import attend, attend_explicit
from qkv.models.formulas import Formulas
from qkv.models.masks import Visible, visible
from qkv.models.tiles import Tiles
from qkv.training.muon import orthogonalise


def found() -> Tiles | None:
    with passes.using(True):
        return passes.tiles_for(torch.zeros(1, dtype=torch.bfloat16))


pytestmark = pytest.mark.skipif(
    found() is None, reason="this processor has no tiles of bfloat16, or nothing is compiled"
)


@pytest.fixture
def tiles():
    with passes.using(True):
        yield found()


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def near(value: torch.Tensor, exact: torch.Tensor, share: float) -> None:
    """Within that share of the largest number."""
    assert value.shape == exact.shape
    error = (value.double() - exact).abs().max() if exact.numel() else torch.zeros(())
    assert error <= share * exact.abs().max() + 1e-6, f"{float(error):.2e}"


SIZES = [(1, 1, 1), (5, 3, 7), (31, 16, 33), (32, 32, 32), (256, 48, 17), (257, 64, 80), (1030, 130, 65)]
SIZES += [(0, 3, 5), (530, 300, 2100), (270, 4100, 260), (40, 9000, 40)]  # none; and columns by parts


@pytest.mark.parametrize(("n", "a", "b"), SIZES)
def test_the_gradient_of_a_weight_is_that_of_float64_to_float32(tiles, n, a, b):
    x, d = normal(n, a), normal(n, b, seed=1)
    dW, db = tiles.weight_grad(x, d, summed=True)
    assert dW.dtype == db.dtype == torch.float32
    near(dW, x.double().t() @ d.double(), 1e-6)
    near(db, d.double().sum(0), 1e-6)
    again, none = tiles.weight_grad(x, d, summed=False)
    assert none is None and torch.equal(again, dW)
    assert torch.equal(tiles.weight_grad(x, d, summed=False, factor=0.3)[0], 0.3 * dW)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert all(map(torch.equal, tiles.weight_grad(x, d, summed=True), (dW, db)))
    finally:
        torch.set_num_threads(threads)


def test_the_gradient_of_a_weight_takes_tensors_as_they_lie(tiles):
    x, d = normal(70, 2 * 48)[:, ::2], normal(40, 70, seed=1).t()
    near(tiles.weight_grad(x, d, summed=False)[0], x.double().t() @ d.double(), 1e-6)


def test_what_is_no_number_stays_so_where_it_is(tiles):
    x, d = normal(40, 40), normal(40, 40, seed=1)
    d[3, 7] = float("nan")
    dW, db = tiles.weight_grad(x, d, summed=True)
    assert dW[:, 7].isnan().all() and dW.isnan().sum() == 40 and db.isnan().nonzero().tolist() == [[7]]


FORMULAS = Formulas()
SHAPES = [(1, 1, 1), (5, 3, 7), (31, 40, 33), (32, 32, 32), (130, 65, 17), (300, 128, 336), (70, 336, 128)]
SHAPES += [(65, 512, 300)]  # tiles of its weights are laid by all threads together


def close(found, exact) -> None:
    """Of bfloat16, within the rounding of operands and results, of the largest number."""
    for mine, theirs in zip(found, exact, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            near(mine, theirs, 2**-6)


def tiled() -> passes.Tiled:
    by = passes.chosen(torch.zeros(1), torch.bfloat16)
    assert isinstance(by, passes.Tiled)
    return by


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("n", "k", "m"), SHAPES)
def test_products_and_what_follows_them_equal_their_formulas(tiles, n, k, m, with_bias):
    by, wide, factor = tiled(), torch.float64, k**-0.5
    y, d, x = normal(n, k), normal(n, m, seed=1), normal(n, m, seed=2).float()
    W, W2 = (factor * normal(k, m, seed=seed).float() for seed in (3, 4))
    bias = normal(m, seed=5).float() if with_bias else None
    assert by.weight_dtype(W.numel(), torch.bfloat16) == torch.float32
    exact = [t if t is None else t.to(wide) for t in (y, W.bfloat16(), bias)]
    wide_d, wide_W2 = d.to(wide), W2.bfloat16().to(wide)
    close(by.product(y, W, bias), FORMULAS.product(*exact))
    close([by.plus_product(x, y, W, bias)], [FORMULAS.plus_product(x.to(wide), *exact)])
    close([by.product_back(d, W)], [FORMULAS.product_back(wide_d, exact[1])])
    close([by.sum_back(d, W, x.bfloat16(), W2)], [FORMULAS.sum_back(wide_d, exact[1], x.bfloat16().to(wide), wide_W2)])
    for kind in ("relu2", "gelu_tanh", "gelu"):
        found, theirs = (
            by.hidden(kind, y, W, bias),
            FORMULAS.hidden(kind, *(t if t is None else t.clone() for t in exact)),
        )
        near(found[0], theirs[0], 2**-6)
        W_out = W.t().contiguous()
        back, none = by.hidden_back(kind, y, W_out, found[1], summed=True)
        back_exact, _ = FORMULAS.hidden_back(kind, exact[0], W_out.bfloat16().to(wide), theirs[1], summed=True)
        assert none is None
        near(back, back_exact, 2**-5)
    (s, kept), (theirs, of_formula) = by.gated(y, W, W2, bias), FORMULAS.gated(exact[0], exact[1], wide_W2, exact[2])
    near(s, theirs, 2**-6)
    W_out = W.t().contiguous()
    found, expected = (
        by.gated_back(y, W_out, kept),
        FORMULAS.gated_back(exact[0], W_out.bfloat16().to(wide), of_formula),
    )
    for mine, their in zip(found, expected, strict=True):
        near(mine, their, 2**-5)


def test_a_large_matrix_is_left_to_torchs_product(tiles):
    by = tiled()
    assert by.weight_dtype(passes.LARGEST_BY_TILES + 1, torch.bfloat16) == torch.bfloat16
    assert by.weight_dtype(passes.LARGEST_ACTIVATED, torch.bfloat16, activated=True) == torch.float32
    assert by.weight_dtype(passes.LARGEST_ACTIVATED + 1, torch.bfloat16, activated=True) == torch.bfloat16
    y, W = normal(3, 8), normal(8, 5)
    assert torch.equal(by.product(y, W, None)[0], y @ W)


def inputs(batch: int, heads: int, n_kv: int, queries: int, keys: int, d: int) -> list[torch.Tensor]:
    shapes = [(batch, heads, queries, d), (batch, n_kv, keys, d), (batch, n_kv, keys, d), (batch, heads, queries, d)]
    return [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]


def differentiated(call, q, k, v, dz):
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    z = call(q, k, v)
    return [z.detach(), *torch.autograd.grad(z, (q, k, v), dz.to(z.dtype))]


def compare(to: Visible, given: list[torch.Tensor]) -> None:
    mine = differentiated(lambda q, k, v: attend(q, k, v, to, 0.3), *given)
    exact = differentiated(lambda q, k, v: attend_explicit(q, k, v, to, 0.3)[0], *(x.double() for x in given))
    for value, expected in zip(mine, exact, strict=True):
        near(value, expected, 2**-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("batch", "heads", "n_kv", "n", "d"),
    [(1, 1, 1, 1, 1), (2, 4, 4, 64, 32), (3, 4, 2, 70, 24), (1, 6, 1, 33, 20), (2, 2, 2, 257, 64), (1, 2, 1, 529, 72)],
)
def test_attention_equals_its_formula_in_values_and_gradients(tiles, batch, heads, n_kv, n, d, causal):
    given = inputs(batch, heads, n_kv, n, n, d)
    assert fused_attend.tiles_serve(*given[:2])
    compare(Visible(causal, None), given)


@pytest.mark.parametrize(("queries", "keys"), [(1, 50), (47, 130), (300, 31)])
def test_attention_to_another_sequence_equals_its_formula(tiles, queries, keys):
    compare(Visible(False, None), inputs(2, 4, 2, queries, keys, 16))


@pytest.mark.parametrize("kind", ["documents", "padding"])
def test_attention_under_a_mask_equals_its_formula(tiles, kind):
    n = 75
    documents = torch.arange(n).repeat(3, 1) // torch.tensor([[9], [40], [80]])
    real = torch.arange(n) < torch.tensor([[75], [20], [1]])
    how = {"documents": {"causal": True, "documents": documents}, "padding": {"causal": False, "keys": real}}[kind]
    given = inputs(3, 4, 2, n, n, 16)
    compare(visible(n, n, like=given[0], **how), given)


def test_hidden_keys_have_no_part_to_the_bit(tiles):
    """Whatever lies at a key that no query sees: neither values nor gradients know of it."""
    n, real = 60, torch.arange(60) < 37
    to = visible(n, n, causal=False, keys=real.repeat(2, 1), like=torch.zeros(1))
    q, k, v, dz = inputs(2, 2, 2, n, n, 16)
    other = [x.clone() for x in (k, v)]
    for x in other:
        x[:, :, 37:] = 3 - x[:, :, 37:]
    one = differentiated(lambda q, k, v: attend(q, k, v, to, 0.3), q, k, v, dz)
    two = differentiated(lambda q, k, v: attend(q, k, v, to, 0.3), q, *other, dz)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not one[2][:, :, 37:].any() and not one[3][:, :, 37:].any()


def test_scores_of_any_size_have_a_pattern(tiles):
    """Scores of thousands neither overflow nor lose the highest."""
    q, k, v, dz = inputs(1, 1, 1, 40, 40, 32)
    compare(Visible(True, None), [100 * q, 100 * k, v, dz])


@pytest.mark.parametrize(
    ("count", "rows", "columns"),
    [(1, 1, 1), (3, 5, 40), (2, 40, 17), (8, 128, 32), (2, 96, 300), (2, 330, 70), (1, 200, 260)],
)
def test_matrices_are_made_orthogonal_as_nearly_as_by_torchs_products(tiles, count, rows, columns):
    stack = normal(count, rows, columns)
    exact = orthogonalise(stack.double())
    found = orthogonalise(stack)
    assert found.shape == stack.shape and found.dtype == torch.bfloat16
    with passes.using(False):
        theirs = orthogonalise(stack)
    error, yardstick = ((x.double() - exact).norm() for x in (found, theirs))
    assert error <= 1.5 * yardstick + 2**-6 * exact.norm(), f"{float(error):.2e} against {float(yardstick):.2e}"


def test_a_matrix_of_zeros_stays_so_beside_others(tiles):
    stack = normal(3, 20, 40)
    stack[1] = 0
    found = orthogonalise(stack)
    assert not found[1].any() and torch.equal(found[::2], orthogonalise(stack[::2]))


@pytest.mark.parametrize("causal", [False, True])
def test_the_number_of_threads_changes_no_bit(tiles, causal):
    before, results = torch.get_num_threads(), []
    given, (x, d) = inputs(3, 4, 2, 300, 300, 24), (normal(700, 70), normal(700, 90, seed=1))
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(differentiated(lambda q, k, v: attend(q, k, v, Visible(causal, None), 0.3), *given))
            by, y, W = tiled(), normal(333, 40), normal(40, 70, seed=1).float()
            results[-1] += [by.product(y, W, None)[0], *by.hidden("gelu", y, W, W[0])]
            results[-1] += [*tiles.weight_grad(x, d, summed=True), *tiles.weight_grad(d, x, summed=True)]
            wide = normal(512, 300, seed=2).float()
            results[-1] += [by.product(normal(90, 512), wide, None)[0], orthogonalise(normal(5, 40, 70))]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, three) for one, three in zip(*results, strict=True))


def test_products_of_torch_are_the_same_before_and_after(tiles):
    """Tiles are a thread's state, which torch's own products set up for themselves and may count on."""
    x, w = normal(300, 200), normal(200, 100, seed=1)
    before = x @ w
    for _ in range(3):
        tiles.weight_grad(x, x, summed=False)
        assert torch.equal(x @ w, before)
        differentiated(lambda q, k, v: attend(q, k, v, Visible(True, None), 0.3), *inputs(2, 2, 2, 40, 40, 16))
        assert torch.equal(x @ w, before)


def test_what_tiles_do_not_serve_goes_another_way(tiles):
    q, k = normal(1, 1, 4, 8), normal(1, 1, 4, 8)
    assert fused_attend.tiles_serve(q, k) and not fused_attend.tiles_serve(q.float(), k.float())
    wide = normal(1, 1, 4, fused_attend.WIDEST_BY_TILES + 8)
    assert not fused_attend.tiles_serve(wide, wide)
    many = normal(1, 1, fused_attend.LONGEST_BY_TILES + 1, 8)
    assert not fused_attend.tiles_serve(q, many)
    with passes.using(False):
        assert not fused_attend.tiles_serve(q, k)
    exact = attend_explicit(wide, wide, wide, Visible(True, None), 0.01)[0]
    near(attend(wide, wide, wide, Visible(True, None), 0.01), exact.double(), 2**-5)
