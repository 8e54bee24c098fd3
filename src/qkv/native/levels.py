"""Options of the C++ compiler, and the instruction sets of the libraries that a wheel ships.

The build of a wheel reads this file by its path (hatch_build.py), so it imports nothing of ours.
"""

FLAGS = (
    *("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
    *("-fopenmp", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti", "-Wno-psabi"),
)
"""No flag that lets a compiler assume away NaN, reorder a sum unasked, or set the processor's mode."""

WIDE = ("-mprefer-vector-width=512",)
"""Where the processor has vectors of 512 bits."""

SOURCES = ("passes", "vectors", "tiles", "decoding")
"""What a wheel holds compiled."""

_V2 = "sse4_2 ssse3 popcnt cx16"
_V3 = f"{_V2} avx avx2 bmi1 bmi2 f16c fma movbe abm"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
LEVELS: dict[str, tuple[tuple[str, ...], str]] = {
    "x86-64-v4-amx": (
        ("-march=x86-64-v4", "-mavx512bf16", "-mamx-tile", "-mamx-bf16", *WIDE),
        f"{_V4} avx512_bf16 amx_tile amx_bf16",
    ),
    "x86-64-v4": (("-march=x86-64-v4", *WIDE), _V4),
    "x86-64-v3": (("-march=x86-64-v3",), _V3),
    "x86-64-v2": (("-march=x86-64-v2",), _V2),
}
"""Instruction set -> its options, and the units of /proc/cpuinfo that it needs; the first that fits is used."""


def options(level: str) -> list[str]:
    """Options by which the libraries of an instruction set are compiled."""
    return [*(flag for flag in FLAGS if flag != "-march=native"), *LEVELS[level][0]]
