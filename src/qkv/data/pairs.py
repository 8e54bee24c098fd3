"""Sentence pairs: two line-aligned files become pairs of token sequences under one shared vocabulary.

Line i of the left file is translated by line i of the right one; different numbers of lines are an error that names
both. A pair with an empty side is left out, and so is one of the training part that is longer than the model reads;
both are counted and said. The vocabulary is fitted to both sides of the training part together. Without a pair of files
for validation a tenth of the pairs is held out by `split`, near-copies kept on one side. Lines are encoded with a space
in front, so that a word has one token wherever it stands.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from qkv.data.config import DataConfig
from qkv.data.corpus import DEFAULT_KIND, is_file_of_tokenizer
from qkv.data.dataset import DataSet
from qkv.data.sources.reading import examine, read_lines
from qkv.data.sources.receipt import ReadFile, Receipt, Rows, make_receipt
from qkv.data.sources.source import Source, as_documents, source_file, source_name, whole_documents
from qkv.data.split import Part, Split, repeated, split_source
from qkv.errors import SourceError, missing_file
from qkv.tokenizers.fitting import FITTED_SAMPLE
from qkv.tokenizers.tokenizer import Tokenizer, fit_tokenizer, load_tokenizer, vocabulary_law
from qkv.tokenizers.tokens import Tokens, n_utf8
from qkv.words import many, plural

ARROW = "=>"
"""Between a source and its target where both are typed in one line."""

_FEWEST = 20
"""Training pairs below this many are too few where some must be held out as well."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Pairs of one part; document i of both sides is pair i, each ending with the end token."""

    source: Tokens
    target: Tokens

    def __len__(self) -> int:
        return self.source.n_documents

    @property
    def ids(self) -> np.ndarray:
        """All token ids of both sides, [n_tokens]: what counts of tokens are taken from."""
        return np.concatenate([self.source.ids, self.target.ids])

    @property
    def n_tokens(self) -> int:
        """Tokens of both sides, end tokens included."""
        return len(self.source) + len(self.target)

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of each source and each target, end tokens included: int64 [n_pairs] twice."""
        return np.diff(self.source.offsets), np.diff(self.target.offsets)


@dataclass(frozen=True, kw_only=True, eq=False)
class PairCorpus(DataSet):
    """Pairs for training and validation, and what they came from.

    Its kind is "pairs"; its note says what was left out, and how many pairs are in both parts.
    """

    tokenizer: Tokenizer
    """Shared by both sides, in their ids at least (`Tokenizer.of_source`)."""
    train: Pairs
    val: Pairs
    split: Callable[[], Split] = field(repr=False)
    """Returns the split again, for callers that need the text itself."""

    def describe(self) -> str:
        """What is trained on and measured on, in one line."""
        return (
            f"{self.name}: {len(self.train):,} training and {len(self.val):,} validation pairs,"
            f" {len(self.train.target):,} and {len(self.val.target):,} target tokens"
            f" ({self.tokenizer.kind}, vocabulary {self.tokenizer.d_vocab:,}).{self.note_sentence}"
        )

    def lines(self, part: str) -> tuple[list[str], list[str]]:
        """The pairs of "train" or "val" as text, both sides filled."""
        split = self.split()
        found = _lines(split.train if part == "train" else split.val).pairs
        return [left for left, _ in found], [right for _, right in found]


def split_pair(source: str) -> tuple[Path, Path]:
    """`left:right` as two paths; a colon inside a name is found by which files there are.

    Raises SourceError where it is no pair, or one of the files is missing.
    """
    cuts = [i for i, character in enumerate(source) if character == ":"]
    for cut in cuts:
        left, right = Path(source[:cut]), Path(source[cut + 1 :])
        if left.is_file() and right.is_file():
            return left, right
    if not cuts:
        hint = "; of columns with tabs between: cut -f1 TABLE > left.txt; cut -f2 TABLE > right.txt"
        raise SourceError(
            f"{source!r} is not a pair of files; translate needs two of equally many lines, as train.de:train.en"
            + (hint if _has_tabs(Path(source)) else "")
        )
    left, right = (Path(side) for side in source.split(":", 1))
    if not source.split(":", 1)[0] or not source.split(":", 1)[1]:
        raise SourceError(f"{source!r} names one file; translate needs two, as train.de:train.en")
    for path in (left, right):
        if path.is_dir():
            raise SourceError(f"{str(path)!r} is a folder; translate needs two files, as train.de:train.en")
        if not path.is_file():
            raise missing_file(path, "file")
    raise AssertionError("one of them was missing")


def _has_tabs(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b"\t" in file.readline(1 << 16)


def load_pairs(config: DataConfig) -> PairCorpus:
    """Read the pairs, split them, fit or read the shared vocabulary, and cut them into tokens.

    Raises SourceError for files that cannot be read as pairs or hold too few, ConfigError for a tokenizer or vocabulary
    that does not exist.
    """
    if config.text_column or config.label_column:
        option = "--text-column" if config.text_column else "--label-column"
        raise SourceError(f"a pair of files has no columns; leave {option} out")
    source = _pair_source(config.source)
    val = _pair_source(config.val) if config.val else None

    @lru_cache(maxsize=1)
    def split() -> Split:
        return split_source(source, val, cut=False)

    sides = [_lines(part) for part in (split().train, split().val)]
    train, held = (side.pairs for side in sides)
    least = 1 if config.val else _FEWEST
    if len(train) < least or not held:
        raise SourceError(
            f"{source.name!r} gives {len(train)} pairs to train on and {len(held)} to validate on;"
            f" at least {least} and 1 are needed"
        )
    tokenizer = _tokenizer(config, train)
    more = [val.sha256] if val else [f"split {split().revision}"] * (split().revision > 1)
    empty, known = sum(side.n_empty for side in sides), set(train) if config.val else set()
    notes = [f"{empty} {plural(empty, 'pair')} with an empty side left out"] if empty else []
    notes.append(repeated(sum(pair in known for pair in held), len(held), "validation pairs"))
    return PairCorpus(
        name=source.name,
        kind="pairs",
        sha256=_digest(source.sha256, *more) if more else source.sha256,
        tokenizer=tokenizer,
        train=_tokens(train, tokenizer),
        val=_tokens(held, tokenizer),
        rule=split().rule.replace("documents", "pairs"),
        note="; ".join(filter(None, notes)),
        receipt=_receipt(source, val, *sides),
        split=split,
    )


def _receipt(source: Source, val: Source | None, train: "_Lines", held: "_Lines") -> Receipt:
    """What became of both files of a source, and of both that it is validated on where these are others."""
    none = [0, 0]
    sides = [(source, train.n_bytes, held.n_bytes if val is None else none)]
    sides += [(val, none, held.n_bytes)] if val is not None else []
    n_empty = train.n_empty + held.n_empty
    rest, read = "line ends" + " and pairs with an empty side" * bool(n_empty), []
    for side, *counts in sides:
        for file, n_train, n_val in zip(side.files, *counts, strict=True):
            losses = {"byte order mark": file.n_raw - file.n_bytes, rest: file.n_bytes - n_train - n_val}
            read.append((ReadFile(file.path, losses), n_train, n_val))
    why = f"{many(n_empty, 'pair')} with an empty side" if n_empty else ""
    return make_receipt(read, rows=Rows(read=len(train.pairs) + len(held.pairs), left_out=n_empty, why=why))


def line_of(text: str) -> str:
    """A text as a line of a pair: without white space around it, line feeds a space; what is inside stays."""
    return " ".join(filter(None, (line.strip() for line in text.split("\n"))))


def encode_lines(tokenizer: Tokenizer, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Ids of all lines one after another, each behind a space and with the end token after it; and their lengths."""
    ids, lengths = tokenizer.encode_many([" " + line for line in lines])
    ends = np.cumsum(lengths)
    return np.insert(ids.astype(np.int64), ends, end_of(tokenizer)), lengths + 1


def start_of(tokenizer: Tokenizer) -> int:
    """The token that a target begins from: the end token, unless a model that was imported learned another."""
    return end_of(tokenizer) if tokenizer.start is None else tokenizer.start


def end_of(tokenizer: Tokenizer) -> int:
    """The token that ends a text; a tokenizer of pairs has one."""
    assert tokenizer.end_id is not None, "a tokenizer of pairs has an end token"
    return tokenizer.end_id


def decode_line(tokenizer: Tokenizer, ids: np.ndarray) -> str:
    """The line that some ids stand for, without the space in front."""
    return tokenizer.decode(ids).strip()


def _pair_source(text: str) -> Source:
    """Pairs as documents: the left line, a line end, the right line."""
    paths = split_pair(text)
    facts = [examine(path) for path in paths]
    counts = [sum(1 for _ in _file_lines(path)) for path in paths]
    if counts[0] != counts[1]:
        raise SourceError(
            f"{str(paths[0])!r} has {counts[0]:,} lines and {str(paths[1])!r} has {counts[1]:,};"
            f" line i of one must be the translation of line i of the other"
        )

    def documents() -> Iterator[str]:
        both = zip(_file_lines(paths[0]), _file_lines(paths[1]), strict=True)
        return (f"{left}\n{right}" for left, right in both)

    return Source(
        name=source_name(paths[0]),
        kind="pairs",
        sha256=_digest(*(f.sha256 for f in facts)),
        n_bytes=sum(f.n_bytes for f in facts),
        read=as_documents(documents),
        files=tuple(source_file(path, each) for path, each in zip(paths, facts, strict=True)),
    )


def _file_lines(path: Path) -> Iterator[str]:
    """Lines of a text file, cut at line feeds only, without their ends; a last line feed begins no further line."""
    return (line.removesuffix("\n").removesuffix("\r") for line in read_lines(path))


class _Lines(NamedTuple):
    """The pairs of a part."""

    pairs: list[tuple[str, str]]
    """Those with both sides filled."""
    n_empty: int
    """How many were left out."""
    n_bytes: list[int]
    """UTF-8 bytes of the left and of the right lines of `pairs`, as they lie in the files."""


def _lines(part: Part) -> _Lines:
    found, empty, n_bytes = [], 0, [0, 0]
    for document in whole_documents(part.read()):
        sides = document.split("\n", 1)
        if all(map(str.strip, sides)):
            found.append((line_of(sides[0]), line_of(sides[1])))
            n_bytes = [n + n_utf8((side,)) for n, side in zip(n_bytes, sides, strict=True)]
        else:
            empty += 1
    return _Lines(found, empty, n_bytes)


def _tokenizer(config: DataConfig, train: list[tuple[str, str]]) -> Tokenizer:
    """The shared tokenizer: read from a file, or fitted to both sides."""
    kind = config.tokenizer or DEFAULT_KIND
    if is_file_of_tokenizer(config):
        return load_tokenizer(kind, end=True)
    n_bytes = n_utf8(side for pair in train for side in pair) + 2 * len(train)
    step = max(1, -(-n_bytes // FITTED_SAMPLE))
    texts = (" " + side for pair in train[::step] for side in pair)
    return fit_tokenizer(kind, texts, config.vocab or vocabulary_law(kind, n_bytes), end=True)


def _tokens(pairs: list[tuple[str, str]], tokenizer: Tokenizer) -> Pairs:
    source, target = (
        Tokens.of(*encode_lines(cutter, list(side)), side, tokenizer.d_vocab, tokenizer.unknown_id)
        for side, cutter in zip(zip(*pairs, strict=True), (tokenizer.of_source, tokenizer), strict=True)
    )
    return Pairs(source=source, target=target)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
