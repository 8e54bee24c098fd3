"""Pieces of a configuration that differ from layer to layer: windows, rotary positions, and lists with a word for each.

We write such a list as a pattern of letters that is repeated over the layers (`window_layers`, `rope_layers`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qkv.interop.settings import Reading, Rope
from qkv.jsontypes import JsonObject
from qkv.models.layout import ModelConfig, RopeScaling

Usual = Callable[[int, Reading], Sequence[object]]
"""`usual(n_layers, reading)`: the words of a file that lists none."""

ATTENTION = (("full_attention", "f"), ("sliding_attention", "w"))
"""A layer's kind of attention -> our letter."""


def shortest(letters: str) -> str:
    """The shortest pattern that gives these letters when it is repeated."""
    n = len(letters)
    return next(letters[:p] for p in range(1, n + 1) if (letters[:p] * n)[:n] == letters) if letters else ""


def every(n: int, *, first: object, last: object, key: str = "", at: int = 1) -> Usual:
    """Layers of which each n-th is `last`, as layer n - `at`, and the others `first`; a file may say n by `key`."""

    def usual(n_layers: int, reading: Reading) -> list[object]:
        step = reading.number(key, n, "expected a whole number of at least 1", whole=True, least=1)
        return [first if (layer + at) % step else last for layer in range(n_layers)]

    return usual


@dataclass(frozen=True)
class Joint:
    """Keys that together mean something here, by a function for each way."""

    keys: tuple[str, ...]
    read: Callable[[Reading], None]
    write: Callable[[ModelConfig, JsonObject], None]


def unread(*keys: str) -> Joint:
    """Keys that another piece reads where it needs them, or that say nothing; they are not written."""
    return Joint(keys, lambda reading: None, lambda config, out: None)


def layer_words(key: str, path: str, letters: tuple[tuple[object, str], ...], usual: Usual) -> Joint:
    """A key that lists a word for each layer, as a pattern of letters in the setting `layout.NAME` at `path`."""

    def read(reading: Reading) -> None:
        n_layers, ours = int(reading.values["sizes.n_layers"]), dict(letters)
        said = reading.given.get(key)
        words = usual(n_layers, reading) if said is None else said
        fine = isinstance(words, list) and all(isinstance(word, str | int) and word in ours for word in words)
        if not fine or len(words) != n_layers:
            known = " or ".join(str(word) for word in ours)
            raise reading.refuse(key, f"expected {known} for each of {n_layers} layers")
        reading.values[path] = shortest("".join(ours[word] for word in words))

    def write(config: ModelConfig, out: JsonObject) -> None:
        pattern = getattr(config.layout, path.partition(".")[2])
        theirs = {letter: word for word, letter in letters}
        out[key] = [theirs[pattern[layer % len(pattern)]] for layer in range(config.sizes.n_layers)]

    return Joint((key,), read, write)


def windows(
    key: str = "sliding_window",
    width: int | None = 4096,
    *,
    usual: Usual = lambda n_layers, reading: ["sliding_attention"] * n_layers,
    switch: str = "",
    layered: bool = True,
    keeps: bool = False,
    halves: bool = False,
) -> Joint:
    """A sliding window: its width, and the layers that have it. One as wide as the context hides nothing.

    `width` is what a silent file means; None is no window. `switch` is a key that turns it on, beside which
    `layer_types` count too; empty: it is on where the width is a number. `layered`: files list `layer_types`; where
    not, all layers are windowed, whatever they list. `keeps`: windowed layers differ in more than what they see, so
    that the widest window is one too. `halves`: the width is of both sides together.
    """

    def read(reading: Reading) -> None:
        given, values = reading.given, reading.values
        if given.get(key, width) is None or (switch and given.get("layer_types") is None and not given.get(switch)):
            return
        wide = int(reading.number(key, width, "expected a number of positions", whole=True, least=1))
        layer_words("layer_types", "layout.window_layers", ATTENTION, usual).read(reading)
        listed = values.pop("layout.window_layers")
        pattern, wide = listed if layered else "w", wide // 2 + 1 if halves else wide
        if "w" in pattern and (keeps or wide < values["sizes.n_ctx"]):
            values |= {"layout.window": wide, "layout.window_layers": pattern}

    def write(config: ModelConfig, out: JsonObject) -> None:
        wide, windowed = config.layout.window, [config.layout.windowed(i) for i in range(config.sizes.n_layers)]
        if switch:
            out[switch] = bool(wide)
            if not wide:
                return
        if layered:
            kinds = {letter: word for word, letter in ATTENTION}
            out["layer_types"] = [kinds["w" if one else "f"] for one in windowed]
        else:
            wide *= all(windowed)
        none = None if width is None or not layered else config.sizes.n_ctx
        out[key] = (2 * (wide - 1) if halves else wide) or none

    return Joint((key, "layer_types", *((switch, "max_window_layers") if switch else ())), read, write)


def rope_by_layer(
    base: float, window_base: float, old_keys: tuple[str, str] = ("rope_theta", "rope_local_base_freq")
) -> Joint:
    """Rotary positions of which windowed layers have a base of their own; a scaling is of the other layers alone.

    The bases are what a silent file means, of layers without a window and with one; `old_keys` are the two in files of
    older versions.
    """

    def read(reading: Reading) -> None:
        table = reading.given.get("rope_parameters")
        kinds = table if isinstance(table, dict) and isinstance(table.get("full_attention"), dict) else {}
        full: JsonObject = {key: reading.given.get(key) for key in ("rope_scaling", "partial_rotary_factor")}
        full |= {"rope_theta": reading.number(old_keys[0], base), "rope_parameters": kinds.get("full_attention", table)}
        near: JsonObject = {"rope_theta": reading.number(old_keys[1], window_base)}
        near |= {"rope_parameters": kinds.get("sliding_attention")}
        inner, windowed = Reading(reading.path, full), Reading(reading.path, near)
        Rope().read(inner)
        if table and not kinds:  # one table for all layers
            near["rope_theta"] = inner.values["layout.rope_base"]
        Rope().read(windowed)
        if "layout.rope_scaling" in windowed.values:
            raise reading.refuse("rope_parameters", "qkv reads windowed layers without a scaling of rotary positions")
        reading.values |= inner.values
        near_base, scaled = windowed.values["layout.rope_base"], "layout.rope_scaling" in inner.values
        if "layout.window" in reading.values and (scaled or near_base != inner.values["layout.rope_base"]):
            reading.values["layout.window_rope_base"] = near_base

    def write(config: ModelConfig, out: JsonObject) -> None:
        said: JsonObject = {}
        Rope().write(config, said)
        full = (said["rope_scaling"] or {"rope_type": "default"}) | {"rope_theta": said["rope_theta"]}
        near = config.layout.window_rope_base or config.layout.rope_base
        if config.layout.rope_scaling != RopeScaling() and config.layout.window and not config.layout.window_rope_base:
            near = -1.0  # scaled windows are no such model's; reading it back then differs
        windowed = {"rope_type": "default", "rope_theta": near}
        out["rope_parameters"] = {"full_attention": full, "sliding_attention": windowed}

    return Joint((*old_keys, "rope_scaling", "rope_parameters", "partial_rotary_factor"), read, write)
