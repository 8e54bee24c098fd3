"""What a tokenizer throws away, charged by a stated byte model, so that bits per byte stay honest.

A tokenizer that drops the space between tokens or writes [UNK] for a word leaves the reader short of something. Given the
tokens, the original text is its gaps (what stands between two tokens, mostly one space or nothing) and its unknown
spellings. The charge is the code length of these under a model counted on the training text:

- a gap, given whether a letter, a mark or nothing stands on either side: (count + P_bytes(gap)) / (total + 1);
- an unknown spelling: P_bytes(spelling);
- P_bytes of a string: its UTF-8 bytes and an end mark, each given the byte before it, counts smoothed by 1/257.

Both are proper distributions (the second given the first), so that loss + charge is the length of a code that gives the
text back byte for byte. Where even that does not hold, as with a tokenizer that puts text in lower case, there is no
charge and no bits per byte.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from qkv.data.tokenizers import Tokenizer

__all__ = ["charge_nats"]

_END = 256


def charge_nats(tokenizer: Tokenizer, train_texts: Iterable[str], val_texts: Iterable[str]) -> float | None:
    """Nats needed to restore all of val_texts from its tokens, at least 0; None where tokens do not keep the letters.

    train_texts is what the model is counted on; a few megabytes suffice.
    """
    model = _Model()
    for text in train_texts:
        if tokenizer.kind == "char":
            model.count_words(Counter(text))
            continue
        pieces = list(_pieces(tokenizer, text))
        if None in pieces:
            return None
        model.count(piece for piece in pieces if piece is not None)
    model.settle()
    total = 0.0
    for text in val_texts:
        if tokenizer.kind == "char":
            places = np.flatnonzero(tokenizer.encode(text) == tokenizer.unknown_id)
            total += sum(model.spelling_nats(text[at]) for at in places)
            continue
        for piece in _pieces(tokenizer, text):
            if piece is None:
                return None
            total += model.nats(piece)
    return total


@dataclass(frozen=True, slots=True)
class _Piece:
    """A token and what came before it: the gap, the kind of character on either side, the spelling of an unknown."""

    gap: str
    sides: str
    spelling: str
    unknown: bool


def _pieces(tokenizer: Tokenizer, text: str) -> Iterator[_Piece | None]:
    """The pieces of a text in order, a last one for what follows the last token; None where a token hides its letters."""
    encoding = tokenizer.plain.encode(text, add_special_tokens=False)
    at, unknown = 0, tokenizer.unknown_id
    for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        spelling = text[start:end]
        is_unknown = i == unknown
        if start < at or not (is_unknown or spelling == tokenizer.surface(i)):
            yield None
            return
        yield _Piece(text[at:start], _side(text, at - 1) + _side(text, start), spelling, is_unknown)
        at = end
    yield _Piece(text[at:], _side(text, at - 1) + "-", "", False)


def _side(text: str, at: int) -> str:
    """Whether a letter or digit (w), another character (m) or nothing (-) stands there."""
    if not 0 <= at < len(text):
        return "-"
    return "w" if text[at].isalnum() else "m"


class _Model:
    """Counts of gaps and of byte pairs."""

    def __init__(self) -> None:
        self._gaps: dict[str, Counter[str]] = {}
        self._pairs = np.zeros((_END + 1, _END + 1))
        self._words: Counter[str] = Counter()

    def count(self, pieces: Iterable[_Piece]) -> None:
        for piece in pieces:
            self._gaps.setdefault(piece.sides, Counter())[piece.gap] += 1
            self._words[piece.gap] += 1
            self._words[piece.spelling] += 1

    def count_words(self, words: Counter[str]) -> None:
        self._words.update(words)

    def settle(self) -> None:
        """Turn the counts of byte pairs into log probabilities."""
        for word, count in self._words.items():
            data = [_END, *word.encode("utf-8", "replace"), _END]
            np.add.at(self._pairs, (data[:-1], data[1:]), count)
        smoothed = self._pairs + 1 / (_END + 1)
        self._log = np.log(smoothed / smoothed.sum(1, keepdims=True))
        self._totals = {sides: counts.total() for sides, counts in self._gaps.items()}

    def spelling_nats(self, text: str) -> float:
        data = [_END, *text.encode("utf-8", "replace"), _END]
        return -float(self._log[data[:-1], data[1:]].sum())

    def nats(self, piece: _Piece) -> float:
        counts = self._gaps.get(piece.sides, Counter())
        share = (counts[piece.gap] + math.exp(-self.spelling_nats(piece.gap))) / (self._totals.get(piece.sides, 0) + 1)
        return -math.log(share) + (self.spelling_nats(piece.spelling) if piece.unknown else 0.0)
