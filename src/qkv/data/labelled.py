"""Texts with labels: a CSV, TSV or JSONL table with a label column, or lines of a label, a space and a text.

A folder is read where its files make a published split (`train.tsv` beside `dev.tsv`): one part at a time.
Labels are words; numbers are read as words too ("0", "1"). What is wrong with a file is said when it is opened, in one
sentence with the line: a label that is missing, an empty line in the middle, a column that is not there, a label that
hardly any two rows share. Nothing here knows about tokens, splits or models. A labelled set is held in memory.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qkv.data.config import DataConfig
from qkv.data.sources.published import Published, given_inside, published
from qkv.data.sources.reading import examine, read_text, sniff
from qkv.data.sources.source import files_below, source_name
from qkv.data.sources.tables import TableFormat, columns_of, is_table, numbered_rows, table_format
from qkv.errors import SourceError, missing_file, nearest
from qkv.tokenizers.encoding import whole_characters
from qkv.words import many

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
    """The line of its file that each ends on, from 1."""
    files: list[tuple[str, int]]
    """The files that were read, each with the number of its first text."""
    path: str
    """The file, or the folder of several, for messages."""
    note: str
    """Which columns were read and what was left out, or empty."""
    published: Published | None = None
    """The parts of its folder by their names, of which this is one."""

    def place(self, i: int) -> str:
        """File and line of text i, for messages."""
        file = next(name for name, first in reversed(self.files) if first <= i)
        return f"{file!r} line {self.lines[i]}"


def read_labelled(config: DataConfig, *, measured: bool = False) -> LabelledTexts:
    """The texts and labels of `config.source`; of a folder those for training, or with `measured` for validation.

    Raises SourceError, in one sentence, for a source that is missing, no labelled text, or wrong in a line, and for a
    folder without a published split.
    """
    path = _path(config)
    parts = _parts(path, config) if path.is_dir() else None
    paths = [path] if parts is None else list(parts.measured if measured else parts.train)
    facts = [examine(file) for file in paths]
    if (n_bytes := sum(each.n_bytes for each in facts)) > MOST_BYTES:
        raise SourceError(f"{str(path)!r} has {n_bytes:,} bytes; labelled texts may have {MOST_BYTES:,} at most")
    texts, labels, numbers, files, found, n_empty = [], [], [], [], [], 0
    for file in paths:
        rows, kind, note = _rows_of(file, config)
        found.append((kind, note))
        files.append((str(file), len(texts)))
        for number, text, label in rows:
            if not text.strip():
                n_empty += 1
                continue
            numbers.append(number)
            texts.append(text)
            labels.append(label)
    if not texts:
        raise SourceError(f"{str(path)!r} holds no labelled text")
    _check_alike(paths, found)
    kind, note = found[0]
    together = "\n".join(
        f"{file.relative_to(path)}\0{each.sha256}" for file, each in zip(paths, facts, strict=True) if parts
    )
    return LabelledTexts(
        name=source_name(path if parts is None else path / "all"),
        kind=kind,
        sha256=facts[0].sha256
        if parts is None
        else hashlib.sha256(together.encode("utf-8", "surrogateescape")).hexdigest(),
        texts=texts,
        labels=labels,
        lines=numbers,
        files=files,
        path=str(paths[0] if len(paths) == 1 else path),
        note=note + (f"; {many(n_empty, 'row')} without text left out" if n_empty else ""),
        published=parts,
    )


def _rows_of(path: Path, config: DataConfig) -> tuple[Iterator[tuple[int, str, str]], str, str]:
    """(line, text, label) of each row of a file, what kind of file it is, and how it is read."""
    if is_table(path):
        layout, label = _columns(path, config)
        note = f"text from column {layout.text!r}, labels from column {label!r}"
        return _table_rows(path, layout, label), layout.kind, note
    _no_columns(path, config)
    return _line_rows(path), "lines", "a label, a space and a text on each line"


def _check_alike(paths: Sequence[Path], found: Sequence[tuple[str, str]]) -> None:
    """Raises SourceError where the files of one part are not read in the same way."""
    for path, (kind, note) in zip(paths, found, strict=True):
        if (kind, note) != found[0]:
            ways = f"{str(paths[0])!r} ({found[0][0]}: {found[0][1]}) and {str(path)!r} ({kind}: {note})"
            raise SourceError(f"{ways} are named for the same part and are read in different ways; name one of them")


def _parts(folder: Path, config: DataConfig) -> Published:
    """The parts of a folder of labelled texts: of its tables where these make a split, else of its lines.

    Raises SourceError for a folder without a published split.
    """
    texts = [path for path in files_below(folder, []) if sniff(path) in ("text", "pointer")]
    tables = [path for path in texts if is_table(path)]
    parts = published(folder, tables)
    if parts is not None:
        parts = replace(parts, others=(*parts.others, *(path for path in texts if path not in set(tables))))
    else:
        parts = published(folder, texts)
    if parts is None:
        raise SourceError(
            f"{str(folder)!r} is a folder; labelled texts are read from one file, a table or lines, or from a folder"
            " with a file for training and another part by their names, such as train.tsv and dev.tsv"
        )
    return parts.without(given_inside(folder, config.val, texts, parts))


def class_order(labels: Sequence[str]) -> tuple[str, ...]:
    """The different labels in an order that does not depend on their rows: by value where all are whole numbers."""
    found = set(labels)
    if all(re.fullmatch(r"-?\d{1,4000}", label) for label in found):  # longer ones Python does not read
        return tuple(sorted(found, key=lambda label: (int(label), label)))
    return tuple(sorted(found))


def _path(config: DataConfig) -> Path:
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
    if not (path.is_file() or path.is_dir()):
        raise SourceError(f"{config.source!r} is a device or a pipe; save it as a file first")
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
