"""What happened in a run and when: changes found in its telemetry and dated, each a sentence with its evidence.

A detector reads one kind of series and says what it found; `DETECTORS` lists them. They work on telemetry alone, also
while it is written, and on any arm: what they find in the random-label control does not come from what inputs say.
Thresholds are stated beside each detector; a change of level counts where independent normal noise would show it once
in a thousand series (`changepoints`), and where it is large enough to matter.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from qkv.inspection.changepoints import change
from qkv.inspection.stored_run import recorded
from qkv.telemetry import RUN_ARM, Evaluation, Telemetry
from qkv.words import number, percent


@dataclass(frozen=True, kw_only=True)
class Happening:
    """Something that happened, with the numbers that show it."""

    step: int
    kind: str
    """One word: specialised, collapse, plateau, dead, saturated, explosion, over-fitting."""
    sentence: str
    address: str = ""
    weight: float
    """How much it matters, for the order of reading: about 1 for the clearest of its kind."""
    measure: str = ""
    evidence: dict[str, float] = field(default_factory=dict)


Detector = Callable[[Telemetry, int], list[Happening]]

RISES = {"induction": 0.2, "previous_mass": 0.3, "own_mass": 0.3, "first_mass": 0.5}
"""How much more of a head's attention makes a specialist, 0 to 1."""

ROLES = {
    "induction": "copies: it attends to what followed an earlier copy of the token",
    "previous_mass": "attends to the previous token",
    "own_mass": "attends to itself",
    "first_mass": "attends to the first token",
}
"""What a head does that gives much of its attention so."""

COLLAPSE = 0.2
"""An entropy that falls to this share of what it was is a collapse."""

NEAR_UNIGRAM, STAYS = 0.02, 0.05
"""A plateau: the loss within 2% of the unigram entropy for 5% of the updates, and of at least 20."""

CALLED = {
    "specialised": ("head that specialized", "heads that specialized"),
    "collapse": ("head whose attention collapsed", "heads whose attention collapsed"),
    "saturated": ("head whose scores saturated", "heads whose scores saturated"),
    "dead": ("head that writes almost nothing", "heads that write almost nothing"),
    "plateau": ("plateau", "plateaus"),
    "explosion": ("jump of the gradient", "jumps of the gradient"),
    "over-fitting": ("case of overfitting", "cases of overfitting"),
}
"""A kind in words: one of it, several."""

DEAD = 0.05
"""A head whose OV circuit is below this share of the median head's writes nothing."""

SATURATED = 0.9
"""A head in which this share of rows is dominated by one key has a saturated softmax."""

EXPLODED, WINDOW = 10.0, 32
"""A gradient this many times the median of the 32 updates before is an explosion."""

OVER_FITTING = 0.01
"""The validation loss must have risen by this share above its lowest."""


def happenings(telemetry: Telemetry, arm: int = RUN_ARM) -> list[Happening]:
    """Everything found, what matters most first."""
    found = [item for detect in DETECTORS for item in detect(telemetry, arm)]
    return sorted(found, key=lambda item: (-item.weight, item.step, item.address))


def specialists(telemetry: Telemetry, arm: int) -> list[Happening]:
    """Heads that came to look at one place, and when: a change of level of at least `RISES`, kept to the end."""
    found = []
    for measure, least in RISES.items():
        for address, steps, values in _rows(telemetry, measure, arm):
            changed = change(values, least=least)
            if changed is None or changed.size < 0 or values[-1] < changed.before + least:
                continue
            head, step = address.removesuffix(".pattern"), int(steps[changed.index])
            sentence = (
                f"{head} {ROLES[measure]} from about step {step:,} on ({percent(changed.before)} of its attention "
                f"before, {percent(changed.after)} after)"
            )
            found.append(_happening("specialised", step, address, measure, sentence, changed.size, changed.before,
                                    changed.after))  # fmt: skip
    return found


def collapses(telemetry: Telemetry, arm: int) -> list[Happening]:
    """Heads whose entropy fell to a fifth of what it was, and stayed there."""
    found = []
    for address, steps, values in _rows(telemetry, "entropy", arm):
        changed = change(values)
        if changed is None or changed.before <= 0 or max(changed.after, values[-1]) > COLLAPSE * changed.before:
            continue
        head, step = address.removesuffix(".pattern"), int(steps[changed.index])
        sentence = (
            f"The attention entropy of {head} collapsed at about step {step:,}, from {number(changed.before)} to "
            f"{number(changed.after)} nats"
        )
        weight = 0.9 * (1 - changed.after / changed.before)
        found.append(_happening("collapse", step, address, "entropy", sentence, weight, changed.before, changed.after))
    return found


def plateau(telemetry: Telemetry, arm: int) -> list[Happening]:
    """A stretch in which the model knew the frequencies of tokens and nothing else."""
    unigram = (telemetry.fact("baselines") or {}).get("unigram")
    n = telemetry.updates(arm)[0]
    if not isinstance(unigram, int | float) or not np.isfinite(unigram) or unigram <= 0 or n < 50:
        return []
    length, start, end = _longest(_near(telemetry, arm, float(unigram), width=max(5, n // 50)))
    if length < max(20, STAYS * n):
        return []
    sentence = (
        f"From step {start:,} to {end:,} the loss stayed at the unigram entropy ({number(unigram, 3)} nats): the model"
        " knew how frequent each token is, but not yet what follows what"
    )
    evidence = {"unigram entropy": float(unigram), "first step": float(start), "last step": float(end)}
    return [Happening(step=start, kind="plateau", sentence=sentence, weight=0.6, measure="loss", evidence=evidence)]


def dead_heads(telemetry: Telemetry, arm: int) -> list[Happening]:
    """Heads that write next to nothing at the end: an OV circuit below a twentieth of the median head's."""
    rows = [(a, steps, v) for a, steps, v in _rows(telemetry, "norm", arm, "**.H*.OV") if steps[-1] > 0]
    if len(rows) < 3:
        return []
    middle = float(np.median([values[-1] for _, _, values in rows]))
    return [
        Happening(
            step=int(steps[-1]),
            kind="dead",
            address=address,
            measure="norm",
            weight=0.5,
            sentence=f"{address.removesuffix('.OV')} writes almost nothing at the end: its OV circuit has norm "
            f"{number(float(values[-1]))}, the median head's {number(middle)}",
            evidence={"norm": float(values[-1]), "median norm": middle},
        )
        for address, steps, values in rows
        if middle > 0 and values[-1] < DEAD * middle
    ]


def saturation(telemetry: Telemetry, arm: int) -> list[Happening]:
    """Heads in which one key dominates nearly every row: the softmax passes no gradient to W_Q and W_K any more."""
    scores = {a: (s, v) for a, s, v in _rows(telemetry, "largest_score", arm)}
    found = []
    for address, steps, values in _rows(telemetry, "dominant_rows", arm):
        if len(values) < 3 or values[-1] < SATURATED or values[0] >= SATURATED:
            continue
        step = int(steps[_since(values >= SATURATED)])
        largest = float(scores[address][1][-1]) if address in scores else float("nan")
        sentence = (
            f"The scores of {address.removesuffix('.pattern')} saturate from step {step:,} on: one key takes nearly "
            f"all attention in {percent(float(values[-1]))} of the rows (largest score {number(largest)})"
        )
        found.append(
            _happening("saturated", step, address, "dominant_rows", sentence, 0.7, float(values[0]), float(values[-1]))
        )
    return found


def explosions(telemetry: Telemetry, arm: int) -> list[Happening]:
    """Updates whose gradient was ten times that of the updates before, the largest of them, with its matrix."""
    n, worst = 0, (0.0, 0, 0.0, 0.0)  # times, step, gradient norm, usual gradient norm
    last = np.zeros(0)
    for block in telemetry.steps_by_block(arm):
        norms = np.concatenate([last, np.where(np.isfinite(block.grad_norm), block.grad_norm, np.nan)])
        last = norms[-WINDOW:]
        if len(norms) <= WINDOW:
            continue
        usual = _medians(np.lib.stride_tricks.sliding_window_view(norms, WINDOW)[:-1])
        times = np.divide(norms[WINDOW:], usual, out=np.zeros(len(usual)), where=usual > 0)
        at = np.flatnonzero(times >= EXPLODED)
        n += len(at)
        if len(at) and times[at].max() > worst[0]:
            i = int(at[np.argmax(times[at])])
            worst = (float(times[i]), int(block.step[i - len(usual)]), float(norms[WINDOW + i]), float(usual[i]))
    if not n:
        return []
    times_usual, step, norm, usual_norm = worst
    address = _culprit(telemetry, step, arm)
    more, whose = f", the largest of {n}" if n > 1 else "", f"; the gradient of {address} grew most" if address else ""
    sentence = f"The gradient jumped to {number(times_usual)} times its usual size at step {step:,}{more}{whose}"
    evidence = {"gradient norm": norm, "usual gradient norm": usual_norm}
    return [
        Happening(step=step, kind="explosion", address=address, sentence=sentence, weight=0.95, measure="grad_norm",
                  evidence=evidence)
    ]  # fmt: skip


def over_fitting(telemetry: Telemetry, arm: int) -> list[Happening]:
    """The step of the lowest validation loss, where it rose by more than 1% after it and the training loss did not."""
    found, best = telemetry.evaluations(arm), telemetry.best_evaluation(arm)
    if best is None or len(found) < 3 or best.loss <= 0 or found[-1].loss < (1 + OVER_FITTING) * best.loss:
        return []
    last = found[-1]
    if both_rose(best, last):
        return []
    sentence = (
        f"Overfitting begins at step {best.step:,}: the validation loss rose from {number(best.loss, 3)} to "
        f"{number(last.loss, 3)} by step {last.step:,}"
    )
    evidence = {"lowest validation loss": best.loss, "last validation loss": last.loss}
    return [
        Happening(step=best.step, kind="over-fitting", sentence=sentence, weight=0.8, measure="loss", evidence=evidence)
    ]


def both_rose(best: Evaluation, last: Evaluation) -> bool:
    """Whether the training loss rose as well: it diverged, which is not overfitting."""
    return best.train_loss is not None and last.train_loss is not None and last.train_loss >= best.train_loss


DETECTORS: tuple[Detector, ...] = (explosions, over_fitting, specialists, collapses, saturation, plateau, dead_heads)
"""A new kind of event is one function and one place here."""


def _rows(
    telemetry: Telemetry, measure: str, arm: int, selector: str = "**.H*.*"
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(address, steps, values) of a measure, without undefined values; empty where it was not recorded."""
    grid, rows = recorded(telemetry, measure, selector, arm), []
    if grid is None:
        return rows
    for i, address in enumerate(grid.addresses):
        there = np.isfinite(grid.value[i])
        if there.any():
            rows.append((address, grid.step[there], grid.value[i][there]))
    return rows


def _happening(
    kind: str, step: int, address: str, measure: str, sentence: str, weight: float, before: float, after: float
) -> Happening:
    evidence = {f"{measure} before": before, f"{measure} after": after}
    return Happening(
        step=step, kind=kind, address=address, measure=measure, sentence=sentence, weight=weight, evidence=evidence
    )


def _culprit(telemetry: Telemetry, step: int, arm: int) -> str:
    """The matrix whose gradient grew most from the look before `step` to the first one from there on; empty unknown."""
    grid = recorded(telemetry, "grad_norm", arm=arm)
    if grid is None:
        return ""
    at = int(np.searchsorted(grid.step, step))
    if not 0 < at < len(grid.step) or grid.step[at] != step:
        return ""
    with np.errstate(divide="ignore", invalid="ignore"):
        grown = grid.value[:, at] / grid.value[:, at - 1]
    grown = np.where(np.isfinite(grown), grown, 0)
    return grid.addresses[int(np.argmax(grown))] if grown.max() > EXPLODED / 2 else ""


def _medians(windows: np.ndarray) -> np.ndarray:
    """The median of each row of [n, WINDOW]; of its numbers where some are NaN, NaN where all are."""
    found = np.median(windows, axis=1)
    some = np.isnan(found) & ~np.isnan(windows).all(axis=1)
    found[some] = np.nanmedian(windows[some], axis=1)
    return found


def _near(
    telemetry: Telemetry, arm: int, level: float, width: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For every stretch of `width` updates: whether its mean loss is near `level`, its first and its last step."""
    loss, step = np.zeros(0), np.zeros(0, np.int64)
    for block in telemetry.steps_by_block(arm):
        loss, step = np.concatenate([loss, block.loss]), np.concatenate([step, block.step])
        if len(loss) >= width:
            lost = ~np.isfinite(loss)
            sums, losts = (_sums(x, width) for x in (np.where(lost, 0.0, loss), lost.astype(np.float64)))
            near = (losts == 0) & (np.abs(sums / width - level) <= NEAR_UNIGRAM * level)
            yield near, step[: len(near)], step[width - 1 :]
            loss, step = loss[len(near) :], step[len(near) :]


def _sums(x: np.ndarray, width: int) -> np.ndarray:
    """Sums of every `width` neighbours, [len(x) - width + 1]."""
    up_to = np.concatenate([[0.0], np.cumsum(x)])
    return up_to[width:] - up_to[:-width]


def _longest(blocks: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> tuple[int, int, int]:
    """(length, first step, last step) of the longest run of True in blocks of (flags, first steps, last steps)."""
    best, n, start = (0, 0, 0), 0, 0
    for flags, firsts, lasts in blocks:
        edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            goes_on = begin == 0 and n > 0
            n, start = (n + end, start) if goes_on else (end - begin, int(firsts[begin]))
            if n > best[0]:
                best = n, start, int(lasts[end - 1])
        if not flags[-1]:
            n = 0
    return best


def _since(flags: np.ndarray) -> int:
    """The index from which all flags are True to the end."""
    false = np.flatnonzero(~flags)
    return int(false[-1]) + 1 if len(false) else 0
