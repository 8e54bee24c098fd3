"""The random-label control of a run: the same training with labels drawn at random, for its first steps.

Its start, inputs and schedule are those of the run. Inputs say nothing about its labels, but labels keep their
frequencies (`Task.train_batch`), and these it learns. So it shows what moves where inputs teach nothing, and not what
moves where nothing is learned. The same recorder measures it at the same steps, so each drift can be compared at an
equal step. Code and telemetry call it `null`.
"""

import dataclasses

from qkv.errors import NonFiniteError, UserError
from qkv.folder.run_folder import RunFolder
from qkv.instruments.recorder import Recorder
from qkv.recipe.build import Parts, assemble
from qkv.telemetry import NULL_ARM, Store
from qkv.training.distributed.ranks import ALONE, Ranks
from qkv.training.record import Outcome
from qkv.training.tensorfile import load_weights

__all__ = ["NULL_SHARE", "null_steps", "train_null"]

NULL_SHARE = 0.07
"""Share of a training that its control may cost."""
_MOST_STEPS = 256
_FAR = 1 << 30
"""Steps of a schedule whose decay does not begin within the control."""


def null_steps(steps: int) -> int:
    """How many steps the control has: the largest power of two within its share, so that it ends on a recorded step."""
    most = min(_MOST_STEPS, int(NULL_SHARE * steps))
    return 1 << (most.bit_length() - 1) if most else 0


def train_null(parts: Parts, outcome: Outcome, folder: RunFolder, store: Store | None, ranks: Ranks = ALONE) -> str:
    """Train from the run's own weights of step 0 on shuffled labels and record it as arm 1; nothing else is touched.

    All ranks train it together; the one that watches gives the store. Returns why there is none, in a sentence, where
    it could not be made: a training that is done does not depend on it.
    """
    steps = null_steps(outcome.steps)
    if not steps:
        return ""
    try:
        _train(parts, outcome, folder, store, ranks, steps)
    except (NonFiniteError, UserError) as error:
        if store is not None:
            store.drop_after(-1, arm=NULL_ARM)
        return f"This run has no random-label control ({parts.task.control}): {error}."
    return ""


def _train(parts: Parts, outcome: Outcome, folder: RunFolder, store: Store | None, ranks: Ranks, steps: int) -> None:
    """Raises NonFiniteError where the numbers are lost, UserError where something that it starts from is gone."""
    config = parts.config
    training = dataclasses.replace(
        config.training,
        until_loss=0.0,
        minutes=0.0,
        patience=0,
        on_spike="ignore",
        schedule=dataclasses.replace(config.training.schedule, steps=outcome.horizon or _FAR),
    )
    shares = config.machine.shard and ranks.world > 1
    null = assemble(config, parts.corpus, resumed_at=1, keeps_start=False, shares=shares)  # step 0 was made already
    null.catalogue.load_state(load_weights(folder.checkpoints / "step-00000000" / "model.safetensors"))
    start = {} if store is None else {address: values.clone() for address, values in null.catalogue.state().items()}
    watching = {"watching": config.watching, "start": start, "arm": NULL_ARM}
    null.train(
        config=training,
        observers=[] if store is None else [Recorder(store, config.watch, **watching)],
        random_labels=True,
        stop_after=steps,
        ranks=ranks,
    )
    null.plan.at_end()
