"""What a run wrote down about itself: one SQLite file, one writer, typed reads.

schema.sql     every table and column, with what it means
schema.py      its rows as dataclasses, and opening a file that must hold it
writer.py      Store, used by the recorder and the training
reader.py      Telemetry, used by inspection, views and commands, also while the training runs
selectors.py   `L*.W_Q` over the addresses that were recorded
history.py     what was read as NumPy arrays, a pandas table, a CSV or Parquet file
"""

from qkv.telemetry.history import History, write_table
from qkv.telemetry.reader import Memory, Telemetry
from qkv.telemetry.schema import (
    LEDGER_ARM,
    NULL_ARM,
    RUN_ARM,
    AddressRow,
    Compared,
    Evaluation,
    Event,
    Grid,
    MatrixRow,
    MeasureRow,
    Sample,
    Series,
    Steps,
    damage,
)
from qkv.telemetry.selectors import select
from qkv.telemetry.writer import Store

__all__ = [
    "LEDGER_ARM",
    "NULL_ARM",
    "RUN_ARM",
    "AddressRow",
    "Compared",
    "Evaluation",
    "Event",
    "Grid",
    "History",
    "MatrixRow",
    "MeasureRow",
    "Sample",
    "Series",
    "Steps",
    "Store",
    "Memory",
    "Telemetry",
    "damage",
    "select",
    "write_table",
]
