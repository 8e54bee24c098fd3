"""The random-label control of a run: the same training with labels drawn uniformly, for its first steps or all of them.

Its start, inputs and schedule are those of the run. Labels are drawn afresh at every step, so all that it can learn is
to guess evenly. The same recorder measures it at the same steps, so each drift can be compared at an equal step. Code
and telemetry call it `null`.
"""

import dataclasses

from qkv.errors import NonFiniteError, UserError
from qkv.folder.run_folder import RunFolder
from qkv.instruments.recorder import Recorder
from qkv.jsontypes import JsonObject
from qkv.recipe.build import Parts, assemble
from qkv.telemetry import NULL_ARM, Store
from qkv.training.distributed.ranks import ALONE, Ranks
from qkv.training.record import Outcome
from qkv.training.tensorfile import load_weights

_FAR = 1 << 30
"""Steps of a schedule whose decay does not begin within the control."""


def null_steps(steps: int, share: float) -> int:
    """How many steps the control has: all of them if `share` is 1 or more, else the largest power of two within it.

    Either way it ends on a recorded step.
    """
    most = int(min(share, 1.0) * steps)
    return most if share >= 1 or not most else 1 << (most.bit_length() - 1)


def train_null(
    parts: Parts, outcome: Outcome, folder: RunFolder, store: Store | None, ranks: Ranks = ALONE
) -> JsonObject:
    """Train from the run's own weights of step 0 on uniform labels and record it as arm 1; nothing else is touched.

    All ranks train it together; the one that watches gives the store. Returns what it was, for the manifest; empty
    where it has no steps. A training that is done does not depend on it: where it could not be made, that is only
    `missing`, a sentence that says why.
    """
    steps = null_steps(outcome.steps, parts.config.control_share)
    if not steps:
        return {}
    made: JsonObject = {"labels": "uniform", "steps": steps}
    try:
        _train(parts, outcome, folder, store, ranks, steps)
    except (NonFiniteError, UserError) as error:
        made = {"missing": f"This run has no random-label control: {error}."}
        if store is not None:
            store.drop_after(-1, arm=NULL_ARM)
    if store is not None:
        store.set_fact("null", made)
    return made


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
