"""What `qkv train` says to a person at the end: how good the loss is, one sample, where things are, what is next."""

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qkv.commands import screen

if TYPE_CHECKING:
    from qkv.api import Run

__all__ = ["loss_rows", "print_outcome"]

_NAMES = {
    "unigram": "unigram (how often each token occurs)",
    "bigram": "bigram (which token follows which)",
    "ngram": "best n-gram (Kneser-Ney, order {order})",
    "xz": "xz, given the training text",
}
_STOPPED = {
    "steps": "all its steps are done",
    "minutes": "its time was up",
    "loss": "it reached the target loss",
    "budget": "validation had stopped falling",
}
_LONGEST_SAMPLE = 300


def print_outcome(run: "Run") -> None:
    """The end of a training, for a person."""
    summary = run.summary
    print()
    if summary.get("val_loss") is not None:
        screen.print_table(["validation loss", "nats per token", "bits per byte", ""], loss_rows(summary))
        print(_verdict(summary))
    sample = _last_sample(run)
    if sample:
        print(f"\nIt writes:  {screen.shown(sample)}")
    stopped = _STOPPED.get(summary["stopped_because"], f"it stopped because of {summary['stopped_because']}")
    print(
        f"\n{summary['steps']:,} steps, {summary['tokens']:,} tokens, {summary['parameters']:,} parameters, "
        f"{summary['train_seconds']:.0f} s of training; {stopped}."
    )
    folder = shlex.quote(str(run.path))
    report = run.path / "report.html"
    print(f"The run is in {run.path}" + (f", the report in {report}" if report.exists() else ""))
    prompt = "the [MASK] of" if run.task.name == "masked" else "The "
    print(f"\nNext:  qkv show {folder}\n       qkv predict {folder} {shlex.quote(prompt)}")


def loss_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """The run's loss among the baselines, worst first: name, nats per token, bits per byte, whether it is beaten."""
    nats, bits = summary.get("baselines_nats") or {}, summary.get("baselines") or {}
    own = summary["val_loss"]
    rows = [(own, "this model", summary.get("bits_per_byte"), "")]
    for name, label in _NAMES.items():
        if nats.get(name) is not None:
            mark = "beaten" if own < nats[name] else "not beaten"
            rows.append((nats[name], label.format(order=nats.get("ngram_order")), bits.get(name), mark))
    rows.sort(key=lambda row: -row[0])
    return [
        (name, screen.number(value), screen.number(per_byte) if per_byte is not None else "", mark)
        for value, name, per_byte, mark in rows
    ]


def _verdict(summary: Mapping[str, Any]) -> str:
    nats, own = summary.get("baselines_nats") or {}, summary["val_loss"]
    values = {name: nats[name] for name in _NAMES if nats.get(name) is not None}
    if not values:
        return ""
    best = min(values, key=values.__getitem__)
    name = {"ngram": "best n-gram", "xz": "compressor xz"}.get(best, best)
    if own < values[best]:
        return f"Better than every baseline; the nearest is the {name} with {screen.number(values[best])} nats."
    return f"The {name} is better, with {screen.number(values[best])} nats: more training or more text would help."


def _last_sample(run: "Run") -> str:
    from qkv.telemetry import Telemetry

    with Telemetry(run.path / "telemetry.sqlite") as telemetry:
        samples = telemetry.samples()
    if not samples:
        return ""
    text = samples[-1].text if run.task.name == "masked" else samples[-1].prompt + samples[-1].text
    return text if len(text) <= _LONGEST_SAMPLE else text[:_LONGEST_SAMPLE] + " ..."
