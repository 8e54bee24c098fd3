"""Word vectors from files: GloVe and word2vec text, word2vec binary; any of them gzipped.

Text is a word and its numbers a line, with a first line "count width" (word2vec) or without (GloVe). Binary begins with
that line; then, for each word, its bytes, a space and `width` little-endian float32. Nothing is unpickled: gensim's own
`.kv` and `.model` files are refused.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np

from qkv.data.sources.reading import binary_file
from qkv.errors import SourceError

SUFFIXES = (".txt", ".vec", ".bin")
"""How the name of a vector file ends, before a ".gz"."""
_LONGEST_WORD = 10_000
_WIDEST = 1 << 20
"""Numbers of a vector; a header that says more is none."""
_COUNT = re.compile(r"[0-9]{1,18}")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


@dataclass(frozen=True, kw_only=True, eq=False)
class Vectors:
    """Words and their vectors, each word once (the first of equal ones)."""

    words: tuple[str, ...]
    """In the order of the file."""
    values: np.ndarray
    """float32 [n, width]."""

    @property
    def width(self) -> int:
        """Numbers in one vector."""
        return self.values.shape[1]

    @cached_property
    def rows(self) -> dict[str, int]:
        """Word -> row."""
        return {word: row for row, word in enumerate(self.words)}

    def row(self, word: str) -> int | None:
        """The row of a word as it is written, else in lower case; None where the file has neither."""
        found = self.rows.get(word)
        return self.rows.get(word.lower()) if found is None else found


def shared(vectors: Vectors, others: Sequence[Vectors]) -> Vectors:
    """The same vectors of those words alone that all have, in lower case and in alphabetical order.

    Of several spellings of one word the lower-case one counts, else the first. So several sets that are each shared
    with the others hold the same words.
    """
    places: dict[str, int] = {}
    for row, word in enumerate(vectors.words):
        lower = word.lower()
        if lower not in places or word == lower:
            places[lower] = row
    common = set(places).intersection(*({word.lower() for word in other.words} for other in others))
    words = tuple(sorted(common))
    return Vectors(words=words, values=vectors.values[[places[word] for word in words]])


def is_vector_file(path: Path) -> bool:
    """Whether a name ends like that of a vector file."""
    return Path(path.name.removesuffix(".gz")).suffix in SUFFIXES


def holds_vectors(path: Path) -> bool:
    """Whether a file has such a name and begins as one: "count width", or a word and numbers."""
    if not (is_vector_file(path) and path.is_file()):
        return False
    try:
        with binary_file(path) as file:
            head = file.read(_LONGEST_WORD).partition(b"\n")[0].decode("utf-8", errors="replace")
    except SourceError:
        return False
    word, *numbers = head.removeprefix("\ufeff").rstrip().split(" ")
    if len(numbers) == 1 and _COUNT.fullmatch(word):
        return bool(_COUNT.fullmatch(numbers[0]))
    return len(numbers) > 1 and all(map(_NUMBER.fullmatch, numbers[1:]))


def read_vectors(path: Path) -> Vectors:
    """The vectors of a file, binary where its name ends in .bin or .bin.gz.

    Raises SourceError, in one sentence, for a file that is missing, cut off or no vectors, or with a line too short or
    too long.
    """
    binary = path.name.removesuffix(".gz").endswith(".bin")
    if not path.exists():
        raise SourceError(f"{str(path)!r} does not exist; expected a file of word vectors (.txt, .vec or .bin)")
    with binary_file(path) as file:
        words, rows = _binary(file, path) if binary else _text(file, path)
    if not words:
        raise SourceError(f"{str(path)!r} holds no vectors")
    values = np.stack(rows)
    if not np.isfinite(values).all():
        bad = words[int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])]
        raise SourceError(f"{str(path)!r}: the vector of {bad!r} is not finite")
    first = list({word: row for row, word in reversed(list(enumerate(words)))}.values())
    kept = np.sort(np.array(first, dtype=np.int64))
    return Vectors(words=tuple(words[row] for row in kept), values=values[kept])


def _text(file: BinaryIO, path: Path) -> tuple[list[str], list[np.ndarray]]:
    words: list[str] = []
    rows: list[np.ndarray] = []
    told, width = -1, 0
    for number, line in enumerate(_lines(file, path), start=1):
        parts = (line.removeprefix("\ufeff") if number == 1 else line).rstrip().split(" ")
        if number == 1 and len(parts) == 2 and all(_COUNT.fullmatch(part) for part in parts):
            told, width = int(parts[0]), int(parts[1])
            continue
        if not parts[0] and len(parts) == 1:
            continue
        width = width or len(parts) - 1
        # A word may hold spaces, numbers may not: one that ends in a number has swallowed some of the vector's.
        if len(parts) <= width or width < 1 or (len(parts) - 1 > width and _NUMBER.fullmatch(parts[-width - 1])):
            raise SourceError(
                f"{str(path)!r}, line {number}: expected a word and {max(1, width)} numbers with spaces between, as in"
                f" GloVe and word2vec text files; found {len(parts) - 1} numbers"
            )
        try:
            with np.errstate(over="ignore"):  # 1e43 is infinite here, and refused by the caller
                rows.append(np.array(parts[-width:], dtype=np.float32))
        except ValueError:
            raise SourceError(
                f"{str(path)!r}, line {number}: {line[:40]!r} is not a word and {width} numbers"
            ) from None
        words.append(" ".join(parts[:-width]))
    if words and len(words) < told:
        raise SourceError(f"{str(path)!r} is cut off: it holds {len(words):,} of {told:,} vectors")
    return words, rows


def _lines(file: BinaryIO, path: Path) -> Iterator[str]:
    try:
        for line in file:
            yield line.decode("utf-8")
    except UnicodeDecodeError:
        raise SourceError(f"{str(path)!r} is no UTF-8 text; a binary file's name has to end in .bin") from None


def _binary(file: BinaryIO, path: Path) -> tuple[list[str], list[np.ndarray]]:
    head = file.readline(100).split()
    if len(head) != 2 or not all(_COUNT.fullmatch(part.decode("latin-1")) for part in head):
        raise SourceError(f"{str(path)!r} is no word2vec binary file: expected a first line 'count width'")
    n, width = int(head[0]), int(head[1])
    if not 0 < width <= _WIDEST:
        raise SourceError(f"{str(path)!r} says that its vectors have {width:,} numbers; expected 1 to {_WIDEST:,}")
    words: list[str] = []
    rows: list[np.ndarray] = []
    for _ in range(n):
        word = bytearray()
        while (byte := file.read(1)) not in (b" ", b"") and len(word) < _LONGEST_WORD:
            word += byte
        data = file.read(4 * width)
        if len(data) < 4 * width:
            raise SourceError(f"{str(path)!r} is cut off: it holds {len(words):,} of {n:,} vectors")
        words.append(bytes(word).lstrip(b"\n").decode("utf-8", "replace"))
        rows.append(np.frombuffer(data, "<f4"))
    return words, rows
