"""What is measured of a training, and when; nothing here can change one.

measures   every measure, beside what it means; registry: which there are, in order, and which look takes them
readings   what one look at the weights gives; sums: of matrices and heads in one pass; spectra: ranks and directions,
           and circuits; tokens: row by row
probe      the text on which attention is looked at; attention_rows, attention_stats: without the table of scores
schedule   at which steps
recorder   the observer that writes it all to the telemetry; measurements: numbers to rows; pieces: names of matrices
           and heads; runlog: losses and events; ledger: what each matrix contributed
gradients  the path of the error; trackers: telemetry sent on
"""

from qkv.instruments import measures
from qkv.instruments.attention_stats import attention_stats, induction_score
from qkv.instruments.measures import *  # noqa: F403
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
    "attention_stats",
    "induction_score",
    "measure",
    "property_of",
]
__all__ += measures.__all__
