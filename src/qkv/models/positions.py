"""How order enters a model: rows added to the embedding (sinusoidal, learned), turns of q and k (rotary), scores.

Learned rows are a parameter and live in `embedding`.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.models.layout import RopeScaling, turned_width
from qkv.shapes import Bool, Float, Float64, Int


class _Tables:
    """Constant tables by (length, dtype, device), computed in float64 once."""

    def __init__(self) -> None:
        self._kept: dict[tuple[torch.dtype, torch.device], tuple[Tensor, ...]] = {}

    def _make(self, n: int) -> tuple[Tensor, ...]:
        raise AssertionError("a table says how it is made")

    def tables(self, n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
        """The tables for positions 0..n-1."""
        pairs, key = torch.complex128 if dtype == torch.float64 else torch.complex64, (dtype, device)
        if torch.compiler.is_exporting():  # n may be a symbol: the graph computes its own tables, and none are kept
            return tuple(t if t.is_complex() else t.to(dtype).to(device) for t in self._make(n))
        kept = self._kept.get(key)
        if kept is None or len(kept[0]) < n:
            n_made = n if kept is None else max(n, 2 * len(kept[0]))  # a text that grows by tokens is not made for each
            with torch.inference_mode(False), torch.no_grad():  # a tensor of inference mode could not serve training
                made = self._make(n_made)
                kept = self._kept[key] = tuple(t.to(pairs if t.is_complex() else dtype).to(device) for t in made)
        return kept if len(kept[0]) == n else tuple(table[:n] for table in kept)

    # As torch.compiler.assume_constant_result marks it, which imports the compiler: a graph would be made anew once the
    # tables are kept.
    tables._dynamo_marked_constant = True  # type: ignore[attr-defined]


class Sinusoidal(_Tables):
    """Sines and cosines of geometric wavelengths, one table [n, d_model].

    `[pos, 2i] = sin(pos / 10000^(2i/d_model))`, `[pos, 2i+1] = cos(...)` (Vaswani et al. 2017, arXiv 1706.03762, 3.5).
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def _make(self, n: int) -> tuple[Tensor, ...]:
        angles = _angles(n, self.d_model, 10000.0)
        return (torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1),)


class SinusoidalHalves(Sinusoidal):
    """The same numbers in another order: all sines in the first half of a row, all cosines in the second."""

    def _make(self, n: int) -> tuple[Tensor, ...]:
        angles = _angles(n, self.d_model, 10000.0)
        return (torch.cat((angles.sin(), angles.cos()), dim=-1),)


class Rotary(_Tables):
    """Angles of rotary positions (Su et al. 2021, arXiv 2104.09864), half-split: coordinate i pairs with i + d/2.

    The first d = share * d_head coordinates are turned: pair i at position p by p / base^(2i/d), slowed down as
    `scaling` says. Three tables, each [n, d / 2]: cos, sin and the complex cos + i sin (at least complex64), with the
    stretch of the scaling in them.
    """

    def __init__(self, d_head: int, base: float, share: float = 1.0, scaling: RopeScaling | None = None) -> None:
        super().__init__()
        self.d, self.base, self.scaling = turned_width(d_head, share), base, scaling or RopeScaling()
        self.whole = self.d == d_head
        """Whether every coordinate of a head is turned."""

    def stretch(self, d_head: int) -> Float64[Tensor, "{d_head}"] | None:
        """By what each coordinate of a head's q, and of its k, is made longer; None where by none."""
        if self.scaling.stretch == 1:
            return None
        lengths = torch.ones(d_head, dtype=torch.float64)
        lengths[: self.d] = self.scaling.stretch
        return lengths

    def _make(self, n: int) -> tuple[Tensor, ...]:
        angles = _angles(n, self.d, self.base)
        if self.scaling.kind != "none":
            angles = angles * SLOWED[self.scaling.kind](self.scaling, self.d, self.base)
        length = torch.full_like(angles, self.scaling.stretch)
        return angles.cos() * length, angles.sin() * length, torch.polar(length, angles)


class Alibi(_Tables):
    """What is added to scores: minus the distance of query and key times the slope of the head, [n_heads, n, n].

    Slopes are 2^(-8 h / n_heads), h from 1 on; where n_heads is no power of two p, those of the p below it and then
    every second one of 2 p (Press et al. 2021, arXiv 2108.12409, and their code).
    """

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        power = 1 << (n_heads.bit_length() - 1)
        slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
        self.slopes = (slopes + [2 ** (-4 * h / power) for h in range(1, 2 * power, 2)])[:n_heads]

    def bias(
        self, n_query: int, n_key: int, like: Float[Tensor, "batch pos d_model"]
    ) -> Float[Tensor, "n_heads n_query n_key"]:
        """The rows of the last `n_query` of `n_key` positions."""
        (distances,) = self.tables(n_key, like.dtype, like.device)
        slopes = torch.tensor(self.slopes, dtype=like.dtype, device=like.device)
        return -slopes[:, None, None] * distances[n_key - n_query :, :n_key]

    def _make(self, n: int) -> tuple[Tensor, ...]:
        place = torch.arange(n, dtype=torch.float64, device="cpu")
        return ((place[:, None] - place).abs(),)


class Relative(nn.Module):
    """What is added to scores: for each head a learned number of the bucket that the distance of query and key is in.

    W_rel [n_buckets, n_heads]. A causal model has a bucket for each distance up to half of them, then ranges that widen
    as its logarithm up to `reach`; else half of the buckets are for keys behind the query (Raffel et al. 2019, arXiv
    1910.10683; their code rounds in float32, and so does this).
    """

    def __init__(self, n_heads: int, n_buckets: int, reach: int, *, causal: bool) -> None:
        super().__init__()
        self.causal, self.n_buckets, self.reach = causal, n_buckets if causal else n_buckets // 2, reach
        self.W_rel = nn.Parameter(torch.empty(n_buckets, n_heads))

    def bias(
        self, n_query: int, n_key: int, like: Float[Tensor, "batch pos d_model"]
    ) -> Float[Tensor, "n_heads n_query n_key"]:
        """The rows of the last `n_query` of `n_key` positions."""
        place = torch.arange(n_key, device=like.device)
        behind = place - place[n_key - n_query :, None]
        distance, exact = (-behind).clamp_min(0) if self.causal else behind.abs(), self.n_buckets // 2
        share = torch.log(distance.float().clamp_min(1) / exact) / math.log(self.reach / exact)
        wide = (exact + (share * (self.n_buckets - exact)).long()).clamp_max(self.n_buckets - 1)
        bucket = torch.where(distance < exact, distance, wide)
        if not self.causal:
            bucket = bucket + (behind > 0) * self.n_buckets
        return F.embedding(bucket, self.W_rel).permute(2, 0, 1).to(like.dtype)


def _slowed_llama3(scaling: RopeScaling, d: int, base: float) -> Tensor:
    """By turns over the original context: below `slow` 1 / factor, above `fast` 1, a line between."""
    turns = scaling.original_ctx * _angles(2, d, base)[1] / (2 * math.pi)
    kept = ((turns - scaling.slow) / (scaling.fast - scaling.slow)).clamp(0, 1)
    return kept + (1 - kept) / scaling.factor


def _slowed_yarn(scaling: RopeScaling, d: int, base: float) -> Tensor:
    """By pair: a line from the pair that makes `fast` turns over the original context to the one that makes `slow`."""

    def pair(turns: float) -> float:
        return d * math.log(scaling.original_ctx / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(scaling.fast), pair(scaling.slow)
    if scaling.whole_pairs:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    high += 0.001 if low == high else 0
    slowed = ((torch.arange(d // 2, dtype=torch.float64, device="cpu") - low) / (high - low)).clamp(0, 1)
    return 1 - slowed + slowed / scaling.factor


SLOWED = {
    "linear": lambda scaling, d, base: torch.full((d // 2,), 1 / scaling.factor, dtype=torch.float64, device="cpu"),
    "llama3": _slowed_llama3,
    "yarn": _slowed_yarn,
}
"""Kind of scaling -> factor of each pair's angle, float64 [d / 2]. A new kind is one function and one line."""


SINES = {"sinusoidal": Sinusoidal, "sinusoidal_halves": SinusoidalHalves}
"""`positions` of a layout -> the table that is added to the rows of a text."""


class Sinusoidal2D(Sinusoidal):
    """Sines and cosines of the row in the first half of a vector, of the column in the second: [n, d_model].

    For positions that are patches of a `grid` (rows, columns), read row by row, after `before` positions without a
    place (a class token), whose rows are 0. As in Chen et al. 2021 (MoCo v3, arXiv 2104.02057) and Beyer et al. 2022
    (arXiv 2205.01580), with sines and cosines in turn.
    """

    def __init__(self, d_model: int, grid: tuple[int, int], before: int) -> None:
        super().__init__(d_model)
        self.grid, self.before = grid, before

    def _make(self, n: int) -> tuple[Tensor, ...]:
        halves = [_angles(side, self.d_model // 2, 10000.0) for side in self.grid]
        table = _of_grid([torch.stack((a.sin(), a.cos()), dim=-1).flatten(1) for a in halves])
        return (torch.cat((torch.zeros(self.before, self.d_model, dtype=torch.float64), table))[:n],)


class Rotary2D(Rotary):
    """Rotary turns in two dimensions: the first half of the pairs turns by the row, the second by the column.

    So a score depends on how many rows and columns lie between two patches (Heo et al. 2024, arXiv 2403.13298, "axial";
    Fang et al. 2023, arXiv 2303.11331). `grid` and `before` as in `Sinusoidal2D`; what has no place is not turned. A
    grid is small, so `base` is best far below that of text.
    """

    def __init__(self, d_head: int, base: float, grid: tuple[int, int], before: int, share: float = 1.0) -> None:
        super().__init__(d_head, base, share)
        self.grid, self.before = grid, before

    def _make(self, n: int) -> tuple[Tensor, ...]:
        angles = _of_grid([_angles(side, self.d // 2, self.base) for side in self.grid])
        angles = torch.cat((torch.zeros(self.before, self.d // 2, dtype=torch.float64), angles))[:n]
        return angles.cos(), angles.sin(), torch.polar(torch.ones_like(angles), angles)


def _of_grid(tables: list[Tensor]) -> Tensor:
    """A table of rows [rows, d] and one of columns [columns, d] side by side at every place: [rows * columns, 2 d]."""
    (n_rows, d), (n_columns, _) = tables[0].shape, tables[1].shape
    across = tables[0][:, None].expand(n_rows, n_columns, d), tables[1][None].expand(n_rows, n_columns, d)
    return torch.cat(across, dim=-1).flatten(0, 1)


def _angles(n: int, d: int, base: float) -> Tensor:
    """pos / base^(2i/d), float64 [n, d / 2], on the CPU whatever the default device."""
    exponents = torch.arange(0, d, 2, dtype=torch.float64, device="cpu") / d
    return torch.arange(n, dtype=torch.float64, device="cpu")[:, None] / base**exponents


def rotate(
    x: Float[Tensor, "*batch pos d_head"], cos: Float[Tensor, "#pos half"], sin: Float[Tensor, "#pos half"]
) -> Float[Tensor, "*batch pos d_head"]:
    """Turn pairs (i, i + half) of the first 2 half coordinates of `x`."""
    d = 2 * cos.shape[-1]
    if d < x.shape[-1]:
        return torch.cat((rotate(x[..., :d], cos, sin), x[..., d:]), dim=-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def positions_within(
    n: int, mask: Bool[Tensor, "batch {n}"] | None, documents: Int[Tensor, "batch {n}"] | None
) -> Int[Tensor, "batch {n}"] | None:
    """The position of every token within its own sequence; None where that is simply 0..n-1.

    A sequence starts at the first real token of its row (`mask`) and anew wherever `documents` changes, so that left
    padding and packing never change a sequence's loss. Padding gets any.
    """
    given = documents if documents is not None else mask
    if given is None:
        return None
    index = torch.arange(n, device=given.device).expand(given.shape[0], n)
    start = torch.zeros_like(index)
    if documents is not None:
        changes = torch.zeros_like(documents, dtype=torch.bool)
        changes[:, 1:] = documents[:, 1:] != documents[:, :-1]
        start = torch.where(changes, index, 0).cummax(dim=1).values
    if mask is not None:
        start = torch.maximum(start, mask.int().argmax(dim=1, keepdim=True))
    return (index - start).clamp_min(0)
