"""From a configuration to the parts of a training: model, catalogue, plan of changes, optimizer.

The one place where the rooms meet. Nothing is decided here (see `request`); when and how the parts are trained is for
others to say (see `training`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from qkv.changes import OPS, Plan, parse_changes, plan_changes
from qkv.errors import ChangeError, RunFolderError
from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.models.zoo import Model
from qkv.recipe.config import RunConfig
from qkv.recipe.load_model import by_every_name, load_weights, run_matrix, shared_names
from qkv.tasks import Data, Task, find_task
from qkv.training import loop
from qkv.training.distributed.ranks import check_shares
from qkv.training.distributed.shards import check_shard, hollow_like
from qkv.training.optimizers import Optimizer, make_optimizer
from qkv.training.precision import check_compiler, check_native
from qkv.training.record import Outcome
from qkv.training.session import SetupChanges, TrainingSetup


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a training loop is handed."""

    config: RunConfig
    corpus: Data
    task: Task
    model: Model
    catalogue: Catalogue
    plan: Plan
    optimizer: Optimizer
    start: dict[str, Tensor]
    """Address -> weights at step 0, after the changes that hold from the start; what drift is measured from."""
    new: tuple[str, ...] = ()
    """With `from_run`: what that run did not have, and starts by the seed."""
    parted: tuple[tuple[str, str], ...] = ()
    """With `from_run`: pairs of addresses that were one matrix there, and start here as two equal ones."""

    @property
    def goes_on(self) -> bool:
        """Whether every weight is another run's, so that what it had learned can be scored before the first update."""
        return bool(self.config.from_run) and not self.new

    def train(self, **changes: Unpack[SetupChanges]) -> Outcome:
        """Train them by `qkv.training.loop.run`; `changes` replace what the run's configuration and plan would give."""
        usual: SetupChanges = {"config": self.config.training, "constraint": self.plan if self.plan.acts else None}
        setup = TrainingSetup(
            model=self.model,
            catalogue=self.catalogue,
            task=self.task,
            corpus=self.corpus,
            optimizer=self.optimizer,
            machine=self.config.machine,
            seed=self.config.seed,
            **(usual | changes),
        )
        return loop.run(setup)


def assemble(
    config: RunConfig, corpus: Data, *, resumed_at: int = 0, keeps_start: bool = True, shares: bool = False
) -> Parts:
    """Build everything of a run, its weights those of step 0. The same arguments give the same bits.

    A run that goes on from step `resumed_at` has its weights from a checkpoint: those of `from_run`, and what changes
    wrote before that step, are not read again, and what is `new` or `parted` is not known.
    `keeps_start` False leaves `start` empty, where nobody measures from it. Where a process `shares` out weights and
    state with others, the optimizer has no room for state of its own.

    Raises AddressError or ChangeError for a change that does not fit the model, RunFolderError for a run that cannot be
    started from.
    """
    model = build(config.model, config.seed)
    catalogue = Catalogue(model, None if corpus.tokenizer is None else corpus.tokenizer.readable)
    new, shared = _take_over(config, catalogue) if config.from_run and not resumed_at else ((), {})
    n_steps = config.training.schedule.steps or None
    plan = plan_changes(config.changes, catalogue, config.seed, run_matrix, n_steps=n_steps, resumed_at=resumed_at)
    catalogue = plan.at_start()
    model.to(config.machine.device)
    names = {entry.address for entry in catalogue.named()}
    zeros = hollow_like if shares else torch.zeros_like
    return Parts(
        config=config,
        corpus=corpus,
        task=find_task(config.task).with_settings(config.data).of_classes(config.model.classes),
        model=model,
        catalogue=catalogue,
        plan=plan,
        optimizer=make_optimizer(
            catalogue,
            config.training.optimizer,
            precision=config.machine.precision,
            low_rank=plan.low_rank(),
            zeros=zeros,
        ),
        start={address: values.clone() for address, values in catalogue.state().items()} if keeps_start else {},
        new=new,
        parted=tuple(
            (second, first)
            for second, first in shared.items()
            if {second, first} <= names and catalogue.entry(second).parameter is not catalogue.entry(first).parameter
        ),
    )


def check_machine(config: RunConfig) -> None:
    """Make sure that a training can run as its machine says: its processes, its compiler. Raises ConfigError."""
    check_shares(config.training, config.machine.ranks, find_task(config.task).examples)
    check_shard(config.machine)
    check_compiler(config.machine)
    check_native(config.machine)


def check_reached(parts: Parts) -> None:
    """Make sure that a gradient can come through the output and gets to something that trains.

    Raises ChangeError where an output matrix starts at zero and stays there, and where activations that let no gradient
    through cut off all that trains.
    """
    _check_output(parts)
    steps = parts.plan.stops_at()
    if not steps:
        return
    config, sizes = parts.config, parts.config.model.sizes
    first = np.arange(max(1, config.training.batch_size // config.training.accumulate), dtype=np.int64)
    batch = parts.task.train_batch(parts.corpus, sizes, config.seed, 0, first).to(config.machine.device)
    weights = [entry.parameter for entry in parts.catalogue]
    zeros = [weight for weight in weights if not weight.count_nonzero()]
    anything = torch.Generator().manual_seed(0)
    try:
        for zero in zeros:  # it will be something by the time that counts
            zero.data.copy_(0.02 * torch.randn(zero.shape, generator=anything))
        for step in steps:
            parts.plan.hold(step)
            loss, _ = parts.task.loss(parts.model, batch)
            trained = [weight for weight in weights if weight.requires_grad]
            gradients = torch.autograd.grad(loss, trained, allow_unused=True)
            if not any(gradient is not None and gradient.count_nonzero() for gradient in gradients):
                made = ", ".join(config.changes)
                raise ChangeError(
                    f"{made} lets no gradient reach anything that trains from step {step}; stop it further from the"
                    " output, or let something train that lies after it"
                )
    finally:
        for zero in zeros:
            zero.data.zero_()
        parts.plan.at_end()


def _check_output(parts: Parts) -> None:
    changes = [change for text in parts.config.changes for change in parse_changes(text)]
    if any(change.start and OPS[change.op].writes for change in changes):
        return
    steps = {0, *(change.stop for change in changes if change.stop is not None)}
    frozen = set.intersection(*(parts.plan.frozen(step) for step in steps))
    for entry in parts.catalogue:
        is_output = entry.site == "head" or "W_U" in parts.catalogue.names(entry.address)
        if is_output and entry.parameter.ndim == 2 and entry.address in frozen:
            if not entry.parameter.count_nonzero():
                name, only = entry.address, [change for change in changes if change.op == "only"]
                trained = [part.entry.address for change in only for part in parts.catalogue.select(change.selector)]
                is_only = bool(only) and name not in trained
                how = f"add {name} to --only" if is_only else f"leave {name} out of what is frozen"
                raise ChangeError(
                    f"{name} starts at zero and is frozen there, so no gradient reaches any matrix; {how}, or hold it"
                    f" at another start with --change '{name}=random(0.02)'{'' if is_only else ' instead'}"
                )


def _take_over(config: RunConfig, catalogue: Catalogue) -> tuple[tuple[str, ...], dict[str, str]]:
    """Load the weights of `from_run`; of a run for another end, its body only. Returns the addresses that start anew,
    and what was one matrix there (second name -> first), whose values both names get.

    Raises RunFolderError where the run is gone, or the body is not whole there.
    """
    folder = Path(config.from_run)
    if not (folder / "config.toml").is_file():
        raise RunFolderError(f"it started from {folder}, which is not there any more; put that run back")
    parent, own = RunConfig.read(folder / "config.toml"), catalogue.state()
    weights = by_every_name(parent, load_weights(folder / "best.safetensors"))
    if (parent.model.kind, parent.model.classes) == (config.model.kind, config.model.classes):
        catalogue.load_state(weights)
        return (), shared_names(parent)
    heads = _heads(catalogue)
    missing = [address for address in own if address not in heads and address not in weights]
    if missing:
        raise RunFolderError(f"{folder} has no weights of its own for {missing[0]}; it cannot be started from")
    return take_body(catalogue, weights), shared_names(parent)


def take_body(catalogue: Catalogue, weights: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Load all but the head from weights by address, which may have a head of another task. Returns what stays."""
    own, heads = catalogue.state(), _heads(catalogue)
    catalogue.load_state({address: own[address] if address in heads else weights[address] for address in own})
    return heads


def _heads(catalogue: Catalogue) -> tuple[str, ...]:
    return tuple(entry.address for entry in catalogue if entry.site == "head")
