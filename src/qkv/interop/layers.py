"""Pieces of a configuration that differ from layer to layer: windows, rotary positions, and lists with a word for each.

We write such a list as a pattern of letters that is repeated over the layers (`window_layers`, `rope_layers`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from qkv.interop.settings import Reading, Rope
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.models.layout import ModelConfig, RopeScaling

Usual = Callable[[int, JsonMapping], Sequence[object]]
"""`usual(n_layers, given)`: the words of a file that lists none."""

ATTENTION = (("full_attention", "f"), ("sliding_attention", "w"))
"""A layer's kind of attention -> our letter."""


def shortest(letters: str) -> str:
    """The shortest pattern that gives these letters when it is repeated."""
    n = len(letters)
    return next(letters[:p] for p in range(1, n + 1) if (letters[:p] * n)[:n] == letters) if letters else ""


def every(n: int, *, first: object, last: object) -> Usual:
    """Layers of which each n-th is `last` and the others `first`."""
    return lambda n_layers, given: [last if (layer + 1) % n == 0 else first for layer in range(n_layers)]


@dataclass(frozen=True)
class LayerWords:
    """A key that lists a word for each layer, as a pattern of letters."""

    key: str
    path: str
    """`layout.NAME`."""
    letters: tuple[tuple[object, str], ...]
    usual: Usual

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    def read(self, reading: Reading) -> None:
        n_layers, ours = int(reading.values["sizes.n_layers"]), dict(self.letters)
        said = reading.given.get(self.key)
        words = self.usual(n_layers, reading.given) if said is None else said
        if not isinstance(words, list) or len(words) != n_layers or any(str(w) not in map(str, ours) for w in words):
            known = " or ".join(str(word) for word in ours)
            raise reading.refuse(self.key, f"expected {known} for each of {n_layers} layers")
        reading.values[self.path] = shortest("".join(ours[word] for word in words))

    def write(self, config: ModelConfig, out: JsonObject) -> None:
        pattern = getattr(config.layout, self.path.partition(".")[2])
        theirs = {letter: word for word, letter in self.letters}
        out[self.key] = [theirs[pattern[layer % len(pattern)]] for layer in range(config.sizes.n_layers)]


@dataclass(frozen=True)
class Windows:
    """A sliding window: its width, and the layers that have it. One as wide as the context hides nothing."""

    key: str = "sliding_window"
    width: int | None = 4096
    """What a silent file means; None is no window."""
    usual: Usual = lambda n_layers, given: ["sliding_attention"] * n_layers
    switch: str = ""
    """A key that turns it on, beside which `layer_types` count too; empty: it is on where the width is a number."""
    layered: bool = True
    """Whether files list `layer_types`; where not, all layers are windowed, whatever they list."""
    keeps: bool = False
    """Whether windowed layers differ in more than what they see, so that the widest window is one too."""
    halves: bool = False
    """Whether the width is of both sides together."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, "layer_types", *((self.switch, "max_window_layers") if self.switch else ()))

    @property
    def _words(self) -> LayerWords:
        return LayerWords("layer_types", "layout.window_layers", ATTENTION, self.usual)

    def read(self, reading: Reading) -> None:
        given, values = reading.given, reading.values
        if given.get(self.key, self.width) is None:
            return
        listed = given.get("layer_types") is not None
        if self.switch and not listed and not given.get(self.switch, False):
            return
        width = int(reading.number(self.key, self.width, "expected a number of positions", whole=True, least=1))
        self._words.read(reading)
        listed_pattern = values.pop("layout.window_layers")
        pattern, width = listed_pattern if self.layered else "w", width // 2 + 1 if self.halves else width
        if "w" in pattern and (self.keeps or width < values["sizes.n_ctx"]):
            values |= {"layout.window": width, "layout.window_layers": pattern}

    def write(self, config: ModelConfig, out: JsonObject) -> None:
        width = config.layout.window
        if self.switch:
            out[self.switch] = bool(width)
            if not width:
                return
        if self.layered:
            kinds = dict((letter, word) for word, letter in ATTENTION)
            layers = range(config.sizes.n_layers)
            out["layer_types"] = [kinds["w" if config.layout.windowed(layer) else "f"] for layer in layers]
        else:
            width *= all(config.layout.windowed(layer) for layer in range(config.sizes.n_layers))
        none = None if self.width is None or not self.layered else config.sizes.n_ctx
        out[self.key] = (2 * (width - 1) if self.halves else width) or none


@dataclass(frozen=True)
class RopeByLayer:
    """Rotary positions of which windowed layers have a base of their own; a scaling is of the other layers alone."""

    base: float
    """What a silent file means, of layers without a window ..."""
    window_base: float
    """... and with one."""
    old_keys: tuple[str, str] = ("rope_theta", "rope_local_base_freq")
    """The two in files of older versions."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.old_keys, "rope_scaling", "rope_parameters", "partial_rotary_factor")

    def read(self, reading: Reading) -> None:
        given = reading.given
        base = reading.number(self.old_keys[0], self.base)
        near = {"rope_theta": reading.number(self.old_keys[1], self.window_base)}
        told: JsonObject = {"rope_theta": base, "rope_scaling": given.get("rope_scaling")}
        table = given.get("rope_parameters")
        if isinstance(table, dict) and isinstance(table.get("full_attention"), dict):
            told = {"rope_theta": base, "rope_parameters": table["full_attention"]}
            near |= table.get("sliding_attention") or {}
        elif table:
            told = {"rope_theta": base, "rope_parameters": table}
            near |= {"rope_theta": table.get("rope_theta", base)}
        inner = Reading(reading.path, told)
        Rope().read(inner)
        if near.get("rope_type", "default") != "default":
            raise reading.refuse("rope_parameters", "qkv reads windowed layers without a scaling of rotary positions")
        reading.values |= inner.values
        window_base, scaled = float(cast(float, near["rope_theta"])), "layout.rope_scaling" in inner.values
        if "layout.window" in reading.values and (scaled or window_base != inner.values["layout.rope_base"]):
            reading.values["layout.window_rope_base"] = window_base

    def write(self, config: ModelConfig, out: JsonObject) -> None:
        said: JsonObject = {}
        Rope().write(config, said)
        full = (said["rope_scaling"] or {"rope_type": "default"}) | {"rope_theta": said["rope_theta"]}
        base = config.layout.window_rope_base or config.layout.rope_base
        if config.layout.rope_scaling != RopeScaling() and config.layout.window and not config.layout.window_rope_base:
            base = -1.0  # scaled windows are no such model's; reading it back then differs
        near = {"rope_type": "default", "rope_theta": base}
        out["rope_parameters"] = {"full_attention": full, "sliding_attention": near}


@dataclass(frozen=True)
class Joint:
    """Keys that together mean something here, by a function for each way."""

    keys: tuple[str, ...]
    read: Callable[[Reading], None]
    write: Callable[[ModelConfig, JsonObject], None]
