"""A few hundred analogies of common English words, and groups of such words, for texts too small for the known files.

Pairs of words in one relation, and every question that two of them make: "he is to she as king is to ?". They are of
our own choosing, so a share of right answers compares with nothing published. What matters first is how many of them a
text can be asked at all.
"""

from collections.abc import Collection
from itertools import permutations

from qkv.tokenizers.tokenizer import Tokenizer

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

GROUPS = (
    "king queen prince lord lady duke",
    "father mother brother sister son daughter wife husband",
    "dog cat horse wolf lion bird sheep",
    "hand head heart face eye eyes tongue foot arm blood",
    "day night hour morning morrow year years days time",
    "one two three ten twenty hundred thousand",
    "house city court world country town land",
    "go come stay leave fly run follow return",
    "see hear know think believe remember",
    "he she him her they them it",
)
"""Words of one group are nearer to each other in meaning than to those of another: king, queen and not dog. As the
analogies they are of our own choosing."""
FEWEST_WORDS = 20
"""Of fewer words in groups no triplets are told."""


def n_askable(words: Collection[str]) -> int:
    """How many questions have all their four words among these, as they are written."""
    known = set(words)
    return sum(known.issuperset(question) for questions in SECTIONS.values() for question in questions)


def grouped(tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """(group, id) of every word of `GROUPS` that is one token."""
    found = []
    for group, words in enumerate(GROUPS):
        for word in words.split():
            ids = [int(i) for i in tokenizer.encode(word)]
            if len(ids) == 1 and ids[0] != tokenizer.unknown_id:
                found.append((group, ids[0]))
    return found
