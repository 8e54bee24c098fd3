"""Can these verdicts be trusted? Thousands of little studies whose truth is known, through the whole pipeline.

Each is real: three arms, 8 replicates, trainings of a tiny model on a Markov source, the learning rate of every arm
tuned in every replicate. Between a base and the same with other draws there is no effect, so a study that finds one is
wrong; between two sources of different entropy there is one. No two little studies share a training, so their outcomes
are independent and the exact interval of a rate holds.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from qkv.studies.design import Arm, Contrast, Design, Grid, Scale, Text
from qkv.studies.question import Ask, Question, make_design
from qkv.studies.statistics import interval, sign_flip, tost
from qkv.studies.verdicts import Findings

__all__ = ["QUESTION"]

INNER = 8
"""Replicates of each little study: the usual number."""
ALPHA = 0.05
_SOURCE = Text(
    stream="markov",
    settings=(
        ("states", 6), ("sharpness", 1.5), ("tokens", 20_000), ("val_tokens", 1024), ("noise", 0.1),
        ("planted", 0.152), ("replicates", INNER),
    ),
)  # fmt: skip
_ARM = Arm(name="little study", what="8 replicates of three tuned arms", trainer="inner study", tune="none")


def _rate(name: str, what: str, nominal: float, margin: float, expected: str) -> Contrast:
    return Contrast(
        name=name, what=what, terms=((1.0, _ARM.name, name),), margin=margin, unit="of all little studies",
        nominal=nominal, expected=expected,
    )  # fmt: skip


_CONTRASTS = (
    _rate("false positives", "an effect was found where there is none, less the promised 5 %", ALPHA, 0.02, "0"),
    _rate("false positives of sign flips", "p below 0.05 by sign flips where there is none", ALPHA, 0.02, "0 or below"),
    _rate("coverage", "the 95 % interval held the planted effect, less 95 %", 1 - ALPHA, 0.02, "0"),
    _rate(
        "equivalence at the margin", "equivalent, the margin being as large as the effect, less 5 %", ALPHA, 0.02, "0"
    ),
    _rate("power", "the planted effect was found, less 80 %", 0.8, 0.1, "above 0"),
    Contrast(
        name="planted effect",
        what="mean loss on the planted source, less that on the base",
        terms=((1.0, _ARM.name, "mean effect"),),
        margin=0.01,
        expected="near 0.05, the difference of the entropies",
    ),
)


def _design(ask: Ask) -> Design:
    return make_design(
        ask,
        study="calibrate",
        texts={"text": _SOURCE},
        scale=Scale(d_model=8, n_layers=1, n_heads=1, n_ctx=8, batch_size=8, steps=40, val_tokens=1024, evaluations=1),
        grid=Grid(),
        arms=(_ARM,),
        contrasts=_CONTRASTS,
        replicates=40 if ask.quick else 2000,
    )


def derive(rows: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """What each little study would have said, 1 or 0; the true planted effect is the mean of all the other ones."""
    effects = np.array([[row[f"effect {i}"] for i in range(INNER)] for row in rows]).reshape(len(rows), INNER)
    found = []
    for index, row in enumerate(rows):
        null = [row[f"null {i}"] for i in range(INNER)]
        others = np.delete(effects, index, axis=0) if len(rows) > 1 else effects
        truth, (low, high) = float(others.mean()), interval(effects[index])
        signs = sign_flip(null)
        found.append(
            {
                "false positives": row["null found"],
                "false positives of sign flips": float(signs is not None and signs < ALPHA),
                "coverage": float(low <= truth <= high),
                "equivalence at the margin": float(tost(effects[index], abs(truth)) < ALPHA),
                "power": row["effect found"],
                "mean effect": float(effects[index].mean()),
            }
        )
    return found


def _claim(findings: Findings) -> str:
    verdict = findings.primary.result.verdict
    if verdict in ("equivalent", "differs but trivially"):
        return "Studies find effects where there are none as seldom as promised: rate less the promised 5 %"
    if verdict == "unresolved":
        return "So few little studies do not show whether the promised 5 % of false positives hold: rate less 5 %"
    return "Studies do not keep their promise of 5 % false positives: rate less the promised one"


QUESTION = Question(
    name="calibrate",
    asks="Can these verdicts be trusted?",
    answer="false positives, coverage, power and TOST's rate of thousands of little studies, with exact intervals",
    falsified_by="The exact interval of the rate of false positives does not hold 5 %, or that of the coverage 95 %.",
    literature=(
        "Simulated beforehand: a learning rate that is tuned once and shared by all replicates makes"
        " paired tests of a true"
        " null reject in 17, 12, 10 and 8 % of cases with 1, 2, 3 and 5 tuning seeds. Here every replicate tunes for"
        " itself."
    ),
    design=_design,
    claim=_claim,
    derive=derive,
)
