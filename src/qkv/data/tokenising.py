"""A stream of text chunks into token ids, in memory for small texts, in files mapped into memory for large ones.

Memory is bounded by a chunk, not by the text: 5 GB are turned into ids a megabyte at a time. A long text is cut
only where a word begins, so that a cut changes no token (only a megabyte without any space is cut through). Files
are written under a temporary name and renamed at the end; what a crash leaves behind is never read.
"""

import json
import os
import re
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.sources import Chunk
from qkv.data.tokenizers import Tokenizer
from qkv.data.tokens import Tokens, id_type
from qkv.errors import StorageError

__all__ = ["IN_MEMORY_BYTES", "keep_tokens", "kept_tokens", "tokenise", "whole_words"]

IN_MEMORY_BYTES = 64 << 20
"""Sources of more bytes than this are mapped from files."""

_BATCH_CHARS = 1 << 20
_LONGEST_CARRY = 1 << 22
_WORD_START = re.compile(r"(?<=\S) (?=\S)|(?<=\S\n)(?=\S)")

Progress = Callable[[int], None]
"""Told the number of characters done since it was last called."""


def whole_words(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The same text with cuts inside a document moved back to where a word begins."""
    carry = ""
    for text, ends in chunks:
        text, carry = carry + text, ""
        if not ends:
            tail = max(len(text) - 4096, 0)
            cuts = [match.start() for match in _WORD_START.finditer(text, tail)]
            if cuts:
                text, carry = text[: cuts[-1]], text[cuts[-1] :]
            elif len(text) < _LONGEST_CARRY:
                carry = text
                continue
        yield Chunk(text, ends)


def tokenise(
    chunks: Iterable[Chunk],
    tokenizer: Tokenizer,
    end_id: int | None,
    file: Path | None = None,
    progress: Progress | None = None,
) -> Tokens:
    """All chunks as Tokens; `end_id` is put behind each document, None puts nothing.

    With `file` the ids are written there as they come and mapped read-only afterwards.

    Raises StorageError where the file cannot be written.
    """
    dtype = id_type(tokenizer.d_vocab)
    kept: list[np.ndarray] = []
    offsets = array("q", [0])
    n_tokens = n_bytes = n_unknown = 0
    try:
        sink = open(file, "wb") if file is not None else None  # noqa: SIM115
        try:
            for texts, ends in _batches(chunks):
                ids, lengths = tokenizer.encode_many(texts)
                n_bytes += sum(len(text) if text.isascii() else len(text.encode("utf-8", "replace")) for text in texts)
                if tokenizer.unknown_id is not None:
                    n_unknown += int((ids == tokenizer.unknown_id).sum())
                stops = np.cumsum(lengths)[ends]
                ids = ids.astype(dtype)
                if end_id is not None:
                    ids = np.insert(ids, stops, end_id)
                    stops = stops + np.arange(1, len(stops) + 1)
                offsets.extend((n_tokens + stops).tolist())
                n_tokens += len(ids)
                if sink is not None:
                    sink.write(ids.tobytes())
                else:
                    kept.append(ids)
                if progress is not None:
                    progress(sum(map(len, texts)))
        finally:
            if sink is not None:
                sink.close()
    except OSError as error:
        raise StorageError(f"tokens cannot be written to {str(file)!r}: {error.strerror or error}") from None
    if file is not None:
        all_ids = _mapped(file, dtype, n_tokens)
    else:
        all_ids = np.concatenate(kept) if kept else np.zeros(0, dtype)
    return Tokens(ids=all_ids, offsets=np.array(offsets, dtype=np.int64), n_bytes=n_bytes, n_unknown=n_unknown)


def _batches(chunks: Iterable[Chunk]) -> Iterator[tuple[list[str], np.ndarray]]:
    """Texts of about a megabyte together, and which of them end a document, bool [n_texts]."""
    texts: list[str] = []
    ends: list[bool] = []
    size = 0
    for chunk in whole_words(chunks):
        texts.append(chunk.text)
        ends.append(chunk.ends)
        size += len(chunk.text) + 64
        if size >= _BATCH_CHARS:
            yield texts, np.array(ends)
            texts, ends, size = [], [], 0
    if texts:
        yield texts, np.array(ends)


def _mapped(file: Path, dtype: type, n_tokens: int) -> np.ndarray:
    return np.memmap(file, dtype=dtype, mode="r", shape=(n_tokens,)) if n_tokens else np.zeros(0, dtype)


def keep_tokens(folder: Path, make: Callable[[Path], tuple[dict[str, Tokens], dict[str, Any]]]) -> None:
    """Fill `folder` with what `make` gives, tokens of the parts and facts about them, whole or not at all.

    `make` works in a temporary folder, where it may leave ids as PART.ids. A folder that another process finished
    in the meantime is left as it is, a broken one is replaced.

    Raises StorageError where the folder cannot be written.
    """
    temporary = ""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.mkdtemp(dir=folder.parent, prefix=".tmp-")
        _write_parts(Path(temporary), *make(Path(temporary)))
        if folder.exists() and kept_tokens(folder, in_memory=False) is None:
            shutil.rmtree(folder)
        if not folder.exists():
            os.rename(temporary, folder)
    except OSError as error:
        raise StorageError(f"tokens cannot be kept in {str(folder)!r}: {error.strerror or error}") from None
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)


def _write_parts(folder: Path, parts: dict[str, Tokens], facts: dict[str, Any]) -> None:
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


def kept_tokens(folder: Path, in_memory: bool) -> tuple[dict[str, Tokens], dict[str, Any]] | None:
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
