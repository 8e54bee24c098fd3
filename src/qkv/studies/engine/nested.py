"""Whole little studies inside one training: what `calibrate` repeats to see how often verdicts are right.

Three arms on sources that are known: a base; the same with W_E and W_U drawn anew (a true null: another start, the same
batches); and a Markov source of another entropy (a planted effect). Every arm's learning rate is tuned in every
replicate by the same code that tunes every study, so whatever tuning does to verdicts is in the rates.
"""

import math

import numpy as np

from qkv.studies.engine.design import Arm, Design, Grid, Text, Trial, cost
from qkv.studies.engine.tuning import pending, report_key
from qkv.studies.synthetic import streams

_BASE = Arm(name="base", what="a Markov source", text="base", lr=0.03)
_REDRAWN = Arm(
    name="redrawn", what="the same, W_E and W_U drawn anew", text="base", lr=0.03,
    changes=("W_E,W_U=random(0.02,train=true)",),
)  # fmt: skip
_PLANTED = Arm(name="planted", what="a source of higher entropy", text="planted", lr=0.03)


def inner_design(trial: Trial) -> Design:
    """The little studies of a trial as one design: `noise` and `planted` in its text are those of the two sources."""
    s = dict(trial.text.settings)
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
        grid=Grid(reach=5),
        arms=(_BASE, _REDRAWN, _PLANTED),
        contrasts=(cost("null", "", "redrawn", "base", 0.02), cost("effect", "", "planted", "base", 0.02)),
        replicates=trial.seed * s["studies"] * s["replicates"],
        software=trial.software,
    )


def inner_study(trial: Trial) -> dict[str, float]:
    """Both differences of every replicate of every little study.

    A trial is a block of `studies` little studies, trained side by side; `trial.seed` is its number. Replicates are
    numbered after those of the blocks before, so that no two little studies share a training.
    """
    from qkv.studies.engine.stacked import losses_of  # known only where it is needed: tracing takes seconds to import

    settings = dict(trial.text.settings)
    design, n = inner_design(trial), settings["studies"] * settings["replicates"]
    replicates = range((trial.seed - 1) * n + 1, trial.seed * n + 1)
    losses: dict[str, float] = {}  # inf where one diverged, which counts as blind guessing where it is reported
    left = set(replicates)
    while jobs := {r: list(pending(design, "", losses.get, only=r)) for r in left}:
        due = [job.trial for r in sorted(jobs) for job in jobs[r]]
        losses |= zip([each.key for each in due], losses_of(due), strict=True)
        left = {r for r in left if jobs[r]}
    blind = math.log(streams.corpus(design.texts[0][1], "", 0, None).tokenizer.d_vocab)
    found = {
        arm.name: np.minimum([losses[report_key(design, arm, r, "", losses.get) or ""] for r in replicates], blind)
        for arm in design.arms
    }
    differences = {"null": found["redrawn"] - found["base"], "effect": found["planted"] - found["base"]}
    return {  # by number of the little study in its block, counted from 0: `3 null 5`
        f"{study} {name} {i}": float(x)
        for name, values in differences.items()
        for study, each in enumerate(np.split(values, settings["studies"]))
        for i, x in enumerate(each)
    }
