"""What a page carries of attention: every head's pattern on a chosen text, and where that head mostly looks.

Patterns come from the model's own recorded forward pass and are kept in 256 steps (causal ones as lower triangles);
sums over their rows and columns are taken before that and kept in full. Each summary stands beside what even attention
over the same tokens would give: its null.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from qkv.models.layout import Layout
from qkv.views.report.packed import Packed, pack

LONGEST = 128
"""Tokens of a text of which a page is sent every number; longer texts are cut and that is said."""
PATTERN_BYTES = 2_900_000
"""Section for the patterns of one text at one step, as text in the page."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """Where a head looks most, over one text: a named share of its attention and what even attention would give."""

    name: str
    share: float
    even: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadNote:
    """One head on one text."""

    layer: int
    head: int
    shares: tuple[Cell, ...]
    entropy_nats: float
    even_entropy_nats: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """An image under its patches."""

    pixels: Packed
    """uint8 [height, width, channels]."""
    grid: tuple[int, int]
    """Rows and columns of patches, read row by row."""
    frame: tuple[float, float, float, float]
    """Left, top, right and bottom of the grid as shares of the image; of overlapping patches a cell is the middle."""
    before: int
    """Positions in front of the patches: 1 with a class token, else 0."""
    pooled: str
    """What the answer is read from: `class` (the class token) or `mean` (the mean over patches)."""
    said: str
    """What it shows and what the model says of it, in words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionText:
    """Every head's pattern on one text: how much each token (query_pos) reads each token (key_pos)."""

    tokens: tuple[str, ...]
    origin: str
    steps: tuple[int, ...]
    """The steps whose weights were used."""
    patterns: Packed
    """[step, layer, head, query_pos, key_pos]; for causal models the lower triangle row by row, n(n+1)/2 numbers. Of a
    text that is asked for in tiles: [step, layer, head, row block, column block], each the largest of its block."""
    causal: bool
    n_layers: int
    n_heads: int
    heads: tuple[HeadNote, ...] = ()
    """For each step, layer by layer."""
    block: int = 1
    """Cells along a side of which `patterns` holds the largest."""
    tile: int = 0
    """Cells along a side of a tile to ask for; 0 where `patterns` holds every number."""
    source: str = ""
    """The text itself, where the host can be asked of it again."""
    keys: tuple[str, ...] = ()
    """The tokens looked at, where they are not `tokens`: of cross-attention the source; `tokens` are then what is
    written at each position."""
    site: str = ""
    """Which attention of a model that has several: cross, enc or dec; of one pair there are all three."""
    picture: Picture | None = None
    """What the tokens are patches of."""
    received: Packed | None = None
    """float32 [step, layer, head, key_pos]: what each key receives in all, from the numbers before they were rounded;
    None, as `entropy`, where a page is to ask for it or to add up `patterns`."""
    entropy: Packed | None = None
    """float32 [step, layer, head, query_pos]: -sum p ln p of each row, nats, likewise."""


def longest_in(n_heads: int, *, causal: bool) -> int:
    """How many tokens of a text fit the page with `n_heads` heads in all: one byte a number, four thirds as text."""
    cells = {n: n * (n + 1) // 2 if causal else n * n for n in range(LONGEST, 1, -1)}
    return next((n for n in cells if cells[n] * n_heads * 4 / 3 <= PATTERN_BYTES), 2)


def attention_text(
    tokens: Sequence[str],
    patterns: Sequence[Sequence[np.ndarray]],
    *,
    steps: Sequence[int],
    origin: str,
    causal: bool,
    keys: Sequence[str] = (),
    site: str = "",
    picture: Picture | None = None,
    layout: Layout | None = None,
) -> AttentionText:
    """One text as payload.

    `patterns` has for each of `steps` one array [head, query_pos, key_pos] per layer, rows summing to 1, the same
    number of heads in each. `keys` are the tokens looked at, where they are not `tokens` themselves; `site` and
    `picture` as in `AttentionText`. The `layout` says which keys are in sight.
    """
    n, n_layers = len(tokens), len(patterns[0])
    stacked = np.stack([np.stack(layers) for layers in patterns]).astype(np.float64)
    assert stacked.shape[3:] == (n, len(keys) or n), f"patterns {stacked.shape} of a text of {n} tokens"
    kept = stacked[:, :, :, *np.tril_indices(n)] if causal else stacked
    found = [(layer, pattern) for layers in patterns for layer, pattern in enumerate(layers)]
    rows = [_row_entropies(pattern, layout) for _, pattern in found]
    means = [row.mean(-1).tolist() for row in rows]
    notes = (
        head_notes(*one, causal, mean, crossed=bool(keys), layout=layout)
        for one, mean in zip(found, means, strict=True)
    )
    return AttentionText(
        tokens=tuple(tokens),
        origin=origin,
        steps=tuple(steps),
        patterns=pack(np.clip(kept, 0.0, 1.0), as_bytes=True),
        causal=causal,
        n_layers=n_layers,
        n_heads=stacked.shape[2],
        heads=tuple(note for layer in notes for note in layer),
        keys=tuple(keys),
        site=site,
        picture=picture,
        received=pack(stacked.sum(axis=3)),
        entropy=pack(np.stack(rows).reshape(stacked.shape[:4])),
    )


def head_notes(
    layer: int,
    pattern: np.ndarray,
    causal: bool,
    entropies: Sequence[float] | None = None,
    *,
    crossed: bool = False,
    layout: Layout | None = None,
) -> list[HeadNote]:
    """Mean shares of attention on the first, the own, the previous and (not causal) the next token, and the entropy; of
    attention to another text (`crossed`) on its first token, and on the mark that ends it: a head that looks there
    looks nowhere in particular.

    `pattern` is [head, query_pos, key_pos]. Positions where the named token does not exist, or is the own or previous
    one, are left out of that mean. Entropy is H = -sum p ln p in nats, averaged over query positions, with 0 ln 0 = 0,
    unless `entropies` has it for each head; its null is the entropy of even attention, the mean over positions of
    ln(number of keys in sight): by the `layout`, those in the layer's window, and a sink.
    """
    n, n_keys = pattern.shape[1:]
    positions = np.arange(n)
    in_sight = positions + 1 if causal else np.full(n, n_keys)
    seen = np.ones((n, n_keys), bool)
    if layout is not None and not crossed:
        if layout.windowed(layer):
            seen = np.abs(positions[:, None] - positions) < layout.window
            in_sight = (np.tril(seen) if causal else seen).sum(axis=1)
        in_sight = in_sight + layout.sinks
    even, most = 1.0 / in_sight, float(np.log(in_sight).mean())
    looks: dict[str, tuple[np.ndarray, np.ndarray | int]] = {}
    if crossed:
        looks = {"the first": (positions, 0)} if n_keys > 1 else {}
        looks["the end mark"] = (positions, n_keys - 1)
    else:
        looks["itself"] = (positions, positions)
        if n > 2:
            looks["the previous"] = (positions[1:], positions[1:] - 1)
            looks["the first"] = (positions[2:], 0)
            if not causal:
                looks["the next"] = (positions[:-1], positions[:-1] + 1)
    notes = []
    for head, p in enumerate(np.asarray(pattern)):
        shares = tuple(
            Cell(name=name, share=float(p[q, k].mean(dtype=np.float64)), even=float((even[q] * seen[q, k]).mean()))
            for name, (q, k) in looks.items()
        )
        found = float(_row_entropies(p, layout).mean()) if entropies is None else entropies[head]
        notes.append(HeadNote(layer=layer, head=head, shares=shares, entropy_nats=found, even_entropy_nats=most))
    return notes


def _row_entropies(p: np.ndarray, layout: Layout | None) -> np.ndarray:
    """[..., query_pos, key_pos] -> float64 [..., query_pos]: -sum p ln p of each row, in nats, with 0 ln 0 = 0; of a
    `layout` with sinks, what a row lacks of 1 is on a sink, and counts as a key.
    """
    pattern = torch.from_numpy(p)
    whole = torch.special.entr(pattern).sum(-1, dtype=torch.float64)
    if layout is not None and layout.sinks:
        whole += torch.special.entr((1 - pattern.sum(-1, dtype=torch.float64)).clamp_min(0))
    return whole.clamp_min(0).numpy()
