"""BLEU of a set of translations by sacrebleu (13a tokens, cased), with a bootstrap interval over sentences.

BLEU counts runs of up to four tokens, and 13a cuts at spaces and Western marks only: of Japanese a sentence is one
token, and a perfect translation would have BLEU 0. So where most letters of the references are of a script without
spaces between words, or no reference has four tokens, the tokens are characters (sacrebleu's `char`), which is said.

BLEU is a figure of a whole set, so its interval comes from resampling the set's sentences with replacement, 1,000
times, and adding up their n-gram counts (Koehn 2004, "Statistical significance tests for machine translation
evaluation"); the counts and the formula are sacrebleu's (Post 2018, arXiv 1804.08771). Needs the extra `translate`.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.data.baseline.dictionary import UNSPACED
from qkv.errors import MissingExtra
from qkv.installing import install
from qkv.randomness import generator

_DRAWS = 1000
_UNSPACED = re.compile(f"[{UNSPACED}]")
_LONGEST_RUN = 4


def require_sacrebleu() -> Any:
    """sacrebleu's class `BLEU`. Raises MissingExtra with the line to type where it is not installed."""
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise MissingExtra(f"BLEU needs another library; type: {install('translate')}") from None
    return BLEU


def bleu_tokens(references: Sequence[str]) -> str:
    """What BLEU counts for these references, by sacrebleu's name: "13a", or "char" where that would say nothing."""
    letters = [letter for line in references for letter in line if letter.isalpha()]
    if 2 * sum(_UNSPACED.match(letter) is not None for letter in letters) > len(letters):
        return "char"
    cut = require_sacrebleu()(tokenize="13a").tokenizer
    return "13a" if any(len(cut(line).split()) >= _LONGEST_RUN for line in references) else "char"


def bleu(outputs: Sequence[str], references: Sequence[str]) -> tuple[float, tuple[float, float] | None]:
    """(BLEU 0..100 of outputs against one reference each, its 95 % interval; None for a single sentence).

    Raises MissingExtra without sacrebleu.
    """
    assert len(outputs) == len(references) > 0
    made = require_sacrebleu()
    metric = made(effective_order=True, tokenize=bleu_tokens(references))  # that order: of a sentence, not of the set
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
