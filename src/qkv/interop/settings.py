"""Pieces of a checkpoint's configuration, each read into our sizes and layout and written back out of them.

A family lists the pieces of its `config.json`. Every key of a file belongs to a piece, or to the keys that change
nothing a model computes (`HARMLESS`); any other is refused by name, because it may. Pieces know no family either.
"""

import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from qkv.errors import SourceError
from qkv.interop.folders import UNQUANTIZED
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.models.layout import MOST_LAYERS, ModelConfig, RopeScaling

WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
"""Names of keys and kinds of models, as words.toml explains them."""
HARMLESS = frozenset(WORDS["harmless"].split())
"""Keys that say how to start, save, sample or label, not what is computed from a text's tokens to logits."""


QUANTIZED = ("quantization_config", "compression_config", "quantization")
"""Keys that say how the weights were quantized, by transformers, compressed-tensors and MLX."""


def is_number(value: object, *, whole: bool = False) -> TypeGuard[float]:
    """Whether a value of a JSON file is a number, finite as a float, and a `whole` one where that is asked."""
    return not isinstance(value, bool) and isinstance(value, int if whole else int | float) and abs(value) <= 1e308


@dataclass
class Reading:
    """A `config.json` while it is read: what it says, and what it came to mean."""

    path: str
    """For messages."""
    given: JsonMapping
    values: JsonObject = field(default_factory=dict)
    """`sizes.d_model`, `layout.tied` ... -> value."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the user."""

    def refuse(self, key: str, expected: str) -> SourceError:
        """The error for a key whose value cannot be read."""
        value = json.dumps(self.given.get(key))
        return SourceError(f"{self.path}: {key} is {value[:80]}; {expected}")

    def number(
        self,
        key: str,
        default: float | None,
        expected: str = "",
        *,
        whole: bool = False,
        least: float = -math.inf,
        below: float = math.inf,
    ) -> float:
        """The number of a key, from `least` up to but not `below`; `default` where the key is missing or null.

        Raises SourceError, which says what was `expected`.
        """
        value = self.given.get(key)
        value = default if value is None else value
        if not is_number(value, whole=whole) or not least <= value < below:
            raise self.refuse(key, expected or f"expected a {'whole ' if whole else ''}number")
        return value


class Piece(Protocol):
    """One part of a configuration."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of `config.json` that it speaks of."""
        ...

    def read(self, reading: Reading, /) -> None:
        """Take what the file says into `reading.values`. Raises SourceError where it cannot be had here."""
        ...

    def write(self, config: ModelConfig, out: JsonObject, /) -> None:
        """Put what a model has into `out`."""
        ...


YES_NO = ((True, True), (False, False))
"""Values of a `Setting` that is true or false in their files as here."""


@dataclass(frozen=True)
class Setting:
    """A key that is one of our settings; further keys may say it again, and have to agree."""

    key: str
    path: str
    """`sizes.NAME`, `layout.NAME` or `patches.NAME`."""
    default: Any
    """What holds where the key is missing."""
    values: tuple[tuple[object, object], ...] = ()
    """Pairs (theirs, ours); the first pair of one of ours is the one that is written."""
    plus: int = 0
    """Theirs is ours and this."""
    least: int = 0
    """The least of ours that their model can have."""
    same: tuple[str, ...] = ()
    """Keys that say it of another part, as of the decoder beside the encoder; here both parts have one."""
    again: tuple[str, ...] = ()
    """Keys that repeat it in some files, and are not written."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.same, *self.again)

    def read(self, reading: Reading) -> None:
        ours = self._ours(reading, self.key)
        others = {key: self._ours(reading, key) for key in self.same}
        others |= {key: reading.given[key] for key in self.again if reading.given.get(key) is not None}
        for key, other in others.items():
            if other != ours:
                raise reading.refuse(key, f"qkv has one value for both, and {self.key} is {json.dumps(ours)}")
        reading.values[self.path] = ours

    def _ours(self, reading: Reading, key: str) -> object:
        """What a key means here."""
        if self.values:
            value = reading.given.get(key, self.default)
            ours = [mine for theirs, mine in self.values if theirs == value and type(theirs) is type(value)]
            if not ours:
                known = ", ".join(json.dumps(theirs) for theirs, _ in self.values)
                raise reading.refuse(key, f"what can be read here: {known}")
            return ours[0]
        if self.default is None and reading.given.get(key) is None:
            return 0  # "the usual": resolved by the sizes themselves
        real = isinstance(self.default, float)
        number = reading.number(key, self.default, whole=not real)
        if number - self.plus < self.least:
            raise reading.refuse(key, f"expected a number of at least {self.plus + self.least}")
        if self.path == "sizes.n_layers" and number > MOST_LAYERS:  # before a word for each of them is made
            raise reading.refuse(key, f"expected a whole number of at most {MOST_LAYERS:,}")
        return float(number) if real else number - self.plus

    def write(self, config: ModelConfig, out: JsonObject) -> None:
        part, _, name = self.path.partition(".")
        value = getattr(getattr(config, part), name)
        if self.values:
            theirs = [given for given, mine in self.values if mine == value]
            value = theirs[0] if theirs else None  # reading it back then differs, which says that it does not fit
        else:
            value += self.plus
        out |= dict.fromkeys((self.key, *self.same), value)


@dataclass(frozen=True)
class Always:
    """A key with one value only; others would be another model."""

    key: str
    value: object
    also: tuple[object, ...] = ()
    """Values that mean the same."""
    written: bool = True
    """Whether transformers needs to be told."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    def read(self, reading: Reading) -> None:
        given, fine = reading.given.get(self.key, self.value), (self.value, *self.also)
        if not any(given == one and isinstance(given, bool) == isinstance(one, bool) for one in fine):
            raise reading.refuse(self.key, f"qkv reads this family with {self.key} = {json.dumps(self.value)} only")

    def write(self, config: ModelConfig, out: JsonObject) -> None:
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
        expected = "expected a share, at least 0 and below 1"
        shares = {}
        for key in self.keys:
            usual = 0.0 if key in reading.given else self.default
            shares[key] = float(reading.number(key, usual, expected, least=0, below=1))
        if self.residual:
            reading.values["layout.dropout"] = shares[self.residual[0]]
        unused = {key: s for key, s in shares.items() if s and s != reading.values.get("layout.dropout")}
        unused |= {key: shares[key] for key in self.attention if shares[key]}
        for key, share in unused.items():
            reading.notes.append(f"{key} = {share:g} is not used if you train it further: qkv drops no attention")

    def write(self, config: ModelConfig, out: JsonObject) -> None:
        out |= dict.fromkeys(self.residual, config.layout.dropout) | dict.fromkeys(self.attention, 0.0)


class ImageSize:
    """Height and width of an image that divides into patches: a number, or both."""

    keys = ("image_size",)

    def read(self, reading: Reading) -> None:
        size, side = reading.given.get("image_size", 224), reading.values["patches.patch"]
        both = size if isinstance(size, list) else [size, size]
        if len(both) != 2 or not all(is_number(n, whole=True) and n > 0 for n in both):
            raise reading.refuse("image_size", "expected a number of pixels, or height and width")
        if side < 1 or any(n % side for n in both):
            raise reading.refuse("image_size", f"expected a multiple of patch_size {side}")
        reading.values["patches.height"], reading.values["patches.width"] = both

    def write(self, config: ModelConfig, out: JsonObject) -> None:
        assert config.patches is not None
        height, width = config.patches.height, config.patches.width
        out["image_size"] = height if height == width else [height, width]


class Labels:
    """Names of the classes, in the order of their numbers."""

    keys = ("id2label", "label2id", "num_labels")

    def read(self, reading: Reading) -> None:
        named = reading.given.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
        if not isinstance(named, dict) or set(map(str, named)) != {str(i) for i in range(len(named))}:
            raise reading.refuse("id2label", "expected a name for each of the numbers 0, 1, ...")
        reading.values["classes"] = tuple(str(named[key]) for key in sorted(named, key=int))

    def write(self, config: ModelConfig, out: JsonObject) -> None:
        out["id2label"] = {str(i): name for i, name in enumerate(config.classes)}
        out["label2id"] = {name: i for i, name in enumerate(config.classes)}


_ORIGINAL = "original_max_position_embeddings"
_ROPE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL),
    "yarn": ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", _ORIGINAL, "truncate"),
}


@dataclass(frozen=True)
class Rope:
    """Rotary positions: base, share and scaling, in the words of version 4 (`rope_theta`, ...) or 5 of transformers."""

    base_key: str = "rope_theta"
    share_key: str = "partial_rotary_factor"
    share: float = 1.0
    """What holds where nothing is said; a family that always turns everything has `shares` False."""
    base: float = 10000.0
    """The base where nothing is said."""
    shares: bool = False
    again: tuple[str, ...] = ()
    """Keys by which some files say base and share once more, which must agree and are not written."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.base_key, self.share_key, *self.again, "rope_scaling", "rope_parameters")

    def read(self, reading: Reading) -> None:
        given = reading.given
        key = "rope_parameters" if given.get("rope_parameters") else "rope_scaling"
        said = given.get(key) or {}
        older = given.get("rope_scaling") or {}
        for name, table in ((key, said), ("rope_scaling", older)):
            if not isinstance(table, dict) or any(isinstance(value, dict) for value in table.values()):
                raise reading.refuse(name, "expected one set of rotary settings for all layers")
        if any(said.get(name) != value for name, value in older.items() if name != "type"):
            raise reading.refuse("rope_scaling", "rope_parameters says otherwise; keep the one that the model had")
        kind = str(said.get("rope_type", said.get("type", "default")))
        if kind not in _ROPE_KEYS:
            raise reading.refuse(key, f"rotary scaling {kind!r} is not supported; supported: {', '.join(_ROPE_KEYS)}")
        common = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
        unknown = [name for name in said if name not in (*common, *_ROPE_KEYS[kind])]
        if unknown:
            raise reading.refuse(key, f"{unknown[0]!r} is not a setting of rotary scaling {kind!r} that qkv knows")
        rope = _RopeSettings(reading, key, said)
        base = rope.number("rope_theta", reading.number(self.base_key, self.base))
        share = rope.number("partial_rotary_factor", reading.number(self.share_key, self.share))
        if share != 1 and not self.shares:
            raise reading.refuse(key, f"this family turns whole heads, but the rotary share is {share:g}")
        reading.values |= {"layout.rope_base": base, "layout.rope_share": share}
        for again, name, value in zip(self.again, self.keys, (base, share), strict=False):
            if reading.number(again, value) != value:
                raise reading.refuse(again, f"qkv reads it equal to {name}, which is {value:g}")
        if kind != "default":
            reading.values["layout.rope_scaling"] = rope.scaling(kind)

    def write(self, config: ModelConfig, out: JsonObject) -> None:
        layout, scaling = config.layout, config.layout.rope_scaling
        out[self.base_key] = layout.rope_base
        if self.shares:
            out[self.share_key] = layout.rope_share
        out["rope_scaling"] = None
        if scaling.kind == "none":
            return
        words: JsonObject = {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            words |= {"low_freq_factor": scaling.slow, "high_freq_factor": scaling.fast}
        if scaling.kind == "yarn":
            words |= {"beta_slow": scaling.slow, "beta_fast": scaling.fast, "attention_factor": scaling.stretch}
            words |= {} if scaling.whole_pairs else {"truncate": False}
        if scaling.original_ctx:
            words[_ORIGINAL] = scaling.original_ctx
        out["rope_scaling"] = words


@dataclass(frozen=True)
class _RopeSettings:
    """The rotary settings that a file has in a table of their own."""

    reading: Reading
    key: str
    """The table's."""
    said: JsonMapping

    def number(self, name: str, default: float | None = None) -> float:
        """A number of the table, `default` where it is missing or null. Raises SourceError where it is none."""
        value = self.said.get(name)
        value = default if value is None else value
        if not is_number(value):
            raise self.reading.refuse(self.key, f"{name} is {value!r}; expected a number")
        return float(value)

    def scaling(self, kind: str) -> RopeScaling:
        """The scaling of rotary angles that the table asks for."""
        factor = self.number("factor")
        if not factor > 0:
            raise self.reading.refuse(self.key, "factor must be above 0")
        if kind == "linear":
            return RopeScaling(kind="linear", factor=factor)
        original = int(self.number(_ORIGINAL, self.reading.given.get(_ORIGINAL)))
        if kind == "llama3":
            slow, fast = self.number("low_freq_factor"), self.number("high_freq_factor")
            return RopeScaling(kind="llama3", factor=factor, slow=slow, fast=fast, original_ctx=original)
        return RopeScaling(
            kind="yarn",
            factor=factor,
            slow=self.number("beta_slow", 1.0),
            fast=self.number("beta_fast", 32.0),
            original_ctx=original,
            stretch=self.number("attention_factor", self._stretch(factor)),
            whole_pairs=self.said.get("truncate", True) is not False,
        )

    def _stretch(self, factor: float) -> float:
        """The attention factor of yarn where none is given: 0.1 ln(factor) + 1, or a ratio of two such."""

        def of(scale: float) -> float:
            return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

        one, other = self.number("mscale", 0.0), self.number("mscale_all_dim", 0.0)
        return of(one) / of(other) if one and other else of(1.0)


def _quantized(said: object) -> str:
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
