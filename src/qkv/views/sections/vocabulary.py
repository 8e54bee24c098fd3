"""The words section: neighbours, a map and the similarity of words, at the steps whose weights were kept.

Static vectors are rows of W_E; contextual ones are what a token of a text has become after a layer. A cosine between
rows of x is of this table; one in q or k depends on the basis inside a head: where nothing ties that basis down, the
same function is shown in another one beside it, drawn at random, so that nobody reads too much into it.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qkv.errors import UserError
from qkv.inspection.contextual import contextual_vectors
from qkv.inspection.neighbours import largest_by_chance, nearest
from qkv.randomness import generator
from qkv.views.report.packed import Packed, pack
from qkv.views.sections.matrices import Snapshots
from qkv.views.viewer import Viewer

N_DRAWN = 240
N_NEAR = 8
N_TRIO = 14
N_STEPS = 6
MANY_ROWS = 6000
LONGEST_CONTEXT = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrioSection:
    """Cosines between the first words of a `WordsSection`, each read alone, in the first layer, at its steps."""

    n: int
    """Words."""
    x: Packed
    """[step, word, word]"""
    heads: Packed
    """[step, (q, k, v), head, word, word]"""
    other_basis: Packed | None
    """[step, (q, k), head, word, word] of the same function in another basis inside each head; None where the layout
    (rotary positions, QK-norm) ties the basis down."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlaneSection:
    """Every row of W_E as a point."""

    steps: tuple[int, ...]
    tokens: tuple[str, ...]
    """By id."""
    counts: tuple[int, ...] | None
    specials: tuple[int, ...]
    places: Packed
    """[step, token, 2]: on the two directions of their largest variance at the last step."""
    shares: tuple[float, float]
    """Of all variance of the rows at the last step, on these directions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordsSection:
    """Rows of W_E: the most frequent tokens, their neighbours among each other, and a map of all rows."""

    steps: tuple[int, ...]
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    counts: tuple[int, ...] | None
    n_rows: int
    plane: PlaneSection
    nearest: Packed
    """int32 [step, token, rank]: numbers of the nearest tokens."""
    cosines: Packed
    """[step, token, rank]"""
    null_cosine: float
    """The largest cosine to expect among as many random directions."""
    trio: TrioSection | None = None


def words_section(
    snapshots: Snapshots,
    tokens: Sequence[str],
    counts: np.ndarray | None,
    specials: Sequence[int] = (),
    viewer: Viewer | None = None,
) -> WordsSection | None:
    """The most frequent tokens of a run; None where no table of tokens was kept.

    `tokens` is the text of each id; `counts` int [d_vocab] how often each stands in the training text; `specials` are
    left out. `viewer` gives the similarities in q, k and v.
    """
    table = snapshots.token_table
    if table not in snapshots.shapes or snapshots.shapes[table][0] != len(tokens):
        return None
    ids = _drawn(len(tokens), counts, set(specials))
    if len(ids) < 3:
        return None
    steps = snapshots.spread(N_STEPS)
    near = [_nearest(snapshots.read(table, step)[ids].astype(np.float64)) for step in steps]
    return WordsSection(
        steps=tuple(steps),
        tokens=tuple(tokens[i] for i in ids),
        token_ids=tuple(ids),
        counts=None if counts is None else tuple(int(counts[i]) for i in ids),
        n_rows=len(tokens),
        plane=_plane(snapshots, tokens, counts, specials),
        nearest=pack(np.stack([ranked for ranked, _ in near])),
        cosines=pack(np.stack([cosines for _, cosines in near])),
        null_cosine=largest_by_chance(len(ids) - 1, snapshots.shapes[table][1]),
        trio=None
        if viewer is None or viewer.config.model.layout.mixer != "attention" or not viewer.config.model.sizes.n_layers
        else _trio(viewer, steps, ids[:N_TRIO]),
    )


def _drawn(n: int, counts: np.ndarray | None, specials: set[int]) -> list[int]:
    """Ids of the most frequent tokens, most frequent first; without counts the first."""
    order = range(n) if counts is None else np.argsort(-counts, kind="stable")
    return [int(i) for i in order if int(i) not in specials and (counts is None or counts[i] > 0)][:N_DRAWN]


def _plane(
    snapshots: Snapshots, tokens: Sequence[str], counts: np.ndarray | None, specials: Sequence[int]
) -> PlaneSection:
    """All rows at `N_STEPS` steps; of a large vocabulary at the first and the last."""
    steps = snapshots.spread(N_STEPS if len(tokens) <= MANY_ROWS else 2)
    last = snapshots.read(snapshots.token_table, steps[-1]).astype(np.float64)
    center = last.mean(0)
    axes, shares = _axes(last - center)
    return PlaneSection(
        steps=tuple(steps),
        tokens=tuple(tokens),
        counts=None if counts is None else tuple(int(n) for n in counts),
        specials=tuple(int(i) for i in specials),
        places=pack(np.stack([(snapshots.read(snapshots.token_table, step) - center) @ axes for step in steps])),
        shares=shares,
    )


def _axes(rows: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """The two directions of largest variance of centered rows, [d_model, 2], with a fixed sign, and their shares of all
    variance.
    """
    sizes, directions = np.linalg.eigh(rows.T @ rows)
    axes = directions[:, : -3 if len(sizes) > 2 else None : -1]
    axes = np.pad(axes, ((0, 0), (0, 2 - axes.shape[1])))  # of a width of one there is no second
    axes = axes * np.where(axes[np.abs(axes).argmax(0), [0, 1]] < 0, -1.0, 1.0)
    found = [*sizes[::-1].clip(0), 0.0]
    total = float(sum(found)) or 1.0
    return axes, (float(found[0]) / total, float(found[1]) / total)


def _nearest(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(numbers of the nearest rows, their cosines), [row, rank]; a row of zeros is near nothing (cosine NaN)."""
    cosines = _cosines(table)
    cosines[np.diag_indices(len(table))] = np.nan
    ranked = np.argsort(-cosines, axis=1, kind="stable")[:, : min(N_NEAR, len(table) - 1)]
    found = np.take_along_axis(cosines, ranked, axis=1)
    return np.where(np.isfinite(found), ranked, 0), found


def _trio(viewer: Viewer, steps: Sequence[int], ids: Sequence[int]) -> TrioSection:
    """Cosines between words, each read alone as a text of one token, in x, q, k and v of the first layer."""
    alone = torch.as_tensor(ids, dtype=torch.int64)[:, None]
    x, heads, other = [], [], []
    layout, sizes = viewer.config.model.layout, viewer.config.model.sizes
    free = not layout.qk_norm and layout.positions != "rotary"
    draws = generator(0, "basis", "L0")
    group = sizes.n_heads // sizes.n_kv_heads  # heads that share their k share its basis
    bases = draws.standard_normal((sizes.n_kv_heads, sizes.d_head, sizes.d_head)).repeat(group, axis=0)
    for step in steps:
        with torch.inference_mode():
            _, record = viewer.reader(step).forward_recorded(alone)
        x.append(_cosines(record["L0.x"][:, 0].double().numpy()[None])[0])
        stored = (record[f"L0.{name}"][:, :, 0].double().numpy() for name in ("q", "k", "v"))
        q, k, v = (np.repeat(each, sizes.n_heads // each.shape[1], axis=1).swapaxes(0, 1) for each in stored)
        heads.append(np.stack([_cosines(each) for each in (q, k, v)]))
        if free:
            turned = np.einsum("htd,hde->hte", q, bases), np.einsum("htd,hed->hte", k, np.linalg.inv(bases))
            other.append(np.stack([_cosines(each) for each in turned]))
    return TrioSection(
        n=len(ids),
        x=pack(np.stack(x)),
        heads=pack(np.stack(heads)),
        other_basis=pack(np.stack(other)) if free else None,
    )


def _cosines(vectors: np.ndarray) -> np.ndarray:
    """[..., n, d] -> cosines [..., n, n]; NaN for a vector of zeros."""
    size = np.linalg.norm(vectors, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = vectors @ vectors.swapaxes(-1, -2) / (size[..., :, None] * size[..., None, :])
    return np.clip(cosines, -1, 1)


@dataclass(frozen=True)
class Nearby:
    """One token's nearest rows of W_E among all of them."""

    token: str
    step: int
    tokens: tuple[str, ...]
    cosines: Packed
    null_cosine: float


def near_token(viewer: Viewer, text: str, step: int | None) -> Nearby:
    """The nearest rows of any token, by its text. Raises UserError for what is not one token of this vocabulary."""
    row = viewer.tokenizer.readable.get(text)
    if row is None:
        ids = viewer.tokenizer.encode(text)
        if len(ids) != 1:
            raise UserError(f"{text[:40]!r} is {len(ids)} tokens here; expected one")
        row = int(ids[0])
    at = viewer.nearest(step)
    table = viewer.reader(at).embedding.W_E.detach().numpy()
    found = nearest(table, row, 12)
    return Nearby(
        token=viewer.tokenizer.token(row),
        step=at,
        tokens=tuple(viewer.tokenizer.token(n.id) for n in found),
        cosines=pack(np.array([n.cosine for n in found])),
        null_cosine=largest_by_chance(len(table) - 1, table.shape[1]),
    )


@dataclass(frozen=True)
class Meanings:
    """What the vectors of one token of a text are nearest to, layer by layer, among the other tokens of that text."""

    tokens: tuple[str, ...]
    step: int
    position: int
    layers: tuple[str, ...]
    nearest: Packed
    """int32 [layer, rank]: positions."""
    cosines: Packed
    """float32 [layer, rank]"""
    mean_cosine: Packed
    """float32 [layer]: of all pairs of different positions, what to hold a cosine against."""


def in_context(viewer: Viewer, text: str, position: int, step: int | None) -> Meanings:
    """The contextual neighbours of the token at `position`.

    Raises UserError for a text that is too short or too long, or a position that it has not.
    """
    words = viewer.words(text, LONGEST_CONTEXT)
    at = viewer.nearest(step)
    (found,) = contextual_vectors(viewer.model(at), viewer.as_read(words), [text])
    n = len(found.tokens)
    if position >= n:
        raise UserError(f"there is no token {position}; the text has {n}")
    k = min(5, n - 1)
    ranked, cosines, means = [], [], []
    for vectors in found.vectors.astype(np.float64):
        table = _cosines(vectors)
        means.append(float(np.nanmean(table[~np.eye(n, dtype=bool)])))
        own = np.where(np.arange(n) == position, -np.inf, np.nan_to_num(table[position], nan=-np.inf))
        order = np.argsort(-own, kind="stable")[:k]
        ranked.append(order)
        cosines.append(table[position, order])
    return Meanings(
        tokens=tuple(found.tokens),
        step=at,
        position=position,
        layers=tuple(found.layers),
        nearest=pack(np.stack(ranked)),
        cosines=pack(np.stack(cosines)),
        mean_cosine=pack(np.array(means)),
    )
