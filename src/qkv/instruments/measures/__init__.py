"""What can be measured of a matrix, as pure functions; each beside what it means.

Every function takes stored weights [..., in, out] (or a vector [n]) and answers one float per matrix; what is undefined
reads None (NaN inside an array), never infinity. `W` is the matrix at a step, `S` the same matrix at step 0, `G` the
gradient of the loss, `dW` the last update. The recorder reaches the same numbers in one pass over all matrices
(`sums.py`, `spectra.py`); a test holds the two equal.

Raw factors are properties of a parametrisation: (W_Q M, W_K M^-T) is the same function for every invertible M, with
other norms, drifts and spectra. Whatever is measured of the circuits QK and OV is a property of the function, and so
are the spaces that a head's matrices read, and the loss that an update gains. Refuses: comparing raw factors across
seeds, and reading a drift without the random-label control.
"""

from qkv.instruments.measures.arithmetic import angle, between, participation, ratio, reference_norm, roots
from qkv.instruments.measures.circuits import participation_rank, symmetric_share
from qkv.instruments.measures.directions import rotation, subspace_angle
from qkv.instruments.measures.gradient import alignment, descent, onward, second_moment
from qkv.instruments.measures.movement import drift, grad_norm, norm, turn, update_ratio
from qkv.instruments.measures.rows import row_drift
from qkv.instruments.measures.spectrum import (
    effective_rank,
    singular_values,
    spectral_norm,
    spectrum_summary,
    stable_rank,
)

__all__ = [
    "alignment",
    "angle",
    "between",
    "descent",
    "drift",
    "effective_rank",
    "grad_norm",
    "norm",
    "onward",
    "participation",
    "participation_rank",
    "ratio",
    "reference_norm",
    "roots",
    "rotation",
    "row_drift",
    "second_moment",
    "singular_values",
    "spectral_norm",
    "spectrum_summary",
    "stable_rank",
    "subspace_angle",
    "symmetric_share",
    "turn",
    "update_ratio",
]
