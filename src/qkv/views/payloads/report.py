"""Everything a page shows."""

import dataclasses

from qkv.views.payloads.about import AnswerNote, Made, RunFacts, SampleNote
from qkv.views.payloads.host import VERSION, Host
from qkv.views.payloads.loss import LossSection
from qkv.views.payloads.measured import GridSection, LedgerSection, MapSection, OtherRun
from qkv.views.payloads.play import PlaySection
from qkv.views.payloads.texts import AttentionText, ForwardText
from qkv.views.payloads.weights import MatricesSection
from qkv.views.payloads.words import RowsSection, WordsSection

__all__ = ["Report"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Everything a page shows; each field is one model key of the ES modules."""

    host: Host
    run: RunFacts
    answers: tuple[AnswerNote, ...]
    made: Made
    loss: LossSection | None = None
    samples: tuple[SampleNote, ...] = ()
    rows: RowsSection | None = None
    map: MapSection | None = None
    grid: GridSection | None = None
    matrices: MatricesSection | None = None
    attention: tuple[AttentionText, ...] = ()
    forward: ForwardText | None = None
    words: WordsSection | None = None
    ledger: LedgerSection | None = None
    play: PlaySection | None = None
    other: OtherRun | None = None
    kept: tuple[int, ...] = ()
    """Every step whose weights were kept."""
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    """section -> why it is not here and what to type to have it."""
    damaged: tuple[str, ...] = ()
    """What of the run is not what was written, a sentence for each file; nothing that is shown comes from these."""
    version: int = VERSION
