"""A corpus: one source, split, cut into tokens, and what is needed to turn its loss into bits per byte.

Opening a corpus reads its source once for its hash, fits or reads a tokenizer, and tokenises both parts; the
vocabulary and the tokens are kept in the cache under a hash of everything that they depend on, so that the second
run reads only for the hash. Nothing depends on a seed: runs of a study see the same text, cut the same way.
"""

import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from qkv.data.caching import cache_key, read_cached, write_cached
from qkv.data.config import DataConfig
from qkv.data.counting import counting, facts_of_reading, source_receipt
from qkv.data.dataset import DataSet
from qkv.data.sources.sampling import evenly, held, sampled
from qkv.data.sources.source import Chunk, Source, open_source, open_validation
from qkv.data.split import Part, Split, split_source
from qkv.data.tokenizing import IN_MEMORY_BYTES, keep_tokens, kept_tokens, tokenise, whole_words
from qkv.errors import ConfigError, SourceError, StorageError, unknown
from qkv.jsontypes import JsonObject
from qkv.tokenizers.encoders import most_workers
from qkv.tokenizers.fitting import FITTED_SAMPLE
from qkv.tokenizers.lossy_charge import charge_nats
from qkv.tokenizers.tokenizer import KINDS, Tokenizer, fit_tokenizer, load_tokenizer, vocabulary_law
from qkv.tokenizers.tokens import Tokens, n_utf8

DEFAULT_KIND = "bpe"

_CHARGED_SAMPLE = 1 << 20
"""Characters of the training part that the byte model of `lost` is counted on."""

ITSELF = "it is measured on the very text that it is trained on, so the loss says nothing of other text"
"""Of a source that is given for validation as well."""

Progress = Callable[[str, float], None]
"""Told what is being done and the share of it that is done, 0 to 1."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus(DataSet):
    """Tokens for training and validation, and what they came from.

    Its sha256 is joined with the revision of the split too where that is not the first, so that a run which saw these
    documents split otherwise does not take them for its own.
    """

    tokenizer: Tokenizer
    train: Tokens
    val: Tokens
    charge_nats: float | None
    """Nats for what the tokenizer threw away of the validation text: 0 where nothing, None where nobody can tell."""
    uncharged: str = ""
    """Why nobody can tell, or empty."""
    split: Callable[[], Split] = field(repr=False)
    """Gives the split again, for whoever needs the text itself."""

    def describe(self) -> str:
        """One line: how many tokens, of what kind, how the parts were made, and what else a person should know."""
        return (
            f"{self.name}: {len(self.train):,} training and {len(self.val):,} validation tokens"
            f" ({self.tokenizer.kind}, vocabulary {self.tokenizer.d_vocab:,}); {self.rule}.{self.note_sentence}"
        )

    @property
    def bytes_per_token(self) -> float:
        """Bytes of the original validation text per token."""
        return self.val.n_bytes / len(self.val)

    def bits_per_byte(self, loss_nats: float) -> float | None:
        """Bits per byte of the original validation text at a mean loss in nats per token, charge included.

        (loss * n_tokens + charge) / (ln 2 * n_bytes); the first token, which no window predicts, counts as the
        mean. None where the tokenizer loses text that cannot be charged. Not for masked losses.
        """
        if self.charge_nats is None:
            return None
        return (loss_nats * len(self.val) + self.charge_nats) / (math.log(2) * self.val.n_bytes)

    def n_words(self) -> int:
        """Words of the validation text between white space, plus its line ends."""
        count, inside = 0, False
        for piece in self.text("val"):
            piece = piece.replace("\0", " ")  # the end of a document
            count += len(piece.split()) + piece.count("\n") - (inside and not piece[:1].isspace())
            inside = bool(piece) and not piece[-1].isspace()
        return count

    def text(self, part: str, last_bytes: int | None = None) -> Iterator[str]:
        """The text of "train" or "val" in pieces, read again from the source; documents are set apart by NUL.

        With `last_bytes` at least that much of its end, where that can be had without reading all of it.
        """
        split = self.split()
        side = split.train if part == "train" else split.val
        for chunk in side.read() if last_bytes is None else side.read_last(last_bytes):
            yield chunk.text
            if chunk.ends and split.many_documents:
                yield "\0"


def load_corpus(
    config: DataConfig, *, cache: Path | None, task_specials: bool = False, progress: Progress | None = None
) -> Corpus:
    """Open a source, split it, fit or read its tokenizer, and cut it into tokens.

    task_specials: whether the vocabulary needs [PAD] [UNK] [CLS] [SEP] [MASK]. `cache` is a folder kept between runs;
    None keeps nothing, and then a source over 64 MB cannot be opened. Memory stays bounded whatever the source's size.

    Raises SourceError for a source that cannot be read as asked or is too small, ConfigError for a tokenizer or
    vocabulary that does not exist, StorageError where a large source finds no room in the cache.
    """
    source = open_source(config, cache)
    val = open_validation(config, cache) if config.val else source.held_out
    many = source.text_file is None or (val is not None and val.text_file is None)
    digest = source.sha256 if val is None else joined_hash(source.sha256, val.sha256)
    columns = (config.text_column, config.label_column) if source.text_file is None else ()
    reading = (*columns, *_reading(source), *(_reading(val) if val is not None else ()))
    reading = (*reading, *([f"train {config.train_bytes}"] if config.train_bytes else ()))
    reading = (*reading, *([source.published.said()] if source.published else ()), *([val.part] if val else ()))

    given = val if config.val else None

    @lru_cache(maxsize=1)
    def split() -> Split:
        if not config.train_bytes:
            return split_source(source, given)
        with held(source, IN_MEMORY_BYTES) as quick:
            return sampled(split_source(quick, given), config.train_bytes)

    told = progress or (lambda what, share: None)
    tokenizer = fitted_tokenizer(config, split, cache_key(digest, *reading), many, task_specials, cache, told)
    key = cache_key(digest, *reading, tokenizer.sha256, many, *(["alone"] if _same(source, val) else []))
    parts, facts = _tokens(source, val, split, tokenizer, many, key, cache, told)
    for name, tokens in parts.items():
        if len(tokens) < 2:
            what = "training text" if name == "train" else "text held out for validation"
            raise SourceError(f"{source.name!r} is too small: its {what} is {len(tokens)} token long; give more text")
    return Corpus(
        name=source.name,
        kind=source.kind,
        sha256=digest if facts["revision"] == 1 else joined_hash(digest, f"split {facts['revision']}"),
        tokenizer=tokenizer,
        train=parts["train"],
        val=parts["val"],
        rule=facts["rule"],
        note="; ".join(filter(None, (source.note, _marked(source), ITSELF if _same(source, val) else ""))),
        receipt=source_receipt(source, val, facts["read"], is_sampled=bool(config.train_bytes)),
        charge_nats=facts["charge_nats"],
        uncharged=_why_uncharged(source, val) if facts["charge_nats"] is None else "",
        split=split,
    )


def _marked(source: Source) -> str:
    """What a person is told of marks that end documents elsewhere, and are letters here; else empty."""
    mark = max(source.marks, key=lambda name: source.marks[name], default="")
    if not mark:
        return ""
    how = f"--set document_end='{mark}' ends documents there"
    return f"{mark} occurs {source.marks[mark]:,} times in the text and is read as letters ({how})"


def measured_on(corpus: Corpus, n_bytes: int) -> Corpus:
    """The same corpus, measured on the first `n_bytes` of its validation text only, cut where a word begins.

    The cut is in the text and not in its tokens, so every tokenizer is measured on the very same bytes, and what it
    loses is charged for these alone.
    """
    both = corpus.split()
    if both.val.n_bytes <= n_bytes:
        return corpus
    chunks = _first_bytes(both.val, n_bytes)
    shorter = replace(both, val=Part(read=lambda: iter(chunks), n_bytes=n_utf8(chunk.text for chunk in chunks)))
    val = tokenise(chunks, corpus.tokenizer, _end_mark(corpus.tokenizer) if both.many_documents else None)
    charge = None if corpus.charge_nats is None else _charge(corpus.tokenizer, shorter, False)
    return replace(corpus, val=val, charge_nats=charge, split=lambda: shorter)


def _first_bytes(part: Part, n_bytes: int) -> list[Chunk]:
    """Chunks of at most `n_bytes`, the last cut before a space or line end where it has one."""
    found: list[Chunk] = []
    for chunk in part.read():
        data = chunk.text.encode("utf-8", "replace")
        if len(data) > n_bytes:
            head = data[:n_bytes].decode("utf-8", "ignore")
            cut = max(head.rfind(" "), head.rfind("\n"))
            return [*found, Chunk(head[:cut] if cut > 0 else head, True)]
        found.append(chunk)
        n_bytes -= len(data)
    return found


def joined_hash(*parts: str) -> str:
    """What data of several parts are known again by: it stands in run folders, so it never changes."""
    return hashlib.sha256(json.dumps([1, *parts]).encode()).hexdigest()


def _reading(source: Source) -> tuple[str, str]:
    """How the bytes of a source became text: its kind, and the column that was found (the note of a folder counts what
    was passed over, which changes no text).
    """
    return source.kind, "" if source.kind == "folder" else source.note


def is_file_of_tokenizer(config: DataConfig) -> bool:
    """Whether the settings name a tokenizer that is read, and not a kind that is fitted.

    Raises ConfigError for a name that is neither, and for a size of a vocabulary that is read.
    """
    kind = config.tokenizer or DEFAULT_KIND
    if kind in KINDS:
        return False
    if not Path(kind).exists() and not any(mark in kind for mark in "/\\."):
        raise ConfigError(f"{unknown('tokenizer', kind, KINDS)} (a file or folder that holds one will do as well)")
    if config.vocab:
        raise ConfigError(f"vocab has no effect on a tokenizer that is read ({kind!r}); leave it out")
    return True


def fitted_tokenizer(
    config: DataConfig,
    split: Callable[[], Split],
    source_key: str,
    many: bool,
    specials: bool,
    cache: Path | None,
    told: Progress,
) -> Tokenizer:
    """The tokenizer that the settings name: read from files, from the cache, or fitted to the training part."""
    kind = config.tokenizer or DEFAULT_KIND
    if is_file_of_tokenizer(config):
        return load_tokenizer(kind, specials=specials)  # grown by an end mark it would not fit its model any more
    name = f"tokenizers/{cache_key(source_key, kind, config.vocab, many, specials)}.json"
    kept = read_cached(cache, name)
    if kept is not None:
        return Tokenizer.from_json(kept.decode())
    told(f"fitting {kind} vocabulary", 0.0)
    train = split().train
    vocab = config.vocab or vocabulary_law(kind, train.n_bytes)
    texts = (chunk.text for chunk in evenly(train, None if kind == "char" else FITTED_SAMPLE))
    tokenizer = fit_tokenizer(kind, texts, vocab, specials=specials, end=many)
    write_cached(cache, name, tokenizer.to_json().encode())
    return tokenizer


def _tokens(
    source: Source,
    val: Source | None,
    split: Callable[[], Split],
    tokenizer: Tokenizer,
    many: bool,
    key: str,
    cache: Path | None,
    told: Progress,
) -> tuple[dict[str, Tokens], JsonObject]:
    """Tokens of both parts and facts about them: from the cache, or made now and kept there."""
    n_bytes = source.n_bytes + (val.n_bytes if val else 0)
    small = n_bytes <= IN_MEMORY_BYTES
    folder = cache / "tokens" / key if cache is not None else None
    if folder is not None and (found := kept_tokens(folder, in_memory=small)) is not None:
        return found

    def make(work: Path | None) -> tuple[dict[str, Tokens], JsonObject]:
        parts, done = {}, 0

        def progress(n_chars: int) -> None:
            nonlocal done
            done += n_chars
            told("tokenising", min(done / n_bytes, 1.0))

        both, counts = split(), {"train": Counter[int](), "val": Counter[int]()}
        for name, part in (("train", both.train), ("val", both.val)):
            file = None if work is None else work / f"{name}.ids"
            end, workers = _end_mark(tokenizer) if many else None, most_workers()
            several = len((source if val is None or name == "train" else val).files) > 1
            chunks = counting(part.read(), counts[name]) if several else part.read()
            parts[name] = tokenise(chunks, tokenizer, end, file, progress, workers)
            counts[name] = counts[name] or Counter({0: parts[name].n_bytes})
        charge = _charge(tokenizer, both, _same(source, val))
        read = facts_of_reading(source, val, both, counts)
        return parts, {"rule": both.rule, "revision": both.revision, "charge_nats": charge, "read": read}

    if small:
        parts, facts = make(None)
        if folder is not None and tokenizer.kind not in ("char", "byte"):  # those two cost less than reading a file
            with suppress(StorageError):
                keep_tokens(folder, lambda _: (parts, facts))
        return parts, facts
    if folder is None:
        raise StorageError(f"{source.name!r} has {n_bytes:,} bytes; its tokens need a cache folder on disk")
    keep_tokens(folder, make, goes_on=True)
    kept = kept_tokens(folder, in_memory=False)
    if kept is None:
        raise StorageError(f"tokens that were just written to {str(folder)!r} cannot be read back")
    return kept


def _end_mark(tokenizer: Tokenizer) -> int | None:
    """The token put behind each of many documents: its own for that, else a line end, else none."""
    if tokenizer.end_id is not None:
        return tokenizer.end_id
    ids = tokenizer.encode("\n")
    return int(ids[0]) if len(ids) == 1 and ids[0] != tokenizer.unknown_id else None


def _same(source: Source, val: Source | None) -> bool:
    """Whether the very text that is measured on was given to train on as well."""
    if val is None or _reading(val) != _reading(source):
        return False
    return val.sha256 == source.sha256 or "" != val.content == source.content


def _why_uncharged(source: Source, val: Source | None) -> str:
    if _same(source, val):
        return "the tokenizer drops some of the text, and what that costs cannot be counted on the text itself"
    return "the tokenizer changes letters, so that its tokens do not give the text back"


def _charge(tokenizer: Tokenizer, both: Split, same: bool) -> float | None:
    """0 where the validation text comes back whole, else what `lost` charges. Where both sides are one text, its own
    counts would be a code that nobody else has: then unknown characters are charged as bytes of equal probability, and
    nothing can be where a tokenizer loses more than these.
    """
    if tokenizer.always_lossless or all(map(tokenizer.is_lossless, _texts(both.val))):
        return 0.0
    if same and tokenizer.kind != "char":
        return None
    counted = () if same else _texts(both.train, _CHARGED_SAMPLE)
    return charge_nats(tokenizer, counted, _texts(both.val))


def _texts(part: Part, most_chars: int = sys.maxsize) -> Iterator[str]:
    """Texts of a part, cut where words begin; only the first most_chars characters where given."""
    for chunk in whole_words(part.read()):
        yield chunk.text[:most_chars]
        most_chars -= len(chunk.text)
        if most_chars <= 0:
            return
