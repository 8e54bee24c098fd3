"""What is measured of a training, and when; nothing here can change one.

registry   every measure: meaning, formula, range, source, property, comparison, decision
measures   the same as pure functions of one matrix
passes     all matrices and heads in one pass; spectra: ranks and directions; tokens: row by row
attention_stats   what heads attend to, without the table of scores; probe: on which text
schedule   at which steps
recorder   the observer that writes it all to the telemetry; runlog: losses and events; looks: numbers to rows; pieces:
           names of matrices and heads
"""

from qkv.instruments.attention_stats import attention_stats, induction_score
from qkv.instruments.measures import (
    alignment,
    descent,
    drift,
    effective_rank,
    grad_norm,
    norm,
    onward,
    participation_rank,
    rotation,
    row_drift,
    second_moment,
    singular_values,
    spectral_norm,
    stable_rank,
    subspace_angle,
    symmetric_share,
    turn,
    update_ratio,
)
from qkv.instruments.recorder import Recorder
from qkv.instruments.registry import CIRCUIT, LIGHT, MEASURES, SPECTRAL, Measure, measure, property_of
from qkv.instruments.runlog import RunLog
from qkv.instruments.schedule import LEVELS, WatchConfig

__all__ = [
    "CIRCUIT",
    "LEVELS",
    "LIGHT",
    "MEASURES",
    "SPECTRAL",
    "Measure",
    "Recorder",
    "RunLog",
    "WatchConfig",
    "alignment",
    "attention_stats",
    "descent",
    "drift",
    "effective_rank",
    "grad_norm",
    "induction_score",
    "measure",
    "norm",
    "onward",
    "participation_rank",
    "property_of",
    "rotation",
    "row_drift",
    "second_moment",
    "singular_values",
    "spectral_norm",
    "stable_rank",
    "subspace_angle",
    "symmetric_share",
    "turn",
    "update_ratio",
]
