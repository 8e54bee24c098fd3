"""Random cells of a report of a real training, computed again from the weights that the run kept."""

import base64

import numpy as np
import pytest
import torch

import qkv
from qkv.folder.run_folder import RunFolder
from qkv.inspection.answers.ledger import balance
from qkv.inspection.stored_run import stored
from qkv.instruments import measures
from qkv.instruments.probe import Probe
from qkv.models.matrices import Catalogue
from qkv.randomness import generator
from qkv.views.report.report import read_report

N_CELLS = 400
SET = {"d_model": 24, "n_layers": 2, "n_heads": 2, "n_ctx": 32, "batch_size": 4, "ledger.every": 4, "ledger.windows": 1}


@pytest.fixture(scope="module")
def run(small_text, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    options = dict(tokenizer="char", steps=40, seed=1, threads=1, precision="fp32", watch="full", report=False)
    return qkv.train(small_text, out=out, set=SET, **options)


@pytest.fixture(scope="module")
def report(run):
    return read_report(run.path)


def unpacked(packed) -> np.ndarray:
    values = np.frombuffer(base64.b64decode(packed.data), dtype=packed.dtype).reshape(packed.shape)
    return values if packed.scale == 1 else values * packed.scale


def weights(run, address: str, step: int) -> torch.Tensor:
    """What the address names, [in, out] float64, from the file of that step: a matrix, a head, a circuit's product."""
    stem, _, kind = address.rpartition(".")
    if kind in ("QK", "OV"):
        left, right = ("W_Q", "W_K") if kind == "QK" else ("W_V", "W_O")
        a, b = weights(run, f"{stem}.{left}", step), weights(run, f"{stem}.{right}", step)
        return a @ (b.mT if kind == "QK" else b)
    if ".H" not in address:
        return torch.from_numpy(stored(run.path, address, step)).double()
    base, head = stem.rsplit(".H", 1)
    whole = torch.from_numpy(stored(run.path, f"{base}.{kind}", step)).double()
    return whole.chunk(2, dim=0 if kind == "W_O" else 1)[int(head)]


def again(run, measure: str, address: str, step: int) -> float | None:
    """The measure from weights alone; None for one that needs gradients or activations."""
    now, start = weights(run, address, step), weights(run, address, 0)
    alone = {name: getattr(measures, name) for name in ("norm", "spectral_norm", "stable_rank", "effective_rank",
                                                        "participation_rank")}  # fmt: skip
    if measure in alone:
        return alone[measure](now)
    if measure == "drift":
        size = torch.linalg.vector_norm(start)
        width = 12 if ".H" in address else start.shape[-1]  # 24 / 2 heads, whichever axis they are cut along
        return float(torch.linalg.vector_norm(now - start) / (size if size > 0 else width**0.5))
    if measure == "symmetric_share":
        return measures.symmetric_share(now)
    if measure == "turn":
        return measures.turn(now, start)
    return None


def test_random_cells_of_the_map_and_of_the_heads_are_those_of_the_kept_weights(run, report):
    draws, kept, checked = generator("tests", "cells"), set(RunFolder(run.path).weights()), {}
    for section in (report.map, report.grid):
        tables = {name: unpacked(packed) for name, packed in section.values.items()}
        columns = [i for i, step in enumerate(section.steps) if step in kept]
        assert len(columns) >= 4
        for _ in range(N_CELLS):
            name = str(draws.choice(sorted(tables)))
            row, column = int(draws.integers(len(section.rows))), int(draws.choice(columns))
            address, step = section.rows[row].address, section.steps[column]
            shown = tables[name][row, column]
            if address.endswith(".pattern") or not np.isfinite(shown):
                continue
            expected = again(run, name, address, step)
            if expected is None:
                continue
            exactness = {"abs": 0.03} if name == "turn" else {"rel": 1e-6, "abs": 1e-9}
            assert shown == pytest.approx(expected, **exactness), (name, address, step)
            checked[name] = checked.get(name, 0) + 1
    assert sum(checked.values()) > 150 and len(checked) >= 8, checked


def test_attention_in_the_report_is_that_of_the_kept_weights_on_the_probe(run, report):
    probe = Probe.of(run.task, run.corpus(), run.model, run.config.seed)
    step = max(step for step in RunFolder(run.path).weights() if step in report.grid.steps)
    model = run.model_at(step)
    found = probe.read(model)
    addresses = [address for address, _, _ in probe.addresses(model)]
    rows = {row.address: i for i, row in enumerate(report.grid.rows)}
    for name, values in zip(probe.measures, found, strict=True):
        table = unpacked(report.grid.values[name])
        shown = [table[rows[address], report.grid.steps.index(step)] for address in addresses]
        np.testing.assert_allclose(shown, values.astype(np.float32), rtol=1e-6, atol=1e-7)


def test_shown_weights_are_those_of_the_file_bit_for_bit(run, report):
    assert report.matrices.items
    for item in report.matrices.items:
        if item.exact is None:
            continue
        for packed, step in ((item.exact.start, 0), (item.exact.last, None)):
            table = stored(run.path, item.address, step)
            table = table if table.ndim == 2 else table[None]
            cut = table[np.ix_(item.exact.rows, item.exact.columns)]
            assert unpacked(packed).tobytes() == cut.astype(np.float32).tobytes(), item.address
    for packed, step in ((report.rows.start, 0), (report.rows.last, None)):
        ids = [row.token_id for row in report.rows.shown]
        assert unpacked(packed).tobytes() == stored(run.path, "W_E", step)[ids].tobytes()


def test_the_ledger_of_the_report_is_the_run_s_and_adds_up(run, report):
    with run.telemetry() as telemetry:
        found = balance(telemetry)
    section = report.ledger
    assert {row.address: row.nats for row in section.matrices} == found.earned
    assert {row.address: row.nats for row in section.heads} == found.heads
    assert set(found.earned) == set(Catalogue(run.model).addresses)
    for rows in (section.matrices, section.kinds):
        assert sum(row.nats for row in rows) == pytest.approx(section.change + section.error, abs=1e-12)
        assert [row.nats for row in rows] == sorted(row.nats for row in rows)
    assert section.change == pytest.approx(found.change) and abs(section.error) < 0.02 * abs(section.change)
    assert read_report(run.path).answers and "ledger" in {note.key for note in report.answers}
