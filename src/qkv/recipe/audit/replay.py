"""Makes updates of a run again, through the real training loop, and compares every bit.

A segment begins at step 0, or at a checkpoint that still holds its optimizer's state (the newest two do), and ends at a
checkpoint. On its way every kept snapshot, the losses, the gradients' norms and all that the recorder measures are
compared with what the run wrote. Where torch, the processor, the platform, threads or qkv are not those of the run,
exactness is not promised: the first update after each checkpoint is then compared within a tolerance, and the rest is
told as a distance.
"""

import dataclasses
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from qkv.errors import RunFolderError, UserError
from qkv.folder.run_folder import RunFolder
from qkv.instruments.recorder import Recorder
from qkv.recipe.audit.telemetry import grids
from qkv.recipe.audit.verdict import Check, Fault
from qkv.recipe.build import Parts, assemble
from qkv.recipe.config import RunConfig
from qkv.recipe.manifest import differences, machine_facts
from qkv.recipe.reload_data import kept_data, same_data
from qkv.recipe.teaching import taught
from qkv.tasks import find_task
from qkv.telemetry import Store, Telemetry
from qkv.training.checkpoint import Checkpoint, Standing
from qkv.training.config import TrainingConfig
from qkv.training.precision import check_device
from qkv.training.record import Observer, StepRecord
from qkv.training.tensorfile import load_tensors

_TELEMETRY = "telemetry.sqlite"
_FIRST_LOSS = {"fp32": 1e-3, "bf16": 2e-2}
"""By precision: how far, as a share, the first loss after a checkpoint may lie from the run's on another machine."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Updates that are made again."""

    start: Standing | None
    """The checkpoint it begins at; None is the start of the run."""
    stops: tuple[Standing, ...]
    """The checkpoints it passes and ends at, in order."""

    @property
    def first(self) -> int:
        """The step that it begins at."""
        return 0 if self.start is None else self.start.step

    @property
    def last(self) -> int:
        """The step that it ends at."""
        return self.stops[-1].step


def segments(found: Sequence[Standing], updates: int | None, continues: int = 0) -> list[Segment]:
    """What is replayed: from step 0 to the last checkpoint within `updates`, and between the newest two checkpoints; of
    a run that `continues` another nothing up to that step.

    `updates` None replays the whole run in one segment; one that went back after a spike only up to where it went.
    """
    there = [one for one in found if one.has_weights and one.step > 0 and one.step >= continues]
    if not there:
        return []
    rollbacks = there[-1].state.rollbacks if there[-1].state else ()
    turned = min((one.to for one in rollbacks), default=there[-1].step)  # later batches are not those of their steps
    within = [one for one in there if one.step <= turned and (updates is None or one.step <= updates)]
    within = [] if continues else within
    chosen = [Segment(start=None, stops=tuple(within))] if within else []
    whole = [one for one in there if one.is_whole]
    if len(whole) > 1 and (not within or within[-1].step < whole[-1].step):
        chosen.append(Segment(start=whole[-2], stops=(whole[-1],)))
    return chosen


def check_replay(
    folder: RunFolder, config: RunConfig, found: Sequence[Standing], *, updates: int | None, cache: Path | None
) -> Check:
    """Replay what `segments` says. What keeps it from that (data that are gone or have changed) is told."""
    notes: list[str] = []
    faults: list[Fault] = []
    done: list[str] = []
    chosen = segments(found, updates, continues := config.training.schedule.continues)
    if continues:
        notes.append(f"updates up to step {continues:,} were made by another run, and are not made again here")
    if not chosen:
        left = ("no segment between two checkpoints is left",)
        return Check(name="replay", compared=0, what="updates", unchecked=left)
    elsewhere = _elsewhere(folder, config)
    if elsewhere:
        notes.append(f"replay cannot be exact here: {'; '.join(elsewhere)}")
    try:
        check_device(config.machine.device, "the run was made on one")
        corpus = find_task(config.task).load(kept_data(folder, config), cache=cache)
        same_data(folder, config, corpus)
        zero = next((one for one in found if one.step == 0 and one.has_weights), None)
        for segment in chosen:
            if not (config.training.schedule.steps or _horizon(segment)):
                notes.append("updates before the number of steps that fit the minutes was known are not made again")
                continue
            parts = taught(assemble(config, corpus, resumed_at=segment.first), folder)
            if zero is not None and segment.start is None:
                faults += _start(parts, zero, notes)
            elif zero is not None:  # what changes wrote at step 0 is not written again
                parts.start.update(load_tensors(zero.path / "model.safetensors"))
            faults += _replay(folder, parts, segment, notes, exact=not elsewhere)
            done.append(f"{segment.first} to {segment.last}")
    except (UserError, OSError) as error:
        notes.append(f"nothing (more) could be replayed: {error}")
    compared = sum(segment.last - segment.first for segment in chosen[: len(done)])
    how = "" if elsewhere else ", bit for bit"
    what = f"updates made again ({' and '.join(done)}){how}" if done else "updates made again"
    return Check(name="replay", compared=compared, what=what, faults=tuple(faults), unchecked=tuple(notes))


def _elsewhere(folder: RunFolder, config: RunConfig) -> list[str]:
    """What of this machine is not as it was in every session of the run."""
    now, sessions = machine_facts(config) | {"ranks": 1, "shard": False}, []  # replay is one process
    with suppress(RunFolderError), Telemetry(folder.telemetry, altered=True) as telemetry:
        sessions = list(telemetry.fact("machines") or [])
    if not sessions and folder.is_finished:
        with suppress(RunFolderError):
            sessions = [folder.read_manifest()]
    found = [phrase for facts in sessions for phrase in differences(facts, now)]
    return list(dict.fromkeys(found)) or ([] if sessions else ["it was not written down where the run was made"])


def _start(parts: Parts, zero: Standing, notes: list[str]) -> list[Fault]:
    """The weights of step 0 are those that seed, configuration and changes give; the kept ones are then loaded."""
    saved = load_tensors(zero.path / "model.safetensors")
    differing = _differing(saved, parts.catalogue.state())
    if not differing:
        return []
    words = f"it is not what the configuration starts from ({_how_far(differing)})"
    outside = parts.config.from_run or any("load(" in change for change in parts.config.changes)
    if outside and saved.keys() == parts.catalogue.state().keys():
        notes.append(f"the weights of step 0 come from another file, which has changed since: {words}")
        parts.catalogue.load_state(saved)
        parts.start.update(saved)
        return []
    return [Fault(file=f"checkpoints/{zero.path.name}", step=0, address=differing[0][0], sentence=words)]


def _replay(folder: RunFolder, parts: Parts, segment: Segment, notes: list[str], *, exact: bool) -> list[Fault]:
    """One segment, and everything that it gives compared with what the run wrote."""
    watched = _Compared(segment)
    with tempfile.TemporaryDirectory(prefix="qkv-verify-") as place:
        again = Path(place) / _TELEMETRY
        with Store(again) as store:
            start, last = segment.start, segment.stops[-1].state
            ends = last is not None and last.is_finished
            recorder = Recorder(store, parts.config.watch, watching=parts.config.watching, start=parts.start, ends=ends)
            resume = None
            if start is not None and start.state is not None:  # as if nothing had stopped the run there
                resume = Checkpoint(path=start.path, state=dataclasses.replace(start.state, stopped_because=""))
            try:
                parts.train(
                    config=_without_ends(parts.config.training, segment),
                    observers=[recorder, watched],
                    resume=resume,
                    stop_after=segment.last,
                )
            finally:
                parts.plan.at_end()
        with Telemetry(folder.telemetry, altered=True) as then, Telemetry(again) as now:
            if exact:
                return watched.faults + _rows(then, now, segment) + _cells(then, now, segment)
            notes += [f"replayed elsewhere, {words}" for words in watched.distances]
            return _first_loss(then, now, segment, _FIRST_LOSS[parts.config.machine.precision])


def _horizon(segment: Segment) -> int:
    """The number of steps that the run had set itself by then; 0 before it knew its pace."""
    state = segment.stops[-1].state
    assert state is not None
    return state.horizon


def _without_ends(training: TrainingConfig, segment: Segment) -> TrainingConfig:
    """The training without what could end it early, its horizon and its decay those of the run: no update depends on
    the rest."""
    state = segment.stops[-1].state
    schedule = dataclasses.replace(training.schedule, steps=training.schedule.steps or _horizon(segment))
    if state is not None and state.decays_from:  # half an update more: the share is rounded down
        share = min(1.0, (schedule.steps - state.decays_from + 0.5) / schedule.steps)
        schedule = dataclasses.replace(schedule, decay_share=share)
    return dataclasses.replace(training, until_loss=0.0, minutes=0.0, patience=0, on_spike="ignore", schedule=schedule)


def _differing(saved: Mapping[str, torch.Tensor], now: Mapping[str, torch.Tensor]) -> list[tuple[str, float]]:
    """(address, largest difference) of every matrix that is not the same in every bit; infinity for another shape."""
    found = []
    for address in {**saved, **now}:
        a, b = saved.get(address), now.get(address)
        if a is None or b is None or a.shape != b.shape:
            found.append((address, math.inf))
        elif not torch.equal(a, b.to(a.device)):
            found.append((address, float((a.double() - b.double()).abs().max())))
    return found


def _how_far(differing: Sequence[tuple[str, float]]) -> str:
    address, far = max(differing, key=lambda item: item[1])
    return f"{len(differing)} matrices differ, {address} most, by up to {far:.3g}"


@dataclass
class _Compared(Observer):
    """Compares the weights with every checkpoint that a segment passes."""

    segment: Segment
    faults: list[Fault] = field(default_factory=list)
    distances: list[str] = field(default_factory=list)

    def wants(self, step: int) -> bool:
        """The update that leads to a checkpoint."""
        return any(one.step == step for one in self.segment.stops)

    def after_update(self, record: StepRecord) -> None:
        """The weights, and where the checkpoint has it the optimizer's state."""
        one = next(one for one in self.segment.stops if one.step == record.step)
        pairs = [("model.safetensors", record.catalogue.state())]
        if one.is_whole:
            pairs.append(("optimizer.safetensors", record.optimizer.state()))
        for name, now in pairs:
            differing = _differing(load_tensors(one.path / name), now)
            if differing:
                words = f"replayed from step {self.segment.first}, {_how_far(differing)}"
                where = {"file": f"checkpoints/{one.path.name}/{name}", "step": one.step, "address": differing[0][0]}
                self.faults.append(Fault(**where, sentence=words))
                self.distances.append(f"at step {one.step} {_how_far(differing)}")


def _rows(then: Telemetry, now: Telemetry, segment: Segment) -> list[Fault]:
    """Losses, rates, gradient norms and validations of a segment."""
    was, is_now = then.steps(), now.steps()
    window = (was.step > segment.first) & (was.step <= segment.last)
    for name in ("step", "tokens", "loss", "lr", "grad_norm"):
        a, b = getattr(was, name)[window], getattr(is_now, name)
        if len(a) != len(b):
            words = f"{len(b)} updates were replayed, the telemetry has {len(a)}"
            return [Fault(file=_TELEMETRY, step=segment.first, sentence=words)]
        wrong = np.flatnonzero(~((a == b) | (np.isnan(a) & np.isnan(b))))
        if len(wrong):
            words = f"{name} is {float(a[wrong[0]])!r} in the telemetry and {float(b[wrong[0]])!r} replayed"
            return [Fault(file=_TELEMETRY, step=int(was.step[window][wrong[0]]), sentence=words)]
    losses = {e.step: e.loss for e in then.evaluations()}
    return [
        Fault(file=_TELEMETRY, step=e.step, sentence=f"validation loss {losses[e.step]!r}, replayed {e.loss!r}")
        for e in now.evaluations()
        if e.step in losses and losses[e.step] != e.loss
    ]


def _cells(then: Telemetry, now: Telemetry, segment: Segment) -> list[Fault]:
    """Every measurement of a segment: one fault for each measure that differs anywhere."""
    faults = []
    for measure in [row.name for row in now.measures()]:
        was, is_now = _values(then, measure, segment), _values(now, measure, segment)
        steps = {step for step, _ in was}
        for (step, address), value in is_now.items():
            if step in steps and was.get((step, address)) != value:
                before = was.get((step, address))
                words = f"{measure} is {before!r} in the telemetry and {value!r} replayed"
                faults.append(Fault(file=_TELEMETRY, step=step, address=address, sentence=words))
                break
    return faults


def _values(telemetry: Telemetry, measure: str, segment: Segment) -> dict[tuple[int, str], float | None]:
    """(step, address) -> value of one measure over a segment, by step; None where it was undefined."""
    found: dict[tuple[int, str], float | None] = {}
    for grid in grids(telemetry, measure):
        for column, step in enumerate(grid.step.tolist()):
            if segment.first < step <= segment.last:
                for address, value in zip(grid.addresses, grid.value[:, column].tolist(), strict=True):
                    found[step, address] = None if math.isnan(value) else value
    return dict(sorted(found.items(), key=lambda item: item[0][0]))


def _first_loss(then: Telemetry, now: Telemetry, segment: Segment, share: float) -> list[Fault]:
    """The loss of the first update, which any machine gives nearly, since weights and batch are the same."""
    was, is_now = then.steps(), now.steps()
    a, b = was.loss[was.step == segment.first + 1], is_now.loss[is_now.step == segment.first + 1]
    if len(a) and len(b) and abs(a[0] - b[0]) <= share * abs(a[0]):
        return []
    words = f"the loss is {a.tolist()} in the telemetry and {b.tolist()} replayed, more than {share:g} of it apart"
    return [Fault(file=_TELEMETRY, step=segment.first + 1, sentence=words)]
