"""What the benchmarks of this folder share with `qkv bench`: `qkv` as a person runs it, the whole process timed."""

from qkv.benchmarks.processes import fresh, machine, qkv, spread

__all__ = ["fresh", "machine", "qkv", "spread"]
