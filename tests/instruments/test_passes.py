"""One pass over all matrices gives what the pure functions give one by one, and changes nothing."""

import numpy as np
import pytest
import torch

from qkv import native
from qkv.instruments import measures
from qkv.instruments.spectra import Blocks, Heads, circuits, own_spectra, product_spectra, spectra
from qkv.instruments.sums import PIECE, Passes
from qkv.kernels.elementwise import using
from qkv.models.matrices import Catalogue
from qkv.models.parts import Entry

MODELS = [
    {},
    {"tied": True, "qk_norm": False, "norm": "layer", "positions": "learned"},
    {"n_kv_heads": 2, "mlp": "swiglu", "bias": False},
    {"norm": "none", "qk_norm": False, "mlp": "none", "bias": False, "positions": "none"},
    {"d_vocab": 5000, "d_model": 32, "n_layers": 1},
]


@pytest.fixture(
    params=[False, pytest.param(True, marks=pytest.mark.skipif(bool(native.why_not("passes")), reason="no compiler"))],
    ids=["numpy", "compiled"],
    autouse=True,
)
def is_compiled(request):
    """Whether sums are made by one compiled call."""
    with using(request.param):
        yield request.param


def around_an_update(catalogue, *, seed=0):
    """Weights at the start, before and after an update, and the reading of it; entry 1 has no gradient."""
    draw = torch.Generator().manual_seed(seed)
    entries = list(catalogue)
    start = {e.address: e.parameter.detach().clone() for e in entries}
    passes = Passes(entries, start)
    with torch.no_grad():
        for e in entries:
            e.parameter.add_(torch.randn(e.parameter.shape, generator=draw), alpha=0.1)
            e.parameter.grad = torch.randn(e.parameter.shape, generator=draw)
    entries[1].parameter.grad = None
    before = {e.address: e.parameter.detach().clone() for e in entries}
    passes.before_update()
    with torch.no_grad():
        for e in entries:
            e.parameter.add_(torch.randn(e.parameter.shape, generator=draw), alpha=0.01)
    return entries, start, before, passes, passes.after_update()


@pytest.mark.parametrize("changes", MODELS)
def test_a_pass_equals_the_measures_one_by_one(model, changes):
    entries, start, before, _, reading = around_an_update(Catalogue(model(**changes)))
    assert any(e.parameter.numel() > PIECE for e in entries) or changes.get("d_vocab") != 5000
    degrees = measures.angle(reading.distance, reading.along, reading.start_norm, reading.norm)
    for i, e in enumerate(entries):
        now, s = e.parameter.detach(), start[e.address]
        assert reading.norm[i] == pytest.approx(measures.norm(now), rel=1e-6)
        assert reading.update[i] == pytest.approx(measures.norm(now - before[e.address]), rel=1e-6)
        assert reading.distance[i] == pytest.approx(measures.norm(now - s), rel=1e-6)
        assert reading.start_norm[i] == pytest.approx(measures.norm(s), rel=1e-6)
        expected = measures.turn(now, s)
        assert degrees[i] == pytest.approx(np.nan if expected is None else expected, rel=1e-4, nan_ok=True)
        if e.parameter.grad is None:
            assert np.isnan(reading.grad_norm[i])
        else:
            assert reading.grad_norm[i] == pytest.approx(measures.norm(e.parameter.grad), rel=1e-6)


@pytest.mark.parametrize("changes", MODELS[:3])
def test_a_pass_by_head_equals_the_same_of_the_catalogues_parts(model, changes):
    catalogue = Catalogue(model(**changes))
    entries, start, before, passes, _ = around_an_update(catalogue)
    reading, at = passes.by_head(), 0
    for e in entries:
        heads = {part.piece: part for part in e.heads()}
        for piece in range(e.n_heads):
            part = heads[piece]
            now, s, b = (part.shaped(t) for t in (e.parameter.detach(), start[e.address], before[e.address]))
            assert reading.norm[at] == pytest.approx(measures.norm(now), rel=1e-6)
            assert reading.update[at] == pytest.approx(measures.norm(now - b), rel=1e-6)
            assert reading.distance[at] == pytest.approx(measures.norm(now - s), rel=1e-6)
            grad = part.grad()
            expected = np.nan if grad is None else measures.norm(grad)
            assert reading.grad_norm[at] == pytest.approx(expected, rel=1e-6, nan_ok=True)
            if grad is not None:
                exactness = {"rel": 1e-5, "abs": 1e-6 * expected}
                assert reading.work[at] == pytest.approx(-measures.descent(b, now, grad), **exactness)
                assert reading.pulled[at] == pytest.approx(-measures.descent(s, now, grad), **exactness)
            at += 1
    assert at == len(reading.norm)


@pytest.mark.parametrize("n_heads", [0, 1, 3])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(6, 9), (33, 51), (300, 390), (1200, 144)])
@pytest.mark.parametrize("missing", ["nothing", "gradients", "start", "moments"])
def test_sums_are_those_of_float64(shape, axis, n_heads, missing):
    """Of every head, whatever is there, in pieces or whole."""
    draw = torch.Generator().manual_seed(0)
    weights, start, moment, grad = (torch.randn(shape, generator=draw) for _ in range(4))
    parameter = torch.nn.Parameter(weights)
    kind = ("W_O", "W_V")[axis]
    entry = Entry(
        address="W", parameter=parameter, layer=0, site="attn", kind=kind, shape=tuple(shape), n_heads=n_heads
    )
    assert not n_heads or entry.axis == axis
    passes = Passes(
        [entry], None if missing == "start" else {"W": start}, {} if missing == "moments" else {"W": moment.square()}
    )
    passes.before_update()
    before = weights.clone()
    with torch.no_grad():
        parameter.mul_(1.01)
    parameter.grad = None if missing == "gradients" else grad
    reading = passes.after_update()
    if n_heads:
        reading = passes.by_head()

    def parts(x):
        return x.double().numpy() if not n_heads else np.stack(np.split(x.double().numpy(), n_heads, axis))

    w, b, s, g, m = (parts(x) for x in (parameter.detach(), before, start, grad, moment.square()))
    inside = (-2, -1)
    undefined = np.full(max(1, n_heads), np.nan)
    expected = {
        "norm": np.sqrt((w**2).sum(inside)),
        "update": np.sqrt(((w - b) ** 2).sum(inside)),
        "grad_norm": undefined if missing == "gradients" else np.sqrt((g**2).sum(inside)),
        "work": undefined if missing == "gradients" else ((w - b) * g).sum(inside),
        "distance": undefined if missing == "start" else np.sqrt(((w - s) ** 2).sum(inside)),
        "start_norm": undefined if missing == "start" else np.sqrt((s**2).sum(inside)),
        "along": undefined if missing == "start" else ((w - s) * s).sum(inside) / np.sqrt((s**2).sum(inside)),
        "pulled": undefined if missing in ("start", "gradients") else ((w - s) * g).sum(inside),
        "second": undefined if missing == "moments" else m.mean(inside),
    }
    scale = np.sqrt((w**2).sum(inside) * (g**2).sum(inside))
    for name, values in expected.items():
        slack = scale if name in ("work", "pulled") else np.sqrt((w**2).sum(inside))
        found = getattr(reading, name)
        assert np.array_equal(np.isnan(found), np.isnan(np.atleast_1d(values))), name
        assert (np.nan_to_num(np.abs(found - values)) <= 1e-6 * slack + 1e-6 * np.nan_to_num(np.abs(values))).all(), (
            name
        )


def test_looking_changes_no_bit_of_weights_or_gradients(model):
    catalogue = Catalogue(model())
    for e in catalogue:
        e.parameter.grad = torch.randn_like(e.parameter)
    bits = [t.clone() for e in catalogue for t in (e.parameter.detach(), e.parameter.grad)]
    passes = Passes(list(catalogue), catalogue.state())
    state = torch.get_rng_state()
    passes.before_update()
    for read in (passes.after_update, passes.at_rest, passes.by_head):
        read()
    assert torch.equal(state, torch.get_rng_state())
    for kept, now in zip(bits, [t for e in catalogue for t in (e.parameter.detach(), e.parameter.grad)], strict=True):
        assert torch.equal(kept, now)


def test_between_updates_there_is_no_gradient_and_no_update(model):
    catalogue = Catalogue(model())
    reading = Passes(list(catalogue), catalogue.state()).at_rest()
    assert np.isnan(reading.grad_norm).all() and np.isnan(reading.update).all()
    assert not reading.distance.any() and (reading.norm == reading.start_norm).all()


def test_without_a_start_only_drift_is_missing(model):
    catalogue = Catalogue(model())
    passes = Passes(list(catalogue), None)
    passes.before_update()
    reading = passes.after_update()
    assert np.isnan(reading.distance).all() and np.isnan(reading.along).all() and np.isnan(reading.start_norm).all()
    assert np.isfinite(reading.norm).all() and not reading.update.any()
    assert np.isnan(passes.by_head().distance).all()


def test_the_start_is_a_copy_and_not_the_living_weights(model):
    catalogue = Catalogue(model())
    passes = Passes(list(catalogue), catalogue.state())
    with torch.no_grad():
        for e in catalogue:
            e.parameter.add_(1)
    assert (passes.at_rest().distance > 0).all()


def test_other_number_types_and_new_memory_are_followed(model):
    catalogue = Catalogue(model().double())
    passes = Passes(list(catalogue), catalogue.state())
    passes.at_rest()
    for e in catalogue:
        e.parameter.data = e.parameter.data * 2
    norms = [measures.norm(e.parameter) for e in catalogue]
    np.testing.assert_allclose(passes.at_rest().norm, norms, rtol=1e-12)
    catalogue = Catalogue(model().bfloat16())
    norms = [measures.norm(e.parameter) for e in catalogue]
    np.testing.assert_allclose(Passes(list(catalogue), catalogue.state()).at_rest().norm, norms, rtol=0.01)


def test_spectra_of_many_equal_those_of_each(model):
    catalogue = Catalogue(model(n_kv_heads=2))
    for e in catalogue:
        if e.parameter.ndim == 2:
            matrix = e.parameter.detach().double()
            left, expected, _ = np.linalg.svd(matrix.numpy(), full_matrices=False)
            values, top = spectra(matrix[None], None, 3)
            np.testing.assert_allclose(values[0], expected, atol=1e-6 * max(expected[0], 1e-9))
            if expected[0] > 0:
                overlap = np.linalg.norm(left[:, :3].T @ top[0].numpy())  # the same space, whatever its basis
                assert overlap**2 == pytest.approx(3, abs=1e-6)
            else:
                assert not top.any()


def test_spectra_of_circuits_equal_those_of_the_whole_product(model):
    net = model(n_kv_heads=2)
    with torch.no_grad():
        for parameter in net.parameters():  # outputs start at zero otherwise
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    catalogue = Catalogue(net)
    entries, found = list(catalogue), circuits(list(catalogue))
    assert [c.address for c in found] == [
        f"L{i}.H{h}.{kind}" for i in range(2) for h in range(4) for kind in ("QK", "OV")
    ]
    for c in found:
        blocks = []
        for index, piece in ((c.left, c.left_piece), (c.right, c.right_piece)):
            e = entries[index]
            blocks.append({p.piece: p for p in e.heads()}[piece].shaped(e.parameter.detach()))
        right = blocks[1].mT if c.is_qk else blocks[1]
        factored = catalogue.circuit(c.address)
        assert torch.equal(factored.left, blocks[0]) and torch.equal(factored.right, right)
        expected = np.linalg.svd((blocks[0].double() @ right.double()).numpy(), compute_uv=False)[:4]
        np.testing.assert_allclose(spectra(blocks[0][None], right[None])[0][0], expected, rtol=1e-6)
        left = np.linalg.svd((blocks[0].double() @ right.double()).numpy())[0][:, :2]
        top = spectra(blocks[0][None], right[None], 2)[1][0].numpy()
        assert np.linalg.norm(left.T @ top) ** 2 == pytest.approx(2, abs=1e-6)


def test_a_circuit_with_a_zero_factor_has_a_zero_spectrum():
    zero, some = torch.zeros(3, 8, 2), torch.randn(3, 2, 8)
    for factors in ((zero, some), (some.mT, zero.mT)):
        values, top = spectra(*factors, 1)
        assert not values.any() and not top.any()


@pytest.mark.parametrize("dependent", [False, True])
def test_spectra_from_what_blocks_share_equal_numpy(dependent):
    draw = torch.Generator().manual_seed(4)
    matrices = [torch.randn(3, 24, 10, generator=draw) for _ in range(4)]
    if dependent:  # one of the left factors has no triangle
        matrices[0][1, :, 4] = matrices[0][1, :, 2]
        matrices[0][2] = 0
    heads = Heads(dict(enumerate(matrices)), lambda shape: 2)
    q, k, _, o = shared = [heads.pick([(i, head) for head in range(3)]) for i in range(4)]
    for matrix, blocks in zip(matrices, shared, strict=True):
        for is_wide in (False, True):
            values, top = own_spectra(blocks, 2, is_wide=is_wide)
            for one, found, directions in zip(matrix.double().numpy(), values, top.numpy(), strict=True):
                left, expected, _ = np.linalg.svd(one.T if is_wide else one)
                np.testing.assert_allclose(found, expected, atol=1e-6 * max(expected[0], 1e-9))
                n = 2 if expected[0] else 0
                assert np.linalg.norm(left[:, :2].T @ directions) ** 2 == pytest.approx(n, abs=1e-6)
    which = [2, 0, 0, 1]
    for blocks in (q.pick(which), o.pick(which), q.pick([1, 2]), q):
        again = Blocks(blocks.columns)
        np.testing.assert_allclose(blocks.gram, again.gram, atol=1e-12)
        np.testing.assert_allclose(blocks.triangle, again.triangle, atol=1e-10)
        np.testing.assert_allclose(blocks.eigen[0], again.eigen[0], atol=1e-7)
    values, top = product_spectra(q.pick(which), k.pick([1, 1, 0, 2]), 2)
    for i, (a, b) in enumerate(zip(which, [1, 1, 0, 2], strict=True)):
        left, expected, _ = np.linalg.svd((matrices[0][a].double() @ matrices[1][b].double().T).numpy())
        np.testing.assert_allclose(values[i], expected[:10], atol=1e-6 * max(expected[0], 1e-9))
        n = 2 if expected[0] else 0
        assert np.linalg.norm(left[:, :2].T @ top[i].numpy()) ** 2 == pytest.approx(n, abs=1e-6)


def test_blocks_of_several_shapes_stand_alone():
    heads = Heads({5: torch.ones(2, 6, 3), 7: torch.ones(2, 8, 4), 8: 2 * torch.ones(2, 6, 3)}, lambda shape: 2)
    narrow, wide = heads.pick([(8, 1), (5, 0), (8, 0)]), heads.pick([(7, 0), (7, 1)])
    assert narrow.gram.shape == (3, 3, 3) and wide.gram.shape == (2, 4, 4)
    assert narrow.columns[:, 0, 0].tolist() == [2, 1, 2] and heads.shape(7) == (8, 4)
