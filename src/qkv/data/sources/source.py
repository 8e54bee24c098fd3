"""Where text comes from: a text file, a folder of texts, a table, or the corpus inside the user's own Python.

A source is a stream of chunks, read again each time it is asked for and never held whole: a 5 GB file costs a block.
One text file is one long document that may be cut anywhere; in a folder each file, in a table each row, is a document.
What is wrong with a source is said when it is opened, in one sentence. Sources know nothing of tokens, splits or tasks.
"""

import contextlib
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, get_args

from qkv.data.config import DataConfig
from qkv.data.sources.default_corpus import default_documents
from qkv.data.sources.hub import HubTexts, hub_splits
from qkv.data.sources.published import Published, Role, given_inside, published, role_of
from qkv.data.sources.reading import FileFacts, examine, is_parquet, plain_name, read_text, sniff, unreadable
from qkv.data.sources.receipt import Passed
from qkv.data.sources.tables import RowCount, TableFormat, columns_of, is_table, read_rows, table_format
from qkv.errors import SourceError, missing_file
from qkv.signatures import signature_of_file
from qkv.tokenizers.tokens import n_utf8
from qkv.words import many, some

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".tex", ".html", ".xml", ".log")
"""A file in a folder that is named like text must be text; any other that is not is passed over."""


class Chunk(NamedTuple):
    """A piece of a document; the document ends with it or goes on in the next chunk."""

    text: str
    ends: bool
    file: int = 0
    """The number of its file among those of the source."""


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of a source, or what stands for one where there is none."""

    path: Path | str
    n_bytes: int
    """Of its text, decompressed, without a byte order mark; of a table all of it."""
    n_raw: int
    """With the mark."""
    layout: TableFormat | None = None
    """How it is read, where it is a table."""
    rows: RowCount = field(default_factory=RowCount)
    """What its rows held when they were last read to the end."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A text that can be read again and again.

    `read(start, stop)` gives the chunks of bytes start to stop of one long text; other sources are always read whole.
    """

    name: str
    """Short and safe in a file name."""
    kind: str
    """default, text, folder, jsonl, csv, tsv or hub."""
    sha256: str
    """Of the bytes as they lie on disk (a folder: of the names and hashes of its files)."""
    content: str = ""
    """Equal for sources that hold the same bytes, gzipped or not; empty where `sha256` is what tells."""
    n_bytes: int
    """Bytes of all its files, decompressed; a table's text alone is less."""
    text_file: Path | None = None
    """The file of one long text, which may be cut at any character; None where there are documents."""
    read: Callable[[int, int | None], Iterator[Chunk]]
    note: str = ""
    """What a person should know about how it was read, or empty."""
    published: Published | None = None
    """The parts of its folder by their names, where these make a split: then it is the part for training."""
    held_out: "Source | None" = None
    """The part of its folder that is for validation, by its name."""
    part: str = ""
    """Which part of a folder it is, where it was opened to be measured on and the folder has parts."""
    files: tuple[SourceFile, ...] = ()
    """What is read, in order."""
    passed: tuple[Passed, ...] = ()
    """What is not read, of a folder."""
    marks: Mapping[str, int] = field(default_factory=dict)
    """Marks of other programs for the end of a document, which are read as letters, and how often each occurs."""

    def chunks(self) -> Iterator[Chunk]:
        """The whole source as pieces of documents, in order."""
        return self.read(0, None)

    def documents(self) -> Iterator[str]:
        """The documents one by one, each whole (one text file is one document)."""
        return whole_documents(self.chunks())


def ended_at(source: Source, mark: str) -> Source:
    """The same text, each of its documents cut at a mark, which is dropped, as documents without text are."""

    def read(start: int, stop: int | None) -> Iterator[Chunk]:
        carry, begun = "", False
        for text, ends, file in source.chunks():
            *whole, carry = (carry + text).split(mark)
            for piece in whole:
                if begun or piece.strip():
                    yield Chunk(piece, True, file)
                begun = False
            keep = 0 if ends else len(mark) - 1
            piece, carry = carry[: len(carry) - keep], carry[len(carry) - keep :]
            if begun or piece.strip():
                yield Chunk(piece, ends, file)
                begun = not ends
            elif not ends:
                carry = piece + carry

    digest = hashlib.sha256(f"{source.sha256}\0{mark}".encode()).hexdigest()
    marks = {other: n for other, n in source.marks.items() if other != mark}
    held_out = ended_at(source.held_out, mark) if source.held_out else None
    return replace(source, sha256=digest, content="", text_file=None, read=read, marks=marks, held_out=held_out)


def whole_documents(chunks: Iterator[Chunk]) -> Iterator[str]:
    """Chunks put together into documents."""
    pieces: list[str] = []
    for chunk in chunks:
        pieces.append(chunk.text)
        if chunk.ends:
            yield "".join(pieces)
            pieces = []


def open_source(config: DataConfig, cache: Path | None = None) -> Source:
    """The source that the settings name; the embedded corpus where they name none.

    `cache` keeps the embedded corpus between runs; None gathers it anew (about a second). Of a folder with a published
    split it is the part for training, its `held_out` that for validation.

    Raises SourceError, in one sentence, for what is missing, empty, binary, not UTF-8, a folder without text, a table
    of one line, an unknown column, or columns named for something that is no table.
    """
    return _ended(_open(config, cache, measured=False), config)


def _ended(source: Source, config: DataConfig) -> Source:
    return ended_at(source, config.document_end) if config.document_end else source


def open_validation(config: DataConfig, cache: Path | None = None) -> Source:
    """The source that `config.val` names, to be measured on: of a folder with a published split that part alone.

    Raises SourceError likewise.
    """
    return _ended(_open(replace(config, source=config.val, val=""), cache, measured=True), config)


def _open(config: DataConfig, cache: Path | None, measured: bool) -> Source:
    if not config.source:
        _no_columns(config, "the embedded corpus")
        return _embedded(cache)
    if config.source.startswith("hf:"):
        return _hub(config, measured)
    path = Path(config.source)
    try:
        if path.is_dir():
            return _folder(path, config, measured)
        if not path.exists():
            left, _, right = config.source.partition(":")
            if right and Path(left).is_file() and Path(right).is_file():
                raise SourceError(f"{config.source!r} is a pair of files; give one of them, or use --task translate")
            raise missing_file(path)
    except OSError as error:
        raise unreadable(path, error) from None
    if not path.is_file():
        raise SourceError(
            f"{config.source!r} is a device or a pipe; save it as a file first, it is read more than once"
        )
    if not is_table(path):
        _no_columns(config, f"{config.source!r} is one text and")
    return _file(path, config)


def _no_columns(config: DataConfig, what: str) -> None:
    if config.text_column or config.label_column:
        option = "--text-column" if config.text_column else "--label-column"
        raise SourceError(f"{what} has no columns; leave {option} out, or give a .jsonl, .csv or .tsv table")


def columns_in(path: Path, *asked: str) -> tuple[str, ...]:
    """The names of a table's columns, or those of the tables in a folder; none of what is no table.

    A first row that holds one of the names `asked` for is the header. Raises SourceError for a single table of one row,
    or lines that do not parse.
    """
    if not path.is_dir():
        return columns_of(path, *asked)
    names: list[str] = []
    for file in files_below(path, []):
        with contextlib.suppress(SourceError):  # said where it is read
            names += columns_of(file, *asked)
    return tuple(dict.fromkeys(names))


def source_name(path: Path) -> str:
    """The stem, or the folder's name where the stem says nothing (input.txt, train.tsv)."""
    path = path.absolute()
    stem = path.name.split(".")[0] or path.name
    if stem.lower() in ("input", "train", "data", "text", "corpus", "all"):
        stem = path.parent.name or stem
    return _safe(stem) or "text"


def _safe(name: str) -> str:
    """A name as it may stand in a file's."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:40]


def as_documents(texts: Callable[[], Iterable[str]]) -> Callable[[int, int | None], Iterator[Chunk]]:
    """What reads a source of many texts, each a document."""
    return lambda start, stop: (Chunk(text, True) for text in texts())


def _unfiled(name: str, n_bytes: int) -> tuple[SourceFile, ...]:
    """What stands for the file of texts that come from none."""
    return (SourceFile(path=name, n_bytes=n_bytes, n_raw=n_bytes),)


def _embedded(cache: Path | None) -> Source:
    documents = default_documents(cache)
    digest = hashlib.sha256("\0".join(documents).encode()).hexdigest()
    return Source(
        name="python-docs",
        kind="default",
        sha256=digest,
        n_bytes=n_utf8(documents),
        read=as_documents(lambda: documents),
        files=_unfiled("the manual and docstrings of Python", n_utf8(documents)),
    )


def _hub(config: DataConfig, measured: bool) -> Source:
    """A data set of the hub: its split for training, or with `measured` that for validation or else for the test."""
    name = config.source.removeprefix("hf:")
    splits = hub_splits(name)
    rest = [split for split in splits if split != "train"]
    by_role = {role: tuple(Path(split) for split in rest if role_of(split) == role) for role in get_args(Role)}
    parts = Published(
        folder=Path(),
        train=(Path("train"),),
        validation=by_role["validation"][:1],
        test=by_role["test"],
        others=(*by_role["train"], *by_role["validation"][1:], *by_role[""]),
    )

    def source(split: Path) -> Source:
        texts = HubTexts(name, splits[str(split)], config.text_column, config.label_column)
        return Source(
            name=_safe(name),
            kind="hub",
            sha256=texts.sha256,
            n_bytes=texts.n_bytes,
            read=as_documents(lambda: texts),
            note=f"text from column {texts.column!r}",
            files=_unfiled(f"{config.source}, {split}", texts.n_bytes),
        )

    if measured and parts.measured:
        return replace(source(parts.measured[0]), part=parts.measured_name)
    if not parts.measured:
        train = source(Path("train"))
        unread = some([str(split) for split in parts.others])
        return replace(train, note=f"{train.note}; splits left out: {unread}") if unread else train
    held_out = source(parts.validation[0]) if parts.validation and not config.val else None
    return replace(source(parts.train[0]), published=parts, held_out=held_out)


def text_chunks(path: Path, start: int = 0, stop: int | None = None, file: int = 0) -> Iterator[Chunk]:
    """One file as one document; `file` is its number."""
    before = None
    for text in read_text(path, start, stop):
        if before is not None:
            yield Chunk(before, False, file)
        before = text
    yield Chunk(before or "", True, file)


def source_file(path: Path, facts: FileFacts, layout: TableFormat | None = None) -> SourceFile:
    """A file that was read, and how where it is a table."""
    return SourceFile(path=path, n_bytes=facts.n_bytes, n_raw=facts.n_raw, layout=layout)


def _layout(path: Path, config: DataConfig) -> TableFormat:
    layout = table_format(path, config.text_column, config.label_column)
    if layout.others:
        many = "two" if len(layout.others) == 1 else len(layout.texts)
        raise SourceError(f"--text-column {config.text_column} names {many} columns, which only --task classify reads")
    return layout


def _file(path: Path, config: DataConfig) -> Source:
    """One text, or a table."""
    facts = examine(path)
    layout = _layout(path, config) if is_table(path) else None
    file = source_file(path, facts, layout)
    return Source(
        name=source_name(path),
        kind=layout.kind if layout else "text",
        sha256=facts.sha256,
        content=facts.content,
        n_bytes=facts.n_bytes,
        text_file=None if layout else path,
        read=lambda start, stop: _chunks([file]) if layout else text_chunks(path, start, stop),
        note=f"text from column {layout.text!r}" if layout and layout.text else "",
        files=(file,),
        marks=facts.marks,
    )


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What lies below a folder, by a first look at each file."""

    texts: list[Path]
    """Files that begin as text, or are named like text, in order of their paths."""
    skipped: list[Path]
    """Files that are no text."""
    passed: list[Passed]
    """What is passed over by its name, or as what was made of texts."""

    @property
    def n_made(self) -> int:
        """Folders of what was made of texts."""
        return sum(one.why == MADE for one in self.passed)


def _look(folder: Path) -> _Found:
    found = _Found(texts=[], skipped=[], passed=[])
    for path in files_below(folder, found.passed):
        kind = sniff(path)
        passed = kind == "blank" or (kind == "other" and not _named_text(path))
        (found.skipped if passed else found.texts).append(path)
    return found


def _named_text(path: Path) -> bool:
    return plain_name(path).endswith(TEXT_SUFFIXES)


def _folder(folder: Path, config: DataConfig, measured: bool) -> Source:
    """Every text file below the folder as a document, in order of its path; tables below it give their rows.

    Where names of files or folders make a published split, these are the files for training alone, and `held_out` is
    its validation part, or with `measured` what is measured on. A file that is named like a table and is none that can
    be read, such as a .json of settings or a .csv of numbers, is passed over, and so are whole folders of what was made
    of texts: runs, studies, exported models.
    """
    found = _look(folder)
    parts = published(folder, found.texts)
    if parts is not None and measured:
        source = _files(folder, parts.measured, found, config)
        return replace(source, part=parts.measured_name)
    given = given_inside(folder, config.val, found.texts, parts)
    if parts is None:
        source = _files(folder, [path for path in found.texts if path not in given], found, config)
        return replace(source, passed=(*source.passed, *_not_read(found)))
    parts = parts.without(given)
    source = _files(folder, parts.train, found, config)
    held_out = _files(folder, parts.validation, found, config) if parts.validation and not config.val else None
    passed = (*source.passed, *parts.passed(read_validation=not config.val), *_not_read(found))
    return replace(source, published=parts, held_out=held_out, passed=passed)


def _not_read(found: _Found) -> list[Passed]:
    """What of a folder is not read, and why."""
    kinds = {path: signature_of_file(path) for path in found.skipped}
    no_text = (
        Passed(path, f"not UTF-8 text: {kind.what}" if kind else "not UTF-8 text") for path, kind in kinds.items()
    )
    return [*found.passed, *(Passed(one.path, "blank") if sniff(one.path) == "blank" else one for one in no_text)]


def _files(folder: Path, paths: Sequence[Path], found: _Found, config: DataConfig) -> Source:
    """Some files of a folder as one source."""
    texts: list[SourceFile] = []
    skipped, digest, content, marks = len(found.skipped), hashlib.sha256(), hashlib.sha256(), Counter[str]()
    refused: list[SourceError] = []
    no_text: list[tuple[Path, SourceError]] = []
    passed: list[Passed] = []
    for path in paths:
        try:
            facts = examine(path)
        except SourceError as error:
            if _named_text(path) or is_parquet(path) or (is_table(path) and sniff(path) == "pointer"):
                no_text.append((path, error))
            else:
                skipped += 1  # its beginning alone is text
                passed.append(Passed(path, _reason(error, path)))
            continue
        layout = None
        if is_table(path):
            try:
                layout = _layout(path, config)
            except SourceError as error:
                refused.append(error)
                passed.append(Passed(path, f"a table that is not read: {_reason(error, path)}"))
                continue
        texts.append(source_file(path, facts, layout))
        marks.update(facts.marks)
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name}\0{facts.sha256}\n".encode("utf-8", "surrogateescape"))
        content.update(f"{name.removesuffix('.gz')}\0{facts.content}\n".encode("utf-8", "surrogateescape"))
    layouts = any(file.layout for file in texts)
    if no_text:
        raise _no_texts(no_text)
    if refused and not layouts and (not texts or config.text_column or config.label_column):
        raise refused[0]
    if not texts:
        raise SourceError(f"no text in folder {str(folder)!r}: {_nothing(skipped, found)}")
    if not layouts:
        _no_columns(config, f"{str(folder)!r} holds plain texts and")

    only = Path(texts[0].path) if len(texts) == 1 and not layouts else None
    return Source(
        name=source_name(folder / "all"),
        kind="folder",
        sha256=digest.hexdigest(),
        content=content.hexdigest(),
        n_bytes=sum(file.n_bytes for file in texts),
        text_file=only,
        read=lambda start, stop: text_chunks(only, start, stop) if only else _chunks(texts),
        note=_note(len(texts) if len(paths) == len(found.texts) else 0, skipped, len(refused), found.n_made),
        files=tuple(texts),
        passed=tuple(passed),
        marks=marks,
    )


def _chunks(files: Sequence[SourceFile]) -> Iterator[Chunk]:
    """Each text as a document, and each row of a table."""
    for number, file in enumerate(files):
        path = Path(file.path)
        if file.layout is None:
            yield from text_chunks(path, file=number)
        else:
            yield from (Chunk(text, True, number) for text in read_rows(path, file.layout, file.rows))


def _reason(error: SourceError, path: Path) -> str:
    """What is wrong with a file, without its name and what to type."""
    return str(error).removeprefix(repr(str(path))).strip().partition(";")[0]


def _note(n_read: int, skipped: int, refused: int, made: int) -> str:
    """How many files of a folder were read (0: that is said elsewhere), and how many things passed over."""
    passed = [f"{skipped} that are not text"] if skipped else []
    passed += [f"{many(refused, 'table')} without text that can be read"] if refused else []
    passed += [f"{many(made, 'folder')} of runs, studies or exported models"] if made else []
    read = [f"{many(n_read, 'file')} read"] if n_read else []
    return ", ".join((*read, f"{', '.join(passed)} passed over") if passed else read)


def _nothing(skipped: int, found: _Found) -> str:
    """Why a folder holds no text, and what its files are where that is known."""
    if found.texts and not skipped:
        return "all that it holds for training is given for validation"
    if found.n_made and not skipped:
        why = "it holds runs, studies or exported models only"
    else:
        why = f"none of its {skipped} files is UTF-8 text" if skipped else "it holds no file"
    known = next(((path, kind) for path in found.skipped if (kind := signature_of_file(path))), None)
    what = f"; {str(known[0])!r} is {known[1].told(known[0])}" if known else ""
    return why + (what or "; expected files of plain text, or tables")


def _no_texts(found: list[tuple[Path, SourceError]]) -> SourceError:
    """The error for files that are named like text and are none: the first in full, the next few by name."""
    first, others = found[0][1], [repr(str(path)) for path, _ in found[1:]]
    if not others:
        return first
    names = some(others, 3)
    return SourceError(f"{len(found)} files are named like text and are none, here also {names}; the first: {first}")


MADE = "a run, a study or an exported model"
"""Why a folder of what was made of texts is passed over."""


def files_below(folder: Path, passed: list[Passed]) -> Iterator[Path]:
    """Regular files below the folder, sorted; hidden names are passed over and links to folders are not followed.

    Nor are folders below it that hold what was made of texts; all these are put into `passed`. Raises SourceError where
    the folder itself is one.
    """
    try:
        for where, folders, files in os.walk(folder, onerror=_cannot_list):
            if _is_made({*folders, *files}):
                if where == str(folder):
                    what = "is a run, a study or an exported model, and no text; name the text that is meant"
                    raise SourceError(f"{str(folder)!r} {what}")
                passed.append(Passed(Path(where), MADE))
                folders.clear()
                continue
            links = {name for name in folders if name[0] != "." and os.path.islink(os.path.join(where, name))}
            passed += [Passed(Path(where, name), "a link to a folder, which is not followed") for name in sorted(links)]
            passed += [Passed(Path(where, name), "hidden") for name in sorted({*folders, *files}) if name[0] == "."]
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in links)
            for name in sorted(name for name in files if not name.startswith(".")):
                path = Path(where) / name
                if path.is_file():
                    yield path
                else:
                    passed.append(Passed(path, "no regular file"))
    except PermissionError as error:
        raise SourceError(f"folder {str(folder)!r} cannot be read: {error.strerror}") from None


def _is_made(names: set[str]) -> bool:
    """Whether these are what a run, a study or an exported model consists of."""
    weights = any(name.endswith(".safetensors") for name in names)
    run = "config.toml" in names and ("checkpoints" in names or (weights and "manifest.json" in names))
    study = "runs.jsonl" in names and any(name.startswith("design-") for name in names)
    return run or study or (weights and "config.json" in names)


def _cannot_list(error: OSError) -> None:
    raise error
