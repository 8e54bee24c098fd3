"""Frozen dataclasses to TOML and back, and `path=value` overrides.

Each room owns its own dataclass; this module knows none of them. Unknown keys are errors that show the nearest name.
Only what TOML can hold is allowed in a field: bool, int, float, str, tuples of these, and nested dataclasses.
"""

import dataclasses
import re
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from qkv.errors import ConfigError, unknown
from qkv.jsontypes import JsonObject
from qkv.othernames import unknown_setting

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
Table = JsonObject
"""What TOML holds under one name: bool, int, float, str, lists of these, and tables."""
_hints = cache(get_type_hints)


def to_dict(config: "DataclassInstance") -> Table:
    """The dataclass as plain values; None is left out, since TOML has no null."""
    out: Table = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            out[field.name] = to_dict(value)
        elif isinstance(value, tuple):
            out[field.name] = list(value)
        elif value is not None:
            out[field.name] = value
    return out


def flat(config: "DataclassInstance") -> Table:
    """Every leaf of the dataclass by its dotted path: `model.sizes.d_model` -> value."""
    return dict(leaves(to_dict(config)))


def leaves(table: Mapping[str, object], above: str = "") -> list[tuple[str, object]]:
    """(dotted path, value) of what is in tables inside tables."""
    found: list[tuple[str, object]] = []
    for name, value in table.items():
        found += leaves(value, f"{above}{name}.") if isinstance(value, dict) else [(above + name, value)]
    return found


def from_dict(cls: type[T], data: Mapping[str, object], where: str = "") -> T:
    """Build `cls` from plain values, refusing unknown keys and values of the wrong type by name."""
    hints = _hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for name in data:
        if name not in names:
            raise ConfigError(unknown("setting", f"{where}{name}", [f"{where}{n}" for n in names]))
    values = {name: _convert(data[name], hints[name], f"{where}{name}") for name in names if name in data}
    for field in dataclasses.fields(cls):
        is_needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if is_needed and field.name not in values:
            raise ConfigError(f"{where}{field.name} is missing")
    return cls(**values)


def _convert(value: object, hint: object, where: str) -> object:
    """`value` as the type `hint` asks for, from TOML's types or from a string typed on the command line."""
    if dataclasses.is_dataclass(hint):
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return value
        return from_dict(hint, value, f"{where}.")  # type: ignore[arg-type]
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None or (value == "none" and str not in args):
            return None
        return _convert(value, next(a for a in args if a is not type(None)), where)
    if origin is Literal:
        if value not in args:
            raise ConfigError(unknown(f"value for {where}", str(value), [str(a) for a in args]))
        return value
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else cast(Sequence[object], value)
        return tuple(_convert(item, args[0], where) for item in items if item != "")
    wrong = ConfigError(f"{where} is {value!r}; expected {_name(hint)}")
    if hint is bool:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise wrong
        return value
    if isinstance(value, bool) and hint in (int, float):
        raise wrong
    try:
        converted = cast(Callable[[object], object], hint)(value)
    except (OverflowError, TypeError, ValueError):
        raise wrong from None
    if hint is int and isinstance(value, float) and value != converted:
        raise wrong
    return converted


def _name(hint: object) -> str:
    names: dict[object, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return names.get(hint, str(hint))


def _inner(hint: object) -> object:
    """The dataclass of an optional dataclass; anything else as it is."""
    options = [arg for arg in get_args(hint) if arg is not type(None)]
    optional = get_origin(hint) in (Union, types.UnionType) and len(options) == 1
    return options[0] if optional and dataclasses.is_dataclass(options[0]) else hint


@cache
def field_paths(cls: type) -> tuple[str, ...]:
    """Every leaf setting of `cls` as a dotted path, in order of declaration."""
    hints = _hints(cls)
    paths: list[str] = []
    for field in dataclasses.fields(cls):
        hint = _inner(hints[field.name])
        if dataclasses.is_dataclass(hint):
            paths += [f"{field.name}.{inner}" for inner in field_paths(hint)]  # type: ignore[arg-type]
        else:
            paths.append(field.name)
    return tuple(paths)


def override(config: T, assignments: Mapping[str, object]) -> T:
    """`config` with some settings replaced, e.g. `{"model.d_model": "128"}`.

    A path may be shortened to its last parts where that names one setting only (`d_model`). Values may be strings. All
    are set at once: settings that fit one another only together may come in any order.

    Raises ConfigError for a path that names no setting, or several.
    """
    return _replaced(config, {whole_path(type(config), given): value for given, value in assignments.items()}, "")


def whole_path(cls: type, given: str) -> str:
    """The one setting of `cls` whose path is `given`, or ends in it. Raises ConfigError for none, and for several."""
    paths = field_paths(cls)
    matches = [p for p in paths if p == given] or [p for p in paths if p.endswith(f".{given}")]
    if not matches:
        by_leaf = {p.rsplit(".", 1)[-1]: p for p in paths} | {p: p for p in paths}
        raise ConfigError(unknown_setting("setting", given, by_leaf))
    if len(matches) > 1:
        raise ConfigError(f"setting {given!r} could be {' or '.join(matches)}; type the whole path")
    return matches[0]


def _replaced(config: T, values: Mapping[str, object], above: str) -> T:
    """`config` with the settings at these paths inside it replaced; `above` is where it is itself, with a dot."""
    hints, new = _hints(type(config)), {}
    for path, value in values.items():
        name, _, rest = path.partition(".")
        if not rest:
            new[name] = _convert(value, hints[name], above + name)
        elif (inner := getattr(config, name)) is None:
            raise ConfigError(f"{above}{path} has no effect here: this run has no {name}; leave it out")
        elif name not in new:
            own = {p.removeprefix(f"{name}."): v for p, v in values.items() if p.startswith(f"{name}.")}
            new[name] = _replaced(inner, own, f"{above}{name}.")
    return dataclasses.replace(config, **new)


def dump_toml(data: Mapping[str, object], prefix: str = "") -> str:
    """Plain values as TOML text; scalars first, then one table per nested dictionary.

    Raises ConfigError for what `load_toml` would not read back.
    """
    lines = [f"{name} = {_literal(value)}" for name, value in data.items() if not isinstance(value, dict)]
    text = "\n".join(lines) + ("\n" if lines else "")
    for name, value in data.items():
        if isinstance(value, dict):
            text += f"\n[{prefix}{name}]\n" + dump_toml(value, f"{prefix}{name}.")
    if why := _refused(text):
        raise ConfigError(f"config.toml could not be read back: {why}; expected fewer or shorter names of classes")
    return text


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return '"' + "".join(_escape(c) for c in value) + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    raise AssertionError(f"{type(value)} has no TOML form here")


def _escape(character: str) -> str:
    if "\ud800" <= character <= "\udfff":
        raise ConfigError(
            f"a path or a name has a byte that is no UTF-8 (0x{ord(character) & 0xFF:02x}), which config.toml cannot"
            " hold; rename the file or the folder"
        )
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"


_LARGEST_TOML = 1 << 20
_DEEPEST_KEY = 200
"""The parser's time grows as the third power of the parts of a dotted name."""


def _refused(text: str) -> str:
    """Why `load_toml` does not parse such a text; or ""."""
    if len(text.encode()) > _LARGEST_TOML:
        return f"it has more than {_LARGEST_TOML:,} bytes"
    is_deep = any(piece.count(".") > _DEEPEST_KEY for piece in re.split(r"[=,\[\]{}\n]", text))
    return f"a name in it has more than {_DEEPEST_KEY} parts" if is_deep else ""


def load_toml(path: Path) -> Table:
    """The tables of a TOML file.

    Raises ConfigError where the file is not TOML, naming file and line.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(_LARGEST_TOML + 1)
        if why := _refused(text):
            raise ValueError(why)
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
