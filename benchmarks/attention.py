"""Milliseconds of attention forward and backward: torch's fused operator against the pattern kept, by shape and dtype.

python benchmarks/attention.py
"""

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.models.fused_attend import attend_kept, causal_bias
from qkv.training.memory import keep_freed_memory

SHAPES = ((16, 5, 64, 32), (16, 6, 128, 32), (8, 8, 256, 32), (8, 4, 256, 64), (4, 8, 512, 32), (2, 8, 1024, 32))


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


def kept(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Ours."""
    return attend_kept(q, k, v, causal_bias(q.shape[2], q), q.shape[-1] ** -0.5)


def main() -> None:
    keep_freed_memory()
    print("batch, heads, positions, d_head   dtype      torch forward backward   kept forward backward")
    for shape in SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            q, k, v = (torch.randn(shape).to(dtype).requires_grad_() for _ in range(3))
            theirs = figures(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)
            found = theirs + figures(kept, q, k, v)
            print(f"{shape!s:34s}{str(dtype)[6:]:10s}" + "".join(f"{figure:12.2f}" for figure in found))


if __name__ == "__main__":
    main()
