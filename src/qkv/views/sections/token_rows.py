"""The token table W_E row by row: how far each moved, against how often its token was met, and chosen rows exactly.

It is compared with the random-label control at the same step only: a drift grows with the number of updates. Rows that
are not drawn are said not to be.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from qkv.inspection.token_rows import drifts
from qkv.jsontypes import JsonObject
from qkv.telemetry import NULL_ARM, RUN_ARM, Telemetry
from qkv.views.report.packed import Packed, pack
from qkv.views.sections.matrices import Snapshots

N_POINTS = 1500
N_FREQUENT, N_MOVED, N_UNSEEN = 12, 6, 4
MEASURE = "row_drift"


_Why = Literal["frequent", "moved", "unseen"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenRow:
    """One row of W_E, before and after."""

    token: str
    token_id: int
    count: int | None
    drift: float | None
    why: _Why


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsSection:
    """The token table W_E row by row: how far each moved against how often it was met."""

    tokens: tuple[str, ...]
    token_ids: Packed
    counts: Packed | None
    """How often each stands in the training text."""
    drift: Packed
    step: int
    """The step of `drift`: the last that was recorded."""
    n_rows: int
    n_unseen: int | None
    largest_unseen_drift: float | None
    drawn: str
    """Which rows are drawn, in words; empty when all are."""
    null_step: int | None = None
    """The last step that run and random-label control both recorded: drifts grow with updates, so only equal steps
    compare."""
    drift_then: Packed | None = None
    """Drift of the run at `null_step`."""
    null_drift: Packed | None = None
    """Drift in the random-label control at `null_step`."""
    shown: tuple[TokenRow, ...] = ()
    example: int | None = None
    """Id of the row to begin with, one of `shown`."""
    start: Packed | None = None
    """[row of `shown`, d_model]: before training, bit for bit."""
    last: Packed | None = None
    """The same at `last_step`; None where no weights after an update were kept."""
    last_step: int | None = None
    """The last step whose weights were kept: before `step` where a run was stopped, or still trains."""


def rows_section(
    telemetry: Telemetry | None,
    snapshots: Snapshots,
    tokens: Sequence[str],
    counts: np.ndarray | None,
    specials: Sequence[int] = (),
    example: int | None = None,
) -> RowsSection | None:
    """The rows of W_E; None where neither their drift was recorded nor two snapshots hold them.

    `tokens` is the text of each id; `counts` int [d_vocab] how often each was met in training, None where not known;
    `specials` are ids such as [MASK], which are met by other ways than the text and are not called unseen; `example` is
    an id to show in any case, and first.
    """
    found = _drifts(telemetry, snapshots)
    if not found:
        return None
    step = max(found)
    drift = found[step]
    null_step, then, null = _beside_null(telemetry, found)
    n = len(drift)
    if len(tokens) != n or (counts is not None and len(counts) != n):
        return None
    special = set(specials)
    unseen = None if counts is None else (counts == 0) & ~np.isin(np.arange(n), specials)
    chosen = _chosen(drift, counts, special)
    if example is not None and example not in dict(chosen):
        chosen = [(example, "frequent"), *chosen]
    drawn, said = _drawn([i for i in range(n) if i not in special], counts, {i for i, _ in chosen} - special)
    return RowsSection(
        tokens=tuple(tokens[i] for i in drawn),
        token_ids=pack(np.asarray(drawn)),
        counts=None if counts is None else pack(np.asarray(counts, dtype=np.int64)[drawn].clip(max=2**31 - 1)),
        drift=pack(drift[drawn]),
        step=step,
        null_step=null_step,
        drift_then=None if then is None else pack(then[drawn]),
        null_drift=None if null is None else pack(null[drawn]),
        n_rows=n,
        n_unseen=None if unseen is None else int(unseen.sum()),
        largest_unseen_drift=float(drift[unseen].max()) if unseen is not None and unseen.any() else None,
        drawn=said,
        example=example,
        **_exact_rows(snapshots, tokens, counts, chosen),
    )


def _exact_rows(
    snapshots: Snapshots, tokens: Sequence[str], counts: np.ndarray | None, chosen: Sequence[tuple[int, _Why]]
) -> JsonObject:
    """Fields of `RowsSection`: the chosen rows weight by weight, as far as weights were kept before and after."""
    table, ids = snapshots.token_table, [i for i, _ in chosen]
    has_table = table in snapshots.shapes
    last_step = snapshots.steps[-1] if has_table else 0
    last = snapshots.read(table, last_step) if last_step else None
    start = snapshots.read(table, 0) if has_table and snapshots.has_start else None
    moved = drifts(start, last) if start is not None and last is not None else None
    shown = tuple(
        TokenRow(
            token=tokens[i],
            token_id=i,
            count=None if counts is None else int(counts[i]),
            drift=None if moved is None else float(moved[i]),
            why=why,
        )
        for i, why in chosen
    )
    return {
        "shown": shown,
        "start": None if start is None else pack(start[ids]),
        "last": None if last is None else pack(last[ids]),
        "last_step": last_step or None,
    }


def _drifts(telemetry: Telemetry | None, snapshots: Snapshots) -> dict[int, np.ndarray]:
    """Step -> drift of each row, as recorded; else at the last snapshot, from the weights; else nothing."""
    table = snapshots.token_table
    recorded = telemetry.vectors(telemetry.token_table(), MEASURE, arm=RUN_ARM) if telemetry else {}
    if recorded:
        return {step: values.astype(np.float64) for step, values in recorded.items()}
    if table in snapshots.shapes and snapshots.has_start and len(snapshots.steps) > 1:
        step = snapshots.steps[-1]
        return {step: drifts(snapshots.read(table, 0), snapshots.read(table, step))}
    return {}


def _beside_null(
    telemetry: Telemetry | None, found: Mapping[int, np.ndarray]
) -> tuple[int | None, np.ndarray | None, np.ndarray | None]:
    """(last step after 0 that both arms have, the run's drifts there, the control's); None each where there is none."""
    null = telemetry.vectors(telemetry.token_table(), MEASURE, arm=NULL_ARM) if telemetry else {}
    both = [step for step in found if step in null and step > 0]
    if not both:
        return None, None, None
    step = max(both)
    return step, found[step], null[step].astype(np.float64)


def _drawn(ids: list[int], counts: np.ndarray | None, shown: set[int]) -> tuple[list[int], str]:
    """Which of `ids` to draw as points: all, or evenly by rank of count and all of `shown`, in order of id."""
    if len(ids) <= N_POINTS:
        return ids, ""
    ranked = np.array(ids)
    if counts is not None:
        ranked = ranked[np.argsort(-counts[ranked], kind="stable")]
    kept = ranked[np.unique(np.linspace(0, len(ids) - 1, N_POINTS).round().astype(int))]
    said = "by how often they are met" if counts is not None else "by number"
    words = f"rows are drawn, evenly along their ranking {said}, and those shown below or that moved furthest."
    every = sorted({int(i) for i in kept} | shown)
    return every, f"{len(every):,} of {len(ids):,} {words} Special tokens are left out."


def _chosen(drift: np.ndarray, counts: np.ndarray | None, special: set[int]) -> list[tuple[int, _Why]]:
    """Rows to show weight by weight: the most frequent, those that moved furthest, some never met."""
    chosen: dict[int, _Why] = {}
    if counts is not None:
        frequent = np.argsort(-counts, kind="stable")[:N_FREQUENT]
        chosen |= {int(i): "frequent" for i in frequent if counts[i] > 0}
    furthest = [int(i) for i in np.argsort(-drift, kind="stable") if int(i) not in chosen][:N_MOVED]
    chosen |= {i: "moved" for i in furthest if drift[i] > 0}
    if counts is not None:
        never = [int(i) for i in np.flatnonzero(counts == 0) if int(i) not in special]
        chosen = {i: why for i, why in chosen.items() if i not in never}
        chosen |= {i: "unseen" for i in never[:N_UNSEEN]}
    return list(chosen.items())
