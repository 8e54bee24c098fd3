"""The grid of heads: the weights that were kept, by the instruments' own formulas, or what was recorded."""

import base64
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from qkv.instruments import measures
from qkv.instruments.registry import MEASURES
from qkv.telemetry import AddressRow, Grid, Store, Telemetry
from qkv.views.report.report import read_report
from qkv.views.sections.grids import grid_section
from qkv.views.sections.matrices import Snapshots

HEADS = {"W_Q": 4, "W_K": 4, "W_V": 4, "W_O": 4}


def floats(packed):
    return np.frombuffer(base64.b64decode(packed.data), "<f4").reshape(packed.shape)


def value(section, measure, address, step):
    row = [r.address for r in section.rows].index(address)
    return floats(section.values[measure])[row, section.steps.index(step)]


@pytest.mark.parametrize(("address", "cut"), [("L1.H2.W_K", np.s_[:, 24:36]), ("L2.H3.W_O", np.s_[36:48, :])])
def test_heads_are_measured_as_the_blocks_of_their_matrix(run_folder, address, cut):
    section = grid_section(None, Snapshots(run_folder.folder, 1000), HEADS)
    matrix = address.replace(".H2", "").replace(".H3", "")
    now, start = (torch.tensor(w[matrix][cut]) for w in (run_folder.last, run_folder.start))
    assert value(section, "norm", address, 1000) == pytest.approx(measures.norm(now), rel=1e-6)
    assert value(section, "drift", address, 1000) == pytest.approx(measures.drift(now, start), rel=1e-6)
    assert value(section, "turn", address, 1000) == pytest.approx(measures.turn(now, start), rel=1e-4)
    assert value(section, "drift", address, 0) == 0


def test_circuits_are_measured_as_their_products(run_folder):
    section = grid_section(None, Snapshots(run_folder.folder, 1000), HEADS)
    q, k, v, o = (run_folder.last[f"L0.{kind}"].astype(np.float64) for kind in ("W_Q", "W_K", "W_V", "W_O"))
    for address, product in (("L0.H1.QK", q[:, 12:24] @ k[:, 12:24].T), ("L0.H1.OV", v[:, 12:24] @ o[12:24])):
        spectrum = np.linalg.svd(product, compute_uv=False)[:12]
        share = spectrum / spectrum.sum()
        assert value(section, "norm", address, 1000) == pytest.approx(np.linalg.norm(product), rel=1e-5)
        assert value(section, "spectral_norm", address, 1000) == pytest.approx(spectrum[0], rel=1e-5)
        assert value(section, "effective_rank", address, 1000) == pytest.approx(
            np.exp(-(share * np.log(share)).sum()), rel=1e-4
        )


def test_a_stretch_of_queries_and_keys_is_in_the_circuits_of_scores_alone(run_folder):
    snapshots, stretch = Snapshots(run_folder.folder, 1000), torch.tensor([1.2] * 12, dtype=torch.float64)
    plain, long = grid_section(None, snapshots, HEADS), grid_section(None, snapshots, HEADS, stretch)
    for measure, address, factor in (
        ("norm", "L0.H1.QK", 1.44),
        ("spectral_norm", "L0.H1.QK", 1.44),
        ("norm", "L0.H1.OV", 1),
    ):
        expected = pytest.approx(factor * value(plain, measure, address, 1000), rel=1e-5)
        assert value(long, measure, address, 1000) == expected


def test_shared_key_heads_have_their_own_name_and_serve_two_circuits(tmp_path):
    draw = np.random.default_rng(0)
    shapes = {"W_Q": (8, 8), "W_K": (8, 4), "W_V": (8, 4), "W_O": (8, 8)}
    weights = {f"L0.{kind}": draw.normal(size=shape).astype(np.float32) for kind, shape in shapes.items()}
    save_file(weights, tmp_path / "model.safetensors")
    section = grid_section(None, Snapshots(tmp_path, 5), HEADS | {"W_K": 2, "W_V": 2})
    names = {row.address for row in section.rows}
    assert {"L0.KV1.W_K", "L0.H3.W_Q", "L0.H3.QK", "L0.H3.OV"} <= names and "L0.H1.W_K" not in names
    product = weights["L0.W_Q"][:, 6:8] @ weights["L0.W_K"][:, 2:4].T
    assert value(section, "norm", "L0.H3.QK", 5) == pytest.approx(np.linalg.norm(product), rel=1e-5)


def test_what_was_recorded_is_shown_and_its_null_with_it(make):
    run = make()
    rows = [
        AddressRow(address=f"L0.H{h}.W_Q", site="attn", layer=0, head=h, kind="W_Q", shape=(48, 12)) for h in (0, 1)
    ]
    with Store(run.folder / "telemetry.sqlite") as store:
        store.register_addresses(rows)
        for arm, scale in ((0, 1.0), (1, 0.5)):
            for step in (0, 8, 64):
                store.add_values(step, "drift", [r.address for r in rows], [scale * step, scale * step + 1], arm=arm)
    with Telemetry(run.folder / "telemetry.sqlite", altered=True) as telemetry:
        section = grid_section(telemetry, Snapshots(run.folder, 1000), HEADS)
    assert section.origin == "recorded while it trained" and [row.address for row in section.rows] == [
        r.address for r in rows
    ]
    assert value(section, "drift", "L0.H1.W_Q", 64) == 65
    assert floats(section.null_values["drift"])[1, section.null_steps.index(64)] == 33


def test_rows_go_by_layer_then_by_the_order_of_the_computation(run_folder):
    rows = read_report(run_folder.folder).grid.rows
    assert [row.layer for row in rows] == sorted(row.layer for row in rows)
    first = [row.kind for row in rows if row.layer == 0]
    assert list(dict.fromkeys(first)) == ["W_Q", "W_K", "QK", "W_V", "W_O", "OV"]


def test_a_run_without_weights_or_heads_has_no_grid(make):
    run = make(telemetry=False, snapshots=False)
    (run.folder / "model.safetensors").unlink()
    assert grid_section(None, Snapshots(run.folder, None), HEADS) is None


def test_heads_of_a_decoder_stand_before_those_that_look_across_in_every_process(tmp_path):
    kinds = ("W_Q", "W_K", "W_V", "W_O")
    weights = {f"dec.L0.{part}{kind}": np.eye(8, dtype=np.float32) for part in ("cross.", "") for kind in kinds}
    save_file(weights, tmp_path / "model.safetensors")
    rows = grid_section(None, Snapshots(tmp_path, 5), HEADS).rows
    assert [row.place for row in rows] == ["dec.L0"] * 24 + ["dec.L0.cross"] * 24


def test_a_step_recorded_while_it_is_read_waits_for_the_next_time():
    found = {
        "**.H*.*": Grid("norm", 0, ("L0.H0.W_Q",), np.array([0, 1]), np.array([[1.0, 2.0]])),
        "**.KV*.*": Grid("norm", 0, ("L0.KV0.W_K",), np.array([0, 1, 2]), np.array([[3.0, 4.0, 5.0]])),
    }
    about = [SimpleNamespace(address=grid.addresses[0], head=0, kind=grid.addresses[0][-3:]) for grid in found.values()]
    telemetry = SimpleNamespace(
        addresses=lambda: about,
        measures=lambda: [MEASURES["norm"].row()],
        grid=lambda measure, selector, arm: found[selector],
    )
    section = grid_section(telemetry, None, {})
    assert section.steps == (0, 1)
    assert value(section, "norm", "L0.KV0.W_K", 1) == 4
