"""From what a run recorded to a payload: one function per section, each reading what is there, and nothing else.

A section that cannot be filled is None and `Report.missing` says why in a sentence; nothing is estimated or filled in.
Reads telemetry and what `qkv.inspection.stored_run` read of the folder; runs no model.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from qkv.inspection.answers.loss import NOTHING, followed
from qkv.telemetry import RUN_ARM, Telemetry
from qkv.views.payloads import Baseline, LossSection, SampleNote

__all__ = [
    "baselines",
    "counts_of",
    "loss_section",
    "samples",
    "seconds",
    "sizes_of",
    "tokens_seen",
]

N_TRAIN_POINTS = 700
LONGEST_SAMPLE = 600

_MEANINGS = {
    "uniform": "every answer equally likely, knowing nothing",
    "unigram": "how often each token occurs, context ignored",
    "bigram": "counts of which token follows which",
    "ngram": "the best of interpolated Kneser-Ney n-grams, orders 1 to 8",
    "xz": "the compressor xz, given the training text",
}


def sizes_of(settings: Mapping[str, Any]) -> dict[str, int]:
    """d_model, n_layers and the others by name, with d_head where it can be derived."""
    sizes = {k: int(v) for k, v in settings.get("model", {}).get("sizes", {}).items() if isinstance(v, int)}
    if sizes.get("n_heads") and sizes.get("d_model") and not sizes.get("d_head"):
        sizes["d_head"] = sizes["d_model"] // sizes["n_heads"]
    if sizes.get("n_heads") and not sizes.get("n_kv_heads"):
        sizes["n_kv_heads"] = sizes["n_heads"]
    return sizes


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def baselines(
    found: Mapping[str, Any] | None, n_answers: int | None, labels: Mapping[str, str] | None = None
) -> tuple[Baseline, ...]:
    """The lines a loss is read against, highest first, in nats per target and where possible in bits per byte.

    `n_answers` is how many the model chooses among; `labels` names baselines of the task beside those of texts.
    """
    found = found or {}
    bits = found.get("bits_per_byte") or {}
    labels = labels or {}
    names = [*_MEANINGS, *(name for name in labels if name not in _MEANINGS)]
    values = {name: _finite(found.get(name)) for name in names}
    known = [name for name, value in values.items() if value is not None]
    rows: list[tuple[str, str, Any, float | None]] = []
    for name in known:
        order = found.get("ngram_order")
        label = {"ngram": "best n-gram"}.get(name, name) if name in _MEANINGS else labels[name]
        label = f"best n-gram ({order})" if name == "ngram" and order else label
        rows.append((name, label, values[name], _finite(bits.get(name))))
    if n_answers:
        nats, in_bits = math.log(n_answers), _in_bits((n, b) for name, _, n, b in rows if name != "xz")
        rows.append(("uniform", "uniform", nats, in_bits and nats * in_bits[0] + in_bits[1]))
    rows.sort(key=lambda row: -row[2])
    return tuple(
        Baseline(name=name, label=label, meaning=_MEANINGS.get(name, label), nats=nats, bits_per_byte=bpb)
        for name, label, nats, bpb in rows
    )


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


def loss_section(telemetry: Telemetry, lines: Sequence[Baseline], found: Mapping[str, Any]) -> LossSection | None:
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


def samples(telemetry: Telemetry, *, continues: bool, given: str = "the text") -> tuple[SampleNote, ...]:
    """What the model wrote, in order of step, for the prompt that was used most; long ones are cut with an ellipsis."""
    return tuple(
        SampleNote(step=s.step, prompt=s.prompt, text=_cut(s.text), continues=continues, given=given)
        for s in followed(telemetry.samples(RUN_ARM))
    )


def _cut(text: str) -> str:
    if not text.strip():
        return f"({NOTHING})"
    return text if len(text) <= LONGEST_SAMPLE else text[:LONGEST_SAMPLE] + " …"


def counts_of(telemetry: Telemetry | None) -> np.ndarray | None:
    """How often each token stands in the training text, int [d_vocab]; None where it was not counted."""
    return telemetry.vector(telemetry.token_table(), "row_count") if telemetry else None


def tokens_seen(telemetry: Telemetry | None) -> int | None:
    """Training tokens up to the last update, repeats included."""
    return telemetry.tokens_seen(RUN_ARM) if telemetry else None


def seconds(telemetry: Telemetry | None, manifest: Mapping[str, Any]) -> float | None:
    """Wall time of the training: the manifest's, else the last that the clock wrote."""
    said = manifest.get("summary", {}).get("train_seconds")
    if isinstance(said, int | float):
        return float(said)
    return telemetry.wall_seconds(RUN_ARM) if telemetry else None
