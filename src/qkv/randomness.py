"""Randomness is by name, not by order: every draw is a pure function of the words that name it.

`generator(seed, "start", "L0.W_Q")` always gives the same stream, whatever was drawn before, on whatever rank. So arms
of a study pair exactly, a resumed run needs no stored generator state, and two ranks see what one rank sees.

Streams are Philox (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") keyed by BLAKE2b of the names.
This module imports nothing of ours and keeps no state.
"""

import hashlib

import numpy as np


def key(*names: int | str) -> int:
    """A 128-bit key for a stream named by integers and strings.

    Names are joined with their types, so `("1",)` and `(1,)` are different streams.
    """
    text = "\x1f".join(f"{type(name).__name__}:{name}" for name in names)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def generator(*names: int | str) -> np.random.Generator:
    """A NumPy generator for the stream of that name."""
    return np.random.Generator(np.random.Philox(key=key(*names)))


def uniforms(index: np.ndarray, *names: int | str) -> np.ndarray:
    """A number in [0, 1) for each value of `index` (integers of any shape), float64: a pure function of value and name.

    For draws of many items at once, where a generator each would cost more than what is drawn. SplitMix64's finaliser
    (Steele et al. 2014), twice, over the value under a key of the name.
    """
    low, high = (np.uint64(key(*names) >> shift & (1 << 64) - 1) for shift in (0, 64))
    with np.errstate(over="ignore"):
        z = _mix(np.asarray(index).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + low)
        z = _mix(z ^ high)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Permutation:
    """A pseudo-random permutation of range(n), evaluated at any index without storing n numbers.

    A four-round Feistel network over the smallest square that holds n, walked until the image is below n (Black and
    Rogaway 2002, "Ciphers with arbitrary finite domains"). `Permutation(n, seed, "epoch", 3)(indices)` maps an int64
    array [count] of values in 0..n-1 to one of the same shape.
    """

    def __init__(self, n: int, *names: int | str) -> None:
        assert n > 0
        self.n = n
        self._side = max(2, int(np.ceil(np.sqrt(n))))
        self._keys = generator("permutation", *names).integers(1, 2**62, size=4, dtype=np.uint64)

    def _round(self, values: np.ndarray, round_key: np.uint64) -> np.ndarray:
        """SplitMix64's finaliser over value + key (Steele et al. 2014)."""
        with np.errstate(over="ignore"):
            return _mix(values.astype(np.uint64) + round_key)

    def _once(self, values: np.ndarray) -> np.ndarray:
        side = np.uint64(self._side)
        left, right = values // side, values % side
        for round_key in self._keys:
            left, right = right, (left + self._round(right, round_key)) % side
        return left * side + right

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        out = self._once(np.asarray(indices, dtype=np.uint64))
        beyond = out >= self.n
        while beyond.any():
            out[beyond] = self._once(out[beyond])
            beyond = out >= self.n
        return out.astype(np.int64)
