"""What a view is given: versioned dataclasses.

The same payload feeds the report file, the live page and the notebook; `Host.can` says what the host can compute beyond
it (a report can compute nothing: it carries chosen texts). Each field of `Report` is one model key of the ES modules in
`static/` (`model.get("loss")`); a section for which a run has no data is None, and its view says so or stays away.

Refuses: numbers that are not in the run (a missing value is None or NaN, shown as a dash). How a payload gets into a
page is `packed`'s.
"""

from qkv.views.payloads.about import AnswerNote, Evidence, Fact, FileNote, Made, RunFacts, SampleNote
from qkv.views.payloads.host import VERSION, Host
from qkv.views.payloads.loss import Baseline, LossSection
from qkv.views.payloads.measured import (
    GridSection,
    HeadRow,
    LedgerRow,
    LedgerSection,
    MapSection,
    MatrixRow,
    MeasureNote,
    MovingNote,
    OtherRun,
)
from qkv.views.payloads.play import PlaySection
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
from qkv.views.payloads.weights import ExactBlock, MatricesSection, MatrixPicture
from qkv.views.payloads.words import RowsSection, TokenRow, TrioSection, WordsSection

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
    "GridSection",
    "HeadNote",
    "HeadRow",
    "Host",
    "LedgerSection",
    "LedgerRow",
    "Looks",
    "LossSection",
    "Made",
    "MapSection",
    "MatricesSection",
    "MatrixPicture",
    "MatrixRow",
    "MeasureNote",
    "MovingNote",
    "OtherRun",
    "Patched",
    "PathShare",
    "Picture",
    "PlaySection",
    "Report",
    "RowsSection",
    "RunFacts",
    "SampleNote",
    "StepPart",
    "TokenRow",
    "TrioSection",
    "VERSION",
    "WordsSection",
    "Written",
]
