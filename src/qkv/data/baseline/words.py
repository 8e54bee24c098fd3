"""What counting says of the label of a word: its most frequent label, and a linear model on the word and its neighbors.

The first takes the label that the word has most often in the training part; of a word that does not occur there, that
of the longest ending (up to 5 characters) that does; else the most frequent label of all (after Brants 2000, ANLP).

The linear model is logistic regression (`linear`) on the features of a classical tagger (Ratnaparkhi 1996, EMNLP): the
word as it is written, in lower case, its beginnings and endings of 1 to 4 characters and its shape (Xx, 9-9); of
the word on either side the lower case, ending and shape; the words two places away; and the pairs of neighboring words.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from qkv.data.baseline.linear import Linear, hash_of, numbered, pairs_of, spread

_BETWEEN = "\x1f"
"""Between the words of a context."""
_REACH = 2
"""Words on either side that are read."""
_AFFIX = 4
_ENDING = 5
_SHAPES = ((re.compile("[A-ZÀ-ÖØ-Þ]+"), "X"), (re.compile(r"[^\W\dX_]+"), "x"), (re.compile(r"\d+"), "9"))


def contexts(words: Sequence[str], owners: np.ndarray) -> list[str]:
    """Each word between the two before and the two behind it in its text (empty where there are none); owners int64
    [n]: the text of each.
    """
    found = []
    for first, end in runs_of(owners):
        padded = ["", "", *(word.replace(_BETWEEN, " ") for word in words[first:end]), "", ""]
        found += [_BETWEEN.join(padded[i : i + 2 * _REACH + 1]) for i in range(end - first)]
    return found


def runs_of(owners: np.ndarray) -> list[tuple[int, int]]:
    """(first, end) of each run of equal owners, int64 [n]."""
    firsts = np.flatnonzero(np.diff(owners, prepend=-1)).tolist()
    return list(zip(firsts, [*firsts[1:], len(owners)][: len(firsts)], strict=True))


class OfWords(Linear):
    """Of words in their contexts."""


def _occurrences(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(context, key) of every feature: int64 [m], uint64 [m]; even keys of words, odd ones of their parts."""
    columns = zip(*(text.split(_BETWEEN) for text in texts), strict=True)
    rows, keys, lowers = [], [], []
    for place, column in enumerate(columns, start=-_REACH):
        words, numbers, _ = numbered([list(column)])
        row, key = spread([_features(word, place) for word in words], numbers)
        rows.append(row)
        keys.append(key)
        lowers.append(np.array([hash_of(f"{place} {word.lower()}") for word in words], dtype=np.uint64)[numbers])
    for left, right in ((1, 2), (2, 3), (1, 3)):
        rows.append(np.arange(len(texts)))
        keys.append(pairs_of(lowers[left], lowers[right]))
    return np.concatenate(rows), np.concatenate(keys)


OfWords.occurrences = staticmethod(_occurrences)


@lru_cache(1 << 16)
def _features(word: str, place: int) -> tuple[int, ...]:
    """The keys of a word at a place from -2 to 2, its own being 0."""
    lower = word.lower()
    whole, parts = {f"lower {lower}"}, set()
    if place == 0:
        whole.add(f"word {word}")
        for n in range(1, min(_AFFIX, len(lower)) + 1):
            parts |= {f"begins {lower[:n]}", f"ends {lower[-n:]}"}
    if abs(place) < _REACH:
        parts |= {f"shape {shape_of(word)}", f"end {lower[-3:]}"}
    even = [hash_of(f"{place} {name}") & ~1 for name in sorted(whole)]
    return (*even, *(hash_of(f"{place} {name}") | 1 for name in sorted(parts)))


def shape_of(word: str) -> str:
    """Its runs of capitals, other letters and digits as X, x and 9; other marks as they are."""
    for pattern, mark in _SHAPES:
        word = pattern.sub(mark, word)
    return word


class Counted:
    """The labels of the words of a training part."""

    def __init__(self, words: Sequence[str], classes: np.ndarray) -> None:
        """classes: int64 [n], the label of each word."""
        met: dict[str, Counter[int]] = defaultdict(Counter)
        self._usual = int(np.bincount(classes).argmax())
        for (word, label), n in Counter(zip(words, classes.tolist(), strict=True)).items():
            for name in (f"{word} ", *_endings(word)):
                met[name][label] += n
        self._best = {name: min(found, key=lambda label: (-found[label], label)) for name, found in met.items()}

    def answers(self, words: Sequence[str]) -> np.ndarray:
        """The label of each word: int64 [n]."""
        names = ((f"{word} ", *_endings(word)) for word in words)
        found = (next((self._best[name] for name in each if name in self._best), self._usual) for each in names)
        return np.fromiter(found, dtype=np.int64, count=len(words))


def _endings(word: str) -> list[str]:
    """In lower case, the longest first; none is a word, which ends with a space."""
    lower = word.lower()
    return [lower[-n:] for n in range(min(_ENDING, len(lower)), 0, -1)]
