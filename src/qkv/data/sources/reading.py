"""Files as streams of checked UTF-8 text, a block at a time, gzipped or not.

Everything that is wrong with a file as text is found here and said in one sentence: missing, a folder where a file was
meant, not readable, empty, binary, not UTF-8 (with the byte where it stops being so), a broken gzip. Nothing here knows
about documents, tables or tokens.
"""

import codecs
import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from qkv.errors import SourceError, missing_file, typed
from qkv.signatures import HEAD, is_pointer, refuse_pointer, signature_of, signature_of_file

__all__ = [
    "FileFacts",
    "binary_file",
    "character_start",
    "examine",
    "open_bytes",
    "read_text",
    "sniff",
    "unreadable",
]

BLOCK = 1 << 20
"""Bytes read at a time."""


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """What one pass over a file found."""

    sha256: str
    """Of the bytes as they lie on disk, compressed where the file is."""
    content: str
    """The same of the bytes decompressed: equal for a file and its gzipped copy."""
    n_bytes: int
    """Of the text, decompressed, without a byte order mark."""


def open_bytes(path: Path) -> BinaryIO:
    """The file opened for reading bytes, decompressed on the way where its name ends in .gz.

    Raises SourceError for a file that is missing or may not be read.
    """
    try:
        return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # type: ignore[return-value]
    except FileNotFoundError:
        raise missing_file(path) from None
    except IsADirectoryError:
        raise SourceError(f"{str(path)!r} is a folder; expected a file") from None
    except OSError as error:
        raise unreadable(path, error) from None


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
                raise _no_gzip(path, error) from None
            except OSError as error:
                raise unreadable(path, error) from None
            if not block:
                return
            yield block


def _no_gzip(path: Path, error: Exception) -> SourceError:
    """The error for a file that is named .gz and is none, or a damaged one."""
    with open(path, "rb") as file:
        begins = file.read(2) == b"\x1f\x8b"
    known = None if begins else signature_of_file(path)
    return SourceError(f"{str(path)!r} is {known.told(path) if known else f'not a whole gzip file: {error}'}")


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
            raise _no_text(path, head, binary)
        text = _decode(decoder, wanted, path, at - pending, head)
        pending = len(decoder.getstate()[0])
        if text:
            yield text
        done += len(block)
        if stop is not None and done >= stop:
            break
    _decode(decoder, b"", path, done + mark - pending, head, final=True)


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
        how = f"iconv -f WINDOWS-1252 -t UTF-8 {typed(path)} > utf8.txt, if it is Western European"
        raise _no_text(path, head, f"{bad} ({how})") from None


def _no_text(path: Path, head: bytes, otherwise: str) -> SourceError:
    """The error for a file that is no text: what it is by its beginning, or `otherwise`."""
    known = signature_of(head)
    return SourceError(f"{str(path)!r} is {known.told(path) if known else otherwise}")


def character_start(path: Path, offset: int) -> int:
    """The first byte at or after `offset` (decompressed, counted after a byte order mark) where a character starts."""
    with open_bytes(path) as file:
        mark = 3 if file.read(3) == codecs.BOM_UTF8 else 0
        file.seek(offset + mark)
        following = file.read(4)
    inside = (i for i, byte in enumerate(following) if byte & 0xC0 != 0x80)
    return offset + next(inside, len(following))


def examine(path: Path) -> FileFacts:
    """Read a whole file once: its hash, its size as text, and whether it is text at all.

    Raises SourceError where it is missing, unreadable, empty, blank, binary or not UTF-8.
    """
    n_bytes, blank, digest = 0, True, hashlib.sha256()
    for text in read_text(path, seen=digest.update):
        n_bytes += len(text) if text.isascii() else len(text.encode())
        blank = blank and (not text or text.isspace())
    if blank:
        raise SourceError(f"{str(path)!r} is empty; expected text" if not n_bytes else f"{str(path)!r} is blank")
    content = digest.hexdigest()
    if path.suffix == ".gz":
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    return FileFacts(sha256=digest.hexdigest(), content=content, n_bytes=n_bytes)


def sniff(path: Path) -> str:
    """What the first 8 KiB of a file (decompressed) are: "text" (UTF-8 without NUL bytes), "blank", "pointer" (what
    git-lfs left in place of the file) or "other".
    """
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
