"""The kept ladders: every trend follows again from its values, every value from the log, and predictions came first."""

import bz2
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy.stats", reason="SciPy is in the extra study")
from qkv.studies.ladder.trend import Trend

LADDERS = sorted((Path(__file__).parent.parent / "docs" / "answers" / "ladders").glob("*.json"))
ladders = pytest.mark.parametrize("path", LADDERS, ids=lambda path: path.stem)
LOGGED = [path for path in LADDERS if path.with_suffix(".jsonl.bz2").is_file()]  # a source package has no logs
logged = pytest.mark.parametrize("path", LOGGED, ids=lambda path: path.stem)


def lines_of(path):
    return bz2.decompress(path.with_suffix(".jsonl.bz2").read_bytes()).splitlines(keepends=True)


@ladders
def test_the_trend_is_that_of_the_values(path):
    found = json.loads(path.read_text("utf-8"))
    cells = [cell for cell in found["cells"] if cell["values"]]
    table = np.array([cell["values"] for cell in cells])
    trend = Trend(table, [c["weights"] for c in cells], [c["tokens_per_weight"] for c in cells], found["margin"])
    slope = trend.slope()
    assert (trend.verdict(), slope.value) == (found["verdict"], pytest.approx(found["effect"]))
    assert (slope.low, slope.high) == (pytest.approx(found["low"]), pytest.approx(found["high"]))
    for line in found["lines"]:
        for point in (line["curve"][0], line["curve"][-1]):
            assert trend.predicted(point["weights"], line["tokens_per_weight"]).value == pytest.approx(point["value"])


@logged
def test_every_value_is_a_difference_of_two_logged_losses(path):
    found = json.loads(path.read_text("utf-8"))
    if found["effect_unit"] != "nats per token":
        return
    rows = [json.loads(line) for line in lines_of(path)]
    reports = [row for row in rows if row.get("role") == "report"]
    for cell in found["cells"]:
        of = [row for row in reports if row["steps"] == cell["steps"]]
        for seed, value in enumerate(cell["values"], start=1):
            losses = [row["loss"] for row in of if row["replicate"] == seed]
            assert any(a - b == pytest.approx(value) for a in losses for b in losses), (cell["name"], seed)


@logged
def test_the_largest_size_was_predicted_before_it_was_trained(path):
    found, lines = json.loads(path.read_text("utf-8")), lines_of(path)
    rows = [json.loads(line) for line in lines]
    for number, row in enumerate(rows):
        if "predictions" in row:
            assert row["log_before"] == hashlib.sha256(b"".join(lines[:number])).hexdigest()
            steps = {c["steps"] for c in found["cells"] if c["size"] == row["predictions"][0]["size"]}
            assert not [before for before in rows[:number] if before.get("steps") in steps]
    assert [one for one in found["predictions"] if one["held"] is not None]
