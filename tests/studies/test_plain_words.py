"""What a newcomer is told: the main effect's verdict in plain words, and no more than it says."""

import dataclasses
import re

import pytest

from qkv.studies.question import Ask
from qkv.studies.questions import find, questions
from qkv.studies.verdict.comparison import Comparison
from qkv.studies.verdict.judging import Effect, Findings
from qkv.studies.verdict.sentences import otherwise, plainly
from qkv.studies.verdict.statistics import VERDICTS


def first(name: str, verdict: str, effect: float, n: int = 8) -> Findings:
    """Findings of a question of which only the main effect is known, as it came out."""
    design = find(name).design(Ask(named=("a text", "0" * 64), quick=True))
    result = Comparison(
        n=n, effect=effect, low=effect - 0.1, high=effect + 0.1, sd=0.1, p=0.01, p_equivalent=None, verdict=verdict,
        detectable=0.2, needed=20,
    )  # fmt: skip
    main = Effect(contrast=design.primary, values=(), result=result, p_corrected=None)
    return Findings(design=design, effects=(main,), arms=(), not_reached=(), trainings=0, earlier=())


@pytest.mark.parametrize("sign", [1, -1], ids=["above", "below"])
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("name", questions())
def test_what_is_told_to_newcomers_is_the_verdict_and_no_more(name, verdict, sign):
    words = plainly(find(name), first(name, verdict, 0.25 * sign))
    says = find(name).plain
    ways = {
        "differs": says.above if sign > 0 else says.below,
        "differs but trivially": says.slightly,
        "equivalent": says.equivalent,
        "unresolved": says.unresolved,
    }
    assert words == ways[verdict].replace("{effect}", "0.250") and words.endswith(".")
    assert "{effect}" not in says.slightly + says.equivalent + says.unresolved  # what is not there has no size
    assert re.search(r"\d", words.replace("0.250", "").replace("5 times in 100", "")) is None
    assert ("cannot tell" in words or "cannot be told" in words) == (verdict == "unresolved")
    assert len({says.above, says.below, says.slightly, says.equivalent, says.unresolved}) == 5


@pytest.mark.parametrize("name", questions())
def test_a_trivial_difference_is_told_without_a_direction(name):
    # one sentence serves both signs, and "almost as much" holds for one of them alone
    assert not re.search(r"almost as\b", find(name).plain.slightly)


def test_newcomers_are_told_nothing_where_no_replicate_was_completed():
    assert plainly(find("frozen-embeddings"), first("frozen-embeddings", "unresolved", 0.25, n=0)) == ""


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_second_of_two_questions_is_told_by_its_own_verdict(verdict):
    question = find("heads-and-scale")
    ((name, says),) = question.also.items()
    findings = first(question.name, "equivalent", 0.01)
    contrast = next(c for c in question.design(Ask(named=("a text", "0" * 64))).contrasts if c.name == name)
    other = first(question.name, verdict, 0.25).primary
    both = dataclasses.replace(findings, effects=(*findings.effects, dataclasses.replace(other, contrast=contrast)))
    ways = {
        "differs": says.above,
        "differs but trivially": says.slightly,
        "equivalent": says.equivalent,
        "unresolved": says.unresolved,
    }
    told = ways[verdict].replace("{effect}", "0.250")
    assert plainly(question, both) == f"{question.plain.equivalent} {told}"
    assert plainly(question, findings) == question.plain.equivalent


@pytest.mark.parametrize(
    ("expected", "refuted"),
    [("above 0", {-1, 0}), ("far above 0", {-1, 0}), ("below 0", {0, 1}), ("not below 0", {-1}), ("near 0", {-1, 1})],
)
def test_what_came_out_otherwise_is_what_the_expectation_leaves_no_room_for(expected, refuted):
    def told(verdict: str, effect: float) -> bool:
        main = first("techniques", verdict, effect).primary
        return bool(
            otherwise([dataclasses.replace(main, contrast=dataclasses.replace(main.contrast, expected=expected))])
        )

    ways = {sign: told("differs" if sign else "equivalent", 0.25 * sign) for sign in (-1, 0, 1)}
    assert {sign for sign, is_otherwise in ways.items() if is_otherwise} == refuted
    assert not told("unresolved", -0.25)
