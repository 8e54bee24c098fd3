"""Decides what is measured when, and writes it down: the observer that watches every matrix learn.

Levels: `off` keeps losses and evaluations only; `light` adds norm, gradient norm, update ratio, drift and turn of every
matrix, and the rows of the token tables; `full` adds the same of every head, and spectra of matrices, heads and the
circuits QK and OV. The steps are pure functions of the step (`schedule.py`), each look is one transaction, and what it
writes is equal, row for row, after a kill and a resume.

Watching never changes a run: weights and gradients are read, no random number is drawn, nothing is hooked. The same
recorder with `arm=1` writes the null, the training on random labels.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from qkv.errors import ConfigError, unknown
from qkv.instruments.looks import Looks
from qkv.instruments.passes import Reading
from qkv.instruments.registry import LIGHT
from qkv.instruments.runlog import RunLog
from qkv.instruments.schedule import is_by_head, is_by_row, is_recorded, is_spectral
from qkv.instruments.tokens import MOST_COUNTED, count_tokens, ids_read, specials
from qkv.telemetry import RUN_ARM, Store
from qkv.training.record import EvaluationRecord, Event, Observer, Outcome, RunContext, StepRecord

__all__ = ["LEVELS", "Level", "Recorder"]

Level = Literal["off", "light", "full"]
LEVELS: tuple[str, ...] = ("off", "light", "full")

_AT_REST = ("norm", "drift", "turn")
"""Measures that need no update: taken wherever the whole validation split is scored, and at the end."""


class Recorder(Observer):
    """Records one training into arm `arm` of `store`, which stays open; see the module's note on levels.

    `start` gives the weights at step 0 by address; without it they are those at `on_start`, or on a resume those of the
    run folder's checkpoint of step 0 (where that is gone, drift and turn read as undefined from there on).

    Raises ConfigError for an unknown level.
    """

    def __init__(
        self, store: Store, level: str = "light", *, arm: int = RUN_ARM, start: Mapping[str, Tensor] | None = None
    ) -> None:
        if level not in LEVELS:
            raise ConfigError(unknown("level of --watch", level, LEVELS))
        self.store, self.level, self.arm = store, level, arm
        self.log = RunLog(store, arm=arm)
        self.seconds = 0.0
        """Spent watching in this session."""
        self.n_looks = 0
        self._start = start
        self._looks: Looks | None = None
        self._clip = 0.0
        self._last_look = -1

    # the training's calls

    def on_start(self, context: RunContext) -> None:
        """Register every matrix and measure; at step 0 take the first look."""
        self.log.on_start(context)
        if self.level == "off":
            return
        with self._watching():
            start = self._start if self._start is not None else _start_weights(context)
            full = self.level == "full"
            self._looks = Looks(self.store, context.catalogue, start, by_head=full, arm=self.arm)
            self._clip, self._last_look = context.config.optimizer.clip, -1
            if start is None:
                sentence = "the weights of step 0 are gone: drift and turn are not measured in this session"
                self.store.add_session(context.start_step, "start", sentence, arm=self.arm)
            if context.start_step == 0:
                self._describe(context)
                self._look(0, self._looks.passes.at_rest, _AT_REST)
        self.store.flush()

    def wants(self, step: int) -> bool:
        """Every update, for the losses; matrices are looked at where the schedule says so."""
        return True

    def before_update(self, record: StepRecord) -> None:
        """Read the gradients, keep the weights."""
        if self._looks is not None and is_recorded(record.step):
            with self._watching():
                self._looks.passes.before_update(heads=self.level == "full" and is_by_head(record.step))

    def after_update(self, record: StepRecord) -> None:
        """Losses always; a look at every matrix where the schedule says so."""
        self.log.after_update(record)
        if self._looks is not None and is_recorded(record.step):
            with self._watching():
                self._look(record.step, self._looks.passes.after_update, LIGHT, total=record.grad_norm)

    def on_evaluation(self, evaluation: EvaluationRecord) -> None:
        """The loss, and a look at rest where none was taken at this step."""
        self.log.on_evaluation(evaluation)
        self._look_at_rest(evaluation.step)

    def on_event(self, event: Event) -> None:
        """Write it down."""
        self.log.on_event(event)

    def on_checkpoint(self, step: int) -> None:
        """Everything up to `step` survives whatever comes."""
        self.log.on_checkpoint(step)

    def on_end(self, outcome: Outcome) -> None:
        """A last look at the weights that the run ends with, every token's row included; and what watching cost."""
        if outcome.stopped_because not in ("interrupt", "nan"):
            self._look_at_rest(outcome.steps)
            if self._looks is not None and not is_by_row(outcome.steps):
                with self._watching():
                    self._looks.rows(outcome.steps)
        self.store.set_clock_fact("watch" if self.arm == RUN_ARM else f"watch.arm{self.arm}", self.cost(outcome))
        self.log.on_end(outcome)

    def cost(self, outcome: Outcome) -> dict[str, float | int | str | None]:
        """What watching cost in this session, and what it got; the share of a resumed training's time is not known."""
        whole = outcome.resumed_from_step is None and outcome.train_seconds > 0
        return {
            "level": self.level,
            "seconds": round(self.seconds, 4),
            "share": round(self.seconds / outcome.train_seconds, 5) if whole else None,
            "looks": self.n_looks,
            "numbers": self._looks.n_numbers if self._looks is not None else 0,
        }

    # inside

    def _look_at_rest(self, step: int) -> None:
        if self._looks is not None and step != self._last_look:
            with self._watching():
                self._look(step, self._looks.passes.at_rest, _AT_REST)

    def _look(self, step: int, read: Callable[[], Reading], names: Sequence[str], *, total: float = 0.0) -> None:
        """Everything due at this step, in one transaction. `total` is the norm of all gradients before clipping."""
        looks = self._looks
        assert looks is not None
        reading = read()
        unclip = _unclip(reading.grad_norm, total, self._clip)
        looks.whole(step, names, reading, unclip)
        if self.level == "full" and is_by_head(step):
            looks.heads(step, names, unclip)
            looks.head_spectra(step)
        if self.level == "full" and is_spectral(step):
            looks.matrix_spectra(step)
        if is_by_row(step):
            looks.rows(step)
        self.store.flush()
        self._last_look, self.n_looks = step, self.n_looks + 1

    def _describe(self, context: RunContext) -> None:
        """How often each token stands in the training part, and which ids are special: what rows are read against."""
        train = getattr(context.corpus, "train", None)
        if getattr(train, "ids", None) is None or self.arm != RUN_ARM:
            return
        for entry in (entry for entry in context.catalogue if entry.kind == "W_E"):
            ids = ids_read(train, context.catalogue.names(entry.address))
            self.store.add_vector(0, "row_count", entry.address, count_tokens(ids, entry.shape[0]))
        self.store.set_fact("tokens_counted", {"counted": min(len(train.ids), MOST_COUNTED), "of": len(train.ids)})
        self.store.set_fact("special_tokens", specials(getattr(context.corpus, "tokenizer", None)))

    @contextmanager
    def _watching(self) -> Iterator[None]:
        began = time.perf_counter()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # blown-up weights read as undefined
            yield
        self.seconds += time.perf_counter() - began
        self.log.watch_seconds = self.seconds


def _unclip(grad_norms: np.ndarray, total: float, clip: float) -> float:
    """Gradients are seen after clipping; the factor that undoes it."""
    seen = float(np.sqrt(np.nansum(grad_norms**2)))
    return total / seen if clip > 0 and total > clip and seen > 0 else 1.0


def _start_weights(context: RunContext) -> dict[str, Tensor] | None:
    """The weights at step 0: those of now at the start, the checkpoint's on a resume, None where that is gone."""
    if context.start_step == 0:
        return context.catalogue.state()
    path = context.folder / "checkpoints" / "step-00000000" / "model.safetensors" if context.folder else None
    state = load_file(path) if path is not None and path.is_file() else None
    return state if state is not None and set(context.catalogue.addresses) <= set(state) else None
