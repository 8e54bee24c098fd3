"""Texts with labels: a CSV, TSV or JSONL table with a label column, or lines of a label, a space and a text.

A folder is read where its files make a published split (`train.tsv` beside `dev.tsv`): one part at a time.
A row may hold several texts in columns of their own, which are read as one with [SEP] between them.
Labels are words; numbers are read as words too ("0", "1"). Instead of one label (the shape `class`) a row may have a
set of labels (`set`), a number (`value`), a label for each word (`words`; see `sources.tagged`), or a question and a
piece of the text that answers it (`span`). What is wrong with a file is said when it is opened, in one sentence with
the line: a label that is missing, an empty line in the middle, a column that is not there, a label that hardly any two
rows share. Nothing here knows about tokens, splits or models. A labelled set is held in memory.
"""

import ast
import hashlib
import math
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from qkv.data.baseline.linear import BETWEEN
from qkv.data.config import DataConfig
from qkv.data.sources.published import Published, given_inside, published
from qkv.data.sources.reading import FileFacts, examine, plain_name, read_lines, sniff
from qkv.data.sources.receipt import Passed
from qkv.data.sources.source import files_below, source_name
from qkv.data.sources.tables import (
    TableFormat,
    check_single,
    columns_of,
    each_column,
    is_table,
    numbered_rows,
    other_texts,
    table_format,
)
from qkv.data.sources.tagged import answers_in, from_spans, is_conllu, is_tagged, read_tagged, words_of
from qkv.errors import SourceError, missing_file, nearest
from qkv.tokenizers.encoding import whole_characters
from qkv.words import listed, many

LABEL_NAMES = "label labels class category target sentiment gold intent topic tag y".split()
"""Column names that mean a label, likeliest first."""

_OTHER_NAMES = {
    "set": "labels tags genres topics categories".split(),
    "value": "score rating value stars".split(),
    "words": "entities spans labels ents".split(),
    "span": "answer answers".split(),
}
"""Of other shapes, before these."""

SHAPES = ("class", "set", "value", "words", "span")
"""What a row may have."""
_LABEL_IN_LIST = r"""(?:"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'|-?\d{1,300}(?:\.\d{1,300})?)"""
_LIST = re.compile(rf"\[\s*+(?:{_LABEL_IN_LIST}\s*+(?:,\s*+{_LABEL_IN_LIST}\s*+)*+,?\s*+)?\]", re.DOTALL)
"""A flat list of words and numbers, as JSON or Python writes it; one inside another is left as it is."""
_APART = "\x1f"
"""Between the labels of a set, or of words."""
_SEPARATORS = "|;,"
"""What may be between labels in a cell, whichever occurs first in this order."""

MOST_BYTES = 1 << 30
"""Of a labelled file; a larger one is refused."""

_NO_LABEL = ("", "nan", "<na>")
"""What programs write for a label that is missing."""
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
    """Of each text, as written, without surrounding space; of a set, of words and of answers see `labels_of`."""
    groups: list[str]
    """Of each text what stands in its group column; empty without such a column."""
    lines: list[int]
    """The line of its file that each ends on, from 1."""
    files: list[tuple[str, int]]
    """The files that were read, each with the number of its first text."""
    facts: list[FileFacts]
    """Of each of these."""
    columns: Mapping[str, str]
    """What each column is used for."""
    n_blank: int
    """Rows without text."""
    passed: list[Passed]
    """What of its folder is not read."""
    path: str
    """The file, or the folder of several, for messages."""
    note: str
    """Which columns were read and what was left out, or empty."""
    spans: list[Sequence[tuple[int, int]]]
    """First character and end of each word that has a label, text by text; empty ones for other shapes."""
    published: Published | None = None
    """The parts of its folder by their names, of which this is one."""
    shape: str = "class"

    @property
    def read(self) -> list[str]:
        """The texts, without questions about them."""
        return [text.partition(BETWEEN)[2] for text in self.texts] if self.shape == "span" else self.texts

    @property
    def names(self) -> list[list[str]]:
        """The labels of each row, of a question whether its answer is found once."""
        if self.shape == "span":
            return [["answer found once" if label[0] == "1" else "first of several places"] for label in self.labels]
        return [labels_of(label) if self.shape in ("set", "words") else [label] for label in self.labels]

    def place(self, i: int) -> str:
        """File and line of text i, for messages."""
        file = next(name for name, first in reversed(self.files) if first <= i)
        return f"{file!r} line {self.lines[i]}"


def labels_of(label: str) -> list[str]:
    """The labels of a set, or of each word; of a question see `_question_row`."""
    return label.split(_APART) if label else []


def read_labelled(config: DataConfig, *, measured: bool = False, shape: str = "class") -> LabelledTexts:
    """The texts and labels of `config.source`; of a folder those for training, or with `measured` for validation.

    Raises SourceError, in one sentence, for a source that is missing, no labelled text, or wrong in a line, and for a
    folder without a published split.
    """
    path = _path(config)
    passed: list[Passed] = []
    parts = _parts(path, config, passed, shape) if path.is_dir() else None
    paths = [path] if parts is None else list(parts.measured if measured else parts.train)
    facts = [examine(file, annotated=shape == "words") for file in paths]
    if (n_bytes := sum(each.n_bytes for each in facts)) > MOST_BYTES:
        raise SourceError(f"{str(path)!r} has {n_bytes:,} bytes; labelled texts may have {MOST_BYTES:,} at most")
    files, found, columns, n_empty = [], [], {}, 0
    kept: list[Row] = []
    for file in paths:
        rows, kind, note, roles = _rows_of(file, config, shape)
        found.append((kind, note))
        columns |= roles
        files.append((str(file), len(kept)))
        for row in rows:
            if row.text.replace(BETWEEN, "").strip():
                kept.append(row)
            else:
                n_empty += 1
    if not kept:
        raise SourceError(f"{str(path)!r} holds no labelled text")
    _check_alike(paths, found)
    (kind, note), labels = found[0], [row.label for row in kept]
    if shape == "set":
        labels, how = _sets(labels, config.classes)
        note += how
    names = [] if shape in ("value", "span") else [name for label in labels for name in label.split(_APART)]
    together = "\n".join(
        f"{file.relative_to(path)}\0{each.sha256}" for file, each in zip(paths, facts, strict=True) if parts
    )
    digest = hashlib.sha256(together.encode("utf-8", "surrogateescape")).hexdigest()
    return LabelledTexts(
        name=source_name(path if parts is None else path / "all"),
        kind=kind,
        sha256=facts[0].sha256 if parts is None else digest,
        texts=[row.text for row in kept],
        labels=labels,
        groups=[row.group for row in kept if config.group_column],
        lines=[row.line for row in kept],
        spans=[row.spans for row in kept],
        files=files,
        facts=facts,
        columns=columns,
        n_blank=n_empty,
        passed=passed,
        path=str(paths[0] if len(paths) == 1 else path),
        note="; ".join(
            filter(None, (note, f"{many(n_empty, 'row')} without text left out" * bool(n_empty), alike(names)))
        ),
        published=parts,
        shape=shape,
    )


class Row(NamedTuple):
    """What a row holds."""

    line: int
    text: str
    label: str
    group: str = ""
    """Empty where no column is named."""
    spans: Sequence[tuple[int, int]] = ()
    """Of each word that has a label."""


def _sets(labels: Sequence[str], known: Sequence[str]) -> tuple[list[str], str]:
    """Cells as sets of labels, and how they are read: lists as they are, others cut at one separator that is in no
    known label.
    """
    cells = [label for label in labels if _APART not in label]
    marks = [mark for mark in _SEPARATORS if not any(mark in label for label in known)]
    separator = next((mark for mark in marks if any(mark in cell for cell in cells)), "")
    found = []
    for label in labels:
        items = label.split(_APART) if _APART in label else label.split(separator) if separator else [label]
        found.append(_APART.join(sorted({item.strip() for item in items} - {""})))
    return found, f", cut at {separator!r}" if separator else ""


def _rows_of(path: Path, config: DataConfig, shape: str) -> tuple[Iterator[Row], str, str, dict[str, str]]:
    """The rows of a file, what kind of file it is, how it is read, and the role of each column.

    Raises SourceError where a column of texts would not be read that nobody chose between.
    """
    if shape == "words" and not is_table(path):
        _no_columns(path, config, "text", "group")
        column = config.label_column or "upos"
        note = f"labels from column {column!r}" if is_conllu(path) else "a word and its label on each line"
        return (
            Row(one.line, one.text, _together(one.labels), spans=one.spans)
            for one in read_tagged(path, config.label_column)
        ), "words", note, {}  # fmt: skip
    if shape == "span" and not is_table(path):
        raise SourceError(f"{str(path)!r} is no table; expected columns for question, text and answer, such as .jsonl")
    if is_table(path):
        if shape == "span" and not config.text_column:
            config = replace(config, text_column="question," + ("context" if "context" in columns_of(path) else "text"))
        if shape == "words" and plain_name(path).endswith((".csv", ".tsv", ".tab")):
            raise SourceError(
                f"{str(path)!r} is a table of cells; labels of words are read from .jsonl with spans, from .conllu, or"
                " from lines of a word and its label (.conll)"
            )
        layout, label = _columns(path, config, shape)
        if shape == "words" and layout.others:
            raise SourceError(
                f"{listed([repr(name) for name in layout.texts])}: spans are of one text; name one column"
            )
        others = [] if config.text_column else other_texts(path, layout, label)
        others = [name for name in others if name != config.group_column]
        if others:
            raise SourceError(
                f"{str(path)!r} has {len(others) + 1} columns of text: {listed([layout.text, *others])}; name the one"
                f" that is meant (--text-column {layout.text}), or two that are read together, with [SEP] between"
                f" (--text-column {layout.text},{others[0]})"
            )
        text = f"column {layout.text!r},"
        if layout.others:
            text = f"columns {listed([repr(name) for name in layout.texts])}, with [SEP] between them,"
        note = f"text from {text} labels from column {label!r}"
        roles = layout.roles(label)
        if config.group_column:
            check_single(str(path), layout.columns, config.group_column)
            _known_column(path, config.group_column, "group", roles)
            roles |= {config.group_column: "group"}
            note += f", groups from column {config.group_column!r}"
        return _table_rows(path, layout, label, config.group_column, shape), layout.kind, note, roles
    _no_columns(path, config, "label", "text", "group")
    return _line_rows(path, shape), "lines", "a label, a space and a text on each line", {}


def _together(labels: Iterable[str]) -> str:
    """Labels of words as one."""
    return _APART.join(label.replace(_APART, " ") for label in labels)


def alike(labels: Iterable[str]) -> str:
    """What a person should know of labels that differ in case or in how a number is written only; else empty."""
    groups: dict[str, list[str]] = defaultdict(list)
    for label in sorted(set(labels)):
        key = unicodedata.normalize("NFKC", label).casefold()
        groups[repr(float(key)) if _is_number(key) else key].append(label)
    found = [listed([repr(label) for label in group]) for group in groups.values() if len(group) > 1]
    return f"labels that are nearly the same are classes of their own: {'; '.join(found[:3])}" if found else ""


def _check_alike(paths: Sequence[Path], found: Sequence[tuple[str, str]]) -> None:
    """Raises SourceError where the files of one part are not read in the same way."""
    for path, (kind, note) in zip(paths, found, strict=True):
        if (kind, note) != found[0]:
            ways = f"{str(paths[0])!r} ({found[0][0]}: {found[0][1]}) and {str(path)!r} ({kind}: {note})"
            raise SourceError(f"{ways} are named for the same part and are read in different ways; name one of them")


def _parts(folder: Path, config: DataConfig, passed: list[Passed], shape: str) -> Published:
    """The parts of a folder of labelled texts: of its tables (of words: files named so) where these make a split, else
    of its lines.

    What is not read is put into `passed`.
    Raises SourceError for a folder without a published split.
    """
    found = {path: sniff(path) for path in files_below(folder, passed)}
    texts = [path for path, kind in found.items() if kind in ("text", "pointer")]
    passed += [
        Passed(path, "blank" if kind == "blank" else "not UTF-8 text")
        for path, kind in found.items()
        if path not in set(texts)
    ]
    tables = [path for path in texts if (is_tagged(path) if shape == "words" else is_table(path))]
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
    parts = parts.without(given_inside(folder, config.val, texts, parts))
    passed += parts.passed(read_validation=not config.val)
    return parts


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


def _columns(path: Path, config: DataConfig, shape: str) -> tuple[TableFormat, str]:
    """How the table is laid out, and its label column. Raises SourceError that lists the columns there are."""
    asked = config.label_column
    columns = columns_of(path, config.text_column, asked)
    texts = (config.text_column, *each_column(config.text_column))
    there = f"columns of {str(path)!r}: {', '.join(filter(None, columns)) or 'none'}"
    if asked and asked not in columns:
        raise _no_column(asked, columns, there)
    layout = table_format(path, config.text_column, asked)
    others = [name for name in columns if name not in texts]
    by_name = [
        name for wanted in (*_OTHER_NAMES.get(shape, ()), *LABEL_NAMES) for name in others if name.lower() == wanted
    ]
    if not (asked or by_name) and len(columns) == 2:
        by_name = [name for name in columns if name != layout.text]
    if not (asked or by_name):
        raise SourceError(f"which column holds the labels? Name it with --label-column, or call it label ({there})")
    label = asked or by_name[0]
    check_single(str(path), columns, label)
    if config.text_column and label in layout.texts:
        raise SourceError(f"--text-column and --label-column are both {label!r} ({there})")
    return (layout if layout.text != label else table_format(path, config.text_column, label)), label


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _no_columns(path: Path, config: DataConfig, *names: str) -> None:
    for name in names:
        option = f"--{name}-column"
        if getattr(config, f"{name}_column"):
            what = "a label, a space and a text are expected on each line" if "label" in names else "words have labels"
            raise SourceError(
                f"{str(path)!r} is no table and has no columns: {what};"
                f" leave {option} out, or give a .csv, .tsv or .jsonl table"
            )


def _no_column(name: str, columns: Iterable[str], there: str) -> SourceError:
    close = nearest(name, list(columns), 1)
    return SourceError(f"there is no column {name!r} ({there})" + (f"; did you mean {close[0]!r}?" if close else ""))


def _known_column(path: Path, name: str, what: str, roles: Mapping[str, str]) -> None:
    """Raises SourceError where a table has no such column, or reads it as something else."""
    there = f"columns of {str(path)!r}: {', '.join(roles) or 'none'}"
    if name not in roles:
        raise _no_column(name, roles, there)
    if roles[name] != "unused":
        raise SourceError(f"--{what}-column and --{roles[name]}-column are both {name!r} ({there})")


def _label(value: object, label: str, place: str, shape: str) -> str:
    """A cell as a label. Raises SourceError for one that is missing, or not of the shape."""
    if shape == "set" and isinstance(value, str) and _LIST.fullmatch(value.strip()):
        with suppress(ValueError, SyntaxError):
            value = ast.literal_eval(value.strip())
    if shape == "set" and isinstance(value, list):
        return whole_characters(_APART.join(["", *(str(item) for item in value)]))
    if shape == "set" and (value is None or value == ""):
        return ""
    if value is None or str(value).strip().lower() in _NO_LABEL:
        told = f"the label {str(value)!r}, which means none" if str(value or "").strip() else "no label"
        raise SourceError(f"{place} has {told} (column {label!r}); give every row one, or take it out")
    if not isinstance(value, str | int | float):
        hint = "; --task multilabel reads lists" if isinstance(value, list) else ""
        raise SourceError(f"{place}: label {label!r} is {type(value).__name__}; expected a word or a number{hint}")
    name = str(value).lower() if isinstance(value, bool) else str(value).strip()
    if shape == "value":
        _check_number(name, place)
    return whole_characters(name)


def _check_number(text: str, place: str) -> None:
    """Raises SourceError where a label is no finite number."""
    if not _is_number(text):
        raise SourceError(f"{place} has the label {text[:40]!r}; --task regress expects a number in every row")


def _table_rows(path: Path, layout: TableFormat, label: str, group: str, shape: str) -> Iterator[Row]:
    """Each row. Raises SourceError for a blank line between rows and for a missing label."""
    blank = 0
    for number, row in numbered_rows(path, layout):
        if not row:
            blank = blank or number
            continue
        _no_blank(path, blank)
        place = f"{str(path)!r} line {number}"
        texts = [row.get(name) for name in layout.texts if name]
        texts = ["" if text is None or text != text else text for text in texts]
        for text, name in zip(texts, layout.texts, strict=False):
            if not isinstance(text, str):
                raise SourceError(f"{place}: {name!r} is {type(text).__name__}; expected text")
        together = "" if not group or (given := row.get(group)) is None else whole_characters(str(given).strip())
        if shape == "span":
            yield _question_row(number, place, together, list(map(str, texts)), row.get(label))
            continue
        text, spans = whole_characters(BETWEEN.join(map(str, texts))), []
        if shape == "words":
            spans, labels = from_spans(text, row.get(label), place)
            written = _together(map(whole_characters, labels))
        else:
            written = _label(row.get(label), label, place, shape)
        yield Row(number, text, written, together or f"\0{number}", spans)


def _question_row(number: int, place: str, group: str, texts: list[str], value: object) -> Row:
    """A question and its text, with the answers in the place of a label: how many places the first one has (1 or 2),
    its first and last word, and all of them. Raises SourceError for another number of columns, and as `answers_in`.
    """
    if len(texts) != 2:
        raise SourceError(f"--text-column names {many(len(texts), 'column')}; expected the question and the text")
    question, text = whole_characters(texts[0].replace(BETWEEN, " ")).strip(), whole_characters(texts[1])
    if not question or not text.strip():
        return Row(number, "", "")
    (several, found), words = answers_in(text, value, place), question_words(question, text)
    start, end = (len(question + BETWEEN) + at for at in found[0])
    first = bisect_right(words, start, 1, key=lambda word: word[1])
    last = max(first, bisect_left(words, end, 1, key=lambda word: word[0]) - 1)
    label = _APART.join([str(1 + several), str(first), str(last), *(text[a:b] for a, b in found)])
    return Row(number, question + BETWEEN + text, label, group or f"\0{number}", words)


def question_words(question: str, text: str) -> list[tuple[int, int]]:
    """First character and end of a question with [SEP], and of each word of its text, where both are one text."""
    first = len(question + BETWEEN)
    return [(0, first), *((first + start, first + end) for start, end in words_of(text))]


def _line_rows(path: Path, shape: str) -> Iterator[Row]:
    """Each line. Raises SourceError for an empty line between lines, or one of one word."""
    blank = 0
    for number, line in enumerate(read_lines(path), start=1):
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
        if shape == "value":
            _check_number(words[0], f"{str(path)!r} line {number}")
        yield Row(number, words[1].rstrip(), words[0])


def _no_blank(path: Path, line: int) -> None:
    if line:
        raise SourceError(f"{str(path)!r} line {line} is empty, in the middle of the rows; take it out")


def check_classes(found: LabelledTexts) -> None:
    """Make sure that the labels of what is trained on are of their shape.

    Raises SourceError where hardly any class is shared, as in a column of numbers or in prose, where all are the same,
    or no row has several labels.
    """
    shape = found.shape
    if shape == "set":
        _check_sets(found)
    if shape in ("set", "span"):
        return
    labels, what = [name for names in found.names for name in names], "words" if shape == "words" else "rows"
    counts = Counter(map(float, labels)) if shape == "value" else Counter(labels)
    lonely = [str(label) for label, count in counts.items() if count == 1]
    if shape != "value" and len(lonely) > max(1, _LONELY * len(labels)):
        numbers = all(_is_number(label) for label in labels)
        raise SourceError(
            f"{len(lonely):,} of {len(labels):,} {what} of {found.path!r} have a label that no other {what[:-1]} has,"
            f" such as {lonely[0][:40]!r}; expected a few classes: in a table name their column with --label-column,"
            f" on lines begin each with its label and a space{'; for numbers give --task regress' * numbers}"
        )
    if len(counts) < 2:
        needed = (
            "expected numbers that differ" if shape == "value" else f"a classifier needs {what} of at least two classes"
        )
        raise SourceError(f"all {len(labels):,} {what} of {found.path!r} have the label {labels[0]!r}; {needed}")


def _check_sets(found: LabelledTexts) -> None:
    """Raises SourceError where sets of labels are single ones, as of classes, or hardly any label is shared."""
    sets = found.names
    counts = Counter(name for names in sets for name in names)
    lonely = [name for name, count in counts.items() if count == 1]
    if 2 * len(lonely) > len(sets):
        raise SourceError(
            f"{len(lonely):,} labels of {found.path!r} occur in one row only, such as {lonely[0][:40]!r}; expected a"
            " few labels that many rows share: name their column with --label-column"
        )
    if max(map(len, sets)) < 2 or len(counts) < 2:
        raise SourceError(
            f"no row of {found.path!r} has more than one label; write several with one of {' '.join(_SEPARATORS)}"
            " between them or as a JSON list, or give --task classify"
        )
