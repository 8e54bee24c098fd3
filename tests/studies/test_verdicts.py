"""From rows to effects: what a training that diverged counts as, and what has to be known beside a table."""

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest

from qkv.studies.engine.design import Contrast
from qkv.studies.engine.store import folder_of, full_answer
from qkv.studies.engine.tuning import pending
from qkv.studies.question import Ask
from qkv.studies.questions import find
from qkv.studies.verdict.judging import (
    ON_THE_WAY,
    ArmFigures,
    _lost,
    _quantity,
    contrast_values,
    findings,
    judged,
    numbered,
)
from qkv.studies.verdict.sentences import effect_row, notes

TEXT = ("a text", "0" * 64)


def row(loss: float = 2.0, diverged: bool = False, **measures: float) -> dict:
    return {"loss": loss, "diverged": diverged, "measures": {name.replace("_", " "): x for name, x in measures.items()}}


def test_a_training_that_diverged_has_reached_nothing_and_its_end_counts():
    """Two of five diverge: three in five copied, not all; and the two count with the steps that they had."""
    design = find("dynamics").design(Ask(named=TEXT, quick=True))
    shares, delay = (
        next(c for c in design.contrasts if c.name == name)
        for name in ("VO held: copying reached", design.primary.name)
    )
    reported = {
        (arm, r): row(diverged=True) if arm == "VO held" and r < 3 else row(reached_copying=1.0, step_of_copying=100.0)
        for arm in ("VO held", "QK held")
        for r in range(1, 6)
    }
    assert contrast_values(shares, design, reported) == {1: 0.0, 2: 0.0, 3: 1.0, 4: 1.0, 5: 1.0}
    either = next(c for c in design.contrasts if c.name == design.primary.needs)
    assert contrast_values(either, design, reported) == dict.fromkeys(range(1, 6), 1.0), "one is enough, two count once"
    assert list(contrast_values(delay, design, reported).values()) == [design.scale.steps - 100.0] * 2 + [0.0] * 3


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        ("accuracy", 25.0),
        ("answers", 25.0),
        ("loss rare", math.log(4)),
        ("loss at 17-32", math.log(4)),
        ("reset W_E", None),
    ],
)
def test_a_training_that_diverged_measures_what_blind_guessing_does_or_nothing(quantity, value):
    base = find("which-matrix").design(Ask(named=TEXT, quick=True))
    contrast = Contrast(name="c", what="", terms=((1.0, "trained", quantity),), margin=0.1)
    design = dataclasses.replace(base, contrasts=(contrast,), replicates=2)
    measured = {"loss": 1.0, "diverged": False, "measures": {quantity: 7.0}}
    reported = {("trained", 1): measured, ("trained", 2): row(math.log(4), diverged=True)}
    found = contrast_values(contrast, design, reported)
    assert found[1] == 7.0 and found.get(2) == (None if value is None else pytest.approx(value))
    (effect,) = judged([(contrast, found)])
    assert _lost(effect, design, reported) == (value is None)
    assert _lost(effect, design, {("trained", 1): measured}) == 0, "what was not reached did not diverge"


def test_a_training_that_two_arms_share_counts_for_both_whoever_asked_first():
    """At the same rate the arm with a rate of its own and the one that takes over another's are one training."""
    design = find("heads-and-scale").design(Ask(named=TEXT, quick=True, tuned=True, seeds=2))

    def figures(late: str) -> tuple[ArmFigures, ...]:
        rows: dict[str, dict] = {}

        def loss(key: str | None) -> float | None:
            return rows[key]["loss"] if key in rows else None

        while jobs := list(pending(design, "", loss)):
            trial = min(jobs, key=lambda job: job.trial.arm.name == late).trial
            more = {"key": trial.key, "arm": trial.arm.name, "lr": trial.lr, "frozen": [], "curve": []}
            rows[trial.key] = row(2 + abs(math.log(trial.lr / trial.arm.lr)), trial.seed == 1) | more
        folder = SimpleNamespace(
            rows=rows, trainings=list(rows.values()), loss=loss, designs=[], margins=(), taken_over=()
        )
        return findings(design, folder, "").arms

    first, last = figures(""), figures("1 head, Glorot, undivided")
    assert [each.trainings for each in first] == [each.trainings for each in last]
    assert first == last and {each.trainings for each in first if each.arm.tune == "own"} == {8}


def test_a_note_names_effects_whose_arm_was_best_at_the_edge_and_those_without_what_diverged():
    design = find("only-embeddings").design(Ask(named=TEXT, quick=True))
    effects = [*judged([(c, numbered((0.7, 0.8, 0.75, 0.7, 0.8))) for c in design.contrasts])]
    effects[1] = dataclasses.replace(effects[1], replicates=(1, 2, 4, 5, 6), diverged=1)
    assert effect_row(effects[1])["replicates"] == [1, 2, 4, 5, 6] and effect_row(effects[1])["diverged"] == 1
    assert effect_row(effects[0])["replicates"] == [1, 2, 3, 4, 5] and effect_row(effects[0])["diverged"] == 0
    arms = [
        {"name": arm.name, "what": arm.what, "losses": [1.0] * 6, "at_edge": 6 * (arm.name == "W_E")}
        for arm in design.arms
    ]
    edge, lacks = notes(effects, arms)
    assert edge.startswith("In 6 of 6 replicates the best learning rate was at the edge of the grid")
    assert edge.endswith("only W_E trained over a random body. This affects cost of training only W_E")
    assert lacks == "Missing in 1 replicate that diverged: cost of training only W_E and W_U"


def test_the_full_answer_is_found_whatever_signs_the_texts_name_has(tmp_path):
    for name in ("play", "play[1]", "p*y?"):
        full, quick = (find("which-matrix").design(Ask(named=(name, "abc"), quick=quick)) for quick in (False, True))
        folder = folder_of(full, tmp_path)
        folder.mkdir()
        verdict = {"quick": False, "source": {"sha256": "abc"}, "seeds": 8, "sentence": f"Of {name}."}
        (folder / "verdict.json").write_text(json.dumps(verdict))
        assert full_answer(quick, tmp_path) == f"Of {name}."
        (folder / "verdict.json").unlink()


def test_figures_of_an_arm_are_told_with_the_sizes_that_it_had():
    from qkv.studies.verdict.sentences import _arm_row

    arm = find("end-task").design(Ask(named=TEXT, quick=True)).arm("masked")
    figures = ArmFigures(
        arm=arm, losses=(), rates=(), at_edge=0, diverged=0, trainings=0, frozen=(), curve=()
    )  # fmt: skip
    assert _arm_row(figures, "what it does")["sizes"] == {"steps": 900}


def test_the_loss_on_the_way_is_the_nearest_point_of_the_curve_and_blind_guessing_where_a_training_diverged():
    curve = {"curve": [[250, 3.0], [500, 2.5], [760, 2.25], [1000, 2.0]]}
    asked = [(name, steps) for name in ON_THE_WAY for steps in (1000, 2000)]
    assert [_quantity(row(2.0) | curve, *one) for one in asked] == [3.0, 2.5, 2.5, 2.0, 2.25, 2.0]
    assert {_quantity(row(7.0, True) | {"curve": []}, name, 1000) for name in ON_THE_WAY} == {7.0}
