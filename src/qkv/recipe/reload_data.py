"""A run's data, read again: what it was trained on, to the byte and to the token, or other data under its tokenizer."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from qkv.data.config import DataConfig, whole_source
from qkv.data.sources.source import columns_in
from qkv.errors import ConfigError, RunFolderError, typed
from qkv.extensions import check_same
from qkv.folder.run_folder import RunFolder, read_json
from qkv.folder.verified import check_file
from qkv.recipe.config import RunConfig
from qkv.recipe.imported import check_vocabulary
from qkv.recipe.manifest import code_of
from qkv.tasks import Data, find_task


def data_of(
    folder: RunFolder, config: RunConfig, source: str, cache: Path | None, given: Mapping[str, str] | None = None
) -> Data:
    """The data of a run, or those of `source`, all for validation, under its tokenizer and classes.

    `given` are the columns (text_column, label_column) of `source`, where they have other names than in the run's data.

    Raises ConfigError where they are given without `source`, RunFolderError where the run's own data have changed
    since, SourceError for what cannot be read.
    """
    task = find_task(config.task)
    if not source:
        if given:
            option = next(iter(given)).replace("_", "-")
            raise ConfigError(f"--{option} is for another source; name it: qkv eval {typed(folder.path)} SOURCE")
        own = task.load(kept_data(folder, config), cache=cache)
        same_data(folder, dataclasses.replace(config, changes=()), own)  # its weights are made: none is loaded
        return own
    whole = whole_source(source)
    columns = {name: getattr(config.data, name) for name in ("text_column", "label_column")}
    asked = tuple(name for name in columns.values() if name)
    is_named = not asked or whole.startswith("hf:")  # which refuses names that it has not; in files others are found
    there = asked if is_named else columns_in(Path(whole), *columns.values())
    other = dataclasses.replace(
        config.data,
        source=whole,
        val=whole,
        tokenizer=str(folder.tokenizer) if task.tokenizer else "",
        vocab=0,
        classes=config.model.classes,
        group_column="",
        pixels=(patches.channels, patches.height, patches.width) if (patches := config.model.patches) else (),
        **{name: column if _all_in(column, there) else "" for name, column in columns.items()} | dict(given or {}),
    )
    return task.load(other, cache=cache)


def _all_in(column: str, there: tuple[str, ...]) -> bool:
    """Whether a column is there, or each of several with commas between."""
    return column in there or ("," in column and all(one.strip() in there for one in column.split(",")))


def kept_data(folder: RunFolder, config: RunConfig) -> DataConfig:
    """How a run's data are read again: cut by the tokenizer that it keeps, whatever has become of the one it was given
    or of the text that its own was fitted to.
    """
    if not folder.tokenizer.is_file():
        return config.data
    return dataclasses.replace(config.data, tokenizer=str(folder.tokenizer.absolute()), vocab=0)


def same_data(folder: RunFolder, config: RunConfig, corpus: Data) -> None:
    """Make sure that the data is what the run was trained on, and cut into tokens that its model has.

    Raises RunFolderError with both hashes where it is not, DamagedFileError where source.json was altered.
    """
    check_vocabulary(folder, config, corpus.tokenizer)
    path = folder.path / "source.json"
    check_file(path)
    try:
        if why := folder.why_foreign(path):
            raise RunFolderError(f"{path} {why}; put the file itself there")
        facts = read_json(path)
        made, code = str(facts["sha256"]), dict(facts.get("code", {}))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise RunFolderError(
            f"{folder.path} has no readable source.json; it cannot be told what it was trained on"
        ) from None
    check_same(str(folder.path), code, code_of(config))
    if made != corpus.sha256:
        raise RunFolderError(
            f"the data of {folder.path} has changed, or is split otherwise by this version of qkv: it was trained on"
            f" sha256 {made[:16]}..., now it is {corpus.sha256[:16]}...; bring the old data back, or train anew with"
            " another --out"
        )
