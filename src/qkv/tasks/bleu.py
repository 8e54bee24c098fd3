"""BLEU of a set of translations by sacrebleu (13a tokens, cased), with a bootstrap interval over sentences.

BLEU is a figure of a whole set, so its interval comes from drawing the set's sentences anew with replacement, 1,000
times, and adding up their n-gram counts (Koehn 2004, "Statistical significance tests for machine translation
evaluation"); the counts and the formula are sacrebleu's (Post 2018, arXiv 1804.08771). Needs the extra `translate`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.errors import MissingExtra
from qkv.randomness import generator

__all__ = ["bleu", "require_sacrebleu"]

_DRAWS = 1000


def require_sacrebleu() -> Any:
    """sacrebleu's class `BLEU`. Raises MissingExtra with the line to type where it is not installed."""
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise MissingExtra("BLEU needs another library; type: pip install 'qkv[translate]'") from None
    return BLEU


def bleu(outputs: Sequence[str], references: Sequence[str]) -> tuple[float, tuple[float, float] | None]:
    """(BLEU 0..100 of outputs against one reference each, its 95 % interval; None for a single sentence).

    Raises MissingExtra without sacrebleu.
    """
    assert len(outputs) == len(references) > 0
    metric = require_sacrebleu()(effective_order=True)  # of a sentence; the set's own formula needs no such thing
    found = [metric.sentence_score(out, [reference]) for out, reference in zip(outputs, references, strict=True)]
    table = np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in found], dtype=np.float64)
    if len(table) == 1:
        return _score(metric, table.sum(0)), None
    rng = generator("bleu", "bootstrap")
    draws = [_score(metric, table[rng.integers(len(table), size=len(table))].sum(0)) for _ in range(_DRAWS)]
    low, high = np.percentile(draws, [2.5, 97.5])
    return _score(metric, table.sum(0)), (float(low), float(high))


def _score(metric: Any, row: np.ndarray) -> float:
    """sacrebleu's own formula for summed counts [4 matches, 4 totals, length, reference length]."""
    numbers = [int(x) for x in row]
    found = metric.compute_bleu(
        correct=numbers[:4], total=numbers[4:8], sys_len=numbers[8], ref_len=numbers[9], smooth_method="exp"
    )
    return min(float(found.score), 100.0)  # rounding takes a perfect one a hair above
