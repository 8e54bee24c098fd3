"""What `calibrate` counts: of thousands of small studies whose truth is known, how many say what is true."""

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np

from qkv.jsontypes import JsonObject
from qkv.randomness import generator
from qkv.studies.engine.design import Scale, Text
from qkv.studies.question import Ask
from qkv.studies.synthetic import streams
from qkv.studies.verdict.power import detectable
from qkv.studies.verdict.statistics import interval, judge, lower_bound, tost

_SOURCE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["texts"]["text"]
INNER, BLOCK = _SOURCE["replicates"], _SOURCE["studies"]
"""Replicates of each little study: the usual number; and studies that are trained side by side, one row's."""
DRAWN = 80
"""Simulated little studies of each kind that one row holds: `tries` of their effects."""
SIZES = (8, 12)
"""Replicates of each simulated little study."""
ALPHA = 0.05
_NO_EFFECT = 0.02
"""The margin of each little study, nats."""
_BAD = 0.12
"""Chance that a replicate of the unstable arm has a bad learning rate."""

Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
"""(draws, [studies, replicates]) -> differences, float64 of that shape."""


def _unstable(draws: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Normal differences, of which 12 in 100 are 10 to 60 standard deviations too large.

    So far away they only move the median up, to the quantile 0.5 / 0.88 of the others.
    """
    bad = (draws.random(shape) < _BAD) * 10 * (1 + draws.exponential(size=shape))
    return draws.normal(size=shape) + bad - NormalDist().inv_cdf(0.5 / (1 - _BAD))


OUTCOMES: Mapping[str, Draw] = {
    "equal arms": lambda draws, shape: draws.normal(size=shape) - draws.normal(size=shape),
    "one arm scatters 5 times as much": lambda draws, shape: 5 * draws.normal(size=shape) - draws.normal(size=shape),
    "one arm unstable": _unstable,
    "log-normal": lambda draws, shape: np.exp(draws.normal(size=shape)) - 1,
    "exponential": lambda draws, shape: draws.exponential(size=shape) - math.log(2),
    "heavy tails": lambda draws, shape: draws.standard_t(3, size=shape),
    "ties": lambda draws, shape: np.round(4 * draws.normal(size=shape)) / 4,
}
"""Outcomes of little studies that are drawn and not trained: kind -> paired differences of arms that are not alike.

The median of every kind is 0, so an interval without 0 is wrong. A replicate is one value; its unit is arbitrary."""


def known_effect() -> float:
    """Nats per token by which the entropy of the planted source lies above that of the base: 0.050."""
    base, planted = (
        streams.markov_entropy(streams.markov_matrix(_SOURCE["states"], _SOURCE["sharpness"], _SOURCE[key]))
        for key in ("noise", "planted")
    )
    return planted - base


def findable(ask: Ask, texts: dict[str, Text], scale: Scale) -> JsonObject:
    """The effect that so many replicates find four times in five, in standard deviations."""
    return {f"findable by {n}": detectable(1.0, n) for n in SIZES}


def derive(rows: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Of each row the share of its little studies that said so; the true planted effect is the median of all."""
    if not rows:
        return []
    effects, nulls = (_values(rows, name) for name in ("effect", "null"))
    truth, found = float(np.median(effects)), []
    for row, blocks in enumerate(zip(effects, nulls, strict=True)):
        said = [_said(planted, null, truth) for planted, null in zip(*map(np.ndarray.tolist, blocks), strict=True)]
        found.append({name: float(np.mean([each[name] for each in said])) for name in said[0]} | _drawn(row))
    return found


def _said(planted: list[float], null: list[float], truth: float) -> dict[str, float]:
    """What a study says of these differences with and without an effect, and whether that is right."""
    (low, high), known = interval(planted), known_effect()
    return {
        "false positives": judge(null, _NO_EFFECT).startswith("differs"),
        "coverage": low <= truth <= high,
        "coverage of the entropies' difference": low <= known <= high,
        "equivalence at the margin": tost(planted, abs(truth)) < ALPHA,
        "power": judge(planted, _NO_EFFECT).startswith("differs"),
        "beyond the known effect": float(np.mean(planted)) - known,
    }


def _drawn(row: int) -> dict[str, float]:
    """Of each simulated kind, the share of one row's little studies whose interval was right."""
    found = {}
    for n in SIZES:
        for kind, draw in OUTCOMES.items():
            found[f"{kind}, {n} replicates"] = 1 - _without_0(draw(generator("calibrate", kind, n, row), (DRAWN, n)))
        planted = generator("calibrate", "planted", n, row).normal(detectable(1.0, n), 1.0, (DRAWN, n))
        found[f"planted effect, {n} replicates"] = _without_0(planted)
    return found


def _without_0(differences: np.ndarray) -> float:
    """Share of little studies, [studies, replicates], whose 95 % interval leaves 0 out."""
    tail = ALPHA / 2
    return float(np.mean((lower_bound(differences, tail) > 0) | (lower_bound(-differences, tail) > 0)))


def _values(rows: Sequence[Mapping[str, float]], name: str) -> np.ndarray:
    """[rows, studies, replicates]"""
    return np.array([[[row[f"{s} {name} {i}"] for i in range(INNER)] for s in range(BLOCK)] for row in rows])
