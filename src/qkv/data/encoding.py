"""How text becomes ids quickly, with exactly the ids that the HF tokenizer gives.

Characters and bytes are looked up in arrays. Subwords and words are looked up unit by unit: where the pre-tokenizer
splits at each space, the ids of a text are those of its units put together, a unit being a word with the space
before it and the marks and line ends behind it. A text has few distinct units, so the library encodes each once and
the rest is a dictionary and an array look-up, about five times as fast. Any other tokenizer is asked directly.
"""

import re
from typing import Protocol

import numpy as np
import tokenizers

from qkv.data.tokens import id_type

__all__ = ["ByteCodec", "CharCodec", "Codec", "HfCodec", "UnitCodec", "units"]

_SPACE_BETWEEN = re.compile(r" (?=\S)(?<=\S )")

_MOST_CACHED = 64 << 20
"""Characters of distinct units remembered at most (about 400 MB with their ids); beyond it all are forgotten."""


def units(text: str) -> list[str]:
    """A text cut at each single space between two characters that are none.

    All units but the first stand for a space and what follows; the first is given with a space in front that it
    does not have, so that a key tells the two apart: a unit behind a space never begins with one.
    """
    found = _SPACE_BETWEEN.split(text)
    found[0] = " " + found[0]
    return found


class Codec(Protocol):
    """Plain text to ids; special tokens play no part in it."""

    def encode_many(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts one after another, integers [n_tokens], and how many each has, int64 [n_texts]."""
        ...


class CharCodec:
    """One id per character, by a table over code points; characters outside it get the id of [UNK]."""

    def __init__(self, vocabulary: dict[str, int], unknown: int) -> None:
        points = {ord(token): i for token, i in vocabulary.items() if len(token) == 1}
        dtype = id_type(max(unknown, *points.values(), 0) + 1)
        self._table = np.full(max(max(points, default=0) + 2, 256), unknown, dtype=dtype)
        for point, i in points.items():
            self._table[point] = i
        self._ascii = self._table[:256].tobytes() if dtype == np.uint8 else None

    def encode_many(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        text = "".join(texts)
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        if self._ascii is not None and text.isascii():
            return np.frombuffer(text.encode().translate(self._ascii), dtype=np.uint8), lengths
        points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        # Every point beyond the table is read in its last place, which no character owns.
        return self._table[np.minimum(points, len(self._table) - 1)], lengths


class ByteCodec:
    """One id per byte of UTF-8: the byte itself."""

    def encode_many(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        data = [text.encode() for text in texts]
        return np.frombuffer(b"".join(data), dtype=np.uint8), np.array([len(d) for d in data], np.int64)


class HfCodec:
    """The library itself, text by text."""

    def __init__(self, plain: tokenizers.Tokenizer) -> None:
        self._plain = plain

    def encode_many(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        found = [encoding.ids for encoding in self._plain.encode_batch_fast(texts, add_special_tokens=False)]
        lengths = np.array([len(ids) for ids in found], dtype=np.int64)
        return np.array([i for ids in found for i in ids], dtype=np.int64), lengths


class UnitCodec:
    """The library for each distinct unit, a look-up for all further occurrences."""

    def __init__(self, plain: tokenizers.Tokenizer) -> None:
        self._plain = plain
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {}
        self._starts = np.zeros(1, dtype=np.int64)
        self._ids = np.zeros(0, dtype=np.int64)
        self._cached = 0

    def encode_many(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        found = [units(text) for text in texts]
        flat = found[0] if len(found) == 1 else [unit for text in found for unit in text]
        self._learn(set(flat).difference(self._numbers))
        numbers = np.fromiter(map(self._numbers.__getitem__, flat), dtype=np.int64, count=len(flat))
        lengths = self._starts[numbers + 1] - self._starts[numbers]
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self._starts[numbers] - (ends - lengths), lengths)
        ids = self._ids[places]
        text_ends = np.cumsum([len(text) for text in found]) if found else np.zeros(0, dtype=np.int64)
        totals = np.concatenate([[0], ends])[text_ends]
        if self._cached > _MOST_CACHED:
            self._forget()
        return ids, np.diff(totals, prepend=0)

    def _learn(self, new: set[str]) -> None:
        if not new:
            return
        keys = list(new)
        spelled = [key[1:] if key.startswith(" ") else " " + key for key in keys]
        encoded = [encoding.ids for encoding in self._plain.encode_batch_fast(spelled, add_special_tokens=False)]
        for key in keys:
            self._numbers[key] = len(self._numbers)
        lengths = np.array([len(ids) for ids in encoded], dtype=np.int64)
        self._starts = np.concatenate([self._starts, self._starts[-1] + np.cumsum(lengths)])
        self._ids = np.concatenate([self._ids, np.array([i for ids in encoded for i in ids], dtype=np.int64)])
        self._cached += sum(map(len, keys))
