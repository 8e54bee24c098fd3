"""What a file is by its first bytes, for readers that cannot read it: then the cause is said first.

People have more in their folders than text and weights: pointers that git-lfs left in place of a file, compressed
copies, tables of other programs, text in other encodings, saved web pages. A reader that fails asks here what the file
is and says that, not where its own rules broke off. Nothing is decompressed or decoded here.
"""

import codecs
import os
import re
import struct
import unicodedata
from pathlib import Path
from typing import NamedTuple

from qkv.errors import SourceError, typed

HEAD = 4096
"""Bytes from the beginning of a file that are looked at."""

_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGES = (b"<!doctype html", b"<html")
_FEWEST_LETTERS = 8
"""Fewer characters say nothing about an encoding."""


class Signature(NamedTuple):
    """A kind of file that is known by its beginning."""

    what: str
    """Behind "is": `a Parquet table`."""
    how: str = ""
    """How to come by its text; `{name}` is the file as it is typed, `{plain}` its name without the last ending."""

    def told(self, path: Path) -> str:
        """Both in words, for that file."""
        if path.suffix and self.how.endswith(f" {path.suffix}"):  # it has that name: what is inside is no text
            return f"{self.what}, and what is inside is no UTF-8 text"
        name, plain = typed(path), typed(path.with_suffix("") if path.suffix else path.with_suffix(".txt"))
        utf8 = typed(Path("utf8").with_suffix(path.suffix or ".txt"))
        return f"{self.what}; {self.how}".format(name=name, plain=plain, utf8=utf8) if self.how else self.what


_LFS = Signature("a git-lfs pointer and not the file itself", "fetch it: git lfs pull")
_PAGE = Signature("a web page (HTML), which may have been saved in place of the file")
_UTF = "save it as UTF-8: iconv -f {0} -t UTF-8 {{name}} > {{utf8}}"
_SAVED = "expected UTF-8 text; save its text column as JSON lines (.jsonl), one object a line"
_IMAGES = "expected UTF-8 text; for images give a folder with a folder for each class, and --task image"
_UNPACKED = "decompress it first: {0} {{name}} > {{plain}}"

_BEGINNINGS: tuple[tuple[int, bytes, Signature], ...] = (
    (0, codecs.BOM_UTF32_LE, Signature("UTF-32 text", _UTF.format("UTF-32"))),
    (0, codecs.BOM_UTF32_BE, Signature("UTF-32 text", _UTF.format("UTF-32"))),
    (0, codecs.BOM_UTF16_LE, Signature("UTF-16 text", _UTF.format("UTF-16"))),
    (0, codecs.BOM_UTF16_BE, Signature("UTF-16 text", _UTF.format("UTF-16"))),
    (0, b"\x1f\x8b", Signature("a gzip file", "give it a name that ends in .gz")),
    (0, b"\x28\xb5\x2f\xfd", Signature("compressed by zstd", "give it a name that ends in .zst")),
    (0, b"BZh", Signature("compressed by bzip2", _UNPACKED.format("bzip2 -dc"))),
    (0, b"\xfd7zXZ\0", Signature("compressed by xz", _UNPACKED.format("xz -dc"))),
    (0, b"\x04\x22\x4d\x18", Signature("compressed by lz4", _UNPACKED.format("lz4 -dc"))),
    (0, b"PAR1", Signature("a Parquet table", "give it a name that ends in .parquet")),
    (0, b"ARROW1", Signature("an Arrow table", _SAVED)),
    (0, b"FEA1", Signature("a Feather table", _SAVED)),
    (0, b"ORC", Signature("an ORC table", _SAVED)),
    (0, b"Obj\x01", Signature("an Avro table", _SAVED)),
    (0, b"SQLite format 3\0", Signature("an SQLite database", _SAVED)),
    (0, b"\x89HDF\r\n\x1a\n", Signature("an HDF5 file", "expected UTF-8 text")),
    (
        0,
        b"\x93NUMPY",
        Signature("a NumPy array", "expected UTF-8 text; of token ids give the text that they were made of"),
    ),
    (0, b"GGUF", Signature("a GGUF file of weights", "expected UTF-8 text")),
    (0, b"PK\x03\x04", Signature("a zip archive, as .docx and .xlsx are too", "expected the text itself, in UTF-8")),
    (0, b"7z\xbc\xaf\x27\x1c", Signature("a 7z archive", "expected the text itself, in UTF-8")),
    (0, b"Rar!\x1a\x07", Signature("a RAR archive", "expected the text itself, in UTF-8")),
    (257, b"ustar", Signature("a tar archive", "unpack it first: tar -xf {name}")),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", Signature("an Office document (.doc, .xls)", "save it as UTF-8 text")),
    (0, b"%PDF", Signature("a PDF", "expected its text, in UTF-8: pdftotext {name} text.txt")),
    (0, b"%!PS", Signature("a PostScript file", "expected UTF-8 text")),
    (0, b"\xc5\xd0\xd3\xc6", Signature("a PostScript file", "expected UTF-8 text")),
    (0, b"\x89PNG\r\n\x1a\n", Signature("a PNG image", _IMAGES)),
    (0, b"\xff\xd8\xff", Signature("a JPEG image", _IMAGES)),
    (8, b"WEBP", Signature("a WebP image", _IMAGES)),
    (0, b"GIF8", Signature("a GIF image", _IMAGES)),
    (4, b"ftypheic", Signature("an HEIC image", _IMAGES)),
    (4, b"ftypavif", Signature("an AVIF image", _IMAGES)),
)
"""(offset, bytes there, what that is); the first that fits."""


_IDX = Signature("an IDX file of images by its name", "add --task image")
_LLAMA2C = Signature(
    "a model file of llama2.c", "export it as a Hugging Face folder (its export.py --version -1), then type qkv import"
)
_CIFAR = Signature(
    "a binary file of CIFAR images",
    "expected a folder for each class with files such as .png, or IDX files: write its images so",
)
_TOKENS = Signature("token ids of llm.c", "expected the text that they were made of")


def _by_layout(head: bytes, size: int) -> Signature | None:
    """What a file of that size without a beginning of its own is, where its numbers can be nothing else."""
    if len(head) < 28:
        return None
    magic, *numbers = struct.unpack("<7i", head[:28])
    if magic in (20240520, 20240801):
        return _TOKENS
    width, (hidden, layers, heads, key_heads, vocab, longest) = magic, numbers
    sizes = (
        16 <= width <= 1 << 16 and 16 <= hidden <= 1 << 18 and 1 <= abs(vocab) <= 1 << 20 and 1 <= longest <= 1 << 20
    )
    if magic == 0x616B3432 or (
        sizes and 1 <= layers <= 512 and 1 <= key_heads <= heads <= width and width % heads == 0
    ):
        return _LLAMA2C
    for record, most in ((3073, (10,)), (3074, (20, 100))):
        labels = [head[at : at + len(most)] for at in range(0, min(size, len(head)), record)]
        if size % record == 0 and all(
            label < limit for found in labels for label, limit in zip(found, most, strict=True)
        ):
            return _CIFAR
    return None


def is_pointer(head: bytes) -> bool:
    """Whether a file that begins so is the pointer that git-lfs leaves in place of a large file."""
    return head.startswith(_POINTER)


def signature_of(head: bytes) -> Signature | None:
    """What a file with these first bytes is; None where nobody knows, and of plain UTF-8 text."""
    if is_pointer(head):
        return _LFS
    found = next((known for at, mark, known in _BEGINNINGS if head.startswith(mark, at) and _is_mark(mark, head)), None)
    return found or _unmarked(head[:HEAD])


def is_idx_name(name: str) -> bool:
    """Whether a file's name is that of an IDX file of images."""
    return "images" in name and re.search(r"idx[34]", name) is not None


def signature_of_file(path: Path) -> Signature | None:
    """The same of a file as it lies on disk, which should be no text; None where it cannot be read."""
    try:
        with path.open("rb") as file:
            head, size = file.read(HEAD), os.fstat(file.fileno()).st_size
    except OSError:
        return None
    if is_idx_name(path.name) and not is_pointer(head):
        return _IDX
    if head.lstrip()[:16].lower().startswith(_PAGES):
        return _PAGE
    return signature_of(head) or (_by_layout(head, size) if b"\0" in head else None)


_CONLLU = Signature(
    "annotated text (CoNLL-U), one word with its annotations on a line",
    "take its sentences: sed -n 's/^# text = //p' {name} > sentences.txt; or learn its labels: --task tag",
)
_CONLL = Signature(
    "annotated text (CoNLL-2003), one word with its annotations on a line",
    "write one sentence a line, without the annotations; or learn its labels: --task tag",
)
_CONLLU_LINE = re.compile(r"\d+(?:[-.]\d+)?(?:\t[^\t\r\n]+){9}\r?")


def annotation(text: str) -> Signature | None:
    """What a text is that begins so, where its lines are words with annotations; None for any other text."""
    if text.startswith("-DOCSTART- "):
        return _CONLL
    lines = [line for line in text[:HEAD].split("\n")[:-1] if line.strip() and not line.startswith("#")]
    return _CONLLU if len(lines) > 1 and all(map(_CONLLU_LINE.fullmatch, lines)) else None


def refuse_pointer(path: Path) -> None:
    """Raises SourceError where git-lfs left a pointer in place of a file; what cannot be read is for others to say."""
    if not path.is_file():  # a pipe would wait for somebody who writes
        return
    try:
        with path.open("rb") as file:
            head = file.read(len(_POINTER))
    except OSError:
        return
    if is_pointer(head):
        raise SourceError(f"{str(path)!r} is {_LFS.told(path)}")


def _is_mark(mark: bytes, head: bytes) -> bool:
    """Whether it is more than a word that a text begins with, as letters alone are without a control byte in sight."""
    return not mark.isalnum() or any(byte < 32 and byte not in b"\t\n\r\f" for byte in head)


def _unmarked(head: bytes) -> Signature | None:
    """UTF-16 or UTF-32 without a byte order mark: readable throughout, with white space, in one of the four ways.

    White space has a zero byte in each, so that text in one byte a letter, or in UTF-8, is never taken for it.
    """
    if b"\0" not in head:
        return None
    for encoding, name in (
        ("utf-32-le", "UTF-32LE"),
        ("utf-32-be", "UTF-32BE"),
        ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"),
    ):
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(head)
        except UnicodeDecodeError:
            continue
        if len(text) >= _FEWEST_LETTERS and any(map(str.isspace, text)) and all(map(_is_written, text)):
            return Signature(f"{name[:6]} text without a byte order mark", _UTF.format(name))
    return None


def _is_written(character: str) -> bool:
    """Whether people write it: a line end, or no control character, half a pair or unassigned number."""
    return character in "\t\n\r\f" or unicodedata.category(character) not in ("Cc", "Cn", "Co", "Cs")
