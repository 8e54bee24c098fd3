"""What a finished or running training says of itself: answers, token rows, neighbours, snapshots.

Works on run folders, arrays and telemetry, never on a live trainer, and needs no torch; what runs a model on a text is
in `contextual`.
"""

from qkv.inspection.answers.reading import Answer, read
from qkv.inspection.neighbours import Neighbour, Neighbours, nearest, neighbours
from qkv.inspection.stored_run import stored
from qkv.inspection.token_rows import RowStory, RowSummary, drifts, moved, row_story, summary

__all__ = [
    "Answer",
    "Neighbour",
    "Neighbours",
    "RowStory",
    "RowSummary",
    "drifts",
    "moved",
    "nearest",
    "neighbours",
    "read",
    "row_story",
    "stored",
    "summary",
]
