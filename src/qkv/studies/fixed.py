"""A question that qkv brings: its file as a design whose arms are all trained at one fixed size.

The file has the form of `studies.table`, and the words of `Question`. Beside arms and effects it holds `[texts.NAME]`,
`[quick]` and `[full]` (what differs from the usual size, `replicates`, `grid`, `values`, and which `arms` and `effects`
in which order, where those are not all in the file's), `[values]` for names in braces, and three functions
`module:name`: `given` counts on the text what the design needs, `derive` and `counted` are those of `Question`. `when`
lists what must hold: quick, full, labelled, images, vectors or a name of `given`, each also with `not`. `use` takes
an effect from shared.toml.
"""

import fnmatch
import tomllib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeVar, cast

from qkv.config import leaves
from qkv.errors import ConfigError, unknown
from qkv.extensions import load
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.studies import table as form
from qkv.studies.engine.design import Arm, Contrast, Design, Grid, Scale, Text, in_order
from qkv.studies.question import Accounts, Ask, Ladder, Plain, Published, Question, make_design

Named = TypeVar("Named", Arm, Contrast)
Given = Callable[[Ask, dict[str, Text], Scale], JsonObject]
"""What a function of a question counts on its texts, which it may add to: names in braces, and what is `when`."""

_KEYS: Mapping[str, str] = {**form.ARM_KEYS, "name": "text", "text": "text", "task": "text"}
_TABLES = ("values", "texts", "sets", "usual", "quick", "full", "arms", "effects", "given")
_HOOKS = ("derive", "counted")
_VARIANT = ("replicates", "grid", "values", "arms", "effects")


@lru_cache(maxsize=1)
def _shared() -> JsonObject:
    return tomllib.loads(Path(__file__).with_name("shared.toml").read_text(encoding="utf-8"))


def read_fixed(path: Path) -> Question:
    """The question of a file, whose design is made when it is asked for.

    Raises TypeError for a key that is unknown or missing among its words, ConfigError for a function that is not there.
    """
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    words: JsonObject = {
        key: load(value, key) if key in _HOOKS else value for key, value in table.items() if key not in _TABLES
    }
    words["plain"], words["math"] = Plain(**words["plain"]), tuple(words["math"])
    words["also"] = {effect: Plain(**plain) for effect, plain in words.get("also", {}).items()}
    if in_demo := words.pop("in_demo", ""):
        words["elsewhere"] = f"{_shared()['in_demo']} {in_demo}"
    if accounts := words.pop("accounts", None):
        rows = tuple((what, tuple(effects)) for what, effects in accounts["rows"])
        words["accounts"] = Accounts(columns=tuple(accounts["columns"]), rows=rows)
    if ladder := words.pop("ladder", None):
        published = tuple(Published(**row) for row in ladder.pop("published", ()))
        words["ladder"] = Ladder(**ladder, published=published)
    given = cast("Given", load(table["given"], "given")) if "given" in table else lambda ask, texts, scale: {}
    return Question(name=path.stem, design=lambda ask: _design(path.stem, table, given, ask), **words)


def _design(name: str, table: JsonObject, given: Given, ask: Ask) -> Design:
    kind = "quick" if ask.quick else "full"
    variant = table.get(kind, {})
    scale = Scale(**_shared()[kind] | {key: value for key, value in variant.items() if key not in _VARIANT})
    case = _Case(ask, {**table.get("values", {}), **variant.get("values", {}), **vars(scale)})
    texts = {
        text.get("name", key): _text(form.filled_item(text, case.values, key))
        for key, text in table.get("texts", {"text": {}}).items()
        if case.holds(text, case.values)
    }
    case.values |= given(ask, texts, scale)
    arms = _chosen(_arms(table, case), variant.get("arms"))
    words = {arm.name: arm.what for arm in arms}
    return make_design(
        ask,
        study=name,
        texts=texts,
        scale=scale,
        grid=Grid(**variant.get("grid", {})),
        arms=arms,
        contrasts=_chosen(_contrasts(table, case, words), variant.get("effects")),
        replicates=variant.get("replicates"),
    )


class _Case:
    """What a study is asked of, and what names in braces are there."""

    def __init__(self, ask: Ask, values: JsonObject) -> None:
        self._ask, self.values = ask, values

    def holds(self, item: JsonMapping, names: JsonMapping) -> bool:
        """Whether all that an item is for holds."""
        words = cast("list[str]", form.filled(item.get("when", []), names, "when"))
        return all(self._is(word.removeprefix("not ")) != word.startswith("not ") for word in words)

    def _is(self, word: str) -> bool:
        asked = {
            "quick": lambda: self._ask.quick, "full": lambda: not self._ask.quick, "labelled": self._ask.has_labels,
            "images": self._ask.has_images, "vectors": self._ask.has_vectors,
        }  # fmt: skip
        if word in asked:
            return asked[word]()
        if word not in self.values:
            raise ConfigError(unknown("when", word, [*asked, *self.values]))
        value = self.values[word]
        return self._is(value) if isinstance(value, str) else bool(value)


def _text(table: JsonObject) -> Text:
    fields = {key: table[key] for key in ("stream", "tokenizer", "vocab") if key in table}
    settings = {key: value for key, value in table.items() if key not in ("when", "name", *fields)}
    return Text(settings=in_order(settings), **fields)


def _arms(table: JsonObject, case: _Case) -> list[Arm]:
    sets, found = {**_shared()["sets"], **table.get("sets", {})}, []
    items = [{"name": name, **arm} for name, arm in table["arms"].items()]
    for item, names in form.repeated(items, _KEYS, case.values):
        if case.holds(item, names):
            whole = form.with_sets(item, sets, names)
            found.append(_arm(form.filled_item(whole, names, item["name"])))
    return found


def _arm(item: JsonObject) -> Arm:
    """An arm at the study's size, but for what it sets. Raises ConfigError."""
    where = f"arms.{item['name']}"
    form.checked(item, where, _KEYS, ("what",))
    layout, sizes, settings, own = {}, {}, {}, {}
    for path, value in leaves(item.get("set", {})):
        if path == "preset" or path.startswith("training."):
            settings[path] = value
        elif path.startswith("layout."):
            layout[path.removeprefix("layout.")] = value
        elif path in ("optimizer.kind", "lr"):
            own[path.removesuffix(".kind")] = value
        elif path in Scale.__dataclass_fields__:
            sizes[path] = value
        else:
            known = ["layout.", "training.", "preset", "lr", "optimizer.kind", *Scale.__dataclass_fields__]
            raise ConfigError(f"{where}.set: {unknown('setting', path, known)}")
    own |= {key: item[key] for key in ("name", "what", "text", "task") if key in item}
    own |= {"layout": in_order(layout), "sizes": in_order(sizes), "settings": in_order(settings)}
    return Arm(changes=tuple(item.get("changes", ())), **own, **form.arm_fields(item, where))


def _contrasts(table: JsonObject, case: _Case, words: Mapping[str, str]) -> list[Contrast]:
    often, usual, found = _shared()["effects"], table.get("usual", {}), []
    items = [form.with_usual(item, often[item["use"]] if "use" in item else usual) for item in table["effects"]]
    for item, names in form.repeated(items, form.EFFECT_KEYS, case.values):
        if case.holds(item, names):
            found.append(form.contrast_of(item, names, words))
    return found


def _chosen(made: list[Named], patterns: list[str] | None) -> list[Named]:
    """Those whose names match, in the order of the patterns; all of them where there are none."""
    if patterns is None:
        return made
    found: dict[str, Named] = {}
    for pattern in patterns:
        matching = {one.name: one for one in made if fnmatch.fnmatchcase(one.name, pattern)}
        if not matching:
            raise ConfigError(unknown("arm or effect", pattern, [one.name for one in made]))
        found |= matching
    return list(found.values())
