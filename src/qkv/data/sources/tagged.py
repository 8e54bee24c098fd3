"""Texts whose words have labels: CoNLL-U files, files with a word and its label on each line, and spans of a text.

Sentences end with an empty line. In CoNLL-U, lines that begin with "#" are comments, and a label is the part of speech
(UPOS), or another of its ten columns; ranges of words ("1-2") and empty nodes ("1.1") are left out, and SpaceAfter=No
is obeyed. In other files the first cell of a line is the word and the last its label; all lines have equally many. A
comment there stands before a sentence and begins with "# ", without tabs or the label O at its end.

Spans of a text, by characters, become labels of its words as in CoNLL: B-X for the first word of a span X, I-X for the
others, O outside (Ramshaw and Marcus 1995). Words are runs of letters and digits; any other mark is one by itself, as
is a character of a script without spaces.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from pathlib import Path

from qkv.data.sources.reading import plain_name, read_lines
from qkv.errors import SourceError, unknown
from qkv.tokenizers.encoding import whole_characters

COLUMNS = "id form lemma upos xpos feats head deprel deps misc".split()
ENDINGS = (".conllu", ".conll", ".iob", ".bio")
"""By these a file is known."""
OUTSIDE = "O"
"""The label of a word that is in no span."""
_NEVER_EMPTY = ("upos", "xpos", "head", "deprel")
"""Columns of CoNLL-U in which "_" means that there is no label."""
_ALONE = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Kana and Chinese characters, each of which is a word."""
_WORD = re.compile(rf"[{_ALONE}]|[^\W{_ALONE}](?:[^\W{_ALONE}]|[\u0300-\u036f])*|[^\w\s]")


@dataclass(frozen=True, kw_only=True)
class TaggedText:
    """One sentence."""

    text: str
    words: list[str]
    spans: list[tuple[int, int]]
    """First character and end of each word in the text."""
    labels: list[str]
    line: int = 0
    """Where it ends in its file, from 1."""


def is_conllu(path: Path) -> bool:
    """Whether its name ends as that of a CoNLL-U file, whose columns have names."""
    return plain_name(path).endswith(".conllu")


def is_tagged(path: Path) -> bool:
    """Whether its name ends as files do whose words have labels."""
    return plain_name(path).endswith(ENDINGS)


def read_tagged(path: Path, column: str = "") -> list[TaggedText]:
    """The sentences of a file; `column` names what is the label in CoNLL-U (upos).

    Raises SourceError with the line for one that has no label or another number of cells, for an unknown column, or a
    file without words.
    """
    named = is_conllu(path)
    if column and not named:
        raise SourceError(f"{str(path)!r} is no CoNLL-U file, and the last cell is the label; leave --label-column out")
    column = column or "upos"
    if column not in COLUMNS:
        raise SourceError(unknown("column", column, COLUMNS))
    found: list[TaggedText] = []
    rows: list[tuple[str, str, bool]] = []
    n_cells = len(COLUMNS) if named else 0
    for number, read in enumerate([*read_lines(path), ""], start=1):
        line = whole_characters(read.rstrip("\r\n"))
        if not line.strip():
            found += [_sentence(rows, number - 1)] * bool(rows)
            rows = []
        elif not (line.startswith("-DOCSTART-") or _is_comment(line, named, bool(rows))):
            cells = line.split("\t") if "\t" in line else line.split()
            place, n_cells = f"{str(path)!r} line {number}", n_cells or len(cells)
            if len(cells) != n_cells or n_cells < 2:
                wanted = f"{n_cells}, as in the first line" if len(cells) > 1 else "a word and its label"
                wanted = f"{n_cells} cells with tabs between" if named else wanted
                raise SourceError(f"{place} has {len(cells)} cells; expected {wanted}")
            if not named:
                rows.append((_filled(cells[0], place, "word"), _filled(cells[-1], place, "label"), True))
            elif cells[0].isdigit():
                label = cells[COLUMNS.index(column)]
                label = _filled("" if label == "_" and column in _NEVER_EMPTY else label, place, f"label ({column})")
                rows.append((_filled(cells[1], place, "word"), label, "SpaceAfter=No" not in cells[9]))
    if not found:
        raise SourceError(f"{str(path)!r} holds no labeled words")
    return found


def _is_comment(line: str, named: bool, inside: bool) -> bool:
    """Whether a line is none of a word; outside CoNLL-U one that begins with "#" may be, such as "#Paris B-LOC"."""
    begins = f"{line} ".startswith("#" if named else ("# ", "#begin document", "#end document"))
    return begins and (named or not (inside or "\t" in line or line.split()[-1] == OUTSIDE))


def _filled(cell: str, place: str, what: str) -> str:
    """The cell. Raises SourceError where it is empty."""
    if not cell.strip():
        raise SourceError(f"{place} has no {what}; give every word one")
    return cell


def _sentence(rows: Sequence[tuple[str, str, bool]], line: int) -> TaggedText:
    text, spans = "", []
    for word, _, space in rows:
        spans.append((len(text), len(text) + len(word)))
        text += word + " " * space
    words, labels = [row[0] for row in rows], [row[1] for row in rows]
    return TaggedText(text=text.rstrip(" "), words=words, spans=spans, labels=labels, line=line)


# spans of a text


def words_of(text: str) -> list[tuple[int, int]]:
    """First character and end of each word."""
    return [match.span() for match in _WORD.finditer(text)]


def from_spans(text: str, value: object, place: str) -> tuple[list[tuple[int, int]], list[str]]:
    """The words of a text, and their labels by `value`: a list of {"start", "end", "label"} or [start, end, label].

    Raises SourceError that begins with `place` for spans that overlap, lie outside the text, begin or end inside a
    word, or hold none.
    """
    if not isinstance(value, list | None):
        raise SourceError(f"{place} has {type(value).__name__} for spans; expected a list such as {_LIKE}")
    found = sorted(_span(one, text, place) for one in value or [])
    for (start, end, _), (later, until, _) in pairwise(found):
        if later < end:
            raise SourceError(f"{place}: the spans {start} to {end} and {later} to {until} overlap")
    words = words_of(text)
    starts, ends = [word[0] for word in words], [word[1] for word in words]
    labels = [OUTSIDE] * len(words)
    for start, end, label in found:
        first, last = bisect_right(ends, start), bisect_left(starts, end) - 1
        if last < first:
            raise SourceError(f"{place}: the span {start} to {end} holds no word")
        for cut, what, at in ((starts[first] < start, "begins", first), (ends[last] > end, "ends", last)):
            if cut:
                word = text[starts[at] : ends[at]]
                raise SourceError(f"{place}: the span {start} to {end} {what} inside the word {word[:40]!r}")
        labels[first : last + 1] = [f"B-{label}"] + [f"I-{label}"] * (last - first)
    return words, labels


def answers_in(text: str, value: object, place: str) -> tuple[bool, list[tuple[int, int]]]:
    """(whether the first answer occurs elsewhere too, first character and end of each answer in the text), of an answer
    as it stands there, {"text", "start"}, SQuAD's {"text": [..], "answer_start": [..]}, or a list of these.

    Without its first character, the first place is meant where it is whole words, or else the first of all. Raises
    SourceError that begins with `place` for another form, or an answer that is not there.
    """
    found, several = [], False
    for answer, start in _written(value):
        if not (isinstance(answer, str) and answer.strip() and (start is None or type(start) is int)):
            like = '"Paris", {"text": "Paris", "start": 12} or {"text": ["Paris"], "answer_start": [12]}'
            raise SourceError(f"{place} has the answer {str(answer)[:60]!r}; expected a piece of the text: {like}")
        answer = whole_characters(answer)
        if start is None:
            places = [m.start() for m in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", text)]
            start, several = (places or [text.find(answer)])[0], several or (not found and len(places) > 1)
        if start < 0 or text[start : start + len(answer)] != answer:
            raise SourceError(
                f"{place}: the text does not have the answer {answer[:40]!r}" + f" at {start}" * (start > 0)
            )
        found.append((start, start + len(answer)))
    return several, found


def _written(value: object) -> list[tuple[object, object]]:
    """The answers of a cell, each with its first character, None where that is not said."""
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start", value.get("start"))
        if not isinstance(texts, list):
            return [(texts, starts)]
        value = [{"text": t, "start": s} for t, s in zip_longest(texts, starts if isinstance(starts, list) else [])]
    return [pair for one in value for pair in _written(one)] if isinstance(value, list) and value else [(value, None)]


_LIKE = '[{"start": 0, "end": 5, "label": "PER"}] or [[0, 5, "PER"]]'


def _span(value: object, text: str, place: str) -> tuple[int, int, str]:
    """Start, end and label. Raises SourceError for another form, or one outside the text."""
    parts = [value.get(name) for name in ("start", "end", "label")] if isinstance(value, dict) else value
    match parts:
        case [int(start), int(end), str(label)] if label.strip() and bool not in (type(start), type(end)):
            if 0 <= start < end <= len(text):
                return start, end, label.strip()
            raise SourceError(f"{place}: the span {start} to {end} is outside the text of {len(text):,} characters")
    raise SourceError(f"{place} has the span {str(value)[:60]}; expected {_LIKE}")
