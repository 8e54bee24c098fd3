"""What `qkv train` says to a person at the end: how good the loss is, one sample, where things are, what is next."""

import itertools
import math
import shlex
from typing import TYPE_CHECKING, NamedTuple

from qkv.commands.printing import screen
from qkv.errors import typed
from qkv.inspection.answers.loss import NOTHING
from qkv.jsontypes import JsonMapping
from qkv.words import figure, many

if TYPE_CHECKING:
    from qkv.api import Run
    from qkv.tasks import Standing, Task
    from qkv.telemetry import Sample

__all__ = ["loss_rows", "print_outcome"]

_STOPPED = {
    "steps": "all its steps are done",
    "minutes": "its time was up",
    "loss": "it reached the target loss",
    "budget": "validation had stopped falling",
    "diverged": "it diverged (losses far above those of guessing); train again with a lower rate: --set lr=...",
    "watched": "it was watched in a program of its own",
}
_LESS_NGRAM = "loss_less_ngram"
"""The fact of a run that holds its loss minus that of the best n-gram, with its interval."""
_LONGEST_SAMPLE = 300
_SHORT_EXAMPLE = 80


def print_outcome(run: "Run") -> None:
    """The end of a training, for a person."""
    with run.recorded() as telemetry:
        summary = {**run.summary, _LESS_NGRAM: telemetry.fact(_LESS_NGRAM)}
    print()
    if summary.get("val_loss") is not None:
        metric = run.task.metric.replace("_", " ")
        title = "validation" if run.task.judged else "validation loss"
        heads, rows = [title, f"nats per {run.task.target}", metric, ""], loss_rows(summary, run.task)
        filled = [i for i, _ in enumerate(heads) if any(row[i] for row in rows)]
        screen.print_table([heads[i] for i in filled], [[row[i] for i in filled] for row in rows])
        if said := _diverged(run) or _verdict(summary, run.task):
            print(said)
    samples = _last_samples(run)
    for sample in samples:
        shown = _cut(run.task.shown(sample.prompt, sample.text if sample.text.strip() else f"({NOTHING})"))
        print(f"\nIt {'answers' if run.task.judged else 'writes'}:  {screen.shown(shown)}")
    because, steps = summary.get("stopped_because", ""), summary.get("steps", 0)
    stopped = _STOPPED.get(because, f"it stopped because of {because}")
    target = run.config.training.until_loss
    if target and because in ("steps", "minutes", "budget"):
        stopped += f", and the target of {target:g} was not reached (more updates: --steps {2 * steps})"
    print(
        f"\n{many(steps, 'step')}, {many(summary.get('tokens', 0), 'token')}, {summary.get('parameters', 0):,}"
        f" parameters, {summary.get('train_seconds') or 0:.0f} s of training; {stopped}."
    )
    report = run.folder.report
    where = f", the report in {report} (a page for any browser)" if report.exists() else ""
    print(f"The run is in {run.path}{where}")
    print(f"\nNext:  {_next(run, samples, has_report=report.exists())}")


def _next(run: "Run", samples: "list[Sample]", *, has_report: bool) -> str:
    """What to type to look at the run, and to ask it something; a line each."""
    folder = typed(run.path)
    looks = {f"qkv show {folder}": "what training did, in the terminal", f"qkv view {folder}": "the same in a browser"}
    if not has_report:
        looks[f"qkv report {folder}"] = "the same as one file"
    width = max(map(len, looks))
    lines = [f"{typed:{width}}   {about}" for typed, about in looks.items()]
    example = "" if run.config.watched == "names" else _example(run, samples)
    if example:
        lines.append(f"qkv predict {folder} {shlex.quote(example)}")
    return "\n       ".join(lines)


def loss_rows(summary: JsonMapping, task: "Task") -> list[tuple[str, str, str, str]]:
    """The run among the baselines, worst first: name, nats per target, the task's metric, how it stands by the run."""
    own = _Figures("this model", summary["val_loss"], summary.get(task.metric))
    others = _baselines(summary, task)
    rows = [(own, ""), *((other, _mark(summary, other, task)) for other in others)]
    rows.sort(key=lambda row: row[0].rank(task))
    return [(row.name, _or_empty(row.nats), _or_empty(row.metric), mark) for row, mark in rows]


class _Figures(NamedTuple):
    """A model or a baseline: what it is called, nats per target, the task's metric; None where it has none."""

    name: str
    nats: float | None
    metric: float | None

    def rank(self, task: "Task") -> float:
        """Higher is better: the metric of a task that is judged by one, else minus the loss."""
        if task.judged and self.metric is not None:
            return self.metric if task.higher_is_better else -self.metric
        return -float("inf") if self.nats is None else -self.nats


_MARKS: "dict[Standing, str]" = {"better": "beaten", "level": "no clear difference", "worse": "not beaten"}


def _mark(summary: JsonMapping, other: _Figures, task: "Task") -> str:
    stands = _stands(summary, other, task)
    if stands == "better" and _has_lower_loss(summary, other, task):
        return f"beaten in {task.metric.replace('_', ' ')}, not in loss"
    return _MARKS[stands]


def _has_lower_loss(summary: JsonMapping, other: _Figures, task: "Task") -> bool:
    """Whether a baseline has the lower loss, where the task is judged by another figure."""
    by_metric = task.judged and other.metric is not None
    return by_metric and other.nats is not None and other.nats < summary["val_loss"]


def _stands(summary: JsonMapping, other: _Figures, task: "Task") -> "Standing":
    """How the run stands beside a baseline: by the metric and its interval where the task is judged by one."""
    from qkv.tasks import standing

    own = summary.get(task.metric)
    if task.judged and own is not None and other.metric is not None:
        interval = summary.get(f"{task.metric}_interval")
        return standing(own, interval, other.metric, higher_is_better=task.higher_is_better)
    if other.name.startswith("best n-gram") and (less := summary.get(_LESS_NGRAM)):
        return standing(less["difference"], (less["low"], less["high"]), 0.0, higher_is_better=False)
    return standing(
        summary["val_loss"], None, float("inf") if other.nats is None else other.nats, higher_is_better=False
    )


def _baselines(summary: JsonMapping, task: "Task") -> list[_Figures]:
    nats, metrics = summary.get("baselines_nats") or {}, summary.get("baselines") or {}
    return [
        _Figures(label.format(order=nats.get("ngram_order")), nats.get(name), metrics.get(name))
        for name, label in task.yardsticks.items()
        if nats.get(name) is not None or metrics.get(name) is not None
    ]


def _or_empty(value: float | None) -> str:
    return "" if value is None else figure(value)


def _verdict(summary: JsonMapping, task: "Task") -> str:
    found = _baselines(summary, task)
    if not found:
        return ""
    best = max(found, key=lambda one: one.rank(task))
    name = best.name.split(" (")[0].split(",")[0].removeprefix("the ")
    by_metric = task.judged and best.metric is not None
    size = f"{task.metric} {_or_empty(best.metric)}" if by_metric else f"{_or_empty(best.nats)} nats"
    stands = _stands(summary, best, task)
    lower = [one for one in found if _has_lower_loss(summary, one, task)]
    if stands == "better" and lower:
        least = min(lower, key=lambda one: one.nats or 0.0)
        return (
            f"Better than every baseline in {task.metric.replace('_', ' ')}, but not in loss:"
            f" {least.name.split(' (')[0]} has {_or_empty(least.nats)} nats."
        )
    if stands == "better":
        return f"Better than every baseline; the nearest is the {name} with {size}."
    if stands == "level":
        more = f"more validation {task.items or task.examples} would tell"
        return f"Not significantly different from the {name} with {size}; {more}."
    return f"The {name} is better, with {size}: more training or more data would help."


def _diverged(run: "Run") -> str:
    """What a loss says that is worse than that of a model which learned nothing, and what to type; or ""."""
    from qkv.tasks import worse_than_nothing

    model, optimizer, loss = run.config.model, run.config.training.optimizer, run.summary["val_loss"]
    n_answers = len(model.classes) or model.sizes.d_vocab
    if run.task.judged or not worse_than_nothing(loss, n_answers):
        return ""
    counted = (run.summary.get("baselines_nats") or {}).get("unigram")
    if counted is not None and worse_than_nothing(counted, n_answers):
        return (
            f"Worse than knowing nothing ({figure(math.log(n_answers))} nats), and so is counting the training"
            " text: the validation text is unlike it; --val FILE names another"
        )
    rates = {"lr": optimizer.lr} | ({"muon_lr": optimizer.muon_lr} if optimizer.kind == "muon" else {})
    words = " ".join(f"--set {name}={rate / 10:g}" for name, rate in rates.items())
    return (
        f"Worse than knowing nothing ({figure(math.log(n_answers))} nats): the learning rate may be too high;"
        f" a tenth of it is {words}"
    )


def _last_samples(run: "Run") -> "list[Sample]":
    with run.recorded() as telemetry:
        samples = telemetry.samples()
    return [one for one in samples if one.step == samples[-1].step]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SAMPLE else text[:_LONGEST_SAMPLE] + " ..."


def _example(run: "Run", samples: "list[Sample]") -> str:
    """What a person can give to `qkv predict`: a short input of the run's own text, else the task's example."""
    own = [short for one in samples if (short := _beginning(one.prompt)) and ("[MASK]" in short or not run.task.marks)]
    return min(own, key=len, default=run.task.prompt)


def _beginning(text: str) -> str:
    """Its first words, or letters where those are long; what cannot be printed ends it."""
    line = "".join(itertools.takewhile(str.isprintable, " ".join(text.split())))
    if len(line) <= _SHORT_EXAMPLE:
        return line
    whole, _, _ = line[: _SHORT_EXAMPLE + 1].rpartition(" ")
    return whole or line[:_SHORT_EXAMPLE]
