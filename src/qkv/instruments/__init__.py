"""What is measured of a training, and when; nothing here can change one.

registry   every measure: meaning, formula, range, source, property, null, decision
measures   the same as pure functions of one matrix
passes     all matrices in one pass; spectra: many small ones at a time; tokens: row by row
schedule   at which steps
recorder   the observer that writes it all to the telemetry; runlog: losses and events; looks: numbers to rows
"""

from qkv.instruments.measures import (
    drift,
    effective_rank,
    grad_norm,
    norm,
    row_drift,
    singular_values,
    spectral_norm,
    stable_rank,
    turn,
    update_ratio,
)
from qkv.instruments.recorder import LEVELS, Recorder
from qkv.instruments.registry import LIGHT, MEASURES, SPECTRAL, Measure, measure, property_of
from qkv.instruments.runlog import RunLog

__all__ = [
    "LEVELS",
    "LIGHT",
    "MEASURES",
    "SPECTRAL",
    "Measure",
    "Recorder",
    "RunLog",
    "drift",
    "effective_rank",
    "grad_norm",
    "measure",
    "norm",
    "property_of",
    "row_drift",
    "singular_values",
    "spectral_norm",
    "stable_rank",
    "turn",
    "update_ratio",
]
