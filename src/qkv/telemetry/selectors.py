"""Selectors over recorded addresses, without a model: the language of the matrix catalogue on plain names.

`*` stays inside a segment, `**` crosses segments, `?` is one character, `[QK]` a set of letters, `L[0-11]` a numeric
range, a comma joins, a leading `-` subtracts, and `embed attn mlp norms head` name groups. It knows only what was
recorded; it cannot say which addresses a model could have.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from qkv.errors import AddressError, nearest

__all__ = ["GROUPS", "select"]

GROUPS = {"embed": "embed", "attn": "attn", "mlp": "mlp", "norms": "norm", "head": "head"}  # selector -> site


def select(selector: str, addresses: Sequence[str], sites: Mapping[str, str] | None = None) -> list[str]:
    """The addresses that `selector` names, in the order given.

    `sites` maps an address to its site and gives the group names their meaning. Raises AddressError where nothing
    matches, with the nearest addresses.
    """
    chosen: set[str] = set()
    for position, term in enumerate(_terms(selector)):
        subtract = term.startswith("-")
        name = term.lstrip("-")
        if sites is not None and name in GROUPS:
            matched = {a for a in addresses if sites.get(a) == GROUPS[name]}
        else:
            pattern = _pattern(name)
            matched = {a for a in addresses if a == name or pattern.fullmatch(a)}
        if not matched:
            near = nearest(name, addresses) or list(addresses[:3])
            hint = f"; nearest: {', '.join(near)}" if near else "; nothing was recorded"
            raise AddressError(f"selector {name!r} matches nothing that was recorded{hint}")
        if subtract and position == 0:
            chosen = set(addresses)
        chosen = chosen - matched if subtract else chosen | matched
    if not chosen:
        raise AddressError(f"selector {selector!r} leaves nothing")
    return [a for a in addresses if a in chosen]


def _terms(selector: str) -> list[str]:
    """The parts between commas that are not inside brackets."""
    terms = [term.strip() for term in re.split(r",(?![^\[]*\])", selector)]
    if not all(terms):
        raise AddressError(f"selector {selector!r} has an empty part; expected e.g. 'L*.W_Q' or 'attn,-L0.*'")
    return terms


@lru_cache(maxsize=256)
def _pattern(term: str) -> re.Pattern[str]:
    out, i = "", 0
    while i < len(term):
        if term.startswith("**", i):
            out, i = out + ".*", i + 2
        elif term[i] == "*":
            out, i = out + r"[^.]*", i + 1
        elif term[i] == "?":
            out, i = out + r"[^.]", i + 1
        elif term[i] == "[" and (end := term.find("]", i)) > i + 1:
            out, i = out + _bracket(term[i + 1 : end]), end + 1
        else:
            out, i = out + re.escape(term[i]), i + 1
    return re.compile(out)


def _bracket(inside: str) -> str:
    """`0-11` and `0,3,5-7` as numbers, `QK` as letters, anything else (a token's name) as itself in brackets."""
    if re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", inside) and ("-" in inside or "," in inside):
        numbers: list[int] = []
        for part in inside.split(","):
            low, _, high = part.partition("-")
            numbers += range(int(low), int(high or low) + 1)
        return "(?:" + "|".join(map(str, numbers)) + ")"
    if inside.isalpha() and inside.isupper():
        return f"[{inside}]"
    return re.escape(f"[{inside}]")
