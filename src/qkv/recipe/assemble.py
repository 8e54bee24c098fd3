"""From a configuration to the parts of a training: model, catalogue, plan of changes, optimizer.

The one place where the rooms meet. Nothing is decided here (see `request`) and nothing is trained (see `training`).
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from qkv.changes import Plan, RunMatrix, plan_changes
from qkv.config import from_dict, load_toml
from qkv.errors import AddressError, ChangeError, RunFolderError, unknown
from qkv.folder import RunFolder
from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.recipe.request import RunConfig
from qkv.tasks import Data, Task, find_task
from qkv.training.optimizers import Optimizer, make_optimizer
from qkv.training.shards import hollow_like
from qkv.training.tensorfile import load_tensors

__all__ = ["Parts", "assemble", "load_weights", "run_matrix"]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a training loop is handed."""

    config: RunConfig
    corpus: Data
    task: Task
    model: nn.Module
    catalogue: Catalogue
    plan: Plan
    optimizer: Optimizer
    start: dict[str, Tensor]
    """Address -> weights at step 0, after the changes that hold from the start; what drift is measured from."""
    new: tuple[str, ...] = ()
    """With `from_run`: what that run did not have, and starts by the seed."""


def assemble(
    config: RunConfig, corpus: Data, *, resumed_at: int = 0, keeps_start: bool = True, shares: bool = False
) -> Parts:
    """Build everything of a run, its weights those of step 0. The same arguments give the same bits.

    `keeps_start` False leaves `start` empty, where nobody measures from it. Where a process `shares` out weights and
    state with others, the optimizer has no room for state of its own.

    Raises AddressError or ChangeError for a change that does not fit the model, RunFolderError for a run that cannot be
    started from.
    """
    model = build(config.model, config.seed)
    catalogue = Catalogue(model, None if corpus.tokenizer is None else corpus.tokenizer.readable)
    new = _take_over(config, catalogue) if config.from_run else ()
    n_steps = config.training.schedule.steps or None
    plan = plan_changes(config.changes, catalogue, config.seed, run_matrix, n_steps=n_steps, resumed_at=resumed_at)
    catalogue = plan.at_start()
    model.to(config.machine.device)
    zeros = hollow_like if shares else torch.zeros_like
    return Parts(
        config=config,
        corpus=corpus,
        task=find_task(config.task),
        model=model,
        catalogue=catalogue,
        plan=plan,
        optimizer=make_optimizer(catalogue, config.training.optimizer, precision=config.machine.precision, zeros=zeros),
        start={address: values.clone() for address, values in catalogue.state().items()} if keeps_start else {},
        new=new,
    )


def _take_over(config: RunConfig, catalogue: Catalogue) -> tuple[str, ...]:
    """Load the weights of `from_run`; of a run for another end, its body only. Returns the addresses that start anew.

    Raises RunFolderError where the body is not whole there.
    """
    folder = Path(config.from_run)
    weights, own = load_weights(folder / "best.safetensors"), catalogue.state()
    parent = RunConfig.read(folder / "config.toml").model
    if (parent.kind, parent.classes) == (config.model.kind, config.model.classes):
        catalogue.load_state(weights)
        return ()
    new = tuple(entry.address for entry in catalogue if entry.site == "head")
    missing = [address for address in own if address not in new and address not in weights]
    if missing:
        raise RunFolderError(f"{folder} has no weights of its own for {missing[0]}; it cannot be started from")
    catalogue.load_state({address: own[address] if address in new else weights[address] for address in own})
    return new


def load_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by address.

    Raises RunFolderError where it is missing or damaged.
    """
    if not path.is_file():
        raise RunFolderError(f"{path} is not there; expected the weights of a run")
    return load_tensors(path)


def run_matrix(wanted: RunMatrix) -> Tensor:
    """A matrix, head or row of another run, for `load(RUN:ADDRESS@STEP)`.

    Raises ChangeError where there is no such run, step or address.
    """
    try:
        folder = RunFolder.open(wanted.run)
    except RunFolderError as error:
        raise ChangeError(f"load({wanted.run}): {error}") from None
    path = folder.model
    if wanted.step is not None:
        snapshots = folder.weights()
        if wanted.step not in snapshots:
            steps = ", ".join(map(str, snapshots))
            raise ChangeError(f"{wanted.run} has no snapshot of step {wanted.step}; it has {steps}")
        path = snapshots[wanted.step]
    with safe_open(path, framework="pt") as file:
        keys = list(file.keys())
        if wanted.address in keys:
            return file.get_tensor(wanted.address)
    model = build(_model_config(folder.path), 0)
    catalogue = Catalogue(model)
    catalogue.load_state(load_weights(path))
    try:
        with torch.no_grad():
            return catalogue.part(wanted.address).view().clone()
    except AddressError:
        raise ChangeError(f"{wanted.run}: {unknown('address', wanted.address, keys)}") from None


def _model_config(folder: Path):  # noqa: ANN202
    from qkv.models import ModelConfig

    return from_dict(ModelConfig, load_toml(folder / "config.toml")["model"], "model.")
