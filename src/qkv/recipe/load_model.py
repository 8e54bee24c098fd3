"""The weights that a run keeps, read again: one matrix of them by its address, or the model that has them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.changes import RunMatrix, parse_changes, plan_changes
from qkv.errors import AddressError, ChangeError, RunFolderError
from qkv.folder.run_folder import RunFolder
from qkv.models import build
from qkv.models.counting import n_parameters
from qkv.models.matrices import Catalogue
from qkv.recipe.config import RunConfig
from qkv.recipe.imported import tokenizer_of
from qkv.training import tensorfile

_AFTER_ALL = 1 << 60
"""A step after everything that a change writes: it stands in the weights that are read."""


def load_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a run by address, from one of its files.

    Raises RunFolderError where it is missing, DamagedFileError where it fails the checks of `qkv.folder.verified`.
    """
    if not path.is_file():
        raise RunFolderError(f"{path} is not there; expected the weights of a run")
    return tensorfile.load_weights(path)


def opened_model(
    config: RunConfig, path: Path, vocabulary: Mapping[str, int] | None, changes: Sequence[str] = ()
) -> tuple[Any, tuple[str, ...]]:
    """A run's model with the weights of one of its files, in evaluation mode, `changes` made in memory; and a sentence
    for each change: which matrices, and who shares them. Of a model of another program, its matrices alone.

    `vocabulary` is token -> row, for rows that `changes` names. Raises RunFolderError for a file that cannot be read,
    ChangeError or AddressError for a change that does not fit.
    """
    weights = load_weights(path)
    if config.watched == "names":
        from qkv.interop.mirror import shadow_of

        catalogue = Catalogue(shadow_of(weights, config.model.sizes.n_heads, config.model.sizes.n_kv_heads), vocabulary)
    else:
        _check_size(config, path, weights)
        made = Catalogue(build(config.model, config.seed), vocabulary)
        catalogue = plan_changes(config.changes, made, config.seed, run_matrix, resumed_at=_AFTER_ALL).at_start()
        catalogue.load_state(weights)
    plan = plan_changes(changes, catalogue, config.seed, run_matrix, looking=True)
    model: Any = plan.at_start().model
    return model.eval(), tuple(plan.sentences())


def _check_size(config: RunConfig, path: Path, weights: Mapping[str, Tensor]) -> None:
    """Make sure that a model is not built that is far larger than the file of its weights, where matrices may be shared
    by all layers. Raises RunFolderError.
    """
    stored, most = sum(values.numel() for values in weights.values()), config.model.sizes.n_layers + 2
    if (n := n_parameters(config.model)) > most * stored:
        raise RunFolderError(f"{path} holds {stored:,} numbers, and config.toml describes a model of {n:,}")


def run_matrix(wanted: RunMatrix) -> Tensor:
    """A matrix, head or row of another run, for `load(RUN:ADDRESS@STEP)`.

    Raises ChangeError where there is no such run, step or address.
    """
    try:
        folder = RunFolder.open(wanted.run)
    except RunFolderError as error:
        raise ChangeError(f"load({wanted.run}): {error}") from None
    snapshots = folder.weights()
    listed = ", ".join(map(str, snapshots)) or "none"
    if wanted.step is not None and wanted.step not in snapshots:
        raise ChangeError(f"{wanted.run} has no snapshot of step {wanted.step}; it has {listed}")
    path = folder.model if wanted.step is None else snapshots[wanted.step]
    if not path.is_file():
        raise ChangeError(
            f"{wanted.run} is not finished; name a step whose weights it has ({listed}), as"
            f" load({wanted.run}:{wanted.address}@STEP)"
        )
    config = RunConfig.read(folder.config)
    words = tokenizer_of(folder, config).readable if folder.tokenizer.is_file() else None
    is_table = wanted.vocabulary is not None and wanted.address.rpartition(".")[2] in ("W_E", "W_U")
    if is_table and words is not None and words != wanted.vocabulary:
        raise ChangeError(
            f"load({wanted.run}:{wanted.address}): its rows are of other tokens, for that run has another tokenizer;"
            f" give --tokenizer {folder.tokenizer}, or take single rows, as W_E[the]=load({wanted.run})"
        )
    with tensorfile.open_weights(path, "pt") as file:
        there = list(file.keys())
        name = wanted.address if wanted.address in there else shared_names(config).get(wanted.address, "")
        if name in there:
            return file.get_tensor(name)
    try:
        with torch.no_grad():
            return Catalogue(opened_model(config, path, words)[0], words).part(wanted.address).view().clone()
    except AddressError as error:
        raise ChangeError(f"{wanted.run}: {error}") from None


def by_every_name(config: RunConfig, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The stored weights of a run, those that its changes made one matrix under each of their names."""
    return weights | {second: weights[first] for second, first in shared_names(config).items() if first in weights}


def shared_names(config: RunConfig) -> dict[str, str]:
    """Second name -> first of what a run's `share` changes made one matrix, as its files name it."""
    shares = [change for text in config.changes for change in parse_changes(text) if change.op == "share"]
    if not shares:
        return {}
    catalogue = Catalogue(build(config.model, 0, materialise=False))
    before = catalogue.aliases
    after = plan_changes(shares, catalogue, 0).at_start().aliases
    return {second: first for second, first in after.items() if second not in before}
