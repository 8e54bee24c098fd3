"""What the workbench shows of a folder of runs: the list, curves, and the same matrix, row or sentence in many runs.

Runs are only read. A finished run is read once; of one that trains, only what is new. A run that cannot be read is left
out of a picture, and its reason is given.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from qkv.errors import QkvError, UserError
from qkv.folder.run_folder import runs_in, write_atomically
from qkv.inspection.one_text import one_text
from qkv.inspection.stored_run import StoredRun
from qkv.tasks import find_task
from qkv.telemetry import Telemetry
from qkv.telemetry.own import read_own
from qkv.telemetry.runs import Listed, State, differing, incomparable, listed
from qkv.views.host import VERSION, Host
from qkv.views.report.packed import Packed, pack, payload
from qkv.views.report.page import page_of
from qkv.views.report.report import check_page
from qkv.views.sharing import still_wanted
from qkv.views.viewer import Viewer
from qkv.words import many

N_POINTS = 400
"""Points of a curve; of a longer one each is the mean of neighboring updates."""
N_STEPS = 24
"""Steps of a measure."""
N_SNAPSHOTS = 6
"""Steps at which a sentence is read."""
MOST_READ = 24
"""Runs whose models read a sentence."""
IN_A_FILE = ("drift", "norm")
"""Measures that a shared file carries, of whole matrices."""
MOST_IN_A_FILE = 500
"""Runs whose curves a shared file carries, the newest."""
_BY_CHANCE = ("seed", "machine.")
"""Settings in which replicates may differ."""
_ROW = re.compile(r"(?P<table>[\w.]*W_E)\[(?P<token>.+)\]", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run of the list."""

    name: str
    task: str
    state: State
    loss: float | None
    ngram: float | None
    steps: int
    when: str
    settings: dict[str, str]
    """Those that are not the same in all runs of the folder."""
    alike: int
    """Equal for runs that differ in the seed alone."""
    note: str
    starred: bool


@dataclass(frozen=True, kw_only=True)
class Points:
    """A curve, or a measure of several addresses."""

    steps: Packed
    """int32 [n]"""
    values: Packed
    """float32 [n], or [address, n]"""


@dataclass(frozen=True, kw_only=True)
class RunGrid:
    """One measure of one run."""

    addresses: tuple[str, ...]
    points: Points


@dataclass(frozen=True, kw_only=True)
class Across:
    """What was read of many runs."""

    runs: Mapping[str, object]
    """Name -> what was asked of it."""
    left_out: Mapping[str, str]
    """Name -> why it is not among them."""


@dataclass(frozen=True, kw_only=True)
class Board:
    """The page's payload."""

    host: Host
    folder: str
    runs: tuple[RunRow, ...]
    differing: tuple[str, ...]
    caution: str
    edition: int = 0
    """Of the list, as a live page's events tell it."""
    measures: tuple[str, ...] = ()
    """Those that were recorded in one of the newest runs."""
    curves: Mapping[str, object] = dataclasses.field(default_factory=dict)
    grids: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    """Measure -> run -> its grid."""
    version: int = VERSION


def is_workbench(folder: Path) -> bool:
    """Whether a folder is no run and holds some."""
    return not (folder / "config.toml").exists() and bool(runs_in(folder))


def board_of(folder: Path, runs: Sequence[Listed], host: Host) -> Board:
    """The list, without curves."""
    paths = differing(runs)
    groups: dict[tuple[tuple[str, str], ...], int] = {}
    rows = []
    for run in runs:
        key = tuple(pair for pair in run.settings.items() if not pair[0].startswith(_BY_CHANCE))
        own = {"name": run.path.name, "alike": groups.setdefault(key, len(groups))}
        own["settings"] = {path: run.settings[path] for path in paths if path in run.settings}
        rows.append(payload(RunRow, run, **own))
    return Board(
        host=host, folder=folder.resolve().name, runs=tuple(rows), differing=tuple(paths), caution=incomparable(runs),
        measures=_measures(runs),
    )  # fmt: skip


def curves_of(run: Path, after: int = -1) -> dict[str, Points]:
    """Every quantity of a run over its steps: of its updates those behind step `after`, thinned; evaluations and a
    person's own numbers whole. Raises RunFolderError for telemetry that cannot be read.
    """
    with Telemetry(run / "telemetry.sqlite") as telemetry:
        updates, evaluations = telemetry.steps(after=after), telemetry.evaluations()
    at = np.array([one.step for one in evaluations])
    found = {name: (updates.step, getattr(updates, name)) for name in ("loss", "lr", "grad_norm")}
    for name, field in (("val_loss", "loss"), ("bits_per_byte", "bits_per_byte"), ("metric", "metric")):
        values = np.array([getattr(one, field) for one in evaluations], dtype=np.float64)  # None becomes NaN
        found[name] = (at, values)
    found |= {f"own.{name}": columns for name, columns in read_own(run).items()}
    return {name: _points(*columns) for name, columns in found.items() if np.isfinite(columns[1]).any()}


def _points(steps: np.ndarray, values: np.ndarray, n: int = N_POINTS) -> Points:
    """A curve of defined values; a longer one as means of blocks, each at its last step."""
    there = np.isfinite(values)
    steps, values = steps[there], values[there].clip(-3e38, 3e38)  # what float32 holds
    if len(values) > n:
        starts = np.unique(np.linspace(0, len(values), n, endpoint=False).astype(int))
        sizes = np.diff([*starts, len(values)])
        steps, values = steps[starts + sizes - 1], np.add.reduceat(values, starts) / sizes
    return Points(steps=pack(steps.astype(np.int64)), values=pack(values.astype(np.float32)))


def grid_of(run: Path, measure: str, *, whole: bool = False) -> RunGrid:
    """A measure of every address of a run, `whole` without heads. Raises AddressError where it was not recorded."""
    with Telemetry(run / "telemetry.sqlite") as telemetry:
        grid = telemetry.grid(measure)
    rows = [i for i, address in enumerate(grid.addresses) if not (whole and re.search(r"\.(H|KV)\d+\.", address))]
    at = _spread(len(grid.step), N_STEPS)
    points = Points(steps=pack(grid.step[at]), values=pack(grid.value[np.ix_(rows, at)].astype(np.float32)))
    return RunGrid(addresses=tuple(grid.addresses[i] for i in rows), points=points)


def _spread(n: int, most: int) -> list[int]:
    """At most `most` of n indices: the first, the last, and as evenly in log as there are."""
    return sorted({int(i) for i in np.rint(np.geomspace(1, max(n, 1), most)) - 1}) if n > most else list(range(n))


def row_of(run: Path, address: str) -> Points:
    """How far a row of the token table has moved from its initial value, relative to its norm: `W_E[the]`.

    Raises UserError for an address that is none, or a token that this run does not have.
    """
    if (named := _ROW.fullmatch(address)) is None:
        raise UserError(f"{address!r:.60} is no row of a token table; expected one such as W_E[the]")
    token, tokenizer = named["token"], StoredRun(run).tokenizer
    ids = tokenizer.readable if tokenizer is not None else {}
    if token not in ids:
        raise UserError(f"it has no token {token!r:.40}")
    with Telemetry(run / "telemetry.sqlite") as telemetry:
        moved = telemetry.vectors(named["table"], "row_drift")
    if not moved:
        raise UserError("the rows of its token table were not measured")
    steps = np.array(list(moved))
    return _points(steps, np.array([vector[ids[token]] for vector in moved.values()], dtype=np.float64))


def sentence_of(run: Path, text: str) -> Points:
    """The loss of a text, nats per token that is asked for, at some of the steps whose weights were kept.

    Raises UserError for a run that cannot be asked.
    """
    viewer = Viewer(run)
    one = one_text(task := find_task(viewer.config.task), viewer.tokenizer, viewer.config.model.sizes, text)
    kept, losses = viewer.steps(), []
    steps = [kept[i] for i in _spread(len(kept), N_SNAPSHOTS)]
    for step in steps:
        still_wanted()
        with torch.inference_mode(), viewer.config.machine.passing():
            nats, n = task.loss(viewer.model(step), one.batch)
        losses.append(float(nats) / n)
    return _points(np.array(steps), np.array(losses))


def across(folder: Path, names: Iterable[str], read: Callable[[Path], object]) -> Across:
    """What `read` gives of each run, and why not where it gives nothing."""
    found: dict[str, object] = {}
    left_out: dict[str, str] = {}
    for name in names:
        still_wanted()
        try:
            found[name] = read(folder / name)
        except QkvError as error:
            left_out[name] = str(error)
    return Across(runs=found, left_out=left_out)


def same_tokens(runs: Sequence[Listed], names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The first of the runs and those with its tokenizer and task, `MOST_READ` at most; and why not the others."""
    by_name = {run.path.name: run for run in runs}
    kept, left_out = [], {}
    for name in names:
        run, first = by_name[name], by_name[names[0]]
        if (run.tokenizer, run.task) != (first.tokenizer, first.task):
            left_out[name] = f"another tokenizer or task than {names[0]}: its loss per token is of other tokens"
        elif len(kept) == MOST_READ:
            left_out[name] = f"a sentence is read by at most {many(MOST_READ, 'run')}; choose fewer"
        else:
            kept.append(name)
    return kept, left_out


def _measures(runs: Sequence[Listed]) -> tuple[str, ...]:
    """The measures of the newest run that has any."""
    for run in runs[:5]:
        try:
            with Telemetry(run.path / "telemetry.sqlite") as telemetry:
                found = [row.name for row in telemetry.measures() if len(telemetry.recorded_steps(row.name))]
        except QkvError:
            continue
        if found:
            return tuple(found)
    return ()


def write_board(folder: Path, out: Path) -> Path:
    """Write the workbench of a folder as one file that works offline, and give its path.

    Raises UserError for a place that is none, StorageError.
    """
    check_page(out)
    runs = listed(folder)
    board = board_of(folder, runs, Host())
    names = [run.path.name for run in runs[:MOST_IN_A_FILE]]
    grids = {m: across(folder, names, lambda run, m=m: grid_of(run, m, whole=True)).runs for m in IN_A_FILE}
    board = dataclasses.replace(
        board,
        measures=tuple(m for m in IN_A_FILE if grids[m]),
        curves=across(folder, names, curves_of).runs,
        grids=grids,
    )
    about = f"{many(len(runs), 'run')} side by side"
    page = page_of(board, "workbench_alone.js", title=f"{board.folder} · qkv", description=about)
    write_atomically(out, page.encode())
    return out
