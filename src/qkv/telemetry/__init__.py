"""What a run wrote down about itself: one SQLite file, one writer, typed reads.

schema.sql   every table and column, with what it means
Store        the writer, used by the recorder and the training
Telemetry    the reader, used by inspection, views and commands, also while the training runs
"""

from qkv.telemetry.connection import damage
from qkv.telemetry.history import Arrays, History, write_table
from qkv.telemetry.queries import Memory, Telemetry
from qkv.telemetry.rows import (
    LEDGER_ARM,
    NULL_ARM,
    RUN_ARM,
    AddressRow,
    Arm,
    Clock,
    Compared,
    Evaluation,
    Event,
    Grid,
    MatrixRow,
    MeasureRow,
    Sample,
    Series,
    Session,
    Steps,
)
from qkv.telemetry.selectors import select
from qkv.telemetry.store import Store

__all__ = [
    "LEDGER_ARM",
    "NULL_ARM",
    "RUN_ARM",
    "AddressRow",
    "Arm",
    "Arrays",
    "Clock",
    "Compared",
    "Evaluation",
    "Event",
    "Grid",
    "History",
    "MatrixRow",
    "MeasureRow",
    "Sample",
    "Series",
    "Session",
    "Steps",
    "Store",
    "Memory",
    "Telemetry",
    "damage",
    "select",
    "write_table",
]
