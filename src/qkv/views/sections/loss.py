"""Loss over steps and the lines it is read against.

Of a long run some steps are drawn, and that is said; its telemetry is not read whole for it.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from qkv.jsontypes import JsonMapping
from qkv.telemetry import RUN_ARM, Telemetry

N_TRAIN_POINTS = 700
_MEANINGS = {
    "uniform": "every answer equally likely",
    "unigram": "how often each token occurs, without context",
    "bigram": "counts of which token follows which",
    "ngram": "the best of interpolated Kneser-Ney n-grams",
    "xz": "the compressor xz, given the training text",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Baseline:
    """A loss that needs no model, on the same validation tokens."""

    name: str
    label: str
    meaning: str
    nats: float
    bits_per_byte: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossSection:
    """Loss over steps, in nats per token, and the lines it is read against."""

    train_steps: tuple[int, ...]
    train: tuple[float | None, ...]
    val_steps: tuple[int, ...]
    val: tuple[float | None, ...]
    best_step: int | None
    best: float | None
    last: float | None
    baselines: tuple[Baseline, ...] = ()
    bits_per_byte_of_nat: float | None = None
    """Bits per byte of one nat per token on the validation text; None where task or tokenizer have no such number."""
    bits_per_byte_lost: float = 0.0
    """Bits per byte that cost what the tokenizer loses of that text, whatever the loss."""
    best_bits_per_byte: float | None = None
    thinned: str = ""
    """How the training curve was thinned for the page, in words; empty when every recorded step is here."""
    baselines_note: str = ""
    """What the baselines were sampled from, in words; empty when all of the text was used."""


def baselines(
    found: JsonMapping | None, n_answers: int | None, labels: Mapping[str, str] | None = None
) -> tuple[Baseline, ...]:
    """The lines a loss is read against, highest first, in nats per target and where possible in bits per byte.

    `n_answers` is how many the model chooses among, 1 where that is no fixed number; `labels` names baselines of the
    task beside those of texts.
    """
    found, labels = found or {}, labels or {}
    bits, order = found.get("bits_per_byte") or {}, found.get("ngram_order")
    said = {
        **labels,
        **{name: name for name in _MEANINGS},
        "ngram": f"best n-gram ({order})" if order else "best n-gram",
    }
    meanings = _MEANINGS | ({"ngram": labels["ngram"].format(order=order)} if order and "ngram" in labels else {})
    values = {name: _finite(found.get(name)) for name in [*_MEANINGS, *said]}
    rows = [(name, value, _finite(bits.get(name))) for name, value in values.items() if value is not None]
    if n_answers and n_answers > 1:
        nats, in_bits = math.log(n_answers), _in_bits((n, b) for name, n, b in rows if name != "xz")
        rows.append(("uniform", nats, in_bits and nats * in_bits[0] + in_bits[1]))
    return tuple(
        Baseline(name=name, label=said[name], meaning=meanings.get(name, said[name]), nats=nats, bits_per_byte=bpb)
        for name, nats, bpb in sorted(rows, key=lambda row: -row[1])
    )


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _in_bits(points: Iterable[tuple[float, float | None]]) -> tuple[float, float] | None:
    """(bits per byte of a nat per token, bits per byte that cost what the tokenizer loses) of (nats, bits) of losses on
    one text; of one loss alone nothing is taken to be lost, of none it is None."""
    known = sorted((nats, bits) for nats, bits in points if nats > 0 and bits and math.isfinite(nats))
    if not known:
        return None
    (low, low_bits), (high, high_bits) = known[0], known[-1]
    if high - low < 1e-3 * high:
        return low_bits / low, 0.0
    each = (high_bits - low_bits) / (high - low)
    lost = low_bits - each * low
    return each, lost if lost > 1e-6 * low_bits else 0.0


def loss_section(telemetry: Telemetry, lines: Sequence[Baseline], found: JsonMapping) -> LossSection | None:
    """Training and validation loss over steps; None where neither was written."""
    first, last = telemetry.ends(RUN_ARM)
    evaluations = telemetry.evaluations(RUN_ARM)
    if not last and not evaluations:
        return None
    drawn, thinned = _thin(last - first + 1 if last else 0)
    steps = telemetry.steps(RUN_ARM, at=first + drawn)  # a step's place is its number: a long run is not read whole
    chosen = np.arange(len(steps.step))
    if len(chosen) < len(drawn):  # updates were left out
        steps = telemetry.steps(RUN_ARM)
        chosen, thinned = _thin(len(steps.step))
    best = min(evaluations, key=lambda e: (e.loss, e.step), default=None)
    points = [(line.nats, line.bits_per_byte) for line in lines if line.name not in ("xz", "uniform")]
    measured = [(e.loss, e.bits_per_byte) for e in evaluations if e.bits_per_byte]
    each, lost = (_in_bits([*points, *measured]) if measured else None) or (None, 0.0)
    return LossSection(
        train_steps=tuple(int(s) for s in steps.step[chosen]),
        train=tuple(_short(v) for v in steps.loss[chosen]),
        val_steps=tuple(e.step for e in evaluations),
        val=tuple(_short(e.loss) for e in evaluations),
        best_step=best.step if best else None,
        best=best.loss if best else None,
        last=evaluations[-1].loss if evaluations else None,
        baselines=tuple(lines),
        bits_per_byte_of_nat=each,
        bits_per_byte_lost=lost,
        best_bits_per_byte=best.bits_per_byte if best else None,
        thinned=thinned,
        baselines_note=str(found.get("note") or ""),
    )


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _thin(n: int) -> tuple[np.ndarray, str]:
    """Indices of the training losses to draw: all, or the first sixteenth of the page's points and then every k-th."""
    if n <= N_TRAIN_POINTS:
        return np.arange(n), ""
    early = N_TRAIN_POINTS // 16
    every = -(-(n - early) // (N_TRAIN_POINTS - early))
    indices = np.unique([*range(early), *range(early, n, every), n - 1])
    return indices, f"the first {early}, then one batch in {every}"
