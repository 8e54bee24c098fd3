"""Measures of interpretability research against direct NumPy, closed forms and exact patching."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from qkv.errors import UserError
from qkv.inspection.contextual import Contextual
from qkv.inspection.patching import MIXER, MLP, STREAM, Asked, patch
from qkv.inspection.research.answers import of_pairs
from qkv.inspection.research.cka import alike, cka
from qkv.inspection.research.composition import composition
from qkv.inspection.research.noise_scale import estimated
from qkv.inspection.research.pairs import Attributed, attribute, read_pairs
from qkv.inspection.token_rows import rank_correlation
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue

SIZES = Sizes(d_vocab=11, d_model=16, n_layers=3, n_heads=4, n_kv_heads=2, n_ctx=8)


def made(sizes=SIZES, **layout):
    return build(ModelConfig(kind="CausalLM", sizes=sizes, layout=Layout(start="normal", **layout)).resolved(), 3)


def inputs(ids):
    return Asked(torch.tensor([ids]), [str(i) for i in ids], len(ids) - 1)


FIRST, SECOND = inputs([3, 1, 4, 1, 5]), inputs([3, 9, 4, 1, 6])


# attribution patching


def test_an_estimate_is_the_slope_of_exact_patching():
    """Patched by a small part of the way, exact patching gives that part of the estimate."""
    model, part = made(), 1e-4
    found = patch(model, FIRST, SECOND, answers=(2, 7), estimate=True)
    own = model.double().eval()
    with torch.no_grad():
        _, first = own.forward_recorded(FIRST.inputs)
        _, second = own.forward_recorded(SECOND.inputs)

        def share(name, where):
            mixed = first[name].clone()
            mixed[where] += part * (second[name] - first[name])[where]
            logits = own.forward_with(FIRST.inputs, {name: mixed})[0, -1]
            return (found.odds[0] - float(logits[2] - logits[7])) / found.difference / part

        for kind, name in ((STREAM, "resid_pre"), (MIXER, "attn_out"), (MLP, "mlp_out")):
            for layer in range(3):
                for at in range(5):
                    expected = share(f"L{layer}.{name}", (0, at))
                    assert float(found.shares[kind][layer, at]) == pytest.approx(expected, abs=2e-3, rel=2e-3)
        for layer, head in ((0, 1), (2, 3)):
            assert float(found.heads[layer, head]) == pytest.approx(share(f"L{layer}.z", (0, head)), abs=2e-3, rel=2e-3)


def test_an_estimate_is_exact_where_what_follows_is_linear():
    """The last layer's head outputs, without norm and MLP behind them, add to the logits."""
    model = made(norm="none", mlp="none")
    exact, estimate = (patch(model, FIRST, SECOND, answers=(2, 7), estimate=way) for way in (False, True))
    torch.testing.assert_close(estimate.heads[-1], exact.heads[-1], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(estimate.shares[MIXER][-1], exact.shares[MIXER][-1], rtol=1e-9, atol=1e-9)
    one = patch(model, FIRST, SECOND, answers=(2, 7), estimate=True, addresses=["L2.H1.z"]).one["L2.H1.z"]
    torch.testing.assert_close(one[-1], estimate.heads[2, 1], rtol=1e-9, atol=1e-12)
    assert float(one[:-1].sum()) == pytest.approx(float(one[-1]))


def test_pairs_are_a_ratio_of_sums_with_an_interval():
    model = made()
    pairs = [(FIRST, SECOND, (2, 7)), (inputs([1, 2, 3]), inputs([1, 5, 3]), None)]
    found = attribute(model, pairs, exact=True)
    each = [patch(model, a, b, answers=answers) for a, b, answers in pairs]
    gaps = np.array([one.difference for one in each])
    assert found.sites[:6] == [*(f"L0.H{h}.z" for h in range(4)), "L0.attn_out", "L0.mlp_out"]
    heads = [i for i, site in enumerate(found.sites) if site.endswith(".z")]
    exact = sum(gap * one.heads.numpy().ravel() for gap, one in zip(gaps, each, strict=True)) / gaps.sum()
    np.testing.assert_allclose(found.exact[heads], exact, rtol=1e-9)
    assert found.correlation == rank_correlation(found.share, found.exact)
    assert (found.low < found.share).all() and (found.share < found.high).all()
    with pytest.raises(UserError, match="pair 2: the two inputs are the same"):
        attribute(model, [pairs[0], (FIRST, FIRST, None)])
    with pytest.raises(UserError, match="no pairs"):
        attribute(model, [])


def attributed(share, low, difference):
    share, low = np.array(share), np.array(low)
    return Attributed(["L0.attn_out", "L0.mlp_out"], share, low, share + 0.1, None, None, 3, difference, (1.0, 0.0))


def test_a_negative_share_carries_nothing():
    assert of_pairs(attributed([0.1, -0.14], [0.05, -0.2], 2.0)).sentence.startswith("L0.attn_out carries most of it")
    none = of_pairs(attributed([-0.02, -0.14], [-0.1, -0.2], 2.0)).sentence
    assert none.startswith("No site clearly carries it: the largest share is -2%, of L0.attn_out")


def test_pairs_that_differ_little_have_effects_in_nats_alone():
    found = of_pairs(attributed([0.5, -0.14], [0.2, -0.2], 0.03))
    assert found.sentence.startswith("There is nothing to carry: the texts of a pair differ by only 0.03 nats")
    assert found.numbers["L0.attn_out, nats"] == pytest.approx(0.015) and not found.null


def test_a_file_of_pairs(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a b\ta c\n\na b\tb b\tx\ty\n", encoding="utf-8-sig")
    assert read_pairs(tmp_path / "pairs.tsv") == [["a b", "a c"], ["a b", "b b", "x", "y"]]
    (tmp_path / "pairs.tsv").write_text("a b\ta c\n\nalone\n")
    with pytest.raises(UserError, match="line 3 of .* has 1 part"):
        read_pairs(tmp_path / "pairs.tsv")
    (tmp_path / "pairs.bin").write_bytes(b"\xf7\t\x00")
    with pytest.raises(UserError, match="is no UTF-8 text; expected a pair of texts on each line"):
        read_pairs(tmp_path / "pairs.bin")


# composition


def test_every_composition_score_is_that_of_whole_matrices():
    catalogue = Catalogue(made())
    found = composition(catalogue)

    def matrix(layer, head, kind):
        return catalogue.view(f"L{layer}.W_{kind}").detach().double().numpy()[head if kind in "QO" else head // 2]

    assert found.heads == [f"L{i}.H{h}" for i in range(3) for h in range(4)]
    norm = np.linalg.norm
    for a, b in ((0, 4), (1, 11), (6, 9)):
        (la, ha), (lb, hb) = divmod(a, 4), divmod(b, 4)
        OV, QK = matrix(la, ha, "V") @ matrix(la, ha, "O"), matrix(lb, hb, "Q") @ matrix(lb, hb, "K").T
        other = matrix(lb, hb, "V") @ matrix(lb, hb, "O")
        for kind, read in (("Q", QK), ("K", QK.T), ("V", other)):
            assert found.scores[kind][a, b] == pytest.approx(norm(OV @ read) / norm(OV) / norm(read), rel=1e-5)
    assert np.isnan(found.scores["Q"][4, 0]) and np.isnan(found.scores["V"][4, 5])
    assert found.strongest(1)[0][0] == max(np.nanmax(table) for table in found.scores.values())


def test_random_heads_compose_as_the_baseline_says():
    sizes = Sizes(d_vocab=11, d_model=64, n_layers=4, n_heads=8, n_ctx=8)
    found = composition(Catalogue(made(sizes)))
    for kind in "QKV":
        assert found.random[kind][0] == pytest.approx(1 / 8, rel=0.02)  # 1 / sqrt(d_model)
        assert found.above()[kind] == pytest.approx(0.025, abs=0.025)
    assert composition(Catalogue(made(dataclasses.replace(SIZES, n_layers=1)))) is None


# noise scale


def linear(draw, n, slope, noise):
    """Gradients of (x w - y)^2 / 2 at slope from the optimum: x (x slope - e) with standard normal x [n, d], e."""
    x = draw.standard_normal((n, len(slope)))
    return x * (x @ slope - noise * draw.standard_normal(n))[:, None]


def of(gradients):
    return estimated(lambda: [[torch.from_numpy(row[:2]), torch.from_numpy(row[2:])] for row in gradients])


def test_the_noise_scale_is_that_of_two_batch_sizes():
    g = linear(np.random.default_rng(0), 9, np.ones(5), 1.0)
    found = of(g)
    small, big = np.square(g).sum(1).mean(), np.square(g.mean(0)).sum()
    squared, variance = (9 * big - small) / 8, (small - big) / (1 - 1 / 9)
    assert found.squared_gradient == pytest.approx(squared) and found.variance == pytest.approx(variance)
    assert found.variance == pytest.approx(np.cov(g.T).trace()) and found.examples == pytest.approx(variance / squared)
    assert found.n == 9


def test_the_noise_scale_of_a_linear_model_has_a_closed_form():
    """E g = slope, and E |g|^2 = (d + 2) |slope|^2 + d noise^2: intervals hold it in about 95 of 100 samples."""
    draw, slope, noise = np.random.default_rng(1), np.full(6, 0.5), 2.0
    true = (7 * slope @ slope + 6 * noise**2) / (slope @ slope)
    found = [of(linear(draw, 96, slope, noise)) for _ in range(120)]
    held = sum(one.low <= true <= one.high for one in found)
    assert 108 <= held <= 120
    assert np.median([one.examples for one in found]) == pytest.approx(true, rel=0.15)
    nothing = of(linear(draw, 32, np.zeros(6), noise))
    assert nothing.high == math.inf and nothing.low < math.inf


# CKA


def gram(x, y, unbiased):
    """HSIC of Gram matrices, as Song et al. 2012 and Kornblith et al. 2019 write it."""
    K, L, n = x @ x.T, y @ y.T, len(x)
    if not unbiased:
        H = np.eye(n) - 1 / n
        return np.trace(K @ H @ L @ H) / (n - 1) ** 2
    K, L, one = K - np.diag(np.diag(K)), L - np.diag(np.diag(L)), np.ones(n)
    last = one @ K @ one * (one @ L @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * one @ K @ L @ one
    return (np.trace(K @ L) + last) / (n * (n - 3))


@pytest.mark.parametrize("unbiased", [True, False])
def test_cka_is_that_of_gram_matrices(unbiased):
    draw = np.random.default_rng(0)
    x = draw.standard_normal((20, 7)) + 3
    y = x @ draw.standard_normal((7, 5)) + draw.standard_normal((20, 5))
    parts = [gram(a, b, unbiased) for a, b in ((x, y), (x, x), (y, y))]
    assert cka(x, y, debiased=unbiased) == pytest.approx(parts[0] / math.sqrt(parts[1] * parts[2]), rel=1e-10)
    turned = np.linalg.qr(draw.standard_normal((7, 7)))[0]
    assert cka(x, 3 * x @ turned + 1, debiased=unbiased) == pytest.approx(1)
    assert math.isnan(cka(x, np.ones((20, 3)), debiased=unbiased))


def texts(draw, n=16, shift=0.0, tokens=6):
    base = np.random.default_rng(5).standard_normal((n, 2, tokens, 8))
    vectors = base + shift * draw.standard_normal(base.shape)
    names = [[f"{i}" for i in range(tokens)]] * n
    return [
        Contextual(text="t", tokens=names[i], ids=np.arange(tokens), layers=["embed", "L0.resid_post"],
                   vectors=vectors[i].astype(np.float32)) for i in range(n)
    ]  # fmt: skip


def test_layers_of_two_models_side_by_side():
    draw = np.random.default_rng(0)
    found = alike(texts(draw), texts(draw, shift=1.0))
    assert found.n == 96 and found.value.shape == (2, 2)
    assert (found.low <= found.same).all() and (found.same <= found.high).all() and (found.high <= 1).all()
    assert 0.3 < found.same.min() < 0.7 and abs(found.value[0, 1]) < 0.1  # half of Y is X; other layers are unrelated
    np.testing.assert_allclose(alike(texts(draw), texts(draw)).same, 1)
    assert np.isnan(alike(texts(draw, n=4), texts(draw, n=4)).low).all()
    with pytest.raises(UserError, match="other tokens"):
        alike(texts(draw), texts(draw, tokens=5))
    with pytest.raises(UserError, match="has 6 tokens|have 6 tokens"):
        alike(texts(draw, n=1), texts(draw, n=1))
