"""Attention on a long text: thumbnails of every head at once, tiles and lines of one when a page asks for them.

Patterns of all heads are never held together: a hook takes a thumbnail of each layer's and lets it go, so that 36 heads
on 1,024 tokens cost the scores of one layer at a time. What is kept is q and k, from which one head's pattern is
computed again by the formula.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from qkv.models.attention import attend_explicit
from qkv.models.masks import visible
from qkv.views.report.packed import Packed, pack
from qkv.views.sections.heads import AttentionText, HeadNote, head_notes
from qkv.views.viewer import Viewer, Words

LONGEST_READ = 2048
"""Tokens of the longest text that a page looks at."""
TILE = 256
"""Cells along each side of a tile."""
THUMBNAIL = 64
"""Cells along each side of a thumbnail, at most."""


class LongText:
    """One text under one set of weights."""

    def __init__(self, viewer: Viewer, words: Words, step: int | None, changes: Sequence[str] = ()) -> None:
        self.words, self.causal, self.sizes = words, viewer.causal, viewer.config.model.sizes
        self.site = "enc" if viewer.encodes else ""
        self.model = viewer.reader(step, changes)
        self.step = viewer.last_step() if step is None else step
        self.block = -(-len(words.tokens) // THUMBNAIL)
        self._q: list[Tensor] = []
        self._k: list[Tensor] = []
        self._thumbnails: list[np.ndarray] = []
        self._notes: list[HeadNote] = []
        self._tops = torch.empty(0)
        with torch.inference_mode():
            self.model.hidden(words.ids, hook=self._take)
        self.pattern = lru_cache(maxsize=4)(self._pattern)

    def _take(self, name: str, tensor: Tensor) -> Tensor:
        """Keep q and k, and of a pattern its thumbnail and what its heads do most."""
        part = name.rpartition(".")[2]
        if part in ("q", "k"):
            (self._q if part == "q" else self._k).append(tensor[0].clone())
        elif part == "scores":
            self._tops = tensor[0].amax(dim=-1).double()
        elif part == "pattern":
            layer = len(self._thumbnails)
            pattern = tensor[0].float()
            self._notes += head_notes(layer, pattern.numpy(), self.causal, self._entropies(layer, pattern))
            self._thumbnails.append(largest_in_blocks(pattern.numpy(), self.block))
        return tensor

    def _entropies(self, layer: int, pattern: Tensor) -> list[float]:
        """Mean entropy of each head's rows, in nats, from products: no logarithm of every number.

        H_i = ln sum_j exp(s_ij) - sum_j p_ij s_ij, where the first is max_j s_ij - ln max_j p_ij and the second
        scale * q_i . (sum_j p_ij k_j). Both with the keys centred, which moves a row of scores as a whole.
        """
        scale = float(self.model.blocks[layer].attention.scale)
        q, k = self._q[layer].double(), self._k[layer].repeat_interleave(len(pattern) // len(self._k[layer]), dim=0)
        middle = k.mean(dim=1, keepdim=True)
        seen = (pattern @ (k - middle).to(pattern.dtype)).double()
        top = self._tops - scale * (q * middle.double()).sum(-1)
        rows = top - pattern.amax(dim=-1).double().log() - scale * (q * seen).sum(-1)
        return rows.clamp_min(0).mean(dim=-1).tolist()

    def overview(self, origin: str) -> AttentionText:
        """Thumbnails of every head; a page asks for the rest."""
        return AttentionText(
            tokens=self.words.tokens,
            origin=origin,
            steps=(self.step,),
            patterns=pack(np.stack(self._thumbnails)[None].clip(0, 1), as_bytes=True),
            causal=self.causal,
            n_layers=self.sizes.n_layers,
            n_heads=self.sizes.n_heads,
            heads=tuple(self._notes),
            block=self.block,
            tile=TILE,
            site=self.site,
        )

    def _pattern(self, layer: int, head: int) -> np.ndarray:
        """One head's whole pattern, float32 [query_pos, key_pos], from its q and k."""
        group = self.sizes.n_heads // self.sizes.n_kv_heads
        q, k = self._q[layer][head][None, None], self._k[layer][head // group][None, None]
        to = visible(q.shape[2], k.shape[2], causal=self.causal, like=q)
        with torch.inference_mode():
            _, _, pattern = attend_explicit(q, k, k, to, self.model.blocks[layer].attention.scale)
        return pattern[0, 0].float().numpy()

    def tile(self, layer: int, head: int, top: int, left: int, block: int) -> Packed:
        """Up to 256 x 256 cells from query `top` and key `left` on, each the largest of `block` x `block`."""
        span = TILE * block
        part = self.pattern(layer, head)[top : top + span, left : left + span]
        return pack(largest_in_blocks(part, block).clip(0, 1), as_bytes=True)

    def line(self, layer: int, head: int, position: int) -> tuple[Packed, Packed]:
        """(what the token at `position` reads, who reads it): float32 [pos] each, every number."""
        pattern = self.pattern(layer, head)
        return pack(pattern[position]), pack(np.ascontiguousarray(pattern[:, position]))

    def sums(self, layer: int, head: int) -> tuple[Packed, Packed]:
        """(attention that each key receives over all queries, entropy of each query's row in nats): float32 [pos]."""
        pattern = self.pattern(layer, head).astype(np.float64)
        safe = np.where(pattern > 0, pattern, 1.0)
        return pack(pattern.sum(axis=0)), pack(-(pattern * np.log(safe)).sum(axis=1))


def largest_in_blocks(array: np.ndarray, block: int) -> np.ndarray:
    """The largest in each `block` x `block` of the last two axes: [..., ceil(rows / block), ceil(columns / block)]."""
    if block == 1:
        return array
    found = torch.from_numpy(np.ascontiguousarray(array))
    for axis in (-2, -1):
        n = found.shape[axis]
        parts = [found.narrow(axis, 0, n // block * block).unflatten(axis, (n // block, block)).amax(dim=axis)]
        if n % block:
            parts.append(found.narrow(axis, n // block * block, n % block).amax(dim=axis, keepdim=True))
        found = torch.cat(parts, dim=axis)
    return found.numpy()
