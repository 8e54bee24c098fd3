"""A few hundred analogies of common English words, for texts too small for the known question files.

Pairs of words in one relation, and every question that two of them make: "he is to she as king is to ?". They are of
our own choosing, so a share of right answers compares with nothing published. What matters first is how many of them a
text can be asked at all.
"""

from collections.abc import Collection
from itertools import permutations

__all__ = ["FEWEST_ASKED", "N_QUESTIONS", "SECTIONS", "n_askable"]

_PAIRS = {
    "he and she": (
        "he she, his her, man woman, men women, king queen, father mother, brother sister, son daughter, boy girl,"
        " husband wife, lord lady, sir madam, prince princess, uncle aunt"
    ),
    "one and many": (
        "day days, year years, king kings, word words, hand hands, eye eyes, friend friends, thing things, name names,"
        " time times, value values, line lines"
    ),
    "now and then": (
        "is was, are were, has had, do did, say said, go went, come came, make made, take took, see saw, know knew,"
        " give gave, think thought"
    ),
}
SECTIONS = {
    name: [[*some.split(), *others.split()] for some, others in permutations(pairs.split(", "), 2)]
    for name, pairs in _PAIRS.items()
}
"""Relation -> questions of four words."""
N_QUESTIONS = sum(map(len, SECTIONS.values()))
FEWEST_ASKED = 20
"""Of fewer questions no share of right answers is told."""


def n_askable(words: Collection[str]) -> int:
    """How many questions have all their four words among these, as they are written."""
    known = set(words)
    return sum(known.issuperset(question) for questions in SECTIONS.values() for question in questions)
