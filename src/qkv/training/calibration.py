"""Which compiled kernels are faster than torch's operators on this processor: measured once, then remembered.

The answer depends on the processor. With AVX-512, our products of small matrices are faster; with AVX2, torch's library
is faster by a third. So the first training on a machine times products, weight gradients and attention of increasing
size, in turns with torch. Then it times a whole block with the chosen kernels against a block without compiled code.
If that is slower, it tries the block with torch's products and attention. This takes a few seconds. Only the processor
time of one thread counts, so other programs hardly affect the result.

Two measurements never agree exactly, and the choice of a kernel affects the last bits of a result. The first result is
therefore stored next to the compiled libraries, and every later process on the machine uses it. If it cannot be stored,
torch computes all products and attention. Each run records the limits it started with (`Machine.kernels`).
"""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from qkv import native
from qkv.kernels import elementwise
from qkv.kernels.attention_products import LONGEST_COMPILED
from qkv.kernels.elementwise import ANY_SIZE, Compiled, Kernels
from qkv.models.attention import attend
from qkv.models.blocks import Block
from qkv.models.layout import Layout, Sizes
from qkv.models.masks import Visible
from qkv.models.start import fill

SIZES = tuple(2**power for power in range(12, 23))
"""Weights in a matrix: from one that fits into a core's cache to one of a large model."""
ROWS = 512
"""Positions in a batch."""
HEAD = 64
"""d_head."""
CLEARLY = 0.97
"""A compiled kernel counts as faster below this fraction of torch's time."""
HOPELESS = 1.25
"""Larger sizes are not timed once the compiled kernel has lost this much."""
TRIES = 3
"""How often a block is timed before compiled passes count as slower."""
ROUNDS = 9
"""Turns per side; the shortest time of each side counts."""
VERSION = 2
"""To be raised when something else is measured: results of an earlier version are not read."""
TURN, LONGEST = 1e-3, 0.3
"""Shortest turn, and the total after which no further turn starts, in seconds."""

Make = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a training uses on this processor."""

    native: bool
    """Whether a block is faster with compiled passes."""
    kernels: Kernels


@functools.cache
def choice(dtype: torch.dtype) -> Choice | None:
    """What was measured here for float32 or bfloat16; None if no passes can be compiled.

    The first call on a machine measures, which takes a few seconds.
    """
    if native.load("passes") is None:
        return None
    name = f"kernels-{VERSION}-{str(dtype).removeprefix('torch.')}"
    found = native.remembered(name, ("passes", "vectors", "tiles"), lambda: dataclasses.asdict(_measure(dtype)))
    if found is None:
        return Choice(True, Kernels())
    return Choice(bool(found["native"]), Kernels(**found["kernels"]))


def _measure(dtype: torch.dtype) -> Choice:
    with _one_thread():
        for limits in dict.fromkeys((_limits(dtype), Kernels())):
            on, off = _block(dtype, limits)
            if any(_ratio(on, off) <= 1 for _ in range(TRIES)):
                return Choice(True, limits)
        return Choice(False, Kernels())


def _limits(dtype: torch.dtype) -> Kernels:
    """The largest sizes for which each kernel alone is faster than torch."""
    with elementwise.using(True, Kernels(**dict.fromkeys(_LIMITS, ANY_SIZE)), dtype):
        ours, theirs = elementwise.chosen(torch.zeros(1), dtype), elementwise.compiled_for(torch.zeros(1))
    if not isinstance(ours, elementwise.Multiplied) or theirs is None:
        return Kernels()
    draw = torch.Generator().manual_seed(0)
    limits = {}
    for kind, made in (("product", _products), ("activated", _activated), ("gradient", _gradient)):
        limits[kind] = _largest(SIZES, lambda size, made=made: _sides(made, ours, theirs, size, dtype, draw))
    limits = {kind: ANY_SIZE if limit == SIZES[-1] else limit for kind, limit in limits.items()}
    keys = [n for n in SIZES if n <= LONGEST_COMPILED[dtype] * HEAD]
    return Kernels(**limits, keys=_largest(keys, lambda size: _attention(size // HEAD, dtype, draw)))


_LIMITS = [field.name for field in dataclasses.fields(Kernels)]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.set_num_threads(threads)


# the clock


def _largest(sizes: Sequence[int], pair: Callable[[int], tuple[Make, Make]]) -> int:
    """The limit up to which using the first of a pair saves the most time; 0 if it never clearly saves any.

    A size that loses a little is included if larger sizes gain more.
    """
    best, lowest, total = 0, 0.0, 0.0
    for size in sizes:
        total += math.log(_ratio(*pair(size)) / CLEARLY)
        if total < lowest:
            best, lowest = size, total
        elif total > lowest + math.log(HOPELESS):
            break
    return best


def _ratio(ours: Make, theirs: Make) -> float:
    """Time of `ours` divided by time of `theirs`, measured in turns."""
    warm = [_seconds(make, 1) for make in (ours, theirs, theirs)]
    times = max(1, round(TURN / max(warm[-1], 1e-6)))
    found: dict[Make, list[float]] = {ours: [], theirs: []}
    for turn in range(ROUNDS):
        for make in (ours, theirs) if turn % 2 else (theirs, ours):
            found[make].append(_seconds(make, times))
        if sum(map(sum, found.values())) > LONGEST:
            break
    return min(found[ours]) / max(min(found[theirs]), 1e-9)


def _seconds(make: Make, times: int) -> float:
    """Processor time of this thread."""
    began = time.thread_time()
    for _ in range(times):
        make()
    return time.thread_time() - began


# what is timed


def _sides(kind: Callable[..., Make], ours: Compiled, theirs: Compiled, size: int, *how: object) -> tuple[Make, Make]:
    return kind(ours, size, *how), kind(theirs, size, *how)


def _drawn(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=draw)


def _matrix(size: int) -> tuple[int, int]:
    """Rows and columns of a matrix with `size` weights: square, or twice as wide as high."""
    rows = 2 ** ((size.bit_length() - 1) // 2)
    return rows, size // rows


def _products(by: Compiled, size: int, dtype: torch.dtype, draw: torch.Generator) -> Make:
    """x W, d W^T and s + x W."""
    k, m = _matrix(size)
    x, d = _drawn(draw, ROWS, k).to(dtype), _drawn(draw, ROWS, m).to(dtype)
    W, stream = _drawn(draw, k, m) / k**0.5, _drawn(draw, ROWS, m)

    def make() -> None:
        weight = W.to(by.weight_dtype(size, dtype))
        by.product(x, weight, None)
        by.product_back(d, weight)
        by.plus_product(stream, x, weight, None)

    return make


def _activated(by: Compiled, size: int, dtype: torch.dtype, draw: torch.Generator) -> Make:
    """gelu(x W_in + b), and its gradient through W_out."""
    k, m = _matrix(size)
    x, d = _drawn(draw, ROWS, k).to(dtype), _drawn(draw, ROWS, k).to(dtype)
    W_in, W_out, bias = _drawn(draw, k, m) / k**0.5, _drawn(draw, m, k) / m**0.5, _drawn(draw, m)

    def make() -> None:
        wanted = by.weight_dtype(size, dtype, activated=True)
        _, kept = by.hidden("gelu_tanh", x, W_in.to(wanted), bias)
        by.hidden_back("gelu_tanh", d, W_out.to(wanted), kept, summed=True)

    return make


def _gradient(by: Compiled, size: int, dtype: torch.dtype, draw: torch.Generator) -> Make:
    """x^T d, and the sum of the rows of d."""
    k, m = _matrix(size)
    x, d = _drawn(draw, ROWS, k).to(dtype), _drawn(draw, ROWS, m).to(dtype)
    return lambda: by.weight_grad(x, d, d)


def _attention(n_keys: int, dtype: torch.dtype, draw: torch.Generator) -> tuple[Make, Make]:
    """Causal attention forward and backward: compiled, and by torch."""
    given = [_drawn(draw, 1, 2, n_keys, HEAD).to(dtype).requires_grad_() for _ in range(3)]
    dz = _drawn(draw, 1, 2, n_keys, HEAD).to(dtype)
    limits = Kernels(keys=ANY_SIZE)

    def both_ways(compiled: bool) -> None:
        with elementwise.using(compiled, limits, dtype):
            torch.autograd.grad(attend(*given, Visible(True, None), HEAD**-0.5), given, dz)  # type: ignore[arg-type]

    return lambda: both_ways(True), lambda: both_ways(False)


def _block(dtype: torch.dtype, kernels: Kernels) -> tuple[Make, Make]:
    """Forward and backward through one block of each of two layouts: with compiled code, and without."""
    sizes = Sizes(d_vocab=0, d_model=128, n_layers=1, n_heads=4, n_ctx=64).resolved()
    layouts = Layout(), Layout(norm="layer", mlp="gelu_tanh", positions="none", bias=True)
    blocks = [Block(sizes, layout, layer=0, causal=True) for layout in layouts]
    for block in blocks:
        fill(block, "xavier", 1, 0)
    x = _drawn(torch.Generator().manual_seed(0), ROWS // sizes.n_ctx, sizes.n_ctx, sizes.d_model).requires_grad_()

    def both_ways(compiled: bool) -> None:
        with (
            elementwise.using(compiled, kernels, dtype),
            torch.autocast("cpu", torch.bfloat16, dtype == torch.bfloat16),
        ):
            for block in blocks:
                y = block(x, Visible(True, None))
                torch.autograd.grad(y, [x, *block.parameters()], y.detach())

    return lambda: both_ways(True), lambda: both_ways(False)
