"""What every measure is: name, meaning, formula, range, source, property, what to compare it with, and one decision.

Words and numbers only; views and help texts read this. `W` is the matrix at a step, `S` the same at step 0,
`G` the gradient of the loss, `dW` the last update. A new measure is one entry here and a function in `measures.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from qkv.errors import ConfigError, unknown
from qkv.telemetry import MeasureRow

__all__ = [
    "ANGLES",
    "AT_REST",
    "CIRCUIT",
    "LIGHT",
    "MEASURES",
    "N_SINGULAR",
    "SPECTRAL",
    "Measure",
    "measure",
    "property_of",
]

N_SINGULAR = 8
"""How many of the largest singular values are recorded as a list, and how many directions make a top subspace."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What a measure is, where it comes from, and how not to be fooled by it."""

    name: str
    """As in `run.history(selector, name)`; a list's as in `run.telemetry().vectors(address, name)`."""
    meaning: str
    """One plain sentence."""
    formula: str
    """In the words of this module's head."""
    range: str
    """Lowest to highest value, and the unit."""
    source: str
    """Author, year, arXiv id."""
    property_of: Literal["function", "parametrisation"]
    """Of a raw matrix; see `property_of` for circuits."""
    null: str
    """What to compare it with: its value at the start, of random matrices, or in the random-label control."""
    decision: str
    """One decision that it informs."""
    looks: Literal["matrices", "circuits", "spectra", "attention", "rows"] = "matrices"
    """The kind of look that takes it; `schedule.py` says when each kind is due."""

    def row(self) -> MeasureRow:
        """The same for the telemetry file, which explains itself."""
        return MeasureRow(
            name=self.name,
            meaning=self.meaning,
            formula=self.formula,
            range=self.range,
            source=self.source,
            property_of=self.property_of,
            null=self.null,
            decision=self.decision,
        )


_MEASURES = (
    Measure(
        name="norm",
        meaning="How large the matrix is: the root of the sum of its squared weights.",
        formula="|W|_F",
        range="0 and up, in units of a weight",
        source="Frobenius norm",
        property_of="parametrisation",
        null="Its value at step 0; it grows or shrinks in the random-label control too, by step size and weight decay.",
        decision="Whether weight decay holds the weights: a norm that grows without end asks for more of it.",
    ),
    Measure(
        name="grad_norm",
        meaning="How strongly the loss of the last batch pulled at the matrix, before clipping.",
        formula="|G|_F",
        range="0 and up, in nats per unit of a weight; undefined where the matrix had no gradient (frozen)",
        source="Pascanu, Mikolov and Bengio 2013 (arXiv 1211.5063), section 3.2, per matrix",
        property_of="parametrisation",
        null="Not 0 in the random-label control either: a batch's noise never dies out.",
        decision="Where to look when training spikes: the matrix whose gradient grew first.",
    ),
    Measure(
        name="update_ratio",
        meaning="How large the last update was, as a share of the matrix.",
        formula="|dW|_F / |W|_F, W after the update",
        range="0 and up, 1 where the update is as large as the matrix; undefined for a matrix of zeros",
        source="Karpathy, CS231n notes, Neural Networks 3 (ratio of weights to updates): about 1e-3 under SGD and Adam",
        property_of="parametrisation",
        null="Of the same order in the random-label control: rate and optimizer set it (Muon and Adam normalize).",
        decision="Whether the learning rate suits this matrix: far above 1e-2 late in training is too much.",
    ),
    Measure(
        name="drift",
        meaning="How far the matrix has moved from where it started, as a share of its starting size.",
        formula="|W - S|_F / |S|_F; where S is 0, the norm of a start at N(0, 1/fan_in) stands for |S|_F: sqrt(n_out), "
        "of a head its share, of a circuit sqrt(d_head)",
        range="0 and up; 0 for a frozen matrix",
        source="Nagarajan and Kolter 2019 (arXiv 1902.04742); Zhang, Bengio and Singer 2019 (arXiv 1902.01996)",
        property_of="parametrisation",
        null="Not 0 in the random-label control, sometimes more than in the run; compare at an equal step only.",
        decision="Which matrices to test with --freeze or --change: a drift does not say whether it mattered.",
    ),
    Measure(
        name="turn",
        meaning="How far the matrix has turned away from its starting direction, whatever its size.",
        formula="angle between W and S as vectors of weights",
        range="0 to 180 degrees; undefined where W or S is 0",
        source="elementary; 90 degrees is no memory of the start",
        property_of="parametrisation",
        null="Grows in the random-label control too; two independent random matrices are 90 degrees apart.",
        decision="What to do about a large drift: with a small turn it is growth, which weight decay holds; with "
        "a large one the start was given up, and another start may save updates.",
    ),
    Measure(
        name="spectral_norm",
        meaning="The most that the matrix can stretch a vector.",
        formula="largest singular value of W",
        range="0 and up",
        source="elementary; as a training measure: Miyato et al. 2018 (arXiv 1802.05957)",
        property_of="parametrisation",
        null="For independent N(0, 1/n) weights of a square matrix, 2 (Bai and Yin 1993).",
        decision="Whether scores can saturate: a QK circuit with a large one attends to single tokens.",
        looks="spectra",
    ),
    Measure(
        name="stable_rank",
        meaning="How many directions carry the matrix's size, counted by squares.",
        formula="|W|_F^2 / |W|_2^2",
        range="1 to min(in, out); undefined for a matrix of zeros",
        source="Rudelson and Vershynin 2007 (arXiv math/0503442)",
        property_of="parametrisation",
        null="A quarter of n for a square random matrix.",
        decision="What rank an adapter or a compression of this matrix would need.",
        looks="spectra",
    ),
    Measure(
        name="effective_rank",
        meaning="How many directions the matrix uses, counted by the entropy of its singular values.",
        formula="exp(-sum p log p), p = s / sum s",
        range="1 to min(in, out); undefined for a matrix of zeros",
        source="Roy and Vetterli 2007, The effective rank (EUSIPCO)",
        property_of="parametrisation",
        null="0.8 of n for a square random matrix.",
        decision="Whether heads or their width can be cut: a circuit of rank near 1 does one thing.",
        looks="spectra",
    ),
    Measure(
        name="singular_values",
        meaning="How much the matrix stretches along its strongest directions.",
        formula=f"the {N_SINGULAR} largest singular values of W, falling",
        range="0 and up, a list",
        source="elementary",
        property_of="parametrisation",
        null="No value stands out of a random matrix's spectrum; one that does came from training, or is its mean.",
        decision="At which rank to cut a matrix.",
        looks="spectra",
    ),
    Measure(
        name="alignment",
        meaning="How far the last update went straight down the gradient of its own batch.",
        formula="cosine between dW and -G",
        range="-1 to 1; undefined for a matrix with no gradient or no update",
        source="elementary; under plain SGD it is 1",
        property_of="parametrisation",
        null="Below 1 in the random-label control too: Adam and Muon choose another direction than -G on any labels.",
        decision="Whether a larger batch can help this matrix: near 0 momentum and normalisation steer, not the "
        "last batch.",
    ),
    Measure(
        name="onward",
        meaning="Whether the gradient of the last batch pulls the matrix further the way it has come, or back.",
        formula="cosine between W - S and -G",
        range="-1 (back to the start) to 1 (onward); undefined without a gradient, or where W is S",
        source="elementary",
        property_of="parametrisation",
        null="Near 0 where gradients are noise of a batch; above 0 early on, in the random-label control too, which "
        "learns token frequencies.",
        decision="Whether a longer run would move this matrix further: above 0 it is still under way.",
    ),
    Measure(
        name="descent",
        meaning="How much the last update of this matrix should have lowered the loss of its batch, to first order.",
        formula="-<G, dW>, in nats per token",
        range="any sign; the sum over all matrices is the first-order change; undefined without a gradient",
        source="Lan et al. 2019, loss change allocation (arXiv 1909.01440), one term of it at one step",
        property_of="parametrisation",
        null="Positive in the random-label control too: the loss of any batch falls a little by memorizing it.",
        decision="Which matrices still earn anything: one that earns nothing for long could be frozen.",
    ),
    Measure(
        name="second_moment",
        meaning="How large a gradient the optimizer expects of one weight of the matrix.",
        formula="sqrt(mean(v) / (1 - beta2^t)), v Adam's running mean of squared gradients, t its updates",
        range="0 and up, in nats per unit of a weight; undefined where the optimizer keeps none (Muon, SGD)",
        source="Kingma and Ba 2015 (arXiv 1412.6980)",
        property_of="parametrisation",
        null="Not 0 in the random-label control either: there it is mostly the noise of a batch.",
        decision="Whether eps matters: where this is near eps, Adam's steps are smaller than they look.",
    ),
    Measure(
        name="participation_rank",
        meaning="How many directions share the matrix's size, without a singular value computed.",
        formula="(sum s^2)^2 / sum s^4 = tr(W^T W)^2 / |W^T W|_F^2",
        range="1 to min(in, out); undefined for a matrix of zeros",
        source="participation ratio, Bell and Dean 1970; of covariances: Gao et al. 2017 (bioRxiv 214262)",
        property_of="parametrisation",
        null="n m / (n + m) for a random n x m matrix: half of n for a square one.",
        decision="When a matrix or a head becomes low-rank, step by step; then look at its spectrum.",
        looks="circuits",
    ),
    Measure(
        name="symmetric_share",
        meaning="How much of a QK circuit treats asking and being asked alike.",
        formula="|(QK + QK^T) / 2|_F^2 / |QK|_F^2",
        range="0 (antisymmetric) to 1 (symmetric), of the circuits QK; undefined for zeros and in cross-attention",
        source="elementary; Saponati et al. 2025, The underlying structures of self-attention (arXiv 2502.10927)",
        property_of="function",
        null="0.5 for independent random W_Q and W_K.",
        decision="Whether W_Q and W_K could be one matrix: near 1 they could.",
        looks="circuits",
    ),
    Measure(
        name="rotation",
        meaning="How far the strongest directions that the matrix reads have turned since the start.",
        formula=f"acos sqrt(|U_S^T U_W|_F^2 / k) in degrees, U the k = {N_SINGULAR} leading left singular vectors",
        range="0 to 90 degrees; undefined where W or S is 0, or where k directions are all there are",
        source="Bjorck and Golub 1973 (principal angles); in training: Gur-Ari et al. 2018 (arXiv 1812.04754)",
        property_of="parametrisation",
        null="acos sqrt(k / n_in) for unrelated directions, n_in the matrix's inputs: 75.5 degrees with 128 of them.",
        decision="Whether the start is worth care: near 0 its directions were kept, so a better start or --from pays; "
        "near that of unrelated directions they were thrown away.",
        looks="spectra",
    ),
    Measure(
        name="angle_to_k",
        meaning="How differently this head's W_Q (or W_V) reads its input from how its W_K does.",
        formula="acos sqrt(|U^T U_K|_F^2 / d_head) in degrees, U and U_K orthonormal bases of the spaces that are read",
        range="0 (the same space) to 90 (unrelated, at right angles); undefined where a head reads everything, and of "
        "W_Q in cross-attention, which reads another stack",
        source="Bjorck and Golub 1973 (principal angles)",
        property_of="function",
        null="acos sqrt(d_head / d_model) for random matrices: 60 degrees with four heads, 69 with eight.",
        decision="Whether three matrices are three roles: at 0 degrees W_K could be shared.",
        looks="spectra",
    ),
    Measure(
        name="angle_to_q",
        meaning="How differently this head's W_V reads its input from how its W_Q does.",
        formula="as angle_to_k, with W_Q; over the query heads that share a W_V, the root mean square cosine",
        range="0 to 90 degrees; undefined where a head reads everything, and in cross-attention",
        source="Bjorck and Golub 1973 (principal angles)",
        property_of="function",
        null="acos sqrt(d_head / d_model) for random matrices: 60 degrees with four heads, 69 with eight.",
        decision="Whether W_V could share its matrix with W_Q: at 0 degrees a head hands on just what it looks for.",
        looks="spectra",
    ),
    Measure(
        name="row_drift",
        meaning="How far each token's row has moved from where it started, as a share of its starting size.",
        formula="|W[t] - S[t]| / |S[t]| for each row t of W_E (column of W_U); where S[t] is 0, 1 stands for |S[t]|",
        range="0 and up, one number for each token",
        source="Zhang, Bengio and Singer 2019 (arXiv 1902.01996), by row",
        property_of="parametrisation",
        null="0 for a token never seen, unless W_U is tied or weight decay is on; not 0 in the random-label control.",
        decision="Whether W_E could have been frozen, and which tokens occur too rarely to be worth a row.",
        looks="rows",
    ),
    Measure(
        name="row_count",
        meaning="How often each token stands in the training part of the corpus.",
        formula="number of occurrences of t",
        range="0 and up, one whole number for each token",
        source="counting",
        property_of="function",
        null="The same: a property of the text.",
        decision="Whether a vocabulary is too large for its text: many rows with a count below ten.",
        looks="rows",
    ),
    Measure(
        name="entropy",
        meaning="How widely a head spreads its attention.",
        formula="mean over rows of -sum_j p_j ln p_j = lse - E_p[s]; causal rows from the second on",
        range="0 (one key each) to ln(keys seen), in nats",
        source="Zhai et al. 2023, attention entropy collapse (arXiv 2303.06296)",
        property_of="function",
        null="At step 0 near ln(keys seen) where scores start near 0, some tenths of a nat below with QK-norm, whose "
        "scores start with a standard deviation near 1. It can fall in the random-label control too.",
        decision="Whether the rate is too high: entropy that falls to 0 early is a collapse.",
        looks="attention",
    ),
    Measure(
        name="largest_score",
        meaning="The largest score that a head gave any key on the probe, scaled, before the softmax.",
        formula="max over rows and keys of q_i . k_j * scale; causal rows from the second on",
        range="any number; with QK-norm at most the product of the gains times sqrt(d_head)",
        source="Wortsman et al. 2023 (arXiv 2309.14322): runs whose scores passed 1e4 diverged",
        property_of="function",
        null="At step 0 a few standard deviations of the starting scores.",
        decision="Whether QK-norm or a lower rate is needed: scores that grow without end.",
        looks="attention",
    ),
    Measure(
        name="own_mass",
        meaning="How much of its attention a head keeps for the position itself.",
        formula="mean over rows of p_ii; causal rows from the second on",
        range="0 to 1; undefined in cross-attention",
        source="Clark et al. 2019 (arXiv 1906.04341)",
        property_of="function",
        null="At step 0 about the mean of 1/(keys seen).",
        decision="Whether a head is worth its place: near 1 it reads its own token alone, which an MLP does for less.",
        looks="attention",
    ),
    Measure(
        name="previous_mass",
        meaning="How much a head attends to the position before.",
        formula="mean over rows of p_i,i-1",
        range="0 to 1; undefined in cross-attention",
        source="Voita et al. 2019 (arXiv 1905.09418), positional heads; Olsson et al. 2022 (arXiv 2209.11895)",
        property_of="function",
        null="At step 0 about the mean of 1/(keys seen).",
        decision="Whether to add a layer: an induction head needs one that looks back by one in a layer below it.",
        looks="attention",
    ),
    Measure(
        name="first_mass",
        meaning="How much a head attends to the first position, the usual place to attend to nothing.",
        formula="mean over rows of p_i,0; causal rows from the second on",
        range="0 to 1",
        source="Xiao et al. 2024, attention sinks (arXiv 2309.17453)",
        property_of="function",
        null="At step 0 about the mean of 1/(keys seen).",
        decision="Whether a head is at rest: near 1 on everything it is a candidate for removal.",
        looks="attention",
    ),
    Measure(
        name="distance",
        meaning="How far back (or away) a head looks.",
        formula="mean over rows of sum_j p_ij |i - j|; causal rows from the second on",
        range="0 to n_ctx - 1 positions; undefined in cross-attention",
        source="mean attention distance, Dosovitskiy et al. 2021 (arXiv 2010.11929), section 4.5",
        property_of="function",
        null="At step 0 half of the keys seen: n_ctx / 4 on average for causal rows; n_ctx / 3 where both sides are "
        "seen.",
        decision="Whether the context is used: all heads near 0 would do with a shorter one.",
        looks="attention",
    ),
    Measure(
        name="dominant_rows",
        meaning="In how many rows one key takes nearly all of the attention.",
        formula="share of rows with max_j p_ij > 0.9; causal rows from the second on",
        range="0 to 1",
        source="Zhai et al. 2023 (arXiv 2303.06296), as a count",
        property_of="function",
        null="0 at step 0 where scores start near 0, near 0 with QK-norm.",
        decision="Whether to lower the rate or use QK-norm: a saturated softmax gives W_Q and W_K no gradient any "
        "more.",
        looks="attention",
    ),
    Measure(
        name="induction",
        meaning="How much a head looks from a repeated token to what followed it before (copying).",
        formula="mean over i of p[n + i, i + 1] on n random tokens written twice",
        range="0 to 1; undefined where a model reads no token ids",
        source="Olsson et al. 2022, prefix-matching score (arXiv 2209.11895)",
        property_of="function",
        null="For even attention ln 2 / n where causal (0.011 at n = 64), 1 / (2 n) where both sides are seen.",
        decision="When in-context copying appears, and in which head; whether training may stop before it does.",
        looks="attention",
    ),
)  # fmt: skip

MEASURES: Mapping[str, Measure] = {item.name: item for item in _MEASURES}
"""Every measure by name, in the order in which they are recorded."""

LIGHT = (
    "norm",
    "grad_norm",
    "update_ratio",
    "drift",
    "turn",
    "alignment",
    "onward",
    "descent",
    "second_moment",
)
"""Taken of every catalogue entry and every head around an update."""

AT_REST = ("norm", "drift", "turn")
"""Those that need no update."""

CIRCUIT = ("norm", "update_ratio", "drift", "turn", "participation_rank", "symmetric_share")
"""Taken of the circuits QK and OV; the last of QK only."""

SPECTRAL = ("spectral_norm", "stable_rank", "effective_rank")
"""Taken of every matrix, head and circuit."""

ANGLES = ("angle_to_k", "angle_to_q")
"""Between the spaces that the matrices of one head read."""


def measure(name: str) -> Measure:
    """A measure by name. Raises ConfigError with the nearest names."""
    if name not in MEASURES:
        raise ConfigError(unknown("measure", name, MEASURES))
    return MEASURES[name]


def property_of(name: str, kind: str) -> Literal["function", "parametrisation"]:
    """What a measure of that kind of matrix belongs to: everything of the circuits QK and OV to the function."""
    return "function" if kind in ("QK", "OV") else measure(name).property_of
