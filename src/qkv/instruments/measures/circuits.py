"""What the Gram matrices of a head's factors tell of its circuits, without a singular value."""

from torch import Tensor

from qkv.instruments.measures.arithmetic import Weights, or_none, participation, ratio
from qkv.instruments.measures.measure import Measure
from qkv.instruments.measures.movement import norm
from qkv.shapes import Float


def participation_rank(weights: Weights) -> float | None:
    """(sum s^2)^2 / sum s^4, 1 to min(in, out); None for a matrix of zeros."""
    matrix = weights.detach().double().reshape(-1, weights.shape[-1])
    gram = matrix @ matrix.mT if matrix.shape[0] < matrix.shape[1] else matrix.mT @ matrix
    return or_none(float(participation(gram.numpy())))


def symmetric_share(product: Float[Tensor, "n n"]) -> float | None:
    """|(M + M^T) / 2|_F^2 / |M|_F^2 of a square M, 0 (antisymmetric) to 1 (symmetric); None for zeros."""
    matrix = product.detach().double()
    return or_none(ratio(norm((matrix + matrix.mT) / 2) ** 2, norm(matrix) ** 2))


MEASURES = (
    Measure(
        name="participation_rank",
        meaning="How many directions share the matrix's size, without a singular value computed.",
        formula="(sum s^2)^2 / sum s^4 = tr(W^T W)^2 / |W^T W|_F^2",
        range="1 to min(in, out); undefined for a matrix of zeros",
        source="participation ratio, Bell and Dean 1970; of covariances: Gao et al. 2017 (bioRxiv 214262)",
        null="n m / (n + m) for a random n x m matrix: half of n for a square one.",
        decision="When a matrix or a head becomes low-rank, step by step; then look at its spectrum.",
        of_circuit=lambda reading: reading.participation,
    ),
    Measure(
        name="symmetric_share",
        meaning="How much of a QK circuit treats asking and being asked alike.",
        formula="|(QK + QK^T) / 2|_F^2 / |QK|_F^2",
        range="0 (antisymmetric) to 1 (symmetric), of the circuits QK; undefined for zeros and in cross-attention",
        source="elementary; Saponati et al. 2025, The underlying structures of self-attention (arXiv 2502.10927)",
        property_of="function",
        null="0.5 for independent random W_Q and W_K.",
        decision="Whether W_Q and W_K could be one matrix: near 1 they could, if QK has no negative eigenvalues.",
        of_circuit=lambda reading: reading.symmetric,
    ),
)
