"""Tables of texts: JSON lines, CSV, TSV and Parquet, one document a row; which column is the text is found or given.

Formats: JSONL holds one object (or one string) a line; CSV is RFC 4180 with quotes; TSV has no quotes, as the GLUE
files have none, unless its rows are whole only if quotes are read; Parquet needs pyarrow. A first row without numbers,
repeats or long cells counts as the header (its first cell may be empty, as pandas writes it, and empty ones at its end
name nothing: a row that has something there is refused); without a header the columns are called 1, 2, 3, and to ask
for one of these says that there is none. Rows without text are left out.
"""

import csv
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from qkv.data.sources.reading import is_parquet, parquet_rows, plain_name, read_lines
from qkv.data.sources.tagged import COLUMNS, is_conllu
from qkv.errors import SourceError, typed, unknown
from qkv.tokenizers.encoding import whole_characters
from qkv.tokenizers.tokens import n_utf8

TEXT_NAMES = (
    "text sentence content body document article story review comment message utterance passage paragraph abstract "
    "question title caption description txt line"
).split()
"""Column names that mean text, likeliest first."""

SURVEYED_ROWS = 200
"""Rows looked at to find the header and the text column."""

_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv", ".tab": "tsv"}
_SUFFIXES |= {".parquet": "parquet"}
_NAMED = ("jsonl", "parquet")
"""Kinds of table in which every row names its columns."""


@dataclass(frozen=True, kw_only=True)
class TableFormat:
    """How to read one table: found by `table_format`, used by `read_rows`."""

    kind: str
    """jsonl, csv or tsv."""
    columns: tuple[str, ...]
    """Names of all columns; empty where each JSON line is a plain string."""
    text: str
    """The column that holds the text; empty where each JSON line is a plain string."""
    others: tuple[str, ...] = ()
    """The columns of the other texts of a row, where it has several."""
    header: bool
    """Whether the first row names the columns (never so in JSONL)."""
    quoted: bool = False
    """Whether cells of a TSV table may be in quotes, as they always may in CSV."""

    def roles(self, label: str = "") -> dict[str, str]:
        """What each column is used for: text, label or unused."""
        known = dict.fromkeys(self.columns, "unused") | {label: "label"} | dict.fromkeys(self.texts, "text")
        return {name: role for name, role in known.items() if name}

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns that hold text, in the order in which they are read."""
        return (self.text, *self.others)


@dataclass
class RowCount:
    """What the rows of a table held."""

    read: int = 0
    blank: int = 0
    """Rows without text."""
    n_bytes: int = 0
    """UTF-8 bytes of the texts that were read."""


def is_table(path: Path) -> bool:
    """Whether its name ends so: .jsonl, .ndjson, .json, .csv, .tsv or .tab, each also .gz and .zst, or .parquet."""
    return _kind(path) != ""


def _kind(path: Path) -> str:
    name = plain_name(path)
    return next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), "")


def table_format(path: Path, text_column: str = "", label_column: str = "") -> TableFormat:
    """Find out how the table is laid out from its first rows.

    Raises SourceError for a table of one row, an unknown column (with the nearest), a table without any text column,
    lines that do not parse, or a row with more cells than there are columns.
    """
    kind = _kind(path)
    if kind in _NAMED:
        return _named_format(path, text_column, label_column)
    found, rows = _survey(path, kind, (text_column, label_column))
    table = [dict(zip(found.columns, row, strict=False)) for row in rows]
    text, *others = _texts_of(path, found.columns, table, text_column, label_column)
    return replace(found, text=text, others=tuple(others))


def _texts_of(path: Path, columns: tuple[str, ...], rows: list[dict], asked: str, label: str) -> list[str]:
    """The columns of texts: those that are asked for, or the likeliest one. Raises SourceError as `choose_text`."""
    return [choose_text(str(path), columns, rows, name, label) for name in each_column(asked, columns)]


def each_column(asked: str, columns: Sequence[str] = ()) -> list[str]:
    """The columns of texts that are asked for, with commas between unless a column is called so.

    Raises SourceError for one that is asked for twice or has no name.
    """
    names = [asked] if asked in columns else [name.strip() for name in asked.split(",")]
    if len(names) > 1 and ("" in names or len(set(names)) < len(names)):
        raise SourceError(f"--text-column {asked}: expected columns that differ, with one comma between two of them")
    return names


def other_texts(path: Path, layout: TableFormat, label: str) -> list[str]:
    """Columns that hold texts as well, by the first rows: mostly different, of three words or more in the mean."""
    if not layout.text:
        return []
    rows = [row for _, row in islice(numbered_rows(path, layout), SURVEYED_ROWS) if row]
    found = []
    for name in layout.columns:
        texts = [value for row in rows if isinstance(value := row.get(name), str) and value.strip()]
        is_read = name in ("", label, *layout.texts)
        if not is_read and 2 * len(set(texts)) > len(rows) and sum(len(t.split()) for t in texts) >= 3 * len(texts):
            found.append(name)
    return found


def columns_of(path: Path, *asked: str) -> tuple[str, ...]:
    """The names of a table's columns, or CoNLL-U's; none of another file, or one whose rows have no names.

    A first row that holds one of the names `asked` for is the header.

    Raises SourceError for a table of one row, or lines that do not parse.
    """
    if is_conllu(path) and path.is_file():
        return tuple(COLUMNS)
    if not (is_table(path) and path.is_file()):
        return ()
    return _named_survey(path)[0] if _kind(path) in _NAMED else _survey(path, _kind(path), asked)[0].columns


def count_rows(path: Path) -> int:
    """Rows of a table below its header, or lines of another file, blank ones not counted; 0 of what cannot be read."""
    try:
        if not is_table(path):
            return sum(bool(line.strip()) for line in read_lines(path))
        layout = TableFormat(kind=_kind(path), columns=(), text="", header=False)
        if layout.kind not in _NAMED:
            layout = _survey(path, layout.kind, ())[0]
        return sum(bool(row) for _, row in numbered_rows(path, layout))
    except SourceError:
        return 0


def _survey(path: Path, kind: str, asked: tuple[str, ...]) -> tuple[TableFormat, list[list[str]]]:
    """(how a CSV or TSV table is laid out, its text still open, and its first rows below the header)."""
    asked = (*(name for one in asked for name in one.split(",") if name), *asked) if any(asked) else asked
    quoted = kind == "tsv" and _needs_quotes(path)
    if not quoted:
        _check_separator(path, kind, asked)
    numbered = list(islice((found for found in _numbered_cells(path, kind, quoted) if found[1]), SURVEYED_ROWS))
    rows = [row for _, row in numbered]
    if len(rows) < 2:
        raise SourceError(f"{str(path)!r} has one line; a table needs a header and at least two rows of text")
    header = _is_header(rows, asked)
    if header and len(rows) < 3:
        raise SourceError(f"{str(path)!r} has a header and one row; a table needs at least two rows of text")
    columns = tuple(_named(rows[0])) if header else tuple(str(i + 1) for i in range(len(rows[0])))
    found = TableFormat(kind=kind, columns=columns, text="", header=header, quoted=quoted)
    for number, row in numbered:
        _check_width(path, number, row, found)
    return found, rows[header:]


def _needs_quotes(path: Path) -> bool:
    """Whether the first rows of a TSV table have equally many cells if quotes are read, and would not have otherwise.

    So it is where a text in quotes has a line end in it, or a tab. Where all rows are whole either way, quotes are read
    if every cell that begins with one is a quoted cell, and one of these has quotes in it, written twice.
    """
    lines = list(islice(read_lines(path), SURVEYED_ROWS + 1))
    if not any('\t"' in line or line.startswith('"') for line in lines):
        return False
    plain = {line.count("\t") for line in lines if line.strip("\r\n")}
    quoted = {len(row) for row in _cells(lines, "\t", quotes=True)}
    if len(plain) > 1 or quoted == {1}:
        return len(quoted) == 1 and quoted != {1}
    cells = [cell for line in lines for cell in line.rstrip("\r\n").split("\t") if cell.startswith('"')]
    return all(map(_QUOTED.fullmatch, cells)) and any('""' in cell[1:-1] for cell in cells)


_QUOTED = re.compile(r'"(?:[^"]|"")*"')


_SEPARATORS = {
    ",": ("commas", "give it a name that ends in .csv, or save it with tabs"),
    "\t": ("tabs", "give it a name that ends in .tsv, or save it with commas"),
    ";": ("semicolons", "save it so, or with tabs and a name that ends in .tsv"),
    "|": ("bars", "save it so, or with tabs and a name that ends in .tsv"),
}
"""What may lie between columns -> how it is called, and what to do about it in a table of another kind."""


def _check_separator(path: Path, kind: str, asked: tuple[str, ...]) -> None:
    """Raises SourceError where the columns of a CSV or TSV table are cut by something that does not fit its name.

    So it is where the first line is one cell by its name, and by another separator every row has a cell for each of the
    names in it. Prose has a space behind a comma or semicolon, so such names are none; tabs need no names.
    """
    own = "," if kind == "csv" else "\t"
    lines = list(islice(read_lines(path), SURVEYED_ROWS + 1))
    widths = [len(row) for row in _cells(lines, own)]
    if len(widths) < 2 or widths[0] > 1 and (own == "\t" or min(widths) == max(widths)):
        return
    for separator, (called, how) in _SEPARATORS.items():
        if separator == own:
            continue
        rows = _cells(lines, separator)
        names = rows[0] if rows else []
        if len(names) < 2 or min(map(len, rows)) < len(names):
            continue
        fits = separator == "\t" and len(names) == max(map(len, rows))
        named = widths[0] == 1 and all(name == name.strip() for name in names) and _is_header(rows, asked)
        if fits or named:
            expected = "commas" if own == "," else "tabs"
            columns = f" ({', '.join(names)})" if named else ""
            raise SourceError(f"{str(path)!r} has {called} between its columns{columns}; expected {expected}: {how}")


def _cells(lines: list[str], separator: str, quotes: bool = False) -> list[list[str]]:
    """The rows of some first lines, where this separates their cells; a row that goes on behind them is left out.

    There are none where they are no table by it.
    """
    more = len(lines) > SURVEYED_ROWS
    try:
        rows = list(_csv_reader(lines, separator, quotes=quotes or separator != "\t"))
    except csv.Error:  # what is wrong with a table is said where it is read
        return []
    return [row for row in (rows[:-1] if more else rows) if row]


def _named_survey(path: Path) -> tuple[tuple[str, ...], list[object]]:
    """(columns, first values) of JSON lines or a Parquet table."""
    rows = [value for _, value in islice(_values(path), SURVEYED_ROWS)]
    if len(rows) < 2:
        what = "row" if is_parquet(path) else "line"
        raise SourceError(
            f"{str(path)!r} has {'one' if rows else 'no'} {what}; a table needs at least two rows of text"
        )
    return tuple(dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row)), rows


def _named_format(path: Path, text_column: str, label_column: str) -> TableFormat:
    columns, rows = _named_survey(path)
    if all(isinstance(row, str) for row in rows):
        if text_column:
            raise SourceError(f"{str(path)!r} holds plain strings, no columns; leave --text-column out")
        return TableFormat(kind="jsonl", columns=(), text="", header=False)
    table = [row for row in rows if isinstance(row, dict)]
    text, *others = _texts_of(path, columns, table, text_column, label_column)
    return TableFormat(kind=_kind(path), columns=columns, text=text, header=False, others=tuple(others))


def _is_conversation(value: object) -> bool:
    """Whether a value is a list of turns, as chat models are trained on."""
    return isinstance(value, list) and any(isinstance(turn, dict) and "content" in turn for turn in value)


def choose_text(where: str, columns: tuple[str, ...], rows: list[dict], asked: str, label: str) -> str:
    """The column asked for, else the likeliest by name, else the one with the longest texts (label never).

    Raises SourceError for a column that is not there or is there twice, or where no column holds text.
    """
    for given, option in ((asked, "--text-column"), (label, "--label-column")):
        if given and given not in columns:
            raise SourceError(f"{unknown('column', given, columns)} ({option}, in {where!r})")
    if asked:
        check_single(where, columns, asked)
        return asked
    lengths = {name: 0 for name in columns if name and name != label}
    for row in rows:
        for name in lengths:
            value = row.get(name)
            if isinstance(value, str) and not _is_number(value):
                lengths[name] += len(value)
    filled = [name for name in lengths if lengths[name]]
    told = [name for name in lengths if any(_is_conversation(row.get(name)) for row in rows)]
    if told and not filled:
        column = told[0] if told[0].isidentifier() else json.dumps(told[0])
        program = shlex.quote(f'.{column}[] | .role + ": " + .content')
        how = f": jq -r {program} {typed(where)} > turns.txt" if where.lower().endswith(("jsonl", "json")) else ""
        raise SourceError(f"{where!r} holds conversations ({told[0]}), not texts; write their turns as text{how}")
    if not filled:
        raise SourceError(
            f"{where!r} has no column of text (columns: {', '.join(filter(None, columns))}); name one: --text-column"
        )
    by_name = [name for wanted in TEXT_NAMES for name in filled if name.lower() == wanted]
    found = by_name[0] if by_name else max(filled, key=lambda name: lengths[name])
    for name in (found, label):
        check_single(where, columns, name)
    return found


def check_single(where: str, columns: tuple[str, ...], name: str) -> None:
    """Raises SourceError where several columns have that name."""
    if columns.count(name) > 1:
        raise SourceError(f"{where!r} has {columns.count(name)} columns called {name!r}; give them names that differ")


def _is_header(rows: list[list[str]], asked: tuple[str, ...]) -> bool:
    """Whether the first row names the columns; `asked` for are that of the text and that of the label, or nothing.

    A header names what was asked for, or has short distinct cells that are no numbers and do not occur below it; a
    cell that is a common name is enough, if it does not occur below. Columns asked for by number have no names, unless
    the cell above the text is a common one.

    Its first cell may be empty, above names of rows that are not, and those at its end, above cells that are empty too.
    """
    first = _named(rows[0])
    if any(name in first for name in asked if name and not name.isdigit()):
        return True
    common = [i for i, cell in enumerate(first) if cell.lower() in TEXT_NAMES or cell.lower() in ("label", "id")]
    common = [i for i in common if all(row[i : i + 1] != [first[i]] for row in rows[1:])]
    if any(name.isdecimal() and name not in first for name in asked):  # no header names such a column
        text = asked[0]
        return int(text) - 1 in common if text.isdecimal() else bool(common)
    if common:
        return True
    unnamed = len(rows[0]) - len(first)
    if unnamed and (not first or any(cell.strip() for row in rows[1:] for cell in row[len(first) :])):
        return False
    named = first if first[0] else first[1:]
    if len(set(first)) < len(first) or any(not cell or len(cell) > 40 or _is_number(cell) for cell in named):
        return False
    return len(first) > 1 and not any(
        cell == row[i] for row in rows[1:] for i, cell in enumerate(first) if i < len(row)
    )


def _named(header: list[str]) -> list[str]:
    """The cells of a header up to the last that is not empty."""
    return header[: max((i + 1 for i, cell in enumerate(header) if cell.strip()), default=0)]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def read_rows(path: Path, layout: TableFormat, count: RowCount | None = None) -> Iterator[str]:
    """The text of each row in order; rows without text are left out. `count` is what they held, once all are read.

    Raises SourceError with the line number where a line does not parse or its text is not text.
    """
    n = blank = n_bytes = 0
    for text in _named_texts(path, layout) if layout.kind in _NAMED else _texts(path, layout):
        if not text or text.isspace():
            blank += 1
            continue
        n += 1
        n_bytes += len(text) if text.isascii() else n_utf8((text,))
        yield text
    if count is not None:
        count.read, count.blank, count.n_bytes = n, blank, n_bytes


def _named_texts(path: Path, layout: TableFormat) -> Iterator[str]:
    """The text of each row that names its columns; empty where there is none."""
    column = layout.text
    for number, value in _values(path):
        if column:
            if not isinstance(value, dict):
                raise SourceError(f"{str(path)!r} line {number} is not a JSON object like the lines before it")
            value = value.get(column)
        if isinstance(value, str):
            yield whole_characters(value)
        elif value is None or value != value:  # null or NaN
            yield ""
        else:
            kind = type(value).__name__
            raise SourceError(f"{str(path)!r} line {number}: {column!r} is {kind}; expected text")


def _texts(path: Path, layout: TableFormat) -> Iterator[str]:
    """The text of each row of cells that has any; empty where there is none."""
    at = layout.columns.index(layout.text)
    return (row[at] if at < len(row) else "" for _, row in _rows(path, layout) if row)


def numbered_rows(path: Path, layout: TableFormat) -> Iterator[tuple[int, dict[str, object]]]:
    """(line number from 1, column -> value) of every row below the header; a blank line gives an empty row.

    Raises SourceError with the line number where a line does not parse.
    """
    if layout.kind in _NAMED:
        for number, value in _values(path, blank=True):
            if value is not None and not isinstance(value, dict):
                raise SourceError(f"{str(path)!r} line {number} is not a JSON object with columns")
            yield number, value or {}
        return
    for number, row in _rows(path, layout):
        yield number, dict(zip(layout.columns, row, strict=False))


def _rows(path: Path, layout: TableFormat) -> Iterator[tuple[int, list[str]]]:
    """(line number from 1, cells) of every row below the header; a blank line has none."""
    header = layout.header
    for number, row in _numbered_cells(path, layout.kind, layout.quoted):
        if row and header:
            header = False
            continue
        _check_width(path, number, row, layout)
        yield number, row


def _check_width(path: Path, number: int, row: list[str], layout: TableFormat) -> None:
    """Raises SourceError for a row with more filled cells than there are columns: a comma in a text that is not quoted
    would cut the text there, or put a piece of it in the place of its label.
    """
    most = len(layout.columns)
    if layout.kind == "tsv" and not layout.quoted and 0 < len(row) < most and row[-1].startswith('"'):
        if row[-1].count('"') % 2:
            raise SourceError(
                f"{str(path)!r} line {number} begins a cell in quotes that goes on in the next line, which this table"
                f" does not do in its first {SURVEYED_ROWS} rows; write a space for the line end, or save it as .csv"
            )
    if len(row) > most and any(cell.strip() for cell in row[most:]):
        first = "the header names" if layout.header else "the first row"
        hint = "quote the text" if layout.kind == "csv" else "take the tabs out of the text"
        raise SourceError(f"{str(path)!r} line {number} has {len(row)} cells, {first} {most}: {hint}")


def _values(path: Path, blank: bool = False) -> Iterator[tuple[int, object]]:
    """(number from 1, value) of each row of a table whose rows name their columns; `blank` as for `_json_lines`."""
    return enumerate(parquet_rows(path), start=1) if is_parquet(path) else _json_lines(path, blank)


def _json_lines(path: Path, blank: bool = False) -> Iterator[tuple[int, object]]:
    """(line number from 1, value) of each line that is not blank; with `blank` those too, as None."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            if blank:
                yield number, None
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = "too deep" if isinstance(error, RecursionError) else "a number of too many digits"
            if isinstance(error, json.JSONDecodeError):
                reason = f"{error.msg} at column {error.colno}"
            hint = "; a JSON array must become one object a line" if number == 1 and line.lstrip()[:1] == "[" else ""
            raise SourceError(f"{str(path)!r} line {number} is not JSON: {reason}{hint}") from None
        if number == 1 and isinstance(value, list):
            raise SourceError(f"{str(path)!r} is a JSON array; write one object a line (JSONL)")
        yield number, value


def _csv_reader(lines: Iterable[str], separator: str, *, quotes: bool, strict: bool = False):
    """The module's reader of some lines, with room for cells of more than its own limit of 128 KiB."""
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))
    quoting = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=separator, quoting=quoting, strict=strict)


def _numbered_cells(path: Path, kind: str, quoted: bool = False) -> Iterator[tuple[int, list[str]]]:
    """(number of its last line from 1, cells) of each row; a blank line has none."""
    if kind == "tsv" and not quoted:
        for number, line in enumerate(read_lines(path), start=1):
            line = line.rstrip("\r\n")
            yield number, line.split("\t") if line else []
        return
    separator = "\t" if kind == "tsv" else ","
    reader, last = _csv_reader(read_lines(path), separator, quotes=True, strict=True), 0
    try:
        for row in reader:
            last = reader.line_num
            yield last, row
    except csv.Error as error:
        if "unexpected end" in str(error):
            raise SourceError(
                f"{str(path)!r} line {last + 1} begins a row with a quotation mark that is never closed; close it, or"
                ' write two ("") for one that is meant'
            ) from None
        if "new-line character" in str(error):
            raise SourceError(
                f"{str(path)!r} line {reader.line_num} has a carriage return without a line feed outside quotes; save"
                " the table with line feeds"
            ) from None
        raise SourceError(f"{str(path)!r} line {reader.line_num} is not CSV: {error}") from None
