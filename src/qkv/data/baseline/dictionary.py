"""Word-for-word translation learned by counting: the classical yardstick of a translation model.

IBM Model 1 (Brown et al. 1993, "The mathematics of statistical machine translation", section 4.3) by expectation
maximisation: t(target word | source word) from co-occurrence in the training pairs, with an empty source word. Each
source word then stands for its likeliest target word, in the order of the source; a word never seen is copied.
"""

import re
from collections.abc import Sequence

import numpy as np

UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
"""Letters of scripts without spaces between words (Thai, Lao, Burmese, Khmer, kana, Chinese), as a class of `re`."""

_WORD = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}])\w)+|[^\w\s]")
_MOST_LINKS = 20_000_000
"""Word pairs that are counted at most; further training pairs are passed over."""


def words(line: str) -> list[str]:
    """Words and single marks, letters as they are; of scripts without spaces between words, single letters."""
    return _WORD.findall(line)


class Dictionary:
    """The likeliest target word of every source word of some pairs; deterministic."""

    def __init__(self, sources: Sequence[str], targets: Sequence[str], *, rounds: int = 5) -> None:
        source_ids: dict[str, int] = {"": 0}
        target_ids: dict[str, int] = {}
        left: list[np.ndarray] = []
        right: list[np.ndarray] = []
        owner: list[np.ndarray] = []
        n_links = n_words = 0
        for source, target in zip(sources, targets, strict=True):
            s = np.array([0, *(source_ids.setdefault(w, len(source_ids)) for w in words(source))])
            t = np.array([target_ids.setdefault(w, len(target_ids)) for w in words(target)], dtype=np.int64)
            if n_links + len(s) * len(t) > _MOST_LINKS:  # before they are made: one pair can have millions
                continue
            left.append(np.tile(s, len(t)))
            right.append(np.repeat(t, len(s)))
            owner.append(np.repeat(np.arange(len(t)) + n_words, len(s)))
            n_words, n_links = n_words + len(t), n_links + len(s) * len(t)
        pairs = np.concatenate(left) * len(target_ids) + np.concatenate(right)
        kinds, link = np.unique(pairs, return_inverse=True)
        self._table = _likeliest(kinds, link, np.concatenate(owner), len(source_ids), len(target_ids), rounds)
        self._source_ids, self._targets = source_ids, list(target_ids)

    def translate(self, line: str) -> str:
        """Each word by its likeliest counterpart, in the order of the source."""
        found = (self._source_ids.get(word) for word in words(line))
        pairs = zip(words(line), found, strict=True)
        return " ".join(word if i is None or self._table[i] < 0 else self._targets[self._table[i]] for word, i in pairs)


def _likeliest(
    kinds: np.ndarray, link: np.ndarray, owner: np.ndarray, n_source: int, n_target: int, rounds: int
) -> np.ndarray:
    """The likeliest target of each source word, int64 [n_source], -1 where it has none.

    `kinds`: the distinct word pairs; `link`: which of them each possible link is; `owner`: the target word, counted
    through the text, that the link would explain. Each round shares every target word out among the links that could
    explain it, in proportion to t, and makes t of the sums.
    """
    source = kinds // n_target
    t = np.ones(len(kinds))
    for _ in range(rounds):
        weight = t[link]
        weight /= np.bincount(owner, weight)[owner]
        count = np.bincount(link, weight, minlength=len(kinds))
        t = count / np.bincount(source, count, minlength=n_source)[source]
    best = np.full(n_source, -1, dtype=np.int64)
    order = np.lexsort((-kinds, t, source))  # the last of each source word is its likeliest, the first of equals
    last = np.flatnonzero(np.r_[source[order][1:] != source[order][:-1], True])
    best[source[order][last]] = kinds[order][last] % n_target
    return best
