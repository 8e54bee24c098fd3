"""Milliseconds of causal attention, forward and backward, by shape and dtype: torch's fused operator, five products of
torch with a pattern between them, and ours as compiled for this processor (where it is; nan else).

python tests/campaigns/attention.py
"""

import math
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.kernels import elementwise
from qkv.kernels.attention_products import attend_by_products, attend_compiled, causal_bias
from qkv.training.memory import keep_freed_memory

SHAPES = (
    (16, 5, 64, 32),
    (16, 6, 128, 32),
    (8, 8, 256, 32),
    (8, 4, 256, 64),
    (4, 8, 512, 32),
    (2, 4, 1024, 64),
    (1, 6, 2048, 64),
)


def milliseconds(call: Callable[[], object], rounds: int = 15) -> float:
    """The median of some calls after two that do not count."""
    call(), call()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def figures(side: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> list[float]:
    """Forward and backward."""
    z = side(q, k, v)
    cotangent = torch.randn_like(z)
    forward = milliseconds(lambda: side(q, k, v))
    return [forward, milliseconds(lambda: torch.autograd.grad(z, (q, k, v), cotangent, retain_graph=True))]


def by_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The fused operator."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Ours where nothing is compiled and texts are short."""
    return attend_by_products(q, k, v, causal_bias(q.shape[2], q), q.shape[-1] ** -0.5)


def compiled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Ours as compiled."""
    return attend_compiled(q, k, v, None, q.shape[-1] ** -0.5, causal=True)


def main() -> None:
    keep_freed_memory()
    ways = (by_torch, by_products, compiled)
    print("batch, heads, positions, d_head   dtype      " + "".join(f"{way.__name__:>24s}" for way in ways))
    with elementwise.using(True):
        for shape in SHAPES:
            for dtype in (torch.bfloat16, torch.float32):
                q, k, v = (torch.randn(shape).to(dtype).requires_grad_() for _ in range(3))
                is_there = elementwise.attending_for(q.detach()) is not None
                found = [
                    figures(way, q, k, v) if is_there or way is not compiled else [math.nan, math.nan] for way in ways
                ]
                print(f"{shape!s:34s}{str(dtype)[6:]:10s}" + "".join(f"{one:12.2f}{both:12.2f}" for one, both in found))


if __name__ == "__main__":
    main()
