"""Can these verdicts be trusted? Thousands of little studies whose truth is known, through the whole pipeline.

Each is real: three arms, 8 replicates, trainings of a tiny model on a Markov source, the learning rate of every arm
tuned in every replicate. Between a base and the same with other draws there is no effect, so a study that finds one is
wrong; between two sources of different entropy there is one, and how large it is stands fast before anything is
trained. No two little studies share a training, so their outcomes are independent and the exact interval of a rate
holds. The trainings of one little study are made side by side (`studies.engine.stacked`), tuned and reported as ever.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from qkv.studies.engine.design import Contrast, Design, Scale, Text
from qkv.studies.engine.expectation import Expected
from qkv.studies.question import Ask, Plain, Question, make_design
from qkv.studies.synthetic import streams
from qkv.studies.verdict.statistics import interval, t_test, tost
from qkv.studies.vocabulary import ABOVE, BELOW, arm, level, near

__all__ = ["QUESTION"]

INNER = 8
"""Replicates of each little study: the usual number."""
BLOCK = 8
"""Little studies that are trained side by side, and that one row holds."""
ALPHA = 0.05
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


def _rate(name: str, what: str, nominal: float, margin: float, expected: Expected = _PROMISED) -> Contrast:
    return Contrast(
        name=name, what=what, terms=((1.0, _ARM.name, name),), margin=margin, unit="of all little studies",
        nominal=nominal, expected=expected, tries=BLOCK,
    )  # fmt: skip


_CONTRASTS = (
    _rate("false positives", "rate of effects found where there is none, minus the nominal 5%", ALPHA, 0.02),
    _rate(
        "false positives of Student's t", "rate of effects that a t interval finds where there is none, minus 5%",
        ALPHA, 0.02,
        BELOW,
    ),
    _rate("coverage", "how often the 95% interval contains the mean of all others, minus 95%", 1 - ALPHA, 0.02),
    _rate(
        "coverage of the entropies' difference", "how often the 95% interval contains the known difference, minus 95%",
        1 - ALPHA, 0.02,
    ),
    _rate(
        "equivalence at the margin", "rate of *equivalent* where the effect equals the margin, minus 5%", ALPHA, 0.02
    ),
    _rate("power", "how often the planted effect is found, minus 80%", 0.8, 0.1, ABOVE),
    level(
        "planted effect, beyond the known one",
        "mean loss on the planted source minus that on the base, minus the difference of the entropies (0.050)",
        _ARM.name, "beyond the known effect", 0.01, expected=near(0.0, 0.01),
    ),
)  # fmt: skip


def _design(ask: Ask) -> Design:
    return make_design(
        ask,
        study="calibrate",
        texts={"text": _SOURCE},
        scale=Scale(d_model=8, n_layers=1, n_heads=1, n_ctx=8, batch_size=8, steps=40, val_tokens=_VAL, evaluations=1),
        arms=(_ARM,),
        contrasts=_CONTRASTS,
        replicates=16 if ask.quick else 250,
    )


def derive(rows: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Of each row the share of its little studies that said so; the true planted effect is the mean of all others."""
    if not rows:
        return []
    effects, nulls = (_values(rows, name) for name in ("effect", "null"))
    n, total, known = effects[:, :, 0].size, effects.sum(), known_effect()
    found = []
    for row, planted, null in zip(rows, effects, nulls, strict=True):
        said: dict[str, list[float]] = {}
        for study, (ours, nothing) in enumerate(zip(planted, null, strict=True)):
            truth = (total - ours.sum()) / ((n - 1) * INNER) if n > 1 else ours.mean()
            low, high = interval(ours)
            for name, value in {
                "false positives": row[f"{study} null found"],
                "false positives of Student's t": t_test(nothing) < ALPHA,
                "coverage": low <= truth <= high,
                "coverage of the entropies' difference": low <= known <= high,
                "equivalence at the margin": tost(ours, abs(truth)) < ALPHA,
                "power": row[f"{study} effect found"],
                "beyond the known effect": ours.mean() - known,
            }.items():
                said.setdefault(name, []).append(float(value))
        found.append({name: float(np.mean(values)) for name, values in said.items()})
    return found


def _values(rows: Sequence[Mapping[str, float]], name: str) -> np.ndarray:
    """[rows, studies, replicates]"""
    return np.array([[[row[f"{s} {name} {i}"] for i in range(INNER)] for s in range(BLOCK)] for row in rows])


QUESTION = Question(
    name="calibrate",
    asks="Can these verdicts be trusted?",
    answer="false positives, coverage, power and TOST's rate over thousands of small studies, with exact intervals",
    falsified_by="The exact interval of the rate of false positives excludes 5%, or that of the coverage excludes 95%.",
    literature=(
        "These rates are compared with no published figures: the truth of each small study is known beforehand, and the"
        " nominal rates are those of the intervals themselves."
    ),
    plain=Plain(
        above=(
            "Not quite, where tried: small studies of eight replicates found an effect where there is none more often"
            " than the nominal 5%, by {effect} of all studies."
        ),
        below=(
            "Yes, where tried: small studies of eight replicates found an effect where there is none less often than"
            " the nominal 5%, by {effect}."
        ),
        same=(
            "Yes, where tried: small studies of eight replicates found an effect where there is none as rarely as the"
            " nominal 5%."
        ),
    ),
    heard=(
        "One run with and one without, and the better one is the finding. Two trainings that differ only in their seed"
        " also differ."
    ),
    design=_design,
    derive=derive,
)
