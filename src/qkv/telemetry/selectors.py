"""Selectors over recorded addresses, without a model: the catalogue's language on plain names.

Terms are joined by commas and read from left to right; a leading `-` subtracts. `*` stays inside a segment, `**` is
any number of whole segments, `[QK]` is one letter of a set, `L[0-11]`, `H[0-3]` and `KV[1]` are ranges of numbers, and
a last segment `embed attn mlp norms head` is a group. A term that names no head picks no
heads. This knows what was recorded, not what a model could have; a test holds it equal to
`qkv.models.matrices.Catalogue.select`.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache

from qkv.errors import AddressError, nearest

GROUPS = {"embed": "embed", "attn": "attn", "rnn": "rnn", "mlp": "mlp", "norms": "norm", "head": "head"}
"""Name of a group in a selector -> the site of the matrices in it."""

_HEAD = re.compile(r"(?:^|\.)(?:H|KV)\d+(?:\.|$)")


def select(
    selector: str,
    addresses: Sequence[str],
    sites: Mapping[str, str] | None = None,
    others: Mapping[str, str] | None = None,
) -> list[str]:
    """The addresses that `selector` names, in the order given.

    `sites` maps an address to its site and gives group names their meaning; `others` maps a second name of a shared
    matrix to its address. Raises AddressError where a term matches nothing, with the nearest addresses.
    """
    chosen: set[str] = set()
    second = {name: a for name, a in (others or {}).items() if a in addresses and name not in addresses}
    names = [*addresses, *second]
    for position, term in enumerate(_terms(selector)):
        subtract, name = term.startswith("-"), term.removeprefix("-").strip()
        matched = {second.get(found, found) for found in _matching(name, names, sites or {})}
        if not matched:
            near = nearest(name, names) or list(addresses[:3])
            hint = f"; nearest: {', '.join(near)}" if near else "; nothing was"
            if names and all(_HEAD.search(known) for known in names):
                hint = f": only heads were, which 'L*.H*.**' names, or {near[0]}"
            raise AddressError(f"selector {name!r} matches nothing that was recorded{hint}")
        if subtract and position == 0:
            chosen = {a for a in addresses if not _HEAD.search(a)}
        chosen = chosen - matched if subtract else chosen | matched
    if not chosen:
        raise AddressError(f"selector {selector!r} leaves nothing")
    return [a for a in addresses if a in chosen]


def _terms(selector: str) -> list[str]:
    """The parts between commas that are not inside brackets."""
    terms = [term.strip() for term in re.split(r",(?![^\[]*\])", selector)]
    if not all(term.removeprefix("-").strip() for term in terms):
        raise AddressError(f"selector {selector!r} has an empty term; expected e.g. 'L*.W_Q' or 'attn,-L0.**'")
    return terms


def _matching(name: str, addresses: Sequence[str], sites: Mapping[str, str]) -> set[str]:
    if name in addresses:
        return {name}
    stem, _, last = name.rpartition(".")
    site = GROUPS.get(last)
    if site:
        name = f"{stem}.**" if stem else "**"
    tests = [None if segment == "**" else _segment(segment) for segment in name.split(".")]
    heads = any(re.match(r"(?:H|KV)[0-9*\[]", segment) for segment in name.split("."))
    return {
        a
        for a in addresses
        if _match(tests, a.split(".")) and site in (None, sites.get(a)) and (heads or not _HEAD.search(a))
    }


def _match(tests: Sequence[re.Pattern[str] | None], segments: Sequence[str]) -> bool:
    """Whether the tests, None standing for `**`, fit the segments from first to last."""
    if not tests:
        return not segments
    if tests[0] is None:
        return any(_match(tests[1:], segments[i:]) for i in range(len(segments) + 1))
    return bool(segments) and tests[0].fullmatch(segments[0]) is not None and _match(tests[1:], segments[1:])


@cache
def _segment(segment: str) -> re.Pattern[str]:
    """What one segment may be."""
    if numbered := re.fullmatch(r"(L|H|KV)\[([\d,\s-]+)\]", segment):
        return re.compile(numbered[1] + "(?:" + "|".join(map(str, _numbers(numbered[2]))) + ")")
    pieces = re.split(r"(\*|\[\w+\])", segment)
    return re.compile(
        "".join("[^.]*" if p == "*" else p if re.fullmatch(r"\[\w+\]", p) else re.escape(p) for p in pieces)
    )


def _numbers(ranges: str) -> list[int]:
    """`0-3,7` as numbers."""
    numbers: list[int] = []
    for item in ranges.split(","):
        low, _, high = item.strip().partition("-")
        if low.isdecimal() and (not high or high.isdecimal()):
            numbers += range(int(low), min(int(high or low), 9999) + 1)
    return numbers
