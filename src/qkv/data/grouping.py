"""Which rows of a labeled table belong on one side of a split: near-copies, phrases of one text, one group.

A text that stands whole, word by word, inside another one is a phrase of it. One of `COMMON` words or more joins every
text that it stands in; a shorter one only where all these are together already, since "a good film" stands in many
sentences that have nothing else in common. Runs of words are compared by 64-bit hashes. Where the texts have more than
`MOST_WORDS` words together, phrases are not looked for.
"""

from collections.abc import Sequence

import numpy as np

from qkv.data.baseline.linear import WORDS
from qkv.data.dedup import components

COMMON = 5
LONGEST = 60
"""Words of a phrase that is looked for, at most."""
MOST_WORDS = 3_000_000
_BASE = 0x9E3779B97F4A7C15
_SIEVE = np.uint64(1 << 20)
"""Runs are looked up by so many remainders first, which a cache holds."""
_INVERSE = pow(_BASE, -1, 1 << 64)


def joined_groups(groups: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Groups (int64 [n], the first member of each text's group) with those joined that share a name."""
    first: dict[str, int] = {}
    firsts = np.array([first.setdefault(name, i) for i, name in enumerate(names)], dtype=np.int64)
    return _with_pairs(groups, np.stack([np.arange(len(names)), firsts], 1))


def phrase_groups(groups: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Groups with those joined that hold phrases of one text: int64 [n], the first member of each text's group."""
    seen: dict[str, int] = {}
    lists = [[seen.setdefault(word, len(seen)) for word in WORDS.findall(text.lower())] for text in texts]
    sizes = np.array([len(words) for words in lists], dtype=np.int64)
    if not 0 < sizes.sum() <= MOST_WORDS:
        return groups
    hashes = np.random.default_rng(0).integers(1, 1 << 63, size=len(seen), dtype=np.uint64)
    flat = hashes[np.array([number for words in lists for number in words], dtype=np.int64)]
    owners, starts = np.repeat(np.arange(len(texts)), sizes), np.cumsum(sizes) - sizes
    powers, inverses = (_powers(base, len(flat)) for base in (_BASE, _INVERSE))
    sums = np.zeros(len(flat) + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        np.cumsum(flat * powers, dtype=np.uint64, out=sums[1:])
    for n in range(int(min(LONGEST, sizes.max())), 0, -1):
        phrases = np.flatnonzero(sizes == n)
        if not len(phrases):
            continue
        with np.errstate(over="ignore"):
            runs = (sums[n:] - sums[:-n]) * inverses[: len(flat) - n + 1]
        inside = owners[: len(runs)] == owners[n - 1 :]
        keys = runs[starts[phrases]]
        likely = np.zeros(_SIEVE, dtype=bool)
        likely[keys % _SIEVE] = True
        places = np.flatnonzero(inside & likely[runs % _SIEVE])
        places = places[np.isin(runs[places], keys)]
        order = np.argsort(keys, kind="stable")
        first = phrases[order][np.searchsorted(keys[order], runs[places])]
        pairs = np.concatenate([np.stack([first, owners[places]], 1), np.stack([phrases, _firsts(keys, phrases)], 1)])
        if n < COMMON:
            pairs = _of_one_group(groups, pairs, sizes)
        groups = _with_pairs(groups, pairs)
    return groups


def _firsts(keys: np.ndarray, phrases: np.ndarray) -> np.ndarray:
    """Of each phrase the first one with its words."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return phrases[first][inverse]


def _of_one_group(groups: np.ndarray, pairs: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The pairs (phrase, text that it stands in) of phrases that stand in longer texts of one group alone."""
    longer = sizes[pairs[:, 1]] > sizes[pairs[:, 0]]
    least, most = np.full(len(groups), len(groups)), np.full(len(groups), -1)
    np.minimum.at(least, pairs[longer, 0], groups[pairs[longer, 1]])
    np.maximum.at(most, pairs[longer, 0], groups[pairs[longer, 1]])
    return pairs[~longer | (least == most)[pairs[:, 0]]]


def _with_pairs(groups: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Groups with the two texts of each pair joined."""
    own = np.stack([np.arange(len(groups)), groups], 1)
    return components(np.concatenate([own, pairs]), len(groups))


def _powers(base: int, n: int) -> np.ndarray:
    """base^0 ... base^(n - 1) modulo 2^64."""
    factors = np.full(n, base, dtype=np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)
