"""Can these verdicts be trusted? Thousands of small studies whose truth is known, through the whole pipeline.

Each is real: three arms, 8 replicates, trainings of a tiny model on a Markov source, with the learning rate of every
arm tuned in every replicate. Between an arm and the same with other draws there is no effect, so a study that finds one
is wrong. Between two sources of different entropy there is an effect, and its size is known before anything is trained.
No two small studies share a training, so their outcomes are independent and the exact interval of a rate holds. The
trainings of one small study run in parallel (`studies.engine.stacked`), tuned and reported as usual.

Their arms are exchangeable, which is easy on an interval. So some rows are simulated, and say so: outcomes of arms that
are not alike, drawn from known distributions (`studies.synthetic.outcomes`), and planted effects.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from qkv.randomness import generator
from qkv.studies.engine.design import Contrast, Design, Scale, Text
from qkv.studies.expectation import Expected
from qkv.studies.question import Ask, make_design, read_question
from qkv.studies.synthetic import streams
from qkv.studies.synthetic.outcomes import OUTCOMES
from qkv.studies.verdict.power import detectable
from qkv.studies.verdict.statistics import interval, judge, lower_bound, tost
from qkv.studies.vocabulary import ABOVE, arm, level, near

INNER = 8
"""Replicates of each little study: the usual number."""
BLOCK = 8
"""Little studies that are trained side by side, and that one row holds."""
DRAWN = 80
"""Simulated little studies of each kind that one row holds."""
SIZES = (8, 12)
"""Replicates of each simulated little study."""
ALPHA = 0.05
_NO_EFFECT = 0.02
"""The margin of each little study, nats."""
_VAL = 2048
"""Validation tokens; the best possible losses of the two sources differ on them by what their entropies differ."""
_SOURCE = Text(
    stream="markov",
    settings=(
        ("states", 6), ("sharpness", 1.5), ("tokens", 20_000), ("val_tokens", _VAL), ("noise", 0.1),
        ("planted", 0.152), ("replicates", INNER), ("studies", BLOCK),
    ),
)  # fmt: skip
_ARM = arm(
    "little studies", "8 replicates of three tuned arms each (the loss is an untrained model's)",
    trainer="inner study", tune="none",
)  # fmt: skip


def known_effect() -> float:
    """Nats per token by which the entropy of the planted source lies above that of the base: 0.050."""
    s = dict(_SOURCE.settings)
    base, planted = (
        streams.markov_entropy(streams.markov_matrix(s["states"], s["sharpness"], s[key]))
        for key in ("noise", "planted")
    )
    return planted - base


_PROMISED = near(0.0, 0.02)


def _rate(
    name: str,
    what: str,
    nominal: float,
    margin: float = 0.02,
    expected: Expected = _PROMISED,
    tries: int = BLOCK,
) -> Contrast:
    return Contrast(
        name=name, what=what, terms=((1.0, _ARM.name, name),), margin=margin, unit="of all little studies",
        nominal=nominal, expected=expected, tries=tries,
    )  # fmt: skip


def _simulated(n: int) -> list[Contrast]:
    """Coverage of each kind of outcome, and power, in simulated small studies of n replicates."""
    what = f"simulated: how often the 95% interval of {n} differences contains their median, minus 95%"
    planted = f"simulated: how often an effect of {detectable(1.0, n):.2f} standard deviations is found, minus 80%"
    rates = [_rate(f"{kind}, {n} replicates", what, 1 - ALPHA, tries=DRAWN) for kind in OUTCOMES]
    return [*rates, _rate(f"planted effect, {n} replicates", planted, 0.8, tries=DRAWN)]


def _contrasts() -> tuple[Contrast, ...]:
    known = "how often the 95% interval contains the known difference, minus 95%"
    margin = "rate of *equivalent* where the effect equals the margin, minus 5%"
    return (
        _rate("false positives", "rate of effects found where there is none, minus the nominal 5%", ALPHA),
        _rate("coverage", "how often the 95% interval contains the median of all small studies, minus 95%", 1 - ALPHA),
        _rate("coverage of the entropies' difference", known, 1 - ALPHA),
        _rate("equivalence at the margin", margin, ALPHA),
        _rate("power", "how often the planted effect is found, minus 80%", 0.8, 0.1, ABOVE),
        level(
            "planted effect, beyond the known one",
            "mean loss on the planted source minus that on the base, minus the difference of the entropies (0.050)",
            _ARM.name, "beyond the known effect", 0.01, expected=near(0.0, 0.01),
        ),
        *(contrast for n in SIZES for contrast in _simulated(n)),
    )  # fmt: skip


def _design(ask: Ask) -> Design:
    return make_design(
        ask,
        study="calibrate",
        texts={"text": _SOURCE},
        scale=Scale(d_model=8, n_layers=1, n_heads=1, n_ctx=8, batch_size=8, steps=40, val_tokens=_VAL, evaluations=1),
        arms=(_ARM,),
        contrasts=_contrasts(),
        replicates=16 if ask.quick else 250,
    )


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


QUESTION = read_question("calibrate", design=_design, derive=derive)
