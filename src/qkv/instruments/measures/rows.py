"""Lists with a number for each token."""

import numpy as np
import torch
from torch import Tensor

from qkv.instruments.measures.measure import Measure
from qkv.shapes import Float, Float32


def row_drift(
    table: Float[Tensor, "n m"], start: Float[Tensor, "n m"], *, axis: int = 0
) -> Float32[np.ndarray, "n_rows"]:
    """|W[t] - S[t]| / |S[t]| for each row along `axis`; where S[t] is 0, 1 stands for |S[t]|."""
    table, start, across = table.detach(), start.detach(), 1 - axis
    moved = torch.linalg.vector_norm(table - start, dim=across).double()
    size = torch.linalg.vector_norm(start, dim=across).double()
    return (moved / torch.where(size > 0, size, 1.0)).float().cpu().numpy()


MEASURES = (
    Measure(
        name="row_drift",
        meaning="How far each token's row has moved from where it started, relative to its initial norm.",
        formula="|W[t] - S[t]| / |S[t]| for each row t of W_E (column of W_U); where S[t] is 0, 1 stands for |S[t]|",
        range="0 and up, one number for each token",
        source="Zhang, Bengio and Singer 2019 (arXiv 1902.01996), by row",
        null="0 for a token never seen, unless W_U is tied or weight decay is on; not 0 in the random-label control.",
        decision="Whether W_E could have been frozen, and which tokens occur too rarely to be worth a row.",
    ),
    Measure(
        name="row_count",
        meaning="How often each token occurs in the training part of the corpus.",
        formula="number of occurrences of t",
        range="0 and up, one whole number for each token",
        source="counting",
        property_of="function",
        null="The same: a property of the text.",
        decision="Whether a vocabulary is too large for its text: many rows with a count below ten.",
    ),
)
