"""Every head of every attention matrix at every step there is: what the grid of layers and matrices is coloured by.

Where a run was watched in full, heads and circuits were recorded while it trained, and these numbers are shown. Else
they are computed here from the weights that were kept, by the same formulas; `origin` says which.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from qkv.errors import AddressError
from qkv.instruments import measures
from qkv.instruments.registry import MEASURES
from qkv.instruments.spectra import spectra
from qkv.telemetry import NULL_ARM, RUN_ARM, Grid, MeasureRow, Telemetry
from qkv.views.report.packed import pack
from qkv.views.sections.matrices import Role, Snapshots, role_of, short_kind
from qkv.views.sections.measures_map import MapSection, Measured, measure_note, table, thin_steps

N_RECORDED = 60
N_COMPUTED = 12
KINDS = ("W_Q", "W_K", "QK", "pattern", "W_V", "W_O", "OV")
"""Columns of heads: what decides where a head looks, then what it hands over."""
ROLES = {"QK": "Q", "OV": "V", "pattern": "norm"}
Values = dict[str, dict[str, dict[int, float]]]
"""measure -> address -> step -> value"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadRow:
    """One head of a matrix, or one head's circuit."""

    address: str
    place: str
    """The address without head and kind: `L2`, `dec.L1.cross`."""
    layer: int
    head: int
    kind: str
    role: Role


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridSection(Measured):
    """Every head at every step, in the measures that heads have."""

    rows: tuple[HeadRow, ...]
    origin: str
    """Where the numbers come from, in words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherRun:
    """Another run of the same matrices, to stand beside this one."""

    name: str
    map: MapSection | None
    grid: GridSection | None


def grid_section(
    telemetry: Telemetry | None, snapshots: Snapshots, heads: dict[str, int], stretch: Tensor | None = None
) -> GridSection | None:
    """Measures of heads and circuits; None where neither were they recorded nor can they be computed.

    `heads` is the number of heads by kind (W_Q, W_K, W_V, W_O); by `stretch` [d_head] positions make q and k longer.
    """
    recorded = _recorded(telemetry, RUN_ARM) if telemetry else {}
    if recorded:
        null = _recorded(telemetry, NULL_ARM) if telemetry else {}
        about = {row.name: row for row in telemetry.measures()} if telemetry else {}
        return _section(recorded, null, about, "recorded while it trained", N_RECORDED)
    computed = _computed(snapshots, heads, stretch)
    about = {name: measure.row() for name, measure in MEASURES.items()}
    return _section(computed, {}, about, "computed from the weights that were kept", N_COMPUTED) if computed else None


def _section(
    values: Mapping[str, Grid], null: Mapping[str, Grid], about: Mapping[str, MeasureRow], origin: str, n: int
) -> GridSection:
    addresses = sorted({address for grid in values.values() for address in grid.addresses}, key=_order)
    steps = thin_steps(_steps(values), n)
    null_steps = [step for step in _steps(null) if step in set(steps)]
    return GridSection(
        rows=tuple(_row(address) for address in addresses),
        measures=tuple(measure_note(about[name]) for name in about if name in values),
        steps=tuple(steps),
        values={name: pack(table(grid, addresses, steps)) for name, grid in values.items()},
        null_steps=tuple(null_steps),
        null_values={name: pack(table(grid, addresses, null_steps)) for name, grid in null.items() if name in values}
        if null_steps
        else {},
        origin=origin,
    )


def _steps(values: Mapping[str, Grid]) -> list[int]:
    """Every step with a number."""
    return sorted({int(step) for grid in values.values() for step in grid.step[np.isfinite(grid.value).any(axis=0)]})


def _parse(address: str) -> tuple[str, int, int, str]:
    """(what stands before the head, layer, head, kind) of a head's address, such as `L2.H3.W_Q`."""
    stem, head, kind = address.rsplit(".", 2)
    layer = next((int(part[1:]) for part in stem.split(".") if part[:1] == "L" and part[1:].isdigit()), 0)
    return stem, layer, int(head.lstrip("HKV")), kind


def _order(address: str) -> tuple[str, int, str, int, int]:
    stem, layer, head, kind = _parse(address)
    scope = stem.rpartition(f"L{layer}")[0]
    return scope, layer, stem, KINDS.index(kind) if kind in KINDS else len(KINDS), head


def _row(address: str) -> HeadRow:
    stem, layer, head, kind = _parse(address)
    role = ROLES.get(kind) or role_of(kind)
    return HeadRow(address=address, place=stem, layer=layer, head=head, kind=kind, role=role)  # type: ignore[arg-type]


def _recorded(telemetry: Telemetry, arm: int) -> dict[str, Grid]:
    """What telemetry holds of single heads, by measure."""
    known = {row.address for row in telemetry.addresses() if row.head is not None and row.kind in KINDS}
    found = {}
    for measure in telemetry.measures() if known else ():
        parts = []
        for selector in ("**.H*.*", "**.KV*.*"):
            try:
                parts.append(telemetry.grid(measure.name, selector, arm))
            except AddressError:  # this arm has no such value of it
                continue
        n = min((len(grid.step) for grid in parts), default=0)  # of a live run one may know a step more
        rows = [
            (address, row[:n])
            for grid in parts
            for address, row in zip(grid.addresses, grid.value, strict=True)
            if address in known
        ]
        if any(np.isfinite(row).any() for _, row in rows):
            addresses, values = zip(*rows, strict=True)
            found[measure.name] = Grid(measure.name, arm, addresses, parts[0].step[:n], np.stack(values))
    return found


def head_parts(matrix: np.ndarray, kind: str, n: int) -> np.ndarray:
    """The heads of a stored matrix: [n, d_model, d_head], of W_O [n, d_head, d_model]."""
    return np.stack(np.split(matrix, n, axis=0 if kind == "W_O" else 1))


def _computed(snapshots: Snapshots, heads: dict[str, int], stretch: Tensor | None) -> dict[str, Grid]:
    """The same of the weights that were kept: norm, drift and turn of heads; size and spectrum of circuits."""
    values: Values = defaultdict(lambda: defaultdict(dict))
    owned = [a for a in snapshots.shapes if heads.get(short_kind(a).split(".")[-1], 0) > 0]
    stems = list(dict.fromkeys(address.rpartition(".")[0] for address in owned))
    for step in snapshots.spread(N_COMPUTED) if owned else ():
        for stem in stems:
            parts: dict[str, np.ndarray] = {}
            for kind in ("W_Q", "W_K", "W_V", "W_O"):
                if f"{stem}.{kind}" in owned:
                    parts[kind] = head_parts(snapshots.read(f"{stem}.{kind}", step), kind, heads[kind])
                    start = snapshots.read(f"{stem}.{kind}", 0) if snapshots.has_start else None
                    before = None if start is None else head_parts(start, kind, heads[kind])
                    _heads(values, f"{stem}.{_name(kind, heads)}", kind, step, parts[kind], before)
            if len(parts) == 4:
                _circuits(values, stem, step, parts, None if "cross" in stem.split(".") else stretch)
    grids = {}
    for name, found in values.items():
        steps = sorted({step for series in found.values() for step in series})
        rows = [[series.get(step, np.nan) for step in steps] for series in found.values()]
        grids[name] = Grid(name, RUN_ARM, tuple(found), np.array(steps), np.array(rows))
    return grids


def _name(kind: str, heads: dict[str, int]) -> str:
    """H, or KV where query heads share keys and values."""
    return "KV" if kind in ("W_K", "W_V") and heads["W_K"] != heads["W_Q"] else "H"


def _heads(values: Values, stem: str, kind: str, step: int, now: np.ndarray, start: np.ndarray | None) -> None:
    """Measures of each head of one matrix."""
    n_in = now.shape[1] * (len(now) if kind == "W_O" else 1)
    for head, weights in enumerate(torch.from_numpy(now)):
        address = f"{stem}{head}.{kind}"
        values["norm"][address][step] = measures.norm(weights)
        if start is not None:
            before = torch.from_numpy(start[head])
            values["drift"][address][step] = measures.drift(weights, before, n_in)
            turn = measures.turn(weights, before)
            if turn is not None:
                values["turn"][address][step] = turn


def _circuits(values: Values, stem: str, step: int, parts: dict[str, np.ndarray], stretch: Tensor | None) -> None:
    """Measures of QK and OV of each query head, from their factors."""
    n = len(parts["W_Q"])
    shared = {kind: torch.from_numpy(parts[kind]).repeat_interleave(n // len(parts[kind]), 0) for kind in parts}
    queries = shared["W_Q"] if stretch is None else shared["W_Q"] * stretch.square().to(shared["W_Q"])
    products = {"QK": (queries, shared["W_K"].mT), "OV": (shared["W_V"], shared["W_O"])}
    for kind, (left, right) in products.items():
        values_of, _ = spectra(left, right)
        top, _, effective = measures.spectrum_summary(values_of)
        for head in range(n):
            address = f"{stem}.H{head}.{kind}"
            values["norm"][address][step] = float(np.sqrt((values_of[head] ** 2).sum()))
            values["spectral_norm"][address][step] = float(top[head])
            if np.isfinite(effective[head]):
                values["effective_rank"][address][step] = float(effective[head])
