"""One text in the model: attention, the way through, the way back."""

import dataclasses

from qkv.views.report.packed import Packed

__all__ = [
    "AttentionText",
    "Backward",
    "Cell",
    "ForwardLayer",
    "ForwardText",
    "HeadNote",
    "Looks",
    "Patched",
    "PathShare",
    "Picture",
    "StepPart",
    "Written",
]


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
class Picture:
    """An image under its patches."""

    pixels: Packed
    """uint8 [height, width, channels]."""
    grid: tuple[int, int]
    """Rows and columns of patches, read row by row."""
    frame: tuple[float, float, float, float]
    """Left, top, right and bottom of the grid as shares of the image; of overlapping patches a cell is the middle."""
    before: int
    """Positions in front of the patches: 1 with a class token, else 0."""
    pooled: str
    """What the answer is read from: `class` (the class token) or `mean` (the mean over patches)."""
    said: str
    """What it shows and what the model says of it, in words."""


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
    keys: tuple[str, ...] = ()
    """The tokens looked at, where they are not `tokens`: of cross-attention the source; `tokens` are then what is
    written at each position."""
    site: str = ""
    """Which attention of a model that has several: cross, enc or dec; of one pair there are all three."""
    picture: Picture | None = None
    """What the tokens are patches of."""
    received: Packed | None = None
    """float32 [step, layer, head, key_pos]: what each key receives in all, from the numbers before they were rounded;
    None, as `entropy`, where a page is to ask for it or to add up `patterns`."""
    entropy: Packed | None = None
    """float32 [step, layer, head, query_pos]: -sum p ln p of each row, nats, likewise."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Looks:
    """Attention on one text: one `AttentionText`, or of a pair one for each of its three attentions."""

    texts: tuple[AttentionText, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForwardLayer:
    """Every activation of one layer on one text, float32."""

    layer: int
    x: Packed
    """[pos, d_model], as are attn_out, resid_mid, mlp_out and resid_post."""
    q: Packed | None
    """[head, pos, d_head], as is z; k and v by key/value head. None, as all of it, where something else mixes."""
    k: Packed | None
    v: Packed | None
    scores: Packed | None
    """[head, query_pos, key_pos], scaled; NaN where the mask hides a key."""
    pattern: Packed | None
    """[head, query_pos, key_pos]; rows sum to 1."""
    z: Packed | None
    attn_out: Packed | None
    mix_out: Packed | None
    """[pos, d_model]: what stands in attention's place gives (an LSTM, a mean); None where the model attends."""
    resid_mid: Packed | None
    """None where attention and MLP stand side by side."""
    mlp_out: Packed | None
    resid_post: Packed
    formulas: dict[str, str]
    """Name of an activation -> what it is in this layout; also of some that this layer has not."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForwardText:
    """One text on its way through the model."""

    text: str
    tokens: tuple[str, ...]
    n_all: int
    """Tokens of the whole text."""
    step: int
    changes: tuple[str, ...]
    changed: tuple[str, ...]
    """A sentence for each change: which matrices, and who shares them."""
    causal: bool
    n_layers: int
    n_heads: int
    """0 where nothing attends."""
    n_kv_heads: int
    scale: float | None
    """What q k^T is multiplied by; None where nothing attends."""
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
    formulas: dict[str, str]
    """What `embed` and the prediction are in this layout."""
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
class Patched:
    """Two texts of as many tokens, and which activations carry what tells them apart (`qkv.inspection.patching`)."""

    tokens: tuple[str, ...]
    others: tuple[str, ...]
    position: int
    """Where both are answered."""
    causal: bool
    answers: tuple[str, str]
    """a and b."""
    odds: tuple[float, float]
    """log p(a) - log p(b), nats, of each text; a share times their difference is what it carries in nats."""
    caution: str
    """A sentence where the texts are answered so much alike that shares say little; else empty."""
    shares: dict[str, Packed]
    """stream, mixer, mlp -> [layer, pos]: how far the answer goes over, 0 to 1 and beyond."""
    heads: Packed | None
    """[layer, head]; None without attention."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """Who writes the answer at one token, in nats that sum to `log_odds` (`qkv.inspection.attribution`)."""

    tokens: tuple[str, ...]
    position: int
    causal: bool
    answers: tuple[str, str]
    """The likeliest and the next."""
    log_odds: float
    embed: float
    heads: Packed | None
    """[layer, head]; None without attention."""
    mixer: Packed
    """[layer]: attention with its bias, or what stands in its place."""
    mlp: Packed | None
    """[layer]; None without MLPs."""
    biases: float
    """b_O of every layer, where there are heads, the last norm's and the output's."""
