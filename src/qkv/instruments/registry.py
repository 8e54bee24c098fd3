"""What every measure is: name, meaning, formula, range, source, property, null, and one decision that it informs.

Words and numbers only; views and help texts read this. `W` is the matrix at a step, `S` the same at step 0,
`G` the gradient of the loss, `dW` the last update. A new measure is one entry here and a function in `measures.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from qkv.errors import ConfigError, unknown
from qkv.telemetry import MeasureRow

__all__ = ["LIGHT", "MEASURES", "N_SINGULAR", "SPECTRAL", "Measure", "measure", "property_of"]

N_SINGULAR = 8
"""How many of the largest singular values are recorded as a list."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What a measure is, where it comes from, and how not to be fooled by it."""

    name: str
    """As in `run.history(selector, name)`."""
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
    """What it reads when nothing was learned."""
    decision: str
    """One decision that it informs."""
    level: Literal["light", "full"] = "light"
    """The lowest level of `--watch` that records it."""

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
        null="Its value at step 0; on random labels it grows or shrinks too, by step size and weight decay.",
        decision="Whether weight decay holds the weights: a norm that grows without end asks for more of it.",
    ),
    Measure(
        name="grad_norm",
        meaning="How strongly the loss of the last batch pulled at the matrix, before clipping.",
        formula="|G|_F",
        range="0 and up, in nats per unit of a weight; undefined where the matrix had no gradient (frozen)",
        source="Pascanu, Mikolov and Bengio 2013 (arXiv 1211.5063), section 3.2, per matrix",
        property_of="parametrisation",
        null="Not 0: random labels pull too, and a batch's noise never dies out.",
        decision="Where to look when training spikes: the matrix whose gradient grew first.",
    ),
    Measure(
        name="update_ratio",
        meaning="How large the last update was, as a share of the matrix.",
        formula="|dW|_F / |W|_F, W after the update",
        range="0 to about 2; undefined for a matrix of zeros",
        source="Karpathy, CS231n notes, Neural Networks 3 (ratio of weights to updates): about 1e-3 under SGD and Adam",
        property_of="parametrisation",
        null="The same order on random labels: the learning rate and the optimizer set it (Muon and Adam normalise).",
        decision="Whether the learning rate suits this matrix: far above 1e-2 late in training is too much.",
    ),
    Measure(
        name="drift",
        meaning="How far the matrix has moved from where it started, as a share of its starting size.",
        formula="|W - S|_F / |S|_F; where S is 0, sqrt(n_out) stands for |S|_F, the norm of a start at N(0, 1/fan_in)",
        range="0 and up; 0 for a frozen matrix",
        source="Nagarajan and Kolter 2019 (arXiv 1902.04742); Zhang, Bengio and Singer 2019 (arXiv 1902.01996)",
        property_of="parametrisation",
        null="Not 0: random labels move matrices as well, sometimes further. Read it beside that arm only.",
        decision="Which matrices training used and which could have stayed frozen, once the null is taken off.",
    ),
    Measure(
        name="turn",
        meaning="How far the matrix has turned away from its starting direction, whatever its size.",
        formula="angle between W and S as vectors of weights",
        range="0 to 180 degrees; undefined where W or S is 0",
        source="elementary; 90 degrees is no memory of the start",
        property_of="parametrisation",
        null="Grows on random labels too; two independent random matrices stand at 90 degrees.",
        decision="Whether a large drift is growth (small turn) or a new direction (large turn).",
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
        level="full",
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
        level="full",
    ),
    Measure(
        name="effective_rank",
        meaning="How many directions the matrix uses, counted by the entropy of its singular values.",
        formula="exp(-sum p log p), p = s / sum s",
        range="1 to min(in, out); undefined for a matrix of zeros",
        source="Roy and Vetterli 2007, The effective rank (EUSIPCO)",
        property_of="parametrisation",
        null="0.8 of n for a square random matrix.",
        decision="Whether heads or width are wasted: a circuit of rank near 1 does one thing.",
        level="full",
    ),
    Measure(
        name="singular_values",
        meaning="How much the matrix stretches along its strongest directions.",
        formula=f"the {N_SINGULAR} largest singular values of W, falling",
        range="0 and up, a list",
        source="elementary",
        property_of="parametrisation",
        null="No value stands out of a random matrix's spectrum; one that does was learned, or is its mean.",
        decision="At which rank to cut a matrix.",
        level="full",
    ),
    Measure(
        name="row_drift",
        meaning="How far each token's row has moved from where it started, as a share of its starting size.",
        formula="|W[t] - S[t]| / |S[t]| for each row t of W_E (column of W_U); where S[t] is 0, 1 stands for |S[t]|",
        range="0 and up, one number for each token",
        source="Zhang, Bengio and Singer 2019 (arXiv 1902.01996), by row",
        property_of="parametrisation",
        null="0 for a token never seen, unless W_U is tied or weight decay is on; random labels move rows too.",
        decision="Whether the embeddings were trained at all, and which tokens had too few occurrences.",
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
    ),
)  # fmt: skip

MEASURES: Mapping[str, Measure] = {item.name: item for item in _MEASURES}
"""Every measure of a matrix by name, in the order in which they are recorded."""

LIGHT = ("norm", "grad_norm", "update_ratio", "drift", "turn")
"""Taken of every catalogue entry at level `light`, and of every head at level `full`."""

SPECTRAL = ("spectral_norm", "stable_rank", "effective_rank")
"""Taken of every matrix, head and circuit at level `full`."""


def measure(name: str) -> Measure:
    """A measure by name. Raises ConfigError with the nearest names."""
    if name not in MEASURES:
        raise ConfigError(unknown("measure", name, MEASURES))
    return MEASURES[name]


def property_of(name: str, kind: str) -> Literal["function", "parametrisation"]:
    """What a measure of that kind of matrix belongs to: spectra and norms of the circuits QK and OV to the function."""
    circuit = kind in ("QK", "OV") and name in ("norm", "singular_values", *SPECTRAL)
    return "function" if circuit else measure(name).property_of
