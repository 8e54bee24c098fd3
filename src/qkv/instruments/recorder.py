"""Decides what is measured when, and writes it down: the observer that watches every matrix learn.

`off` keeps losses and evaluations only; otherwise every matrix, head and circuit is looked at, and attention on a fixed
probe, each kind of look at its own steps (`schedule.WatchConfig`; `light` and `full` are two of them). The steps are
pure functions of the step, each look is one transaction, and what it writes is equal, row for row, after a kill and a
resume.

Watching never changes a run: weights and gradients are read, no random number is drawn, nothing is hooked. The same
recorder with `arm=1` writes the random-label control.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
from torch import Tensor

from qkv.data.pairs import Pairs
from qkv.errors import ConfigError, RunFolderError, unknown
from qkv.instruments.measurements import Measurements, Moments
from qkv.instruments.probe import Probe
from qkv.instruments.registry import AT_REST, LIGHT
from qkv.instruments.runlog import RunLog
from qkv.instruments.schedule import LEVELS, WatchConfig
from qkv.instruments.tokens import MOST_COUNTED, count_tokens, ids_read, specials
from qkv.telemetry import RUN_ARM, Store
from qkv.tokenizers.tokens import Tokens
from qkv.training.record import EvaluationRecord, Outcome, RunContext, StepRecord
from qkv.training.tensorfile import load_weights


class Recorder(RunLog):
    """Records one training into arm `arm` of `store`, which stays open: what `RunLog` does, and looks at its matrices.

    `level` names a schedule, or says how `watching` came to be where that is given. `start` gives the weights at step 0
    by address; without it they are those at `on_start`, or on a resume those of the run folder's checkpoint of step 0
    (where that is gone, drift and turn read as undefined from there on).

    Raises ConfigError for an unknown level.
    """

    def __init__(
        self,
        store: Store,
        level: str = "light",
        *,
        watching: WatchConfig | None = None,
        arm: int = RUN_ARM,
        start: Mapping[str, Tensor] | None = None,
        ends: bool = True,
    ) -> None:
        """`ends` False: what is watched is a part of a training, so that its last update brings no closing look."""
        if level not in LEVELS and watching is None:
            raise ConfigError(unknown("level of --watch", level, LEVELS))
        super().__init__(store, arm=arm)
        self.level = level
        self.watching = None if level == "off" else watching or LEVELS.get(level)
        self.spent: defaultdict[str, float] = defaultdict(float)
        """Seconds spent watching in this session, by kind of look."""
        self.n_looks = 0
        self._given: defaultdict[str, int] = defaultdict(int)  # numbers not yet written, by kind of look
        self._start, self._ends = start, ends
        self._looks: Measurements | None = None
        self._wide: Probe | None = None
        self._clip = 0.0
        self._last_look = -1
        self._natively: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def seconds(self) -> float:
        """Spent watching in this session."""
        return sum(self.spent.values())

    # the training's calls

    @property
    def reads_weights(self) -> bool:
        """Unless losses are all that is kept."""
        return self.watching is not None

    def reads(self, step: int) -> bool:
        """Whether matrices are looked at after the update that leads to `step`."""
        return self.watching is not None and self.watching.wants(step)

    def on_start(self, context: RunContext) -> None:
        """Register every matrix and measure; at step 0 take the first look."""
        super().on_start(context)
        if self.watching is None:
            return
        with self._watching("start"):
            start = self._start if self._start is not None else _start_weights(context)
            probe = Probe.of(context.task, context.corpus, context.model, context.seed)
            self._looks = Measurements(
                self.store, context.catalogue, start, moments=_moments(context), probe=probe, arm=self.arm
            )
            self._clip = context.config.optimizer.clip
            if context.optimizer is not None:  # in a loop of somebody else's nothing is compiled for a look
                self._natively = context.machine.natively
            self._last_look = self.store.last_recorded("norm", arm=self.arm)  # a look that a resume does not repeat
            if start is None:
                sentence = "the weights of step 0 are gone: drift and turn are not measured in this session"
                self.store.add_session(context.start_step, "start", sentence, arm=self.arm)
        if context.start_step == 0:
            self._describe(context)
            self._look(0, updated=False)
        if self.arm == RUN_ARM and self.watching.attention:
            with self._watching("attention"):
                self._wide = Probe.of(context.task, context.corpus, context.model, context.seed, is_wide=True)
                if self._wide is not None and context.start_step == 0:
                    self._looks.windows(0, self._wide)
        self.store.flush()

    def before_update(self, record: StepRecord) -> None:
        """Keep the weights."""
        if self._looks is not None and self.reads(record.step):
            with self._watching("matrices"):
                self._looks.passes.before_update()

    def after_update(self, record: StepRecord) -> None:
        """Record the losses, and measure every matrix if the schedule says so."""
        super().after_update(record)
        if self._looks is not None and self.reads(record.step):
            self._look(record.step, updated=True, total=record.grad_norm)

    def on_evaluation(self, evaluation: EvaluationRecord) -> None:
        """Record the loss, and measure the weights if that was not done at this step."""
        super().on_evaluation(evaluation)
        self._look_at_rest(evaluation.step)

    def on_end(self, outcome: Outcome) -> None:
        """A last look at the weights that the run ends with, every token's row included; and what watching cost."""
        looks = self._looks
        if looks is not None and self._ends and outcome.stopped_because not in ("interrupt", "nan", "spike"):
            self._look_at_rest(outcome.steps)
            self._last(outcome.steps, looks)
        self.store.set_clock_fact("watch" if self.arm == RUN_ARM else f"watch.arm{self.arm}", self.cost(outcome))
        super().on_end(outcome)

    def cost(self, outcome: Outcome) -> dict[str, float | int | str | dict[str, float] | None]:
        """What watching cost in this session, and what it got; the share of a resumed training's time is not known."""
        whole = outcome.resumed_from_step is None and outcome.train_seconds > 0
        return {
            "level": self.level,
            "seconds": round(self.seconds, 4),
            "share": round(self.seconds / outcome.train_seconds, 5) if whole else None,
            "looks": self.n_looks,
            "numbers": self._looks.n_numbers if self._looks is not None else 0,
            "by_kind": {kind: round(seconds, 4) for kind, seconds in self.spent.items()},
        }

    # inside

    def _look_at_rest(self, step: int) -> None:
        if self._looks is not None and step != self._last_look:
            self._look(step, updated=False)

    def _look(self, step: int, *, updated: bool, total: float = 0.0) -> None:
        """Everything due at this step, in one transaction. `total` is the norm of all gradients before clipping."""
        looks, watching = self._looks, self.watching
        assert looks is not None and watching is not None
        with self._watching("matrices"):
            with self._natively():
                reading = looks.passes.after_update() if updated else looks.passes.at_rest()
            unclip = total / self._clip if 0 < self._clip < total else 1.0  # gradients are seen after clipping
            looks.matrices(step, LIGHT if updated else AT_REST, reading, unclip)
        if watching.is_due("circuits", step):
            with self._watching("circuits"):
                looks.circuits(step, updated=updated)
        for kind in ("attention", "head_spectra", "matrix_spectra", "rows"):
            if watching.is_due(kind, step):
                with self._watching(kind):
                    getattr(looks, kind)(step)
        self._write()
        self._last_look, self.n_looks = step, self.n_looks + 1

    def _write(self) -> None:
        """One transaction, its time shared out by how many numbers each kind of look gave."""
        began, total = time.perf_counter(), max(1, sum(self._given.values()))
        self.store.flush()
        taken = time.perf_counter() - began
        for kind, n in self._given.items():
            self.spent[kind] += taken * n / total
        self._given.clear()

    def _last(self, step: int, looks: Measurements) -> None:
        """At the end every kind of look is taken, whatever its interval."""
        assert self.watching is not None
        for kind in ("circuits", "attention", "head_spectra", "matrix_spectra", "rows"):
            if self.watching.is_due(kind, 0) and not self.watching.is_due(kind, step):
                with self._watching(kind):
                    looks.circuits(step, updated=False) if kind == "circuits" else getattr(looks, kind)(step)
        if self._wide is not None and step:
            with self._watching("attention"):
                looks.windows(step, self._wide)

    def _describe(self, context: RunContext) -> None:
        """How often each token occurs in the training part, and which ids are special: what rows are read against."""
        train: Tokens | Pairs | None = getattr(context.corpus, "train", None)
        if train is None or getattr(train, "ids", None) is None or self.arm != RUN_ARM:
            return
        with self._watching("start"):
            for entry in (entry for entry in context.catalogue if entry.kind == "W_E"):
                ids = ids_read(train, context.catalogue.names(entry.address))
                self.store.add_vector(0, "row_count", entry.address, count_tokens(ids, entry.shape[0]))
            counted = min(len(train.ids), MOST_COUNTED)
            self.store.set_fact("tokens_counted", {"counted": counted, "of": len(train.ids)})
            self.store.set_fact("special_tokens", specials(getattr(context.corpus, "tokenizer", None)))

    @contextmanager
    def _watching(self, kind: str) -> Iterator[None]:
        began, before = time.perf_counter(), self._looks.n_numbers if self._looks is not None else 0
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # blown-up weights read as undefined
            yield
        self.spent[kind] += time.perf_counter() - began
        self._given[kind] += (self._looks.n_numbers if self._looks is not None else 0) - before
        self.watch_seconds = self.seconds


def _moments(context: RunContext) -> Moments:
    """What the optimizer keeps of squared gradients, in its own memory; nothing of an optimizer that is not ours."""
    if context.optimizer is None:
        return Moments({}, {}, 0.0)
    state = context.optimizer.state()
    second = {name.removesuffix(".exp_avg_sq"): t for name, t in state.items() if name.endswith(".exp_avg_sq")}
    return Moments(second, {a: state[f"{a}.updates"] for a in second}, context.config.optimizer.beta2)


def _start_weights(context: RunContext) -> dict[str, Tensor] | None:
    """The weights at step 0: those of now at the start, the checkpoint's on a resume, None where that is gone or
    damaged."""
    if context.start_step == 0:
        return context.catalogue.state()
    path = context.folder / "checkpoints" / "step-00000000" / "model.safetensors" if context.folder else None
    try:
        state = load_weights(path) if path is not None else {}
    except RunFolderError:
        return None
    if not set(context.catalogue.addresses) <= set(state):
        return None
    device = next(iter(context.catalogue)).parameter.device
    return {address: values.to(device) for address, values in state.items()}
