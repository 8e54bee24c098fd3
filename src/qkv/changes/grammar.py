"""The grammar of changes: `SEL=op(args)@from..to`, for training and for looking.

The window is from the step `from` up to, and not with, the step `to`; either may be left out. An op that freezes holds
for its window, any other acts once, before the step `from`. `identity`, `random`, `orthogonal` and `zero` freeze unless
`train=true` is among their arguments. `stop_gradient` selects activations (`L0.v`, `L1.H2.q`, `L3.resid_pre`) and holds
for its window.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from qkv.changes.ops import OPS
from qkv.errors import ChangeError, unknown
from qkv.models.addresses import parse_selector, short, split_outside

_FORM = "SEL=op(args)@from..to, for example W_E=freeze, L0.W_Q=identity or L*.W_O=random(0.02)@0..100"


@dataclass(frozen=True, slots=True)
class Change:
    """One change; `str(change)` is its text and `parse_change` undoes that exactly."""

    selector: str
    op: str
    args: tuple[float | int | str, ...] = ()
    start: int = 0
    """The first step it holds for, or before which it acts."""
    stop: int | None = None
    """The first step it no longer holds for; None is to the end."""
    train: bool = False
    """Whether a matrix that the op would freeze is trained on from its new values."""

    @property
    def holds(self) -> bool:
        """Whether it freezes what it changes, for its window."""
        return OPS[self.op].freezes == "always" or (OPS[self.op].freezes != "no" and not self.train)

    def acts_in(self, step: int) -> bool:
        """Whether a step lies in its window."""
        return self.start <= step and (self.stop is None or step < self.stop)

    @property
    def window(self) -> str:
        """`@from..to`, or nothing for the whole run."""
        stop = "" if self.stop is None else self.stop
        return f"@{self.start}..{stop}" if self.start or self.stop is not None else ""

    def __str__(self) -> str:
        args = [f"{arg!r}" if isinstance(arg, float) else str(arg) for arg in self.args] + ["train=true"] * self.train
        return f"{self.selector}={self.op}" + (f"({','.join(args)})" if args else "") + self.window


def parse_change(text: str) -> Change:
    """Read one change.

    Raises ChangeError or AddressError where it does not parse or would have no effect, saying what is expected.
    """
    pieces = split_outside(text, "=")
    if len(pieces) != 2:
        raise ChangeError(f"{short(text)} is not a change; expected {_FORM}")
    selector, action = (piece.strip() for piece in pieces)
    match = re.fullmatch(r"([A-Za-z_]+)\s*(?:\((.*)\))?\s*(?:@([^()]*))?", action, re.DOTALL)
    if match is None:
        raise ChangeError(f"{short(text)}: {short(action)} is not an op; expected {_FORM}")
    op, inner, window = match[1], match[2] or "", match[3]
    if op not in OPS:
        raise ChangeError(unknown("op", op[:40], OPS))
    parse_selector(selector)
    args, train = _arguments(op, inner)
    start, stop = (0, None) if window is None else _window(window, text)
    change = Change(selector, op, args, start, stop, train)
    if op in ("share", "lora") and change.window:
        raise ChangeError(f"{short(text)}: {op} holds from the first step to the last; expected no window")
    if stop is not None and not (change.holds or OPS[op].on_activations):
        raise ChangeError(f"{short(text)}: {op} acts once, so ..{stop} has no effect; expected @{start}.. or no window")
    return change


def parse_changes(text: str) -> list[Change]:
    """Read changes joined by commas; a comma inside a selector stays there: `W_E,W_U=freeze,L0.W_Q=identity` is two."""
    changes, waiting = [], []
    for piece in split_outside(text, ","):
        waiting.append(piece)
        if len(split_outside(piece, "=")) > 1:
            changes.append(parse_change(",".join(waiting)))
            waiting = []
    return changes + [parse_change(",".join(waiting))] if waiting else changes


def freeze_changes(freeze: Sequence[str], only: Sequence[str]) -> list[Change]:
    """What `--freeze SEL` and `--only SEL` are short for; several `only` are one, which trains them all.

    Raises AddressError where a selector does not parse.
    """
    changes = [Change(selector.strip(), "freeze") for selector in freeze]
    changes += [Change(",".join(selector.strip() for selector in only), "only")] if only else []
    for change in changes:
        parse_selector(change.selector)
    return changes


def _arguments(op: str, text: str) -> tuple[tuple[float | int | str, ...], bool]:
    """The arguments an op takes, read, and whether `train=true` is among them."""
    train, others = False, []
    for piece in split_outside(text, ","):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if name != "train" or not equals:
            others.append(piece)
            continue
        if value not in ("true", "false"):
            raise ChangeError(f"{op}({text[:80]}): train is {value!r}; expected train=true or train=false")
        if OPS[op].freezes != "unless train=true":
            raise ChangeError(f"{op}({text[:80]}): train={value} has no effect, since it is not an op that may hold")
        train = value == "true"
    given, argument = ",".join(others).strip(), OPS[op].argument
    if argument is None or not given:
        if given:
            raise ChangeError(f"{op} takes no argument; given {given[:80]!r}")
        if argument is not None and argument.required:
            raise ChangeError(f"{op} needs an argument; expected {op}({argument.name})")
        return (), train
    try:
        return (argument.read(given),), train
    except ValueError as error:
        raise ChangeError(f"{op}({given[:80]}): expected {error}") from None


def _window(text: str, change: str) -> tuple[int, int | None]:
    match = re.fullmatch(r"\s*([0-9]{1,12})?\s*\.\.\s*([0-9]{1,12})?\s*", text)
    if match is None or not (match[1] or match[2]):
        raise ChangeError(
            f"{short(change)}: @{text[:40]} is not a window; expected steps as @100..200, @100.. or @..200"
        )
    start, stop = int(match[1] or 0), int(match[2]) if match[2] else None
    if stop is not None and stop <= start:
        raise ChangeError(f"{short(change)}: no step is from {start} up to and not with {stop}; the window is empty")
    return start, stop
