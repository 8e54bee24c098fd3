"""Where text comes from: a text file, a folder of texts, a table, or the corpus inside the user's own Python.

A source is a stream of chunks, read again each time it is asked for and never held whole: a 5 GB file costs a block.
One text file is one long document that may be cut anywhere; in a folder each file, in a table each row, is a document.
What is wrong with a source is said when it is opened, in one sentence. Sources know nothing of tokens, splits or tasks.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from qkv.data.config import DataConfig
from qkv.data.sources.default_corpus import default_documents
from qkv.data.sources.hub import HubTexts
from qkv.data.sources.published import Published, given_inside, published
from qkv.data.sources.reading import examine, read_text, sniff
from qkv.data.sources.tables import columns_of, is_table, read_rows, table_format
from qkv.errors import SourceError, missing_file
from qkv.signatures import signature_of_file
from qkv.words import many, some

__all__ = [
    "Chunk",
    "Source",
    "columns_in",
    "files_below",
    "open_source",
    "open_validation",
    "source_name",
    "text_chunks",
    "whole_documents",
]

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".tex", ".html", ".xml", ".log")
"""A file in a folder that is named like text must be text; any other that is not is passed over."""


class Chunk(NamedTuple):
    """A piece of a document; the document ends with it or goes on in the next chunk."""

    text: str
    ends: bool


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
    """Gives its chunks."""
    note: str = ""
    """What a person should know about how it was read, or empty."""
    published: Published | None = None
    """The parts of its folder by their names, where these make a split: then it is the part for training."""
    held_out: "Source | None" = None
    """The part of its folder that is for validation, by its name."""
    part: str = ""
    """Which part of a folder it is, where it was opened to be measured on and the folder has parts."""

    def chunks(self) -> Iterator[Chunk]:
        """The whole source as pieces of documents, in order."""
        return self.read(0, None)

    def documents(self) -> Iterator[str]:
        """The documents one by one, each whole (one text file is one document)."""
        return whole_documents(self.chunks())


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
    return _open(config, cache, measured=False)


def open_validation(config: DataConfig, cache: Path | None = None) -> Source:
    """The source that `config.val` names, to be measured on: of a folder with a published split that part alone.

    Raises SourceError likewise.
    """
    return _open(replace(config, source=config.val, val=""), cache, measured=True)


def _open(config: DataConfig, cache: Path | None, measured: bool) -> Source:
    if not config.source:
        _no_columns(config, "the embedded corpus")
        return _embedded(cache)
    if config.source.startswith("hf:"):
        return _hub(config)
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
        raise SourceError(f"{config.source!r} cannot be read: {error.strerror or error}") from None
    if not path.is_file():
        raise SourceError(
            f"{config.source!r} is a device or a pipe; save it as a file first, it is read more than once"
        )
    if is_table(path):
        return _table(path, config)
    _no_columns(config, f"{config.source!r} is one text and")
    return _text_file(path)


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
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-")[:40] or "text"


def _embedded(cache: Path | None) -> Source:
    documents = default_documents(cache)
    digest = hashlib.sha256("\0".join(documents).encode()).hexdigest()

    def read(start: int, stop: int | None) -> Iterator[Chunk]:
        return (Chunk(text, True) for text in documents)

    n_bytes = sum(len(text.encode()) for text in documents)
    return Source(name="python-docs", kind="default", sha256=digest, n_bytes=n_bytes, read=read)


def _hub(config: DataConfig) -> Source:
    texts = HubTexts(config.source.removeprefix("hf:"), config.text_column, config.label_column)

    def read(start: int, stop: int | None) -> Iterator[Chunk]:
        return (Chunk(text, True) for text in texts)

    name = re.sub(r"[^A-Za-z0-9_-]+", "-", config.source.removeprefix("hf:")).strip("-")[:40]
    return Source(
        name=name,
        kind="hub",
        sha256=texts.sha256,
        n_bytes=texts.n_bytes,
        read=read,
        note=f"text from column {texts.column!r}",
    )


def text_chunks(path: Path, start: int = 0, stop: int | None = None) -> Iterator[Chunk]:
    """One file as one document."""
    before = None
    for text in read_text(path, start, stop):
        if before is not None:
            yield Chunk(before, False)
        before = text
    yield Chunk(before or "", True)


def _text_file(path: Path) -> Source:
    facts = examine(path)

    def read(start: int, stop: int | None) -> Iterator[Chunk]:
        return text_chunks(path, start, stop)

    return Source(
        name=source_name(path),
        kind="text",
        sha256=facts.sha256,
        content=facts.content,
        n_bytes=facts.n_bytes,
        text_file=path,
        read=read,
    )


def _table(path: Path, config: DataConfig) -> Source:
    facts = examine(path)
    layout = table_format(path, config.text_column, config.label_column)

    def read(start: int, stop: int | None) -> Iterator[Chunk]:
        return (Chunk(text, True) for text in read_rows(path, layout))

    note = f"text from column {layout.text!r}" if layout.text else ""
    return Source(
        name=source_name(path),
        kind=layout.kind,
        sha256=facts.sha256,
        content=facts.content,
        n_bytes=facts.n_bytes,
        read=read,
        note=note,
    )


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What lies below a folder, by a first look at each file."""

    texts: list[Path]
    """Files that begin as text, or are named like text, in order of their paths."""
    skipped: list[Path]
    """Files that are no text."""
    made: list[Path]
    """Folders of what was made of texts."""


def _look(folder: Path) -> _Found:
    found = _Found(texts=[], skipped=[], made=[])
    for path in files_below(folder, found.made):
        kind = sniff(path)
        passed = kind == "blank" or (kind == "other" and not _named_text(path))
        (found.skipped if passed else found.texts).append(path)
    return found


def _named_text(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(TEXT_SUFFIXES)


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
        return _files(folder, [path for path in found.texts if path not in given], found, config)
    parts = parts.without(given)
    source = _files(folder, parts.train, found, config)
    held_out = _files(folder, parts.validation, found, config) if parts.validation and not config.val else None
    return replace(source, published=parts, held_out=held_out)


def _files(folder: Path, paths: Sequence[Path], found: _Found, config: DataConfig) -> Source:
    """Some files of a folder as one source."""
    texts, skipped, n_bytes, digest, content = [], len(found.skipped), 0, hashlib.sha256(), hashlib.sha256()
    refused: list[SourceError] = []
    no_text: list[tuple[Path, SourceError]] = []
    layouts = {}
    for path in paths:
        try:
            facts = examine(path)
        except SourceError as error:
            if _named_text(path) or (is_table(path) and sniff(path) == "pointer"):
                no_text.append((path, error))
            else:
                skipped += 1  # its beginning alone is text
            continue
        if is_table(path):
            try:
                layouts[path] = table_format(path, config.text_column, config.label_column)
            except SourceError as error:
                refused.append(error)
                continue
        texts.append(path)
        n_bytes += facts.n_bytes
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name}\0{facts.sha256}\n".encode("utf-8", "surrogateescape"))
        content.update(f"{name.removesuffix('.gz')}\0{facts.content}\n".encode("utf-8", "surrogateescape"))
    if no_text:
        raise _no_texts(no_text)
    if refused and not layouts and (not texts or config.text_column or config.label_column):
        raise refused[0]
    if not texts:
        raise SourceError(f"no text in folder {str(folder)!r}: {_nothing(skipped, found)}")
    if not layouts:
        _no_columns(config, f"{str(folder)!r} holds plain texts and")

    one_text = len(texts) == 1 and not layouts

    def read(start: int, stop: int | None) -> Iterator[Chunk]:
        if one_text:
            yield from text_chunks(texts[0], start, stop)
            return
        for path in texts:
            if path in layouts:
                yield from (Chunk(text, True) for text in read_rows(path, layouts[path]))
            else:
                yield from text_chunks(path)

    return Source(
        name=source_name(folder / "all"),
        kind="folder",
        sha256=digest.hexdigest(),
        content=content.hexdigest(),
        n_bytes=n_bytes,
        text_file=texts[0] if one_text else None,
        read=read,
        note=_note(len(texts) if len(paths) == len(found.texts) else 0, skipped, len(refused), len(found.made)),
    )


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
    if found.made and not skipped:
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


def files_below(folder: Path, made: list[Path]) -> Iterator[Path]:
    """Regular files below the folder, sorted; hidden names are passed over and links to folders are not followed.

    Nor are folders below it that hold what was made of texts; these are put into `made`. Raises SourceError where the
    folder itself is one.
    """
    try:
        for where, folders, files in os.walk(folder, onerror=_cannot_list):
            if _is_made({*folders, *files}):
                if where == str(folder):
                    what = "is a run, a study or an exported model, and no text; name the text that is meant"
                    raise SourceError(f"{str(folder)!r} {what}")
                made.append(Path(where))
                folders.clear()
                continue
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(files):
                path = Path(where) / name
                if not name.startswith(".") and path.is_file():
                    yield path
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
