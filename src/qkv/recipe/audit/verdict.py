"""What a verification says: checks, what each looked at, what is wrong, and what could not be looked at and why."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from qkv.jsontypes import JsonObject


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that is not as it must be."""

    file: str
    """Where, relative to the run folder."""
    sentence: str
    """What, for a person."""
    step: int | None = None
    """The step of the training it belongs to; None for the whole run."""
    address: str = ""
    """The matrix it belongs to, if it does."""

    def __str__(self) -> str:
        step = "" if self.step is None else f", step {self.step}"
        return f"{self.file}{step}{', ' + self.address if self.address else ''}: {self.sentence}"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One kind of check."""

    name: str
    """files, checkpoints, telemetry or replay; of an imported history also succession."""
    compared: int
    what: str
    """What they are, in words that follow the number."""
    faults: tuple[Fault, ...] = ()
    unchecked: tuple[str, ...] = ()
    """What could not be checked, or not exactly, and why; a sentence each."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """All checks of one run folder."""

    run: Path
    checks: tuple[Check, ...]
    """In the order in which they were made."""
    is_unfinished: bool = False
    """Whether its training has not ended."""

    @property
    def state(self) -> Literal["whole", "unfinished", "damaged"]:
        """damaged where something is wrong that nothing brings back; unfinished where a resume ends with what an
        undisturbed training has.
        """
        return "damaged" if self.faults else "unfinished" if self.is_unfinished else "whole"

    @property
    def is_whole(self) -> bool:
        """Whether it is finished and nothing is wrong."""
        return self.state == "whole"

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Everything that is wrong."""
        return tuple(fault for check in self.checks for fault in check.faults)

    def as_json(self) -> JsonObject:
        """What `qkv verify --json` prints."""
        return {
            "run": str(self.run),
            "state": self.state,
            "whole": self.is_whole,
            "checks": [asdict(check) for check in self.checks],
        }
