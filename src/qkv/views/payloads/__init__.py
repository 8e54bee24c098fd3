"""What a view is given: versioned dataclasses.

The same payload feeds the report file, the live page and the notebook; `Host.can` says what the host can compute beyond
it (a report can compute nothing: it carries chosen texts). Each field of `Report` is one model key of the ES modules in
`static/` (`model.get("loss")`); a room for which a run has no data is None, and its view says so or stays away.

Refuses: numbers that are not in the run (a missing value is None or NaN, shown as a dash). How a payload gets into a
page is `packed`'s.
"""

from qkv.views.payloads.about import AnswerNote, Evidence, Fact, FileNote, Made, RunFacts, SampleNote
from qkv.views.payloads.host import VERSION, Host
from qkv.views.payloads.loss import Baseline, LossRoom
from qkv.views.payloads.measured import (
    GridRoom,
    HeadRow,
    LedgerRoom,
    LedgerRow,
    MapRoom,
    MatrixRow,
    MeasureNote,
    MovingNote,
    OtherRun,
)
from qkv.views.payloads.play import PlayRoom
from qkv.views.payloads.report import Report
from qkv.views.payloads.texts import (
    AttentionText,
    Backward,
    Cell,
    ForwardLayer,
    ForwardText,
    HeadNote,
    Looks,
    Patched,
    PathShare,
    Picture,
    StepPart,
    Written,
)
from qkv.views.payloads.weights import ExactBlock, MatricesRoom, MatrixPicture
from qkv.views.payloads.words import RowsRoom, TokenRow, TrioRoom, WordsRoom

__all__ = [
    "AnswerNote",
    "AttentionText",
    "Backward",
    "Baseline",
    "Cell",
    "Evidence",
    "ExactBlock",
    "Fact",
    "FileNote",
    "ForwardLayer",
    "ForwardText",
    "GridRoom",
    "HeadNote",
    "HeadRow",
    "Host",
    "LedgerRoom",
    "LedgerRow",
    "Looks",
    "LossRoom",
    "Made",
    "MapRoom",
    "MatricesRoom",
    "MatrixPicture",
    "MatrixRow",
    "MeasureNote",
    "MovingNote",
    "OtherRun",
    "Patched",
    "PathShare",
    "Picture",
    "PlayRoom",
    "Report",
    "RowsRoom",
    "RunFacts",
    "SampleNote",
    "StepPart",
    "TokenRow",
    "TrioRoom",
    "VERSION",
    "WordsRoom",
    "Written",
]
