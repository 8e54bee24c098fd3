"""A whole little study inside one training: what `calibrate` repeats to see how often verdicts are right.

Three arms on sources that are known: a base; the same with W_E and W_U drawn anew (a true null: another start, the same
batches); and a Markov source of another entropy (a planted effect). Every arm's learning rate is tuned in every
replicate by the same code that tunes every study, so whatever tuning does to verdicts is in the rates.
"""

from pathlib import Path
from typing import Any

import numpy as np

from qkv.studies.design import Arm, Design, Grid, Text, Trial, cost
from qkv.studies.statistics import judge
from qkv.studies.tuning import pending, report_key

__all__ = ["inner_design", "inner_study"]

_BASE = Arm(name="base", what="a Markov source", text="base", lr=0.03)
_REDRAWN = Arm(
    name="redrawn", what="the same, W_E and W_U drawn anew", text="base", lr=0.03,
    changes=("W_E,W_U=random(0.02,train=true)",),
)  # fmt: skip
_PLANTED = Arm(name="planted", what="a source of higher entropy", text="planted", lr=0.03)


def inner_design(trial: Trial) -> Design:
    """The little study of a trial: `noise` and `planted` of its text's settings are those of the two sources."""
    s: dict[str, Any] = dict(trial.text.settings)
    chain = {name: s[name] for name in ("states", "sharpness", "tokens", "val_tokens")}
    texts = tuple(
        (name, Text(stream="markov", settings=tuple((chain | {"noise": s[key]}).items())))
        for name, key in (("base", "noise"), ("planted", "planted"))
    )
    return Design(
        study="calibrate",
        quick=True,
        source_name="made",
        source_sha256="made",
        texts=texts,
        scale=trial.scale,
        grid=Grid(ratio=3.0, points=3, reach=3),
        arms=(_BASE, _REDRAWN, _PLANTED),
        contrasts=(cost("null", "", "redrawn", "base", 0.02), cost("effect", "", "planted", "base", 0.02)),
        replicates=trial.seed * s["replicates"],
        software=trial.software,
    )


def inner_study(trial: Trial, cache: Path | None) -> dict[str, float]:
    """Both differences of every replicate, and what a study of these replicates would say.

    `trial.seed` is the number of the little study: its replicates are numbered after those of the ones before, so
    that no two little studies share a training.
    """
    from qkv.studies.stacked import losses_of  # known only where it is needed: tracing takes seconds to import

    design, n = inner_design(trial), int(dict(trial.text.settings)["replicates"])
    losses: dict[str, float] = {}
    found: dict[str, list[float]] = {}
    replicates = range((trial.seed - 1) * n + 1, trial.seed * n + 1)
    while jobs := [job for r in replicates for job in pending(design, "", losses.get, only=r)]:
        due = [job.trial for job in jobs]
        losses |= zip([each.key for each in due], losses_of(due, cache), strict=True)
    for arm in design.arms:
        keys = [report_key(design, arm, r, "", losses.get) or "" for r in replicates]
        found[arm.name] = [losses[key] for key in keys]
    base = np.array(found["base"])
    differences = {"null": np.array(found["redrawn"]) - base, "effect": np.array(found["planted"]) - base}
    measures = {f"{name} {i}": float(x) for name, values in differences.items() for i, x in enumerate(values)}
    margin = design.contrasts[0].margin
    for name, values in differences.items():
        measures[f"{name} found"] = float(judge(values.tolist(), margin).startswith("differs"))
    return measures
