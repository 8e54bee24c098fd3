"""Milliseconds of attention forward and backward: torch's fused operator against the pattern kept, by shape and dtype.

python benchmarks/attention.py
"""

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

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


def main() -> None:
    keep_freed_memory()
    print("batch, heads, positions, d_head   dtype      torch forward backward   kept forward backward")
    for shape in SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            q, k, v = (torch.randn(shape).to(dtype).requires_grad_() for _ in range(3))
            cotangent, bias = torch.randn(shape).to(dtype), causal_bias(shape[2], q)
            sides = (
                lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                lambda q=q, k=k, v=v, bias=bias: attend_kept(q, k, v, bias, q.shape[-1] ** -0.5),
            )
            figures = []
            for side in sides:
                z = side()
                figures += [
                    milliseconds(side),
                    milliseconds(lambda z=z: torch.autograd.grad(z, (q, k, v), cotangent, retain_graph=True)),
                ]
            print(f"{shape!s:34s}{str(dtype)[6:]:10s}" + "".join(f"{figure:12.2f}" for figure in figures))


if __name__ == "__main__":
    main()
