"""The form of a study: arms and effects as tables, in a question's file and in a study of your own.

`[arms.NAME]` is one way to train, `[[effects]]` a quantity of one arm, a difference of two, a difference of such
differences, or any weighted sum. An item with `each` is repeated: `{}` or `{name}` in its strings becomes each value,
and a key of the item that a table of `each` holds becomes the item's own. `with` names settings of `[sets]` that arms
share. A question that qkv brings has all its arms at one fixed size; its file also says what is `when` the case, and
names the few functions that count something in the text.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar, cast

from qkv.errors import ConfigError, several, unknown
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.studies.engine.design import Contrast, in_order
from qkv.studies.engine.initial_tables import TABLES
from qkv.studies.engine.training import TRAINERS
from qkv.studies.expectation import Expected
from qkv.studies.probes.registry import PROBES

_EXPECTED = "a table such as { above = 0.0 }"
_REPEATED: Mapping[str, str] = {"each": "a list, a table of lists, or the name of one", "when": "a list"}
ARM_KEYS: Mapping[str, str] = {
    "what": "text", "set": "a table", "changes": "a list", "probes": "a list", "trainer": "text", "labels": "text",
    "tune": "text", "tables": "a table", "before": "a table", "with": "a list", **_REPEATED,
}  # fmt: skip
EFFECT_KEYS: Mapping[str, str] = {
    "name": "text", "what": "text", "of": "text, or two texts", "between": "a list", "arm": "text", "terms": "a list",
    "margin": "a number", "unit": "text", "expected": _EXPECTED, "needs": "text", "beside": "a list",
    "constant": "true or false", "nominal": "a number", "tries": "a whole number", "use": "text", **_REPEATED,
}  # fmt: skip
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "text": str, "a number": (int, float), "a whole number": int, "a table": dict, "a list": list, _EXPECTED: dict,
    "text, or two texts": (str, list), "true or false": bool, _REPEATED["each"]: (list, dict, str),
}  # fmt: skip
_TOGETHER = "together"
Repeated = tuple[JsonObject, JsonObject]
"""An item, and what the names in braces in it are."""
T = TypeVar("T")
_DEEPEST = 8
"""How often what replaces a name in braces may hold another."""
_HOLE = re.compile(r"\{([^{}:]*)(?::([^{}]*))?\}")


def checked(value: object, where: str, keys: Mapping[str, str], needed: Sequence[str] = ()) -> JsonObject:
    """A table whose keys and types are those of a schema. Raises ConfigError."""
    name = f"{where}." if where else ""
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is {value!r}; expected a table with {', '.join(keys)}")
    for key, given in value.items():
        if key not in keys:
            raise ConfigError(unknown("key", f"{name}{key}", [f"{name}{known}" for known in keys]))
        if isinstance(given, bool) != (keys[key] == "true or false") or not isinstance(given, _TYPES[keys[key]]):
            raise ConfigError(f"{name}{key} is {given!r}; expected {keys[key]}")
    for key in needed:
        if key not in value:
            raise ConfigError(f"{name}{key} is missing; expected {keys[key]}")
        if value[key] in ("", [], {}) and key != "source":
            raise ConfigError(f"{name}{key} is empty; expected {keys[key]}")
    return value


# repeating


def filled(value: object, values: JsonMapping, where: str) -> object:
    """The same with `{name}`, or `{name:format}`, replaced in every string, also in keys of tables.

    A string that is one such hole becomes the value itself, whatever its type; inner holes come first. Raises
    ConfigError for another name.
    """
    if isinstance(value, list):
        return [filled(item, values, where) for item in value]
    if isinstance(value, dict):
        return {filled(name, values, where): filled(item, values, where) for name, item in value.items()}
    if not isinstance(value, str):
        return value

    def of(hole: re.Match[str]) -> object:
        if hole[1] not in values:
            raise ConfigError(f"{where}: {unknown('name in braces', hole[1], [name for name in values if name])}")
        return values[hole[1]]

    for _ in range(_DEEPEST):
        whole = _HOLE.fullmatch(value)
        now = of(whole) if whole and not whole[2] else _HOLE.sub(lambda hole: format(of(hole), hole[2] or ""), value)
        if now == value or not isinstance(now, str):
            return now
        value = now
    raise ConfigError(f"{where}: {value[:80]!r} holds its own name in braces")


def repeated(items: Sequence[JsonObject], keys: Mapping[str, str], values: JsonMapping) -> Iterator[Repeated]:
    """Every item once for each value of its `each`, with what `{name}` is in its strings, which are not filled yet.

    Items with `each = "together"` are repeated together with the one before, whose own a key in a table of `each`
    becomes; `when` there is for all of them. Raises ConfigError.
    """
    groups: list[list[JsonObject]] = []
    for item in items:
        if item.get("each") != _TOGETHER or not groups:
            groups.append([])
        groups[-1].append(item)
    for group in groups:
        for chosen in _choices(group[0], values):
            for item in group:
                kept = ("when",) if item.get("each") == _TOGETHER else keys
                own = {name: value for name, value in chosen.items() if name in kept}
                yield {name: value for name, value in {**item, **own}.items() if name != "each"}, {**values, **chosen}


def _choices(item: JsonObject, values: JsonMapping) -> list[JsonObject]:
    """What an item is repeated for: of a table of lists every combination, the last name fastest."""
    each = item.get("each", [{}])
    if isinstance(each, dict):
        lists = [_choices({**item, "each": several}, values) for several in each.values()]
        named = [
            [choice if "" not in choice else {name: choice[""]} for choice in choices]
            for name, choices in zip(each, lists, strict=True)
        ]
        return [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*named)]
    if isinstance(each, str):
        each = values.get(each, each)
    if not isinstance(each, list):
        names = [name for name, value in values.items() if isinstance(value, list)]
        raise ConfigError(f"{item.get('name', 'each')}: {unknown('list', str(each), [*names, _TOGETHER])}")
    return [value if isinstance(value, dict) else {"": value} for value in each]


def filled_item(item: JsonObject, names: JsonMapping, where: str) -> JsonObject:
    """An item of `repeated` with its strings filled; one that nothing is repeated in stays as it is."""
    return cast("JsonObject", filled(item, names, where)) if names else item


# arms and effects


def with_sets(arm: JsonObject, sets: Mapping[str, JsonObject], names: JsonMapping) -> JsonObject:
    """An arm with the settings that it has in common with others.

    Its own come before those of later sets, and these before those of earlier ones; tables are merged, and lists follow
    one another. names: what is in braces in `with`. Raises ConfigError for a set that is not there.
    """
    where, made = f"arms.{arm['name']}.with", {}
    for name in several(where, filled_item({"with": arm.get("with", [])}, names, where)["with"]):
        if name not in sets:
            raise ConfigError(f"{where}: {unknown('set', name, sets)}")
        made = _merged(made, sets[name])
    return _merged(made, {key: value for key, value in arm.items() if key != "with"})


def _merged(one: JsonObject, other: JsonObject) -> JsonObject:
    made = dict(one)
    for key, value in other.items():
        before = made.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            made[key] = _merged(before, value)
        else:
            made[key] = before + value if isinstance(before, list) and isinstance(value, list) else value
    return made


def arm_fields(arm: JsonObject, where: str) -> JsonObject:
    """Fields of an `Arm` that are no settings: how it is trained and what is measured. Raises ConfigError."""
    known = {"trainer": TRAINERS, "labels": ("real", "uniform")}
    for key, names in known.items():
        if key in arm and arm[key] not in names:
            raise ConfigError(f"{where}: {unknown(key, arm[key], names)}")
    for key, names in (("probes", PROBES), ("tables", TABLES)):
        given = arm.get(key, [])
        for name in given.values() if isinstance(given, dict) else several(f"{where}.{key}", given):
            if name not in names:
                raise ConfigError(f"{where}.{key}: {unknown(key.removesuffix('s'), name, names)}")
    if others := sorted(arm.get("tables", {}).keys() - {"W_E"}):
        raise ConfigError(f"{where}.tables: {others[0]!r} has no table; expected W_E, whose rows are of tokens")
    found: JsonObject = {key: arm[key] for key in ("trainer", "labels", "tune") if key in arm}
    if arm.get("trainer") == "none":
        found.setdefault("tune", "none")
    found |= {key: in_order(arm[key]) for key in ("tables", "before") if key in arm}
    return found | ({"probes": tuple(arm["probes"])} if "probes" in arm else {})


def with_usual(effect: JsonObject, usual: JsonMapping) -> JsonObject:
    """An effect with what effects have unless they say otherwise; terms name their quantities themselves."""
    left_out = {"arm", "between", "terms"} if effect.keys() & {"arm", "between", "terms"} else set()
    left_out |= {"of"} if "terms" in effect else set()
    return {key: value for key, value in usual.items() if key not in left_out} | effect


def terms_of(effect: JsonObject, where: str) -> tuple[tuple[float, str, str], ...]:
    """What an effect is the sum of: (weight, arm, quantity). Raises ConfigError."""
    said = [key for key in ("arm", "between", "terms") if key in effect]
    if len(said) != 1 or ("of" in effect) == (said == ["terms"]):
        raise ConfigError(f"{where} needs of with one of arm and between, or terms; got {', '.join(said) or 'none'}")
    if said == ["terms"]:
        return _weighted(effect["terms"], where)
    of = effect["of"]
    quantities = [of] if isinstance(of, str) else several(f"{where}.of", of)
    if len(quantities) not in (1, 2):
        raise ConfigError(f"{where}.of is {of}; expected one quantity, or two that are subtracted")
    if said == ["arm"]:
        return tuple((a, effect["arm"], quantity) for a, quantity in _ways(quantities))
    given = effect["between"]
    pairs = given if given and isinstance(given[0], list) else [given]
    for pair in pairs:
        if len(several(f"{where}.between", pair)) != 2 or pair[0] == pair[1]:
            raise ConfigError(f'{where}.between is {pair}; expected two arms, such as ["without", "with"]')
    if len(pairs) == 1:
        return tuple((a * b, arm, q) for a, arm in _ways(pairs[0]) for b, q in _ways(quantities))
    if len(pairs) != 2:
        raise ConfigError(f"{where}.between holds {len(pairs)} pairs; expected one, or two that are subtracted")
    of_each = (quantities[0], quantities[-1])
    return tuple(
        (a * b, arm, quantity)
        for (a, pair), quantity in zip(_ways(pairs), of_each, strict=True)
        for b, arm in _ways(pair)
    )


def _ways(parts: Sequence[T]) -> list[tuple[float, T]]:
    """Of one part, it; of two, the first minus the second."""
    return list(zip((1.0, -1.0), parts, strict=False))


def _weighted(given: list[object], where: str) -> tuple[tuple[float, str, str], ...]:
    found = []
    for term in given:
        match term:
            case [int() | float() as weight, str() as arm, str() as quantity] if not isinstance(weight, bool):
                found.append((float(weight), arm, quantity))
            case _:
                raise ConfigError(f'{where}.terms holds {term!r}; expected [weight, "arm", "quantity"]')
    return tuple(found)


def contrast_of(
    effect: JsonObject,
    names: JsonMapping,
    words: Mapping[str, str],
    where: str = "",
    keys: Mapping[str, str] = EFFECT_KEYS,
) -> Contrast:
    """An effect whose strings are not filled yet; in its `what`, `{what}` is what its first arm does.

    words: name of an arm -> what it does; where: its place in the file; keys: those that it may have. Raises
    ConfigError for a key that is unknown, missing or of another type, and for what cannot be judged.
    """
    place = where or effect.get("name", "an effect")
    if names and "arm" in effect:
        names = {**names, "arm": filled(effect["arm"], names, place)}
    made = filled_item({key: value for key, value in effect.items() if key != "what"}, names, place)
    place = where or f"effects {made.get('name', '')!r}"
    checked(made, place, keys, ("name", "margin"))
    if not 0 < made["margin"] < math.inf:
        raise ConfigError(f"{place}.margin is {made['margin']}; expected a number above 0")
    terms = terms_of(made, place)
    what = effect.get("what") or made["name"]
    what = str(filled(what, {**names, "what": words.get(terms[0][1], "")}, place)) if names else what
    more: JsonObject = {key: made[key] for key in ("unit", "needs", "constant", "nominal", "tries") if key in made}
    if (rate := more.get("nominal")) is not None and not (0 <= rate <= 1 and len(terms) == 1):
        raise ConfigError(f"{place}.nominal is {rate}; expected a rate from 0 to 1, of one quantity of one arm")
    if "expected" in made:
        more["expected"] = Expected.read(made["expected"], made["name"])
    more["beside"] = tuple(several(f"{place}.beside", made.get("beside", [])))
    return Contrast(name=made["name"], what=what, terms=terms, margin=float(made["margin"]), **more)
