"""What counting says of the answer to a question: a piece of the sentence that holds most of the question.

A word that both have weighs the more, the rarer it is in the text. Of the pieces of the sentence that lack words of the
question, it takes the one that looks most like answers to such questions, those with the same interrogative: by how
often their shapes ("Xx 9"), the word before and the word behind occurred there, each 0.1 more.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from math import log

from qkv.data.baseline.words import shape_of

_ASKING = re.compile(r"\b(?:who|whom|whose|what|which|when|where|why|how \w+)\b", re.IGNORECASE)
_MOST = 12
"""Words of a piece."""


class CountedSpans:
    """The answers of a training part: words of a text behind its question as the first one, first and last word."""

    def __init__(self, rows: Iterable[tuple[Sequence[str], int, int]]) -> None:
        self._met = Counter(name for words, first, last in rows for name in _names(words, first, last))

    def answer(self, words: Sequence[str]) -> tuple[int, int]:
        """The first and the last word of the likeliest piece."""
        asked, of, times = {*re.findall(r"\w+", words[0].lower())}, [0], Counter(map(str.lower, words))
        for word in words[1:]:
            of.append(of[-1] + (word in ".!?"))
        shared = {(at, word.lower()) for at, word in zip(of, words, strict=True) if word.lower() in asked}
        held: Counter[int] = Counter()
        for at, word in sorted(shared):
            held[at] += log(len(words) / times[word])  # type: ignore[assignment]
        best = max(range(of[-1] + 1), key=lambda at: (held[at], -at))
        inside = [i for i in range(1, len(words)) if of[i] == best and words[i] not in ".!?"] or [1]
        pieces = [(i, j) for i in inside for j in inside if i <= j < i + _MOST]
        free = [(i, j) for i, j in pieces if asked.isdisjoint(map(str.lower, words[i : j + 1]))]
        return max(free or pieces, key=lambda piece: sum(log(self._met[name] + 0.1) for name in _names(words, *piece)))


def _names(words: Sequence[str], first: int, last: int) -> list[tuple[str, ...]]:
    """What is counted of a piece, each with the interrogative."""
    found = _ASKING.search(words[0])
    kind, around = found.group().lower() if found else "", [*words, ""]
    shapes = " ".join(map(shape_of, words[first : last + 1]))
    return [(kind, "shapes", shapes), (kind, "before", around[first - 1 if first > 1 else -1].lower()),
            (kind, "behind", around[last + 1].lower())]  # fmt: skip
