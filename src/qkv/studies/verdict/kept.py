"""A verdict that is kept in a file, judged anew from the values in it by the rule that holds today.

What was trained stays what it was; what may be said of it is a matter of the rule, and a file outlives the rule that it
was judged by. So whoever shows a kept verdict beside that rule judges it first.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from qkv.errors import ConfigError
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.studies.engine.design import Arm, Contrast, Design
from qkv.studies.question import Ask, Question
from qkv.studies.verdict.judging import ONLY_ALONE, Effect, Findings, Values, judged, numbered
from qkv.studies.verdict.sentences import (
    answered,
    arms_words,
    effect_row,
    expectations,
    intervals,
    judged_by,
    made_for,
    notes,
    scale_words,
)
from qkv.studies.verdict.statistics import how_exact

__all__ = ["judged_anew", "named", "was_judged"]


def named(source: JsonMapping, *, quick: bool, seeds: int) -> Ask:
    """What was asked of a text that is not read, by what the verdict file says of it."""
    kind = {name: source[name] for name in ("labelled", "vectors", "slices") if name in source}
    images = tuple(source["images"]) if "images" in source else None
    return Ask(
        named=(source["name"], source["sha256"]),
        images=images,
        quick=quick,
        seeds=seeds,
        tuned="untuned" not in source,
        **kind,
    )


def judged_anew(question: Question, kept: JsonMapping) -> JsonObject:
    """The same file with every contrast, the verdict and the sentence as `statistics` judges its values now.

    What has been published is told as it is known now.

    Raises ConfigError where the question is asked at another scale or by another first contrast by now: its words would
    not fit the kept run.
    """
    source, seeds = kept["source"], _replicates(kept) // _contrast(kept["contrasts"][0]).tries
    ask = named(source, quick=kept["quick"], seeds=seeds)
    design = question.design(ask)
    if kept["quick"] and kept.get("sizes", {}).get("steps", 0) > design.scale.steps:
        design = question.design(dataclasses.replace(ask, times=kept["sizes"]["steps"] // design.scale.steps))
    _same_scale(question, design, kept)
    design = dataclasses.replace(design, arms=tuple(_as_sized(arm, kept["arms"]) for arm in design.arms))
    effects = _effects_today(design, kept)
    names = {effect.contrast.name for effect in effects}
    if effects[0].contrast.name != design.primary.name:
        raise ConfigError(
            f"the kept run of {question.name} answers by {effects[0].contrast.name!r}, and the question is answered by"
            f" {design.primary.name!r} now; run the study again and keep that"
        )
    found = Findings(
        design=design,
        effects=(*effects, *judged([(c, {}) for c in design.contrasts if c.name not in names])),
        arms=(),
        not_reached=tuple(kept["not_reached"]),
        trainings=kept["trainings"],
        earlier=tuple(kept["earlier_designs"]),
    )
    result, words = found.primary.result, arms_words(design.arms)
    return {
        **kept,
        **answered(question, found, effects),
        "effect": result.effect,
        "low": result.low,
        "high": result.high,
        "p": result.p,
        "intervals": intervals(found.primary),
        "scale": scale_words(found),
        "contrasts": [effect_row(effect) for effect in effects],
        "notes": _notes(kept, effects, design),
        "arms": [{**row, "what": _whole_words(design, words, row)} for row in kept["arms"]],
        **expectations(question, effects),
    }


def _effects_today(design: Design, kept: JsonMapping) -> tuple[Effect, ...]:
    """The kept values, judged by the rule of today."""
    today = {contrast.name: contrast for contrast in design.contrasts}
    effects = judged([(_contrast(row, today.get(row["name"])), _values(row)) for row in kept["contrasts"]])
    return tuple(
        dataclasses.replace(effect, diverged=row.get("diverged", 0))
        for effect, row in zip(effects, kept["contrasts"], strict=True)
    )


def _notes(kept: JsonMapping, effects: Sequence[Effect], design: Design) -> list[str]:
    """What has to be known beside a table, of a file that may not say all of it."""
    whole = (
        kept.get("counted"),
        judged_by(kept.get("earlier_margins", ()), kept["unit"]),
        made_for(kept.get("taken_over", ())),
    )
    reads = {contrast.name: contrast.arms for contrast in design.contrasts}
    return [*filter(None, whole), *notes(effects, reads, kept["arms"])]


_SCALE = re.compile(
    r"of (?P<n_layers>\d+) layers?, d_model (?P<d_model>\d+), (?P<n_heads>\d+) heads?, context (?P<n_ctx>\d+),"
    r" (?P<steps>[\d,]+) steps of (?P<batch_size>\d+) windows"
)
"""The scale of a design as files of an older form have it, in words only."""


def _same_scale(question: Question, design: Design, kept: JsonMapping) -> None:
    """Make sure that a kept run was made at the scale of today's design. Raises ConfigError."""
    words = _SCALE.search(kept["scale"])
    then = kept.get("sizes") or (words and {k: int(v.replace(",", "")) for k, v in words.groupdict().items()}) or {}
    now = dataclasses.asdict(design.scale)
    if not then or any(now[name] != value for name, value in then.items()):
        told, today = (", ".join(f"{name} {of[name]}" for name in then) for of in (then, now))
        raise ConfigError(
            f"the kept run of {question.name} was made at another scale than the question has now"
            f" ({told or kept['scale']}; now: {today or now}); run the study again and keep that"
        )


def _as_sized(arm: Arm, rows: Sequence[JsonMapping]) -> Arm:
    """An arm with the sizes that it had; some follow from the text, which is not read here."""
    own = next((row["sizes"] for row in rows if row["name"] == arm.name and "sizes" in row), None)
    return arm if own is None else dataclasses.replace(arm, sizes=tuple(own.items()))


def _whole_words(design: Design, words: Mapping[str, str], row: JsonMapping) -> str:
    """What an arm did, in today's words where it is still the same arm; files of an older form leave much out."""
    arm = next((arm for arm in design.arms if arm.name == row["name"]), None)
    return row["what"] if arm is None or not row["what"].startswith(arm.what) else words[arm.name]


def was_judged(kept: JsonMapping, anew: JsonMapping) -> str:
    """A sentence on the verdicts that the file itself has otherwise; empty where it has none."""
    turned = [
        f"*{now['name']}* is {now['verdict']} and was {then['verdict']}"
        for then, now in zip(kept["contrasts"], anew["contrasts"], strict=True)
        if then["verdict"].removesuffix(ONLY_ALONE) != now["verdict"].removesuffix(ONLY_ALONE)
    ]
    if not turned:
        return ""
    rule = kept.get("intervals", how_exact(2))  # files of an older form do not say it
    other = "" if rule == anew["intervals"] else f", with intervals {rule}"
    return (
        "Judged anew from the values of the run by the rule of today; by that of the day when it was made"
        f"{other}, it said otherwise: {'; '.join(turned)}."
    )


def _replicates(kept: JsonMapping) -> int:
    """How many were meant: a file says it in words only."""
    found = re.search(r"of ([\d,]+) (?:paired|independent) ", kept["scale"])
    if found is None:
        raise ConfigError(f"the kept run of {kept['study']} does not say how many replicates it was to have")
    return int(found[1].replace(",", ""))


def _contrast(row: JsonMapping, today: Contrast | None = None) -> Contrast:
    """The contrast of a kept row; what it needs, and whether it is constant, as it was or as the question has it now.

    A rate has no spread of its own, and counts more tries than it has values.
    """
    values = row["values"]
    is_rate = row["sd"] is None and row["n"] > 1 and row.get("low") is not None
    return Contrast(
        name=row["name"],
        what=row["what"],
        terms=(),
        margin=row["margin"],
        unit=row["unit"],
        expected=row["expected"],
        nominal=round(sum(values) / len(values) - row["effect"], 12) if is_rate else None,
        tries=row["n"] // len(values) if is_rate else 1,
        constant=row.get("verdict") == "constant" or (today is not None and today.constant),
        needs=row.get("needs") or ("" if today is None else today.needs),
        beside=tuple(row.get("beside") or (() if today is None else today.beside)),
    )


def _values(row: JsonMapping) -> Values:
    """By replicate; of the first ones where a row does not say which."""
    if "replicates" in row:
        return dict(zip(row["replicates"], row["values"], strict=True))
    return numbered(row["values"])
