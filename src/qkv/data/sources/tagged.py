"""Texts whose words have labels: CoNLL-U files, and files with a word and its label on each line.

Sentences end with an empty line; lines that begin with "#" are comments. In CoNLL-U a label is the part of speech
(UPOS), or another of its ten columns; ranges of words ("1-2") and empty nodes ("1.1") are left out, and SpaceAfter=No
is obeyed. In other files the first cell of a line is the word and the last its label.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qkv.data.sources.reading import read_lines
from qkv.errors import SourceError, unknown

COLUMNS = "id form lemma upos xpos feats head deprel deps misc".split()
ENDINGS = (".conllu", ".conll", ".iob", ".bio")
"""By these a file is known."""


@dataclass(frozen=True, kw_only=True)
class TaggedText:
    """One sentence."""

    text: str
    words: list[str]
    spans: list[tuple[int, int]]
    """First character and end of each word in the text."""
    labels: list[str]


def read_tagged(path: Path, column: str = "") -> list[TaggedText]:
    """The sentences of a file; `column` names what is the label in CoNLL-U (upos).

    Raises SourceError with the line for one that has no label, for an unknown column, or a file without words.
    """
    column = column or "upos"
    is_conllu = path.name.removesuffix(".gz").endswith(".conllu")
    if column not in COLUMNS:
        raise SourceError(unknown("column", column, COLUMNS))
    found: list[TaggedText] = []
    rows: list[tuple[str, str, bool]] = []
    for number, read in enumerate([*read_lines(path), ""], start=1):
        line = read.rstrip("\r\n")
        if not line.strip():
            found += [_sentence(rows)] * bool(rows)
            rows = []
        elif not line.startswith("#"):
            cells = line.split("\t") if "\t" in line else line.split()
            if len(cells) < 2 or (is_conllu and len(cells) != len(COLUMNS)):
                wanted = f"{len(COLUMNS)} cells with tabs between" if is_conllu else "a word and its label"
                raise SourceError(f"{str(path)!r} line {number} has {len(cells)} cells; expected {wanted}")
            if not is_conllu:
                rows.append((cells[0], cells[-1], True))
            elif cells[0].isdigit():
                rows.append((cells[1], cells[COLUMNS.index(column)], "SpaceAfter=No" not in cells[9]))
    if not found:
        raise SourceError(f"{str(path)!r} holds no labeled words")
    return found


def _sentence(rows: Sequence[tuple[str, str, bool]]) -> TaggedText:
    text, spans = "", []
    for word, _, space in rows:
        spans.append((len(text), len(text) + len(word)))
        text += word + " " * space
    return TaggedText(text=text.rstrip(), words=[row[0] for row in rows], spans=spans, labels=[row[1] for row in rows])
