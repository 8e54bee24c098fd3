"""The head of a page: which run, how large, and for how long it trained to predict what."""

import dataclasses
from pathlib import Path

from qkv.jsontypes import JsonMapping
from qkv.tasks import find_task
from qkv.telemetry import RUN_ARM, Telemetry
from qkv.views.sections.made import Fact
from qkv.words import many


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The head of the page: which run, how large, how long."""

    name: str
    task: str
    preset: str
    verdict: str
    unit: str
    """What one token is, in the singular: character, byte, word or token."""
    n_parameters: int | None
    n_tokens: int | None
    """Of the training up to the last update, repeats included."""
    n_steps: int | None
    train_seconds: float | None
    machine: str
    facts: tuple[Fact, ...] = ()
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    mixer: str = "attention"
    """What the layers mix positions by: attention, or what stands in its place."""
    control: str = ""
    """What the labels of the random-label control are, in words."""


def verdict(what: str, steps: int | None, *, validated: bool, finished: bool = True) -> str:
    """The line under a report's title: for how long it trained to predict what; its first answer tells how well.

    `what` is what the model predicts, in words such as "the next word of text".
    """
    if not steps:
        return f"Not trained yet. It predicts {what}."
    unknown = "" if validated else " It has no validation loss yet."
    return f"Trained for {many(steps, 'update')}{'' if finished else ' so far'} to predict {what}.{unknown}"


def machine_words(settings: JsonMapping, manifest: JsonMapping) -> str:
    """Threads, precision and processor, as far as they were written down."""
    machine = settings.get("machine", {})
    threads, device = machine.get("threads"), str(machine.get("device", "cpu"))
    own = device if device != "cpu" else many(threads, "thread") if threads else ""
    return ", ".join(str(word) for word in (own, machine.get("precision"), manifest.get("cpu")) if word)


def head_facts(settings: JsonMapping, manifest: JsonMapping, kind: str, d_vocab: int | None) -> list[Fact]:
    """Text and tokenizer, for the head of the page."""
    source = str(settings.get("data", {}).get("source", ""))
    name = manifest.get("data", {}).get("name") or Path(source).name
    size = f", {d_vocab:,} different" if d_vocab else ""
    facts = [(find_task(settings.get("task", "causal")).reads, name), ("tokenizer", kind and f"{kind}{size}")]
    return [Fact(label=label, value=str(value)) for label, value in facts if value]


def seconds(telemetry: Telemetry | None, manifest: JsonMapping) -> float | None:
    """Wall time of the training: the manifest's, else the last that the clock wrote."""
    said = manifest.get("summary", {}).get("train_seconds")
    if isinstance(said, int | float):
        return float(said)
    return telemetry.wall_seconds(RUN_ARM) if telemetry else None
