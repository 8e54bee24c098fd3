"""Which documents are near-copies of each other, at a cost of one hash per byte and 72 bytes per document.

A document is compared by its 12-byte shingles (letters and digits only, lower case). One hash function, its values
thrown into 16 bins and the least of each bin kept, estimates the Jaccard similarity of two sets of shingles: the
share of bins that agree (one-permutation hashing: Li, Owen, Zhang 2012, arXiv 1208.1259; min-wise hashing: Broder
1997). Documents that agree in a band of two bins are looked at, each beside the one before it and the first of them;
pairs alike by half are near-copies, and near-copies of near-copies form one group. Where many documents share a passage
(a heading, a licence), some near-copies of moderate similarity are never compared, and which ones depends on the
order of the documents. Only the first 32 KiB of a document are compared. Documents too short for a shingle count as
copies where their letters and digits are equal. A document without any is compared by its marks.

A text that stands whole, word by word, inside another one is a phrase of it, unless it has marks alone. One of `COMMON`
words or more joins every text that it stands in; a shorter one only where all these are together already, since "a good
film" stands in many sentences that have nothing else in common.
"""

import hashlib
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from qkv.data.baseline.linear import WORDS
from qkv.tokenizers.unigram_lattice import BASE, INVERSE, powers

SHINGLE = 12
BINS = 16
ALIKE = 0.5
"""Share of bins that must agree."""

COMMON = 5
"""Words from which on a phrase joins every text that it stands in."""
LONGEST_PHRASE = 60
"""Words of a phrase that is looked for, at most."""
MOST_WORDS = 3_000_000
"""Words of all texts together, above which phrases are not looked for."""

_SIEVE = np.uint64(1 << 20)
"""Runs of words are looked up by so many remainders first, which a cache holds."""
_EMPTY = np.uint32(0xFFFFFFFF)
_COMPARED = 1 << 15
_BATCH = (1 << 20) + _COMPARED
"""Bytes that are hashed at a time, at most."""
_UPPER = string.ascii_uppercase.encode()
_LOWER = bytes(byte | 0x20 if byte in _UPPER else byte for byte in range(256))
_DROPPED = bytes(byte for byte in range(128) if not chr(byte).isalnum())


@dataclass(frozen=True, kw_only=True)
class Sketches:
    """What is remembered of some documents."""

    keys: np.ndarray
    """uint64 [n]: hash of all letters and digits, or marks; also what decides on which side a document falls."""
    bins: np.ndarray
    """uint32 [m, 16]: least shingle hash of each bin, 2^32 - 1 where a bin is empty; of the first m <= n documents."""
    marks: bool = False
    """Whether some have marks alone, which the first version of these rules took for copies of each other."""


def sketch(documents: list[str], compare: bool = True) -> Sketches:
    """Sketch some documents; with `compare` False only their keys, and no bins at all."""
    encoded, marks = [text.encode("utf-8", "replace") for text in documents], list(map(_is_marks, documents))
    plain = [
        b" ".join(data.split()) if alone else data.translate(_LOWER, _DROPPED)
        for data, alone in zip(encoded, marks, strict=True)
    ]
    digests = [hashlib.blake2b(letters, digest_size=8).digest() for letters in plain]
    keys = np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)
    bins = np.full((len(documents) if compare else 0, BINS), _EMPTY, dtype=np.uint32)
    if compare:
        _fill_bins(bins, [letters[:_COMPARED] for letters in plain])
    return Sketches(keys=keys, bins=bins, marks=any(marks))


def _is_marks(text: str) -> bool:
    """Whether a text is of marks alone: neither blank nor with a letter or digit."""
    return not any(map(str.isalnum, text)) and not text.isspace() and text != ""


def _fill_bins(bins: np.ndarray, plain: list[bytes]) -> None:
    """Least hash of each bin, in batches of about a megabyte."""
    first, size = 0, 0
    for i, letters in enumerate(plain):
        size += len(letters)
        if size > _BATCH - _COMPARED or i == len(plain) - 1:
            _fill_batch(bins[first : i + 1], plain[first : i + 1])
            first, size = i + 1, 0


def _fill_batch(bins: np.ndarray, plain: list[bytes]) -> None:
    """The hash of every 12 bytes in a row of one document, by differences of one running sum over all of them."""
    data = np.frombuffer(b"".join(plain), dtype=np.uint8)
    n = len(data) - SHINGLE + 1
    if n <= 0:
        return
    owner = np.repeat(np.arange(len(plain), dtype=np.int32), [len(letters) for letters in plain])
    factors, inverses = _powers(BASE, len(data)), _powers(INVERSE, len(data))
    sums = np.zeros(len(data) + 1, np.uint64)
    with np.errstate(over="ignore"):
        np.cumsum(data * factors, dtype=np.uint64, out=sums[1:])
        hashes = sums[SHINGLE:] - sums[:-SHINGLE]
        hashes *= inverses[:n]
        hashes ^= hashes >> np.uint64(30)
        hashes *= np.uint64(0xBF58476D1CE4E5B9)
        hashes ^= hashes >> np.uint64(27)
        hashes *= np.uint64(0x94D049BB133111EB)
        hashes ^= hashes >> np.uint64(31)
    whole = owner[:n] == owner[SHINGLE - 1 :]  # the others end in the next document
    places = (owner[:n] * np.int64(BINS) + (hashes >> np.uint64(60)).astype(np.int64))[whole]
    np.minimum.at(bins.reshape(-1), places, (hashes & np.uint64(0xFFFFFFFE)).astype(np.uint32)[whole])


def _powers(base: int, n: int) -> np.ndarray:
    """base^0 ... base^(n-1) modulo 2^64; those of a usual batch are kept."""
    return (_kept_powers(base) if n <= _BATCH else powers(base, n))[:n]


@lru_cache(maxsize=2)
def _kept_powers(base: int) -> np.ndarray:
    return powers(base, _BATCH)


def group_copies(sketches: Sketches) -> np.ndarray:
    """For each document the number of the first document of its group of near-copies: int64 [n].

    Documents without bins are copies of those with the same key only.
    """
    keys, bins = sketches.keys, sketches.bins
    pairs = [_neighbours(keys, np.arange(len(keys)))]
    for band in range(0, BINS, 2):
        both = bins[:, band].astype(np.uint64) << np.uint64(32) | bins[:, band + 1]
        filled = np.flatnonzero((bins[:, band] != _EMPTY) | (bins[:, band + 1] != _EMPTY))
        candidates = _neighbours(both[filled], filled)
        left, right = bins[candidates[:, 0]], bins[candidates[:, 1]]
        present = (left != _EMPTY) | (right != _EMPTY)
        agree = ((left == right) & present).sum(1) >= ALIKE * present.sum(1)
        pairs.append(candidates[agree])
    return components(np.concatenate(pairs), len(keys))


def _neighbours(values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Pairs of documents with equal values: each with the one before it and with the first of its run, int64 [m, 2]."""
    order = np.argsort(values, kind="stable")
    ordered, numbers = values[order], numbers[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    run_start = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, bool)
    first = np.maximum.accumulate(np.where(run_start, np.arange(len(ordered)), 0))
    pairs = np.concatenate([np.stack([same - 1, same], 1), np.stack([first[same], same], 1)])
    return numbers[pairs]


def components(pairs: np.ndarray, n: int) -> np.ndarray:
    """The least member of each document's connected component: int64 [n]."""
    labels = np.arange(n)
    left, right = pairs[:, 0], pairs[:, 1]
    while len(pairs) and (labels[left] != labels[right]).any():
        least = np.minimum(labels[left], labels[right])
        np.minimum.at(labels, labels[left], least)
        np.minimum.at(labels, labels[right], least)
        labels = labels[labels]
    return labels


# groups and phrases


def joined_groups(groups: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Groups (int64 [n], the first member of each text's group) with those joined that share a name."""
    first: dict[str, int] = {}
    firsts = np.array([first.setdefault(name, i) for i, name in enumerate(names)], dtype=np.int64)
    return _with_pairs(groups, np.stack([np.arange(len(names)), firsts], 1))


def phrase_groups(groups: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Groups with those joined that hold phrases of one text: int64 [n], the first member of each text's group."""
    seen: dict[str, int] = {}
    words_of = (() if _is_marks(text) else WORDS.findall(text.lower()) for text in texts)
    lists = [[seen.setdefault(word, len(seen)) for word in words] for words in words_of]
    sizes = np.array([len(words) for words in lists], dtype=np.int64)
    if not 0 < sizes.sum() <= MOST_WORDS:
        return groups
    hashes = np.random.default_rng(0).integers(1, 1 << 63, size=len(seen), dtype=np.uint64)
    flat = hashes[np.array([number for words in lists for number in words], dtype=np.int64)]
    owners, starts = np.repeat(np.arange(len(texts)), sizes), np.cumsum(sizes) - sizes
    factors, inverses = (powers(base, len(flat)) for base in (BASE, INVERSE))
    sums = np.zeros(len(flat) + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        np.cumsum(flat * factors, dtype=np.uint64, out=sums[1:])
    for n in range(int(min(LONGEST_PHRASE, sizes.max())), 0, -1):
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
        known, firsts, same = np.unique(keys, return_index=True, return_inverse=True)
        firsts = phrases[firsts]
        found = np.stack([firsts[np.searchsorted(known, runs[places])], owners[places]], 1)
        pairs = np.concatenate([found, np.stack([phrases, firsts[same]], 1)])
        if n < COMMON:
            pairs = _of_one_group(groups, pairs, sizes)
        groups = _with_pairs(groups, pairs)
    return groups


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
