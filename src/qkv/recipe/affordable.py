"""How much watching a stated share of the time buys: `--watch 2%`.

A few updates of a copy of the model are timed, with every kind of look between them; the densest schedule of `LADDER`
that fits is written into `config.toml` before the training begins, like its precision. From there on nothing depends on
the clock: a resumed run looks where the first did. The copy is thrown away, and the time it took is said.
"""

import dataclasses
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qkv.instruments.recorder import Recorder
from qkv.instruments.schedule import KINDS, LEVELS, WatchConfig, share_of
from qkv.recipe.build import Parts, assemble
from qkv.telemetry import Store
from qkv.training.distributed.ranks import ALONE, Ranks
from qkv.training.record import Listener, StepRecord
from qkv.words import percent as as_percent


def _sparse(*every: int) -> WatchConfig:
    """Updates between two looks of each of `KINDS`, in that order; of one that is left out there are none."""
    return WatchConfig(**dict(zip(KINDS, every, strict=False)), per_doubling=16 if every[0] > 8 else 32)


LADDER = (
    _sparse(1024, 0, 0, 0),
    _sparse(256, 0, 0, 0),
    _sparse(64, 256, 0, 0),
    _sparse(32, 128, 256, 0),
    _sparse(16, 128, 256, 1024),
    LEVELS["light"] or WatchConfig(),
    _sparse(8, 16, 32, 256),
    _sparse(8, 16, 16, 64),
    LEVELS["full"] or WatchConfig(),
    _sparse(4, 8, 8, 8, 32),
    _sparse(2, 4, 4, 4, 16),
    _sparse(1, 1, 1, 1, 4),
)
"""Schedules, each denser than the one before."""

_DEAR = 10.0
"""From this percentage on spectra of whole matrices are timed too; below it they would cost more than they can get."""

_UPDATES = 4


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of one update and of one look of each kind."""

    update: float
    looks: Mapping[str, float]

    def share(self, watching: WatchConfig, steps: int) -> float:
        """What `watching` costs over `steps` updates, as a share of their time."""
        steps = max(1, min(steps, 1 << 17))
        spent = 0.0
        for kind in KINDS:
            cost = self.looks.get(kind, 0.0)
            if kind == "matrices":
                spent += cost * sum(map(watching.wants, range(steps + 1)))
            elif watching.is_due(kind, 0):
                spent += cost * (1 + sum(watching.is_due(kind, step) for step in range(steps + 1)))
        return spent / (steps * self.update)


def afford(percent: float, steps: int, costs: Costs) -> tuple[WatchConfig, float]:
    """The densest schedule of the ladder that costs at most `percent` of `steps` updates, and its share, 0 to 1.

    The sparsest one where none does.
    """
    best = LADDER[0]
    for rung in LADDER:
        if (rung.matrix_spectra and "matrix_spectra" not in costs.looks) or costs.share(rung, steps) > percent / 100:
            break
        best = rung
    return best, costs.share(best, steps)


def measure_costs(parts: Parts, percent: float, *, updates: int = _UPDATES, ranks: Ranks = ALONE) -> Costs:
    """Time a few updates of a copy, with uniform labels and every kind of look after each; what rank 0 measured."""
    scratch, training = assemble(parts.config, parts.corpus), parts.config.training
    if training.schedule.steps:  # the time between two updates is what is looked for
        steps = max(updates, training.schedule.steps)
        training = dataclasses.replace(training, schedule=dataclasses.replace(training.schedule, steps=steps))
    everything = _sparse(1, 1, 1, 1, 1 if percent >= _DEAR else 0)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "telemetry.sqlite") as store:
        recorder = Recorder(store, "calibration", watching=everything, start=scratch.start)
        meter = _Meter(recorder)
        scratch.train(
            config=training,
            observers=[meter, recorder],
            random_labels=True,
            stop_after=updates,
            deadline_seconds=3600.0,
            ranks=ranks,
        )
    scratch.plan.at_end()
    return Costs(**ranks.tell(dataclasses.asdict(meter.costs())))


class _Meter(Listener):
    """Notes the clock and what the recorder has spent, at every update."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._marks: list[tuple[float, dict[str, float]]] = []

    def after_update(self, record: StepRecord) -> None:
        self._marks.append((record.wall_seconds, dict(self._recorder.spent)))

    def costs(self) -> Costs:
        """The quickest of each."""
        updates, looks = [], []
        for (then, before), (now, after) in zip(self._marks, self._marks[1:], strict=False):
            spent = {kind: after[kind] - before.get(kind, 0.0) for kind in after}
            updates.append(now - then - sum(spent.values()))
            looks.append(spent)
        quickest = {kind: min(spent[kind] for spent in looks) for kind in looks[0] if kind in KINDS}
        return Costs(update=max(min(updates), 1e-6), looks=quickest)


def with_affordable_watching(parts: Parts, ranks: Ranks = ALONE) -> tuple[Parts, str]:
    """The same training, with the looks that its percentage buys in its configuration; and a sentence that says so."""
    percent = share_of(parts.config.watch)
    assert percent is not None
    began = time.perf_counter()
    costs = measure_costs(parts, percent, ranks=ranks)
    training = parts.config.training
    steps = training.schedule.steps or int(60 * training.minutes / costs.update)
    steps = min(steps, training.schedule.most_steps or steps)
    watching, share = afford(percent, steps, costs)
    taken = time.perf_counter() - began
    when = f"every {watching.matrices:,} updates once regular"
    sentence = (
        f"Watching for {percent:g}% of the time: matrices and heads {when}, at about {as_percent(share)} of {steps:,} "
        f"updates (measured in {taken:.1f} s)."
    )
    if 100 * share > percent:
        sentence += " That is the minimum; --watch off costs nothing."
    return dataclasses.replace(parts, config=dataclasses.replace(parts.config, watching=watching)), sentence
