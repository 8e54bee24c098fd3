"""Attribution patching over a data set of pairs of texts: what each head and layer carries, with intervals.

Of each pair every site is estimated from two passes forward and one backward (`qkv.inspection.patching`). Over pairs

    share of a site = sum of its effects / sum of D(first) - D(second),    both in nats,

so that a pair that the model hardly tells apart weighs little. The interval is over pairs, 95% for each site by itself.
Asked for, exact patching of the same sites stands beside it, with the rank correlation of the two and what each took.

Sources: Nanda 2023 (neelnanda.io/attribution-patching); Syed et al. 2023 (arXiv 2310.10348).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qkv.errors import UserError, missing_file
from qkv.inspection.one_text import float64_copy
from qkv.inspection.patching import Asked, Passes, Place
from qkv.inspection.token_rows import rank_correlation
from qkv.models.zoo import OneStack
from qkv.shapes import Float64
from qkv.tasks.evaluation import ratio_interval

Pair = tuple[Asked, Asked, tuple[int, int] | None]
"""Two inputs, and two answers; None for the likeliest ones."""


@dataclass(frozen=True, eq=False)
class Attributed:
    """What each site carries of the difference between the two texts of a pair, over all pairs."""

    sites: list[str]
    """`L0.H1.z`, `L0.attn_out` (or `mix_out`), `L0.mlp_out`: each at all positions."""
    share: Float64[np.ndarray, "n_sites"]
    low: Float64[np.ndarray, "n_sites"]
    high: Float64[np.ndarray, "n_sites"]
    """95% interval over pairs; NaN with one pair."""
    exact: Float64[np.ndarray, "n_sites"] | None = field(repr=False)
    """The same shares by exact patching, where that was asked for."""
    correlation: float | None
    """Spearman's, of `share` and `exact` over sites."""
    n_pairs: int
    difference: float
    """Mean over pairs of D(first) - D(second), nats."""
    seconds: tuple[float, float]
    """Of all estimates, and of all exact passes; both read the two inputs."""


def attribute(model: OneStack, pairs: Sequence[Pair], *, exact: bool = False) -> Attributed:
    """Every head's output, and every layer's attention and MLP, at all positions at once, over pairs.

    Raises UserError as `patch` does, with the number of the pair; and where the pairs do not differ in all.
    """
    if not pairs:
        raise UserError("there are no pairs; expected at least one pair of texts")
    sites, model = _sites(model), float64_copy(model).requires_grad_(False)
    estimates, patched, gaps, took = [], [], [], np.zeros(2)
    for i, (first, second, answers) in enumerate(pairs, 1):
        start = time.perf_counter()
        try:
            passes = Passes(model, first, second, answers)
        except UserError as error:
            raise UserError(f"pair {i}: {error}") from None
        read = time.perf_counter()
        estimates.append(np.concatenate([passes.estimates(*site).numpy() for site in sites.values()]))
        estimated = time.perf_counter()
        if exact:
            patched.append(np.concatenate([passes.shares(*site).numpy() for site in sites.values()]))
        gaps.append(passes.gap)
        took += estimated - start, time.perf_counter() - estimated + read - start
    size = np.array(gaps)
    if size.sum() <= 0:
        raise UserError("over all pairs, the second texts favor the first answer; swap the texts, or the answers")
    found = [ratio_interval(column, size) for column in (np.stack(estimates) * size[:, None]).T]
    share = np.array([value for value, _ in found])
    bounds = np.array([interval or (np.nan, np.nan) for _, interval in found])
    truth = size @ np.stack(patched) / size.sum() if exact else None
    return Attributed(
        sites=[_named(name, head) for name, places in sites.values() for head, _ in places],
        share=share,
        low=bounds[:, 0],
        high=bounds[:, 1],
        exact=truth,
        correlation=None if truth is None else rank_correlation(share, truth),
        n_pairs=len(pairs),
        difference=float(size.mean()),
        seconds=(float(took[0]), float(took[1]) if exact else 0.0),
    )


def read_pairs(path: str | Path) -> list[list[str]]:
    """A file of pairs: two texts in a line with a tab between, and after them two answers, if they are named.

    Raises UserError for a file that is not there or no text, or a line with another number of parts.
    """
    path = Path(path)
    if not path.is_file():
        raise missing_file(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{path} is no UTF-8 text; expected a pair of texts on each line, with a tab between") from None
    rows = {i: line.split("\t") for i, line in enumerate(lines, 1) if line.strip()}
    for i, row in rows.items():
        if len(row) not in (2, 4):
            raise UserError(
                f"line {i} of {path} has {len(row)} parts between tabs; expected 2 (TEXT, OTHER) or 4 (and A, B)"
            )
    return list(rows.values())


def _sites(model: OneStack) -> dict[str, tuple[str, list[Place]]]:
    """Each activation -> itself and the places at which it is patched."""
    heads: list[Place] = [(head, None) for head in range(model.sizes.n_heads)]
    places = {"attn_out": [(None, None)], "mix_out": [(None, None)], "mlp_out": [(None, None)], "z": heads}
    parts = {name: name.rpartition(".")[2] for name in model.activation_names()}
    return {name: (name, places[part]) for name, part in parts.items() if part in places}


def _named(name: str, head: int | None) -> str:
    layer, _, part = name.rpartition(".")
    return name if head is None else f"{layer}.H{head}.{part}"
