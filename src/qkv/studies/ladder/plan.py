"""Which sizes and lengths of training a ladder has and what they cost, settled before anything is trained."""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qkv.errors import ConfigError, SourceError
from qkv.jsontypes import JsonMapping
from qkv.laws import MOST_PASSES
from qkv.studies.engine.assembly import parts_of
from qkv.studies.engine.design import OF_TRAININGS, Contrast, Design
from qkv.studies.engine.estimate import estimate
from qkv.studies.engine.training import run_trial
from qkv.studies.question import Ask
from qkv.studies.verdict.judging import ON_THE_WAY
from qkv.words import listed, many

Size = tuple[int, int]
"""d_model and layers."""
SIZES: tuple[Size, ...] = ((32, 2), (64, 2), (64, 4), (128, 4), (256, 6), (512, 8))
MOST_WEIGHTS = 400_000_000
"""In the layers of a size: a model is made to count its weights, before its time is known."""
TOKENS_PER_WEIGHT = (5.0, 20.0, 80.0)
SEEDS, FEWEST = 4, 3
"""Seeds of a ladder, and how many sizes make one."""
LAW_SEEDS = 2
"""Seeds in which the second size is tuned too, so that rates follow from the size."""
TUNING = 4
"""Trainings that tuning takes, about: three rates, and one past an edge."""
_TIMED_STEPS, _TRIED_STEPS = 100, 8
_USED, _AROUND = 0.9, 1.1
"""Share of a budget that is planned for, and what waiting for the last training of a stage adds."""
_MAY_DIFFER = {"n_heads", "d_head", "d_mlp"}
"""Sizes that an arm may have of its own on a ladder."""

Make = Callable[[Size, int], Design]
"""Size and steps -> the design of a cell: the arms of the main effect alone, each seed on its own slice."""


def name_of(size: Size) -> str:
    """64x4: d_model 64, 4 layers."""
    return f"{size[0]}x{size[1]}"


def in_order(sizes: Sequence[Size]) -> list[Size]:
    """Sizes by the weights of their layers, each once. Raises ConfigError for too few, or one too large."""
    sizes = sorted(set(sizes), key=lambda size: (size[0] ** 2 * size[1], size))
    if len(sizes) < FEWEST:
        raise ConfigError(f"a ladder of {listed([*map(name_of, sizes)])} is too short; expected {FEWEST} sizes or more")
    if 12 * sizes[-1][0] ** 2 * sizes[-1][1] > MOST_WEIGHTS:
        most = f"{MOST_WEIGHTS // 10**6} million weights"
        raise ConfigError(f"{name_of(sizes[-1])} has more than {most} in its layers; expected smaller sizes")
    return sizes


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One size at one number of tokens per weight."""

    size: Size
    per_weight: float
    n_weights: int
    """Of the whole model, embeddings included; of arms that differ the most."""
    steps: int
    n_tokens: int
    """Read by a training, repeats included."""
    n_unique: int
    """In the slice of the text that it reads."""
    seconds: float
    """Of one training, as predicted before the first."""

    @property
    def name(self) -> str:
        """64x4 at 20 tokens per weight."""
        return f"{name_of(self.size)} at {self.per_weight:g} tokens per weight"

    @property
    def epochs(self) -> float:
        """How often a token is read."""
        return self.n_tokens / self.n_unique

    @classmethod
    def from_json(cls, data: JsonMapping) -> "Cell":
        """A cell from its fields."""
        d_model, n_layers = data["size"]
        return cls(**{**data, "size": (d_model, n_layers)})


def check(design: Design, contrast: Contrast) -> None:
    """Make sure that an effect can be asked at several sizes. Raises ConfigError that says why not."""
    why = ""
    if contrast.unit == OF_TRAININGS or contrast.nominal is not None or contrast.tries > 1 or contrast.constant:
        why = f"its main effect ({contrast.name}) is no contrast of trained models"
    for arm in (design.arm(name) for name in contrast.arms):
        stream = dict(design.texts)[arm.text].stream
        if stream != "text" or arm.task != "causal" or arm.trainer != "loop" or arm.labels != "real":
            why = why or f"the arm {arm.name!r} of its main effect is not trained on the next tokens of a text"
        elif arm.tune not in ("own", "none") or set(dict(arm.sizes)) - _MAY_DIFFER:
            why = why or f"the arm {arm.name!r} of its main effect has a size, or the rate of another arm, already"
        elif any(re.search(r"@|\bL\d", change) for change in arm.changes):
            why = why or f"the arm {arm.name!r} of its main effect names single layers or steps, which vary on a ladder"
    if why:
        raise ConfigError(
            f"{design.study} has no ladder: {why}; expected one effect of models that read a text, at any size. Type"
            " the same without --ladder"
        )


def needs_probes(quantity: str) -> bool:
    """Whether a quantity is more than a loss at the end or on the way."""
    return quantity != "loss" and quantity not in ON_THE_WAY


def try_out(design: Design, contrast: Contrast, ask: Ask) -> None:
    """Make sure, by a few steps of each arm, that the effect is measured. Raises ConfigError where it is not."""
    for arm in design.arms:
        wanted = {quantity for _, name, quantity in contrast.terms if name == arm.name and needs_probes(quantity)}
        trial = design.trial(arm, 1, 0, source=ask.source, report=True)
        scale = dataclasses.replace(trial.scale, steps=_TRIED_STEPS, val_tokens=64 * trial.scale.n_ctx, evaluations=1)
        there = run_trial(dataclasses.replace(trial, scale=scale), ask.cache)["measures"] if wanted else {}
        if missing := wanted - there.keys():
            raise ConfigError(
                f"{design.study} has no ladder: at {design.scale.n_layers} layers the arm {arm.name!r} has no"
                f" {listed(sorted(missing))}; type the same without --ladder"
            )


def candidates(
    make: Make, ask: Ask, sizes: Sequence[Size], per_weight: Sequence[float], minutes: float, workers: int
) -> list[Cell]:
    """Every cell that might fit into so many minutes, by tokens per weight, then size; takes seconds.

    A few steps of the first three sizes are timed, and of each further one whose shortest trainings might fit.
    """
    found: list[Cell] = []
    for size in sizes:
        design = make(size, _TIMED_STEPS)
        text = dict(design.texts)[design.arms[0].text]
        part = design.slice(text, 1, tunes=False)
        corpus = ask.corpus(text, design.scale.val_tokens, part)
        trials = [design.trial(arm, 1, 0, source=ask.source, report=True) for arm in design.arms]
        n_weights = max(sum(p.numel() for p in parts_of(trial, corpus).model.parameters()) for trial in trials)
        if len(found) >= FEWEST * len(per_weight):
            last = found[-len(per_weight)]
            if SEEDS * last.seconds * n_weights / last.n_weights > 60 * minutes * workers:
                break
        fixed = [dataclasses.replace(arm, tune="none") for arm in design.arms]
        timed = estimate(dataclasses.replace(design, arms=tuple(fixed)), ask.source, ask.cache, workers)
        tokens = design.scale.batch_size * design.scale.n_ctx
        for n in per_weight:
            steps = max(1, math.ceil(n * n_weights / tokens))
            each = timed.of_steps(steps).seconds_per_replicate
            found.append(
                Cell(
                    size=size, per_weight=n, n_weights=n_weights, steps=steps, n_tokens=steps * tokens,
                    n_unique=len(corpus.train), seconds=sum(each.values()) / len(each),
                )
            )  # fmt: skip
    return sorted(found, key=lambda cell: (cell.per_weight, sizes.index(cell.size)))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How many arms and seeds every cell of a ladder has."""

    arms: int
    tuned: int
    """Arms whose rate is looked for."""
    seeds: int
    workers: int

    def trainings(self, cell: Cell, cells: Sequence[Cell]) -> int:
        """About how many trainings a cell takes on a ladder of these cells."""
        n = self.arms * self.seeds
        sizes = list(dict.fromkeys(one.size for one in cells))
        shortest = cell.per_weight == min(one.per_weight for one in cells)
        if cell.size == sizes[0]:
            n += TUNING * self.tuned * self.seeds
        if shortest and cell.size == sizes[1]:
            n += TUNING * self.tuned * min(LAW_SEEDS, self.seeds)
        return n + 3 * self.tuned * (shortest and cell.size == sizes[-1])

    def minutes(self, cells: Sequence[Cell]) -> float:
        """Predicted wall time of a ladder."""
        return sum(self.trainings(cell, cells) * cell.seconds for cell in cells) * _AROUND / 60 / self.workers


def choose(found: Sequence[Cell], shape: Shape, minutes: float, what: str) -> list[Cell]:
    """The cells that fit into so many minutes and into the text: as many as possible, first of all of few tokens.

    A number of tokens per weight has three sizes or more, or none, and no more sizes than one with fewer tokens.
    Raises ConfigError or SourceError, with what would fit, where not even three sizes do.
    """
    by_line = [list(group) for _, group in itertools.groupby(found, key=lambda cell: cell.per_weight)]
    fits = [len(list(itertools.takewhile(lambda cell: cell.epochs <= MOST_PASSES, line))) for line in by_line]
    if fits[0] < FEWEST:
        bad = by_line[0][FEWEST - 1]
        raise SourceError(
            f"{what} is too small for a ladder: a training of {bad.name} reads {bad.n_tokens:,} tokens, and its"
            f" slice, one for each of {shape.seeds} seeds, holds {bad.n_unique:,}; expected at most {MOST_PASSES}"
            f" passes, so give {bad.epochs / MOST_PASSES:.1f} times as much text, or fewer --seeds"
        )
    options = [
        [line[:n] for line, n in zip(by_line, counts, strict=True)]
        for counts in itertools.product(*(range(n + 1) for n in fits))
        if counts[0] >= FEWEST and all(b <= a and (b == 0 or b >= FEWEST) for a, b in itertools.pairwise((*counts, 0)))
    ]
    plans = [[cell for line in option for cell in line] for option in options]
    fitting = [plan for plan in plans if shape.minutes(plan) <= _USED * minutes]
    if not fitting:
        least = min(map(shape.minutes, plans))
        raise ConfigError(
            f"{minutes:g} minutes are too few for a ladder: it needs {FEWEST} sizes, and"
            f" {listed([name_of(cell.size) for cell in by_line[0][:FEWEST]])} at {by_line[0][0].per_weight:g} tokens"
            f" per weight take about {least:.1f} on {many(shape.workers, 'core')}; type --minutes"
            f" {math.ceil(least / _USED)}"
        )
    return max(fitting, key=lambda plan: (len(plan), len({cell.size for cell in plan})))


def left_out(found: Sequence[Cell], chosen: Sequence[Cell]) -> str:
    """Which cells that were looked at are not on a ladder, and why; empty where all are."""
    rest = [cell for cell in found if cell not in chosen]
    reasons = ("too long for the budget", f"more than {MOST_PASSES} passes over a slice of the text")
    named = [[cell.name for cell in rest if (cell.epochs > MOST_PASSES) == repeats] for repeats in (False, True)]
    return "; ".join(f"{', '.join(names)} ({why})" for why, names in zip(reasons, named, strict=True) if names)
