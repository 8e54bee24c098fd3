"""Texts with labels: a CSV, TSV or JSONL table with a label column, or lines of a label, a space and a text.

Labels are words; numbers are read as words too ("0", "1"). What is wrong with a file is said when it is opened, in one
sentence with the line: a label that is missing, an empty line in the middle, a column that is not there, a label that
hardly any two rows share. Nothing here knows about tokens, splits or models. A labelled set is held in memory.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qkv.data.config import DataConfig
from qkv.data.reading import examine, missing_file, read_text, whole_characters
from qkv.data.sources import source_name
from qkv.data.tables import TableFormat, columns_of, is_table, numbered_rows, table_format
from qkv.errors import SourceError, many, nearest

__all__ = ["LabelledTexts", "check_classes", "class_order", "read_labelled"]

LABEL_NAMES = "label labels class category target sentiment gold intent topic tag y".split()
"""Column names that mean a label, likeliest first."""

MOST_BYTES = 1 << 30
"""Of a labelled file; a larger one is refused."""

_LONELY = 0.05
"""Share of rows whose label no other row has, from which on a column (or first word) is no label."""


@dataclass(frozen=True, kw_only=True)
class LabelledTexts:
    """What a file holds, row by row."""

    name: str
    """Short and safe in a file name."""
    kind: str
    """jsonl, csv, tsv, or lines."""
    sha256: str
    """Of the bytes as they lie on disk."""
    texts: list[str]
    """In the order of the file."""
    labels: list[str]
    """Of each text, as written, without surrounding space."""
    lines: list[int]
    """The line that each ends on, from 1."""
    path: str
    """The file, for messages."""
    note: str
    """Which columns were read and what was left out, or empty."""


def read_labelled(config: DataConfig) -> LabelledTexts:
    """The texts and labels of `config.source`.

    Raises SourceError, in one sentence, for a source that is missing, no file, no labelled text, or wrong in a line.
    """
    path = _file(config)
    facts = examine(path)
    if facts.n_bytes > MOST_BYTES:
        raise SourceError(f"{str(path)!r} has {facts.n_bytes:,} bytes; labelled texts may have {MOST_BYTES:,} at most")
    if is_table(path):
        layout, label = _columns(path, config)
        rows, kind = _table_rows(path, layout, label), layout.kind
        note = f"text from column {layout.text!r}, labels from column {label!r}"
    else:
        _no_columns(path, config)
        rows, kind, note = _line_rows(path), "lines", "a label, a space and a text on each line"
    numbers, texts, labels, n_empty = [], [], [], 0
    for number, text, label in rows:
        if not text.strip():
            n_empty += 1
            continue
        numbers.append(number)
        texts.append(text)
        labels.append(label)
    if not texts:
        raise SourceError(f"{str(path)!r} holds no labelled text")
    return LabelledTexts(
        name=source_name(path),
        kind=kind,
        sha256=facts.sha256,
        texts=texts,
        labels=labels,
        lines=numbers,
        path=str(path),
        note=note + (f"; {many(n_empty, 'row')} without text left out" if n_empty else ""),
    )


def class_order(labels: Sequence[str]) -> tuple[str, ...]:
    """The different labels in an order that does not depend on their rows: by value where all are whole numbers."""
    found = set(labels)
    if all(re.fullmatch(r"-?\d{1,4000}", label) for label in found):  # longer ones Python does not read
        return tuple(sorted(found, key=lambda label: (int(label), label)))
    return tuple(sorted(found))


def _file(config: DataConfig) -> Path:
    if not config.source:
        raise SourceError(
            "a classifier needs labelled texts; give a .csv, .tsv or .jsonl table with a label column,"
            " or a text file with a label, a space and a text on each line"
        )
    if config.source.startswith("hf:"):
        raise SourceError(f"{config.source!r}: labelled texts are read from files; save it as .jsonl and give that")
    path = Path(config.source)
    if not path.exists():
        raise missing_file(path)
    if not path.is_file():
        raise SourceError(f"{config.source!r} is a folder; labelled texts are read from one file, a table or lines")
    return path


def _columns(path: Path, config: DataConfig) -> tuple[TableFormat, str]:
    """How the table is laid out, and its label column. Raises SourceError that lists the columns there are."""
    asked = config.label_column
    columns = columns_of(path, config.text_column, asked)
    there = f"columns of {str(path)!r}: {', '.join(filter(None, columns)) or 'none'}"
    if asked and asked not in columns:
        close = nearest(asked, columns, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise SourceError(f"there is no column {asked!r} ({there}){hint}")
    layout = table_format(path, config.text_column, asked)
    others = [name for name in columns if name != config.text_column]
    by_name = [name for wanted in LABEL_NAMES for name in others if name.lower() == wanted]
    if not (asked or by_name) and len(columns) == 2:
        by_name = [name for name in columns if name != layout.text]
    if not (asked or by_name):
        raise SourceError(f"which column holds the labels? Name it with --label-column, or call it label ({there})")
    label = asked or by_name[0]
    if columns.count(label) > 1:
        raise SourceError(
            f"{str(path)!r} has {columns.count(label)} columns called {label!r}; give them names that differ"
        )
    if label == config.text_column:
        raise SourceError(f"--text-column and --label-column are both {label!r} ({there})")
    return (layout if layout.text != label else table_format(path, config.text_column, label)), label


def _no_columns(path: Path, config: DataConfig) -> None:
    for option, given in (("--label-column", config.label_column), ("--text-column", config.text_column)):
        if given:
            raise SourceError(
                f"{str(path)!r} is no table and has no columns: a label, a space and a text are expected on each line;"
                f" leave {option} out, or give a .csv, .tsv or .jsonl table"
            )


def _table_rows(path: Path, layout: TableFormat, label: str) -> Iterator[tuple[int, str, str]]:
    """(line, text, label) of each row. Raises SourceError for a blank line between rows and for a missing label."""
    blank = 0
    for number, row in numbered_rows(path, layout):
        if not row:
            blank = blank or number
            continue
        _no_blank(path, blank)
        text, value = row.get(layout.text), row.get(label)
        if value is None or not str(value).strip():
            raise SourceError(
                f"{str(path)!r} line {number} has no label (column {label!r}); give every row one, or take it out"
            )
        if text is not None and not isinstance(text, str):
            raise SourceError(f"{str(path)!r} line {number}: {layout.text!r} is {type(text).__name__}; expected text")
        if not isinstance(value, str | int | float):
            raise SourceError(
                f"{str(path)!r} line {number}: label {label!r} is {type(value).__name__}; expected a word or a number"
            )
        name = str(value).lower() if isinstance(value, bool) else str(value).strip()
        yield number, whole_characters(text or ""), whole_characters(name)


def _line_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line, text, label) of each line. Raises SourceError for an empty line between lines, or one of one word."""
    blank, rest, number = 0, "", 0
    for block in [*read_text(path), "\n"]:
        *whole, rest = (rest + block).split("\n")
        for line in whole:
            number += 1
            words = line.split(maxsplit=1)
            if not words:
                blank = blank or number
                continue
            _no_blank(path, blank)
            if len(words) == 1:
                raise SourceError(
                    f"{str(path)!r} line {number} is {line.strip()[:40]!r}, one word; expected a label, a space and a"
                    " text (the label or the text is missing)"
                )
            yield number, words[1].rstrip(), words[0]


def _no_blank(path: Path, line: int) -> None:
    if line:
        raise SourceError(f"{str(path)!r} line {line} is empty, in the middle of the rows; take it out")


def check_classes(found: LabelledTexts) -> None:
    """Make sure that the labels of what is trained on are classes.

    Raises SourceError where hardly any is shared, as in a column of numbers or in prose, or where all are the same.
    """
    counts = Counter(found.labels)
    lonely = [label for label, count in counts.items() if count == 1]
    if len(lonely) > max(1, _LONELY * len(found.labels)):
        raise SourceError(
            f"{len(lonely):,} of {len(found.labels):,} rows of {found.path!r} have a label that no other row has, such"
            f" as {lonely[0][:40]!r}; expected a few classes: in a table name their column with --label-column,"
            " on lines begin each with its label and a space"
        )
    if len(counts) < 2:
        raise SourceError(
            f"all {len(found.labels):,} rows of {found.path!r} have the label {found.labels[0]!r}; a classifier needs"
            " texts of at least two classes"
        )
