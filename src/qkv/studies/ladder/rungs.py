"""The cells of a ladder and the log of their trainings: rates by size, what is due, and what was found."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property

import numpy as np

from qkv.jsontypes import JsonObject
from qkv.studies.engine.design import Contrast
from qkv.studies.engine.runner import Due
from qkv.studies.engine.store import StudyFolder
from qkv.studies.engine.tuning import Job, choice, pending, report_key
from qkv.studies.ladder import plan
from qkv.studies.ladder.plan import Cell, Make, Size, name_of
from qkv.studies.ladder.trend import Trend
from qkv.studies.question import Ask
from qkv.studies.verdict.judging import contrast_values


class Climb:
    """The cells of a ladder and the log of their trainings: what is due, and what was found."""

    def __init__(self, make: Make, contrast: Contrast, ask: Ask, cells: tuple[Cell, ...], folder: StudyFolder) -> None:
        self.contrast, self.ask, self.cells, self.folder = contrast, ask, cells, folder
        self.designs = {cell: make(cell.size, cell.steps) for cell in cells}
        sizes = list(dict.fromkeys(cell.size for cell in cells))
        self.smallest, self.second, self.largest = sizes[0], sizes[1], sizes[-1]
        self.any = self.designs[cells[0]]

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
                **vars(trend.predicted(cell.n_weights, cell.per_weight, measured=True)),
            }
            for cell in self._of(self.largest)
            if cell.per_weight in lines
        ]  # fmt: skip
        before = hashlib.sha256((self.folder.path / "runs.jsonl").read_bytes()).hexdigest()
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self.folder.append({"key": key, "predictions": told, "at": at, "log_before": before})
