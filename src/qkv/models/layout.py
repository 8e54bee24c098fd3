"""What a model is made of, as frozen dataclasses: how large (`Sizes`), of which parts (`Layout`), and for what.

A field's own range is checked at construction; what concerns several fields at once is checked by
`ModelConfig.resolved`, so that settings may be overridden one at a time. This module knows no preset and no product
name.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, get_args, get_origin, get_type_hints

from qkv.errors import ConfigError, UserError, unknown
from qkv.models.start import START

Positions = Literal["none", "sinusoidal", "sinusoidal_halves", "learned", "rotary", "alibi", "relative"]
NormKind = Literal["none", "layer", "rms"]
MLPKind = Literal["none", "gelu", "gelu_tanh", "relu", "relu2", "silu", "swiglu", "geglu", "geglu_tanh"]

ADDED: tuple[str, ...] = ("sinusoidal", "sinusoidal_halves", "learned")
"""Positions that are rows, added to the embedding."""
ON_SCORES: tuple[str, ...] = ("alibi", "relative")
"""Positions that are added to scores, by the distance of query and key."""
GATED = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}
"""MLP with a gate -> the elementwise function of its gate."""


MOST_LAYERS = 1024
LARGEST_SIZE = 1 << 24
"""Of any other size: beyond these no model fits a machine, and building one would not end."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a model, in the field's names."""

    d_vocab: int
    """Number of token types; 0 for a stack that takes vectors instead of token ids."""
    d_model: int
    """Width of the residual stream."""
    n_layers: int
    """Number of blocks."""
    n_heads: int
    """Query heads in each attention."""
    n_ctx: int
    """Longest sequence, in positions; of an image model 0 means as many as it has patches."""
    n_kv_heads: int = 0
    """Key/value heads, shared by groups of query heads; 0 means n_heads."""
    d_head: int = 0
    """Width of one head; 0 means d_model // n_heads."""
    d_mlp: int = 0
    """Hidden width of the MLP; 0 means 4 * d_model."""
    n_types: int = 0
    """Kinds of segments of a text, rows of W_type; 0 means that there are none."""
    d_embed: int = 0
    """Width of the rows of W_E, which W_project makes d_model wide; 0 means d_model, without a W_project."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value, least = getattr(self, item.name), int(item.name in ("d_model", "n_heads"))
            if value < least:
                raise ConfigError(f"{item.name} is {value}; expected a whole number of at least {least}")
            if value > (most := MOST_LAYERS if item.name == "n_layers" else LARGEST_SIZE):
                raise ConfigError(f"{item.name} is {value}; expected a whole number of at most {most:,}")

    def resolved(self) -> "Sizes":
        """The same sizes with every 0 that means "the usual" filled in.

        Raises ConfigError where d_model does not divide into heads, or query heads do not divide into K/V heads.
        """
        if not self.d_head and self.d_model % self.n_heads:
            raise ConfigError(
                f"d_model {self.d_model} does not divide into n_heads {self.n_heads}; "
                f"choose another, or set d_head (the width of one head) yourself"
            )
        n_kv_heads = self.n_kv_heads or self.n_heads
        if self.n_heads % n_kv_heads:
            raise ConfigError(f"n_heads {self.n_heads} is not a multiple of n_kv_heads {n_kv_heads}")
        d_head, d_mlp = self.d_head or self.d_model // self.n_heads, self.d_mlp or 4 * self.d_model
        return dataclasses.replace(self, n_kv_heads=n_kv_heads, d_head=d_head, d_mlp=d_mlp)


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary angles are slowed down, so that a model reads texts longer than it was first trained on.

    linear: every angle divided by `factor` (Chen et al. 2023, arXiv 2306.15595). llama3: slow pairs divided, fast ones
    left, those between blended (Dubey et al. 2024, arXiv 2407.21783). yarn: the same by a ramp over pairs, and q and k
    made longer by `stretch` (Peng et al. 2023, arXiv 2309.00071).
    """

    kind: Literal["none", "linear", "llama3", "yarn"] = "none"
    """Which rule."""
    factor: float = 1.0
    """By how much slow pairs are slowed down."""
    slow: float = 1.0
    """Pairs with fewer turns than this over `original_ctx` are divided (low_freq_factor, beta_slow)."""
    fast: float = 4.0
    """Pairs with more turns than this are left as they are (high_freq_factor, beta_fast)."""
    original_ctx: int = 0
    """The context it was first trained on, in positions."""
    stretch: float = 1.0
    """What q and k are multiplied by (yarn; "attention factor")."""
    whole_pairs: bool = True
    """Whether the ramp of yarn begins and ends at whole pairs."""

    def __post_init__(self) -> None:
        _check_words(self, "rope_scaling.")
        if self.kind != "none" and not self.factor > 0:
            raise ConfigError(f"rope_scaling.factor is {self.factor}; expected a number above 0")
        if self.kind in ("llama3", "yarn") and (self.original_ctx < 1 or not 0 < self.slow < self.fast):
            raise ConfigError(
                f"rope_scaling {self.kind} needs original_ctx of at least 1 and 0 < slow < fast; given"
                f" original_ctx {self.original_ctx}, slow {self.slow}, fast {self.fast}"
            )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which parts a model is composed of."""

    mixer: Literal["attention", "lstm", "mean"] = "attention"
    """How positions read one another: attention, a recurrence (LSTM), or the mean of all that may be seen."""
    positions: Positions = "rotary"
    """How order enters: none, sinusoidal or learned rows added to the embedding, rotary turns of q and k, alibi or
    relative.

    sinusoidal has sines and cosines in turn; sinusoidal_halves the same with all sines first and all cosines behind.
    alibi lowers each score by the distance times a slope of the head (Press et al. 2021, arXiv 2108.12409). relative
    adds a learned number of W_rel to it, for the head and the bucket of the distance (Raffel et al. 2019, 1910.10683).
    """
    norm: NormKind = "rms"
    """The norm of blocks: none, LayerNorm or RMSNorm."""
    norm_place: Literal["pre", "post", "out", "both"] = "pre"
    """Norm before each sublayer, after each residual sum, of each sublayer's output, or before and of the output.

    All but post have one more norm at the end.
    """
    norm_bias: Literal["same", "none", "all"] = "same"
    """Biases of LayerNorms: as `bias` says, none, or all."""
    norm_gain: bool = True
    """Whether LayerNorms have gains; without, they only standardize (OLMo 1)."""
    first_norm: bool = True
    """Whether the first block has a norm1; without one it reads the embedding as it is."""
    norm_eps: float = 1e-6
    """What is added to the variance (or mean square) under the root of every norm."""
    norm_e: bool = False
    """A norm after the embedding."""
    qk_norm: bool = False
    """RMSNorm of each head's q and k, before rotary turns."""
    qk_norm_whole: bool = False
    """That norm is over all heads of q together, and all of k."""
    mlp: MLPKind = "swiglu"
    """The MLP of a block; gelu is the exact one (erf), gelu_tanh its tanh approximation; with a gate: swiglu, geglu and
    geglu_tanh."""
    mlp_bias: Literal["same", "none", "all"] = "same"
    """Biases in the MLP: as `bias` says, none, or both."""
    bias: bool = False
    """Biases in attention, MLP and LayerNorm (and on the logits of a masked model)."""
    attention_bias: Literal["same", "none", "qkv", "out", "all"] = "same"
    """Biases in attention: as `bias` says, none, on q, k and v, on the output, or on all four products."""
    head_bias: bool = False
    """A bias on the logits where `bias` makes none: of a causal model, an encoder-decoder, or one without biases."""
    tied: bool = True
    """W_U is the transpose of W_E instead of a matrix of its own."""
    shared_embedding: bool = False
    """In an encoder-decoder that is not tied, both sides read one W_E; in a tied one they do so anyway."""
    skip: bool = True
    """Residual connections around attention and MLP."""
    dropout: float = 0.0
    """Share of values dropped after the embedding and after each sublayer while training, 0 <= p < 1."""
    scale: bool = True
    """Divide scores by the square root of d_head."""
    score_factor: float = 0.0
    """What scores are multiplied by instead; 0 leaves it to `scale`."""
    score_cap: float = 0.0
    """Scores s become cap * tanh(s / cap), so none exceeds the cap (Gemma 2, arXiv 2408.00118); 0 means no cap."""
    sinks: bool = False
    """Each head also attends to a key that is nowhere, with the learned score b_sink and a value of 0, so that the rows
    of its pattern sum to less than 1 (gpt-oss, arXiv 2508.10925)."""
    logit_cap: float = 0.0
    """The same of the logits of a language model."""
    logit_factor: float = 1.0
    """What the vectors are multiplied by before W_U, of a language model."""
    embedding_factor: float = 1.0
    """What the rows of W_E are multiplied by."""
    residual_factor: float = 1.0
    """What each sublayer's output is multiplied by before it is added to the residual stream."""
    window: int = 0
    """Positions that a windowed layer sees: its own and those before it; without causality as many on both sides."""
    window_layers: str = "w"
    """Which layers are windowed: a letter for each layer, from the first on again at its end; w windowed, f full."""
    window_rope_base: float = 0.0
    """Base of the rotary frequencies in windowed layers, without rope_scaling; 0 means the same as elsewhere."""
    rope_layers: str = "r"
    """Which layers turn q and k by rotary positions, written in the same way: r turned, n not."""
    shared_layers: bool = False
    """All layers are one and the same, applied again and again (Lan et al. 2019, arXiv 1909.11942)."""
    embed_scale: bool = False
    """Multiply embedding rows by the square root of d_model before positions are added (Vaswani et al. 2017, 3.4)."""
    start: str = "zero_out"
    """Name of the table of starting values, see `qkv.models.start.START`."""
    rope_base: float = 10000.0
    """Base of the rotary frequencies; no effect with other positions."""
    rope_share: float = 1.0
    """Share of each head's coordinates that rotary positions turn, the first ones; the others are left as they are."""
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    """How rotary angles are slowed down for longer texts."""
    relative_buckets: int = 32
    """Rows of W_rel with positions = relative: half are for single distances, the others for wider and wider ranges;
    without causality half of each kind is for keys behind the query."""
    relative_reach: int = 128
    """The distance from which on all are in the last of these ranges."""
    parallel: bool = False
    """Attention and MLP of a block both read its input, side by side (norm before each sublayer only)."""
    shared_norm: bool = False
    """In a parallel block attention and MLP share one norm, named norm1."""
    head_transform: bool = False
    """Before the logits of the way out, one more layer: norm(act(h W_transform + b_transform)), act that of the MLP."""
    pool: Literal["mean", "class", "first"] = "mean"
    """What a classifier reads: the mean over positions, of images also a class token put before them (W_token), of
    texts also the first token's h through tanh(h W_pool + b_pool)."""

    def __post_init__(self) -> None:
        _check_words(self)
        if self.start not in START:
            raise ConfigError(unknown("value for start", self.start, START))
        if not 0 < self.rope_share <= 1:
            raise ConfigError(f"rope_share is {self.rope_share}; expected a share above 0 and up to 1")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}; expected 0 <= dropout < 1")
        if not 0 <= self.norm_eps < math.inf:
            raise ConfigError(f"norm_eps is {self.norm_eps}; expected a number of at least 0")
        if not 1 < self.rope_base < math.inf:
            raise ConfigError(f"rope_base is {self.rope_base}; expected a number above 1 (10000 is usual)")
        for name in ("score_factor", "score_cap", "logit_cap", "window", "window_rope_base"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a number of at least 0")
        for name in ("logit_factor", "embedding_factor", "residual_factor"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a number above 0")
        for name, letters in (("window_layers", "wf"), ("rope_layers", "rn")):
            if not getattr(self, name) or set(getattr(self, name)) - set(letters):
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; expected a letter for each layer, {letters[0]} or {letters[1]}"
                )

    @property
    def biased(self) -> str:
        """Which products of attention have a bias: none, qkv or all."""
        return ("all" if self.bias else "none") if self.attention_bias == "same" else self.attention_bias

    @property
    def pre(self) -> bool:
        """Whether a sublayer reads the norm of the residual stream."""
        return self.norm_place in ("pre", "both")

    @property
    def gate(self) -> str:
        """The elementwise function in the MLP, of its gate where it has one."""
        return GATED.get(self.mlp, self.mlp)

    def has_bias(self, of: Literal["norm", "mlp"]) -> bool:
        """Whether LayerNorms, or MLPs, have biases."""
        said = self.norm_bias if of == "norm" else self.mlp_bias
        return self.bias if said == "same" else said == "all"

    def windowed(self, layer: int) -> bool:
        """Whether a layer sees only `window` positions."""
        return bool(self.window) and self.window_layers[layer % len(self.window_layers)] == "w"

    def turned(self, layer: int) -> bool:
        """Whether a layer turns q and k by their positions."""
        return self.positions == "rotary" and self.rope_layers[layer % len(self.rope_layers)] == "r"

    @property
    def plain_scores(self) -> bool:
        """Whether a pattern follows from q, k, the scale and causality, padding and documents alone."""
        return not (self.window or self.score_cap or self.sinks or self.positions in ON_SCORES)

    @property
    def special(self) -> list[str]:
        """Settings of parts that code with formulas of its own (compiled decoding, the exported file) does not have."""
        usual = Layout()
        found = [name for name in _SPECIAL if getattr(self, name) != getattr(usual, name)]
        found += ["positions"] if self.positions in ON_SCORES else []
        found += ["mlp"] if self.mlp in ("geglu", "geglu_tanh") else []
        found += ["norm_place"] if self.norm_place in ("out", "both") else []
        found += ["attention_bias"] if self.attention_bias == "out" else []
        return found + (["pool"] if self.pool == "first" else [])


_SPECIAL = (
    "norm_bias norm_gain first_norm mlp_bias qk_norm_whole score_factor score_cap sinks logit_cap logit_factor"
    " embedding_factor residual_factor window rope_layers shared_layers shared_norm shared_embedding"
).split()


@dataclass(frozen=True, kw_only=True)
class Patches:
    """How an image is cut into patches, its tokens: a grid of squares, read row by row.

    Where the squares do not cover the image exactly it is padded evenly on all sides with its mean.
    """

    height: int
    """Rows of pixels of an image."""
    width: int
    """Columns of pixels of an image."""
    channels: int = 1
    """1 for grey, 3 for colour."""
    patch: int = 4
    """Side of a patch in pixels."""
    stride: int = 0
    """Pixels from one patch to the next; less than `patch` makes them overlap; 0 means `patch`."""
    mean: float = 0.0
    """What is subtracted from every pixel value (0..1) ..."""
    std: float = 1.0
    """... and what it is then divided by."""

    def __post_init__(self) -> None:
        for name, least in (("height", 1), ("width", 1), ("channels", 1), ("patch", 1), ("stride", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a whole number of at least {least}")
        if not 0 < self.std < math.inf:
            raise ConfigError(f"std is {self.std}; expected a number above 0")
        if self.patch > max(self.height, self.width):
            raise ConfigError(
                f"patch is {self.patch}; expected at most {self.width} x {self.height}, an image's own size"
            )
        if self.step > self.patch:
            raise ConfigError(f"stride {self.stride} is larger than patch {self.patch}: pixels would never be seen")

    @property
    def step(self) -> int:
        """Pixels from one patch to the next."""
        return self.stride or self.patch

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return -(-self.height // self.step), -(-self.width // self.step)

    @property
    def n_patches(self) -> int:
        """How many patches an image has."""
        return self.grid[0] * self.grid[1]

    @property
    def n_values(self) -> int:
        """Numbers in one patch: the rows of W_E, channel by channel, in each row by row."""
        return self.channels * self.patch**2

    @property
    def padding(self) -> tuple[int, int, int, int]:
        """Pixels added left, right, above and below."""
        (rows, columns), out = self.grid, []
        for n, size in ((columns, self.width), (rows, self.height)):
            missing = max(0, (n - 1) * self.step + self.patch - size)
            out += [missing // 2, missing - missing // 2]
        return out[0], out[1], out[2], out[3]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """All that `build` needs besides a seed."""

    kind: Literal["CausalLM", "MaskedLM", "Classifier", "CausalClassifier", "ImageClassifier", "EncoderDecoderLM"]
    """CausalLM predicts the next token from those before; MaskedLM predicts hidden tokens from both sides; Classifier
    and CausalClassifier tell classes of texts apart over the body of either; ImageClassifier those of images;
    EncoderDecoderLM predicts the next token of a target from those before and a whole source."""
    sizes: Sizes
    """How large."""
    layout: Layout = field(default_factory=Layout)
    """Of which parts."""
    classes: tuple[str, ...] = ()
    """Names of the classes that a classifier tells apart, in the order of its outputs; empty for other models."""
    patches: Patches | None = None
    """How images are cut; None for a model of text."""
    code: str = ""
    """A class of your own that is built instead, as `module:Class`: a subclass of the class that `kind` names; typed as
    model.kind too."""

    def __post_init__(self) -> None:
        _check_words(self)

    def resolved(self) -> "ModelConfig":
        """The same with sizes filled in and fields checked against one another.

        Raises ConfigError for a combination that cannot be built or whose setting would have no effect.
        """
        if self.kind == "EncoderDecoderLM":
            check_cross(self.layout)
        if self.kind.endswith("Classifier") != bool(self.classes) or len(self.classes) == 1:
            raise ConfigError(
                f"a {self.kind} was given {len(self.classes)} classes; a classifier needs at least 2, others have none"
            )
        sizes = self.sizes.resolved()
        if self.kind == "ImageClassifier":
            sizes = _of_image(self, sizes)
        elif self.patches is not None:
            raise ConfigError(f"a {self.kind} reads no images; leave the settings of patches out")
        elif sizes.d_vocab < 1:
            raise ConfigError(f"d_vocab is {sizes.d_vocab}; a {self.kind} needs at least 1 token type")
        _check_kind(self.kind, sizes, self.layout)
        check(sizes, self.layout)
        return dataclasses.replace(self, sizes=sizes)


def _check_kind(kind: str, sizes: Sizes, layout: Layout) -> None:
    """Refuse parts that a kind of model does not have. Raises ConfigError."""
    language = kind in ("CausalLM", "MaskedLM")
    has_its_own = kind == "MaskedLM" and layout.bias
    if layout.head_bias and (has_its_own or not (language or kind == "EncoderDecoderLM")):
        raise ConfigError(f"head_bias has no effect on a {kind}{' with biases' * has_its_own}; set it to false")
    for name, without in (("head_transform", "false"), ("logit_cap", "0"), ("logit_factor", "1")):
        has = language or kind == "EncoderDecoderLM" and name == "logit_factor"
        if getattr(layout, name) != getattr(Layout(), name) and not has:
            raise ConfigError(f"{name} has no effect on a {kind}; set it to {without}")
    if layout.shared_embedding and (kind != "EncoderDecoderLM" or layout.tied):
        raise ConfigError("shared_embedding has an effect on encoder-decoders that are not tied only; set it to false")
    if layout.pool == "class" and kind != "ImageClassifier" or layout.pool == "first" and kind != "Classifier":
        raise ConfigError(f"pool = {layout.pool} has no effect on a {kind}; set it to mean")
    if sizes.d_embed and not (language and layout.head_transform or kind == "Classifier"):
        raise ConfigError(f"d_embed needs a language model with head_transform, or a Classifier; this is a {kind}")
    if kind == "ImageClassifier" and (layout.window or layout.positions in ON_SCORES or layout.embedding_factor != 1):
        raise ConfigError(
            "window, embedding_factor, alibi and relative positions are for texts; leave them out for images"
        )


def check(sizes: Sizes, layout: Layout) -> None:
    """Refuse what cannot be built, or a setting without effect. `sizes` are resolved.

    Raises ConfigError naming the settings that do not fit.
    """
    if sizes.n_ctx < 1:
        raise ConfigError(f"n_ctx is {sizes.n_ctx}; expected a whole number of at least 1")
    if layout.mixer != "attention":
        _check_mixer(sizes, layout)
    if layout.positions == "rotary":
        _check_rotary(sizes.d_head, layout)
    elif layout.rope_share != 1 or layout.rope_scaling.kind != "none":
        raise ConfigError(f"rope_share and rope_scaling have no effect with positions = {layout.positions}")
    if layout.positions == "relative":
        _check_relative(layout)
    elif (layout.relative_buckets, layout.relative_reach) != (Layout.relative_buckets, Layout.relative_reach):
        raise ConfigError(f"relative_buckets and relative_reach have no effect with positions = {layout.positions}")
    if layout.positions.startswith("sinusoidal") and sizes.d_model % 2:
        raise ConfigError(f"sinusoidal positions need an even d_model; it is {sizes.d_model}")
    if layout.norm == "none" and layout.norm_e:
        raise ConfigError("norm_e has no effect with norm = none; set norm to layer or rms, or norm_e to false")
    if layout.parallel and (layout.norm_place != "pre" or layout.mlp == "none" or not layout.skip):
        raise ConfigError("parallel needs an MLP, residual connections and norm_place = pre")
    if layout.shared_norm and not layout.parallel:
        raise ConfigError("shared_norm has no effect without parallel; set parallel to true")
    if layout.head_transform and layout.mlp in ("none", "swiglu"):
        raise ConfigError(f"head_transform takes the function of the MLP, and not {layout.mlp}; choose another mlp")
    if layout.norm == "none" and (layout.norm_place in ("out", "both") or not layout.first_norm):
        raise ConfigError("norm_place out and both, and first_norm, need norm = layer or rms")
    if not layout.first_norm and not layout.pre:
        raise ConfigError(f"first_norm = false needs norm_place pre or both; it is {layout.norm_place}")
    if not layout.norm_gain and (layout.norm != "layer" or layout.has_bias("norm")):
        raise ConfigError("norm_gain = false needs norm = layer without biases; set norm_bias to none")
    if layout.qk_norm_whole and not layout.qk_norm:
        raise ConfigError("qk_norm_whole has no effect without qk_norm; set qk_norm to true")
    if (layout.window_rope_base and not layout.window) or (layout.window_layers != "w" and not layout.window):
        raise ConfigError("window_layers and window_rope_base have no effect without a window; set window")
    if layout.positions != "rotary" and (layout.window_rope_base or layout.rope_layers != "r"):
        raise ConfigError(f"window_rope_base and rope_layers have no effect with positions = {layout.positions}")
    if layout.shared_layers and (len(layout.window_layers + layout.rope_layers) > 2 or not layout.first_norm):
        raise ConfigError("shared_layers makes all layers one; window_layers, rope_layers and first_norm would differ")
    if sizes.d_embed and not sizes.d_vocab:
        raise ConfigError("d_embed is the width of W_E, and a stack of vectors has none; set it to 0")
    if layout.start == "identity" and (sizes.n_heads != 1 or sizes.d_head != sizes.d_model):
        raise ConfigError(
            f"start 'identity' needs one head as wide as the model (W_Q is d_model x d_model); "
            f"n_heads is {sizes.n_heads}, d_head {sizes.d_head}, d_model {sizes.d_model}"
        )


def check_cross(layout: Layout) -> None:
    """Make sure that a block of this layout can read a context between attention and MLP. Raises ConfigError."""
    if layout.mixer != "attention":
        raise ConfigError(f"an encoder-decoder needs mixer = attention; it is {layout.mixer}")
    if layout.parallel:
        raise ConfigError(
            "parallel leaves no place between attention and MLP, where a decoder reads the encoder; set it to false"
        )


def require_attention(sizes: Sizes, layout: Layout) -> None:
    """Make sure that a model attends. Raises UserError where it has no layers, or reads positions in another way."""
    if not sizes.n_layers:
        raise UserError("this model has no attention to show: it has no layers (n_layers=0)")
    if layout.mixer != "attention":
        kind = {"lstm": "an LSTM", "mean": "a mean"}[layout.mixer]
        raise UserError(f"this model has no attention to show: its positions read one another through {kind}")


def turned_width(d_head: int, share: float) -> int:
    """How many coordinates of a head rotary positions turn."""
    return int(d_head * share)


_OF_ATTENTION = ("qk_norm", "attention_bias", "scale", "parallel", "window", "score_cap", "score_factor", "sinks")


def _check_mixer(sizes: Sizes, layout: Layout) -> None:
    """Refuse settings of attention in a model that has none."""
    settings = {
        "positions": layout.positions in ("rotary", *ON_SCORES),
        **{name: getattr(layout, name) != getattr(Layout, name) for name in _OF_ATTENTION},
        "n_heads": sizes.n_heads != 1,
        "d_head": sizes.d_head != sizes.d_model // sizes.n_heads,
    }
    for name, given in settings.items():
        if given:
            value = getattr(sizes if name in ("n_heads", "d_head") else layout, name)
            raise ConfigError(f"{name} = {value} is a setting of attention; with mixer = {layout.mixer} there is none")
    if layout.mixer == "lstm" and sizes.d_model % 2:
        raise ConfigError(f"an LSTM that may read both ways needs an even d_model; it is {sizes.d_model}")


def _check_rotary(d_head: int, layout: Layout) -> None:
    width = turned_width(d_head, layout.rope_share)
    if layout.rope_share == 1 and width % 2:
        raise ConfigError(f"rotary positions turn pairs of coordinates, so d_head must be even; it is {d_head}")
    if width % 2 or not width:
        raise ConfigError(
            f"rotary positions turn pairs of coordinates, but rope_share {layout.rope_share:g} of d_head {d_head} is"
            f" {width}; expected an even number"
        )


def _check_relative(layout: Layout) -> None:
    if layout.relative_buckets < 4 or layout.relative_buckets % 2:
        raise ConfigError(f"relative_buckets is {layout.relative_buckets}; expected an even number of at least 4")
    if layout.relative_reach <= layout.relative_buckets // 2:
        raise ConfigError(
            f"relative_reach is {layout.relative_reach}; expected more than {layout.relative_buckets // 2}, half of"
            " relative_buckets"
        )


def _of_image(config: ModelConfig, sizes: Sizes) -> Sizes:
    """The sizes of an image model, n_ctx filled in: its patches, and the class token where there is one.

    Raises ConfigError for sizes or parts that an image model cannot have.
    """
    layout, patches = config.layout, config.patches
    if patches is None:
        raise ConfigError("an ImageClassifier needs patches: how its images are cut")
    if sizes.d_vocab:
        raise ConfigError(f"d_vocab is {sizes.d_vocab}; an image model takes patches, so it is 0")
    if layout.positions == "sinusoidal_halves":
        raise ConfigError("positions sinusoidal_halves are for texts; an image has sinusoidal, in two dimensions")
    if layout.tied or layout.embed_scale:
        setting = "tied" if layout.tied else "embed_scale"
        raise ConfigError(f"{setting} has no meaning for an image model, which has no table of tokens; set it to false")
    n_ctx = patches.n_patches + (layout.pool == "class")
    if sizes.n_ctx not in (0, n_ctx):
        raise ConfigError(
            f"n_ctx is {sizes.n_ctx}; {patches.grid[0]} x {patches.grid[1]} patches"
            f"{' and a class token' if layout.pool == 'class' else ''} are {n_ctx} positions (0 means as many)"
        )
    turned = turned_width(sizes.d_head, layout.rope_share)
    for name, positions, width in (("d_head", "rotary", turned), ("d_model", "sinusoidal", sizes.d_model)):
        if layout.positions == positions and width % 4:
            raise ConfigError(f"{positions} positions in two dimensions need {name} to divide by 4; it is {width}")
    if layout.rope_scaling.kind != "none":
        raise ConfigError(f"rope_scaling {layout.rope_scaling.kind} is for longer texts; for an image set it to none")
    return dataclasses.replace(sizes, n_ctx=n_ctx)


def _check_words(of: RopeScaling | Layout | ModelConfig, where: str = "") -> None:
    """Raises ConfigError for a field with a word that is none of its `Literal`."""
    for name, hint in _hints(type(of)).items():
        value = getattr(of, name)
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise ConfigError(unknown(f"value for {where}{name}", str(value), get_args(hint)))


_hints = cache(get_type_hints)
