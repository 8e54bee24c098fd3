"""What a study says in words: never more than its verdict, never another sign than its number."""

import dataclasses
import json
import re

import pytest

from qkv.studies.engine.design import OF_TRAININGS, Contrast
from qkv.studies.question import Ask
from qkv.studies.questions import find, questions
from qkv.studies.verdict.comparison import Comparison
from qkv.studies.verdict.judging import ArmFigures, Effect, Findings, judged, numbered
from qkv.studies.verdict.sentences import (
    LONGEST_ANSWER,
    effect_row,
    judged_again,
    row_words,
    sentence,
    two_digits,
    verdict_file,
)
from qkv.studies.verdict.statistics import VERDICTS, bounds_of_rate
from qkv.studies.verdict.wording import condition_words, setting_words, unit_words
from qkv.words import amount


def comparison(verdict: str, effect: float, n: int = 8) -> Comparison:
    far = verdict.startswith("differs")
    return Comparison(
        n=n, effect=effect, low=effect - (0.001 if far else 1), high=effect + (0.001 if far else 1), sd=0.1, p=0.01,
        p_equivalent=None, verdict=verdict, detectable=0.2, needed=20,
    )  # fmt: skip


def found(name: str, verdict: str, effect: float, *, quick: bool = True) -> Findings:
    """Findings of a question whose every effect came out like that."""
    design = find(name).design(Ask(named=("a text", "0" * 64), quick=quick))
    result = comparison(verdict, effect)
    effects = [Effect(contrast=c, values=(), result=result, p_corrected=None) for c in design.contrasts]
    return Findings(design=design, effects=tuple(effects), arms=(), not_reached=(), trainings=0, earlier=())


def said_of(name: str, effect: Effect, quick: bool = False) -> str:
    return sentence(effect, name, "On a text; 8 of 8 paired replicates.", {"quick": quick, "replicates": 6})


@pytest.mark.parametrize("sign", [1, -1], ids=["above", "below"])
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("name", questions())
def test_a_sentence_agrees_with_its_verdict_and_its_sign(name, verdict, sign):
    effect = found(name, verdict, 0.25 * sign).primary
    words, unit = said_of(name, effect, quick=True), effect.contrast.unit
    assert words.lower().startswith(f"{effect.contrast.what.lower()}: ")
    size = f"{two_digits(0.25 * sign, unit)} {unit_words(unit)}"
    margin = two_digits(effect.contrast.margin, unit, signed=False)
    marks = {
        "differs": f": {size} (95% interval",
        "differs but trivially": f"smaller than the margin of {margin}",
        "equivalent": f": no meaningful difference (within ±{margin}; {size}",
        "unresolved": f": inconclusive ({size}, 95% interval",
    }
    assert marks[verdict] in words and size in words and ". On a text; 8 of 8 paired replicates." in words
    others = {mark.partition("{")[0] for other, mark in marks.items() if other not in ("differs", verdict)}
    assert not any(mark in words for mark in others)
    assert ("takes 20 replicates" in words) == (verdict == "unresolved")
    assert (
        f"it detects a true effect of {two_digits(0.2, unit, signed=False)} four" in words and "drop --quick" in words
    )


def test_where_all_replicates_diverged_the_time_is_not_blamed():
    first = found("gradient-path", "unresolved", 0.0).primary
    nothing = dataclasses.replace(first.result, n=0, effect=None, low=None, high=None)
    assert "all 6 completed replicates (of 6) of gradient-path a training diverged" in said_of(
        "gradient-path", dataclasses.replace(first, diverged=6, result=nothing)
    )
    assert "in the time" in said_of("gradient-path", dataclasses.replace(first, result=nothing))


def test_constants_what_is_left_out_and_what_was_not_measured():
    contrast = Contrast(name="a", what="the size", terms=(), margin=0.05, beside=("gate",))
    row = effect_row(Effect(contrast=contrast, values=(), result=comparison("constant", 0.5), p_corrected=None))
    assert row_words(row) == "The size: +0.50 nats per token, a constant"
    assert row_words(row | {"verdict": "left out"}).endswith("because the model learned too little for it")
    assert row_words(row | {"verdict": "unresolved", "n": 0}) == "The size: not measured"
    assert "not significant after correction" in row_words(row | {"verdict": "differs (not after correction)"})
    one = {"verdict": "unresolved", "n": 1, "low": None, "high": None}
    assert row_words(row | one) == "The size: inconclusive (+0.50 nats per token, no interval, 1 replicate)"


def file_of(name: str, values: tuple[float, ...], uniform: float = 9.0, *, quick: bool = True) -> dict:
    """Of a study in which every effect has those values, and every arm a loss of 2."""
    empty = found(name, "unresolved", 0.0, quick=quick)
    effects = judged([(c, numbered(values)) for c in empty.design.contrasts])
    arms = tuple(
        ArmFigures(arm=arm, losses=(2.0,), rates=(), at_edge=0, diverged=0, trainings=1, frozen=(), curve=())
        for arm in empty.design.arms
    )
    more = {"nats": 1.0, "order": 2, "tokens": 9, "uniform": uniform, "what": ""}
    rows = [{"task": "causal", "text": text, **more} for text, _ in empty.design.texts]
    return verdict_file(find(name), dataclasses.replace(empty, effects=effects, arms=arms), "runs/x", baselines=rows)


@pytest.mark.parametrize("name", ["which-matrix", "calibrate", "dynamics", "end-task"])
def test_a_kept_file_is_judged_again_from_its_own_data(name):
    file = file_of(name, (0.25, 0.125, 0.25, 0.125, 0.25, 0.125))
    read = json.loads(json.dumps(file))
    assert json.loads(json.dumps(judged_again(find(name), read))) == read and read["format"] == 2
    names = [row["name"] for row in file["contrasts"] if row["outcome"] == "failed"]
    assert file["otherwise"] == names and file["expected"] == file["contrasts"][0]["expected"]
    spoiled = {name: None for name in ("verdict", "effect", "low", "high", "p", "n", "outcome", "p_corrected")}
    rows = [row | spoiled for row in read["contrasts"]]
    other = read | spoiled | {"contrasts": rows, "sentence": "", "plain": "", "more": "", "otherwise": []}
    again = json.loads(json.dumps(judged_again(find(name), other)))
    assert again == read | {"n": None, "outcome": None, "p_corrected": None}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tokenizers", "in bpe tokens (vocabulary 512) and char tokens; textbook layout, 2 layers, d_model 32,"),
        ("end-task", "(rotary positions), 2 layers, d_model 32, 2 heads, context 32, 300 and 900 steps"),
        ("end-task", "initialization Glorot unless an arm says otherwise; AdamW"),
        ("attention-or-lstm", "an LSTM instead of attention"),
        ("words-or-pixels", "and on the handwritten digits that come with scikit-learn; "),
        ("collocation", "On generated sentences (pairs); textbook layout, 2 layers, "),
        ("calibrate", " 1 layer, d_model 8, 1 head, context 8, 40 steps of 8 windows (2,600 tokens)"),
    ],
)
def test_the_setting_is_what_the_arms_of_the_effect_were_trained_at(name, words):
    design = find(name).design(Ask(named=("a text", "0" * 64), quick=True))
    assert words in setting_words(design, [design.primary])
    assert verdict_file(find(name), found(name, "differs", 0.25), "runs/x")["setting"].startswith("On ")


def test_a_model_that_a_reset_leaves_worse_than_guessing_is_said_to_be():
    for uniform, worse in ((6.0, True), (6.2, False)):  # the loss is 2, and 4.1 more after a reset
        file = file_of("what-is-trained", (4.0, 4.1, 4.2, 4.0, 4.1, 4.2), uniform)
        assert ("That is worse than uniform guessing." in file["plain"]) == worse
        note = "Worse than uniform guessing: increase in loss from resetting W_E"
        assert any(words.startswith(note) for words in file["notes"]) == worse


def test_a_setting_is_told_in_short_sentences():
    models = "textbook layout, 2 layers, d_model 64, 2 heads, context 64"
    steps = "600 and 1,800 steps of 16 windows (610,000 to 1.8 million tokens), initialization Glorot"
    assert condition_words(f"On s in char tokens; {models}, {steps}; AdamW, learning rates tuned") == (
        f"On s in char tokens. Models: {models}. Training: {steps}, AdamW, learning rates tuned."
    )
    file = file_of("end-task", (0.25, 0.125, 0.25, 0.125, 0.25, 0.125))
    assert "Training: 300 and 900 steps" in file["condition"]
    assert file["brief"] == "Measured with 2 layers, d_model 32, after 300 and 900 steps on a text."


def test_what_does_not_fit_a_short_answer_follows_it():
    file = file_of("collocation", (25.0, 12.5, 25.0, 12.5, 25.0, 12.5), quick=False)
    question = find("collocation")
    said = [plain.above for name, plain in question.also.items() if name in file["answers"]]
    assert len(said) > 2 and file["answers"][0] == file["contrasts"][0]["name"] and file["math"] == list(question.math)
    answer = f"{file['plain'].partition('learned the text. ')[2]} {file['brief']}"
    assert 20 < len(answer.split()) <= LONGEST_ANSWER
    told = f"{answer} {file['more']}"
    assert file["more"] and all(told.count(words.partition("{")[0].strip()) == 1 for words in said)


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
def test_every_kind_of_positions_is_compared_with_having_none(quick):
    """No kind is the baseline of the others, so none makes them look good; the first is not the weakest."""
    design = find("positions").design(Ask(named=("a text", "0" * 64), quick=quick))
    costs = [c for c in design.contrasts if c.terms[0][2] == "loss" and len(c.terms) == 2]
    assert {c.arms[0].partition(", ")[2] for c in costs} == {"none"}
    causal = [c.arms[1] for c in costs if c.arms[0] == "causal, none"]
    assert causal == ["causal, rotary", "causal, learned", "causal, sinusoidal"]
    assert design.primary is costs[0] and design.primary.arms == ("causal, none", "causal, rotary")


def test_a_row_says_where_it_does_not_stand_beside_all_others():
    contrasts = [Contrast(name=name, what="", terms=(), margin=0.05) for name in "abcdef"]
    draws = ((0.5, 0.6, 0.4, 0.5, 0.55, 0.6), (0.9, 0.1, 1.9, 0.2, 0.1, 2.0), *([1, -2, 1.5, -1, 2, -1.4],) * 4)
    effects = judged([(c, numbered(values)) for c, values in zip(contrasts, draws, strict=True)])
    assert [e.verdict for e in effects[:3]] == ["differs", "differs (not after correction)", "unresolved"]
    assert effects[0].p_corrected == effects[0].result.p == effects[1].result.p == 2 / 64, "the first is asked alone"
    assert effects[1].told.verdict == "unresolved" and effects[1].result.verdict == "differs"
    assert effect_row(effects[1])["verdict"] == "differs (not after correction)"
    trivial = dataclasses.replace(effects[1], result=comparison("differs but trivially", 0.01))
    assert trivial.told.verdict == "equivalent", "that it does not matter was shown"


def test_a_design_on_a_text_that_is_only_named_is_that_of_the_text(long_text, kept):
    """So what is told about a kept run is told of its own design."""
    read = find("gradient-path").design(Ask(source=str(long_text), quick=True, cache=kept))
    named = Ask(named=(read.source_name, read.source_sha256), slices=(read.slices, read.overlapping), quick=True)
    assert read.slices > 1 and find("gradient-path").design(named) == read


def test_a_share_of_trainings_has_the_interval_of_a_rate():
    """Five trainings of which none copies do not show that none would."""
    contrast = Contrast(name="s", what="", terms=(), margin=0.05, unit=OF_TRAININGS)
    never, mostly, always = (
        effect.result for effect in judged([(contrast, numbered([1.0] * n + [0.0] * (5 - n))) for n in (0, 4, 5)])
    )
    assert (never.low, never.verdict) == (0.0, "unresolved") and never.high == pytest.approx(1 - 0.025**0.2)
    assert (mostly.effect, mostly.verdict) == (0.8, "differs")
    assert (mostly.low, mostly.high) == pytest.approx(bounds_of_rate(4, 5))
    assert always.high == 1.0 and always.low == pytest.approx(0.025**0.2) and always.detectable is None
    assert (never.p, mostly.p) == (None, None), "one training refutes a rate of 0, and none supports it"


def test_all_that_reads_a_masked_model_needs_it_to_have_learned():
    for quick in (True, False):
        design = find("static-or-contextual").design(Ask(named=("a text", "0" * 64), quick=quick, labelled=True))
        of_masked = [c for c in design.contrasts if "masked" in c.arms and c.name != "learned (masked)"]
        assert len(of_masked) >= 7 and {c.needs for c in of_masked} == {"learned (masked)"}
        of_classes = [c for c in design.contrasts if "classify" in c.arms and c.name != "learned (classify)"]
        assert {c.needs for c in of_classes} == {"learned (classify)"}
        assert not any(c.needs for c in design.contrasts if c not in (*of_masked, *of_classes))


def test_two_arms_that_never_copy_are_not_equally_late():
    """Both count with the horizon, so their difference is 0 by how they are counted."""
    design = find("dynamics").design(Ask(named=("a text", "0" * 64)))
    gate = next(c for c in design.contrasts if c.name == design.primary.needs)

    def judge(shares: list[float]) -> tuple[Effect, ...]:
        values = {design.primary.name: [0.0] * 8, gate.name: shares}
        return judged([(c, numbered(values[c.name])) for c in design.contrasts if c.name in values])

    never, once = judge([0.0] * 8), judge([1.0] * 8)
    assert never[0].result.verdict == "left out" and once[0].result.verdict == "equivalent"
    assert once[1].result.n == 8, "two trainings of one replicate are one try"
    said = said_of("dynamics", never[0])
    assert "not judged, because the model learned too little for it" in said and "?" not in said


def test_steps_are_whole_numbers_and_none_becomes_zero():
    assert [amount(x, unit="steps") for x in (-185.363, 50.0, 0.0, -0.887, 0.042)] == [
        "-185", "+50", "+0", "-0.89", "+0.042",
    ]  # fmt: skip
    assert amount(-185.363) == "-185.363"
    words = said_of("dynamics", found("dynamics", "differs", -185.363).primary)
    assert ": -185 steps (95% interval -" in words and not re.search(r"\d\.\d+ steps", words)
