"""Many runs side by side: what each was, in which settings they differ, and how good it is.

Made for thousands of runs: of a finished one only its settings and manifest are read, and no hash is taken. Whatever
is shown of a single run checks its files; a list does not.
"""

import contextlib
import datetime
import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

from qkv.errors import ConfigError, QkvError, unknown
from qkv.folder.run_folder import RunFolder, runs_in, sha256_of
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.telemetry.notes import Note, read_notes
from qkv.telemetry.reader import Telemetry
from qkv.words import listed as words_listed

State = Literal["finished", "training", "unfinished", "damaged"]
_OF_THE_RUN = ("seed", "data.source", "training.schedule.steps")
"""Settings that come first in a list of those that differ."""
TARGETS = {"causal": "token", "masked": "token", "translate": "token", "classify": "text", "regress": "text"}
TARGETS |= {"multilabel": "label", "tag": "word", "answer": "question", "image": "image"}
"""Task -> what its loss is per (`Task.target`, which only torch can read)."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One run of a list."""

    path: Path
    task: str
    state: State
    settings: dict[str, str]
    """Path -> value as config.toml has it."""
    loss: float | None = None
    """Lowest validation loss, nats per token (or text, ...), as `Run.loss` is."""
    ngram: float | None = None
    """That of the best n-gram on the same tokens; None where there is none."""
    steps: int = 0
    when: str = ""
    """When the configuration was written: local time, ISO 8601 to the minute."""
    tokenizer: str = ""
    """What tells its vocabulary from others; "" where that is not known."""
    data: str = ""
    """What tells its texts from others, likewise."""
    note: str = ""
    starred: bool = False

    def to_json(self) -> JsonObject:
        """Plain values for --json."""
        return {**vars(self), "path": str(self.path), "name": self.path.name}


Known: TypeAlias = dict[Path, tuple[int, int, Listed]]
"""Finished runs read before: when configuration and manifest were written, and what was found."""


def listed(folder: Path, known: Known | None = None) -> list[Listed]:
    """Every run that lies in a folder, the newest first; a finished one that is `known` is not read again.

    Raises ConfigError where that is no folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; expected one that holds runs (qkv train makes them in runs)")
    notes = read_notes(folder)
    found = (run_at(path) if known is None else _again(path, known) for path in runs_in(folder))
    return [replace(run, **vars(notes.get(run.path.name, Note()))) if notes else run for run in found]


def _again(path: Path, known: Known) -> Listed:
    """A run, from `known` where its files are still those."""
    folder = RunFolder(path)
    try:
        written = folder.config.stat().st_mtime_ns, folder.manifest.stat().st_mtime_ns
    except OSError:  # not finished
        return run_at(path)
    if known.get(path, ())[:2] != written:
        known[path] = (*written, run_at(path))
    return known[path][2]


def run_at(path: Path) -> Listed:
    """One run, whatever of it is there."""
    folder, found = RunFolder(path), Listed(path=path, task="", state="damaged", settings={})
    try:
        with open(folder.config, encoding="utf-8") as file:
            settings = _settings(file.read())
            written = datetime.datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime)
        when, task = written.isoformat(" ", "minutes"), settings.get("task", "")
        found = Listed(path=path, task=task, state="damaged", settings=settings, when=when)
        try:
            manifest = json.loads(folder.manifest.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return _begun(folder, found)
        summary = manifest.get("summary") or {}
        ngram = (summary.get("baselines_nats") or {}).get("ngram")
        loss = _number(summary.get("stored_loss", summary.get("val_loss")))
        more, steps = _identity(manifest), int(summary.get("steps") or 0)
        return replace(found, state="finished", loss=loss, ngram=_number(ngram), steps=steps, **more)
    except (OSError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError, QkvError):
        return found


def further(run: Listed) -> Listed:
    """A run that was not finished, as it is now: its settings are not read again."""
    folder = RunFolder(run.path)
    with contextlib.suppress(OSError, QkvError):  # as it was
        return run_at(run.path) if folder.is_finished else _begun(folder, run)
    return run


def _identity(manifest: JsonMapping) -> dict[str, str]:
    """Tokenizer and data by their hashes."""
    tokenizer, data = (manifest.get("files") or {}).get("tokenizer.json"), (manifest.get("data") or {}).get("sha256")
    return {"tokenizer": str(tokenizer or "")[:12], "data": str(data or "")[:12]}


def _begun(folder: RunFolder, found: Listed) -> Listed:
    """Of a run that is not finished: as far as its telemetry goes."""
    state: State = "training" if folder.in_use() else "unfinished"
    if not found.tokenizer and folder.tokenizer.is_file():
        found = replace(found, tokenizer=sha256_of(folder.tokenizer)[:12])
    if not folder.telemetry.is_file():
        return replace(found, state=state)
    with Telemetry(folder.telemetry) as telemetry:
        best, steps = telemetry.best_evaluation(), telemetry.last_step()
    return replace(found, state=state, loss=None if best is None else _number(best.loss), steps=steps)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


_LINE = re.compile(r"^(?:\[(?P<table>.+)\]|(?P<name>\S+) = (?P<value>\[\n[^]]*\]|.*))$", re.MULTILINE)


def _settings(text: str) -> dict[str, str]:
    """Path -> value of a config.toml that qkv wrote. (A TOML parser would take ten times as long.)"""
    found: dict[str, str] = {}
    for part in re.split(r"\n(?=\[)", text):
        found.update(_table(part))
    return found


@lru_cache(maxsize=4096)
def _table(text: str) -> dict[str, str]:
    """The same of one table; most tables of many runs are equal."""
    found, table = {}, ""
    for line in _LINE.finditer(text):
        name, value = line["name"], line["value"]
        if name is None:
            table = f"{line['table']}."
        else:
            found[table + name] = " ".join(value.split()) if "\n" in value else value.strip('"')
    return found


def differing(runs: Sequence[Listed]) -> list[str]:
    """The settings that are not the same in all of these runs; those that most often tell runs apart come first."""
    first = runs[0].settings if runs else {}
    other = dict.fromkeys(path for run in runs if run.settings.keys() != first.keys() for path in run.settings)
    found = {path for run in runs for path, _ in run.settings.items() ^ first.items()}
    return [path for path in dict.fromkeys((*_OF_THE_RUN, *first, *other)) if path in found]


def incomparable(runs: Sequence[Listed]) -> str:
    """Why the losses of these runs cannot be compared, in a sentence; "" where nothing known speaks against it."""
    names = {"task": "tasks", "tokenizer": "tokenizers", "data": "texts"}
    if all(TARGETS.get(run.task, "token") != "token" for run in runs):
        del names["tokenizer"]  # the loss of a text or a word is comparable, however it is cut
    found = [words for key, words in names.items() if len({vars(run)[key] for run in runs} - {""}) > 1]
    if not found:
        return ""
    instead = " Bits per byte are." if found == ["tokenizers"] else ""
    return f"These runs have different {words_listed(found)}, so their losses are not comparable.{instead}"


def where(runs: Iterable[Listed], asked: Iterable[str]) -> list[Listed]:
    """Those of the runs whose settings have these values, as `seed=3` or `d_model=64`: a path may be its end alone.

    Raises ConfigError for a setting that no run has.
    """
    runs = list(runs)
    for text in asked:
        name, equals, value = text.partition("=")
        known = list(dict.fromkeys(path for run in runs for path in run.settings))
        paths = [path for path in known if path == name or path.endswith(f".{name}")]
        if not equals:
            raise ConfigError(f"{text!r} names no value; expected SETTING=VALUE, such as seed=3")
        if not paths and runs:
            raise ConfigError(unknown("setting", name, known))
        runs = [run for run in runs if any(_is(run.settings[path], value) for path in paths if path in run.settings)]
    return runs


def _is(written: str, value: str) -> bool:
    """Whether a setting is what was typed: the same text, the same number, or `True` for `true`."""
    try:
        return written == value or Decimal(written) == Decimal(value)
    except ArithmeticError:
        return written in ("true", "false") and written == value.lower()
