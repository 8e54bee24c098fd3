"""Measurements at attentions that are made otherwise than usual: of shared matrices, and over another stack."""

import numpy as np
import pytest
import torch

from qkv.changes import plan_changes
from qkv.instruments import LIGHT, SPECTRAL, measures
from qkv.instruments.measurements import Measurements
from qkv.instruments.registry import AT_REST
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue
from qkv.telemetry import Store, Telemetry

STEP = 3
CLOSE = {"rel": 1e-6, "abs": 1e-6}


def looked_at(catalogue: Catalogue, path) -> tuple[dict, dict, dict]:
    """Address -> measures after one look of each kind, the weights then and at the start; every matrix moved."""
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for entry in catalogue:
            entry.parameter.copy_(torch.randn(entry.parameter.shape, generator=draws))
        start = {address: weights.clone() for address, weights in catalogue.state().items()}
        for entry in catalogue:
            entry.parameter.add_(torch.randn(entry.parameter.shape, generator=draws))
    with Store(path) as store:
        looks = Measurements(store, catalogue, start)
        store.add_step(STEP, tokens=1, loss=1.0, lr=0.1, grad_norm=1.0)
        looks.matrices(STEP, AT_REST, looks.passes.at_rest())
        looks.circuits(STEP, updated=False)
        looks.head_spectra(STEP)
    with Telemetry(path) as telemetry:
        table = {row.about.address: row.values for row in telemetry.latest("**,**.H*.**")}
    now, then = (
        {entry.address: weights[entry.storage].double() for entry in catalogue.named()}
        for weights in (catalogue.state(), start)
    )
    return table, now, then


def head(weights: dict, address: str, which: int) -> torch.Tensor:
    """One head of four, cut by its own name: [d_model, d_head], of W_O [d_head, d_model]."""
    return weights[address].chunk(4, dim=0 if address.endswith("W_O") else 1)[which]


def product(weights: dict, stem: str, which: int, kind: str) -> torch.Tensor:
    """The whole product of a circuit."""
    if kind == "QK":
        return head(weights, f"{stem}W_Q", which) @ head(weights, f"{stem}W_K", which).T
    return head(weights, f"{stem}W_V", which) @ head(weights, f"{stem}W_O", which)


@pytest.mark.parametrize(
    ("change", "second"),
    [
        ("L0.W_K=share(L0.W_Q)", "L0.H2.W_K"),
        ("L1.W_Q=share(L0.W_Q)", "L1.H2.W_Q"),
        ("L0.W_O=share(L0.W_V)", ""),  # one matrix cut along the other axis: it has no heads by this name
        ("L1.W_V=share(L0.W_O)", ""),
    ],
)
def test_attentions_that_share_a_matrix_are_measured_like_all_others(change, second, model, tmp_path):
    fresh = Catalogue(model(d_model=48, n_heads=4, qk_norm=False))
    catalogue = plan_changes([change], fresh, 0).at_start()
    assert len(catalogue) == len(fresh) - 1
    table, now, then = looked_at(catalogue, tmp_path / "telemetry.sqlite")
    for stem in ("L0.", "L1."):
        for which in range(4):
            for kind in ("QK", "OV"):
                got, ours = table[f"{stem}H{which}.{kind}"], product(now, stem, which, kind)
                before = product(then, stem, which, kind)
                expected = {
                    "norm": measures.norm(ours),
                    "drift": measures.drift(ours, before),
                    "turn": measures.turn(ours, before),
                    "participation_rank": measures.participation_rank(ours),
                    "symmetric_share": measures.symmetric_share(ours) if kind == "QK" else None,
                    "spectral_norm": np.linalg.norm(ours.numpy(), 2),
                    "rotation": measures.rotation(ours, before, 8),
                }
                for name, value in expected.items():
                    close = {"abs": 1e-3} if name in ("turn", "rotation") else CLOSE
                    assert got[name] == (value if value is None else pytest.approx(value, **close)), (stem, kind, name)
            q, k, v = (head(now, f"{stem}W_{m}", which) for m in "QKV")
            angles = {"W_Q": {"angle_to_k": (q, k)}, "W_V": {"angle_to_k": (v, k), "angle_to_q": (v, q)}}
            for kind, pairs in angles.items():
                if f"{stem}H{which}.{kind}" in table:
                    for name, pair in pairs.items():
                        value = pytest.approx(measures.subspace_angle(*pair), abs=1e-4)
                        assert table[f"{stem}H{which}.{kind}"][name] == value, (stem, kind, name)
    same = change.partition("(")[2].rstrip(")")
    assert (change.partition("=")[0].replace(".W", ".H2.W") in table) == bool(second)
    if second:  # the heads of a second name are those of the first, in everything that is measured of a head alone
        first = table[same.replace(".W", ".H2.W")]
        alone = {*AT_REST, *SPECTRAL, "participation_rank", "rotation"}
        assert alone <= set(first) and all(table[second][name] == first[name] for name in alone)
    if change.startswith("L0.W_K"):
        assert table["L0.H1.QK"]["symmetric_share"] == pytest.approx(1)
        assert table["L0.H1.W_Q"]["angle_to_k"] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_attentions_looked_at_together_are_measured_like_each_alone(n_kv_heads, model, tmp_path, monkeypatch):
    tables = []
    for together in (1 << 18, 0):
        monkeypatch.setattr("qkv.instruments.measurements.TOGETHER", together)
        catalogue = Catalogue(model(d_model=48, n_layers=3, n_heads=4, n_kv_heads=n_kv_heads))
        tables.append(looked_at(catalogue, tmp_path / f"{together}.sqlite")[0])
    for address, values in tables[0].items():
        for name, value in values.items():
            close = value if value is None else pytest.approx(value, rel=1e-7, abs=1e-7)
            assert tables[1][address][name] == close, (address, name)
    assert tables[0].keys() == tables[1].keys() and "L2.H3.QK" in tables[0]


def test_every_head_in_the_table_has_all_that_is_measured_of_a_head(model, tmp_path):
    """An address is there with everything or not at all."""
    catalogue = plan_changes(
        ["L1.W_[QV]=share(L0.W_O)", "L1.W_K=share(L0.W_K)"], Catalogue(model(d_model=48, n_heads=4)), 0
    ).at_start()
    table, _, _ = looked_at(catalogue, tmp_path / "telemetry.sqlite")
    heads = {address: set(values) for address, values in table.items() if ".H" in address and ".W_" in address}
    assert {address.rpartition(".H")[0] for address in heads} == {"L0", "L1"}
    alone = {*AT_REST, *SPECTRAL, "participation_rank", "rotation"}
    assert [address for address, names in heads.items() if not alone <= names] == []
    assert "L1.H0.W_K" in heads and not {"L1.H0.W_Q", "L1.H0.W_V"} & set(heads) and set(AT_REST) <= set(LIGHT)
    assert table["L1.H0.QK"]["norm"] > 0 and table["L1.H0.OV"]["norm"] > 0


def test_in_cross_attention_queries_and_keys_read_two_spaces_that_are_not_compared(tmp_path):
    sizes = Sizes(d_vocab=11, d_model=48, n_layers=1, n_heads=4, n_ctx=16)
    model = build(ModelConfig(kind="EncoderDecoderLM", sizes=sizes, layout=Layout(start="xavier")).resolved(), 0)
    table, now, _ = looked_at(Catalogue(model), tmp_path / "telemetry.sqlite")
    for stem in ("enc.L0.", "dec.L0.", "dec.L0.cross."):
        for which in range(4):
            q, k, v = (head(now, f"{stem}W_{m}", which) for m in "QKV")
            circuit, of_q, of_v = (table[f"{stem}H{which}.{kind}"] for kind in ("QK", "W_Q", "W_V"))
            assert circuit["norm"] == pytest.approx(measures.norm(q @ k.T), rel=1e-6)
            assert of_v["angle_to_k"] == pytest.approx(measures.subspace_angle(v, k), abs=1e-6)
            if "cross" in stem:
                assert (circuit["symmetric_share"], of_q["angle_to_k"], of_v["angle_to_q"]) == (None, None, None)
            else:
                assert circuit["symmetric_share"] == pytest.approx(measures.symmetric_share(q @ k.T), rel=1e-6)
                assert of_q["angle_to_k"] == pytest.approx(measures.subspace_angle(q, k), abs=1e-6)
                assert of_v["angle_to_q"] == pytest.approx(measures.subspace_angle(v, q), abs=1e-6)
