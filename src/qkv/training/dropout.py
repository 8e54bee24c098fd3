"""Dropout by name: each mask is a pure function of (seed, step, global example index, site), whatever the batch.

So an update split into micro-batches, or shared by ranks, drops exactly what the whole batch would, and a resumed run
needs no generator state. The bits come from SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom
number generators") in int64 arithmetic, which every device computes alike; each (seed, step, site, example) starts a
stream of its own. Dropout itself: Srivastava et al. 2014, JMLR 15.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from qkv.randomness import key

__all__ = ["make_drop"]

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_LEVELS = 65536
"""Each element gets 16 of the 64 bits of a draw: p is exact to 1/65536, and the survivors' scale to the last bit."""


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, in place, on int64 that stands for unsigned 64-bit; shifts are made logical by masks."""
    z ^= (z >> 30) & (2**34 - 1)
    z *= _signed(_MIX_1)
    z ^= (z >> 27) & (2**37 - 1)
    z *= _signed(_MIX_2)
    z ^= (z >> 31) & (2**33 - 1)
    return z


def make_drop(p: float, seed: int, step: int, example_ids: np.ndarray) -> Callable[[str, Tensor], Tensor] | None:
    """`drop(site, x)` for the examples of one (micro-)batch, or None where p is 0 and nothing is to be drawn.

    p: the share dropped, 0 to 1 (not included). example_ids: int64 [batch], global. x: [batch, ...] of any shape;
    element i of an example (row-major) has the same fate whatever comes after it, so padding changes nothing.
    Survivors are divided by their share, so the mean is kept.
    """
    if p == 0:
        return None
    assert 0 < p < 1
    threshold = round(p * _LEVELS)
    scale = _LEVELS / (_LEVELS - threshold)
    ids = torch.from_numpy(np.ascontiguousarray(example_ids, dtype=np.int64))

    def drop(site: str, x: Tensor) -> Tensor:
        name = key(seed, "dropout", step, site)
        # Two rounds between the example's number and its stream, so that neighbours' streams start far apart.
        streams = _mix((ids.to(x.device) + _signed(name)) * _signed(_GOLDEN))
        streams = _mix(streams ^ _signed(name >> 64))
        per_example = x[0].numel()
        draws = torch.arange(1, -(-per_example // 4) + 1, device=x.device) * _signed(_GOLDEN)
        bits = _mix(draws + streams[:, None]).view(torch.int16)[:, :per_example].reshape(x.shape)
        kept = bits >= threshold - _LEVELS // 2
        return x * (kept * scale).to(x.dtype)

    return drop
