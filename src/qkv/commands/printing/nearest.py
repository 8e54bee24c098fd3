"""`--at STEP` where the weights of that step were not kept: what is shown instead, and that this is said."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from qkv.errors import UserError
from qkv.jsontypes import JsonObject

if TYPE_CHECKING:
    from qkv.api import Run


class Printable(Protocol):
    """What a command shows."""

    def as_json(self) -> JsonObject: ...

    def print(self) -> None: ...


P = TypeVar("P", bound=Printable)


@dataclass(frozen=True)
class Nearest:
    """What is shown where no weights were kept of a step that was asked for."""

    shown: Printable
    asked: tuple[int, ...]
    steps: tuple[int, ...]
    kept: tuple[int, ...]
    more: str = ""
    """A further sentence of the note."""

    @property
    def note(self) -> str:
        """What is shown instead, and what there is."""
        kept = ", ".join(f"{step:,}" for step in self.kept)
        parts = [
            f"The weights of step {asked:,} were not kept; those of step {step:,} are shown instead"
            for asked, step in zip(self.asked, self.steps, strict=True)
            if asked != step
        ]
        return f"{'. '.join(parts)} (kept: {kept}).{self.more and ' '}{self.more}"

    def as_json(self) -> JsonObject:
        """What is shown, with the step (of two steps, both) that was asked for and that is shown."""
        asked, steps = (each[0] if len(each) == 1 else list(each) for each in (self.asked, self.steps))
        return {**self.shown.as_json(), "asked": asked, "step": steps, "note": self.note}

    def print(self) -> None:
        """The note, then what is shown."""
        print(f"{self.note}\n")
        self.shown.print()


def nearest(run: "Run", *asked: int) -> tuple[int, ...]:
    """For each step the one nearest to it of which this run kept weights; itself where it is none of the run's.

    Raises UserError for two steps that are nearest to the same one.
    """
    kept = tuple(run.snapshots())
    found = tuple(
        min(kept, key=lambda step: (abs(step - at), step)) if kept and kept[0] < at < kept[-1] else at for at in asked
    )
    if len(asked) > 1 and len(set(found)) == 1 and len(set(asked)) > 1:
        there = ", ".join(map(str, kept))
        raise UserError(f"{run.path} kept one set of weights near steps {' and '.join(map(str, asked))}; kept: {there}")
    return found


def said(run: "Run", shown: P, asked: tuple[int, ...], steps: tuple[int, ...], more: str = "") -> P | Nearest:
    """What is shown of `steps`, with a note where others were asked for."""
    return shown if asked == steps else Nearest(shown, asked, steps, tuple(run.snapshots()), more)
