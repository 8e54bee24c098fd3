"""A part of a text in place of all of it: pieces spread evenly, the same for everybody.

Of documents whole chunks are taken, of one long text stretches. Nothing is drawn: which pieces they are follows from
the text and the number of bytes. What is measured on is never sampled.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from qkv.data.sources.source import Chunk, Source
from qkv.data.split import MOST_VAL_BYTES, Part, Split
from qkv.data.tokenizing import whole_words
from qkv.tokenizers.tokens import n_utf8
from qkv.words import megabytes


def sampled(split: Split, most_bytes: int) -> Split:
    """The same split with about `most_bytes` of its training part, held in memory; 0 is all of it, as it was.

    The part to measure on is the same, and is held as well where it is a part of one source.
    """
    if not most_bytes or split.train.n_bytes <= most_bytes:
        return split
    documents = split.many_documents
    train = list(_stretches(split.train, most_bytes) if split.train.text_file else evenly(split.train, most_bytes))
    last = len(train) - 1
    train = [chunk._replace(ends=documents or i == last) for i, chunk in enumerate(train)]
    size = n_utf8(chunk.text for chunk in train)
    part = Part(read=lambda: iter(train), n_bytes=size)
    rule = f"{split.rule}; {size / 1e6:.1f} of {megabytes(split.train.n_bytes)} for training, in even pieces"
    return replace(split, train=part, val=_held(split.val), rule=rule)


@contextlib.contextmanager
def held(source: Source, most_bytes: int) -> Iterator[Source]:
    """The same source, which is read once for all readings inside where it has at most so many bytes."""
    if source.n_bytes > most_bytes:
        yield source
        return
    chunks: list[Chunk] | None = []

    def read(start: int, stop: int | None) -> Iterator[Chunk]:
        if chunks is None or (start, stop) != (0, None):
            return source.read(start, stop)
        if not chunks:
            chunks.extend(source.chunks())
        return iter(chunks)

    try:
        yield replace(source, read=read)
    finally:
        chunks = None


def evenly(part: Part, most_bytes: int | None) -> Iterator[Chunk]:
    """The chunks of a part, or evenly spread ones of it that come to about `most_bytes`."""
    chunks = whole_words(part.read())
    if most_bytes is None or part.n_bytes <= most_bytes:
        yield from chunks
        return
    step = part.n_bytes / most_bytes
    seen = taken = 0
    for chunk in chunks:
        seen += len(chunk.text)
        if seen >= taken * step:
            taken += len(chunk.text)
            yield chunk


def _stretches(part: Part, most_bytes: int) -> Iterator[Chunk]:
    """The beginning of every chunk of one long text, as large a share of each; cut where words begin if it can be."""
    share = most_bytes / part.n_bytes
    for number, chunk in enumerate(part.read()):
        text = chunk.text[: round(share * len(chunk.text))]
        first, end = text.find(" ") if number else 0, text.rfind(" ")
        yield Chunk(text[max(first, 0) : end if end > first else len(text)], False, chunk.file)


def _held(part: Part) -> Part:
    """The same part, in memory from its first reading on, where it is small."""
    if part.n_bytes > MOST_VAL_BYTES:
        return part
    chunks = list(part.read())
    return replace(part, read=lambda: iter(chunks))
