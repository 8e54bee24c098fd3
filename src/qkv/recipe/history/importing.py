"""Step folders into one run: at each step the measures that a training takes, and a snapshot of the weights.

One step is in memory at a time, beside the first, which drift is measured from. A step counts once its measures are in
the telemetry, in one transaction, after its snapshot; a process that was killed leaves the folder beside its place, and
the same command goes on with the first step that is missing. It takes its name when it is whole.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from qkv.config import dump_toml, to_dict
from qkv.data.config import whole_source
from qkv.errors import ConfigError, QkvError, RunFolderError, StorageError, UserError
from qkv.folder.run_folder import RunFolder, link, sync_folder, write_atomically
from qkv.folder.staging import take_name
from qkv.inspection.answers.succession import in_short, oddities
from qkv.instruments.measurements import Measurements
from qkv.instruments.probe import Probe, unmeasured
from qkv.instruments.registry import AT_REST
from qkv.instruments.sketch import SKETCH, sketch
from qkv.instruments.tokens import specials
from qkv.interop import Imported, read_checkpoint
from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.recipe.config import RunConfig
from qkv.recipe.history.steps import Series
from qkv.recipe.imported import LARGEST_MEASURED, imported_facts, run_config, summary_of_import
from qkv.recipe.manifest import machine_facts
from qkv.recipe.reload_data import data_of
from qkv.tasks import Data, find_task
from qkv.telemetry import Store, Telemetry
from qkv.training.checkpoint import keep_snapshot
from qkv.training.memory import hand_back_freed_memory
from qkv.training.tensorfile import streamed

KEEPS = ("weights", "measures")
"""What is kept of each step: its weights too, or its measures alone."""


def import_history(
    source: str, out: Path, *, keep: str, text: str, cache: Path | None, say: Callable[[str], None]
) -> Path:
    """Make the run of a training that was saved elsewhere, and give its path. `text` is a file, or empty.

    Raises SourceError for steps that cannot be read or are not of one model, ConfigError for an unknown `keep` or a
    text that the model cannot be given, RunFolderError where the place is taken, StorageError where it cannot be
    written to; what was finished before the last is kept for the same command.
    """
    if keep not in KEEPS:
        raise ConfigError(f"--keep is {keep!r}; expected {' or '.join(KEEPS)}")
    final = RunFolder(out)
    final.check_vacant()
    hand_back_freed_memory()
    series = Series(source)
    first = read_checkpoint(series.folder(series.steps[0]))
    if text and first.tokenizer is None:
        raise ConfigError(f"{source} has no tokenizer, so its model cannot read {text}; leave out --text")
    for note in (*first.notes, *filter(None, [text and unmeasured(first.config.layout)])):
        say(note)
    place = Path(os.path.realpath(out)).with_name(f".history-{out.name}")
    config = run_config(
        first, source if series.is_remote else str(Path(source).absolute()), history=keep, text=whole_source(text)
    )
    above = [parent for parent in place.parents if not parent.exists()]
    try:
        with _begun(place, config, first) as folder:
            taking = _Taking(folder, out, series, config, first, cache)
            done = _done(folder, series.steps)
            if done:
                say(f"steps up to {done[-1]} were imported before; it goes on from there")
            taking.all(len(done))
            final.make_room()
        take_name(place, out)
        sync_folder(out.parent)
        with Telemetry(final.telemetry) as telemetry:
            for sentence in in_short(oddities(telemetry)[1]):
                say(sentence)
    except QkvError as error:
        if not isinstance(error, StorageError) and not series.is_remote and not RunFolder(place).in_use():
            shutil.rmtree(place, ignore_errors=True)
            with contextlib.suppress(OSError):
                for parent in above:  # nearest first; the first that is not empty ends it
                    parent.rmdir()
        raise
    return out


@contextlib.contextmanager
def _begun(place: Path, config: RunConfig, first: Imported) -> Iterator[RunFolder]:
    """The unfinished folder, held: that of an earlier process where it was making the same, else a new one."""
    settings, folder = dump_toml(to_dict(config)), RunFolder(place)
    if not folder.config.is_file() or folder.config.read_text(encoding="utf-8") != settings:
        if folder.in_use():
            raise RunFolderError(f"another qkv is importing to {place}; wait for it, or choose another --out")
        shutil.rmtree(place, ignore_errors=True)
        with RunFolder.create(place) as made:
            made.write("config.toml", settings)
            for name, content in (first.tokenizer.files() if first.tokenizer is not None else {}).items():
                made.write(name, content)
    with RunFolder.open(place, writing=True) as opened:
        yield opened


def _done(folder: RunFolder, steps: list[int]) -> list[int]:
    """The steps that an earlier process finished, if they are the first of these; else none. Other snapshots go."""
    done: list[int] = []
    with contextlib.suppress(UserError), Telemetry(folder.telemetry) as telemetry:
        found = telemetry.recorded_steps("norm").tolist()
        done = found if found == steps[: len(found)] else []
    for step, path in folder.checkpoint_folders().items():
        if step not in done:
            shutil.rmtree(path)
    return done


class _Taking:
    """Takes the steps of a series into a folder."""

    def __init__(
        self, folder: RunFolder, out: Path, series: Series, config: RunConfig, first: Imported, cache: Path | None
    ) -> None:
        self._folder, self._out, self._series, self._config = folder, out, series, config
        self._about = imported_facts(first)
        self._task = find_task(config.task)
        self._corpus: Data | None = None
        if config.data.source:
            self._corpus = data_of(folder, config, config.data.source, cache)
        self._model = build(config.model, config.seed).eval()
        self._catalogue = Catalogue(self._model)
        self._start = first.state
        self._put(self._start)
        self.n_parameters = sum(values.numel() for values in first.state.values())

    def all(self, n_done: int) -> None:
        """Every step but the first `n_done`; then seal the folder."""
        folder, steps = self._folder, self._series.steps
        with Store(folder.telemetry) as store:
            store.drop_after(steps[n_done - 1] if n_done else -1)
            looks = Measurements(store, self._catalogue, self._start, probe=self._probe())
            self._start.clear()  # `looks` has a copy of its own
            wide = self._probe(is_wide=True)
            for step in steps[n_done:]:
                if step != steps[0]:
                    looks.passes.forget()
                    self._read(step)
                self._step(store, looks, step)
                if wide is not None and step in (steps[0], steps[-1]):
                    looks.windows(step, wide)
                store.sync()
            if self._corpus is not None:
                store.set_fact("special_tokens", specials(self._corpus.tokenizer))
        last = folder.weights().get(steps[-1])
        if last is not None:
            link(last, folder.model)
        else:
            if n_done == len(steps):
                self._read(steps[-1])
            write_atomically(folder.model, streamed(self._catalogue.state()))
        link(folder.model, folder.best)
        self._seal()

    def _put(self, state: dict[str, torch.Tensor]) -> None:
        """Let the model have these weights, without a copy of them."""
        for entry in self._catalogue:
            entry.parameter.data = state[entry.address]

    def _read(self, step: int) -> None:
        """Let the model have the weights of a step; those that it had are given up before."""
        for entry in self._catalogue:
            entry.parameter.data = torch.empty(0)
        self._put(read_checkpoint(self._series.folder(step)).state)

    def _probe(self, *, is_wide: bool = False) -> Probe | None:
        return Probe.of(self._task, self._corpus, self._model, self._config.seed, is_wide=is_wide)

    def _step(self, store: Store, looks: Measurements, step: int) -> None:
        """Everything that is measured of the weights of a step, and the weights themselves."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"), torch.no_grad():
            looks.matrices(step, AT_REST, looks.passes.at_rest())
            looks.circuits(step, updated=False)
            looks.attention(step)
            looks.head_spectra(step)
            if self.n_parameters <= LARGEST_MEASURED:
                looks.matrix_spectra(step)
            looks.rows(step)
        for entry in self._catalogue:
            store.add_vector(step, SKETCH, entry.address, sketch(entry.address, entry.parameter))
        if self._config.history == "weights":
            keep_snapshot(self._folder, step, self._catalogue.state())

    def _seal(self) -> None:
        steps = self._series.steps
        summary = summary_of_import(self._out, steps[-1], self.n_parameters)
        about = self._about | {"folder": self._config.imported, "steps": steps}
        about["places"] = [self._series.place(step) for step in steps]
        self._folder.seal(machine_facts(self._config) | {"parent": "", "imported": about, "summary": summary})
