"""The measures of one address as a table: without training, at the end, and beside the random-label control."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from qkv.commands.printing import screen
from qkv.errors import AddressError
from qkv.inspection.control import CONTROL, described, when
from qkv.instruments.registry import MEASURES, property_of
from qkv.jsontypes import JsonObject
from qkv.telemetry import RUN_ARM, Compared, Series, Telemetry
from qkv.words import figure

T = TypeVar("T")


@dataclass(frozen=True)
class Measured:
    """Every measure of one address over the steps, and what the random-label control has at an equal step."""

    series: list[Series]
    null: dict[str, Compared]
    """Measure -> run and random-label control at the last step that both have."""
    belongs: dict[str, str]
    """Measure -> function or parametrisation, of what this address names."""
    compared: str = ""
    """What the random-label control is and at which step it is compared; empty where there is none."""

    def as_json(self) -> JsonObject:
        """Series, and the values of the random-label control (`null`), by measure."""
        return {
            "measures": {s.measure: {"step": s.step, "value": s.value} for s in self.series},
            "null": {name: {"step": c.step, "run": c.value, "null": c.null} for name, c in self.null.items()},
        }

    def print(self) -> None:
        """One line for each measure; a dash where it is undefined or was not taken."""
        if not self.series:
            return
        step = _latest(self.null)
        rows = [
            (
                s.measure,
                figure(s.value[0] if s.step[0] == 0 else None),
                figure(s.value[-1]),
                *self._pair(s.measure, step),
                screen.sparkline(s.value.tolist(), 24),
                self.belongs.get(s.measure, ""),
            )
            for s in self.series
        ]
        beside = [f"at step {step:,}", CONTROL] if self.null else []
        screen.print_table(["measure", "untrained", "last", *beside, "over steps", "property of the"], rows)
        if self.compared:
            print(self.compared)

    def _pair(self, measure: str, step: int) -> tuple[str, ...]:
        """Run and control under a heading that says `step`; where they are of another step, it is told."""
        if not self.null:
            return ()
        pair = self.null.get(measure)
        if pair is None:
            return (figure(None),) * 2
        when = "" if pair.step == step else f" (step {pair.step:,})"
        return figure(pair.value) + when, figure(pair.null)


def measured(telemetry: Telemetry, address: str, at: int | None = None) -> Measured:
    """What was measured of `address`, no later than step `at`; an activation's heads included."""
    series, null, belongs, kind = [], {}, {}, address.rpartition(".")[2]
    for measure in telemetry.measures():
        belongs[measure.name] = property_of(measure.name, kind) if measure.name in MEASURES else measure.property_of
        found = _first(lambda of=measure.name: telemetry.series(address, of).values())  # shared: by its first name
        if found is None:
            continue
        kept = found.step <= at if at is not None else slice(None)
        if len(found.step[kept]):
            series.append(Series(address, measure.name, RUN_ARM, found.step[kept], found.value[kept]))
        pair = _first(lambda of=measure.name: telemetry.against_null(of, address, at=at))
        if pair is not None and pair.step > 0:  # at step 0 both have the same weights
            null[measure.name] = pair
    compared = f"Compared at {when(_latest(null), telemetry)} with {described(telemetry)}." if null else ""
    return Measured(series, null, belongs, compared)


def _latest(pairs: dict[str, Compared]) -> int:
    """The last step at which run and control are compared; 0 where they are not."""
    return max((pair.step for pair in pairs.values()), default=0)


def _first(read: Callable[[], Iterable[T]]) -> T | None:
    """The first of what is read; None where there is none: of this address, of this arm."""
    try:
        return next(iter(read()), None)
    except AddressError:
        return None
