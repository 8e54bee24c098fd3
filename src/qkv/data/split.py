"""Which part of a source is trained on and which is only ever measured on.

One text: its last tenth, at most 2 MB, cut at a character. Documents: whole groups of near-copies are drawn, in the
order of a hash of their words, until a tenth of the text (at most 2 MB) is held out. So the split depends on the
documents and on no seed, and two studies measure on the same text; on their order it depends where so many share a
passage that not all pairs are looked at (see `copies`). Where documents are so few or so long that no such draw comes
near a tenth, or so unequal that it takes more than a third of them, the last tenth of each is held out instead, and of
near-copies only the longest is used; where none may be cut (pairs) and they are so unequal, a tenth by number. A source
of its own for validation, given or a part of the same folder by its name (see `published`), is taken whole, and all of
the first is trained on.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from qkv.data.dedup import Sketches, group_copies, sketch
from qkv.data.sources.reading import character_start
from qkv.data.sources.source import Chunk, Source, text_chunks
from qkv.errors import SourceError
from qkv.tokenizers.tokens import n_utf8
from qkv.words import many

MOST_VAL_BYTES = 2_000_000
MOST_VAL_DOCUMENTS = 1 / 3
"""Share of the documents that a tenth of the text may take: more are the short ones alone, as long ones do not fit."""
_AHEAD = 2
"""Batches of documents that may be read before they are sketched."""
MOST_SKETCHED = 2_000_000
"""Beyond this many documents only equal ones (letters and digits) are kept together. At its peak a split takes about
200 bytes for each document up to here (400 MB in all) and 105 for each beyond."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One side of a split, readable again and again."""

    read: Callable[[], Iterator[Chunk]]
    """Gives its chunks in the order of the source."""
    n_bytes: int
    """UTF-8 bytes of its text."""
    text_file: Path | None = None
    """The file that it is a stretch of; None where there are documents."""
    stop: int = 0
    """Where that stretch ends."""

    def read_last(self, n_bytes: int) -> Iterator[Chunk]:
        """Its end, at least n_bytes where there are as many; documents are read from the first."""
        if self.text_file is None or self.n_bytes <= n_bytes + 3:
            return self.read()
        start = character_start(self.text_file, self.stop - n_bytes - 3)
        return text_chunks(self.text_file, start, self.stop)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Both sides and how they came about."""

    train: Part
    val: Part
    rule: str
    """One sentence for the report."""
    many_documents: bool
    """Whether ends of documents are marked by a token of their own."""
    copies: Mapping[int, int] = field(default_factory=dict)
    """Bytes of near-copies that are in neither part, by the number of their file."""
    n_copies: int = 0
    """How many documents these are."""
    revision: int = 1
    """2 or 3 where older versions of these rules split the same documents otherwise; so a run of before is told."""


def repeated(n: int, of: int, what: str) -> str:
    """What a person is told where `n` of the `of` things that a run is validated on are trained on too, else empty."""
    return f"{n:,} of its {of:,} {what} also stand in the training part" if n else ""


def split_source(source: Source, val: Source | None = None, *, cut: bool = True) -> Split:
    """Split a source, or set it beside one for validation: `val`, or what its folder holds for that by its name.

    Without `cut` no document is cut in two.

    Raises SourceError where there is too little to split: less than two documents, or fewer than 20 bytes of one text;
    and where documents that must not be cut are so few or so alike that no tenth of them can be held out.
    """
    measured = val or source.held_out
    if measured is not None:
        return Split(
            train=_whole(source),
            val=_whole(measured),
            rule=_rule(source, val),
            many_documents=source.text_file is None or measured.text_file is None,
        )
    split = _split_documents(source, cut) if source.text_file is None else _split_text(source, source.text_file)
    if source.published is None:
        return split
    return replace(split, rule=source.published.said(minus=split.rule))


def _whole(source: Source) -> Part:
    """All of a source; documents are read once for their bytes, since files also hold marks and other columns."""
    n_bytes = source.n_bytes if source.text_file else n_utf8(text for text, _, _ in source.chunks())
    return Part(read=source.chunks, n_bytes=n_bytes)


def _rule(source: Source, val: Source | None) -> str:
    """How two sources became the parts, in one sentence; `val` is None where the first one's folder holds both."""
    if val is None:
        assert source.published is not None, "what is held out of a folder is held out by its names"
        return source.published.said()
    given = f"{val.part} of {val.name}" if val.part else val.name
    if source.published is None:
        return f"{source.name} for training, {given} for validation"
    return source.published.said(validation=given)


def _split_text(source: Source, path: Path) -> Split:
    n = source.n_bytes
    if n < 20:
        raise SourceError(f"{source.name!r} has {n} bytes; too small to train on, give a longer text")
    cut = character_start(path, max(n * 9 // 10, n - MOST_VAL_BYTES))
    return Split(
        train=Part(read=lambda: source.read(0, cut), n_bytes=cut, text_file=path, stop=cut),
        val=Part(read=lambda: source.read(cut, None), n_bytes=n - cut),
        rule=f"the last {n - cut:,} of {n:,} bytes for validation",
        many_documents=False,
    )


@dataclass(frozen=True, kw_only=True)
class _Survey:
    """What one pass over the documents found."""

    n_bytes: np.ndarray
    """int64 [n]"""
    n_chars: np.ndarray
    """int64 [n]"""
    files: np.ndarray
    """int64 [n]: the number of the file of each."""
    sketches: Sketches


def _survey(source: Source) -> _Survey:
    """Sizes and sketches of all documents; a long document is sketched by its beginning."""
    sizes = array("q")  # bytes, characters and file of each document in turn
    sketches: list[Future[Sketches]] = []
    heads: list[str] = []
    waiting = 0
    n_bytes = n_chars = 0
    head = ""
    with ThreadPoolExecutor(1) as pool:  # it sketches while the next ones are read

        def flush() -> None:
            nonlocal heads, waiting
            if len(sketches) >= _AHEAD:
                sketches[-_AHEAD].result()
            sketches.append(pool.submit(sketch, heads, compare=len(sizes) <= 3 * MOST_SKETCHED))
            heads, waiting = [], 0

        for text, ends, file in source.chunks():
            if not n_chars:
                head = text[: 1 << 17]
            n_chars += len(text)
            n_bytes += n_utf8((text,))
            if ends:
                sizes.extend((n_bytes, n_chars, file))
                heads.append(head)
                waiting += len(head)
                n_bytes = n_chars = 0
                if waiting > 1 << 21:
                    flush()
        if heads:
            flush()
        found = [each.result() for each in sketches]
    table = np.array(sizes, dtype=np.int64).reshape(-1, 3)
    if not len(table):
        raise SourceError(f"{source.name!r} holds no text")
    joined = Sketches(
        keys=np.concatenate([part.keys for part in found]),
        bins=np.concatenate([part.bins for part in found]),
        marks=any(part.marks for part in found),
    )
    return _Survey(n_bytes=table[:, 0], n_chars=table[:, 1], files=table[:, 2], sketches=joined)


def _split_documents(source: Source, cut: bool) -> Split:
    survey = _survey(source)
    n, total = len(survey.n_bytes), int(survey.n_bytes.sum())
    if n < 2:
        raise SourceError(f"{source.name!r} has one document with text; at least two are needed to hold one out")
    group = group_copies(survey.sketches)
    target = min(total // 10, MOST_VAL_BYTES)
    held_out = _draw(survey.n_bytes, survey.sketches.keys, group, target)
    val_bytes = int(survey.n_bytes[held_out].sum())
    too_few, too_many = val_bytes < target // 2, held_out.mean() > MOST_VAL_DOCUMENTS
    if too_few and not cut:
        raise SourceError(
            f"the {n:,} {source.kind} of {source.name!r} are too few or too alike to hold some out;"
            " give others for validation with --val"
        )
    if cut and (too_few or too_many):
        return _split_tails(source, survey, group, drawn_before=not too_few)
    if too_many:
        held_out = _draw(np.ones(n), survey.sketches.keys, group, max(1, n // 10))
        val_bytes = int(survey.n_bytes[held_out].sum())
    copies = n - len(np.unique(group))
    return Split(
        train=Part(read=lambda: _chosen(source, ~held_out), n_bytes=total - val_bytes),
        val=Part(read=lambda: _chosen(source, held_out), n_bytes=val_bytes),
        rule=f"{int(held_out.sum()):,} of {n:,} documents for validation"
        + (f", {copies:,} near-copies kept on the side of their originals" if copies else ""),
        many_documents=True,
        revision=3 if survey.sketches.marks else 2 if too_many else 1,
    )


def _draw(weights: np.ndarray, keys: np.ndarray, group: np.ndarray, target: int) -> np.ndarray:
    """Which documents are held out, bool [n]: groups in the order of their least key, each that still fits."""
    n = len(group)
    sizes = np.bincount(group, weights=weights, minlength=n)
    least = np.full(n, np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(least, group, keys)
    chosen = np.zeros(n, dtype=bool)
    left = float(target)
    for first in np.argsort(least, kind="stable"):
        if 0 < sizes[first] <= left:
            chosen[first] = True
            left -= sizes[first]
            if left < target * 0.02:
                break
    return chosen[group]


def _chosen(source: Source, wanted: np.ndarray) -> Iterator[Chunk]:
    """The chunks of the documents marked in `wanted`."""
    number = 0
    for chunk in source.chunks():
        if wanted[number]:
            yield chunk
        number += chunk.ends


def _split_tails(source: Source, survey: _Survey, group: np.ndarray, drawn_before: bool) -> Split:
    """The last tenth of each document. Of a group of near-copies only the longest is used (the first of such): what its
    tail says would stand in the others, which are left out of both sides.
    """
    used = _longest(survey.n_chars, group)
    n, n_copies = int(used.sum()), int((~used).sum())
    total = int(survey.n_bytes[used].sum())
    share = min(0.1, MOST_VAL_BYTES / total)
    cuts = survey.n_chars - np.ceil(survey.n_chars * share).astype(np.int64)
    val_bytes = int((survey.n_bytes * (1 - cuts / np.maximum(survey.n_chars, 1)))[used].sum())
    copied = f", {many(n_copies, 'near-copy', 'near-copies')} of {'them' if n > 1 else 'it'} left out"
    each = f"each of {n:,} documents" if n > 1 else "the longest document"
    copies = Counter[int]()
    for file, n_bytes in zip(survey.files[~used].tolist(), survey.n_bytes[~used].tolist(), strict=True):
        copies[file] += n_bytes
    return Split(
        train=Part(read=lambda: _stretches(source, cuts, used, tails=False), n_bytes=total - val_bytes),
        val=Part(read=lambda: _stretches(source, cuts, used, tails=True), n_bytes=val_bytes),
        rule=f"the last {100 * share:.2g}% of {each} for validation" + copied * bool(n_copies),
        many_documents=True,
        copies=copies,
        n_copies=n_copies,
        revision=3 if survey.sketches.marks else 2 if n_copies or drawn_before else 1,
    )


def _longest(n_chars: np.ndarray, group: np.ndarray) -> np.ndarray:
    """bool [n]: one document of each group, the longest, of equally long ones the first."""
    order = np.lexsort((np.arange(len(group)), -n_chars, group))
    chosen = np.zeros(len(group), dtype=bool)
    chosen[order[np.flatnonzero(np.diff(group[order], prepend=-1))]] = True
    return chosen


def _stretches(source: Source, cuts: np.ndarray, wanted: np.ndarray, *, tails: bool) -> Iterator[Chunk]:
    """Characters 0 to cuts[i] of each wanted document i, or with `tails` those from there onwards."""
    number = seen = 0
    for text, ends, file in source.chunks():
        room = max(int(cuts[number]) - seen, 0)
        if wanted[number] and tails and ((tail := text[room:]) or ends):
            yield Chunk(tail, ends, file)
        elif wanted[number] and not tails and room:
            yield Chunk(text[:room], ends or room <= len(text), file)
        seen += len(text)
        if ends:
            number, seen = number + 1, 0
