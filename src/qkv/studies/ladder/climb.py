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
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np

from qkv.data.config import whole_source
from qkv.errors import ConfigError, SourceError
from qkv.folder.run_folder import write_atomically
from qkv.jsontypes import JsonObject
from qkv.studies.engine.cluster import is_cluster
from qkv.studies.engine.design import Contrast, Design, canonical
from qkv.studies.engine.runner import Due, Told, train
from qkv.studies.engine.store import StudyFolder, read_rows
from qkv.studies.engine.tuning import Job, choice, pending, report_key
from qkv.studies.engine.workers import places
from qkv.studies.ladder import plan
from qkv.studies.ladder.plan import Cell, Make, Shape, Size, name_of
from qkv.studies.ladder.result import result_of
from qkv.studies.ladder.trend import Trend
from qkv.studies.own import is_own
from qkv.studies.own import read as read_own
from qkv.studies.question import FULL_MINUTES, Ask, Question
from qkv.studies.questions import find
from qkv.studies.verdict.judging import ON_THE_WAY, contrast_values
from qkv.studies.verdict.statistics import expected_margin, scipy
from qkv.words import listed, many, plural

_LAST_SECONDS = 5.0
_HEAD = 32
"""Width of a head."""


def run_ladder(
    name: str,
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
            text = json.dumps(found, indent=1, sort_keys=True, allow_nan=False) + "\n"
            write_atomically(path / "ladder.json", text.encode())
    return found


def _asked(
    name: str, source: str, seeds: int | None, minutes: float | None, margin: float | None, cache: Path | None
) -> tuple[Question, Ask, Make, Contrast, float]:
    """What was asked for: a question, how it is asked, its designs by size and steps, its effect, and the minutes.

    Raises UserError as `run_ladder` does.
    """
    own = read_own(Path(name)) if is_own(name) else None
    if own and (source or margin):
        raise ConfigError(
            f"{name} says what is trained on and judged, so leave SOURCE and --margin out; change it there"
        )
    if seeds == 1:
        raise ConfigError(f"1 seed has no spread; expected --seeds 2 or more ({plan.SEEDS} is usual)")
    if margin is not None:
        expected_margin(margin)
    question = own.question if own else find(name)
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
                "cells": [cell.to_json() for cell in chosen], "minutes": budget, "workers": shape.workers,
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


class Climb:
    """The cells of a ladder and the log of their trainings: what is due, and what was found."""

    def __init__(self, make: Make, contrast: Contrast, ask: Ask, cells: tuple[Cell, ...], folder: StudyFolder) -> None:
        self.contrast, self.ask, self.cells, self.folder = contrast, ask, cells, folder
        self.designs = {cell: make(cell.size, cell.steps) for cell in cells}
        sizes = list(dict.fromkeys(cell.size for cell in cells))
        self.smallest, self.second, self.largest = sizes[0], sizes[1], sizes[-1]
        self.any = self.designs[cells[0]]
        self._shortest = cells[0].per_weight

    def _of(self, size: Size) -> list[Cell]:
        return [cell for cell in self.cells if cell.size == size]

    @cached_property
    def law(self) -> JsonObject:
        """The slope of log rate in log weights, over what it was found in; once the first stage is done.

        `slope`, its `sd` over arms and seeds, `n`; slope is None where rates are given or not there yet.
        """
        found = []
        small, second = self._of(self.smallest)[0], self._of(self.second)[0]
        for arm in (arm for arm in self.any.arms if arm.tune == "own"):
            for seed in range(1, min(plan.LAW_SEEDS, self.any.replicates) + 1):
                rates = [self._tuned(cell, arm.name, seed) for cell in (small, second)]
                if rates[0] and rates[1]:
                    found.append(math.log(rates[1] / rates[0]) / math.log(second.n_weights / small.n_weights))
        sd = float(np.std(found, ddof=1)) if len(found) > 1 else None
        return {"slope": float(np.mean(found)) if found else None, "sd": sd, "n": len(found)}

    def _tuned(self, cell: Cell, arm: str, seed: int) -> float | None:
        design = self.designs[cell]
        found = choice(design, design.arm(arm), seed, self.ask.source, self.folder.loss)
        return found and found.rate

    def rate(self, cell: Cell, arm: str, seed: int) -> float | None:
        """The learning rate of an arm at a size that is not tuned; None while that is not known."""
        small = next(one for one in self._of(self.smallest) if one.per_weight == cell.per_weight)
        base, slope = self._tuned(small, arm, seed), self.law["slope"]
        if self.any.arm(arm).tune == "none":
            return self.designs[cell].arm(arm).lr
        return None if base is None or slope is None else base * (cell.n_weights / small.n_weights) ** slope

    def job(self, cell: Cell, arm: str, seed: int, *, times: float = 0.0, report: bool = True) -> Job | None:
        """A training at the rate that follows from the size, doubled `times`; None while that is not known."""
        design, rate = self.designs[cell], self.rate(cell, arm, seed)
        if rate is None:
            return None
        k = round(math.log(rate / design.arm(arm).lr) / math.log(design.grid.ratio), 3) + times
        trial = design.trial(design.arm(arm), seed, k, source=self.ask.source, report=report)
        return Job(trial=trial, replicate=seed, role="report" if report else "check", k=k)

    def key(self, cell: Cell, arm: str, seed: int) -> str | None:
        """Of the training that is reported; None while its rate is not settled."""
        if cell.size == self.smallest:
            design = self.designs[cell]
            return report_key(design, design.arm(arm), seed, self.ask.source, self.folder.loss)
        job = self.job(cell, arm, seed)
        return job and job.trial.key

    # what is due

    def stages(self) -> Iterator[Due]:
        """The trainings that are due, stage by stage; predicts the largest size before the last."""
        yield self._tuning
        self.__dict__.pop("law", None)
        yield lambda: self._reports([cell for cell in self.cells if cell.size not in (self.smallest, self.largest)])
        self._predict()
        yield self._last

    def _tuning(self) -> Iterator[Job]:
        for cell in self._of(self.smallest):
            yield from pending(self.designs[cell], self.ask.source, self.folder.loss)
        for seed in range(1, min(plan.LAW_SEEDS, self.any.replicates) + 1):
            jobs = pending(self.designs[self._of(self.second)[0]], self.ask.source, self.folder.loss, only=seed)
            yield from (job for job in jobs if job.role == "tune")

    def _reports(self, cells: Sequence[Cell]) -> Iterator[Job]:
        for cell in cells:
            for seed in range(1, self.any.replicates + 1):
                jobs = (self.job(cell, arm.name, seed) for arm in self.any.arms)
                yield from (job for job in jobs if job and self.folder.loss(job.trial.key) is None)

    def _last(self) -> Iterator[Job]:
        if self.predictions:  # nothing of the largest size is trained before its prediction is in the log
            yield from self._reports(self._of(self.largest))
            checks = (job for jobs in self._checks().values() for job in jobs)
            yield from (job for job in checks if self.folder.loss(job.trial.key) is None)

    def _checks(self) -> Mapping[str, list[Job]]:
        """Arm -> half its rate, the rate and twice the rate at the largest size, on the first seed for tuning."""
        cell, found = self._of(self.largest)[0], {}
        for arm in (arm for arm in self.any.arms if arm.tune == "own"):
            jobs = [self.job(cell, arm.name, 1, times=times, report=False) for times in (-1.0, 0.0, 1.0)]
            found[arm.name] = [job for job in jobs if job]
        return found

    # what was found

    @property
    def checked(self) -> JsonObject:
        """Arm -> losses at half, once and twice its rate; arms with all three only."""
        keys = {arm: [job.trial.key for job in jobs] for arm, jobs in self._checks().items()}
        rows = self.folder.rows
        return {arm: [rows[key]["loss"] for key in three] for arm, three in keys.items() if rows.keys() >= {*three}}

    def rows(self, cell: Cell) -> dict[tuple[str, int], JsonObject]:
        """(arm, seed) -> the row of its reported training, where it is there."""
        seeds = range(1, self.any.replicates + 1)
        keys = {(arm.name, seed): self.key(cell, arm.name, seed) for arm in self.any.arms for seed in seeds}
        return {place: self.folder.rows[key] for place, key in keys.items() if key in self.folder.rows}

    def values(self, cell: Cell) -> list[float]:
        """The effect in each seed; empty before all of them are there."""
        found = contrast_values(self.contrast, self.designs[cell], self.rows(cell))
        return list(found.values()) if len(found) == self.any.replicates else []

    def trend(self, cells: Sequence[Cell]) -> Trend | None:
        """The line through those of the cells that are complete; None where they are of one size."""
        there = [(cell, values) for cell in cells if (values := self.values(cell))]
        if len({cell.size for cell, _ in there}) < 2:
            return None
        table = np.array([values for _, values in there])
        cells = [cell for cell, _ in there]
        return Trend(table, [c.n_weights for c in cells], [c.per_weight for c in cells], self.contrast.margin)

    @property
    def predictions(self) -> list[JsonObject]:
        """Of the largest size, as the log has them."""
        return self.folder.rows.get(f"prediction {name_of(self.largest)}", {}).get("predictions", [])

    def _predict(self) -> None:
        """Write what the smaller sizes say of the largest one, once all of them are there."""
        smaller = [cell for cell in self.cells if cell.size != self.largest]
        key = f"prediction {name_of(self.largest)}"
        trend = self.trend(smaller)
        if key in self.folder.rows or trend is None or not all(map(self.values, smaller)):
            return
        lines = {cell.per_weight for cell in smaller}
        told = [
            {
                "size": name_of(cell.size), "tokens_per_weight": cell.per_weight, "weights": cell.n_weights,
                **trend.predicted(cell.n_weights, cell.per_weight, measured=True).to_json(),
            }
            for cell in self._of(self.largest)
            if cell.per_weight in lines
        ]  # fmt: skip
        before = hashlib.sha256((self.folder.path / "runs.jsonl").read_bytes()).hexdigest()
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self.folder.append({"key": key, "predictions": told, "at": at, "log_before": before})
