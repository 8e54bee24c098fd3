"""How order enters a model: rows added to the embedding (sinusoidal, learned) or turns of q and k (rotary).

Learned rows are a parameter and live in `embedding`; this module holds what has no parameter.
"""

import torch
from torch import Tensor

__all__ = ["Rotary", "Sinusoidal", "positions_within", "rotate"]


class _Tables:
    """Constant tables by (length, dtype, device), computed in float64 once."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, torch.dtype, torch.device], tuple[Tensor, ...]] = {}

    def _make(self, n: int) -> tuple[Tensor, ...]:
        raise AssertionError("a table says how it is made")

    def tables(self, n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
        """The tables for positions 0..n-1."""
        key = (n, dtype, device)
        if key not in self._kept:
            with torch.inference_mode(False), torch.no_grad():  # a tensor of inference mode could not serve training
                pairs = torch.complex128 if dtype == torch.float64 else torch.complex64
                self._kept[key] = tuple(t.to(pairs if t.is_complex() else dtype).to(device) for t in self._make(n))
        return self._kept[key]


class Sinusoidal(_Tables):
    """Sines and cosines of geometric wavelengths, one table [n, d_model].

    `[pos, 2i] = sin(pos / 10000^(2i/d_model))`, `[pos, 2i+1] = cos(...)` (Vaswani et al. 2017, arXiv 1706.03762, 3.5).
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def _make(self, n: int) -> tuple[Tensor, ...]:
        angles = _angles(n, self.d_model, 10000.0)
        return (torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1),)


class Rotary(_Tables):
    """Angles of rotary positions (Su et al. 2021, arXiv 2104.09864), half-split: coordinate i pairs with i + d_head/2.

    Pair i at position p is turned by p / base^(2i/d_head). Three tables, each [n, d_head / 2]: cos, sin and the complex
    cos + i sin (at least complex64).
    """

    def __init__(self, d_head: int, base: float) -> None:
        super().__init__()
        self.d_head, self.base = d_head, base

    def _make(self, n: int) -> tuple[Tensor, ...]:
        angles = _angles(n, self.d_head, self.base)
        return angles.cos(), angles.sin(), torch.polar(torch.ones_like(angles), angles)


def _angles(n: int, d: int, base: float) -> Tensor:
    """pos / base^(2i/d), float64 [n, d / 2], on the CPU whatever the default device."""
    exponents = torch.arange(0, d, 2, dtype=torch.float64, device="cpu") / d
    return torch.arange(n, dtype=torch.float64, device="cpu")[:, None] / base**exponents


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn every pair (i, i + d_head/2) of `x` [..., pos, d_head] by the angles of `cos`, `sin` [pos, d_head / 2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def positions_within(n: int, mask: Tensor | None, documents: Tensor | None) -> Tensor | None:
    """The position of every token within its own sequence, int64 [batch, pos]; None where that is simply 0..n-1.

    A sequence starts at the first real token of its row (`mask` [batch, pos] bool) and anew wherever `documents`
    [batch, pos] changes, so that left padding and packing never change a sequence's loss. Padding gets any.
    """
    given = documents if documents is not None else mask
    if given is None:
        return None
    index = torch.arange(n, device=given.device).expand(given.shape[0], n)
    start = torch.zeros_like(index)
    if documents is not None:
        changes = torch.zeros_like(documents, dtype=torch.bool)
        changes[:, 1:] = documents[:, 1:] != documents[:, :-1]
        start = torch.where(changes, index, 0).cummax(dim=1).values
    if mask is not None:
        start = torch.maximum(start, mask.int().argmax(dim=1, keepdim=True))
    return (index - start).clamp_min(0)
