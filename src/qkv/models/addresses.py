"""The language of addresses: one matrix, circuit or activation by name, and selectors that pick several.

An address is `[enc.|dec.][L0.][cross.][H3.|KV1.]NAME`: `W_E`, `L0.W_Q`, `L2.H3.W_V`, `L2.H3.QK`, `dec.L1.cross.W_K`,
`L0.qnorm.gain`, `L0.H3.q`; one token's row is `W_E[the]`, a row by its number `W_U[42]`. A token that is itself a
number, or holds quotes or unbalanced brackets, is written as a JSON string: `W_E["42"]`.

A selector is terms joined by commas and read from left to right; a leading `-` subtracts. In a term `*` stays inside a
segment, `**` is any number of whole segments, `[QK]` is one letter of a set, `L[0-11]`, `H[0-3]` and `KV[1]` are ranges
of numbers, and a last segment `embed`, `attn`, `rnn`, `mlp`, `norms` or `head` is a group (`attn`, `L0.mlp`).

This module knows no model: what an address means there is the catalogue's to say (`qkv.models.matrices`).
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from qkv.errors import AddressError

GROUPS = {"embed": "embed", "attn": "attn", "rnn": "rnn", "mlp": "mlp", "norms": "norm", "head": "head"}
"""Name of a group in a selector -> the site of the matrices in it."""

CIRCUITS = ("QK", "OV")
"""Products of one head's matrices that act as one map: W_Q W_K^T and W_V W_O."""

ACTIVATIONS = {name: "model" for name in ("embed", "norm_f")}
ACTIVATIONS |= {
    name: "layer" for name in ("x", "resid_pre", "attn_out", "mix_out", "resid_mid", "mlp_out", "resid_post")
}
ACTIVATIONS |= {name: "head" for name in ("q", "k", "v", "scores", "pattern", "z")}
"""Activation -> what owns one: the whole model, a layer, or a layer and each of its heads."""

_NUMBER = "(?:0|[1-9][0-9]{0,8})"
_NAME = r"(?!(?:enc|dec|cross|(?:L|H|KV)[0-9]+)(?![A-Za-z0-9_]))[A-Za-z_][A-Za-z0-9_]*"
_ADDRESS = re.compile(
    rf"(?:(?P<scope>enc|dec)\.)?(?:L(?P<layer>{_NUMBER})\.)?(?:(?P<cross>cross)\.)?"
    rf"(?:(?P<share>H|KV)(?P<head>{_NUMBER})\.)?(?P<name>{_NAME}(?:\.{_NAME})*)(?P<token>\[.*\])?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Address:
    """One address, taken apart; `str(address)` puts it together and `parse_address` undoes that exactly."""

    scope: str
    """`enc`, `dec`, or empty for a model of one stack."""
    layer: int | None
    cross: bool
    """Whether it lies in a decoder's attention over the encoder."""
    head: tuple[Literal["H", "KV"], int] | None
    """Query head `("H", 3)` or key/value head `("KV", 1)`."""
    name: str
    """What is left: `W_Q`, `norm1.gain`, `QK`, `resid_post`."""
    token: str | int | None = None
    """One row of a table, by its token or by its number."""

    @property
    def kind(self) -> Literal["matrix", "circuit", "activation"]:
        """What an address of that name is, in any model."""
        if self.name in CIRCUITS:
            return "circuit"
        return "activation" if self.name in ACTIVATIONS else "matrix"

    def __str__(self) -> str:
        segments = [
            self.scope,
            "" if self.layer is None else f"L{self.layer}",
            "cross" if self.cross else "",
            "" if self.head is None else f"{self.head[0]}{self.head[1]}",
            self.name,
        ]
        return ".".join(s for s in segments if s) + ("" if self.token is None else f"[{_token_text(self.token)}]")


def parse_address(text: str) -> Address:
    """Take one address apart.

    Raises AddressError where `text` is not one, saying what is expected.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None:
        if re.search(r"(^|\.)(L|H|KV)\d+$", text) and _ADDRESS.fullmatch(f"{text}.W_V"):
            raise AddressError(f"{short(text)} holds several matrices; add the name of one: .W_Q, .W_K, .W_V or .W_O")
        raise AddressError(
            f"{short(text)} is not an address; expected [enc.|dec.][L0.][cross.][H3.|KV1.]NAME, "
            "for example W_E, L0.W_Q, L2.H3.W_V, L2.H3.QK or W_E[the]"
        )
    address = Address(
        scope=match["scope"] or "",
        layer=None if match["layer"] is None else int(match["layer"]),
        cross=match["cross"] is not None,
        head=None if match["head"] is None else (match["share"], int(match["head"])),  # type: ignore[arg-type]
        name=match["name"],
        token=None if match["token"] is None else _token(match["token"][1:-1], text),
    )
    _check_place(address, text)
    return address


def _check_place(address: Address, text: str) -> None:
    """Circuits have a layer and a query head; activations have what owns them; neither has rows."""
    if address.kind == "matrix":
        return
    if address.kind == "circuit":
        fits, example = address.layer is not None and address.head is not None and address.head[0] == "H", "L2.H3."
    else:
        owner = ACTIVATIONS[address.name]
        fits = (address.layer is None) == (owner == "model") and (address.head is None or owner == "head")
        example = {"model": "", "layer": "L2.", "head": "L2.H3."}[owner]
    if not fits or address.token is not None:
        raise AddressError(f"{short(text)}: the {address.kind} {address.name} is written {example}{address.name}")


def _token(inner: str, text: str) -> str | int:
    """The token in brackets: a row's number, a JSON string, or the token itself."""
    if re.fullmatch(_NUMBER, inner):
        return int(inner)
    if inner.startswith('"'):
        try:
            token = json.loads(inner)
        except ValueError:
            token = None
        if not isinstance(token, str):
            raise AddressError(f'{short(text)}: expected one JSON string in the brackets, such as W_E["42"]')
        return token
    if not inner or '"' in inner or not _balanced(inner):
        raise AddressError(f'{short(text)}: expected a token or a row number in brackets, such as W_E[the] or W_E["]"]')
    return inner


def _token_text(token: str | int) -> str:
    if isinstance(token, int):
        return str(token)
    plain = token.isprintable() and token == token.strip() and token and '"' not in token and _balanced(token)
    return token if plain and not re.fullmatch(_NUMBER, token) else json.dumps(token, ensure_ascii=not plain)


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if depth < 0:
            return False
    return depth == 0


def split_outside(text: str, separator: str) -> list[str]:
    """`text` cut at each `separator` that is not inside [brackets], (parentheses) or a JSON string in brackets."""
    pieces, start, depth, closing, quoted = [], 0, 0, "", False
    opening = {"[": "]", "(": ")"}
    for i, character in enumerate(text):
        if quoted:
            quoted = character != '"' or _escaped(text, i)
        elif depth:
            depth += (opening.get(character) == closing) - (character == closing)
            quoted = character == '"' and text[i - 1] == "["
        elif character in opening:
            depth, closing = 1, opening[character]
        elif character == separator:
            pieces.append(text[start:i])
            start = i + 1
    return [*pieces, text[start:]]


def _escaped(text: str, i: int) -> bool:
    """Whether an odd number of backslashes stands before position `i`."""
    before = text[:i]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a selector: a pattern over the segments of an address, perhaps a group, perhaps a token."""

    text: str
    """As typed, without the leading `-`."""
    subtract: bool
    segments: tuple[Callable[[str], bool] | None, ...]
    """One test per segment; None stands for `**`."""
    site: str | None
    """The site that a group name at the end asks for."""
    token: str | int | None
    by_head: bool
    """Whether the pattern names heads; without that it picks whole matrices only."""

    def matches(self, address: str, site: str) -> bool:
        """Whether a matrix (or a head of one) of that address without token, at that site, is meant."""
        return self.site in (None, site) and _match(self.segments, tuple(address.split(".")))


def _match(tests: tuple[Callable[[str], bool] | None, ...], segments: tuple[str, ...]) -> bool:
    if not tests:
        return not segments
    if tests[0] is None:
        return any(_match(tests[1:], segments[i:]) for i in range(len(segments) + 1))
    return bool(segments) and tests[0](segments[0]) and _match(tests[1:], segments[1:])


def parse_selector(text: str) -> tuple[Term, ...]:
    """The terms of a selector, in order.

    Raises AddressError where a term is empty or malformed.
    """
    return tuple(_term(term.strip(), text) for term in split_outside(text, ","))


def _term(text: str, selector: str) -> Term:
    subtract, pattern = text.startswith("-"), text.removeprefix("-").strip()
    if not pattern:
        raise AddressError(f"{short(selector)} has an empty term; expected a selector such as W_E, L*.W_[QK] or attn")
    stem, token = _split_token(pattern)
    pieces = stem.split(".")
    site = None if token is not None else GROUPS.get(pieces[-1])
    if site:
        pieces[-1] = "**"
    pieces = [piece for i, piece in enumerate(pieces) if piece != "**" or i == 0 or pieces[i - 1] != "**"]
    return Term(
        text=pattern,
        subtract=subtract,
        segments=tuple(None if piece == "**" else _segment(piece, pattern) for piece in pieces),
        site=site,
        token=token,
        by_head=any(re.match(r"(?:H|KV)[0-9*\[]", piece) for piece in pieces),
    )


def _split_token(pattern: str) -> tuple[str, str | int | None]:
    """`W_E[the]` as stem and token. A bracket is a set where more follows it, or after `_`, a dot, L, H or KV."""
    start = pattern.find("[")
    while start >= 0:
        letters = re.compile(r'\[[^\[\]"]*\]').match(pattern, start)
        ends = letters is None or letters.end() == len(pattern)
        if ends and not re.search(r"(?:\A|[._]|(?:\A|\.)(?:L|H|KV))\Z", pattern[:start]):
            inner = pattern[start + 1 : -1] if pattern.endswith("]") else ""
            return pattern[:start], _token(inner, pattern)
        start = -1 if letters is None else pattern.find("[", letters.end())
    return pattern, None


def _segment(piece: str, pattern: str) -> Callable[[str], bool]:
    """A test for one segment of an address."""
    if numbered := re.fullmatch(r"(L|H|KV)\[(.*)\]", piece):
        prefix, ranges = numbered[1], [_range(item, pattern) for item in numbered[2].split(",")]
        form = re.compile(f"{prefix}({_NUMBER})")

        def in_range(segment: str) -> bool:
            number = form.fullmatch(segment)
            return number is not None and any(low <= int(number[1]) <= high for low, high in ranges)

        return in_range
    if "**" in piece:
        raise AddressError(f"{short(pattern)}: ** stands alone between dots, as in **.W_Q; inside a segment write *")
    if not re.fullmatch(r"(?:[A-Za-z0-9_*]|\[[A-Za-z0-9_]+\])+", piece):
        raise AddressError(
            f"{short(pattern)}: {short(piece)} is not a segment of a selector; "
            "expected letters, digits, _, *, a set such as [QK] or numbers such as L[0-3]"
        )
    name = re.compile(piece.replace("*", "[^.]*"))
    return lambda segment: name.fullmatch(segment) is not None


def _range(item: str, pattern: str) -> tuple[int, int]:
    """`3` or `0-11` as first and last."""
    match = re.fullmatch(rf"({_NUMBER})(?:-({_NUMBER}))?", item.strip())
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if low > high:
        raise AddressError(f"{short(pattern)}: {short(item)} is not a range; expected numbers such as 3 or 0-11")
    return low, high


def short(text: str) -> str:
    """The user's own words in an error, cut where they are long."""
    return repr(text if len(text) <= 80 else text[:77] + "...")
