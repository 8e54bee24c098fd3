"""What a view is given: versioned dataclasses.

The same payload feeds the report file, the live page and the notebook; `Host.can` says what the host can compute beyond
it (a report can compute nothing: it carries chosen texts). Each field of `Report` is one model key of the ES modules in
`static/` (`model.get("loss")`); a room for which a run has no data is None, and its view says so or stays away.

Refuses: numbers that are not in the run (a missing value is None or NaN, shown as a dash). How a payload gets into a
page is `packed`'s.
"""

import dataclasses
from typing import Literal

from qkv.views.packed import Packed

__all__ = [
    "VERSION",
    "AnswerNote",
    "AttentionText",
    "Baseline",
    "Cell",
    "Evidence",
    "ExactBlock",
    "Fact",
    "FileNote",
    "HeadNote",
    "Host",
    "LossRoom",
    "Made",
    "MapRoom",
    "MatricesRoom",
    "MatrixPicture",
    "MatrixRow",
    "MeasureNote",
    "MovingNote",
    "Report",
    "RowsRoom",
    "RunFacts",
    "SampleNote",
    "TokenRow",
]

VERSION = 1
"""Of the payload's shape; a page refuses a payload of another version with a clear sentence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """Who shows the payload, and what it can compute on demand ("text", "gradient", "tiles")."""

    kind: Literal["report", "page", "notebook"] = "report"
    can: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fact:
    """One line of a facts list, already words."""

    label: str
    value: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The head of the page: which run, how large, how long, how good."""

    name: str
    task: str
    preset: str
    verdict: str
    unit: str
    """What one token is, in the singular: character, byte, word or token."""
    n_parameters: int | None
    n_tokens: int | None
    n_steps: int | None
    train_seconds: float | None
    machine: str
    facts: tuple[Fact, ...] = ()
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    tied: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """A named number behind an answer."""

    label: str
    """With its unit."""
    value: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerNote:
    """A question, its answer from this run, and what the answer rests on."""

    key: str
    question: str
    sentence: str
    more: tuple[str, ...] = ()
    null: str = ""
    """What the same reads when nothing is learned."""
    evidence: tuple[Evidence, ...] = ()
    address: str = ""
    """The matrix it is about, if one."""
    measure: str = ""
    """The measure it rests on, if one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Baseline:
    """A loss that needs no model, on the same validation tokens."""

    name: str
    label: str
    meaning: str
    nats: float
    bits_per_byte: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossRoom:
    """Loss over steps, in nats per token, and the lines it is read against."""

    train_steps: tuple[int, ...]
    train: tuple[float | None, ...]
    val_steps: tuple[int, ...]
    val: tuple[float | None, ...]
    best_step: int | None
    best: float | None
    last: float | None
    baselines: tuple[Baseline, ...] = ()
    bits_per_byte_of_nat: float | None = None
    """Bits per byte of one nat per token on the validation text; None where task or tokenizer have no such number."""
    best_bits_per_byte: float | None = None
    thinned: str = ""
    """How the training curve was thinned for the page, in words; empty when every recorded step is here."""
    baselines_note: str = ""
    """What the baselines were sampled from, in words; empty when all of the text was used."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleNote:
    """What the model wrote at a step."""

    step: int
    prompt: str
    text: str
    continues: bool = True
    """Whether `text` goes on after `prompt`; else it stands by itself: the prompt with its gaps filled, a label."""
    given: str = ""
    """What a prompt that is not continued is called."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenRow:
    """One row of W_E, before and after."""

    token: str
    token_id: int
    count: int | None
    drift: float | None
    why: Literal["frequent", "moved", "unseen"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsRoom:
    """The token table W_E row by row: how far each moved against how often it was met."""

    tokens: tuple[str, ...]
    token_ids: Packed
    counts: Packed | None
    """How often each stands in the training text."""
    drift: Packed
    step: int
    """The step of `drift`: the last that was recorded."""
    n_rows: int
    n_unseen: int | None
    largest_unseen_drift: float | None
    drawn: str
    """Which rows are drawn, in words; empty when all are."""
    null_step: int | None = None
    """The last step that run and null both recorded: a drift grows with updates, so only equal steps compare."""
    drift_then: Packed | None = None
    """Drift of the run at `null_step`."""
    null_drift: Packed | None = None
    """Drift of the random-label arm at `null_step`."""
    shown: tuple[TokenRow, ...] = ()
    example: int | None = None
    """Id of the row to begin with, one of `shown`."""
    start: Packed | None = None
    """[row of `shown`, d_model]: before training, bit for bit."""
    last: Packed | None = None
    """The same after it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixRow:
    """One row of the map: a catalogue entry."""

    address: str
    layer: int | None
    scope: str
    kind: str
    role: Literal["E", "Q", "K", "V", "O", "MLP", "norm"]
    site: str
    shape: tuple[int, ...]
    unmoved: bool = False
    """Whether its drift is exactly 0 at every recorded step: it was frozen, or got no gradient."""
    tied_to: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureNote:
    """What a measure is: formula, range, source, what it is a property of, and its null."""

    name: str
    label: str
    formula: str
    range: str
    source: str
    property_of: str
    null: str
    meaning: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MovingNote:
    """When one kind of matrix moved: steps by which shares of its final drift were done, medians over layers."""

    kind: str
    role: str
    tenth: float
    half: float
    nine_tenths: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapRoom:
    """Every matrix x every recorded step x every measure, with the random-label arm beside it where there is one."""

    rows: tuple[MatrixRow, ...]
    steps: tuple[int, ...]
    measures: tuple[MeasureNote, ...]
    values: dict[str, Packed]
    """measure -> float32 [row, step]; NaN where it was not recorded."""
    null_steps: tuple[int, ...] = ()
    null_values: dict[str, Packed] = dataclasses.field(default_factory=dict)
    moving: tuple[MovingNote, ...] = ()
    """By kind, the first to have done half of its moving first; from every recorded step, drawn or not."""
    thinned: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExactBlock:
    """A small part of a matrix, every weight as stored."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    start: Packed | None
    last: Packed
    chosen: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixPicture:
    """One matrix at the snapshots: how large the weights are, and how far they have moved, block by block."""

    address: str
    shape: tuple[int, ...]
    reduction: str
    block: tuple[int, int]
    size: Packed
    """[snapshot, row block, column block]: root mean square of the weights in a block."""
    change: Packed | None
    """[snapshot, row block, column block]: root mean square of (weights - start) in a block."""
    axes: tuple[str, str] = ("in", "out")
    n_heads: int = 0
    head_axis: int = 1
    exact: ExactBlock | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatricesRoom:
    """Pictures of the weights at the snapshots."""

    steps: tuple[int, ...]
    items: tuple[MatrixPicture, ...]
    left_out: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """Where a head looks most, over one text: a named share of its attention and what even attention would give."""

    name: str
    share: float
    even: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadNote:
    """One head on one text."""

    layer: int
    head: int
    shares: tuple[Cell, ...]
    entropy_nats: float
    even_entropy_nats: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionText:
    """Every head's pattern on one text: how much each token (query_pos) reads each token (key_pos)."""

    tokens: tuple[str, ...]
    origin: str
    patterns: Packed
    """[layer, head, query_pos, key_pos]; for causal models the lower triangle row by row [layer, head, n(n+1)/2]."""
    causal: bool
    n_layers: int
    n_heads: int
    heads: tuple[HeadNote, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileNote:
    """A file of the run folder and its sha256."""

    name: str
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """How the run was made, and how to make it again."""

    command: str
    config: str
    files: tuple[FileNote, ...]
    facts: tuple[Fact, ...]
    events: tuple[Fact, ...] = ()
    written_by: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Everything a page shows; each field is one model key of the ES modules."""

    host: Host
    run: RunFacts
    answers: tuple[AnswerNote, ...]
    made: Made
    loss: LossRoom | None = None
    samples: tuple[SampleNote, ...] = ()
    rows: RowsRoom | None = None
    map: MapRoom | None = None
    matrices: MatricesRoom | None = None
    attention: tuple[AttentionText, ...] = ()
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    """room -> why it is not here and what to type to have it."""
    version: int = VERSION
