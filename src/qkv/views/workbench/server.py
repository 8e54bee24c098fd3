"""The live page of a folder of runs: it looks for new runs and new steps, and answers what is asked about many runs.

Asked for: `curves` (of each run behind the step that the page has), `grid`, `row`, `sentence`; and `note`, which writes
`notes.json` into the folder: the one file that this page writes.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qkv.errors import QkvError, UserError, unknown
from qkv.folder.run_folder import RunFolder
from qkv.jsontypes import JsonMapping, is_like
from qkv.telemetry.notes import Note, write_note
from qkv.telemetry.own import FILE as OWN
from qkv.telemetry.runs import Known, Listed, further, listed
from qkv.views.host import Host
from qkv.views.live.follow import Follower
from qkv.views.workbench.board import (
    Across,
    Board,
    Points,
    across,
    board_of,
    curves_of,
    grid_of,
    row_of,
    same_tokens,
    sentence_of,
)

QUESTIONS: Mapping[str, JsonMapping] = {
    "curves": {"runs": {str: int}},
    "grid": {"runs": [str], "measure": str},
    "row": {"runs": [str], "address": str},
    "sentence": {"runs": [str], "text": str},
    "note": {"run": str, "note": str, "starred": bool},
}
"""What may be asked, with the form of each question."""
LIVE = ("training", "unfinished")
_LONGEST = 20_000


@dataclass(frozen=True, kw_only=True)
class BoardPulse:
    """How far the runs are."""

    edition: int
    """Of the list: another one where a run began, ended or was taken away, or a note was written."""
    live: tuple[tuple[str, int], ...]
    """Name and last step of each run that is training."""


class Watched:
    """The list of a folder, of which only what has changed is read again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs, self.edition = folder, list[Listed](), 0
        self._known: Known = {}
        self._written = -1
        self._begun: set[Path] = set()  # folders that may become runs
        self._stamps: dict[Path, tuple[int, ...]] = {}
        self._turn = threading.Lock()

    def look(self) -> BoardPulse:
        """A look at the folder, and at the telemetry of runs that are not finished."""
        with self._turn, contextlib.suppress(OSError, QkvError):  # the folder was taken away: as it was
            if self.folder.stat().st_mtime_ns != self._written or any(
                (p / "config.toml").exists() for p in self._begun
            ):
                self._list()
            for i, run in enumerate(self.runs):
                if run.state in LIVE and (now := self._moved(run)) is not None:
                    self.edition += now.state != run.state
                    self.runs[i] = now
        with self._turn:
            live = tuple((run.path.name, run.steps) for run in self.runs if run.state == "training")
            return BoardPulse(edition=self.edition, live=live)

    def _list(self) -> None:
        self._written = self.folder.stat().st_mtime_ns
        self.runs = listed(self.folder, self._known)
        there = {run.path for run in self.runs}
        self._begun = {path for path in self.folder.iterdir() if path not in there and path.is_dir()}
        self.edition += 1

    def _moved(self, run: Listed) -> Listed | None:
        """A run that is not finished, read again where its files or its lock have changed."""
        folder = RunFolder(run.path)
        stamp = (folder.is_finished, folder.in_use(), *map(_written, _growing(run.path)))
        if self._stamps.get(run.path) == stamp:
            return None
        self._stamps[run.path] = stamp
        return dataclasses.replace(further(run), note=run.note, starred=run.starred)


def _growing(run: Path) -> tuple[Path, ...]:
    """The files of a run that grow while it trains."""
    return run / "telemetry.sqlite", run / "telemetry.sqlite-wal", run / OWN


def _written(path: Path) -> int:
    """When a file was last written; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


class RunsDesk:
    """Answers questions about the runs of a folder."""

    can = tuple(QUESTIONS)

    def __init__(self, watched: Watched) -> None:
        self._watched, self._folder = watched, watched.folder
        self._curves: dict[Path, tuple[tuple[int, ...], dict[str, Points]]] = {}

    def answer(self, name: str, given: object) -> Across | Note:
        """The answer. Raises UserError for what cannot be answered, in a sentence for the page."""
        if name not in QUESTIONS:
            raise UserError(unknown("question", name[:40], QUESTIONS))
        if not is_like(given, dict(QUESTIONS[name])):
            raise UserError(f"a question {name} is an object with {', '.join(QUESTIONS[name])}")
        assert isinstance(given, dict)
        asked = [given["run"]] if name == "note" else list(given["runs"])
        there = {run.path.name for run in self._watched.runs}
        if missing := [run for run in asked if run not in there]:
            raise UserError(f"there is no run {missing[0][:60]!r} in {self._folder}")
        if name == "note":
            return write_note(self._folder, given["run"], note=given["note"], starred=given["starred"])
        if name == "curves":
            return across(self._folder, asked, lambda run: self._read_curves(run, given["runs"][run.name]))
        if name == "grid":
            return across(self._folder, asked, lambda run: grid_of(run, given["measure"]))
        if name == "row":
            return across(self._folder, asked, lambda run: row_of(run, given["address"]))
        return self._sentence(asked, given["text"])

    def _sentence(self, asked: list[str], text: str) -> Across:
        if len(text) > _LONGEST:
            raise UserError(f"the text has {len(text):,} characters; expected at most {_LONGEST:,}: shorten it")
        kept, left_out = same_tokens(self._watched.runs, asked)
        found = across(self._folder, kept, lambda run: sentence_of(run, text))
        return Across(runs=found.runs, left_out={**left_out, **found.left_out})

    def _read_curves(self, run: Path, after: int) -> dict[str, Points]:
        """The curves of a run; of one that was asked for whole before and has not grown, those of then."""
        if after >= 0:
            return curves_of(run, after)
        stamp = tuple(map(_written, _growing(run)))
        if self._curves.get(run, ((), {}))[0] != stamp:
            self._curves[run] = (stamp, curves_of(run))
        return self._curves[run][1]


class WorkbenchPage(Follower[BoardPulse]):
    """A folder of runs as a live page."""

    entry = "workbench_live.js"

    def __init__(self, folder: Path) -> None:
        self._watched = Watched(folder)
        self._desk = RunsDesk(self._watched)
        super().__init__(folder, lambda _: self._watched.look())

    @property
    def desk(self) -> RunsDesk:
        """Who answers about the runs."""
        return self._desk

    def spare(self) -> None:
        """Let this thread compute on one core while a run trains."""
        import torch

        torch.set_num_threads(1)

    def payload(self) -> Board:
        """The list, as it is now."""
        edition = self._watched.look().edition
        board = board_of(self.folder, self._watched.runs, Host(kind="page", can=RunsDesk.can))
        return dataclasses.replace(board, edition=edition)
