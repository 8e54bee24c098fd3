"""What a newcomer reads: each effect by its verdict, and no more than it says."""

import dataclasses
import re

import pytest

from qkv.errors import SourceError
from qkv.studies.question import Ask
from qkv.studies.questions import find, questions
from qkv.studies.verdict.comparison import Comparison
from qkv.studies.verdict.judging import Effect
from qkv.studies.verdict.sentences import plainly
from qkv.studies.verdict.statistics import VERDICTS


def first(name: str, verdict: str, effect: float, n: int = 8) -> Effect:
    """The main effect of a question, as it came out."""
    result = Comparison(
        n=n, effect=effect, low=effect - 0.1, high=effect + 0.1, sd=0.1, p=0.01, p_equivalent=None, verdict=verdict,
        detectable=0.2, needed=20,
    )  # fmt: skip
    contrast = find(name).design(Ask(named=("a text", "0" * 64), quick=True)).primary
    return Effect(contrast=dataclasses.replace(contrast, unit="nats"), values=(), result=result, p_corrected=None)


def small(size: float) -> str:
    """What follows the sentence of equality where the effect is significant but trivial."""
    return f"The difference ({size:+.2f} nats) is significant but below the margin."


@pytest.mark.parametrize("sign", [1, -1], ids=["above", "below"])
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("name", questions())
def test_the_answer_is_the_verdict_and_no_more(name, verdict, sign):
    effect = first(name, verdict, 0.25 * sign)
    (words,), says = plainly(find(name), [effect]), find(name).plain
    ways = {
        "differs": (says.above if sign > 0 else says.below).replace("{effect}", "0.25"),
        "differs but trivially": f"{says.same} {small(0.25 * sign)}",
        "equivalent": says.same,
        "unresolved": f"Inconclusive ({'+0.15 to +0.35' if sign > 0 else '-0.35 to -0.15'} nats):"
        f" {effect.contrast.what}.",
    }
    assert words == ways[verdict] and words.endswith(".")
    assert "{" not in says.same and re.search(r"\d", says.same.replace("nominal 5%", "")) is None
    assert len({says.above, says.below, says.same}) == 3


@pytest.mark.parametrize("name", questions())
def test_no_sentence_of_a_small_difference_says_that_there_is_none(name):
    """It stands before differences that are significant, too."""
    exact = (" as many", " as well", " as much", "equally", "at the same step", "the same improvement", "at once")
    near = r"(nearly|about|almost) (as (many|well|much)|equally|the same|at once)|none of .* that matters"
    for says in (find(name).plain, *find(name).also.values()):
        rest = re.sub(near, "", says.same.replace("at about", "about"))
        assert not [words for words in exact if words in f" {rest}"], says.same


def test_nothing_is_said_where_no_replicate_was_completed():
    assert plainly(find("frozen-embeddings"), [first("frozen-embeddings", "unresolved", 0.25, n=0)]) == []


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_second_of_two_questions_has_its_own_verdict(verdict):
    question = find("heads-and-scale")
    ((name, says),) = question.also.items()
    main, other = first(question.name, "equivalent", 0.01), first(question.name, verdict, 0.25)
    other = dataclasses.replace(other, contrast=dataclasses.replace(other.contrast, name=name, what="that"))
    ways = {
        "differs": says.above.replace("{effect}", "0.25"),
        "differs but trivially": f"{says.same} {small(0.25)}",
        "equivalent": says.same,
        "unresolved": "Inconclusive (+0.15 to +0.35 nats): that.",
    }
    assert plainly(question, [main, other]) == [question.plain.same, ways[verdict]]
    assert plainly(question, [main]) == [question.plain.same]
    assert plainly(question, [main, other], [name])[1] == f"{ways[verdict]} That is worse than uniform guessing."
    alone = dataclasses.replace(other, p_corrected=0.2)
    hint = "A hint, not significant after correction (+0.15 to +0.35 nats): that."
    assert verdict != "differs" or plainly(question, [main, alone])[1] == hint


@pytest.mark.parametrize(
    ("unit", "value", "words"),
    [
        ("nats per token", 0.0886, "0.089"),
        ("nats per token", 0.0997, "0.10"),
        ("nats per token", 4.244, "4.2"),
        ("steps", 184.6, "185"),
        ("of the gradient", 0.735, "74%"),
        ("of its start's norm", 2.552, "2.6"),
        ("points of accuracy", 99.57, "99.6"),
        ("points of accuracy", 31.4, "31"),
    ],
)
def test_sizes_have_two_digits_and_shares_are_percentages(unit, value, words):
    effect = first("what-moved-q", "differs", value)
    effect = dataclasses.replace(effect, contrast=dataclasses.replace(effect.contrast, unit=unit))
    question = dataclasses.replace(
        find("what-moved-q"), plain=dataclasses.replace(find("what-moved-q").plain, above="{effect}.")
    )
    assert plainly(question, [effect]) == [f"{words}."]


@pytest.mark.parametrize("name", questions())
def test_every_effect_has_a_name_that_a_reader_understands(name):
    question = find(name)
    for quick in (True, False):
        for more in ({}, {"labelled": True}, {"images": ("x", "0" * 64)}, {"vectors": "0" * 64}):
            try:
                design = question.design(Ask(named=("a text", "0" * 64), quick=quick, **more))
            except SourceError:  # of a question that asks nothing of those
                continue
            labels = [question.label(contrast.name, "") for contrast in design.contrasts]
            assert len(set(labels)) == len(labels) and min(map(len, labels)) > 8 and max(map(len, labels)) < 100
            assert [
                label for label in labels if re.search(r" - |->|~|L\d\.|, less|\{|\b[QKVO]{2}\b(?!-norm)", label)
            ] == []


@pytest.mark.parametrize("name", questions())
def test_a_question_has_its_math_in_three_lines(name):
    math = find(name).math
    assert 1 <= len(math) <= 3 and any("`" in line for line in math)
    assert all(len(line) < 140 and line.count("`") % 2 == 0 for line in math)
