"""One training of a study: a trial in, a row of results out. Nothing is written here.

It goes through the same composition root and loop as `qkv train`, without report, null, samples or telemetry, on one
thread in float32, so that a row is the same bits in whatever process and order it is made. A loss that stops being a
number is an outcome: it counts as ln(d_vocab) nats, the loss of guessing blindly, as declared beforehand.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.data.corpus import joined_hash
from qkv.data.examples import Examples
from qkv.errors import ConfigError, NonFiniteError, RunError, SourceError
from qkv.extensions import check_same, hashes
from qkv.jsontypes import JsonObject
from qkv.recipe import Parts, take_body
from qkv.recipe.manifest import code_of
from qkv.studies.engine.assembly import MACHINE, MADE_TASKS, parts_of
from qkv.studies.engine.contrastive import train_contrastive
from qkv.studies.engine.design import Arm, Trial
from qkv.studies.engine.nested import inner_study
from qkv.studies.engine.reparametrized import MappedRows
from qkv.studies.engine.training_log import Finished, Trained
from qkv.studies.probes.onsets import Onsets
from qkv.studies.probes.registry import OF_THE_LOSS, PROBES, is_metric, measured, metric
from qkv.studies.probes.shared import shared
from qkv.studies.probes.watchers import Ledger, Way
from qkv.studies.synthetic import streams
from qkv.tasks import validation_loss
from qkv.training.record import Constraint, EvaluationRecord, Observer, StepRecord
from qkv.training.spikes import worse_than_guessing


class _Curve(Observer):
    """The loss curve, and the training loss over the last tenth."""

    def __init__(self, steps: int) -> None:
        self.points: list[tuple[int, float]] = []
        self._last, self._from = [], steps - max(1, steps // 10)

    def wants(self, step: int) -> bool:
        return step > self._from

    def after_update(self, record: StepRecord) -> None:
        self._last.append(record.loss)

    def on_evaluation(self, evaluation: EvaluationRecord) -> None:
        self.points.append((evaluation.step, evaluation.loss))

    @property
    def train_loss(self) -> float:
        return sum(self._last) / len(self._last) if self._last else math.nan


def run_trial(trial: Trial, cache: Path | None) -> JsonObject:
    """Train, score and measure: the row without its key. Takes seconds; deterministic but for `seconds`.

    Raises UserError for a trial that does not fit its text or model.
    """
    began = time.perf_counter()
    corpus: Any = streams.corpus(trial.text, trial.source, trial.scale.val_tokens, cache, trial.slice)
    known = {corpus.sha256, joined_hash(corpus.sha256, "split 2")}  # a table read for its labels is split by its rows
    if trial.text.stream in ("text", "labelled") and trial.source_sha256 not in known:
        raise SourceError(
            f"{corpus.name!r} has changed since the study began: it was sha256 {trial.source_sha256[:16]}..., now it is"
            f" {corpus.sha256[:16]}...; bring the old text back, or begin the study anew with the new one"
        )
    parts = parts_of(trial, corpus)
    if trial.arm.code:
        own = hashes({name: metric(name) for name in trial.arm.probes if is_metric(name)})
        check_same(f"the arm {trial.arm.name!r}", dict(trial.arm.code), code_of(parts.config) | own)
    watched = {name: WATCHERS[name]() for name in trial.arm.probes if name in WATCHERS}
    n_answers = len(parts.config.model.classes) or parts.config.model.sizes.d_vocab
    worst = math.log(n_answers)
    frozen = parts.plan.frozen(0) & parts.plan.frozen(trial.scale.steps - 1)
    row: JsonObject = {"lr": trial.lr, "seed": trial.seed, "diverged": False, "measures": {}}
    row["frozen"] = sorted(frozen)
    try:
        with MACHINE.active():
            trained = TRAINERS[trial.arm.trainer](trial, parts, tuple(watched.values()))
            row["frozen"] = sorted(_still(trial, parts, frozen))
            loss = validation_loss(parts.model, parts.task, corpus, max(1, 2048 // trial.scale.n_ctx))
            if not math.isfinite(loss):
                raise NonFiniteError(f"the validation loss is {loss}")
            if trained.steps and worse_than_guessing(loss, n_answers):
                raise NonFiniteError(f"the training diverged: the validation loss is {loss:g}")
            finished = Finished(trial=trial, parts=parts, loss=loss, watched=watched)
            row["measures"] |= trained.measures
            for name in trial.arm.probes:
                row["measures"] |= measured(name, finished)
    except NonFiniteError:
        row |= {"diverged": True, "loss": worst, "best_loss": worst, "best_step": 0, "curve": [], "steps": 0}
        blind = Finished(trial=trial, parts=parts, loss=worst)
        for name in trial.arm.probes:
            row["measures"] |= PROBES[name](blind) if name in OF_THE_LOSS else {}
    else:
        row |= {"loss": loss, "best_loss": min(loss, trained.best_loss), "best_step": trained.best_step}
        row |= {"curve": [list(point) for point in trained.curve], "steps": trained.steps}
        if math.isfinite(trained.train_loss):
            row["train_loss"] = trained.train_loss
    finally:
        parts.plan.at_end()
    return row | {"seconds": round(time.perf_counter() - began, 3)}


def _still(trial: Trial, parts: Parts, frozen: set[str]) -> set[str]:
    """What was frozen for the whole training; in an arm that stops gradients, also what kept the bits of its start
    because none reached it.

    Raises RunError where something frozen has other bits: then nothing that the arm measured means what it says.
    """
    state = parts.catalogue.state()
    still = {address for address in state if torch.equal(state[address], parts.start[address])}
    if moved := sorted(frozen - still):
        raise RunError(f"{', '.join(moved)} moved although frozen; this is a bug of qkv's, please report it")
    cuts = any(change.partition("=")[2].startswith("stop_gradient") for change in trial.arm.changes)
    return still if cuts else frozen


# ways to train

Watchers = Sequence[Observer]
WATCHERS: Mapping[str, Callable[[], Observer]] = {"ledger": Ledger, "order of movement": Way, "what moved when": Way}
"""Probe -> what has to look on while the model is trained."""


def _loop(trial: Trial, parts: Parts, watchers: Watchers, constraint: Constraint | None = None) -> Trained:
    """The training loop of `qkv train`, to its horizon; the changes of the arm hold, or what stands around them."""
    if trial.arm.labels not in ("real", "uniform"):
        raise ConfigError(
            f"the arm {trial.arm.name!r} asks for {trial.arm.labels} labels; expected real or uniform. Studies of"
            " earlier versions had others: begin this study again, in a new folder"
        )
    curve = _Curve(parts.config.training.schedule.steps)
    outcome = parts.train(
        constraint=constraint or parts.plan, observers=[curve, *watchers], random_labels=trial.arm.labels == "uniform"
    )
    best = outcome.best_loss
    return Trained(
        best_loss=best if math.isfinite(best) else math.inf,
        best_step=outcome.best_step,
        curve=tuple(curve.points),
        train_loss=curve.train_loss,
        steps=outcome.steps,
    )


def _mapped_rows(trial: Trial, parts: Parts, watchers: Watchers) -> Trained:
    """The same, W_E frozen but for one trained map."""
    table = parts.catalogue.entry("W_E").parameter
    return _loop(trial, parts, watchers, MappedRows(parts.plan, table, parts.config.training))


def _timed(trial: Trial, parts: Parts, watchers: Watchers) -> Trained:
    """The same with looks at a few windows on the way, for the steps at which it passes its stages."""
    onsets = Onsets()
    trained = _loop(trial, parts, (*watchers, onsets))
    return dataclasses.replace(trained, measures=onsets.found())


_OTHER_SEED = 500_000
"""Above every seed that is reported, below those that are tuned on."""


def _other_seed(trial: Trial, parts: Parts, watchers: Watchers) -> Trained:
    """The loop on a seed of its own: other starts, other batches in the same replicate, to see what noise alone does.

    The model, and what counts as its start, are those of that training.
    """
    other = dataclasses.replace(trial, seed=trial.seed + _OTHER_SEED)
    made = parts_of(other, parts.corpus)
    trained = _loop(other, made, watchers)
    parts.catalogue.load_state(made.catalogue.state())
    parts.start.update(made.start)
    return trained


def _two_halves(trial: Trial, parts: Parts, watchers: Watchers) -> Trained:
    """The loop on the first half of the text, and from the same start on the second with draws of its own.

    The model is that of the first; see `probes.shared.shared` for what is measured.
    """
    made = trial.arm.task in MADE_TASKS  # whose windows are other ones for another seed
    one, other = (parts.corpus, parts.corpus) if made else streams.halves(parts.corpus)
    twin = parts_of(dataclasses.replace(trial, seed=trial.seed + _OTHER_SEED), other)
    twin.catalogue.load_state(parts.start)
    _loop(trial, twin, ())
    trained = _loop(trial, dataclasses.replace(parts, corpus=one), watchers)
    return dataclasses.replace(trained, measures=shared(parts, twin))


def before(trial: Trial) -> Trial:
    """The training that comes before that of a pretrained arm: the same seed, layout and text."""
    settings = dict(trial.arm.before)
    arm = Arm(
        name="before", what="", text=trial.arm.text, layout=trial.arm.layout, task=settings.pop("task"),
        changes=settings.pop("changes"),
    )  # fmt: skip
    lr = settings.pop("lr")
    return dataclasses.replace(trial, arm=arm, lr=lr, scale=dataclasses.replace(trial.scale, **settings))


@lru_cache(maxsize=64)
def _trained_before(trial: Trial, corpus: Examples) -> dict[str, Tensor]:
    """Weights of the training that comes before others, by address. Arms and rates of a replicate share it."""
    texts = streams.without_labels(corpus)
    parts = parts_of(trial, texts)
    _loop(trial, parts, ())
    return parts.catalogue.state()


def _pretrained(trial: Trial, parts: Parts, watchers: Watchers) -> Trained:
    """The loop from a body that learned another task on the same texts first; its head is as it starts.

    What counts as the start of the arm is where the second training began.
    """
    take_body(parts.catalogue, _trained_before(before(trial), parts.corpus))
    parts.start.update({address: values.clone() for address, values in parts.catalogue.state().items()})
    return _loop(trial, parts, watchers)


TRAINERS: Mapping[str, Callable[[Trial, Parts, Watchers], Trained]] = {
    "loop": _loop,
    "timed": _timed,
    "mapped rows": _mapped_rows,
    "none": lambda trial, parts, watchers: Trained(),  # no step at all: the model as it starts
    "other seed": _other_seed,
    "two halves": _two_halves,
    "pretrained": _pretrained,
    "contrastive": train_contrastive,
    "inner study": lambda trial, parts, watchers: Trained(measures=inner_study(trial)),
}
"""Name -> how a model is trained. A new way is one function and one line here."""
