"""What is no effect is not judged as one: constants, what needs something to have been learned, rates."""

import dataclasses

import pytest

from qkv.studies.engine.design import Contrast
from qkv.studies.question import Ask
from qkv.studies.questions import find
from qkv.studies.verdict.judging import Findings, judged, numbered

SURE, UNSURE = (-0.5, 0.6, 0.7, -0.6, 0.4, 0.6), (0.9, 0.1, 1.9, 0.2, 0.1, 2.0)
LEARNED, ASKED = (0.3, 0.4, 0.3, 0.35, 0.3, 0.4), (0.5, 0.6, 0.4, 0.5, 0.55, 0.6)


def test_a_constant_is_told_and_neither_tested_nor_counted():
    text = Contrast(name="text", what="", terms=(), margin=0.05, constant=True)
    effect = Contrast(name="effect", what="", terms=(), margin=0.05)
    (alone,) = judged([(effect, numbered(ASKED))])
    told, beside = judged([(text, numbered((0.374,) * 6)), (effect, numbered(ASKED))])
    assert (told.result.verdict, told.result.n) == ("constant", 6) and told.result.effect == pytest.approx(0.374)
    assert (told.result.p, told.p_corrected, told.result.low, told.result.detectable) == (None,) * 4
    assert beside == alone, "the family is as large as without it"
    scattered = judged([(text, numbered(ASKED)), (effect, numbered(ASKED))])
    assert [e.result.verdict for e in scattered] == ["differs"] * 2, "what scatters is no constant, whoever says so"
    other = dataclasses.replace(effect, name="other")
    few, more = (
        judged([(effect, numbered(LEARNED)), (effect, numbered(UNSURE)), *rest])
        for rest in ((), ((other, numbered(SURE)),))
    )
    assert few[1].p_corrected == few[1].result.p < more[1].p_corrected, "others than the first are asked at once"


@pytest.mark.parametrize(
    ("learned", "verdict"),
    [
        (LEARNED, "differs"),
        (tuple(-value for value in LEARNED), "left out"),
        (tuple(value / 100 for value in LEARNED), "left out"),
        ((0.3, -0.4, 0.3, -0.35, 0.3, -0.4), "left out"),
        ((), "left out"),
    ],
    ids=["learned", "the other way round", "trivially", "unresolved", "nothing made"],
)
def test_what_needs_learning_is_left_out_where_nothing_was_learned(learned, verdict):
    gate = Contrast(name="learned", what="", terms=(), margin=0.05)
    asked = Contrast(name="asked", what="", terms=(), margin=0.05, needs="learned")
    other = dataclasses.replace(asked, name="other", needs="")
    _, found, beside = judged([(gate, numbered(learned)), (asked, numbered(ASKED)), (other, numbered(ASKED))])
    assert found.result.verdict == verdict and found.values == ASKED
    assert (found.result.effect is None) == (found.p_corrected is None) == (verdict == "left out")
    if verdict == "left out":
        _, without = judged([(gate, numbered(learned)), (other, numbered(ASKED))])
        assert beside == without, "nor is it counted"


def test_a_kept_constant_and_what_was_left_out_stay_so():
    from qkv.studies.verdict.sentences import judged_again, verdict_file

    question = find("which-matrix")
    design = question.design(Ask(named=("a text", "0" * 64), quick=True))
    first, values = design.primary, (0.1, 0.2, 0.1, 0.2, 0.1)
    more = (
        (Contrast(name="text", what="", terms=(), margin=0.05, constant=True), (25.4,) * 5),
        (Contrast(name="learned", what="", terms=(), margin=0.05), (0.001, -0.001, 0.0, 0.001, -0.001)),
        (Contrast(name="asked", what="", terms=(), margin=0.05, needs="learned"), values),
    )
    effects = judged([(c, numbered(v)) for c, v in ((first, values), *more)])
    findings = Findings(design=design, effects=effects, arms=(), not_reached=(), trainings=0, earlier=())
    file = verdict_file(question, findings, "runs/x")
    assert [row["verdict"] for row in file["contrasts"]][1:] == ["constant", "equivalent", "left out"]
    assert judged_again(question, file) == file


def test_a_kept_rate_is_judged_by_what_was_promised():
    from qkv.studies.verdict.sentences import contrast_of, effect_row

    rate = Contrast(name="r", what="", terms=((1.0, "a", "x"),), margin=0.02, unit="of all", nominal=0.05, tries=8)
    (effect,) = judged([(rate, numbered((0.0, 0.25, 0.0, 0.25)))])
    assert contrast_of(effect_row(effect)) == rate and effect_row(effect)["n"] == 32


@pytest.mark.parametrize("answers", [32.5, 98.0])
@pytest.mark.parametrize("name", ["heads-and-scale", "attention-or-lstm", "three-roles"])
def test_what_changes_in_recall_is_asked_of_a_model_that_recalls(name, answers):
    """Who knows which values were told, but not where, is right about a third of the time (0.325, simulated)."""
    design = find(name).design(Ask(named=("a text", "0" * 64)))
    recalling = {arm.name for arm in design.arms if arm.task == "recall"}
    asked = [c for c in design.contrasts if {arm for _, arm, _ in c.terms} & recalling]
    gates = {gate for contrast in asked for gate in contrast.gates}
    (gate,) = [contrast for contrast in asked if contrast.name in gates]
    ((_, arm, measure),) = gate.terms
    assert recalling and measure in next(a for a in design.arms if a.name == arm).probes
    rows = [(c, numbered((answers,) * 8 if c == gate else ASKED)) for c in asked]
    told = [effect.result.verdict != "left out" for effect in judged(rows) if effect.contrast != gate]
    assert told and set(told) == {answers > 50}
