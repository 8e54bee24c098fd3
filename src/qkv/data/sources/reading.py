"""Files as streams of checked UTF-8 text, a block at a time, compressed (.gz, .zst) or not.

Everything that is wrong with a file as text is found here and said in one sentence: missing, a folder where a file was
meant, not readable, empty, binary, annotated, not UTF-8 (with the byte where it stops being so), or compressed and cut
off. Nothing here knows about documents, tables or tokens.
"""

import codecs
import gzip
import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from qkv.errors import MissingExtra, SourceError, first_line, missing_file, typed
from qkv.folder.run_folder import sha256_of
from qkv.installing import install
from qkv.signatures import HEAD, annotation, is_pointer, refuse_pointer, signature_of, signature_of_file

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

BLOCK = 1 << 20
"""Bytes read at a time."""
PACKED = (".gz", ".zst")
"""How the name of a compressed file ends."""
MARKS = ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "</s>")
"""What other programs write where a document ends."""


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """What one pass over a file found."""

    sha256: str
    """Of the bytes as they lie on disk, compressed where the file is."""
    content: str
    """The same of the bytes decompressed: equal for a file and its gzipped copy."""
    n_bytes: int
    """Of the text, decompressed, without a byte order mark."""
    n_raw: int
    """The same with the mark."""
    marks: Mapping[str, int] = field(default_factory=dict)
    """How often each of `MARKS` occurs that does."""


def plain_name(path: Path) -> str:
    """The name of a file in lower case, without the ending that says how it is compressed."""
    name = path.name.lower()
    return name.rpartition(".")[0] if name.endswith(PACKED) else name


def is_parquet(path: Path) -> bool:
    """Whether it is a Parquet table by its name."""
    return path.name.lower().endswith(".parquet")


@contextmanager
def _parquet(path: Path) -> "Iterator[ParquetFile]":
    """A Parquet table while it is read. Raises MissingExtra without pyarrow, SourceError where it cannot be read."""
    refuse_pointer(path)
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise MissingExtra(f"{str(path)!r} is a Parquet table; to read it type: {install('table')}") from None
    try:
        with ParquetFile(path) as file:
            yield file
    except (ArrowException, OSError, ValueError) as error:
        raise SourceError(f"{str(path)!r} is not a whole Parquet table: {first_line(error)}") from None


def parquet_rows(path: Path) -> Iterator[dict[str, object]]:
    """The rows of a Parquet table, column -> value. Raises MissingExtra or SourceError where it cannot be read."""
    with _parquet(path) as file:
        for batch in file.iter_batches(batch_size=1024):
            yield from batch.to_pylist()


def open_bytes(path: Path) -> BinaryIO:
    """The file opened for reading bytes, decompressed on the way where its name ends in .gz or .zst.

    Raises SourceError for a file that is missing or may not be read, MissingExtra for .zst without pyarrow.
    """
    try:
        if path.suffix == ".zst":
            return _open_zst(path)
        return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # type: ignore[return-value]
    except FileNotFoundError:
        raise missing_file(path) from None
    except IsADirectoryError:
        raise SourceError(f"{str(path)!r} is a folder; expected a file") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _open_zst(path: Path) -> BinaryIO:
    try:
        from pyarrow import PythonFile, input_stream
    except ImportError:
        raise MissingExtra(f"{str(path)!r} is compressed by zstd; to read it type: {install('table')}") from None
    return input_stream(PythonFile(open(path, "rb"), mode="r"), compression="zstd")  # type: ignore[return-value]


def unreadable(path: Path, error: OSError) -> SourceError:
    """The error for a file that the system does not let us read."""
    return SourceError(f"{str(path)!r} cannot be read: {error.strerror or error}")


@contextmanager
def binary_file(path: Path) -> Iterator[BinaryIO]:
    """A file that is no text while it is read, decompressed where its name ends in .gz.

    Raises SourceError for what git-lfs left in its place, and where it cannot be read to the end.
    """
    refuse_pointer(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{str(path)!r} cannot be read, it may be cut off: {error}") from None


def _blocks(path: Path, size: int = BLOCK) -> Iterator[bytes]:
    """The bytes of the file, decompressed."""
    with open_bytes(path) as file:
        while True:
            try:
                block = file.read(size)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise _not_whole(path, error) from None
            except OSError as error:
                raise (_not_whole if path.suffix == ".zst" else unreadable)(path, error) from None
            if not block:
                return
            yield block


def _not_whole(path: Path, error: Exception) -> SourceError:
    """The error for a file that is named as compressed and is not, or a damaged one."""
    magic, kind = (b"\x1f\x8b", "gzip") if path.suffix == ".gz" else (b"\x28\xb5\x2f\xfd", "zstd")
    with open(path, "rb") as file:
        begins = file.read(len(magic)) == magic
    known = None if begins else signature_of_file(path)
    what = known.told(path) if known else f"not a whole {kind} file: {first_line(error)}"
    return SourceError(f"{str(path)!r} is {what}")


def read_text(
    path: Path,
    start: int = 0,
    stop: int | None = None,
    size: int = BLOCK,
    seen: Callable[[bytes], object] | None = None,
) -> Iterator[str]:
    """The text of bytes start to stop (of the decompressed file), about `size` bytes at a time.

    A byte order mark at the beginning is dropped. `start` and `stop` must lie on character boundaries and count from
    the byte after the mark. Line ends are left as they are. `seen` is given every block as it was read.

    Raises SourceError for what git-lfs left in its place, for NUL bytes (binary) and for bytes that are not UTF-8, with
    the offset in the file, or with what the file is where its beginning tells.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    done, mark, pending, head = 0, 0, 0, b""
    for block in _blocks(path, size):
        if seen is not None:
            seen(block)
        if not done and not mark:
            head = block[:HEAD]
            if is_pointer(head):
                raise _no_text(path, head, "")
            if block.startswith(codecs.BOM_UTF8):
                mark, block = 3, block[3:]
        first, last = max(start - done, 0), len(block) if stop is None else min(stop - done, len(block))
        wanted = block[first:last] if last > first else b""
        at = done + mark + first
        if b"\0" in wanted:
            binary = f"binary (a NUL byte at byte {at + wanted.index(bytes(1))}); expected UTF-8 text"
            if path.suffix in (".bin", ".npy", ".pt"):
                binary += "; of token ids give the text that they were made of"
            known = signature_of_file(path)
            raise _no_text(path, head, known.told(path) if known else binary)
        text = _decode(decoder, wanted, path, at - pending, head)
        pending = len(decoder.getstate()[0])
        if text:
            yield text
        done += len(block)
        if stop is not None and done >= stop:
            break
    _decode(decoder, b"", path, done + mark - pending, head, final=True)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text, cut at line feeds, which they end with; no more is held than a block and a line.

    Raises SourceError as `read_text` does.
    """
    rest = ""
    for block in read_text(path):
        *whole, rest = (rest + block).split("\n")
        for line in whole:
            yield line + "\n"
    if rest:
        yield rest


def _decode(
    decoder: codecs.IncrementalDecoder, data: bytes, path: Path, at: int, head: bytes, final: bool = False
) -> str:
    """`at` is the offset in the file of the first byte that the decoder has not yet turned into text, `head` how the
    file begins.
    """
    try:
        return decoder.decode(data, final)
    except UnicodeDecodeError as error:
        bad = f"not UTF-8 text: byte {at + error.start} is 0x{error.object[error.start]:02x}; save it as UTF-8"
        name = typed(Path("utf8").with_suffix(Path(plain_name(path)).suffix or ".txt"))
        how = f"iconv -f WINDOWS-1252 -t UTF-8 {typed(path)} > {name}, if it is Western European"
        raise _no_text(path, head, f"{bad} ({how})") from None


def _no_text(path: Path, head: bytes, otherwise: str) -> SourceError:
    """The error for a file that is no text: what it is by its beginning, or `otherwise`."""
    known = signature_of(head)
    return SourceError(f"{str(path)!r} is {known.told(path) if known else otherwise}")


def character_start(path: Path, offset: int) -> int:
    """The first byte at or after `offset` (decompressed, counted after a byte order mark) where a character starts."""
    with open_bytes(path) as file:
        mark = 3 if file.read(3) == codecs.BOM_UTF8 else 0
        if path.suffix == ".zst":  # it cannot seek
            done = 3
            while done < offset + mark and (block := file.read(min(BLOCK, offset + mark - done))):
                done += len(block)
        else:
            file.seek(offset + mark)
        following = file.read(4)
    inside = (i for i, byte in enumerate(following) if byte & 0xC0 != 0x80)
    return offset + next(inside, len(following))


def examine(path: Path, *, annotated: bool = False) -> FileFacts:
    """Read a whole file once: its hash, its size as text, and whether it is text at all; with `annotated` it may hold
    one word with its annotations on a line.

    Raises SourceError where it is missing, unreadable, empty, blank, binary, annotated or not UTF-8.
    """
    if is_parquet(path):
        return _examine_parquet(path)
    n_bytes, n_raw, blank, digest = 0, 0, True, hashlib.sha256()
    marks, tail = Counter[str](), ""

    def seen(block: bytes) -> None:
        nonlocal n_raw
        n_raw += len(block)
        digest.update(block)

    for text in read_text(path, seen=seen):
        if not (n_bytes or annotated) and (found := annotation(text)):
            raise SourceError(f"{str(path)!r} is {found.told(path)}")
        n_bytes += len(text) if text.isascii() else len(text.encode())
        blank = blank and (not text or text.isspace())
        for mark in MARKS if "<" in text or tail else ():
            if n := text.count(mark) + (tail[1 - len(mark) :] + text[: len(mark) - 1]).count(mark):
                marks[mark] += n
        tail = (tail + text[-16:])[-16:] if "<" in (tail + text[-16:]) else ""
    if blank:
        raise SourceError(f"{str(path)!r} is empty; expected text" if not n_bytes else f"{str(path)!r} is blank")
    content = digest.hexdigest()
    sha256 = sha256_of(path) if path.suffix in PACKED else content
    return FileFacts(sha256=sha256, content=content, n_bytes=n_bytes, n_raw=n_raw, marks=marks)


def _examine_parquet(path: Path) -> FileFacts:
    with _parquet(path) as file:
        about = file.metadata
        n_bytes = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    digest = sha256_of(path)
    return FileFacts(sha256=digest, content=digest, n_bytes=n_bytes, n_raw=n_bytes)


def size_of(path: Path) -> int:
    """Bytes of a file, decompressed; of a folder those of the files below it, of a damaged file or a link to a folder
    those on disk; 0 of what is gone.
    """
    if os.path.isdir(path):
        below = (os.path.join(where, name) for where, _, names in os.walk(path) for name in names)
        return _on_disk(path) if os.path.islink(path) else sum(map(_on_disk, below))
    try:
        packed = path.suffix in PACKED and path.is_file()
        return sum(map(len, _blocks(path))) if packed else path.stat().st_size
    except (SourceError, MissingExtra, OSError):
        return _on_disk(path)


def _on_disk(path: Path | str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def sniff(path: Path) -> str:
    """What the first 8 KiB of a file (decompressed) are: "text" (UTF-8 without NUL bytes), "blank", "pointer" (what
    git-lfs left in place of the file) or "other"; a Parquet table is "text" by its name.
    """
    if is_parquet(path):
        return "text"
    try:
        with open_bytes(path) as file:
            head = file.read(8192)
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except (SourceError, OSError, EOFError, zlib.error, UnicodeDecodeError):
        return "other"
    if "\0" in text:
        return "other"
    if is_pointer(head):
        return "pointer"
    return "text" if text.strip() else "blank"
