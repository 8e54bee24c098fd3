"""A measure: how large a matrix is, in digits."""

import numpy as np

from qkv.instruments import Measure

DIGITS = Measure(
    name="digits",
    meaning="How large the matrix is, in digits.",
    formula="log10 |W|_F",
    range="any number",
    source="elementary",
    null="Its value at step 0.",
    decision="None; it is an example.",
    of_matrix=lambda reading: np.log10(reading.norm),
    at_rest=True,
)
