"""What ladders expect of a model of this run's size: its place on the line of an effect over sizes.

`qkv study NAME --ladder` follows one effect over sizes and keeps its line with an interval. Lines come from the ladders
beside the run, and from those that qkv keeps (`kept_ladders.json`, which `docs/generate.py` writes).
"""

import contextlib
import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from qkv.inspection.answers.answer import Answer, Evidence
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.words import in_words, number, percent, signed

KEPT = Path(__file__).with_name("kept_ladders.json")
"""Ladders by question, each the part of its `ladder.json` that is read here."""
_ENDS = ("value", "low", "high")
_Place = tuple[str, dict[str, float | None], str]
"""What a line says of a size: in words, in numbers, and of which models."""


def ladders(evidence: Evidence) -> Answer | None:
    """The effect of each ladder at the size of a causal run; None before its end, or where no line reaches its size."""
    summary = evidence.run.summary
    weights, tokens = summary.get("parameters") or 0, summary.get("tokens") or 0
    if evidence.run.task.name != "causal" or not weights or not tokens:
        return None
    found = list(_places(evidence.folder.path.parent, weights, tokens))
    if not found:
        return None
    (first, _, _), size = found[0], in_words(weights)
    return Answer(
        key="ladders",
        question="What do ladders expect of a model of this size?",
        sentence=f"At {size} weights, {first}.",
        more=tuple(f"At {size} weights, {words}." for words, _, _ in found[1:]),
        numbers={name: value for _, numbers, _ in found for name, value in numbers.items()},
        null=" ".join(condition for _, _, condition in found),
        weight=0.1,
    )


def _places(folder: Path, weights: int, tokens: int) -> Iterator[_Place]:
    """On finished ladders beside the run, then on those that qkv keeps of other questions; broken ones are left out."""
    asked: set[str] = set()
    for path in sorted(folder.glob("ladder-*/ladder.json")):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError, ZeroDivisionError):
            found: JsonObject = json.loads(path.read_text(encoding="utf-8"))
            place, study = _place(found, weights, tokens), found["study"]
            asked.add(study)
            if place:
                yield place
    yield from filter(None, (_place(one, weights, tokens) for study, one in _kept().items() if study not in asked))


@cache
def _kept() -> JsonObject:
    return json.loads(KEPT.read_text(encoding="utf-8"))


def _place(found: JsonMapping, weights: int, tokens: int) -> _Place | None:
    """What the line with the nearest number of tokens per weight says of a size.

    None where it does not reach that size, or would have to be continued although its ladder shows no trend.
    """
    line = min(found["lines"], key=lambda one: abs(math.log(one["tokens_per_weight"] * weights / tokens)))
    sizes, at = np.log10([point["weights"] for point in line["curve"]]), math.log10(weights)
    unit, beyond = found["effect_unit"], at - math.log10(found["last"]["weights"])
    if not sizes[0] <= at <= sizes[-1] or (beyond > 0 and found["verdict"] == "cannot tell"):
        return None
    figures = [float(np.interp(at, sizes, [point[end] for point in line["curve"]])) for end in _ENDS]
    value, low, high = map(percent if unit.startswith("of ") else signed, figures)
    words = f"the {found['of']} is expected to be {value} {unit} (95% interval {low} to {high})"
    if beyond > 0:
        words += f". This is {beyond:.1f} decades beyond the ladder's largest model, and holds if the line goes on"
    condition = (
        f"The line of {found['study']} is that of {line['tokens_per_weight']:g} tokens per weight; this run read"
        f" {number(tokens / weights)}. {found['condition']} Verdict over these sizes: {found['verdict']}."
    )
    return words, {f"{found['of']}, {end}, {unit}": one for end, one in zip(_ENDS, figures, strict=True)}, condition
