"""The head of a page: which run, how large, how long, and one line on how good it is.

The line has the loss among the baselines, in words that claim no more than the numbers.
"""

import dataclasses
from pathlib import Path

from qkv.jsontypes import JsonMapping
from qkv.tasks import find_task
from qkv.telemetry import RUN_ARM, Telemetry
from qkv.views.sections.loss import Baseline, LossSection
from qkv.views.sections.made import Fact

__all__ = ["RunFacts", "head_facts", "machine_words", "seconds", "tokens_seen", "verdict"]

LEVEL = 0.005
"""Nats within which a loss and a baseline are called level."""
_WORDS = {
    "unigram": "counts of single tokens",
    "bigram": "counts of pairs",
    "ngram": "the best n-gram",
    "xz": "the compressor xz",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The head of the page: which run, how large, how long, how good."""

    name: str
    task: str
    preset: str
    verdict: str
    unit: str
    """What one token is, in the singular: character, byte, word or token."""
    n_parameters: int | None
    n_tokens: int | None
    n_steps: int | None
    train_seconds: float | None
    machine: str
    facts: tuple[Fact, ...] = ()
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    tied: bool = False
    mixer: str = "attention"
    """What the layers mix positions by: attention, or what stands in its place."""
    control: str = ""
    """What the labels of the random-label control are, in words."""


def verdict(
    loss: LossSection | None,
    what: str,
    steps: int | None,
    metric: str = "",
    among: str = "",
    less_ngram: JsonMapping | None = None,
) -> str:
    """The line under a report's title.

    `what` is what the model predicts, in words such as "the next word of text"; `metric` what its task is judged by,
    such as "accuracy 0.84", and `among` where that stands among the baselines; without it they are named with nats.
    less_ngram: `low` and `high` of the loss minus that of the best n-gram.
    """
    trained = f"After {steps:,} update{'s' * (steps != 1)}" if steps else "Before its first update"
    if loss is None or loss.best is None:
        return f"{trained} there is no validation loss to judge this run by."
    size = f"{loss.best:.3f} nats"
    if loss.best_bits_per_byte is not None:
        size += f" ({loss.best_bits_per_byte:.2f} bits per byte)"
    text = f"{trained} this model predicts {what} it has never seen at {size}"
    if metric:
        return f"{text}, with {metric}{': ' if among else ''}{among}."
    lines = [line for line in loss.baselines if line.name != "uniform"]
    if not lines:
        return f"{text}."
    is_open = less_ngram is not None and less_ngram["low"] <= 0 <= less_ngram["high"]
    return f"{text}: {_among(loss.best, lines, is_open)}."


def _among(loss: float, lines: list[Baseline], ngram_is_open: bool) -> str:
    """Where a loss stands among the baselines: the nearest that it beats, what it equals, what still beats it."""
    level = [line for line in lines if abs(line.nats - loss) <= LEVEL or (ngram_is_open and line.name == "ngram")]
    beaten = sorted((line for line in lines if line.nats > loss and line not in level), key=lambda line: line.nats)
    ahead = sorted((line for line in lines if line.nats < loss and line not in level), key=lambda line: line.nats)
    if len(beaten) == len(lines):
        return f"better than {_names(beaten[:1])}" + (" and every other counting baseline" if len(beaten) > 1 else "")
    parts = [f"level with {_names(level)}"] if level else []
    parts += [f"better than {_names(beaten[:1])}"] if beaten else []
    parts += [f"not as good as {_names(ahead)}"] if ahead else []
    return ", ".join(parts)


def _names(lines: list[Baseline]) -> str:
    said = [f"{_WORDS.get(line.name, line.label)} ({line.nats:.3f})" for line in lines]
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"


def machine_words(settings: JsonMapping, manifest: JsonMapping) -> str:
    """Threads, precision and processor, as far as they were written down."""
    machine = settings.get("machine", {})
    threads, cpu = machine.get("threads"), manifest.get("cpu")
    words = [
        f"{threads} thread{'s' if threads != 1 else ''}" if threads and machine.get("device", "cpu") == "cpu" else "",
        "" if machine.get("device", "cpu") == "cpu" else str(machine["device"]),
        str(machine.get("precision", "")),
        str(cpu or ""),
    ]
    return ", ".join(word for word in words if word)


def head_facts(settings: JsonMapping, manifest: JsonMapping, kind: str, d_vocab: int | None) -> list[Fact]:
    """Text and tokenizer, for the head of the page."""
    facts = []
    data = manifest.get("data", {})
    source = str(settings.get("data", {}).get("source", ""))
    name = data.get("name") or Path(source).name
    if name:
        facts.append(Fact(label=find_task(settings.get("task", "causal")).reads, value=str(name)))
    if kind:
        size = f", {d_vocab:,} different" if d_vocab else ""
        facts.append(Fact(label="tokenizer", value=f"{kind}{size}"))
    return facts


def tokens_seen(telemetry: Telemetry | None) -> int | None:
    """Training tokens up to the last update, repeats included."""
    return telemetry.tokens_seen(RUN_ARM) if telemetry else None


def seconds(telemetry: Telemetry | None, manifest: JsonMapping) -> float | None:
    """Wall time of the training: the manifest's, else the last that the clock wrote."""
    said = manifest.get("summary", {}).get("train_seconds")
    if isinstance(said, int | float):
        return float(said)
    return telemetry.wall_seconds(RUN_ARM) if telemetry else None
