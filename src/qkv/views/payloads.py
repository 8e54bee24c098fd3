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
from qkv.views.play_payload import PlayRoom

__all__ = [
    "VERSION",
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
    "LossRoom",
    "Made",
    "MapRoom",
    "MatricesRoom",
    "MatrixPicture",
    "MatrixRow",
    "MeasureNote",
    "MovingNote",
    "OtherRun",
    "PathShare",
    "PlayRoom",
    "Report",
    "RowsRoom",
    "RunFacts",
    "SampleNote",
    "StepPart",
    "TokenRow",
    "TrioRoom",
    "WordsRoom",
]

VERSION = 3
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
    brief: str = ""
    """The same in a line; empty where `sentence` is one."""
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
    """What a measure is: formula, range, source, what it is a property of, its null, and a decision that it informs."""

    name: str
    label: str
    formula: str
    range: str
    source: str
    property_of: str
    null: str
    meaning: str = ""
    decision: str = ""


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
class HeadRow:
    """One head of a matrix, or one head's circuit."""

    address: str
    place: str
    """The address without head and kind: `L2`, `dec.L1.cross`."""
    layer: int
    head: int
    kind: str
    role: Literal["E", "Q", "K", "V", "O", "MLP", "norm"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridRoom:
    """Every head x every step x every measure that heads have."""

    rows: tuple[HeadRow, ...]
    steps: tuple[int, ...]
    measures: tuple[MeasureNote, ...]
    values: dict[str, Packed]
    """measure -> float32 [row, step]; NaN where there is none."""
    origin: str
    """Where the numbers come from, in words."""
    null_steps: tuple[int, ...] = ()
    null_values: dict[str, Packed] = dataclasses.field(default_factory=dict)


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
    spectrum: Packed | None = None
    """[snapshot, rank]: singular values, falling; None where they would take too long."""


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
    steps: tuple[int, ...]
    """The steps whose weights were used."""
    patterns: Packed
    """[step, layer, head, query_pos, key_pos]; for causal models the lower triangle row by row, n(n+1)/2 numbers. Of a
    text that is asked for in tiles: [step, layer, head, row block, column block], each the largest of its block."""
    causal: bool
    n_layers: int
    n_heads: int
    heads: tuple[HeadNote, ...] = ()
    """For each step, layer by layer."""
    block: int = 1
    """Cells along a side of which `patterns` holds the largest."""
    tile: int = 0
    """Cells along a side of a tile to ask for; 0 where `patterns` holds every number."""
    source: str = ""
    """The text itself, where the host can be asked of it again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForwardLayer:
    """Every activation of one layer on one text, float32."""

    layer: int
    x: Packed
    """[pos, d_model], as are attn_out, resid_mid, mlp_out and resid_post."""
    q: Packed
    """[head, pos, d_head], as is z; k and v by key/value head."""
    k: Packed
    v: Packed
    scores: Packed
    """[head, query_pos, key_pos], scaled; NaN where the mask hides a key."""
    pattern: Packed
    """[head, query_pos, key_pos]; rows sum to 1."""
    z: Packed
    attn_out: Packed
    resid_mid: Packed | None
    """None where attention and MLP stand side by side."""
    mlp_out: Packed | None
    resid_post: Packed


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForwardText:
    """One text on its way through the model."""

    text: str
    tokens: tuple[str, ...]
    n_all: int
    """Tokens of the whole text."""
    step: int
    changes: tuple[str, ...]
    causal: bool
    n_layers: int
    n_heads: int
    n_kv_heads: int
    scale: float
    """What q k^T is multiplied by."""
    embed: Packed
    """[pos, d_model]: rows of W_E, positions included."""
    layers: tuple[ForwardLayer, ...]
    """Those that are carried."""
    losses: Packed | None
    """float32 [pos]: nats that the next token cost, NaN at the last; None where no next token is predicted."""
    loss: float | None
    """Their mean."""
    top_tokens: tuple[tuple[str, ...], ...]
    """[pos][rank]: what is thought likeliest at each position."""
    top: Packed
    """[pos, rank]: their probabilities."""
    notes: tuple[str, ...] = ()
    """What this layout does besides the textbook's formulas."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathShare:
    """The gradient that reaches what enters one block, and the share of each path in it."""

    address: str
    norm: float
    shares: dict[str, float | None]
    """skip, V, Q, K, MLP; they sum to 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepPart:
    """One matrix under one step of gradient descent on one text."""

    address: str
    norm: float
    grad_norm: float
    first_order: float
    """Nats, of this matrix moved alone."""
    actual: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backward:
    """The way back on one text, in float64."""

    tokens: tuple[str, ...]
    loss: float
    rate: float
    """Of the gradient descent."""
    reached: Packed
    """[pos]: |gradient| at what enters the first block."""
    paths: tuple[PathShare, ...]
    """By block."""
    by_token: dict[str, Packed]
    """Path -> its share of each token's gradient at the first block, [pos]."""
    crossed: dict[str, float]
    """How many sublayers the gradient went through -> its share."""
    parts: tuple[StepPart, ...]
    """By size of gradient."""
    first_order: float
    """Nats, of all matrices moved at once."""
    actual: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrioRoom:
    """Cosines between the first words of a `WordsRoom`, each read alone, in the first layer, at its steps."""

    n: int
    """Words."""
    x: Packed
    """[step, word, word]"""
    heads: Packed
    """[step, (q, k, v), head, word, word]"""
    other_basis: Packed | None
    """[step, (q, k), head, word, word] of the same function in another basis inside each head; None where the layout
    (rotary positions, QK-norm) ties the basis down."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordsRoom:
    """Rows of W_E as points: the most frequent tokens, their neighbours among each other, and a map of them."""

    steps: tuple[int, ...]
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    counts: tuple[int, ...] | None
    n_rows: int
    places: Packed
    """[step, token, 2]: on the two directions of largest variance at the last step."""
    shares: tuple[float, float]
    """Of all variance at the last step, on these directions."""
    nearest: Packed
    """int32 [step, token, rank]: numbers of the nearest tokens."""
    cosines: Packed
    """[step, token, rank]"""
    null_cosine: float
    """The largest cosine to expect among as many random directions."""
    trio: TrioRoom | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """What one matrix, one head or one kind of matrix earned."""

    address: str
    role: Literal["E", "Q", "K", "V", "O", "MLP", "norm"]
    nats: float
    """By which its movement changed the loss; below 0 lowered it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerRoom:
    """Which matrix earned the loss, each list by what was earned, and how closely the account closes."""

    matrices: tuple[LedgerRow, ...]
    heads: tuple[LedgerRow, ...]
    kinds: tuple[LedgerRow, ...]
    first_step: int
    last_step: int
    n_entries: int
    change: float
    """Of the loss of the ledger's probe, nats."""
    error: float
    """All that was earned less that change, nats."""


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
class OtherRun:
    """Another run of the same matrices, to stand beside this one."""

    name: str
    map: MapRoom | None
    grid: GridRoom | None


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
    grid: GridRoom | None = None
    matrices: MatricesRoom | None = None
    attention: tuple[AttentionText, ...] = ()
    forward: ForwardText | None = None
    words: WordsRoom | None = None
    ledger: LedgerRoom | None = None
    play: PlayRoom | None = None
    other: OtherRun | None = None
    kept: tuple[int, ...] = ()
    """Every step whose weights were kept."""
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    """room -> why it is not here and what to type to have it."""
    version: int = VERSION
