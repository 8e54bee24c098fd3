"""One training from beginning to end: request, parts, loop, control, baselines, manifest, report.

A folder is made only once nothing more can be wrong with what was asked for. What is random is named (`randomness`),
what was decided is in `config.toml`, so a run that was killed goes on here from its newest whole checkpoint and ends
with the same bytes.
"""

import contextlib
import copy
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from qkv import native
from qkv.changes import parse_changes
from qkv.config import dump_toml, flat, from_dict, override, to_dict
from qkv.data.config import DataConfig
from qkv.errors import ConfigError, Interrupted, RunFolderError, typed
from qkv.extensions import check_same
from qkv.folder.run_folder import RunFolder, read_json
from qkv.folder.staging import check_elsewhere, staged
from qkv.folder.verified import check_file
from qkv.inspection.answers.agreement import passes
from qkv.instruments.ledger import Ledger
from qkv.instruments.probe import unmeasured
from qkv.instruments.recorder import Recorder
from qkv.instruments.schedule import LEVELS
from qkv.instruments.trackers import Sender, Tracker, check_tracker, open_tracker
from qkv.jsontypes import JsonObject
from qkv.laws import BRIEF_SECONDS
from qkv.models.matrices import Catalogue
from qkv.models.zoo import LanguageModel
from qkv.recipe.affordable import with_affordable_watching
from qkv.recipe.build import Parts, assemble, check_machine, check_reached
from qkv.recipe.config import RunConfig
from qkv.recipe.interrupted import not_ours
from qkv.recipe.load_model import load_weights
from qkv.recipe.manifest import code_of, in_background, machine_facts, note_machine, summary
from qkv.recipe.null import train_null
from qkv.recipe.reload_data import kept_data, same_data
from qkv.recipe.request import Request, resolve, same_run
from qkv.recipe.samples import write_samples
from qkv.recipe.teaching import taught, train_teachers
from qkv.tasks import Data, Evaluation, Task, Yardsticks, find_task
from qkv.tasks.evaluation import less_baseline
from qkv.telemetry import Store
from qkv.training import checkpoint as checkpoints
from qkv.training.distributed.ranks import Ranks, check_shares, join
from qkv.training.distributed.shards import check_shard
from qkv.training.precision import Machine, check_compiler, check_device, is_slower_natively
from qkv.training.record import EvaluationRecord, Event, Listener, Observer, Outcome, StepRecord
from qkv.training.schedules import decay_start, lr_scale
from qkv.training.waiting import slowdown, watching_cores
from qkv.words import many, percent, plural

Told = StepRecord | EvaluationRecord | Event
"""What `progress` is told."""

AFTERWARDS_SECONDS = 6.0
"""What is kept of a wall-time budget for baselines, samples, the manifest and the report: of a minute and more, all of
it, of less a share and one second; more where other programs have the cores, at most `MOST_SLOWED` times as much."""
MOST_SLOWED = 5.0

LEAST_SECONDS = 4.0
"""A training and its validation have this long however long its text took to read, of less than 10 s four tenths."""


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Who is told what happens, and since when the clock runs."""

    progress: Callable[[Told], None] = lambda told: None
    """Called with each StepRecord, EvaluationRecord and Event."""
    say: Callable[[str], None] = lambda sentence: None
    """Called with sentences for a person."""
    started: float = dataclasses.field(default_factory=time.monotonic)
    """`time.monotonic()` when the command was typed."""
    log: str = ""
    """Where telemetry is sent as well: a name of `qkv.instruments.trackers.TRACKERS`; empty is nowhere."""

    def seconds(self) -> float:
        """Wall time since then."""
        return time.monotonic() - self.started


class _Progress(Listener):
    """Hands everything on to `progress`."""

    def __init__(self, progress: Callable[[Told], None]) -> None:
        self._progress = progress

    def after_update(self, record: StepRecord) -> None:
        self._progress(record)

    def on_evaluation(self, evaluation: EvaluationRecord) -> None:
        self._progress(evaluation)

    def on_event(self, event: Event) -> None:
        self._progress(event)


def train(request: Request, *, out: Path | None, listening: Listening, cache: Path | None) -> Path:
    """Train what was asked for into a new folder; returns it.

    Started by torchrun or `qkv train --nproc`, every process makes this call; the first decides, and writes.

    Raises UserError before anything is made; RunError and Interrupted once there is something to keep.
    """
    with join() as ranks:
        request = _shared(request, ranks)
        config, corpus, notes = None, None, ()
        if ranks.is_first:
            if out is not None:
                RunFolder(out).check_vacant()
            config, corpus, scale = resolve(request, cache)
            notes = tuple(filter(None, (scale.note, too_many_threads(config.machine), _unmeasured(config))))
            check_machine(config)
            dump_toml(to_dict(config))  # what cannot be written is said before the work
        config, corpus = _agreed(config, corpus, cache, ranks)
        parts = _assembled(config, corpus, ranks)
        listening.say(_announcement(parts))
        if receipt := corpus.receipt.told():
            listening.say(receipt)
        if config.watch not in LEVELS:
            parts, sentence = with_affordable_watching(parts, ranks)
            config = parts.config
            listening.say(sentence)
        for sentence in (*notes, *parts.task.cautions(corpus, config.model.sizes), *parts.plan.describe()):
            listening.say(sentence)
        path = Path(ranks.tell({"out": str(out or next_folder(corpus.name))})["out"])
        with RunFolder.create(path) if ranks.is_first else RunFolder(path) as folder:
            if ranks.is_first:
                folder.write("config.toml", dump_toml(to_dict(config)))
                _write_data_facts(folder, corpus, config)
            _Session(parts=parts, folder=folder, listening=listening, cache=cache, ranks=ranks).run()
    return path


def resume(request: Request, *, out: Path, listening: Listening, cache: Path | None) -> Path:
    """Go on with the run in `out` from its newest whole checkpoint, or say that it is finished.

    Raises ConfigError where an option differs from the run's, RunFolderError where its data changed, or where it is a
    model that was imported.
    """
    _refuse_import(RunFolder.open(out))
    with join() as ranks, RunFolder.open(out, writing=True) if ranks.is_first else RunFolder(out) as folder:
        request = _shared(request, ranks)
        config, corpus, data = None, None, None
        if ranks.is_first:
            config = _reread(request, folder, ranks)
        if ranks.tell({"finished": folder.is_finished})["finished"]:
            run = typed(folder.path)
            listening.say(
                f"{folder.path} is finished; nothing is left to do. To train it longer: qkv train --from {run}"
                " --extend STEPS --out NEW"
            )
            return folder.path
        if config is not None:
            if config.watched:
                raise not_ours(folder, held=True)
            begun = (folder.path / "source.json").exists() or any(folder.checkpoints.glob("step-*"))
            data = kept_data(folder, config) if begun else config.data
            corpus = find_task(config.task).load(data, cache=cache)
            if not begun:
                _write_data_facts(folder, corpus, config)  # killed between its first files: nothing was trained yet
            same_data(folder, config, corpus)
        config, corpus = _agreed(config, corpus, cache, ranks, data)
        found, damaged = checkpoints.latest_valid(folder)
        for sentence in damaged:
            listening.say(sentence)
        if found is None:
            listening.say(f"{folder.path} has no whole checkpoint; the run starts from step 0")
        elif found.state.step > 0:
            listening.say(f"going on from step {found.state.step}")
        ranks.meet()  # all have found it before the first one sweeps what is later
        parts = _assembled(config, corpus, ranks, resumed_at=found.state.step if found else 0)
        session = _Session(parts=parts, folder=folder, listening=listening, cache=cache, ranks=ranks, resume_from=found)
        session.run()
    return folder.path


_KEPT = ("tokenizer.json", "tokenizer.source.json", "teachers.safetensors", "telemetry.sqlite")
"""What a run keeps beside its checkpoints that a training goes on with."""


def extend(request: Request, *, out: Path | None, listening: Listening, cache: Path | None) -> Path:
    """Train the run `request.from_run` by `request.extend` updates more, in a new folder; returns it.

    Raises UserError before anything is made: for a run that is not finished, was not trained here or is damaged, for
    data that have changed, and for an option that differs from the run's; else as `resume`. The new folder begins as a
    copy of all that the run can go on from; then it is a run like one that was interrupted, so what is killed goes on
    with `--resume`.
    """
    assert request.extend is not None and request.from_run is not None
    parent = RunFolder.open(request.from_run)
    asked = dataclasses.replace(request, from_run=None, extend=None)
    config, found = _extendable(parent, asked)
    made = found.state.step
    longer = {"training.schedule.steps": made + request.extend, "training.schedule.continues": made}
    longer |= {"training.schedule.most_steps": 0, "training.minutes": 0.0, "training.until_loss": 0.0}
    config = override(config, longer)
    out = out or next_folder(parent.path.name)
    check_elsewhere(out)
    RunFolder(out).check_vacant()
    if listening.log:
        check_tracker(listening.log)
    same_data(parent, config, find_task(config.task).load(kept_data(parent, config), cache=cache))
    with staged(out) as place:
        _copied(parent, RunFolder(place), config)
        RunFolder(out).make_room()
    listening.say(f"It continues {parent.path} from step {made:,}, with the state of its optimizer. {schedule(config)}")
    return resume(Request(nproc=request.nproc), out=out, listening=listening, cache=cache)


def _extendable(parent: RunFolder, asked: Request) -> tuple[RunConfig, checkpoints.Checkpoint]:
    """The configuration of a run that can be trained longer, as it is then, and its newest checkpoint."""
    run, config = typed(parent.path), RunConfig.read(parent.config)
    if config.imported or config.watched:
        raise RunFolderError(
            f"{parent.path} was trained elsewhere and keeps no state of an optimizer; to train it further: qkv train"
            f" SOURCE --from {run} --out NEW"
        )
    if not parent.is_finished:
        raise RunFolderError(f"{parent.path} is not finished; go on with it first: qkv train --out {run} --resume")
    if asked.nproc not in (None, 1):
        raise ConfigError("--extend begins in one process; stop it and go on with --resume --nproc N for more")
    config = _adapted(asked, config, 1)
    for name in _KEPT:
        check_file(parent.path / name)
    found, damaged = checkpoints.latest_valid(parent)
    if found is None or damaged:
        raise RunFolderError(f"{parent.path} cannot be extended: {damaged[0] if damaged else 'it has no checkpoint'}")
    return config, found


def _copied(parent: RunFolder, folder: RunFolder, config: RunConfig) -> None:
    """Everything that a training goes on with, in a folder that nobody has yet."""
    folder.write("config.toml", dump_toml(to_dict(config)))
    for name in (*_KEPT, "source.json"):
        if (parent.path / name).is_file():
            shutil.copyfile(parent.path / name, folder.path / name)
    for step, path in parent.checkpoint_folders().items():
        place = folder.checkpoints / f"step-{step:08d}"
        place.mkdir(parents=True)
        for file in path.iterdir():
            if not parent.why_foreign(file):
                shutil.copyfile(file, place / file.name)
    found, _ = checkpoints.latest_valid(folder)
    assert found is not None, "the run's own was whole"
    checkpoints.reopen(found)
    with Store(folder.telemetry) as store:
        store.drop_after(-1, arm=1)  # the control is made again, as long as the new training asks
        store.set_fact("extends", {"run": str(parent.path.absolute()), "step": found.state.step})


def schedule(config: RunConfig) -> str:
    """The schedule of a run that continues another, in a sentence."""
    plan = config.training.schedule
    first, last = plan.continues, plan.steps
    falls, floor = max(first, decay_start(last, plan)), f"{percent(plan.floor)} of it" if plan.floor else "0"
    now = lr_scale(first, plan)
    begins = "is back at its peak" if now == 1 else f"is {percent(now)} of its peak"
    holds = f", stays there until step {falls:,}" if falls > first else ""
    return (
        f"The new schedule has {many(last - first, 'step')} more, to step {last:,}: the learning rate {begins}{holds}"
        f" and falls to {floor} at the end."
    )


def _refuse_import(folder: RunFolder) -> None:
    """Make sure that a run was trained here; nothing in it is touched. Raises RunFolderError."""
    if not folder.is_import:
        return
    run = typed(folder.path)
    if folder.is_finished:
        how = f"to train it further: qkv train SOURCE --from {run} --out NEW"
    else:
        how = f"its import was cut short; remove {run} and import the model again: qkv import DIR --out {run}"
    raise RunFolderError(f"{folder.path} is an imported model, which has no training to go on with; {how}")


def _assembled(config: RunConfig, corpus: Data, ranks: Ranks, resumed_at: int = 0) -> Parts:
    """The parts of a training.

    Raises ConfigError where they cannot be sharded as asked for, ChangeError where no gradient would reach a matrix.
    """
    shares = config.machine.shard and ranks.world > 1
    if shares and config.training.optimizer.is_own:
        raise ConfigError("--shard cannot share out the state of an optimizer of your own; leave --shard out")
    measures = ranks.is_first and config.watch != "off"
    parts = assemble(config, corpus, resumed_at=resumed_at, keeps_start=measures or not shares, shares=shares)
    if not resumed_at:
        check_reached(parts)
    if shares:
        check_shard(config.machine, parts.plan.held_part(), next(iter(parts.plan.lora), ""))
    return parts


def _shared(request: Request, ranks: Ranks) -> Request:
    """The request with its number of processes, and the threads of a machine shared out among those that run there.

    Raises ConfigError where another number was asked for than there are.
    """
    if request.nproc not in (None, ranks.world):
        started = f"torchrun started {ranks.world}" if ranks.world > 1 else "this is one process"
        raise ConfigError(
            f"--nproc is {request.nproc}, but {started}; type qkv train --nproc {request.nproc} in a terminal,"
            f" or torchrun --nproc-per-node {request.nproc} -m qkv train without it"
        )
    return dataclasses.replace(request, nproc=ranks.world)


def _reread(request: Request, folder: RunFolder, ranks: Ranks) -> RunConfig:
    """The configuration of a run that is gone on with, with what may differ from it written down.

    Raises ConfigError where an option differs from the run's.
    """
    made = RunConfig.read(folder.config)
    config = _adapted(request, made, ranks.world)
    if config != made and not folder.is_finished:
        folder.write("config.toml", dump_toml(to_dict(config)))
    return config


def _adapted(request: Request, config: RunConfig, world: int) -> RunConfig:
    """A run's configuration with what may differ in `world` processes that go on with it. Raises ConfigError."""
    same_run(request, config)
    check_device(config.machine.device, "the run was made on one, so go on with it where there is one")
    check_compiler(config.machine)
    changed: dict[str, object] = {}
    if request.on_spike:  # an answer to what has happened, so it may be another one
        changed["on_spike"] = request.on_spike
    if request.report is not None:
        changed["report"] = request.report
    if config.machine.ranks != world:
        check_shares(config.training, world, find_task(config.task).examples)
        threads = max(1, config.machine.threads * config.machine.ranks // world)
        changed |= {"machine.ranks": world, "machine.threads": threads}
    if request.shard is not None and request.shard != config.machine.shard:
        changed["machine.shard"] = request.shard
    config = override(config, changed)
    if request.shard:
        check_shard(config.machine)
    return config


def _agreed(
    config: RunConfig | None, corpus: Data | None, cache: Path | None, ranks: Ranks, data: DataConfig | None = None
) -> tuple[RunConfig, Data]:
    """What rank 0 decided and its data, on every rank; the others read the data once it has, from the cache.

    `data` is how it read them, where not as the configuration says.

    Raises RunFolderError where a rank reads other data than rank 0.
    """
    mine = None
    if config is not None and corpus is not None:
        mine = {"config": to_dict(config), "sha256": corpus.sha256, "data": to_dict(data or config.data)}
    told = ranks.tell(mine)
    if config is None or corpus is None:
        config = from_dict(RunConfig, told["config"])
        corpus = cast(Data, find_task(config.task).load(from_dict(DataConfig, told["data"]), cache=cache))
    if corpus.sha256 != told["sha256"]:
        raise RunFolderError(
            f"process {ranks.rank} reads data of sha256 {corpus.sha256[:16]}..., process 0 of {told['sha256'][:16]}...;"
            " give every machine the same files"
        )
    return config, corpus


@dataclass(frozen=True, kw_only=True)
class _Session:
    """A training and the folder that it goes into, from its first update, or from a checkpoint, to its end."""

    parts: Parts
    folder: RunFolder
    listening: Listening
    cache: Path | None
    ranks: Ranks
    resume_from: checkpoints.Checkpoint | None = None

    def run(self) -> None:
        """Everything, into a folder that is ours; ranks but the first only compute."""
        wanted = self.listening.log if self.ranks.is_first else ""
        tracker = open_tracker(wanted, self.folder.path, flat(self.parts.config)) if wanted else None
        dataclasses.replace(self, parts=self._taught()).after_teachers(tracker)

    def after_teachers(self, tracker: Tracker | None) -> None:
        """The loop, and what follows it."""
        parts, folder, listening, config = self.parts, self.folder, self.listening, self.parts.config
        if not self.ranks.is_first:
            outcome = self.loop([])
            if self._has_null and outcome.stopped_because != "diverged":
                train_null(parts, outcome, folder, None, self.ranks)
            return
        is_brief = 0 < 60 * config.training.minutes < BRIEF_SECONDS
        # Of little time they come after the training: taking a core by turns they would make its pace a guess.
        counted = (_judging(parts), parts.corpus, config.model.sizes, self.cache)
        background = None if is_brief else in_background(*counted)
        with Store(folder.telemetry) as store:
            observers = self._observers(store, tracker)
            elsewhere = note_machine(store, config, self.resume_from.state.step if self.resume_from else 0)
            if elsewhere:
                listening.say(elsewhere)
            outcome = self.loop(observers)
            if outcome.best_step == 0 and config.from_run:
                listening.say(
                    f"No validation after an update was better than that of the weights it started from"
                    f" ({outcome.best_loss:.4f} nats): the best weights are those of {config.from_run}."
                )
            background = background or in_background(*counted)
            with _afterwards(folder), watching_cores(config.machine.threads):
                compares = self._has_null and outcome.stopped_because != "diverged"
                null = train_null(parts, outcome, folder, store, self.ranks) if compares else {}
                if "missing" in null:
                    listening.say(null["missing"])
                if compares and parts.task.name == "causal" and config.model.sizes.n_layers:
                    store.set_fact("agreement", _agreement(parts))
                yardsticks = background.result()
                if yardsticks is not None:
                    store.set_fact("baselines", dict(yardsticks.facts))
                    store.set_fact("loss_less_ngram", _less_ngram(parts, folder, yardsticks))
                    if yardsticks.note:
                        listening.say(yardsticks.note)
                completed = _completed(parts, folder)
                write_samples(completed, folder, store, outcome)
                judged = _judge(completed, folder, store)
                if judged is not None and judged.note:
                    listening.say(f"{judged.note}; of all: qkv eval {typed(folder.path)}")
                bits = bits_per_byte(parts, outcome.best_loss)
        n, seconds = sum(entry.parameter.numel() for entry in parts.catalogue), listening.seconds()
        found = {"judged": judged, "bits_per_byte": bits, "parameters": n, "total_seconds": seconds}
        self._seal(summary(folder, outcome, yardsticks, **found), null)

    def _seal(self, facts: JsonObject, null: JsonObject) -> None:
        """Write the manifest, with the facts of its summary: the run is finished."""
        config, corpus = self.parts.config, self.parts.corpus
        self.folder.seal(
            machine_facts(config)
            | {"data": {"name": corpus.name, "sha256": corpus.sha256, "split": corpus.rule}}
            | {"receipt": corpus.receipt.as_json()}
            | {"parent": config.from_run, "summary": facts, "null": null}
            | ({"code": code} if (code := read_json(self.folder.path / "source.json").get("code")) else {})
        )

    @property
    def _has_null(self) -> bool:
        """Whether the random-label control is trained after it."""
        return self.parts.config.watch != "off" and self.parts.config.report

    def _observers(self, store: Store, tracker: Tracker | None) -> list[Observer]:
        """What observes the training: the ledger if one is kept, the recorder, the listener, a tracker if asked for."""
        config, listening = self.parts.config, self.listening
        observers: list[Observer] = [Ledger(store, config.ledger)] if config.ledger.every else []
        is_new = self.resume_from is None or self.resume_from.state.step == 0  # else the start is the one that was kept
        start = self.parts.start if is_new else None
        recorder = Recorder(store, config.watch, watching=config.watching, start=start)
        observers += [recorder, _Progress(listening.progress)]
        if tracker is not None:
            observers.append(Sender(tracker, self.folder.telemetry, recorder, listening.say))
        return observers

    def loop(self, observers: list[Observer]) -> Outcome:
        """The training itself, as long as its budget lasts."""
        minutes, deadline = self.parts.config.training.minutes, None
        if minutes:
            least = 1.0 if self.resume_from else max(1.0, min(LEAST_SECONDS, 0.4 * 60 * minutes))
            deadline = self.ranks.of_first(max(least, self._left()))
        try:
            return self.parts.train(
                folder=self.folder,
                observers=observers,
                resume=self.resume_from,
                scores_start=self.parts.goes_on,
                deadline_seconds=deadline,
                ranks=self.ranks,
            )
        finally:
            self.parts.plan.at_end()

    def _left(self) -> float:
        """Seconds of the wall-time budget that are left for the loop, what follows it taken off."""
        task, config = _judging(self.parts), self.parts.config
        budget, sizes = 60 * config.training.minutes, config.model.sizes
        judging = task.judging_seconds(self.parts.corpus, sizes)
        afterwards = min(AFTERWARDS_SECONDS, 1 + budget / 12) + min(judging, budget / 6)
        if budget < BRIEF_SECONDS:
            afterwards += task.baselines_seconds(self.parts.corpus, sizes, self.cache)
        afterwards *= min(MOST_SLOWED, slowdown())
        spent = self.listening.seconds() + (self.resume_from.state.train_seconds if self.resume_from else 0.0)
        return (budget - spent - afterwards) / (1 + min(1.0, config.control_share) * self._has_null)

    def _taught(self) -> Parts:
        """The parts with the teachers that the run is to learn from, trained where the folder has them not yet."""
        train_teachers(
            self.parts,
            self.folder,
            seconds=self._left if self.parts.config.training.minutes else None,
            observers=[_Progress(self.listening.progress)] if self.ranks.is_first else [],
            say=self.listening.say,
            ranks=self.ranks,
        )
        return taught(self.parts, self.folder)


@contextlib.contextmanager
def _afterwards(folder: RunFolder) -> Iterator[None]:
    """What follows a training (control, samples, baselines): to stop it loses nothing, and is told apart."""
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        raise Interrupted(
            f"the training of {folder.path} is done and kept; what follows it was stopped: finish with"
            f" qkv train --out {typed(folder.path)} --resume",
            exit_status=getattr(error, "exit_status", 130),
        ) from None


def _completed(parts: Parts, folder: RunFolder) -> Parts:
    """The parts with what the task's answers need beside the best weights, which is written into the folder."""
    labels = parts.config.data.labels
    if not parts.task.companion or labels is None or not labels.linear or not folder.best.is_file():
        return parts
    with _best_weights(parts, folder):
        task, content = parts.task.completed(parts.model, parts.corpus)
    folder.write(parts.task.companion, content)
    return dataclasses.replace(parts, task=task)


def _judge(parts: Parts, folder: RunFolder, store: Store) -> Evaluation | None:
    """The figures of the best weights, of a task that a run ends with, whose decisions are kept for the report; the
    weights of the last step are put back.
    """
    if not parts.task.judged or not folder.best.is_file():
        return None
    with _best_weights(parts, folder):
        if found := parts.task.decisions(parts.model, parts.corpus):
            store.set_fact("decisions", found)
        return _judging(parts).evaluate(parts.model, parts.corpus)


def _judging(parts: Parts) -> Task:
    """The task that a run ends with: in brief where its time is."""
    return parts.task.in_brief() if 0 < 60 * parts.config.training.minutes < BRIEF_SECONDS else parts.task


def _less_ngram(parts: Parts, folder: RunFolder, found: Yardsticks) -> JsonObject | None:
    """The loss of the best weights minus that of the best n-gram on the same tokens, with its interval."""
    if found.by_target is None or not folder.best.is_file():
        return None
    with _best_weights(parts, folder):
        return less_baseline(parts.model, parts.task, parts.corpus, found.by_target)


def _agreement(parts: Parts) -> JsonObject:
    """What passes through the model at its start and its end say of the kept answers."""
    model = cast(LanguageModel, parts.model)
    before = copy.deepcopy(model)
    Catalogue(before).load_state(parts.start)
    return dict(passes(before, model, parts.task, parts.corpus))


@contextlib.contextmanager
def _best_weights(parts: Parts, folder: RunFolder) -> Iterator[None]:
    """The model with its best weights, to be evaluated; afterwards those of the last step are put back."""
    last = {address: values.clone() for address, values in parts.catalogue.state().items()}
    parts.catalogue.load_state(load_weights(folder.best))
    with torch.no_grad(), parts.config.machine.passing():
        yield
    parts.catalogue.load_state(last)


def bits_per_byte(parts: Parts, loss: float) -> float | None:
    """Of a loss over the whole validation split, in nats per target; None where it is NaN, or has no such value."""
    if loss != loss or parts.task.bits_per_byte(parts.corpus, 1.0) is None:
        return None
    n_targets = sum(batch.n_targets for batch in parts.task.val_batches(parts.corpus, parts.config.model.sizes, 64))
    return parts.task.bits_per_byte(parts.corpus, loss * n_targets)


def too_many_threads(machine: Machine) -> str:
    """A sentence where more threads were asked for than there are cores, or ""."""
    cores, asked = os.cpu_count() or 1, machine.threads * machine.ranks
    if asked <= cores:
        return ""
    return f"{asked:,} threads share {many(cores, 'core')} here: as many as cores are at least as fast."


def _unmeasured(config: RunConfig) -> str:
    """A sentence where heads would be measured and cannot be, or ""."""
    return unmeasured(config.model.layout) if config.watch != "off" and config.watching.attention else ""


def next_folder(name: str) -> Path:
    """`runs/<name>-<n>`, the first n that is free."""
    taken = {path.name for path in Path("runs").glob(f"{name}-*")}
    return Path("runs") / next(f"{name}-{n}" for n in range(1, len(taken) + 2) if f"{name}-{n}" not in taken)


def _announcement(parts: Parts) -> str:
    """What is about to be trained, in one line."""
    config, corpus, examples = parts.config, parts.corpus, parts.task.examples
    training = config.training
    n = sum(entry.parameter.numel() for entry in parts.catalogue)
    length = many(training.schedule.steps, "step")
    if not training.schedule.steps:
        length = f"{training.minutes:g} {plural(training.minutes, 'minute')}"
    target = f" or a validation loss of {training.until_loss:g}" if training.until_loss else ""
    machine = config.machine
    together = f" of each of {machine.ranks} processes" if machine.ranks > 1 else ""
    together += ", which share out weights and optimizer state" if machine.shard and together else ""
    how = (
        f"Up to {length}{target}, {many(training.batch_size, examples[:-1], examples)} a step,"
        f" {machine.precision} on {many(machine.threads, 'thread')}{together}.{_without_native(machine)}"
    )
    came, teaching = "", training.teaching
    if teaching.teachers:
        others = many(teaching.teachers, "training")
        how += f"\nIt learns the mean answers of {others} by other seeds, made before it."
    if config.from_run:
        new = f"; new: {', '.join(parts.new)}" if parts.new else ""
        came = f"\nIt goes on from the best weights of {config.from_run}{new}.{_parted(parts)}{_let_go(config)}"
    return f"{corpus.describe()}\n{config.model_words(n)}.{came}\n{how}"


def _parted(parts: Parts) -> str:
    """What was one matrix in the run that this one goes on from, and is two now."""
    if not parts.parted:
        return ""
    second, first = parts.parted[0]
    more = f" and {len(parts.parted) - 1} more" if len(parts.parted) > 1 else ""
    return (
        f" {second} (one matrix with {first} there){more} starts as an equal copy and is trained by itself; to keep it"
        f" one give --change '{second}=share({first})'."
    )


def _let_go(config: RunConfig) -> str:
    """What the run that this one goes on from held to its end, and is trained here."""
    before = RunConfig.read(Path(config.from_run) / "config.toml").changes
    held, again = (
        [change for text in texts for change in parse_changes(text) if change.holds and change.stop is None]
        for texts in (before, config.changes)
    )
    lost = [change for change in held if change.selector not in {other.selector for other in again}]
    if not lost:
        return ""
    option = "--only" if lost[0].op == "only" else "--freeze"
    return (
        f" What was held there ({', '.join(map(str, lost))}) is trained here; to hold it as it is now give"
        f" {option} '{lost[0].selector}'."
    )


def _without_native(machine: Machine) -> str:
    why = "machine.native is false" if not machine.native and native.load("passes") else native.why_not("passes")
    if machine.device != "cpu" or machine.compile or not why or (not machine.native and is_slower_natively(machine)):
        return ""
    return f"\nPasses between products are torch's, which takes up to a third longer: {why}."


def _write_data_facts(folder: RunFolder, corpus: Data, config: RunConfig) -> None:
    """The tokenizer, and then what the data, and code of one's own, are known again by."""
    if corpus.tokenizer is not None:
        for name, content in corpus.tokenizer.files().items():
            folder.write(name, content)
    code = code_of(config)
    check_same(str(folder.path), code, code)
    facts: JsonObject = {"name": corpus.name, "sha256": corpus.sha256} | ({"code": code} if code else {})
    folder.write("source.json", json.dumps(facts) + "\n")
