"""The Playground section: what a page needs to go on training a small run in the browser.

The weights travel only where they are few; which layouts the browser's engine knows is said in one place, by
`static/fits.js`: a page has the section only where its run fits.
"""

import dataclasses
import json
import math
from pathlib import Path

from qkv.jsontypes import JsonMapping, JsonObject
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.views.report.packed import Packed, pack
from qkv.views.sections.matrices import Snapshots

LARGEST = 250_000
"""Parameters up to which weights travel with a page; `static/fits.js` says the same."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlaySection:
    """A run as the playground takes it."""

    name: str
    step: int | None
    settings: JsonObject
    """As `settings_of` gives them."""
    tokens: tuple[str, ...] | None
    """The vocabulary; None where tokens are not characters."""
    parameters: int
    weights: dict[str, Packed] | None
    """By address, of the last step; None where there are too many."""


def play_section(folder: Path, config: JsonMapping, tokenizer: Tokenizer | None, kept: Snapshots) -> PlaySection | None:
    """The section of a run folder; None where there is no text to train on, no weights yet, or an unknown layout.

    `config` are the tables of config.toml.
    """
    model = config.get("model", {})
    if model.get("kind") != "CausalLM" or model.get("code") or not kept.steps or config.get("watched") == "names":
        return None
    parameters = sum(math.prod(shape) for shape in kept.shapes.values())
    step = kept.steps[-1]
    few = parameters <= LARGEST and tokenizer is not None and tokenizer.kind == "char"
    return PlaySection(
        name=folder.resolve().name,
        step=step,
        settings=settings_of(config),
        tokens=_vocabulary(folder) if tokenizer is not None and tokenizer.kind == "char" else None,
        parameters=parameters,
        weights={a: pack(kept.read(a, step)) for a in kept.shapes} if few else None,
    )


def settings_of(config: JsonMapping) -> JsonObject:
    """The configuration's model: its kind, the keys of its sizes and layout, and the run's changes as one text."""
    model = config.get("model", {})
    all_of_it = {"kind": model.get("kind"), **model.get("sizes", {}), **model.get("layout", {})}
    all_of_it["changes"] = ", ".join(config.get("changes", ()))
    return {name: value for name, value in all_of_it.items() if isinstance(value, str | int | float | bool)}


def _vocabulary(folder: Path) -> tuple[str, ...]:
    """Tokens as tokenizer.json spells them, in order."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    return tuple(sorted(vocabulary, key=vocabulary.__getitem__))
