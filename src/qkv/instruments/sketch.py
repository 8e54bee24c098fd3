"""A short fingerprint of a matrix, by which distances between any two steps are known without keeping their weights.

A count sketch: weights with random signs, fixed by the address, summed into 256 numbers. Equal weights have equal
sketches. Distances between sketches are those between the weights, with a standard error of about 4% for one matrix
(sqrt(1/512)) and less over all matrices. Source: Charikar, Chen, Farach-Colton 2002, "Finding frequent items in data
streams".
"""

import numpy as np
from torch import Tensor

from qkv.randomness import generator
from qkv.shapes import Float, Float64

SKETCH = "sketch"
"""The name under which telemetry keeps it."""
WIDTH = 256
_PIECE = 1 << 20


def sketch(address: str, values: Float[Tensor, "..."]) -> Float64[np.ndarray, "width"]:
    """The fingerprint of the matrix at an address; of one with fewer weights than 256, all of them."""
    flat, draws = values.detach().reshape(-1), generator("sketch", address, 0)
    total = np.zeros(min(WIDTH, len(flat)))
    for first in range(0, len(flat), _PIECE):
        part = flat[first : first + _PIECE].double().numpy()
        bits = np.unpackbits(np.frombuffer(draws.bytes(-(-len(part) // 8)), dtype=np.uint8))[: len(part)]
        signed = part * (1.0 - 2.0 * bits)
        full = len(part) // len(total) * len(total)
        total += signed[:full].reshape(-1, len(total)).sum(axis=0)
        total[: len(part) - full] += signed[full:]
    return total
