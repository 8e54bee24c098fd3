"""What `qkv train` says to a person at the end: how good the loss is, one sample, where things are, what is next."""

import itertools
import shlex
from typing import TYPE_CHECKING, NamedTuple

from qkv.commands.printing import screen
from qkv.errors import typed
from qkv.inspection.answers.answer import Evidence
from qkv.inspection.answers.loss import NOTHING, loss
from qkv.jsontypes import JsonMapping
from qkv.words import figure, many, metric_name

if TYPE_CHECKING:
    from qkv.api import Run
    from qkv.tasks import Task
    from qkv.telemetry import Sample

_STOPPED = {
    "steps": "it made all its steps",
    "minutes": "its time was up",
    "loss": "it reached the target loss",
    "budget": "the validation loss had stopped falling",
    "diverged": "it diverged (losses far above those of guessing); train again with a lower rate: --set lr=...",
    "watched": "it was watched in a program of its own",
}
_LONGEST_SAMPLE = 300
_SHORT_EXAMPLE = 80


def print_outcome(run: "Run") -> None:
    """The end of a training, for a person."""
    with run.recorded() as telemetry:
        answer, samples = loss(Evidence(run.path, telemetry)), telemetry.samples()
    samples = [one for one in samples if one.step == samples[-1].step]
    summary = run.summary
    print()
    if summary.get("val_loss") is not None:
        metric = metric_name(run.task.metric)
        title = "validation" if run.task.judged else "validation loss"
        heads, rows = [title, f"nats per {run.task.target}", metric], loss_rows(summary, run.task)
        filled = [i for i, _ in enumerate(heads) if any(row[i] for row in rows)]
        screen.print_table([heads[i] for i in filled], [[row[i] for i in filled] for row in rows])
        if answer is not None:
            print(answer.sentence)
        if said := _diverged(run):
            print(said)
    for sample in samples:
        shown = run.task.shown(sample.prompt, sample.text if sample.text.strip() else f"({NOTHING})")
        cut = shown[:_LONGEST_SAMPLE] + " ..." * (len(shown) > _LONGEST_SAMPLE)
        print(f"\nIt {'answers' if run.task.judged else 'writes'}:  {screen.shown(cut)}")
    because, steps = summary.get("stopped_because", ""), summary.get("steps", 0)
    stopped = _STOPPED.get(because, f"stopped because of: {because}")
    target = run.config.training.until_loss
    if target and because in ("steps", "minutes", "budget"):
        stopped += f", and did not reach the target of {target:g} (try --steps {2 * steps})"
    print(
        f"\n{many(steps, 'step')}, {many(summary.get('tokens', 0), 'token')}, {summary.get('parameters', 0):,}"
        f" parameters, {summary.get('train_seconds') or 0:.0f} s of training; {stopped}."
    )
    report = run.folder.report
    where = f"; open {report} in a browser" if report.exists() else ""
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


def loss_rows(summary: JsonMapping, task: "Task") -> list[tuple[str, str, str]]:
    """The run among the baselines, worst first: name, nats per target, the task's metric."""
    rows = [_Figures("this model", answers_loss(summary, task), summary.get(task.metric))]
    if (alone := summary.get(f"attention_{task.metric}")) is not None:
        rows.append(_Figures("attention alone", summary["val_loss"], alone))
    rows = sorted([*rows, *_baselines(summary, task)], key=lambda row: row.rank(task))
    cells = [["" if n is None else figure(n) for n in (row.nats, row.metric)] for row in rows]
    return [(row.name, nats, metric) for row, (nats, metric) in zip(rows, cells, strict=True)]


def answers_loss(summary: JsonMapping, task: "Task") -> float | None:
    """The loss of a run's answers; None of regress, whose linear model has none."""
    is_whole = f"attention_{task.metric}" not in summary
    return summary.get("stored_loss", summary.get("val_loss") if is_whole else None)


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


def _baselines(summary: JsonMapping, task: "Task") -> list[_Figures]:
    nats, metrics = summary.get("baselines_nats") or {}, summary.get("baselines") or {}
    return [
        _Figures(label.format(order=nats.get("ngram_order")), nats.get(name), metrics.get(name))
        for name, label in task.yardsticks.items()
        if nats.get(name) is not None or metrics.get(name) is not None
    ]


def _diverged(run: "Run") -> str:
    """What to type where the loss is worse than uniform guessing; or ""."""
    from qkv.tasks import worse_than_nothing

    model, optimizer, loss = run.config.model, run.config.training.optimizer, run.summary["val_loss"]
    n_answers = len(model.classes) or model.sizes.d_vocab
    if run.task.judged or not worse_than_nothing(loss, n_answers):
        return ""
    counted = (run.summary.get("baselines_nats") or {}).get("unigram")
    if counted is not None and worse_than_nothing(counted, n_answers):
        return "Another validation text can be given with --val FILE."
    rates = {"lr": optimizer.lr} | ({"muon_lr": optimizer.muon_lr} if optimizer.kind == "muon" else {})
    words = " ".join(f"--set {name}={rate / 10:g}" for name, rate in rates.items())
    return f"With a tenth of the learning rate: {words}"


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
