"""The null of a run: the same training on random labels, for its first steps, under the same schedule.

What moves there is what the optimizer moves when there is nothing to learn. It is measured by the same recorder at the
same steps, so each drift can be read beside its null at an equal step.
"""

import dataclasses

from qkv.instruments.recorder import Recorder
from qkv.recipe.assemble import Parts, assemble
from qkv.telemetry import NULL_ARM, Store
from qkv.training import loop
from qkv.training.ranks import ALONE, Ranks
from qkv.training.record import Outcome

__all__ = ["NULL_SHARE", "null_steps", "train_null"]

NULL_SHARE = 0.07
"""Share of a training that its null may cost."""
_MOST_STEPS = 256


def null_steps(steps: int) -> int:
    """How many steps the null has: the largest power of two within its share, so that it ends on a recorded step."""
    most = min(_MOST_STEPS, int(NULL_SHARE * steps))
    return 1 << (most.bit_length() - 1) if most else 0


def train_null(parts: Parts, outcome: Outcome, store: Store | None, ranks: Ranks = ALONE) -> None:
    """Train from the same start on random labels and record it as arm 1; nothing else of the run is touched.

    All ranks train it together; the one that watches gives the store.
    """
    steps = null_steps(outcome.steps)
    if not steps:
        return
    training = dataclasses.replace(
        parts.config.training,
        until_loss=0.0,
        minutes=0.0,
        patience=0,
        on_spike="ignore",
        schedule=dataclasses.replace(parts.config.training.schedule, steps=outcome.horizon),
    )
    config = dataclasses.replace(parts.config, training=training)
    shares = config.machine.shard and ranks.world > 1
    null = assemble(config, parts.corpus, keeps_start=store is not None, shares=shares)
    watching = {"watching": config.watching, "start": null.start, "arm": NULL_ARM}
    loop.run(
        model=null.model,
        catalogue=null.catalogue,
        task=null.task,
        corpus=null.corpus,
        config=training,
        optimizer=null.optimizer,
        machine=config.machine,
        seed=config.seed,
        constraint=null.plan,
        observers=[] if store is None else [Recorder(store, config.watch, **watching)],
        random_labels=True,
        stop_after=steps,
        ranks=ranks,
    )
    null.plan.at_end()
