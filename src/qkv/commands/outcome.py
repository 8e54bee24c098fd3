"""What `qkv train` says to a person at the end: how good the loss is, one sample, where things are, what is next."""

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from qkv.commands import screen

if TYPE_CHECKING:
    from qkv.api import Run
    from qkv.tasks import Task
    from qkv.telemetry import Sample

__all__ = ["loss_rows", "print_outcome"]

_STOPPED = {
    "steps": "all its steps are done",
    "minutes": "its time was up",
    "loss": "it reached the target loss",
    "budget": "validation had stopped falling",
}
_LONGEST_SAMPLE = 300
_SHORT_EXAMPLE = 80


def print_outcome(run: "Run") -> None:
    """The end of a training, for a person."""
    summary = run.summary
    print()
    if summary.get("val_loss") is not None:
        metric = run.task.metric.replace("_", " ")
        title = "validation" if run.task.judged else "validation loss"
        screen.print_table([title, f"nats per {run.task.target}", metric, ""], loss_rows(summary, run.task))
        print(_verdict(summary, run.task))
    samples = _last_samples(run)
    for sample in samples:
        shown = _cut(run.task.shown(sample.prompt, sample.text))
        print(f"\nIt {'answers' if run.task.judged else 'writes'}:  {screen.shown(shown)}")
    stopped = _STOPPED.get(summary["stopped_because"], f"it stopped because of {summary['stopped_because']}")
    print(
        f"\n{summary['steps']:,} steps, {summary['tokens']:,} tokens, {summary['parameters']:,} parameters, "
        f"{summary['train_seconds']:.0f} s of training; {stopped}."
    )
    folder = shlex.quote(str(run.path))
    report = run.path / "report.html"
    print(f"The run is in {run.path}" + (f", the report in {report}" if report.exists() else ""))
    example = _example(run, samples)
    again = f"\n       qkv predict {folder} {shlex.quote(example)}" if example else ""
    print(f"\nNext:  qkv show {folder}{again}")


def loss_rows(summary: Mapping[str, Any], task: "Task") -> list[tuple[str, str, str, str]]:
    """The run among the baselines, worst first: name, nats per target, the task's metric, whether it is beaten."""
    own = _Figures("this model", summary["val_loss"], summary.get(task.metric))
    others = _baselines(summary, task)
    rows = [(own, ""), *((other, "beaten" if own.beats(other, task) else "not beaten") for other in others)]
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

    def beats(self, other: "_Figures", task: "Task") -> bool:
        """Whether it is better than another."""
        return self.rank(task) > other.rank(task)


def _baselines(summary: Mapping[str, Any], task: "Task") -> list[_Figures]:
    nats, metrics = summary.get("baselines_nats") or {}, summary.get("baselines") or {}
    return [
        _Figures(label.format(order=nats.get("ngram_order")), nats.get(name), metrics.get(name))
        for name, label in task.yardsticks.items()
        if nats.get(name) is not None or metrics.get(name) is not None
    ]


def _or_empty(value: float | None) -> str:
    return "" if value is None else screen.number(value)


def _verdict(summary: Mapping[str, Any], task: "Task") -> str:
    found = _baselines(summary, task)
    if not found:
        return ""
    own = _Figures("", summary["val_loss"], summary.get(task.metric))
    best = max(found, key=lambda one: one.rank(task))
    name = best.name.split(" (")[0].split(",")[0].removeprefix("the ")
    by_metric = task.judged and best.metric is not None
    size = f"{task.metric} {_or_empty(best.metric)}" if by_metric else f"{_or_empty(best.nats)} nats"
    if own.beats(best, task):
        return f"Better than every baseline; the nearest is the {name} with {size}."
    return f"The {name} is better, with {size}: more training or more data would help."


def _last_samples(run: "Run") -> "list[Sample]":
    from qkv.telemetry import Telemetry

    with Telemetry(run.path / "telemetry.sqlite") as telemetry:
        samples = telemetry.samples()
    return [one for one in samples if one.step == samples[-1].step]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SAMPLE else text[:_LONGEST_SAMPLE] + " ..."


def _example(run: "Run", samples: "list[Sample]") -> str:
    """What a person can give to `qkv predict`: a short input of the run's own language, else the task's example."""
    own = [one.prompt for one in samples if one.prompt.isprintable() and 0 < len(one.prompt) <= _SHORT_EXAMPLE]
    return run.task.prompt if run.task.continues else min(own, key=len, default=run.task.prompt)
