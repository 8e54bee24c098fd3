"""Translations searched for with a cache: greedy, or the best of several beams under a length penalty.

The encoder runs once a sentence, and the keys and values that cross-attention makes of it are made once as well; beams
that part take their cached rows with them. A finished translation of n tokens (its end counted) with the sum s of its
log-probabilities has the score s / ((5 + n) / 6)^a (Wu et al. 2016, arXiv 1609.08144, eq. 14, with a the length
penalty; no coverage term). A sentence is done when its best finished translation can no longer be beaten by what its
open beams could still reach. A translation has at most 2 n + 10 tokens for a source of n, and fits n_ctx.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv.data.buckets import filled
from qkv.errors import ConfigError
from qkv.models.zoo import EncoderDecoderLM

DEFAULT_BEAMS = 5
DEFAULT_PENALTY = 1.0

_GROUP_TOKENS = 16_384
"""Source tokens times beams that go through together."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """How translations are searched for. Raises ConfigError for a value out of range."""

    end: int
    """The id that ends a target."""
    start: int | None = None
    """The id that begins one; None: the same."""
    beams: int = DEFAULT_BEAMS
    """Translations kept open at each step; 1 is greedy."""
    length_penalty: float = DEFAULT_PENALTY
    """0 prefers short translations; larger values prefer longer ones."""
    banned: Sequence[int] = ()
    """Ids that are never chosen."""
    most_tokens: int = 0
    """Longest translation; 0 is the rule of this module."""

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise ConfigError(f"beams is {self.beams}; expected 1 (greedy) or more")

    def score(self, log_probability: float, length: int) -> float:
        """What finished translations are ranked by."""
        return log_probability / ((5 + length) / 6) ** self.length_penalty


@dataclass(frozen=True, kw_only=True)
class Found:
    """The best translation of one sentence."""

    ids: np.ndarray
    """int64 [n], without the end."""
    log_probability: float
    """Sum over its tokens and its end, in nats."""
    finished: bool
    """Whether it came to its end within the longest length."""


def search(model: EncoderDecoderLM, sources: Sequence[np.ndarray], how: Search) -> list[Found]:
    """The best translation of each source (int64 [n], its end token included), in the order given.

    Sentences of similar length go together; up to rounding none depends on its neighbours. `model` is in
    evaluation mode.

    Raises ConfigError for a source longer than n_ctx.
    """
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    out: list[Found | None] = [None] * len(sources)
    at = 0
    while at < len(order):
        rows = order[at : at + max(1, _GROUP_TOKENS // (how.beams * (len(sources[order[at]]) + 1)))]
        for i, found in zip(rows, _Group(model, [sources[i] for i in rows], how).run(), strict=True):
            out[i] = found
        at += len(rows)
    return [found for found in out if found is not None]


class _Group:
    """Sentences that are translated together; a row is one open beam of one of them."""

    def __init__(self, model: EncoderDecoderLM, sources: Sequence[np.ndarray], how: Search) -> None:
        self.model, self.how = model, how
        self.device = next(model.parameters()).device
        ids, real = filled([np.asarray(source) for source in sources], how.end)
        self.source, self.mask = torch.from_numpy(ids).to(self.device), torch.from_numpy(real).to(self.device)
        n_ctx = model.config.sizes.n_ctx
        self.most = np.array([min(how.most_tokens or 2 * len(source) + 10, n_ctx - 1) for source in sources])
        self.best: list[Found | None] = [None] * len(sources)
        self.best_score = np.full(len(sources), -math.inf)
        self.sentence = np.arange(len(sources))  # of each row
        self.scores = np.zeros(len(sources))  # log-probability of each row
        self.ids = np.zeros((len(sources), 0), dtype=np.int64)  # chosen so far, [row, length]

    @torch.inference_mode()
    def run(self) -> list[Found]:
        """The best of each sentence."""
        mask: Tensor | None = None if bool(self.mask.all()) else self.mask
        self.context, self.context_mask = self.model.encode(self.source, mask), mask
        cache = self.model.dec.new_cache(len(self.sentence), int(self.most.max()) + 1)
        start = self.how.end if self.how.start is None else self.how.start
        last = torch.full((len(self.sentence), 1), start, device=self.device)
        for length in range(1, int(self.most.max()) + 1):
            h = self.model.dec.hidden(last, context=self.context, context_mask=self.context_mask, cache=cache)
            keep, token, score = self._choose(*self._candidates(self.model.unembed(h[:, -1])), length)
            if not len(keep):
                break
            self.ids = np.concatenate([self.ids[keep], token[:, None]], axis=1)
            self.sentence, self.scores = self.sentence[keep], score
            if len(keep) != h.shape[0] or (keep != np.arange(len(keep))).any():
                rows = torch.from_numpy(keep).to(self.device)
                cache.select(rows)
                self.context = self.context.index_select(0, rows)
                if self.context_mask is not None:
                    self.context_mask = self.context_mask.index_select(0, rows)
            last = torch.from_numpy(token[:, None].copy()).to(self.device)
        return [found for found in self.best if found is not None]

    def _candidates(self, logits: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """The 2 * beams likeliest continuations of every row: tokens and sums [row, candidates]."""
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        if self.how.banned:
            logits[:, list(self.how.banned)] = -math.inf
        found = logits.log_softmax(dim=-1).topk(min(2 * self.how.beams, logits.shape[1]), dim=-1)
        sums = found.values.double().cpu().numpy() + self.scores[:, None]
        return found.indices.cpu().numpy(), sums

    def _choose(self, tokens: np.ndarray, sums: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row gone on from, token, sum) of every beam that stays open; those that end are kept where they are best.

        Per sentence the 2 * beams likeliest candidates are looked at in order: an end among the first `beams` is a
        finished translation, the first `beams` others stay open.
        """
        kept: list[tuple[int, int, float]] = []
        starts = np.flatnonzero(np.r_[True, self.sentence[1:] != self.sentence[:-1]])
        for first, stop in zip(starts, [*starts[1:], len(self.sentence)], strict=True):
            sentence = int(self.sentence[first])
            flat = sums[first:stop].ravel()
            order = np.argsort(-flat, kind="stable")[: 2 * self.how.beams]
            rows, words = first + order // sums.shape[1], tokens[first:stop].ravel()[order]
            opened: list[tuple[int, int, float]] = []
            for rank, (row, word, total) in enumerate(
                zip(rows.tolist(), words.tolist(), flat[order].tolist(), strict=True)
            ):
                if word == self.how.end:
                    if rank < self.how.beams:
                        self._finish(sentence, self.ids[row], total, length, True)
                elif len(opened) < self.how.beams and total > -math.inf:
                    opened.append((row, word, total))
            if not self._is_done(sentence, opened, length):
                kept += opened
        row, word, total = zip(*kept, strict=True) if kept else ((), (), ())
        return np.array(row, dtype=np.int64), np.array(word, dtype=np.int64), np.array(total)

    def _finish(self, sentence: int, ids: np.ndarray, total: float, length: int, finished: bool) -> None:
        """Keep a finished translation where it is its sentence's best."""
        score = self.how.score(total, length)
        if score > self.best_score[sentence]:
            self.best_score[sentence] = score
            self.best[sentence] = Found(ids=ids.copy(), log_probability=total, finished=finished)

    def _is_done(self, sentence: int, opened: list[tuple[int, int, float]], length: int) -> bool:
        """Whether no open beam can still win: sums only fall, so the longest length gives each its best score."""
        if not opened:
            return True
        row, word, total = opened[0]
        if length >= self.most[sentence]:
            if self.best[sentence] is None:
                self._finish(sentence, np.append(self.ids[row], word), total, length, False)
            return True
        if self.best[sentence] is None:
            return False
        return self.how.beams == 1 or self.best_score[sentence] >= self.how.score(total, int(self.most[sentence]))
