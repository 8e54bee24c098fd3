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

Positions = Literal["none", "sinusoidal", "sinusoidal_halves", "learned", "rotary"]
NormKind = Literal["none", "layer", "rms"]
MLPKind = Literal["none", "gelu", "gelu_tanh", "relu", "relu2", "silu", "swiglu"]

ADDED: tuple[str, ...] = ("sinusoidal", "sinusoidal_halves", "learned")
"""Positions that are rows, added to the embedding."""
UNGATED: tuple[str, ...] = ("gelu", "gelu_tanh", "relu", "relu2", "silu")


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
        return dataclasses.replace(
            self,
            n_kv_heads=n_kv_heads,
            d_head=self.d_head or self.d_model // self.n_heads,
            d_mlp=self.d_mlp or 4 * self.d_model,
        )


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
    """How order enters: none, sinusoidal or learned rows added to the embedding, or rotary turns of q and k.

    sinusoidal has sines and cosines in turn; sinusoidal_halves the same with all sines first and all cosines behind.
    """
    norm: NormKind = "rms"
    """The norm of blocks: none, LayerNorm or RMSNorm."""
    norm_place: Literal["pre", "post"] = "pre"
    """Norm before each sublayer (and once at the end), or after each residual sum."""
    norm_eps: float = 1e-6
    """What is added to the variance (or mean square) under the root of every norm."""
    norm_e: bool = False
    """A norm after the embedding."""
    qk_norm: bool = False
    """RMSNorm of each head's q and k, before rotary turns."""
    mlp: MLPKind = "swiglu"
    """The MLP of a block; gelu is the exact one (erf), gelu_tanh its tanh approximation."""
    bias: bool = False
    """Biases in attention, MLP and LayerNorm (and on the logits of a masked model)."""
    attention_bias: Literal["same", "none", "qkv", "all"] = "same"
    """Biases in attention: as `bias` says, none, on q, k and v, or on all four products."""
    head_bias: bool = False
    """A bias on the logits of a causal model or of an encoder-decoder too."""
    tied: bool = True
    """W_U is the transpose of W_E instead of a matrix of its own."""
    skip: bool = True
    """Residual connections around attention and MLP."""
    dropout: float = 0.0
    """Share of values dropped after the embedding and after each sublayer while training, 0 <= p < 1."""
    scale: bool = True
    """Divide scores by the square root of d_head."""
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
    parallel: bool = False
    """Attention and MLP of a block both read its input, side by side (norm before each sublayer only)."""
    head_transform: bool = False
    """Before the logits of the way out, one more layer: norm(act(h W_transform + b_transform)), act that of the MLP."""
    pool: Literal["mean", "class"] = "mean"
    """What an image classifier reads: the mean over positions, or a class token put before them (W_token)."""

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

    @property
    def biased(self) -> str:
        """Which products of attention have a bias: none, qkv or all."""
        return ("all" if self.bias else "none") if self.attention_bias == "same" else self.attention_bias


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
        if self.layout.head_bias and self.kind not in ("CausalLM", "EncoderDecoderLM"):
            raise ConfigError(f"head_bias has no effect on a {self.kind}; set it to false")
        if self.layout.head_transform and self.kind not in ("CausalLM", "MaskedLM"):
            raise ConfigError(f"head_transform has no effect on a {self.kind}; set it to false")
        if self.layout.pool == "class" and self.kind != "ImageClassifier":
            raise ConfigError(f"pool = class has no effect on a {self.kind}; set it to mean")
        check(sizes, self.layout)
        return dataclasses.replace(self, sizes=sizes)


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
    if layout.positions.startswith("sinusoidal") and sizes.d_model % 2:
        raise ConfigError(f"sinusoidal positions need an even d_model; it is {sizes.d_model}")
    if layout.norm == "none" and layout.norm_e:
        raise ConfigError("norm_e has no effect with norm = none; set norm to layer or rms, or norm_e to false")
    if layout.parallel and (layout.norm_place == "post" or layout.mlp == "none" or not layout.skip):
        raise ConfigError("parallel needs an MLP, residual connections and norm_place = pre")
    if layout.head_transform and layout.mlp not in UNGATED:
        raise ConfigError(f"head_transform needs mlp to be one of {', '.join(UNGATED)}; it is {layout.mlp}")
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


def require_attention(layout: Layout) -> None:
    """Make sure that a model attends. Raises UserError where something else stands in attention's place."""
    if layout.mixer != "attention":
        kind = {"lstm": "an LSTM", "mean": "a mean"}[layout.mixer]
        raise UserError(f"this model has no attention to show: its positions read one another through {kind}")


def turned_width(d_head: int, share: float) -> int:
    """How many coordinates of a head rotary positions turn."""
    return int(d_head * share)


def _check_mixer(sizes: Sizes, layout: Layout) -> None:
    """Refuse settings of attention in a model that has none."""
    settings = {
        "positions": layout.positions == "rotary",
        "qk_norm": layout.qk_norm,
        "attention_bias": layout.attention_bias != "same",
        "scale": not layout.scale,
        "parallel": layout.parallel,
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


def _of_image(config: ModelConfig, sizes: Sizes) -> Sizes:
    """The sizes of an image model, n_ctx filled in: its patches, and the class token where there is one.

    Raises ConfigError for sizes or parts that an image model cannot have.
    """
    layout, patches = config.layout, config.patches
    if patches is None:
        raise ConfigError("an ImageClassifier needs patches: how its images are cut")
    if len(config.classes) < 2:
        raise ConfigError(f"there are {len(config.classes)} classes; a classifier needs at least 2")
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
