"""A stream of text chunks into token ids, in memory for small texts, in files mapped into memory for large ones.

Memory is bounded by a chunk, not by the text: 5 GB are turned into ids a megabyte at a time, by as many processes as
there are cores. A long text is cut only where a word begins, so that a cut changes no token (only a megabyte without
any space is cut through). Files are written under a name of their own and renamed at the end. Every 64 million
characters it is written down how far they came: after a crash the next call goes on from there, and its ids are the
same.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from qkv.data.sources.source import Chunk
from qkv.errors import StorageError
from qkv.folder.run_folder import lock_file, write_atomically
from qkv.jsontypes import JsonObject
from qkv.tokenizers.encoders import Batch, Encoded, encode_all
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.tokens import Tokens, id_type

IN_MEMORY_BYTES = 64 << 20
"""Sources of more bytes than this are mapped from files."""

_BATCH_CHARS = 1 << 20
_PIECE_CHARS = 1 << 26
"""Characters between two notes of progress: the most that is repeated after a kill."""
_LONGEST_CARRY = 1 << 22
_WORD_START = re.compile(r"(?<=\S) (?=\S)|(?<=\S\n)(?=\S)")

Progress = Callable[[int], None]
"""Called with the number of characters done since its last call."""


def whole_words(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The same text with cuts inside a document moved back to where a word begins."""
    carry = ""
    for text, ends, file in chunks:
        text, carry = carry + text, ""
        if not ends:
            tail = max(len(text) - 4096, 0)
            cuts = [match.start() for match in _WORD_START.finditer(text, tail)]
            if cuts:
                text, carry = text[: cuts[-1]], text[cuts[-1] :]
            elif len(text) < _LONGEST_CARRY:
                carry = text
                continue
        yield Chunk(text, ends, file)


@dataclass
class _Done:
    """How far a part is written: the content of `PART.done` beside its ids, for the call that continues it."""

    batches: int = 0
    tokens: int = 0
    documents: int = 0
    chars: int = 0
    bytes: int = 0
    unknown: int = 0


def tokenise(
    chunks: Iterable[Chunk],
    tokenizer: Tokenizer,
    end_id: int | None,
    file: Path | None = None,
    progress: Progress | None = None,
    workers: int = 1,
) -> Tokens:
    """All chunks as Tokens; `end_id` is put behind each document, None puts nothing.

    With `file` the ids are written there as they come, by that many `workers`, and mapped read-only afterwards. What an
    earlier call for the same text wrote there is continued: at most one piece is made twice, and the ids are those
    of an undisturbed call.

    Raises StorageError where the file cannot be written, RunError where a worker ends.
    """
    dtype = id_type(tokenizer.d_vocab)
    if file is None:
        return _in_memory(encode_all(_batches(chunks), tokenizer, end_id), dtype, progress)
    try:
        done = _resumed(file, dtype)
        if progress is not None and done.chars:
            progress(done.chars)
        batches = islice(_batches(chunks), done.batches, None)
        with open(file, "ab") as ids, open(_stops(file), "ab") as stops:
            written = done.chars
            for found in encode_all(batches, tokenizer, end_id, workers):
                ids.write(found.ids.tobytes())
                stops.write((done.tokens + found.stops).astype("<i8").tobytes())
                done = _Done(
                    done.batches + 1,
                    done.tokens + len(found.ids),
                    done.documents + len(found.stops),
                    done.chars + found.n_chars,
                    done.bytes + found.n_bytes,
                    done.unknown + found.n_unknown,
                )
                if done.chars - written >= _PIECE_CHARS:
                    _note(file, done, ids, stops)
                    written = done.chars
                if progress is not None:
                    progress(found.n_chars)
            _note(file, done, ids, stops)
    except OSError as error:
        raise StorageError(f"tokens cannot be written to {str(file)!r}: {error.strerror or error}") from None
    offsets = np.concatenate([[0], np.fromfile(_stops(file), dtype="<i8").astype(np.int64)])
    ids = _mapped(file, dtype, done.tokens)
    return Tokens(ids=ids, offsets=offsets, n_bytes=done.bytes, n_unknown=done.unknown)


def _in_memory(encoded: Iterable[Encoded], dtype: type, progress: Progress | None) -> Tokens:
    """All of it, held."""
    kept: list[np.ndarray] = []
    offsets = array("q", [0])
    n_tokens = n_bytes = n_unknown = 0
    for found in encoded:
        kept.append(found.ids)
        offsets.extend((n_tokens + found.stops).tolist())
        n_tokens, n_bytes, n_unknown = n_tokens + len(found.ids), n_bytes + found.n_bytes, n_unknown + found.n_unknown
        if progress is not None:
            progress(found.n_chars)
    ids = np.concatenate(kept) if kept else np.zeros(0, dtype)
    return Tokens(ids=ids, offsets=np.array(offsets, dtype=np.int64), n_bytes=n_bytes, n_unknown=n_unknown)


def _stops(file: Path) -> Path:
    """Where documents end, beside the ids."""
    return file.with_suffix(".stops")


def _note(file: Path, done: _Done, *written: IO[bytes]) -> None:
    """Flush everything so far to the disk, and then write down that it is there."""
    for each in written:
        each.flush()
        os.fsync(each.fileno())
    note = asdict(done)
    write_atomically(file.with_suffix(".done"), json.dumps(note | {"sha256": _digest(note)}).encode())


def _digest(note: JsonObject) -> str:
    return hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()


def _resumed(file: Path, dtype: type) -> _Done:
    """How far an earlier call came, its files cut back to there; the beginning where they do not hold so much."""
    try:
        note = json.loads(file.with_suffix(".done").read_text(encoding="utf-8"))
        if note.pop("sha256") != _digest(note):
            raise ValueError("its hash does not match")
        done = _Done(**note)
        sizes = {file: done.tokens * np.dtype(dtype).itemsize, _stops(file): done.documents * 8}
        if all(place.stat().st_size >= size for place, size in sizes.items()):
            for place, size in sizes.items():
                os.truncate(place, size)
            return done
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    for place in (file, _stops(file)):
        place.unlink(missing_ok=True)
    return _Done()


def _batches(chunks: Iterable[Chunk]) -> Iterator[Batch]:
    """Texts of about a megabyte together."""
    texts: list[str] = []
    ends: list[bool] = []
    size = 0
    for chunk in whole_words(chunks):
        texts.append(chunk.text)
        ends.append(chunk.ends)
        size += len(chunk.text) + 64
        if size >= _BATCH_CHARS:
            yield Batch(texts, np.array(ends))
            texts, ends, size = [], [], 0
    if texts:
        yield Batch(texts, np.array(ends))


def _mapped(file: Path, dtype: type, n_tokens: int) -> np.ndarray:
    return np.memmap(file, dtype=dtype, mode="r", shape=(n_tokens,)) if n_tokens else np.zeros(0, dtype)


def keep_tokens(
    folder: Path, make: Callable[[Path], tuple[dict[str, Tokens], JsonObject]], *, goes_on: bool = False
) -> None:
    """Fill `folder` with what `make` gives, tokens of the parts and facts about them, whole or not at all.

    `make` works in a temporary folder, where it may leave ids as PART.ids. With `goes_on` that folder has a name of its
    own and stays where the work broke off, so that the next call finds it; another process that works in it meanwhile
    keeps it, and this one begins in a folder of its own. A folder that another process finished in the meantime is left
    as it is, a broken one is replaced.

    Raises StorageError where the folder cannot be written.
    """
    with ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            temporary = _unfinished(folder, stack) if goes_on else None
            if temporary is None:
                temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".tmp-"))
                stack.callback(shutil.rmtree, temporary, ignore_errors=True)
            _write_parts(temporary, *make(temporary))
            for leftover in (*temporary.glob("*.done"), *temporary.glob("*.stops")):
                leftover.unlink()
            if folder.exists() and kept_tokens(folder, in_memory=False) is None:
                shutil.rmtree(folder)
            if folder.exists():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                os.rename(temporary, folder)
        except OSError as error:
            raise StorageError(f"tokens cannot be kept in {str(folder)!r}: {error.strerror or error}") from None


def _unfinished(folder: Path, stack: ExitStack) -> Path | None:
    """The folder in which work on `folder` goes on, held by this process until `stack` closes; None where it is not.

    Its lock lies beside it, so that it does not move with it.
    """
    place = folder.with_name(f".part-{folder.name}")
    lock = os.open(folder.with_name(f".lock-{folder.name}"), os.O_RDWR | os.O_CREAT, 0o644)
    stack.callback(os.close, lock)
    if not lock_file(lock):
        return None
    place.mkdir(exist_ok=True)
    return place


def _write_parts(folder: Path, parts: dict[str, Tokens], facts: JsonObject) -> None:
    table = {}
    for name, tokens in parts.items():
        if not (folder / f"{name}.ids").exists():
            tokens.ids.tofile(folder / f"{name}.ids")
        tokens.offsets.astype("<i8").tofile(folder / f"{name}.offsets")
        table[name] = {
            "dtype": tokens.ids.dtype.name,
            "n_tokens": len(tokens),
            "n_bytes": tokens.n_bytes,
            "n_unknown": tokens.n_unknown,
        }
    (folder / "facts.json").write_text(json.dumps({"parts": table, **facts}), encoding="utf-8")
    for path in folder.iterdir():
        with open(path, "rb+") as file:
            os.fsync(file.fileno())


def kept_tokens(folder: Path, in_memory: bool) -> tuple[dict[str, Tokens], JsonObject] | None:
    """The parts and facts that `keep_tokens` left in the folder, or None where there are none (or broken ones)."""
    try:
        facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        parts = {}
        for name, about in facts["parts"].items():
            dtype, n_tokens = np.dtype(about["dtype"]).type, about["n_tokens"]
            file = folder / f"{name}.ids"
            if file.stat().st_size != n_tokens * np.dtype(dtype).itemsize:
                return None
            ids = np.fromfile(file, dtype=dtype) if in_memory else _mapped(file, dtype, n_tokens)
            offsets = np.fromfile(folder / f"{name}.offsets", dtype="<i8").astype(np.int64)
            if not len(offsets) or offsets[-1] != n_tokens:
                return None
            parts[name] = Tokens(ids=ids, offsets=offsets, n_bytes=about["n_bytes"], n_unknown=about["n_unknown"])
        return parts, facts
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
