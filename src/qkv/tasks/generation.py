"""Continuing token sequences with a causal model: a key/value cache, sampling by named draws, prompts of any length.

Prompts of unequal length go through together without padding: the rows read up to the end of the shortest prompt at
once, and from there one token at a time, a row taking its own prompt's token while it has one and its sampled token
after that. So every row stands at the same position, whatever kind of positions the model has.

A model sees n_ctx tokens at most. When a sequence outgrows that, its oldest quarter is dropped and the rest is read
again from position 0 (`context_start`), since learned positions and cached keys belong to places that the tokens no
longer hold. From then on each token is chosen from the last 3/4 n_ctx to n_ctx tokens. Speculation, beams and streams
are not made here.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from qkv.kernels.cache import KVCache
from qkv.models.decoding import Decoding, decoding_of, give_back
from qkv.models.decoding import serves as decoding_serves
from qkv.models.zoo import LanguageModel
from qkv.randomness import generator

_LARGEST_GROUP = 64
_WORTH_A_THREAD = 4_000_000
"""Multiplications a step from which on more than one thread pays."""


class Sampling(NamedTuple):
    """How the next token is chosen from its logits."""

    temperature: float
    """Divides the logits; 0 takes the largest."""
    top_k: int = 0
    """Only the k largest; 0 is all."""
    top_p: float = 1.0
    """Only the fewest tokens that hold this share of the probability (Holtzman et al. 2020, arXiv 1904.09751)."""
    banned: Sequence[int] = ()
    """Ids that are never chosen."""
    ends: Sequence[int] = ()
    """Ids that end a continuation; none can be its first token, unless `may_be_empty`."""
    may_be_empty: bool = False


def generate(
    model: LanguageModel, prompts: Sequence[np.ndarray], *, tokens: int, how: Sampling, seed: int
) -> list[np.ndarray]:
    """New ids for each prompt (int64 [n], n >= 1), in the order of prompts: int64 [tokens], or fewer, up to an end.

    Draw j of prompt i is named (seed, "sample", i), so it does not depend on how prompts are grouped; logits of a group
    equal those of a prompt alone up to rounding.
    """
    out = [np.empty(0, dtype=np.int64)] * len(prompts)
    for rows in _groups([len(prompt) for prompt in prompts], tokens):
        draws = np.stack([generator(seed, "sample", row).random(tokens) for row in rows])
        with _threads_for(model, len(rows)):
            continued = _continued(model, [prompts[row] for row in rows], draws, how)
        for row, ids in zip(rows, continued, strict=True):
            out[row] = ids
    return out


@contextlib.contextmanager
def _threads_for(model: LanguageModel, rows: int) -> Iterator[None]:
    """One thread inside where a step is so small that waking a second one costs more than it does.

    Asked from the main thread alone: torch hands the number on to threads that start meanwhile, and these would put
    back one for good.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    threads, weights = torch.get_num_threads(), sum(p.numel() for p in model.parameters())
    try:
        torch.set_num_threads(1 if rows * weights < _WORTH_A_THREAD else threads)
        yield
    finally:
        torch.set_num_threads(threads)


def context_start(length: int, n_ctx: int) -> int:
    """The first token that is still seen when the next is chosen after `length` tokens; length - start <= n_ctx."""
    if length <= n_ctx:
        return 0
    hop = max(1, n_ctx // 4)
    return -(-(length - n_ctx) // hop) * hop


def _groups(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Prompts that go together: similar lengths, so that no row waits longer for the others than it runs itself."""
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        last = groups[-1] if groups else []
        if last and len(last) < _LARGEST_GROUP and lengths[row] - lengths[last[0]] < tokens:
            last.append(row)
        else:
            groups.append([row])
    return groups


@torch.inference_mode()
def _continued(
    model: LanguageModel, prompts: Sequence[np.ndarray], draws: np.ndarray, how: Sampling
) -> list[np.ndarray]:
    """New ids of prompts that go together; draws float64 [row, tokens] in 0..1."""
    rows, tokens = len(prompts), draws.shape[1]
    given = np.array([len(prompt) for prompt in prompts])
    ids = np.zeros((rows, int(given.max()) + tokens), dtype=np.int64)
    draw_of = np.zeros(ids.shape)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = prompt
        draw_of[row, len(prompt) : len(prompt) + tokens] = draws[row]
    read, ends = _Reader(model, ids), list(how.ends)
    stop = given + tokens  # where each row is complete
    alike = range(0) if ends else range(int(given.max()), int(stop.min()))  # where every row has a token due
    for length in range(int(given.min()), ids.shape[1]):
        logits = read(length)
        if length in alike:
            ids[:, length] = choose(logits, draw_of[:, length], how)
            continue
        due = (length >= given) & (length < stop)  # before that a row is still reading its prompt
        if due.any():
            if ends and not how.may_be_empty and (given == length).any():
                logits = logits.copy()
                logits[np.flatnonzero(given == length)[:, None], ends] = -np.inf
            chosen = choose(logits, draw_of[:, length], how)
            ids[due, length] = chosen[due]
            if ends:
                stop[due & np.isin(chosen, ends)] = length
        if (length + 1 >= stop).all():
            break
    read.close()
    return [ids[row, n : stop[row]] for row, n in enumerate(given)]


class _Reader:
    """Logits for the next token of every row of ids, int64 [row, pos]; ids are filled in from left to right."""

    def __init__(self, model: LanguageModel, ids: np.ndarray) -> None:
        self._model, self._n_ctx, self._ids = model, model.config.sizes.n_ctx, torch.from_numpy(ids)
        self._device, self._start = next(model.parameters()).device, -1
        self._by_decoding = decoding_serves(model)
        self._single: Decoding | None = None
        self._begun = False

    def __call__(self, length: int) -> np.ndarray:
        """Logits float32 [row, d_vocab] after `length` tokens of every row, one more than at the last call."""
        start = context_start(length, self._n_ctx)
        if start == self._start:
            last = self._ids[:, length - 1].to(self._device)
            logits = self._after(last) if self._by_decoding else self._read(last[:, None])
        else:
            self._start, self._begun = start, False
            unread = self._ids[:, start:length].to(self._device)
            room = {"n_ctx": length - start} if self._by_decoding else {}  # the model itself reads no more than that
            self._cache = self._model.new_cache(len(unread), **room)
            logits = self._read(unread)
        return logits.float().cpu().numpy()

    def close(self) -> None:
        """Nothing more is read; what was laid out serves the next one."""
        if self._single is not None:
            give_back(self._model, self._single)

    def _after(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits after one token more; laid out only once there is one, since a single token needs none of it."""
        single = self._single = self._single or decoding_of(self._model)
        if not self._begun:
            assert isinstance(self._cache, KVCache)
            single.begin(self._cache)
            self._begun = True
        return single.step(ids)

    def _read(self, ids: torch.Tensor) -> torch.Tensor:
        return self._model.unembed(self._model.hidden(ids, cache=self._cache)[:, -1])


def choose(logits: np.ndarray, draws: np.ndarray, how: Sampling) -> np.ndarray:
    """One id per row of logits [row, d_vocab]: int64 [row].

    Temperature 0 takes the largest logit, the first of equal ones. Otherwise p = softmax(logits / temperature), cut to
    the top_k largest (equals of the last stay) and then to the top_p share, and the id is where the cumulative sum of p
    passes draws [row] in 0..1 (inverse transform), so a token without probability is never chosen. In float64.
    """
    if how.temperature == 0 and not how.banned:
        return logits.argmax(axis=1)
    x = logits.astype(np.float64)
    if how.banned:
        x[:, list(how.banned)] = -np.inf
    if how.temperature == 0:
        return x.argmax(axis=1)
    x -= x.max(axis=1, keepdims=True)
    with np.errstate(over="ignore"):  # by next to nothing: all but the largest are -inf
        x /= how.temperature
    if 0 < how.top_k < x.shape[1]:
        last = x.shape[1] - how.top_k
        x[x < np.partition(x, last, axis=1)[:, last, None]] = -np.inf
    p = np.exp(x)
    if how.top_p < 1:
        _cut_to_share(p, how.top_p)
    cumulative = p.cumsum(axis=1)
    total = cumulative[:, -1:]
    passed = (cumulative <= draws[:, None] * total) & (cumulative < total)
    return passed.sum(axis=1)


def _cut_to_share(p: np.ndarray, share: float) -> None:
    """Set to 0 what lies beyond the fewest largest entries of each row that hold `share` of its sum.

    Columns that cannot be among them are not sorted: entries below half of the rest's mean hold less than the rest.
    """
    total = p.sum(axis=1, keepdims=True)
    columns = np.flatnonzero((p > total * (1 - share) / (2 * p.shape[1])).any(axis=0))
    held = p[:, columns]
    order = np.argsort(-held, axis=1, kind="stable")
    ordered = np.take_along_axis(held, order, axis=1)
    before = ordered.cumsum(axis=1) - ordered
    beyond = before >= share * total
    beyond[:, 0] = False
    np.put_along_axis(held, order, np.where(beyond, 0.0, ordered), axis=1)
    p[:] = 0
    p[:, columns] = held
