"""What a head attends to, row by row of its pattern on the probe; `attention_stats.py` takes the means over rows."""

from functools import partial

from torch import Tensor

from qkv.instruments.attention_rows import Rows
from qkv.instruments.measures.measure import Measure

DOMINANT = 0.9
"""A key with more of a row's attention than this dominates it."""

INDUCTION = "induction"
"""What is measured on random tokens that repeat."""


def _own(rows: Rows) -> Tensor:
    return rows.mass(rows.q, rows.k, rows.found.lse) if rows.itself else rows.nothing()


def _previous(rows: Rows) -> Tensor:
    previous = rows.nothing()
    if rows.itself:
        previous[:, :, 1:] = rows.mass(rows.q[:, :, 1:], rows.k[:, :, :-1], rows.found.lse[:, :, 1:])
    return previous


def _distance(rows: Rows) -> Tensor:
    if not rows.itself:
        return rows.nothing()
    # a mean of |i - j| needs both sides kept apart; causal rows have one side only
    return rows.places() - rows.found.position if rows.causal else rows.distances()


_OfFunction = partial(Measure, property_of="function")
MEASURES = (
    _OfFunction(
        name="entropy",
        meaning="How widely a head spreads its attention.",
        formula="mean over rows of -sum_j p_j ln p_j = lse - E_p[s]; causal rows from the second on",
        range="0 (one key each) to ln(keys seen), in nats",
        source="Zhai et al. 2023, attention entropy collapse (arXiv 2303.06296)",
        null="At step 0 near ln(keys seen) where scores start near 0, some tenths of a nat below with QK-norm, whose "
        "scores start with a standard deviation near 1. It can fall in the random-label control too.",
        decision="Whether the rate is too high: entropy that falls to 0 early is a collapse.",
        of_attention=lambda rows: (rows.found.lse - rows.found.score).clamp_min(0),
    ),
    _OfFunction(
        name="largest_score",
        meaning="The largest score that a head gave any key on the probe, scaled, before the softmax.",
        formula="max over rows and keys of q_i . k_j * scale; causal rows from the second on",
        range="any number; with QK-norm at most the product of the gains times sqrt(d_head)",
        source="Wortsman et al. 2023 (arXiv 2309.14322): runs whose scores passed 1e4 diverged",
        null="At step 0 a few standard deviations of the starting scores.",
        decision="Whether QK-norm or a lower rate is needed: scores that grow without end.",
        of_attention=lambda rows: rows.top + rows.shift,
        is_largest=True,
    ),
    _OfFunction(
        name="own_mass",
        meaning="How much of its attention a head keeps for the position itself.",
        formula="mean over rows of p_ii; causal rows from the second on",
        range="0 to 1; undefined in cross-attention",
        source="Clark et al. 2019 (arXiv 1906.04341)",
        null="At step 0 about the mean of 1/(keys seen).",
        decision="Whether a head is worth its place: near 1 it reads its own token alone, which an MLP does for less.",
        of_attention=_own,
    ),
    _OfFunction(
        name="previous_mass",
        meaning="How much a head attends to the position before.",
        formula="mean over rows of p_i,i-1",
        range="0 to 1; undefined in cross-attention",
        source="Voita et al. 2019 (arXiv 1905.09418), positional heads; Olsson et al. 2022 (arXiv 2209.11895)",
        null="At step 0 about the mean of 1/(keys seen).",
        decision="Whether to add a layer: an induction head needs one that looks back by one in a layer below it.",
        of_attention=_previous,
    ),
    _OfFunction(
        name="first_mass",
        meaning="How much a head attends to the first position, the usual place to attend to nothing.",
        formula="mean over rows of p_i,0; causal rows from the second on",
        range="0 to 1",
        source="Xiao et al. 2024, attention sinks (arXiv 2309.17453)",
        null="At step 0 about the mean of 1/(keys seen).",
        decision="Whether a head is at rest: near 1 on everything it is a candidate for removal.",
        of_attention=lambda rows: rows.mass(rows.q, rows.k[:, :, :1], rows.found.lse),
    ),
    _OfFunction(
        name="distance",
        meaning="How far back (or away) a head looks.",
        formula="mean over rows of sum_j p_ij |i - j|; causal rows from the second on",
        range="0 to n_ctx - 1 positions; undefined in cross-attention",
        source="mean attention distance, Dosovitskiy et al. 2021 (arXiv 2010.11929), section 4.5",
        null="At step 0 half of the keys seen: n_ctx / 4 on average for causal rows; n_ctx / 3 where both sides are "
        "seen.",
        decision="Whether the context is used: all heads near 0 would do with a shorter one.",
        of_attention=_distance,
    ),
    _OfFunction(
        name="dominant_rows",
        meaning="In how many rows one key takes nearly all of the attention.",
        formula="share of rows with max_j p_ij > 0.9; causal rows from the second on",
        range="0 to 1",
        source="Zhai et al. 2023 (arXiv 2303.06296), as a count",
        null="0 at step 0 where scores start near 0, near 0 with QK-norm.",
        decision="Whether to lower the rate or use QK-norm: a saturated softmax gives W_Q and W_K no gradient any "
        "more.",
        of_attention=lambda rows: ((rows.top - rows.found.lse).exp() > DOMINANT).double(),
    ),
    _OfFunction(
        name="induction",
        meaning="How much a head looks from a repeated token to what followed it before (copying).",
        formula="mean over i of p[n + i, i + 1] on n random tokens written twice",
        range="0 to 1; undefined where a model reads no token ids",
        source="Olsson et al. 2022, prefix-matching score (arXiv 2209.11895)",
        null="For even attention ln 2 / n where causal (0.011 at n = 64), 1 / (2 n) where both sides are seen.",
        decision="When in-context copying appears, and in which head; whether training may stop before it does.",
    ),
)
