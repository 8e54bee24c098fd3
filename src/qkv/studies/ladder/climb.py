"""A ladder from the question to the trend: sizes chosen and priced, rates, trainings, a prediction, the result.

    runs/ladder-NAME-SOURCE-xxxxxxxx/   x: hash of the effect, its arms, the text and the sizes that there are
      runs.jsonl                        every plan, training and prediction, appended when it is made, never rewritten
      ladder.json                       the result; page.html for people

Trainings come in four stages. Rates are tuned at the smallest size, in every seed and at every length of training, and
at the second size in two seeds. Then the sizes in between are trained at rates that follow from these: log rate is a
line in log weights, with a level for each arm, length and seed, and one slope for all. Then the effect at the largest
size is predicted from the smaller ones, and written into the log with the hash of all lines before. Only then the
largest size is trained, with half and twice its rate beside it on a seed for tuning.
"""

import dataclasses
import hashlib
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from qkv.data.config import whole_source
from qkv.errors import ConfigError, SourceError
from qkv.jsontypes import JsonObject
from qkv.studies.designed import Design as Designed
from qkv.studies.engine.cluster import is_cluster
from qkv.studies.engine.design import Contrast, Design, canonical
from qkv.studies.engine.runner import Told, own_study, train
from qkv.studies.engine.store import StudyFolder, read_rows
from qkv.studies.engine.workers import places
from qkv.studies.ladder import plan
from qkv.studies.ladder.plan import Cell, Make, Shape, Size, name_of
from qkv.studies.ladder.result import result_of
from qkv.studies.ladder.rungs import Climb
from qkv.studies.question import FULL_MINUTES, Ask, Question
from qkv.studies.questions import find
from qkv.studies.verdict.judging import ON_THE_WAY
from qkv.studies.verdict.statistics import expected_margin, scipy
from qkv.words import listed, many, plural

_LAST_SECONDS = 5.0
_HEAD = 32
"""Width of a head."""


def run_ladder(
    name: str | Designed,
    source: str = "",
    *,
    seeds: int | None = None,
    minutes: float | None = None,
    margin: float | None = None,
    within: Path = Path("runs"),
    cache: Path | None = None,
    workers: int = 1,
    on: str = "local",
    told: Told | None = None,
    sizes: Sequence[Size] = plan.SIZES,
    per_weight: Sequence[float] = plan.TOKENS_PER_WEIGHT,
) -> JsonObject:
    """Follow the main effect of a question over sizes; returns the result, which is also `ladder.json` in its folder.

    A ladder that has been begun keeps its sizes, unless it gets more minutes than before and these fit more.

    Raises UserError for what cannot be done as asked (nothing is made then), Interrupted where it was stopped: the same
    call goes on from there.
    """
    told = told or Told()
    started = told.started or time.monotonic()
    sizes = plan.in_order(sizes)
    scipy()
    is_cluster(on)
    question, ask, make, contrast, budget = _asked(name, source, seeds, minutes, margin, cache)
    first = make(sizes[0], 100)
    plan.check(first, contrast)
    plan.try_out(first, contrast, ask)
    _check_scored(first, ask)
    asked = dataclasses.replace(first, contrasts=(dataclasses.replace(contrast, margin=1.0),))  # it judges, that is all
    key = hashlib.sha256(canonical([asked.hash, sizes, per_weight]).encode()).hexdigest()
    path = within / f"ladder-{first.study}-{first.source_name}-{key[:8]}"
    told.say(f"{question.name}, over sizes: {question.asks}")
    with places(on, workers, cache) as (size, make_workers):
        tuned = sum(arm.tune == "own" for arm in first.arms)
        shape = Shape(arms=len(first.arms), tuned=tuned, seeds=first.replicates, workers=size)
        row = _planned(make, ask, sizes, per_weight, shape, budget, path, told)
        with StudyFolder.hold(path) as folder:
            if row["key"] not in folder.rows:
                folder.append(row)
            told.say(f"The ladder is in {path}.")
            climb = Climb(make, contrast, ask, tuple(map(Cell.from_json, row["cells"])), folder)
            slowest = max(cell.seconds for cell in climb.cells)
            with closing(make_workers(row["trainings"])) as pool:
                end = started + 60 * budget - slowest - _LAST_SECONDS
                for due in climb.stages():
                    train(due, row["trainings"], folder, pool, end, told)
            found = result_of(question, climb, row, (time.monotonic() - started) / 60)
            folder.conclude(found, "ladder.json")
    return found


def _asked(
    name: str | Designed,
    source: str,
    seeds: int | None,
    minutes: float | None,
    margin: float | None,
    cache: Path | None,
) -> tuple[Question, Ask, Make, Contrast, float]:
    """What was asked for: a question, how it is asked, its designs by size and steps, its effect, and the minutes.

    Raises UserError as `run_ladder` does.
    """
    own = own_study(name, source, margin=margin)
    if seeds == 1:
        raise ConfigError(f"1 seed has no spread; expected --seeds 2 or more ({plan.SEEDS} is usual)")
    if margin is not None:
        expected_margin(margin)
    question = own.question if own else find(str(name))
    n = seeds or (own.seeds if own and own.seeds else plan.SEEDS)
    ask = Ask(source=own.source if own else whole_source(source), seeds=n, cache=cache)
    base = question.design(ask)
    wanted = question.ladder.effect or base.primary.name
    contrast = next(one for one in base.contrasts if one.name == wanted)
    contrast = dataclasses.replace(contrast, margin=margin or contrast.margin, expected=None, needs="", beside=())

    def make(size: Size, steps: int) -> Design:
        (d_model, n_layers), n_heads = size, max(1, size[0] // _HEAD)
        if own:
            whole = own.at_size(d_model, n_layers, n_heads).design(ask, steps)
        else:
            scale = dataclasses.replace(base.scale, d_model=d_model, n_layers=n_layers, n_heads=n_heads, steps=steps)
            whole = dataclasses.replace(base, scale=scale)
        quantities = [quantity for _, _, quantity in contrast.terms]
        arms = [whole.arm(arm) for arm in contrast.arms]
        if not any(map(plan.needs_probes, quantities)):
            arms = [dataclasses.replace(arm, probes=()) for arm in arms]
        texts = tuple((key, text) for key, text in whole.texts if key in {arm.text for arm in arms})
        scale = whole.scale if ON_THE_WAY.keys() & set(quantities) else dataclasses.replace(whole.scale, evaluations=1)
        return dataclasses.replace(
            whole, texts=texts, scale=scale, arms=tuple(arms), contrasts=(contrast,), replicates=n, slices=n,
            overlapping=False,
        )  # fmt: skip

    return question, ask, make, contrast, minutes or (own.minutes if own else 0.0) or FULL_MINUTES


def _check_scored(design: Design, ask: Ask) -> None:
    """Make sure that every slice has enough to be scored on. Raises SourceError."""
    text, least = dict(design.texts)[design.arms[0].text], 16 * design.scale.n_ctx
    val = len(ask.corpus(text, design.scale.val_tokens, design.slice(text, 1, tunes=True)).val)
    if val < least // 2:
        raise SourceError(
            f"{design.source_name!r} is too small for a ladder of {many(design.replicates, 'seed')}: each has a slice"
            f" of its own, and {val:,} tokens of one are left to tune rates on; expected at least {least // 2:,}. Give"
            " a longer text, or none for the text inside your own Python"
        )


def _planned(
    make: Make,
    ask: Ask,
    sizes: Sequence[Size],
    per_weight: Sequence[float],
    shape: Shape,
    budget: float,
    path: Path,
    told: Told,
) -> JsonObject:
    """The row of the plan: the one that was begun, or one for this budget; says what it is, before any training."""
    begun = [row for row in read_rows(path) if "cells" in row]
    row = begun[-1] if begun else {}
    if not begun or budget > row["minutes"]:
        found = plan.candidates(make, ask, sizes, per_weight, budget, shape.workers)
        chosen = plan.choose(found, shape, budget, f"{ask.source or 'the text inside Python'!r}")
        was = [Cell.from_json(cell) for cell in row.get("cells", [])]
        if {(c.size, c.per_weight) for c in was} <= {(c.size, c.per_weight) for c in chosen}:
            missed = plan.left_out(found, chosen)
            row = {
                "cells": [vars(cell) for cell in chosen], "minutes": budget, "workers": shape.workers,
                "predicted_minutes": round(shape.minutes(chosen), 2), "left_out": missed,
                "trainings": sum(shape.trainings(cell, chosen) for cell in chosen),
            }  # fmt: skip
            row["key"] = f"plan {hashlib.sha256(canonical(row).encode()).hexdigest()[:8]}"
    cells = [Cell.from_json(cell) for cell in row["cells"]]
    lengths = dict.fromkeys(cell.per_weight for cell in cells)
    names = [
        f"{listed([name_of(cell.size) for cell in cells if cell.per_weight == n])} at {n:g} tokens per weight"
        for n in lengths
    ]
    told.say(
        f"{'Continued: ' * bool(begun)}{'; '.join(names)}. {shape.seeds} seeds, each on its own slice of the text;"
        f" {min(c.epochs for c in cells):.2g} to {max(c.epochs for c in cells):.2g} passes over {cells[0].n_unique:,}"
        f" tokens. About {row['trainings']} trainings, {row['predicted_minutes']:.1f} minutes on"
        f" {many(shape.workers, 'core')}; the budget is {budget:g} {plural(budget, 'minute')}."
    )
    if row["left_out"]:
        told.say(f"Left out: {row['left_out']}.")
    return row
