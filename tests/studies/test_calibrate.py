"""Calibration: what it derives from made-up little studies, and little studies that are real."""

import dataclasses

import numpy as np
import pytest

from qkv.studies.engine.nested import inner_design, inner_study
from qkv.studies.engine.tuning import report_key
from qkv.studies.question import Ask
from qkv.studies.questions import find
from qkv.studies.questions.calibrate import BLOCK, INNER, OUTCOMES, SIZES, derive, known_effect
from qkv.studies.synthetic import streams
from qkv.studies.verdict.comparison import compare_rate
from qkv.studies.verdict.statistics import bounds_of_rate, judge

scipy_stats = pytest.importorskip("scipy.stats", reason="SciPy is in the extra study")


def made(n: int, effect: float, sd: float) -> list[dict[str, float]]:
    """n blocks of little studies with normal differences."""
    draws, rows = np.random.default_rng(5), []
    for _ in range(n):
        row: dict[str, float] = {}
        for study in range(BLOCK):
            for name, mean in (("null", 0.0), ("effect", effect)):
                values = draws.normal(mean, sd, INNER)
                row |= {f"{study} {name} {i}": x for i, x in enumerate(values)}
        rows.append(row)
    return rows


def test_rates_of_normal_differences_are_those_that_theory_promises():
    found = derive(made(190, known_effect(), 0.05))
    promises = (
        ("false positives", 0.05),
        ("coverage", 0.95),
        ("coverage of the entropies' difference", 0.95),
        ("equivalence at the margin", 0.05),
    )
    for name, promised in promises:
        hits = BLOCK * sum(row[name] for row in found)
        low, high = bounds_of_rate(round(hits), BLOCK * len(found), 0.999)
        assert low <= promised <= high, name
    from qkv.studies.verdict.power import power

    assert np.mean([row["power"] for row in found]) == pytest.approx(power(1.0, INNER), abs=0.04)


def test_simulated_studies_of_unequal_arms_keep_the_promise_and_planted_effects_are_found_at_the_printed_power():
    """2,000 little studies of each kind and number of replicates."""
    found = derive(made(25, known_effect(), 0.05))
    simulated = [c for c in find("calibrate").design(Ask(quick=True)).contrasts if c.what.startswith("simulated: ")]
    assert len(simulated) == len(SIZES) * (len(OUTCOMES) + 1)
    for contrast in simulated:
        result = compare_rate([row[contrast.name] for row in found], contrast.nominal, 0.02, contrast.tries)
        assert result.n == 2000 and abs(result.effect) < (0.05 if contrast.nominal == 0.8 else 0.02), contrast.name


def test_a_rate_has_the_exact_interval_and_the_verdict_of_the_rule():
    result = compare_rate([1.0] * 100 + [0.0] * 1900, 0.05, 0.02)
    assert (
        result.effect == pytest.approx(0.0)
        and result.verdict == "equivalent"
        and result.p == pytest.approx(1.0, abs=0.06)
    )
    theirs = scipy_stats.binomtest(100, 2000).proportion_ci(0.95, "exact")
    assert (result.low, result.high) == pytest.approx((theirs.low - 0.05, theirs.high - 0.05))
    assert compare_rate([1.0] * 240 + [0.0] * 1760, 0.05, 0.02).verdict == "differs"
    blocks = compare_rate([0.05, 0.0, 0.1], 0.05, 0.02, tries=20)
    assert blocks.n == 60 and blocks == compare_rate([1.0] * 3 + [0.0] * 57, 0.05, 0.02)
    assert compare_rate([1.0] * 3 + [0.0] * 17, 0.05, 0.02).verdict == "unresolved"


def test_the_planted_effect_is_the_difference_of_two_known_entropies():
    s = dict(find("calibrate").design(Ask(quick=True)).texts[0][1].settings)
    entropies = [
        streams.markov_entropy(streams.markov_matrix(s["states"], s["sharpness"], s[k])) for k in ("noise", "planted")
    ]
    assert entropies[1] - entropies[0] == known_effect() == pytest.approx(0.05, abs=0.001)


def test_the_best_losses_on_the_validation_tokens_differ_by_what_the_entropies_do():
    text = find("calibrate").design(Ask(quick=True)).texts[0][1]
    s = dict(text.settings)
    best = []
    for noise in (s["noise"], s["planted"]):
        settings = (("states", s["states"]), ("sharpness", s["sharpness"]), ("noise", noise))
        made = dataclasses.replace(text, settings=(*settings, ("tokens", 64), ("val_tokens", s["val_tokens"])))
        corpus, matrix = streams.corpus(made, "", 0, None), streams.markov_matrix(s["states"], s["sharpness"], noise)
        states = np.unique(corpus.val.ids, return_inverse=True)[1]
        best.append(-np.log(matrix[states[:-1], states[1:]]).mean())
    assert best[1] - best[0] == pytest.approx(known_effect(), abs=0.001)


def test_little_studies_are_real_and_share_no_training_with_others():
    design = find("calibrate").design(Ask(quick=True))
    text = dict(design.texts)["text"]
    settings = tuple((dict(text.settings) | {"replicates": 2, "studies": 3}).items())
    text = dataclasses.replace(text, settings=settings)
    scale = dataclasses.replace(design.scale, steps=4)
    short = dataclasses.replace(design, scale=scale, texts=(("text", text),))
    one, two = (short.trial(short.arms[0], r, 0, source="", report=True) for r in (1, 2))
    inner = inner_design(two)
    assert inner.replicates == 12 and inner.trial(inner.arms[0], 7, 0, source="", report=True).seed == 7
    measures = inner_study(one)
    assert measures == inner_study(one)
    nulls = [measures[f"{study} null {i}"] for study in range(3) for i in range(2)]
    assert len(set(nulls)) == 6 and 0 < np.abs(nulls).max() < 1.0
    keys = [report_key(inner, arm, 7, "", lambda key: None) for arm in inner.arms]
    assert keys == [None] * 3, "nothing is reported before its rate is tuned"


@pytest.mark.slow
def test_the_sources_are_learned_and_the_planted_effect_is_found():
    design = find("calibrate").design(Ask(quick=True))
    measures = inner_study(design.trial(design.arms[0], 1, 0, source="", report=True))
    effects = [measures[f"{study} effect {i}"] for study in range(BLOCK) for i in range(INNER)]
    assert np.mean(effects) == pytest.approx(known_effect(), abs=0.02)
    assert np.mean([judge(each, 0.02) == "differs" for each in np.reshape(effects, (BLOCK, INNER))]) >= 0.6
