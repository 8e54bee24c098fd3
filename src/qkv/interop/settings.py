"""Pieces of a checkpoint's configuration, each read into our sizes and layout and written back out of them.

A family lists the pieces of its `config.json`. Every key of a file belongs to a piece, or to the keys that change
nothing a model computes (`HARMLESS`); any other is refused by name, because it may. Pieces know no family either.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from qkv.errors import SourceError
from qkv.interop.folders import UNQUANTIZED
from qkv.models.layout import ModelConfig, RopeScaling

__all__ = [
    "HARMLESS",
    "Always",
    "Both",
    "Dropout",
    "ImageSize",
    "Labels",
    "Piece",
    "Reading",
    "Rope",
    "Setting",
    "Shared",
    "Window",
]

HARMLESS = frozenset(
    "_attn_implementation _attn_implementation_internal _commit_hash _name_or_path _num_labels architectures"
    " bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id unk_token_id"
    " decoder_start_token_id forced_bos_token_id forced_eos_token_id prefix suppress_tokens begin_suppress_tokens"
    " dtype torch_dtype transformers_version model_type finetuning_task id2label label2id num_labels problem_type"
    " initializer_range initializer_factor use_cache gradient_checkpointing return_dict output_attentions"
    " output_hidden_states output_past remove_invalid_values task_specific_params tokenizer_class torchscript"
    " use_bfloat16 tf_legacy_loss classif_dropout classifier_dropout classifier_dropout_prob"
    " exponential_decay_length_penalty bad_words_ids num_beams num_beam_groups diversity_penalty do_sample"
    " early_stopping encoder_no_repeat_ngram_size length_penalty max_length min_length no_repeat_ngram_size"
    " num_return_sequences output_scores repetition_penalty return_dict_in_generate temperature top_k top_p"
    " typical_p pretraining_tp language pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers"
    " pooler_size_per_head pooler_type directionality initializer_std init_std gradient_checkpointing_kwargs"
    " unsloth_version unsloth_fixed qa_dropout seq_classif_dropout n_ctx summary_type summary_use_proj"
    " summary_activation summary_proj_to_labels summary_first_dropout transformers.js_config".split()
)
"""Keys that say how to start, save, sample or label, not what is computed from a text's tokens to logits."""


QUANTIZED = ("quantization_config", "compression_config", "quantization")
"""Keys that say how the weights were quantized, by transformers, compressed-tensors and MLX."""


@dataclass
class Reading:
    """A `config.json` while it is read: what it says, and what it came to mean."""

    path: str
    """For messages."""
    given: Mapping[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
    """`sizes.d_model`, `layout.tied` ... -> value."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the user."""

    def refuse(self, key: str, expected: str) -> SourceError:
        """The error for a key whose value cannot be read."""
        value = json.dumps(self.given.get(key))
        return SourceError(f"{self.path}: {key} is {value[:80]}; {expected}")


class Piece(Protocol):
    """One part of a configuration."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of `config.json` that it speaks of."""
        ...

    def read(self, reading: Reading) -> None:
        """Take what the file says into `reading.values`. Raises SourceError where it cannot be had here."""
        ...

    def write(self, config: ModelConfig, out: dict[str, Any]) -> None:
        """Put what a model has into `out`."""
        ...


@dataclass(frozen=True)
class Setting:
    """A key that is one of our settings."""

    key: str
    path: str
    """`sizes.NAME`, `layout.NAME` or `patches.NAME`."""
    default: Any
    """What holds where the key is missing."""
    values: tuple[tuple[Any, Any], ...] = ()
    """Pairs (theirs, ours); the first pair of one of ours is the one that is written."""
    plus: int = 0
    """Theirs is ours and this."""
    least: int = 0
    """The least of ours that their model can have."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    def read(self, reading: Reading) -> None:
        value = reading.given.get(self.key, self.default)
        if self.values:
            ours = [mine for theirs, mine in self.values if theirs == value and type(theirs) is type(value)]
            if not ours:
                known = ", ".join(json.dumps(theirs) for theirs, _ in self.values)
                raise reading.refuse(self.key, f"what can be read here: {known}")
            reading.values[self.path] = ours[0]
        else:
            reading.values[self.path] = self._number(reading, value)

    def _number(self, reading: Reading, value: Any) -> Any:
        if value is None:
            value = self.default
        if value is None:
            return 0  # "the usual": resolved by the sizes themselves
        real = isinstance(self.default, float)
        if isinstance(value, bool) or not isinstance(value, int | float if real else int):
            raise reading.refuse(self.key, "expected a number" if real else "expected a whole number")
        if not math.isfinite(value) or value - self.plus < self.least:
            raise reading.refuse(self.key, f"expected a number of at least {self.plus + self.least}")
        return float(value) if real else value - self.plus

    def write(self, config: ModelConfig, out: dict[str, Any]) -> None:
        part, _, name = self.path.partition(".")
        value = getattr(getattr(config, part), name)
        if not self.values:
            out[self.key] = value + self.plus
            return
        theirs = [given for given, mine in self.values if mine == value]
        out[self.key] = theirs[0] if theirs else None  # reading it back then differs, which says that it does not fit


@dataclass(frozen=True)
class Both:
    """Keys that say one of our sizes twice, for an encoder and for a decoder: they must be equal."""

    names: tuple[str, ...]
    path: str
    default: int
    also: tuple[str, ...] = ()
    """Keys that repeat the first in some files, and are not written."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.names, *self.also)

    def read(self, reading: Reading) -> None:
        found = {}
        for key in self.names:
            one = Setting(key, self.path, self.default)
            one.read(reading)
            found[key] = reading.values[self.path]
        found |= {key: reading.given[key] for key in self.also if reading.given.get(key) is not None}
        first = self.names[0]
        for key, value in found.items():
            if value != found[first]:
                raise reading.refuse(key, f"qkv has one number for both sides, and {first} is {found[first]}")
        reading.values[self.path] = found[first]

    def write(self, config: ModelConfig, out: dict[str, Any]) -> None:
        part, _, name = self.path.partition(".")
        out |= dict.fromkeys(self.names, getattr(getattr(config, part), name))


@dataclass(frozen=True)
class Shared:
    """Whether the tables of encoder, decoder and logits are one matrix, or three."""

    @property
    def keys(self) -> tuple[str, ...]:
        return ("share_encoder_decoder_embeddings", "tie_word_embeddings")

    def read(self, reading: Reading) -> None:
        given = [reading.given.get(key, True) for key in self.keys]
        if given not in ([True, True], [False, False]):
            raise reading.refuse(self.keys[1], f"qkv reads it equal to {self.keys[0]}, which is {json.dumps(given[0])}")
        reading.values["layout.tied"] = given[0]

    def write(self, config: ModelConfig, out: dict[str, Any]) -> None:
        out |= dict.fromkeys(self.keys, config.layout.tied)


@dataclass(frozen=True)
class Always:
    """A key with one value only; others would be another model."""

    key: str
    value: Any
    also: tuple[Any, ...] = ()
    """Values that mean the same."""
    written: bool = True
    """Whether transformers needs to be told."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    def read(self, reading: Reading) -> None:
        given = reading.given.get(self.key, self.value)
        if not any(given == fine and isinstance(given, bool) == isinstance(fine, bool) for fine in self._fine):
            raise reading.refuse(self.key, f"qkv reads this family with {self.key} = {json.dumps(self.value)} only")

    @property
    def _fine(self) -> tuple[Any, ...]:
        return (self.value, *self.also)

    def write(self, config: ModelConfig, out: dict[str, Any]) -> None:
        if self.written:
            out[self.key] = self.value


@dataclass(frozen=True)
class Dropout:
    """Shares dropped while training: those of residuals and embedding are ours, those of attention patterns are not."""

    residual: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()
    default: float = 0.0

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.residual, *self.attention)

    def read(self, reading: Reading) -> None:
        shares = {}
        for key in self.keys:
            value = reading.given.get(key, self.default)
            value = 0.0 if value is None else value
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
                raise reading.refuse(key, "expected a share, at least 0 and below 1")
            shares[key] = float(value)
        if self.residual:
            reading.values["layout.dropout"] = shares[self.residual[0]]
        unused = {key: s for key, s in shares.items() if s and s != reading.values.get("layout.dropout")}
        unused |= {key: shares[key] for key in self.attention if shares[key]}
        for key, share in unused.items():
            reading.notes.append(f"{key} = {share:g} is not used if you train it further: qkv drops no attention")

    def write(self, config: ModelConfig, out: dict[str, Any]) -> None:
        out |= dict.fromkeys(self.residual, config.layout.dropout) | dict.fromkeys(self.attention, 0.0)


@dataclass(frozen=True)
class ImageSize:
    """Height and width of an image that divides into patches: a number, or both."""

    @property
    def keys(self) -> tuple[str, ...]:
        return ("image_size",)

    def read(self, reading: Reading) -> None:
        size, side = reading.given.get("image_size", 224), reading.values["patches.patch"]
        both = size if isinstance(size, list) else [size, size]
        if len(both) != 2 or not all(isinstance(n, int) and n > 0 for n in both):
            raise reading.refuse("image_size", "expected a number of pixels, or height and width")
        if side < 1 or any(n % side for n in both):
            raise reading.refuse("image_size", f"expected a multiple of patch_size {side}")
        reading.values["patches.height"], reading.values["patches.width"] = both

    def write(self, config: ModelConfig, out: dict[str, Any]) -> None:
        assert config.patches is not None
        height, width = config.patches.height, config.patches.width
        out["image_size"] = height if height == width else [height, width]


@dataclass(frozen=True)
class Labels:
    """Names of the classes, in the order of their numbers."""

    @property
    def keys(self) -> tuple[str, ...]:
        return ("id2label", "label2id", "num_labels")

    def read(self, reading: Reading) -> None:
        named = reading.given.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
        if not isinstance(named, dict) or set(map(str, named)) != {str(i) for i in range(len(named))}:
            raise reading.refuse("id2label", "expected a name for each of the numbers 0, 1, ...")
        reading.values["classes"] = tuple(str(named[key]) for key in sorted(named, key=int))

    def write(self, config: ModelConfig, out: dict[str, Any]) -> None:
        out["id2label"] = {str(i): name for i, name in enumerate(config.classes)}
        out["label2id"] = {name: i for i, name in enumerate(config.classes)}


@dataclass(frozen=True)
class Window:
    """A sliding window of attention. Up to its width a text sees everything, so the context is cut to that width."""

    switch: str = ""
    """A key that turns it on, and beside which `layer_types` count; empty: it is on where the width is a number."""
    usual: int = 4096
    """The width of a file that says none; null is no window."""

    @property
    def keys(self) -> tuple[str, ...]:
        return ("sliding_window", "layer_types", *((self.switch, "max_window_layers") if self.switch else ()))

    def read(self, reading: Reading) -> None:
        given = reading.given
        width = given.get("sliding_window", self.usual)
        kinds = given.get("layer_types") or []
        known = {"full_attention", "sliding_attention"}
        if not isinstance(kinds, list) or not {str(kind) for kind in kinds} <= known:
            raise reading.refuse("layer_types", "qkv reads full_attention and sliding_attention")
        on = given.get(self.switch, False) if self.switch else width is not None
        if kinds and self.switch:
            on = "sliding_attention" in kinds
        if not on or width is None:
            return
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise reading.refuse("sliding_window", "expected a number of positions")
        n_ctx = reading.values["sizes.n_ctx"]
        if width < n_ctx:
            reading.values["sizes.n_ctx"] = width
            reading.notes.append(
                f"attention sees {width} positions back (sliding_window), so n_ctx is {width} here instead of {n_ctx}:"
                " up to that length both compute the same"
            )

    def write(self, config: ModelConfig, out: dict[str, Any]) -> None:
        if self.switch:
            out[self.switch] = False
        else:
            out["sliding_window"] = None


_ROPE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "original_max_position_embeddings",
        "truncate",
    ),
}


@dataclass(frozen=True)
class Rope:
    """Rotary positions: base, share and scaling, in the words of version 4 (`rope_theta`, ...) or 5 of transformers."""

    base_key: str = "rope_theta"
    share_key: str = "partial_rotary_factor"
    share: float = 1.0
    """What holds where nothing is said; a family that always turns everything has `shares` False."""
    shares: bool = False
    again: tuple[str, ...] = ()
    """Keys by which some files say base and share once more, which must agree and are not written."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.base_key, self.share_key, *self.again, "rope_scaling", "rope_parameters")

    def read(self, reading: Reading) -> None:
        given = reading.given
        key = "rope_parameters" if given.get("rope_parameters") else "rope_scaling"
        rope = given.get(key) or {}
        older = given.get("rope_scaling") or {}
        if isinstance(older, dict) and any(rope.get(name) != value for name, value in older.items() if name != "type"):
            raise reading.refuse("rope_scaling", "rope_parameters says otherwise; keep the one that the model had")
        if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
            raise reading.refuse(key, "expected one set of rotary settings for all layers")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in _ROPE_KEYS:
            raise reading.refuse(key, f"rotary scaling {kind!r} is not supported; supported: {', '.join(_ROPE_KEYS)}")
        common = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
        unknown = [name for name in rope if name not in (*common, *_ROPE_KEYS[kind])]
        if unknown:
            raise reading.refuse(key, f"{unknown[0]!r} is not a setting of rotary scaling {kind!r} that qkv knows")
        number = _numbers(reading, key, rope)
        reading.values["layout.rope_base"] = number("rope_theta", _real(reading, self.base_key, 10000.0))
        share = number("partial_rotary_factor", _real(reading, self.share_key, self.share))
        if share != 1 and not self.shares:
            raise reading.refuse(key, f"this family turns whole heads, but the rotary share is {share:g}")
        reading.values["layout.rope_share"] = share
        for again, name, value in zip(self.again, self.keys, (reading.values["layout.rope_base"], share), strict=False):
            if given.get(again) is not None and _real(reading, again, value) != value:
                raise reading.refuse(again, f"qkv reads it equal to {name}, which is {value:g}")
        if kind != "default":
            reading.values["layout.rope_scaling"] = _scaling(reading, key, kind, rope, number)

    def write(self, config: ModelConfig, out: dict[str, Any]) -> None:
        layout, scaling = config.layout, config.layout.rope_scaling
        out[self.base_key] = layout.rope_base
        if self.shares:
            out[self.share_key] = layout.rope_share
        words: dict[str, Any] | None = None
        if scaling.kind != "none":
            words = {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3" and words is not None:
            words |= {"low_freq_factor": scaling.slow, "high_freq_factor": scaling.fast}
        if scaling.kind == "yarn" and words is not None:
            words |= {"beta_slow": scaling.slow, "beta_fast": scaling.fast, "attention_factor": scaling.stretch}
            words |= {} if scaling.whole_pairs else {"truncate": False}
        if scaling.original_ctx and words is not None:
            words["original_max_position_embeddings"] = scaling.original_ctx
        out["rope_scaling"] = words


def _real(reading: Reading, key: str, default: float) -> float:
    value = reading.given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise reading.refuse(key, "expected a number")
    return float(value)


def _numbers(reading: Reading, key: str, rope: Mapping[str, Any]) -> Any:
    def number(name: str, default: float | None = None) -> float:
        value = rope.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise reading.refuse(key, f"{name} is {value!r}; expected a number")
        return float(value)

    return number


def _scaling(reading: Reading, key: str, kind: str, rope: Mapping[str, Any], number: Any) -> RopeScaling:
    """The scaling of rotary angles that a file asks for."""
    factor = number("factor")
    if not factor > 0:
        raise reading.refuse(key, "factor must be above 0")
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor)
    original = int(number("original_max_position_embeddings", reading.given.get("original_max_position_embeddings")))
    if kind == "llama3":
        slow, fast = number("low_freq_factor"), number("high_freq_factor")
        return RopeScaling(kind="llama3", factor=factor, slow=slow, fast=fast, original_ctx=original)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        slow=number("beta_slow", 1.0),
        fast=number("beta_fast", 32.0),
        original_ctx=original,
        stretch=number("attention_factor", _stretch(factor, rope)),
        whole_pairs=rope.get("truncate", True) is not False,
    )


def _stretch(factor: float, rope: Mapping[str, Any]) -> float:
    """The attention factor of yarn where none is given: 0.1 ln(factor) + 1, or a ratio of two such."""

    def of(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    one, other = rope.get("mscale"), rope.get("mscale_all_dim")
    return of(float(one)) / of(float(other)) if one and other else of(1.0)


def _quantized(said: Any) -> str:
    """How weights are quantized, by what a configuration says of it."""
    method = said.get("quant_method", said.get("quantization_method")) if isinstance(said, dict) else None
    bits = said.get("bits") if isinstance(said, dict) else None
    words = [str(method)[:40]] if method else []
    words += [f"{bits} bits"] if isinstance(bits, int) else []
    return ", ".join(words) or json.dumps(said)[:80]


def read_config(pieces: Sequence[Piece], reading: Reading) -> None:
    """Read every piece, and refuse what no piece speaks of. Raises SourceError."""
    for key in QUANTIZED:
        if reading.given.get(key):
            raise SourceError(
                f"{reading.path}: the weights are quantized ({_quantized(reading.given[key])}); {UNQUANTIZED}"
            )
    known = {key for piece in pieces for key in piece.keys} | HARMLESS
    for key, value in reading.given.items():
        if key not in known and value is not None:
            words = "; qkv does not know it, and it may change what the model computes"
            raise SourceError(f"{reading.path}: {key} = {json.dumps(value)[:80]}{words}")
    for piece in pieces:
        piece.read(reading)
