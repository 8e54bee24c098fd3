"""What was expected before the first training is data, and one of met, failed, open afterwards."""

import dataclasses
from functools import partial

import pytest

from qkv.errors import ConfigError
from qkv.studies.engine.design import OF_TRAININGS, Contrast
from qkv.studies.expectation import Expected
from qkv.studies.question import Ask
from qkv.studies.questions import find
from qkv.studies.verdict.judging import judged, numbered
from qkv.studies.verdict.sentences import effect_row, expected_words

MARGIN = 0.1


def interval(x: float, confidence: float, *, middle: float, half: float) -> tuple[float, float]:
    """Of an effect whose 95% interval is middle +- half, and whose 90% interval is a tenth narrower."""
    reach = half * (1.0 if confidence == 0.95 else 0.9)
    return middle - reach - x, middle + reach - x


@pytest.mark.parametrize(
    ("expected", "middle", "half", "wanted"),
    [
        ({"above": 0.0}, 0.2, 0.15, "met"),
        ({"above": 0.0}, -0.2, 0.15, "failed"),  # wholly on the other side
        ({"above": 0.0}, 0.0, 0.105, "failed"),  # the 90% interval lies within the margin, the 95% one does not
        ({"above": 0.0}, 0.0, 0.15, "open"),
        ({"above": 50.0}, 49.0, 0.5, "failed"),
        ({"above": 50.0}, 51.0, 0.5, "met"),
        ({"below": 0.0}, -0.2, 0.15, "met"),
        ({"below": 0.0}, 0.2, 0.15, "failed"),
        ({"below": 0.0}, 0.0, 0.105, "failed"),
        ({"below": 0.0}, 0.05, 0.2, "open"),
        ({"near": 1.0, "within": 0.2}, 1.0, 0.21, "met"),  # by the 90% interval
        ({"near": 1.0, "within": 0.2}, 1.5, 0.2, "failed"),
        ({"near": 1.0, "within": 0.2}, 0.5, 0.2, "failed"),
        ({"near": 1.0, "within": 0.2}, 1.3, 0.2, "open"),
        ({"less_than": "other"}, -0.2, 0.1, "met"),  # of the difference of the two
        ({"less_than": "other"}, 0.2, 0.1, "failed"),
        ({"less_than": "other"}, -0.1, 0.2, "open"),
        ({"more_than": "other"}, 0.2, 0.1, "met"),
        ({"more_than": "other"}, 0.0, 0.1, "failed"),
        ({"more_than": "other"}, 0.1, 0.2, "open"),
    ],
)
def test_an_expectation_is_met_failed_or_open_by_its_interval(expected, middle, half, wanted):
    assert Expected(**expected).outcome(partial(interval, middle=middle, half=half), MARGIN) == wanted


def contrast(name: str, **more) -> Contrast:
    return Contrast(**({"name": name, "what": "", "terms": (), "margin": 0.05} | more))


AROUND = (-0.01, 0.01, -0.02, 0.02, 0.0, 0.01, -0.01, 0.02)


@pytest.mark.parametrize(
    ("shift", "expected", "wanted"),
    [
        (0.3, {"above": 0.0}, "met"),
        (-0.3, {"above": 0.0}, "failed"),
        (0.0, {"above": 0.0}, "failed"),
        (0.05, {"above": 0.05}, "failed"),
        (0.9, {"near": 1.0, "within": 0.15}, "met"),
        (0.7, {"near": 1.0, "within": 0.15}, "failed"),
    ],
)
def test_the_interval_is_that_of_the_values(shift, expected, wanted):
    (effect,) = judged([(contrast("a", expected=Expected(**expected)), numbered([shift + x for x in AROUND]))])
    assert effect.outcome == wanted == effect_row(effect)["outcome"] and effect_row(effect)["expected"] == expected


def test_two_effects_are_compared_by_replicate():
    """Their own spread is far larger than their difference."""
    spread = (1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5)
    less = contrast("less", expected=Expected(less_than="more"))
    more = numbered([x + 0.3 + y for x, y in zip(spread, AROUND, strict=True)])
    first, _ = judged([(less, numbered(spread)), (contrast("more"), more)])
    assert first.outcome == "met" and first.result.verdict == "unresolved"
    other = dict(list(more.items())[:1])
    first, _ = judged([(less, numbered(spread)), (contrast("more"), other)])
    assert first.outcome == "open", "one replicate in common is too few"


def test_constants_rates_and_what_has_no_values():
    constant = contrast("c", constant=True, expected=Expected(near=0.0, within=0.05))
    assert [judged([(constant, numbered((x,) * 6))])[0].outcome for x in (0.04, 0.06)] == ["met", "failed"]
    most = contrast("r", unit=OF_TRAININGS, expected=Expected(above=0.5))
    shares = ((1.0,) * 8, (0.0,) * 8, (1.0, 0.0) * 4, (1.0,) * 5)  # 5 of 5 is at least 0.478
    assert [judged([(most, numbered(x))])[0].outcome for x in shares] == ["met", "failed", "open", "open"]
    nominal = contrast("n", nominal=0.05, tries=100, margin=0.02, expected=Expected(near=0.0, within=0.02))
    rates = ((0.05,) * 20, (0.15,) * 20)
    assert [judged([(nominal, numbered(x))])[0].outcome for x in rates] == ["met", "failed"]
    for other in ("less_than", "more_than"):  # differences of two rates are none
        one = contrast("n", nominal=0.5, margin=0.02, expected=Expected(**{other: "m"}))
        alike, below = numbered((1.0,) * 6), numbered((0.4, 0.3, 0.4, 0.5, 0.4, 0.3))
        assert judged([(one, alike), (contrast("m", nominal=0.5), alike)])[0].outcome == "failed"
        outcome = judged([(one, below), (contrast("m", nominal=0.5), alike)])[0].outcome
        assert outcome == ("met" if other == "less_than" else "failed")
    gate = contrast("gate")
    asked = contrast("a", needs="gate", expected=Expected(above=0.0))
    assert judged([(gate, {}), (asked, numbered((0.3,) * 6))])[1].outcome == "open"
    assert judged([(contrast("a", expected=Expected(above=0.0)), {})])[0].outcome == "open"
    assert judged([(contrast("a"), numbered(AROUND))])[0].outcome == ""


def test_free_text_and_effects_that_are_not_there_are_refused():
    with pytest.raises(ConfigError, match=r"'above 0', which cannot be judged; write Expected\(above=0.0\)"):
        contrast("a", expected="above 0")
    design = find("which-matrix").design(Ask(named=("a text", "0" * 64), quick=True))
    first, *others = design.contrasts
    for other in ("no such effect", first.name):
        wrong = dataclasses.replace(first, expected=Expected(less_than=other))
        with pytest.raises(ConfigError, match=f"is expected to differ from '{other}', which is no other effect"):
            dataclasses.replace(design, contrasts=(wrong, *others))
    right = dataclasses.replace(first, expected=Expected(more_than=others[0].name))
    assert dataclasses.replace(design, contrasts=(right, *others)).protocol != design.protocol


def test_nats_per_token_of_different_tokenizers_are_not_compared():
    design = find("frozen-embeddings").design(Ask(named=("a text", "0" * 64)))
    bits = next(c for c in design.contrasts if c.name == "more pieces cost more")
    assert bits.unit == "bits per byte"
    with pytest.raises(ConfigError, match="compares nats per token of different tokenizers"):
        dataclasses.replace(design, contrasts=(dataclasses.replace(bits, unit="nats per token"),))


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ({"above": 0.0}, "above 0"),
        ({"below": 0.5}, "below 0.5"),
        ({"near": 0.0, "within": 5.0}, "within 5 of 0"),
        ({"less_than": "b"}, "less than `b`"),
        (None, ""),
    ],
)
def test_an_expectation_in_words(expected, words):
    assert expected_words(expected) == words
    assert expected_words(expected, {"b": "the other"}) == words.replace("`b`", "`the other`")
