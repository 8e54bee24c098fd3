"""The ledger: how much of the drop in loss is due to each matrix, as an integral along its path.

Training moves the weights theta along a path, and the loss L of a fixed batch changes by the integral of <grad L, d
theta> along it. That integral is a sum over weights, so the change falls apart into what each weight's own movement
earned (loss change allocation: Lan, Liu, Zhou, Yosinski 2019, arXiv 1909.01440). Between two entries the path is taken
as the straight line from the weights A to the weights B, and the integral by Simpson's rule with P panels:

    earned_i = (B_i - A_i) / (6 P) * sum over j = 0 .. 2P of c_j dL/dtheta_i (A + j/(2P) (B - A)),   c = 1 4 2 4 .. 4 1

in nats of the probe batch's mean loss; below 0 is what lowered it. Summed over all weights this is L(B) - L(A) but for
the rule's error, which is known at every entry, since both losses are: where it is too large the panels are doubled, so
the ledger closes by construction, and says how closely. (Nodes are never computed twice: of doubled panels the old ones
are the even nodes.) A longer interval with more panels closes too, but accounts for the straight line and not for the
way training took. With one update between entries the path *is* the straight line.

A property of the parametrisation: what a factor of W_Q W_K^T earns depends on how the two share their product. The
ledger keeps a model of its own, on which it runs forward and backward; training is only read. An entry costs 2 P passes
forward and backward over the probe batch.
"""

import base64
import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from qkv.errors import AddressError, ConfigError
from qkv.instruments.pieces import entry_row, head_rows
from qkv.instruments.probe import fixed_batch
from qkv.instruments.schedule import is_by_row
from qkv.models.matrices import Catalogue
from qkv.models.parts import Entry
from qkv.models.zoo import Model, stacks_of
from qkv.tasks.batch import Batch
from qkv.telemetry import LEDGER_ARM, MeasureRow, Store
from qkv.training.record import Observer, Outcome, RunContext, StepRecord

EARNED = MeasureRow(
    name="earned",
    meaning="By how much the matrix's own movement since the entry before changed the loss of a fixed probe batch.",
    formula="integral of <dL/dW, dW> along the straight line between two entries, by Simpson's rule",
    range="any number of nats per target; below 0 lowered the loss; all matrices sum to its change",
    source="Lan, Liu, Zhou and Yosinski 2019 (arXiv 1909.01440)",
    property_of="parametrisation",
    null="0 for a matrix that does not move. The random-label control keeps no ledger.",
    decision="Which matrices a shorter or cheaper training may leave frozen: those that earn next to nothing.",
)
EARNED_ROWS = MeasureRow(
    name="earned_rows",
    meaning="The same for each token's row (of W_U: column), summed since step 0.",
    formula="sum over the row of dL/dW dW, summed over entries",
    range="any number of nats per target, one for each token",
    source=EARNED.source,
    property_of="parametrisation",
    null="0 for a row that no gradient ever reached.",
    decision="Whether rare tokens' rows are worth training: theirs earn little where the probe does not hold them.",
)

ROW_GRADIENT = MeasureRow(
    name="row_gradient",
    meaning="How much gradient each token's row (of W_U: column) has seen in training since step 0, after clipping.",
    formula="root of the sum over the updates of entries of |G[t]|^2",
    range="0 and up, in nats per unit of a weight, one for each token",
    source="counting",
    property_of="parametrisation",
    null="Exactly 0 for a token never met, where W_E is not also the output matrix.",
    decision="Whether a rare token's row has had anything to learn from: with next to none it is still its start.",
)

_BY_ROW = (EARNED_ROWS.name, ROW_GRADIENT.name)
_Rows = dict[str, dict[str, np.ndarray]]
"""Measure -> table -> one number for each row; of `row_gradient` its square."""

_KEPT = 3
"""How many checkpoints' row sums are kept, for a resume that has to pass a damaged one over."""


@dataclass(frozen=True, kw_only=True)
class LedgerConfig:
    """Whether and how closely the ledger is kept. Raises ConfigError for a value out of range."""

    every: int = 0
    """Updates between two entries, those at checkpoints aside; 0 keeps no ledger."""
    panels: int = 1
    """Panels of Simpson's rule that an entry begins with; each costs two passes over the probe batch."""
    most_panels: int = 8
    """Where its panels are no longer doubled."""
    tolerance: float = 1e-5
    """Nats an update that an entry may leave unaccounted for before its panels are doubled."""
    windows: int = 8
    """Windows of the validation text that are the probe batch, from its beginning."""

    def __post_init__(self) -> None:
        for name, least in (("every", 0), ("panels", 1), ("most_panels", self.panels), ("windows", 1)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"ledger.{name} is {getattr(self, name)}; expected a whole number of at least {least}"
                )
        if not 0 <= self.tolerance < float("inf"):
            raise ConfigError(f"ledger.tolerance is {self.tolerance}; expected a number of nats of at least 0")


def check_kept(measure: str, config: LedgerConfig) -> None:
    """Raises AddressError where a ledger alone has the measure, and none was kept."""
    if measure in (EARNED.name, *_BY_ROW) and not config.every:
        raise AddressError(
            f"{measure} is of the ledger, and this run kept none; train it with --set ledger.every=1"
            ' (set={"ledger.every": 1})'
        )


ModelT = TypeVar("ModelT", bound=nn.Module)


class Account(Generic[ModelT]):
    """A model's loss on one batch, and what a straight move of its weights earns, matrix by matrix.

    `model` is copied; `loss(model, batch)` gives (sum of nats, number of targets).
    """

    def __init__(
        self, model: ModelT, loss: Callable[[ModelT, Batch], tuple[Tensor, int]], batch: Batch, config: LedgerConfig
    ) -> None:
        self._model, self._loss, self._batch, self._config = copy.deepcopy(model).eval(), loss, batch, config
        self._model.requires_grad_(True)
        for stack in stacks_of(self._model):  # what is stopped in training is earned all the same
            stack.stops = {}
        self.catalogue = Catalogue(self._model)
        self.entries: list[Entry] = list(self.catalogue)
        self._parameters = [entry.parameter for entry in self.entries]
        self._at = [torch.empty(0)] * len(self.entries)
        self.loss = float("nan")
        """Mean nats per target at the weights of the latest `begin` or `move`."""
        self.n_passes = 0
        """Forward and backward passes so far."""

    def begin(self, weights: Sequence[Tensor]) -> None:
        """Stand at these weights, one for each of `entries`."""
        self._at = [w.detach().clone() for w in weights]
        self.loss, self._gradients = self._differentiate(self._at)

    def move(self, weights: Sequence[Tensor], tolerance: float = 0.0) -> list[Tensor]:
        """Go straight on to these weights: what each single weight earned, in the shapes of storage.

        Panels are doubled until the sum is within `tolerance` nats of the change of the loss, or they are the most.
        """
        start, ends, before = self._at, self._gradients, self.loss
        self.begin(weights)
        moved = [b - a for a, b in zip(start, self._at, strict=True)]
        torch._foreach_add_(ends, self._gradients)  # type: ignore[attr-defined]
        n = 2 * self._config.panels
        odd = self._sum_at(start, moved, range(1, n, 2), n)
        even = self._sum_at(start, moved, range(2, n, 2), n)
        while True:
            parts = zip(ends, odd, even, moved, strict=True)  # Simpson: moved (ends + 4 odd + 2 even) / (3 n)
            earned = [(e.double() + 4 * o.double() + 2 * v.double()) * d.double() / (3 * n) for e, o, v, d in parts]
            error = sum(float(part.sum()) for part in earned) - (self.loss - before)
            if abs(error) <= tolerance or 2 * n > 2 * self._config.most_panels:
                return earned
            n *= 2
            torch._foreach_add_(even, odd)  # type: ignore[attr-defined]
            odd = self._sum_at(start, moved, range(1, n, 2), n)

    def _sum_at(self, start: Sequence[Tensor], moved: Sequence[Tensor], nodes: range, n: int) -> list[Tensor]:
        """The sum of the gradients at start + j/n moved, over the nodes j."""
        total = [torch.zeros_like(a) for a in start]
        for j in nodes:
            there = [torch.add(a, d, alpha=j / n) for a, d in zip(start, moved, strict=True)]
            torch._foreach_add_(total, self._differentiate(there)[1])  # type: ignore[attr-defined]
        return total

    def _differentiate(self, weights: Sequence[Tensor]) -> tuple[float, list[Tensor]]:
        """The mean loss at these weights, and its gradients."""
        with torch.no_grad():
            for parameter, values in zip(self._parameters, weights, strict=True):
                parameter.copy_(values)
        with torch.enable_grad():
            nats, n = self._loss(self._model, self._batch)
            found = torch.autograd.grad(nats / n, self._parameters, allow_unused=True, materialize_grads=True)
        self.n_passes += 1
        return float(nats.detach()) / n, [gradient.clone() for gradient in found]


class Ledger(Observer):
    """Keeps the ledger of one training in `store`: `earned` of every matrix and head at every entry, losses of the
    probe batch, and `earned_rows` and `row_gradient` of the token tables at powers of two and at the end. There is an
    entry at every checkpoint too, and the last is the last update's, wherever they fall.

    It stands before the recorder among the observers, since both drop what is later than a resume. After a kill and a
    resume its rows are equal; where an interruption saved a checkpoint of its own, one interval is cut in two there.
    """

    def __init__(self, store: Store, config: LedgerConfig) -> None:
        assert config.every, "a ledger that is off is not made"
        self.store, self.config = store, config
        self.seconds = 0.0
        """Spent on it in this session."""
        self._registered = False
        self._rows: _Rows | None = {}
        """Sums by token."""
        self._kept: dict[str, dict[str, dict[str, str]]] = {}

    def on_start(self, context: RunContext) -> None:
        """Drop what is later than this step, and stand at its weights."""
        began, step = time.perf_counter(), context.start_step
        self.store.drop_after(step if step > 0 else -1, arm=LEDGER_ARM)
        self.store.add_arm(LEDGER_ARM, "ledger", "losses of the run itself on the ledger's probe batch")
        assert context.corpus is not None
        sizes = cast(Model, context.model).config.sizes
        batch = fixed_batch(context.task, context.corpus, sizes, self.config.windows)
        assert batch is not None
        batch = batch.to(context.machine.device)
        self._account = Account(context.model, context.task.loss, batch, self.config)
        self._catalogue = context.catalogue
        self._tables = [i for i, e in enumerate(self._account.entries) if e.kind in ("W_E", "W_U")]
        self._account.begin(self._weights(context.catalogue))
        self._rows = self._restored(step)
        self._step, self._registered = step, False  # what was named later than this step is forgotten
        if self._rows is None:
            self.store.add_session(step, "start", "the ledger's sums by token are lost: rows are not kept from here on")
        if step == 0:
            facts = {"every": self.config.every, "windows": len(batch.inputs), "targets": batch.n_targets}
            self.store.set_fact("ledger.probe", facts)
            self.store.add_evaluation(0, self._account.loss, is_best=False, arm=LEDGER_ARM)
        self.store.flush()
        self.seconds += time.perf_counter() - began

    def wants(self, step: int) -> bool:
        """Where an entry is due."""
        return step % self.config.every == 0

    def after_update(self, record: StepRecord) -> None:
        began = time.perf_counter()
        if self._enter(record.step) and self._rows is not None:
            for i in self._tables:
                entry = self._account.entries[i]
                gradient = record.catalogue.entry(entry.address).parameter.grad
                if gradient is not None:
                    seen = gradient.double().square().sum(1 - entry.axis).cpu().numpy()
                    self._rows[ROW_GRADIENT.name][entry.address] += seen
            if is_by_row(record.step):
                self._write_rows()
        self.seconds += time.perf_counter() - began

    def _enter(self, step: int) -> bool:
        """The share of each matrix since the previous entry; False if the loss is no longer a number."""
        self._register()
        between = step - self._step
        earned = self._account.move(self._weights(self._catalogue), self.config.tolerance * between)
        self._step = step
        if not math.isfinite(self._account.loss):  # the training is about to say so itself
            return False
        values = [v for part, e in zip(earned, self._account.entries, strict=True) for v in _by_piece(part, e)]
        self.store.add_values(step, EARNED.name, self._addresses, values)
        self.store.add_evaluation(step, self._account.loss, is_best=False, arm=LEDGER_ARM)
        if self._rows is not None:
            for i in self._tables:
                entry = self._account.entries[i]
                self._rows[EARNED_ROWS.name][entry.address] += earned[i].sum(1 - entry.axis).cpu().numpy()
        return True

    def on_checkpoint(self, step: int) -> None:
        """Enter what was earned up to here, where a resume begins; keep the sums by token beside the checkpoint."""
        began = time.perf_counter()
        if step > self._step:
            self._enter(step)
        self.seconds += time.perf_counter() - began
        if self._rows is None:
            return
        self._kept[str(step)] = {
            measure: {a: base64.b64encode(v.tobytes()).decode() for a, v in sums.items()}
            for measure, sums in self._rows.items()
        }
        self._kept = dict(list(self._kept.items())[-_KEPT:])
        self.store.set_clock_fact("ledger.rows", self._kept)

    def on_end(self, outcome: Outcome) -> None:
        """The updates since the last entry, the last sums by token, and what the ledger cost."""
        began = time.perf_counter()
        if outcome.stopped_because not in ("interrupt", "nan", "spike"):
            if outcome.steps > self._step:
                self._enter(outcome.steps)
            if self._rows is not None and self._registered:
                self._write_rows()
        self.seconds += time.perf_counter() - began
        whole = outcome.resumed_from_step is None and outcome.train_seconds > 0
        share = round(self.seconds / outcome.train_seconds, 5) if whole else None
        cost = {"seconds": round(self.seconds, 4), "share": share, "passes": self._account.n_passes}
        self.store.set_clock_fact("ledger", cost)

    def _weights(self, catalogue: Catalogue) -> list[Tensor]:
        return [catalogue.entry(entry.address).parameter for entry in self._account.entries]

    def _register(self) -> None:
        """Names get their numbers at the first entry, after all others' of the start."""
        if self._registered:
            return
        account = self._account
        rows = [row for e in account.entries for row in (entry_row(e, account.catalogue), *head_rows(e))]
        self._addresses = [row.address for row in rows]
        self.store.register_measures([EARNED, EARNED_ROWS, ROW_GRADIENT])
        self.store.register_addresses(rows)
        self._registered = True

    def _write_rows(self) -> None:
        for measure, sums in (self._rows or {}).items():
            for address, values in sums.items():
                shown = np.sqrt(values).astype(np.float32) if measure == ROW_GRADIENT.name else values
                self.store.add_vector(self._step, measure, address, shown)

    def _restored(self, step: int) -> "_Rows | None":
        """The sums by token at a step: 0 at the start, else those beside its checkpoint, None where they are not."""
        tables = [self._account.entries[i] for i in self._tables]
        if step == 0:
            self._kept = {}
            return {m: {e.address: np.zeros(e.parameter.shape[e.axis]) for e in tables} for m in _BY_ROW}
        self._kept = {s: kept for s, kept in (self.store.clock_fact("ledger.rows") or {}).items() if int(s) <= step}
        found = self._kept.get(str(step))
        if found is None:
            return None
        return {m: {a: np.frombuffer(base64.b64decode(t)).copy() for a, t in found[m].items()} for m in _BY_ROW}


def _by_piece(earned: Tensor, entry: Entry) -> Iterator[float]:
    """What a matrix earned, then each of its heads."""
    yield float(earned.sum())
    if entry.n_heads:
        rest = tuple(axis for axis in range(earned.ndim + 1) if axis != entry.axis)
        yield from earned.unflatten(entry.axis, (entry.n_heads, -1)).sum(rest).tolist()
