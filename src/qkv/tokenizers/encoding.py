"""How text becomes ids quickly, with exactly the ids that the HF tokenizer gives.

Characters and bytes are looked up in arrays. Where the pre-tokenizer splits at each space, the ids of a text are
those of its units put together, a unit being a word with the space before it and the marks and line ends behind it.
A text has few distinct units, and these few distinct words, so that the library encodes each word once and the rest
is look-ups: several times as fast. Units that are not plain ASCII, and tokenizers that split otherwise, go through
the library whole.
"""

import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np

import tokenizers
from qkv.jsontypes import JsonObject
from qkv.tokenizers.tokens import id_type

_SPACE_BETWEEN = re.compile(r" (?=\S)(?<=\S )")

_MOST_CACHED = 64 << 20
"""Characters of distinct units remembered at most (about 400 MB with their ids); beyond it all are forgotten."""
_most_cached = _MOST_CACHED


def limit_memory(share: int) -> None:
    """Remember only a share of that, in one of that many processes."""
    global _most_cached
    _most_cached = _MOST_CACHED // share


def _byte_characters() -> tuple[str, ...]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return tuple(chr(byte) if byte in printable else chr(next(others)) for byte in range(256))


BYTE_CHARACTERS = _byte_characters()
"""The printable character that stands for each byte in byte-level vocabularies (Radford et al. 2019), by byte."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Splitting:
    """A pre-tokenizer of the library as a regular expression for ASCII text (tested to agree with it)."""

    pattern: re.Pattern[str]
    """Finds the words of an ASCII text in order."""
    spelling: dict[int, str]
    """How a word's characters are written in the vocabulary, where not as they are."""
    refused: re.Pattern[str]
    """ASCII text in which this is found goes through the library after all."""


_NOTHING = re.compile(r"(?!)")

BYTE_LEVEL = Splitting(
    pattern=re.compile(
        r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+",
        re.ASCII,
    ),
    spelling={byte: character for byte, character in enumerate(BYTE_CHARACTERS[:128]) if character != chr(byte)},
    refused=_NOTHING,
)
"""`ByteLevel`, the pattern of GPT-2."""

WORDS_AND_MARKS = Splitting(
    pattern=re.compile(r"[A-Za-z0-9]+|[^\sA-Za-z0-9]", re.ASCII),
    spelling={},
    refused=re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"),
)
"""`BertPreTokenizer` behind `BertNormalizer`: words and single marks, white space dropped."""

WORDS = Splitting(pattern=re.compile(r"\w+|[^\w\s]", re.ASCII), spelling={}, refused=_NOTHING)
"""Words with their underscores and single marks, white space dropped."""

METASPACE = Splitting(
    pattern=re.compile(r"[\n\[\]<>|]| [^\n\[\]<>| ]*|[^\n\[\]<>| ]+"), spelling={32: "\u2581"}, refused=_NOTHING
)
"""Words with the space before them; line ends and the brackets of special tokens stand alone."""

EVERY_CHARACTER = r"[\s\S]"
WORD_OR_MARK = r"\w+|[^\w\s]"
BRACKETS = r"[\[\]<>|]"


def splitting_of(form: JsonObject) -> Splitting | None:
    """Which of them a tokenizer.json uses; None for any other."""
    before, normal = form.get("pre_tokenizer") or {}, form.get("normalizer") or {}
    kind = before.get("type")
    if kind == "BertPreTokenizer" and normal.get("type") in (None, "BertNormalizer"):
        return WORDS_AND_MARKS
    if normal:
        return None
    if kind == "ByteLevel" and before["use_regex"] and not before["add_prefix_space"]:
        return BYTE_LEVEL
    if kind == "Split" and before["pattern"] == {"Regex": WORD_OR_MARK} and before["invert"]:
        return WORDS
    stages = before.get("pretokenizers", [])
    if [stage.get("pattern") for stage in stages] != [{"String": "\n"}, {"Regex": BRACKETS}, None]:
        return None
    last = stages[-1]
    plain = last["type"] == "Metaspace" and last["prepend_scheme"] == "never" and last["split"]
    return METASPACE if plain else None


def units(text: str) -> list[str]:
    """A text cut at each single space between two characters that are none.

    All units but the first stand for a space and what follows; the first is given with a space in front that it does
    not have, so that a key tells the two apart: a unit behind a space never begins with one.
    """
    found = _SPACE_BETWEEN.split(text)
    found[0] = " " + found[0]
    return found


def unit_text(key: str) -> str:
    """The text that a key of `units` stands for."""
    return key[1:] if key.startswith(" ") else " " + key


def ascii_words(text: str, splitting: Splitting) -> list[str] | None:
    """The words of an ASCII text in order; None where only the library can tell."""
    if text.isascii() and not splitting.refused.search(text):
        return splitting.pattern.findall(text)
    return None


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


class SideCodec:
    """The library for one side of a translation (`sentencepiece`): what its model does not know is looked up once more,
    spelled as a piece of the other side, and what the vocabulary does not number is unknown.
    """

    def __init__(self, hf: tokenizers.Tokenizer, others: dict[str, int], d_vocab: int, unknown: int) -> None:
        self._hf, self._others, self._d_vocab, self._unknown = hf, others, d_vocab, unknown

    def encode_many(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        found = [self._numbers(encoding) for encoding in self._hf.encode_batch(texts, add_special_tokens=False)]
        lengths = np.array([len(ids) for ids in found], dtype=np.int64)
        return np.concatenate([np.zeros(0, dtype=np.int64), *found]), lengths

    def _numbers(self, encoding: tokenizers.Encoding) -> np.ndarray:
        ids = np.array(encoding.ids, dtype=np.int64)
        unknown = np.flatnonzero(ids == self._unknown)
        if len(unknown):
            tokens = encoding.tokens
            ids[unknown] = [self._others.get(tokens[i], self._unknown) for i in unknown]
        ids[ids >= self._d_vocab] = self._unknown
        return ids


class UnitCodec:
    """The library for each distinct word, look-ups for all further occurrences."""

    def __init__(self, plain: tokenizers.Tokenizer, splitting: Splitting) -> None:
        self._plain = plain
        self._splitting = splitting
        self._forget()

    def _forget(self) -> None:
        self._words: dict[str, list[int]] = {}
        self._numbers: dict[str, int] = {}
        self._starts = np.zeros(1, dtype=np.int64)
        self._ids = np.zeros(0, dtype=np.int64)
        self._cached = 0

    def encode_many(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        found = [units(text) for text in texts]
        flat = found[0] if len(found) == 1 else [unit for text in found for unit in text]
        self._learn(sorted(set(flat).difference(self._numbers)))
        numbers = np.fromiter(map(self._numbers.__getitem__, flat), dtype=np.int64, count=len(flat))
        lengths = self._starts[numbers + 1] - self._starts[numbers]
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self._starts[numbers] - (ends - lengths), lengths)
        ids = self._ids[places]
        text_ends = np.cumsum([len(text) for text in found]) if found else np.zeros(0, dtype=np.int64)
        totals = np.concatenate([[0], ends])[text_ends]
        if self._cached > _most_cached:
            self._forget()
        return ids, np.diff(totals, prepend=0)

    def _learn(self, keys: list[str]) -> None:
        """Find the ids of units that were not met before."""
        if not keys:
            return
        spelled = [unit_text(key) for key in keys]
        split = [ascii_words(text, self._splitting) for text in spelled]
        new = [text for text, words in zip(spelled, split, strict=True) if words is None]
        new += {word for words in split if words is not None for word in words}.difference(self._words)
        encoded = self._plain.encode_batch_fast(new, add_special_tokens=False)
        self._words.update((text, encoding.ids) for text, encoding in zip(new, encoded, strict=True))
        flat: list[int] = []
        ends = []
        for text, words in zip(spelled, split, strict=True):
            for word in [text] if words is None else words:
                flat += self._words[word]
            ends.append(len(flat))
        for key in keys:
            self._numbers[key] = len(self._numbers)
        self._starts = np.concatenate([self._starts, self._starts[-1] + np.array(ends, dtype=np.int64)])
        self._ids = np.concatenate([self._ids, np.array(flat, dtype=np.int64)])
        self._cached += sum(map(len, keys))


def whole_characters(text: str) -> str:
    """The same with U+FFFD for each half of a surrogate pair, which JSON may name and which is no character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
