"""A run has its place on the lines of ladders: the nearest length, the interval at its size, and never farther out."""

import json
from typing import Any

import numpy as np
import pytest

from qkv.inspection.answers import ladders as module
from qkv.inspection.answers.answer import Evidence
from qkv.inspection.answers.ladders import KEPT, ladders
from qkv.inspection.answers.reading import QUESTIONS

SIZES = np.geomspace(1e4, 1e8, 25)


def a_ladder(study="positions", unit="nats per token"):
    """Two lines, 1 - 0.1 log10(weights) at 5 tokens per weight and half of it at 20, each within 0.02."""

    def line(length, share):
        values = share * (1 - 0.1 * np.log10(SIZES))
        points = [
            {"weights": float(n), "value": v, "low": v - 0.02, "high": v + 0.02}
            for n, v in zip(SIZES, values.tolist(), strict=True)
        ]
        return {"tokens_per_weight": length, "curve": points}

    return {
        "study": study, "of": "cost of none", "effect_unit": unit, "verdict": "shrinks", "condition": "At our sizes.",
        "last": {"weights": 1e6}, "lines": [line(5.0, 1.0), line(20.0, 0.5)],
    }  # fmt: skip


@pytest.fixture(autouse=True)
def no_kept_ladders(monkeypatch):
    monkeypatch.setattr(module, "_kept", dict)


def answer(made, weights, tokens) -> Any:
    with made.store(), made.telemetry() as telemetry:
        evidence = Evidence(made.path, telemetry)
        evidence.run.manifest = {"summary": {"parameters": weights, "tokens": tokens}}
        return ladders(evidence)


def beside(made, found, name="ladder-positions-x-1"):
    folder = made.path.parent / name
    folder.mkdir(exist_ok=True)
    (folder / "ladder.json").write_text(found if isinstance(found, str) else json.dumps(found))


@pytest.mark.parametrize(
    ("weights", "tokens", "value", "length"),
    [(100_000, 500_000, 0.5, 5), (100_000, 1_100_000, 0.25, 20), (1_000_000, 90_000_000, 0.2, 20)],
)
def test_a_run_is_placed_on_the_line_of_the_nearest_length(made, weights, tokens, value, length):
    beside(made, a_ladder())
    found = answer(made, weights, tokens)
    assert found.numbers["cost of none, value, nats per token"] == pytest.approx(value)
    assert found.numbers["cost of none, low, nats per token"] == pytest.approx(value - 0.02)
    assert f"+{value:.2f} nats per token" in found.sentence and f"{length} tokens per weight" in found.null
    assert "beyond" not in found.sentence and "shrinks" in found.null and "At our sizes." in found.null


def test_beyond_the_largest_model_the_answer_says_how_far(made):
    beside(made, a_ladder())
    found = answer(made, 10_000_000, 50_000_000)
    assert found.sentence.endswith("1.0 decades beyond the ladder's largest model, and holds if the line goes on.")


@pytest.mark.parametrize("weights", [9_000, 200_000_000])
def test_where_no_line_reaches_nothing_is_said(made, weights):
    beside(made, a_ladder())
    assert answer(made, weights, 20 * weights) is None


def test_a_line_without_a_verdict_is_not_continued(made):
    beside(made, a_ladder() | {"verdict": "cannot tell"})
    assert answer(made, 2_000_000, 40_000_000) is None
    assert "Verdict over these sizes: cannot tell." in answer(made, 500_000, 10_000_000).null


ODD = [
    {"lines": [{"tokens_per_weight": 5.0, "curve": [{"weights": 1e4}, {"weights": 1e8}]}]},
    {"lines": [{"tokens_per_weight": 0, "curve": [{"weights": 1e4}]}]}, {"lines": [{"tokens_per_weight": 5.0}]},
    {"effect_unit": None}, {"last": None}, {"lines": [1]}, {"study": []},
]  # fmt: skip


@pytest.mark.parametrize(
    "broken",
    [json.dumps(a_ladder() | odd) for odd in ODD]
    + ["", "[]", "{}", '{"lines": [], "study": "x"}', '{"lines": [{}], "study": "x"}'],
)
def test_a_ladder_that_is_not_whole_is_passed_over(made, broken):
    beside(made, broken, "ladder-a-x-1")
    assert answer(made, 100_000, 500_000) is None
    beside(made, a_ladder())
    assert answer(made, 100_000, 500_000) is not None


def test_shares_are_percentages_and_further_ladders_follow(made):
    beside(made, a_ladder())
    beside(made, a_ladder("gradient-path", "of the gradient"), "ladder-z-x-1")
    found = answer(made, 100_000, 500_000)
    assert "50% of the gradient (95% interval 48% to 52%)" in found.more[0] and found.null.count("The line of") == 2


def test_a_ladder_beside_the_run_goes_before_the_kept_one_of_its_question(made, monkeypatch):
    monkeypatch.setattr(module, "_kept", lambda: {"positions": a_ladder() | {"of": "kept"}, "other": a_ladder("other")})
    beside(made, a_ladder())
    found = answer(made, 100_000, 500_000)
    assert "cost of none" in found.sentence and len(found.more) == 1 and not any("kept" in one for one in found.numbers)


def test_every_kept_ladder_can_place_a_run(made, monkeypatch):
    kept = json.loads(KEPT.read_text("utf-8"))
    assert ladders in QUESTIONS
    for study, one in kept.items():
        monkeypatch.setattr(module, "_kept", lambda one=one, study=study: {study: one})
        weights = int(one["last"]["weights"])
        found = answer(made, weights, int(weights * one["lines"][-1]["tokens_per_weight"]))
        assert one["condition"] in found.null and len(found.numbers) == 3
