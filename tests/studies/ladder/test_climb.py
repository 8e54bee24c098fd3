"""A whole ladder of seconds: stages, the prediction before the largest size, resuming, refusals, the page."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from qkv.cli import main
from qkv.commands.printing.forms import FORMS
from qkv.jsontypes import is_like
from qkv.studies.engine.runner import Told
from qkv.studies.engine.store import read_rows
from qkv.studies.ladder import climb
from qkv.studies.ladder.result import further_sentences
from qkv.studies.ladder.trend import VERDICTS
from qkv.studies.questions import find
from qkv.views.study.ladder import ladder_page, ladder_svg

SIZES, LENGTHS = ((4, 1), (8, 1), (8, 2)), (0.2, 0.4)


@pytest.fixture(scope="module")
def ladder(tiny_study, long_text):
    def run(runs: Path, **more):
        climb.find, kept = lambda name: tiny_study.QUESTION, climb.find
        try:
            return climb.run_ladder(
                "tiny",
                str(long_text),
                **{"seeds": 2, "minutes": 9.0, "within": runs, "sizes": SIZES, "per_weight": LENGTHS, **more},
            )
        finally:
            climb.find = kept

    return run


@pytest.fixture(scope="module")
def found(ladder, tmp_path_factory):
    return ladder(tmp_path_factory.mktemp("whole") / "runs")


def log_of(found) -> list[dict]:
    return list(read_rows(Path(found["run"])))


def test_a_ladder_ends_in_one_verdict_and_fits_its_schema(found):
    assert found["verdict"] in VERDICTS and is_like(found, FORMS["study"][-1])
    assert [(row["size"], row["tokens_per_weight"]) for row in found["cells"]] == [
        (size, n) for n in LENGTHS for size in ("4x1", "8x1", "8x2")
    ]
    assert found["sentence"].startswith("The largest models (8x2) ")
    assert all(len(row["values"]) == 2 and row["epochs"] < 1 for row in found["cells"])
    assert json.loads((Path(found["run"]) / "ladder.json").read_text()) == found


def test_cells_are_marked_by_the_best_n_gram_on_their_tokens(found):
    for row in found["cells"]:
        assert row["below_ngram"] == (row["loss"] >= found["baseline"]["ngram"])
    assert found["baseline"]["trained"] == found["cells"][-1]["loss"]


def test_the_largest_size_is_predicted_in_the_log_before_any_of_its_trainings(found):
    lines = (Path(found["run"]) / "runs.jsonl").read_bytes().splitlines(keepends=True)
    rows = [json.loads(line) for line in lines]
    at = next(i for i, row in enumerate(rows) if "predictions" in row)
    assert rows[at]["log_before"] == hashlib.sha256(b"".join(lines[:at])).hexdigest()
    steps = {row["steps"] for row in found["cells"] if row["size"] == "8x2"}
    others = {row["steps"] for row in found["cells"] if row["size"] != "8x2"}
    assert not steps & others, "steps tell the sizes apart here"
    assert not any(row.get("steps") in steps for row in rows[:at])
    assert {row["role"] for row in rows[at + 1 :]} == {"report", "check"}
    for one in found["predictions"]:
        (cell,) = [
            c for c in found["cells"] if (c["size"], c["tokens_per_weight"]) == (one["size"], one["tokens_per_weight"])
        ]
        assert one["measured"] == pytest.approx(cell["effect"])
        assert one["held"] == (one["low"] <= cell["effect"] <= one["high"])


def test_rates_of_larger_sizes_follow_the_law_and_are_checked_at_the_largest(found):
    rows = [row for row in log_of(found) if "arm" in row]
    small, middle = (next(c for c in found["cells"] if c["size"] == size) for size in ("4x1", "8x1"))
    for arm in ("trained", "frozen"):
        reports = [row for row in rows if (row["arm"], row["role"]) == (arm, "report")]
        rate = {(row["steps"], row["replicate"]): row["lr"] for row in reports}
        for seed in (1, 2):
            times = (middle["weights"] / small["weights"]) ** found["rates"]["slope"]
            assert rate[middle["steps"], seed] == pytest.approx(rate[small["steps"], seed] * times, rel=2e-3)
        check = found["rates"]["checks"][arm]
        assert len(check["losses"]) == 3 and check["gain"] == check["losses"][1] - min(check["losses"]) >= 0


def test_sizes_may_come_in_any_order(ladder, found):
    again = ladder(Path(found["run"]).parent, sizes=(SIZES[2], *SIZES))
    assert again["run"] == found["run"] and again["cells"] == found["cells"]


def test_the_same_command_trains_nothing_again(ladder, found):
    runs = Path(found["run"]).parent
    log = (Path(found["run"]) / "runs.jsonl").read_bytes()
    again = ladder(runs, minutes=4.0, told=Told(progress=lambda made: pytest.fail("it trained")))
    assert (Path(found["run"]) / "runs.jsonl").read_bytes() == log
    assert {k: v for k, v in again.items() if k != "minutes"} == {k: v for k, v in found.items() if k != "minutes"}


@pytest.mark.parametrize("left", [3, 30])
def test_a_ladder_that_broke_off_ends_with_the_same_cells(ladder, found, tmp_path, left):
    whole = Path(found["run"])
    folder = tmp_path / whole.name
    folder.mkdir()
    lines = (whole / "runs.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "runs.jsonl").write_bytes(b"".join(lines[:-left]) + b'{"key": "half a li')
    made = []
    again = ladder(tmp_path, told=Told(progress=made.append))
    assert again["cells"] == found["cells"] and len(made) == sum(b'"arm"' in line for line in lines[-left:])
    assert again["trainings"] == found["trainings"] and again["run"] == str(folder)


def test_the_page_and_the_picture_hold_every_size_and_no_script(found):
    page, picture = ladder_page(found), ladder_svg(found)
    assert "<script" not in page and page.count("<svg") == 2 and page.index("<svg") < page.index("<h2>")
    assert picture.count("<circle") == len(found["cells"]) and "tokens per weight" in picture
    assert all(words in page for words in ("124 million weights", "crosses the margin"))
    assert all(len(words.split()) <= 60 for words in further_sentences(found))
    nothing = {**found, "cells": [{**row, "effect": None} for row in found["cells"]]}
    assert ladder_svg(nothing) == ""


@pytest.mark.parametrize(
    "words, said",
    [
        (["calibrate", "--ladder"], "calibrate has no ladder: its main effect (false positives) is no contrast"),
        (["three-roles", "TEXT", "--ladder"], "names single layers or steps"),
        (["positions", "TEXT", "--ladder", "--quick"], "--ladder and --quick exclude each other"),
        (["which-matrix", "TEXT", "--ladder", "--seeds", "1"], "--seeds 2"),
        (["which-matrix", "SMALL", "--ladder"], "too small for"),
        (["positions", "TEXT", "--sizes", "64x1,64x2,64x4"], "type --ladder as well"),
        (
            ["positions", "TEXT", "--ladder", "--sizes", "64x2,64x1,64x2"],
            "64x1 and 64x2 is too short; expected 3 sizes",
        ),
        (
            ["positions", "TEXT", "--ladder", "--sizes", "64x1,64x2,9999x99"],
            "more than 400 million weights in its layers",
        ),
        (["positions", "TEXT", "--ladder", "--sizes", "64,128x2,0x3"], "such as 64x1,64x2,64x4"),
        (
            ["tiny", "TEXT", "--ladder", "--minutes", "0.001"],
            "minutes are too few for a ladder: it needs 3 sizes",
        ),
    ],
)
def test_a_mistake_is_one_sentence_with_exit_status_2_and_trains_nothing(
    capsys, monkeypatch, tmp_path, small_text, long_text, tiny_study, words, said
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(climb, "find", lambda name: tiny_study.QUESTION if name == "tiny" else find(name))
    places = {"TEXT": str(long_text), "SMALL": str(small_text)}
    status = main(["study", *[places.get(word, word) for word in words]])
    out, err = capsys.readouterr()
    assert status == 2 and said in re.sub(r"\s+", " ", err) and out == "" and "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_without_a_trend_no_line_goes_beyond_the_sizes(found):
    far = found["far"] or {"weights": 124e6, "decades": 3.0, "value": 0.1, "low": 0.0, "high": 0.2}
    told = {verdict: found | {"verdict": verdict, "far": far} for verdict in ("grows", "cannot tell")}
    lines = {verdict: ladder_svg(one).count('beyond"') for verdict, one in told.items()}
    assert lines["grows"] >= len(LENGTHS) and lines["cannot tell"] == 0
    said = {verdict: " ".join(further_sentences(one)) for verdict, one in told.items()}
    assert "Extrapolated" in said["grows"] and "Extrapolated" not in said["cannot tell"]
    assert "no line is continued beyond them" in said["cannot tell"]
