"""What counting and compressing reach on the same validation text, so that a loss can be called good or bad.

Unigram, bigram and the best interpolated Kneser-Ney n-gram of orders 1 to 8 are counted on the training tokens and
scored on the validation tokens; xz is what the validation text adds to a compressed training text. A Transformer
that does not beat them has learned less than counting does. Results are kept in the cache under hashes of data and
tokenizer.
"""

import hashlib
import json
import lzma
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from qkv.data.baseline.ngrams import ngram_losses
from qkv.data.caching import cache_key, read_cached, write_cached
from qkv.data.corpus import Corpus
from qkv.jsontypes import JsonObject

MOST_ORDERS = 8
MOST_COUNTED = 4 << 20
"""Training tokens that n-grams are counted on at most: 64 blocks spread evenly over a longer text (250 MB)."""
MOST_SCORED = 2 << 20
"""Validation tokens that n-grams are scored on at most, the first ones."""
XZ_WINDOW = 4 << 20
"""Bytes of training text before the validation text that xz is given, the last ones, and most bytes of validation text;
it bounds the time to about ten seconds (xz itself would look back 8 MiB)."""

BY_TOKEN = ".nats"
"""What the name of a file of the cache ends with that holds what each token costs."""

_BLOCKS = 64


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """Losses to beat, in nats per token of the validation part."""

    unigram: float
    """Each token by its frequency."""
    bigram: float
    """Kneser-Ney of order 2."""
    ngram: float
    """Kneser-Ney of the order that does best."""
    ngram_order: int
    """That order, 1 to 8."""
    xz: float
    """(len(xz(train + val)) - len(xz(train))) bytes, in nats per token."""
    orders: tuple[float, ...]
    """Kneser-Ney of orders 1, 2, ... as far as they were tried: two that do worse in a row end the search."""
    bits_per_byte: dict[str, float | None]
    """unigram, bigram, ngram, xz in bits per byte of the original validation text (None where that cannot be told), and
    ngram_order as it is."""
    note: str
    """What was sampled, or empty where all of the text was used."""
    by_token: np.ndarray = field(repr=False, compare=False)
    """float32 [n_scored]: nats of each validation token after the first, under the best n-gram."""

    @property
    def facts(self) -> JsonObject:
        """All but what each token costs."""
        return {name: value for name, value in asdict(self).items() if name != "by_token"}


def baselines(corpus: Corpus, cache: Path | None = None) -> Baselines:
    """Count, compress and score; about a second per megabyte of text the first time, from the cache afterwards.

    A pure function of the corpus, fit for a thread: sorting and compressing leave Python's lock.
    """
    facts, by_token = kept_or_made(cache, _name(corpus), lambda: _made(corpus))
    return Baselines(**facts | {"orders": tuple(facts["orders"]), "by_token": by_token})


def kept_or_made(
    cache: Path | None, name: str, make: Callable[[], tuple[JsonObject, np.ndarray]]
) -> tuple[JsonObject, np.ndarray]:
    """Facts, and the nats of each token as float32, from the cache; else `make`s them and keeps them there."""
    kept, each = read_cached(cache, name), read_cached(cache, name + BY_TOKEN)
    if kept is not None and each is not None:
        return json.loads(kept), np.frombuffer(each, dtype="<f4")
    facts, by_token = make()
    by_token = by_token.astype("<f4")
    write_cached(cache, name, json.dumps(facts).encode())
    write_cached(cache, name + BY_TOKEN, by_token.tobytes())
    return facts, by_token


def _made(corpus: Corpus) -> tuple[JsonObject, np.ndarray]:
    """All of `Baselines` but what each token costs; and that."""
    with ThreadPoolExecutor(2) as pool:
        before, val = _texts(corpus)
        alone, both = (pool.submit(lzma.compress, text, preset=6) for text in (before, before + val))
        orders, by_token = _ngrams(corpus)
        n_bytes = max(1, len(val) - val.count(b"\0"))  # the ends of documents are coded, and are no text
        xz_bits_per_byte = 8 * (len(both.result()) - len(alone.result())) / n_bytes
    best = int(np.argmin(orders))
    nats = {"unigram": orders[0], "bigram": orders[1], "ngram": orders[best]}
    bits = {name: corpus.bits_per_byte(value) for name, value in nats.items()}
    return {
        **nats,
        "ngram_order": best + 1,
        "xz": xz_bits_per_byte * math.log(2) * corpus.bytes_per_token,
        "orders": orders,
        "bits_per_byte": bits | {"ngram_order": best + 1, "xz": xz_bits_per_byte},
        "note": _note(corpus),
    }, by_token


def expected_seconds(corpus: Corpus, cache: Path | None) -> float:
    """About how long `baselines` takes on a core of its own: what the longest of its three parts does, 0 where kept.

    A law of sizes alone: xz 0.85 s a megabyte, the n-grams 1.2 s for a million tokens.
    """
    if cache is not None and (cache / _name(corpus)).is_file():
        return 0.0
    text = min(corpus.train.n_bytes, XZ_WINDOW) + min(corpus.val.n_bytes, XZ_WINDOW)
    tokens = min(len(corpus.train), MOST_COUNTED) + min(len(corpus.val), MOST_SCORED)
    return max(0.85e-6 * text, 1.2e-6 * tokens)


def _name(corpus: Corpus) -> str:
    """Where they are kept."""
    measured = hashlib.sha256(corpus.val.ids[:MOST_SCORED].tobytes()).hexdigest()
    facts = (corpus.sha256, corpus.tokenizer.sha256, len(corpus.train), len(corpus.val), measured)
    return f"baselines/{cache_key(*facts)}.json"


def ngram_losses_by_order(corpus: Corpus) -> tuple[float, ...]:
    """Mean Kneser-Ney nats per validation token of orders 1, 2, ..., until two in a row did worse than the best."""
    return _ngrams(corpus)[0]


def _ngrams(corpus: Corpus) -> tuple[tuple[float, ...], np.ndarray]:
    """`ngram_losses_by_order`, and the nats of each token under the best of them, float32 [n_scored]."""
    train = spread(corpus.train.ids, MOST_COUNTED)
    losses: list[float] = []
    best = np.zeros(0, dtype=np.float32)
    for nats in ngram_losses(train, corpus.val.ids[:MOST_SCORED], corpus.tokenizer.d_vocab, MOST_ORDERS):
        losses.append(float(nats.mean()))
        if losses[-1] == min(losses):
            best = nats.astype(np.float32)
        if len(losses) >= 4 and min(losses[-2:]) > min(losses):
            break
    return tuple(losses), best


def spread(ids: np.ndarray, most: int) -> np.ndarray:
    """All ids, or blocks of them spread evenly, `most` in all."""
    if len(ids) <= most:
        return ids
    starts = np.linspace(0, len(ids) - most // _BLOCKS, _BLOCKS).astype(np.int64)
    return np.concatenate([ids[start : start + most // _BLOCKS] for start in starts])


def _texts(corpus: Corpus) -> tuple[bytes, bytes]:
    """The last XZ_WINDOW bytes of the training text, and the validation text (its first XZ_WINDOW bytes)."""
    before, val = bytearray(), bytearray()
    for piece in corpus.text("train", last_bytes=XZ_WINDOW):
        before += piece.encode("utf-8", "replace")
        if len(before) > 2 * XZ_WINDOW:
            del before[:-XZ_WINDOW]
    for piece in corpus.text("val"):
        val += piece.encode("utf-8", "replace")
        if len(val) > XZ_WINDOW:
            break
    return bytes(before[-XZ_WINDOW:]), bytes(val[:XZ_WINDOW])


def _note(corpus: Corpus) -> str:
    notes = []
    if len(corpus.train) > MOST_COUNTED:
        notes.append(f"n-grams counted on {MOST_COUNTED:,} of {len(corpus.train):,} training tokens, in even blocks")
    if len(corpus.val) > MOST_SCORED:
        notes.append(f"n-grams scored on the first {MOST_SCORED:,} validation tokens")
    if corpus.train.n_bytes > XZ_WINDOW:
        notes.append(f"xz given the last {XZ_WINDOW:,} bytes of the training text")
    if corpus.val.n_bytes > XZ_WINDOW:
        notes.append(f"xz measured on the first {XZ_WINDOW:,} bytes of the validation text")
    return "; ".join(notes)


def bigram_loss(corpus: Corpus) -> float:
    """Nats per validation token under the bigram counts of the training part, one added to each: a quick yardstick."""
    size = corpus.tokenizer.d_vocab
    ids, val = (np.asarray(part.ids[:2_000_000], dtype=np.int64) for part in (corpus.train, corpus.val))
    pairs, seen = np.unique(ids[:-1] * size + ids[1:], return_counts=True)
    firsts = np.bincount(ids[:-1], minlength=size)
    asked = val[:-1] * size + val[1:]
    at = np.minimum(np.searchsorted(pairs, asked), len(pairs) - 1)
    count = np.where(pairs[at] == asked, seen[at], 0)
    return float(-np.log((count + 1) / (firsts[val[:-1]] + size)).mean())
