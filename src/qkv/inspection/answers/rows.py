"""Were the embeddings trained? The rows of W_E, one of them before and after, and rows that no text asked for."""

from functools import partial

import numpy as np

from qkv.inspection.answers.answer import Answer, Evidence, apart
from qkv.inspection.control import described, when
from qkv.inspection.stored_run import recorded
from qkv.inspection.token_rows import RowSummary, drifts, row_story, summary, turns
from qkv.instruments.tokens import counted_in
from qkv.telemetry import NULL_ARM
from qkv.words import many, number, plural, relative

RELATED = 0.2
"""Rank correlation from which on, either way, drift is said to go with how frequent a token is."""
_NORM = "its initial norm"
STRAIGHT = 0.1
"""Degrees: a row that turned by less has only grown or shrunk; rounding in float32 turns a row by far less."""


def embeddings(evidence: Evidence) -> Answer | None:
    """How far the rows of W_E moved, one of them before and after, and the rows never seen."""
    telemetry = evidence.telemetry
    table = telemetry.token_table()
    drift, counts = _row_drift(evidence), telemetry.vector(table, "row_count")
    if drift is None:
        return None
    answer = partial(Answer, key="embeddings", question="Were the embeddings trained?", measure="row_drift")
    if not drift.any():
        sentence = f"No: all {many(len(drift), 'row')} of {table} are exactly where they started{_still(evidence)}."
        return answer(sentence=sentence, numbers={"largest row drift": 0.0}, address=table, weight=0.6)
    rows = summary(drift, counts, evidence.specials)
    example, words, figures = _example_row(evidence, counts)
    scope = f"{rows.n_seen or rows.n_rows:,} rows{_whose(evidence, rows)}"
    sentence = f"Yes: the median row of {table} moved by {relative(rows.median, _NORM)} (over {scope})."
    if not rows.median:
        sentence = f"In part: of {scope}, {rows.n_moved:,} moved."
    most = f"{_named(evidence, rows.furthest)} moved most, by {relative(rows.largest, _NORM)}."
    figures |= {"median row drift": rows.median, "largest row drift": rows.largest}
    more, (control, far) = [_unseen(evidence, rows, counts), _by_count(rows), most, words], _row_control(evidence)
    if rows.n_unseen is not None and rows.n_unseen_moved is not None:
        figures |= {"rows never met": float(rows.n_unseen), "rows never met that moved": float(rows.n_unseen_moved)}
        figures |= {"largest drift of a row never met": rows.largest_unseen}
    if rows.with_count is not None:
        figures |= {"rank correlation of drift and count": rows.with_count}
    unexplained = rows.largest_unseen and not _is_tied(evidence) and not evidence.weight_decay  # no text asked for it
    return answer(
        sentence=sentence,
        more=tuple(line for line in more if line),
        numbers=figures,
        null=control,
        address=example or table,
        weight=0.95 if unexplained else 0.45 + 0.3 * far,
    )


def _named(evidence: Evidence, row: int) -> str:
    """A row by its token; by its number where it has none, as in an image's table."""
    return f"Row {row:,}" if evidence.run.tokenizer is None else f"The row of {evidence.token(row)}"


def _still(evidence: Evidence) -> str:
    """Why no row moved, where what was recorded tells: the table was frozen, or no gradient has come to it."""
    gradients = recorded(evidence.telemetry, "grad_norm", evidence.telemetry.token_table())
    if gradients is None:
        return ""
    if np.isnan(gradients.value).all():
        return ": it was frozen" if evidence.run.settings.get("changes") else ""
    return "" if np.nan_to_num(gradients.value).any() else ": no gradient has reached it yet"


def _whose(evidence: Evidence, rows: RowSummary) -> str:
    """What a row stands for: one value of a patch, or a token of a text, those met where they were counted."""
    if "patches" in evidence.run.settings.get("model", {}):
        return ", one for each value of a patch"
    return "" if rows.n_seen is None else f" whose token occurs in {_counted_in(evidence)}"


def _counted_in(evidence: Evidence) -> str:
    return counted_in(evidence.telemetry.fact("tokens_counted"))


def _row_drift(evidence: Evidence) -> np.ndarray | None:
    """Of every row of W_E at the end: as recorded, else from the weights; None where only the start is known."""
    table = evidence.telemetry.token_table()
    recorded = evidence.telemetry.vectors(table, "row_drift", newest_only=True)
    if any(recorded):
        return next(iter(recorded.values()))
    if not max(evidence.folder.weights(), default=1):  # a training that ended before its first checkpoint
        return None
    start, last = evidence.matrix(table, 0), evidence.matrix(table)
    return None if start is None or last is None or start.shape != last.shape else drifts(start, last)


def _example_row(evidence: Evidence, counts: np.ndarray | None) -> tuple[str, str, dict[str, float | None]]:
    """(address, words, numbers) of one row before and after; empty where no trained weights are there."""
    row, table = evidence.example(counts), evidence.telemetry.token_table()
    start, last = evidence.matrix(table, 0), evidence.matrix(table)
    kept = max(evidence.folder.weights(), default=None)
    taken = max(evidence.telemetry.vectors(table, "row_drift", newest_only=True), default=kept)
    if kept == 0 and taken:  # a training that ended before its first checkpoint
        return "", "", {}
    if row is None or start is None or last is None or start.shape != last.shape or row >= len(last):
        return "", "", {}
    story = row_story(start, last, row, counts)
    name = evidence.token(row)
    turned = "" if story.turn is None else f" and turned by {number(story.turn)}\u00b0"
    words = f"The row of {name} went from norm {number(story.norm_before)} to {number(story.norm_after)}{turned}"
    words += "." if kept == taken or kept is None else f" by step {kept:,}, the last whose weights were kept."
    address = f"{table}[{name}]"
    figures = {
        f"{address} length before": story.norm_before,
        f"{address} length after": story.norm_after,
        f"{address} turn (degrees)": story.turn,
        f"{address} drift": story.drift,
    }
    return address, words, figures


def _unseen(evidence: Evidence, rows: RowSummary, counts: np.ndarray | None) -> str:
    """What became of rows whose token does not occur in the training text, and why, as far as the run tells."""
    if rows.n_unseen is None:
        return ""
    if not rows.n_unseen or rows.largest_unseen is None:
        return "Every token of the vocabulary occurs in the training text, so every row got a gradient."
    whose = f"{plural(rows.n_unseen, 'row')} of tokens that do not occur in {_counted_in(evidence)}"
    if rows.largest_unseen == 0:
        return f"The {rows.n_unseen:,} {whose} did not move at all: no gradient ever reached them."
    n_moved = "all" if rows.n_unseen_moved == rows.n_unseen else f"{rows.n_unseen_moved:,}"
    most = relative(rows.largest_unseen, "their initial norm")
    up_to = f"Of the {rows.n_unseen:,} {whose}, {n_moved} moved, by up to {most}"
    why, decay, table = ".", f"weight decay ({evidence.weight_decay:g})", evidence.telemetry.token_table()
    if _is_tied(evidence):
        why = f": {table} is also the output matrix, so every prediction changes all its rows."
    elif evidence.weight_decay and counts is not None and _only_shrank(evidence, counts):
        why = f". They shrank without turning, which is {decay} and not learning."
    elif evidence.weight_decay:
        why = f". The optimizer's {decay} shrinks every row, whether or not its token occurs."
    return up_to + why


def _only_shrank(evidence: Evidence, counts: np.ndarray) -> bool:
    """Whether each row never met is shorter than at the start and points the same way, by the weights that are kept."""
    table = evidence.telemetry.token_table()
    start, last = evidence.matrix(table, 0), evidence.matrix(table)
    if start is None or last is None or start.shape != last.shape or len(start) != len(counts):
        return False
    ordinary = np.array([i not in evidence.specials for i in range(len(counts))])
    start, last = start[ordinary & (counts == 0)], last[ordinary & (counts == 0)]
    shorter = np.linalg.norm(last, axis=1) < np.linalg.norm(start, axis=1)
    return bool((shorter & (turns(start, last) < STRAIGHT)).all())


def _is_tied(evidence: Evidence) -> bool:
    """Whether the table of tokens is also the output matrix."""
    table = evidence.telemetry.token_table()
    return any(row.address == table and "W_U" in (row.tied_to or "") for row in evidence.telemetry.addresses())


def _by_count(rows: RowSummary) -> str:
    """Whether rows of frequent or of rare tokens moved farther, or neither."""
    if rows.with_count is None:
        return ""
    correlation = f"rank correlation {rows.with_count:+.2f}"
    if abs(rows.with_count) < RELATED:
        return f"How far a row moved hardly depends on how frequent its token is ({correlation})."
    return f"Rows of {'frequent' if rows.with_count > 0 else 'rare'} tokens moved farther ({correlation})."


def _row_control(evidence: Evidence) -> tuple[str, float]:
    """How far rows had moved at the last step shared with the random-label control, in words; and how far apart."""
    table = evidence.telemetry.token_table()
    run = evidence.telemetry.vectors(table, "row_drift")
    control = evidence.telemetry.vectors(table, "row_drift", arm=NULL_ARM)
    both = sorted(set(run) & set(control))
    if not both or not both[-1]:
        return "", 0.0
    step = both[-1]
    here, there = float(run[step].mean()), float(control[step].mean())
    if not (here or there):
        return "", 0.0
    words = (
        f"At {when(step, evidence.telemetry)}, rows had moved by {relative(here, 'their initial norm')} on average. "
        f"In {described(evidence.telemetry)}, they had moved by {relative(there)}."
    )
    return words, apart(here, there)
