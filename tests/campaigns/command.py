"""What the benchmarks of this folder share with `qkv bench`: `qkv` as a person runs it, the whole process timed."""

import statistics

from qkv.benchmarks.processes import fresh, machine, qkv

__all__ = ["fresh", "machine", "qkv", "spread"]


def spread(values: list[float]) -> str:
    """`median (lowest to highest of n)`."""
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g} of {len(values)})"
