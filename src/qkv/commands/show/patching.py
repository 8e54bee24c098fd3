"""`qkv show RUN [ADDR] --text TEXT --patch OTHER`: which activations carry what tells two texts apart."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkv.commands.printing import heat, screen
from qkv.inspection.patching import MIXER, MLP, STREAM
from qkv.jsontypes import JsonObject
from qkv.words import signed

if TYPE_CHECKING:
    from rich.text import Text

    from qkv.api import Run
    from qkv.inspection.patching import Patching

SHOWN_FROM = 0.005
"""Positions whose shares (or nats, where there are no shares) are all nearer to 0 have no line."""
KINDS = {
    STREAM: "The input of a layer (the residual stream), at one {unit}",
    MIXER: "What {mixes} adds, at one {unit}",
    MLP: "What the MLP adds, at one {unit}",
}
MIXES = {"attention": "attention", "lstm": "the LSTM", "mean": "the mean"}


@dataclass(frozen=True)
class PatchedShown:
    """What every activation that was patched carries."""

    patching: "Patching"
    answers: tuple[str, str]
    """a and b as a person reads them."""
    mixes: str
    """What the layers mix positions by: attention, or what stands in its place."""
    of: tuple[str, str] = ("text", "token")
    """What is read, and what stands at a position."""

    @property
    def units(self) -> str:
        """Several of them."""
        return "patches" if self.of[1] == "patch" else "tokens"

    def as_json(self) -> JsonObject:
        """Tokens of both, the two answers and their log-odds, and what each activation carries: in nats, and as shares
        of `difference`; where there is nothing to carry these are null.
        """
        found, gap = self.patching, self.patching.difference
        parts = found.shares | ({} if found.heads is None else {"heads": found.heads})
        shares = None if found.caution else {name: values.tolist() for name, values in found.shares.items()}
        return {
            "tokens": found.tokens,
            "others": found.others,
            "position": found.position,
            "answers": list(self.answers),
            "log_odds": list(found.odds),
            "difference": found.difference,
            "caution": found.caution,
            "estimated": found.is_estimate,
            "shares": shares,
            "heads": None if found.heads is None or found.caution else found.heads.tolist(),
            "nats": {name: (values * gap).tolist() for name, values in parts.items()},
            "activations": {
                name: {
                    "by_position": None if found.caution else values[:-1].tolist(),
                    "all": None if found.caution else float(values[-1]),
                    "nats": {"by_position": (values[:-1] * gap).tolist(), "all": float(values[-1]) * gap},
                }
                for name, values in found.one.items()
            },
        }

    def print(self) -> None:
        """What is compared, then a table for each kind of activation."""
        found = self.patching
        a, b = (screen.quoted(answer) for answer in self.answers)
        where = "" if found.position is None else f" at {self._label(found.position)}, token {found.position + 1}"
        print(f"Which is more probable{where}: {a} or {b}? log p({a}) - log p({b}) is")
        reads, unit = self.of
        print(
            f"{signed(found.odds[0])} nats for the first {reads} and {signed(found.odds[1])} for the other:"
            f" a difference of {signed(found.difference)}."
        )
        if found.caution:
            print(found.caution)
            print(f"Each cell copies one activation from the other {reads} and shows the change of the answer in nats.")
        else:
            print(f"Each cell copies one activation from the other {reads}, and shows its share of the difference: 0")
            print("keeps the answer, 1 makes it that of the other. In parentheses: the same in nats.")
        if found.is_estimate:
            print("These are first-order estimates (attribution patching), poor where a large change saturates.")
        for kind, title in KINDS.items():
            if kind in found.shares:
                print(f"\n{title.format(mixes=self.mixes, unit=unit)}:")
                layers = [f"L{layer}" for layer in range(len(found.shares[kind]))]
                self._table(layers, found.shares[kind].numpy().T)
        if found.heads is not None:
            print(f"\nThe output of one head (z), at all {self.units}:")
            values = found.heads.numpy()
            names = [f"H{head}" for head in range(values.shape[1])]
            screen.print_table(["", *names], [(f"L{i}", *self._cells(row)) for i, row in enumerate(values)])
        if found.one:
            print()
            self._table(list(found.one), np.stack([values[:-1].numpy() for values in found.one.values()], axis=1))
            for name, values in found.one.items():
                share = float(values[-1])
                nats = f"{share * found.difference:+.3f} nats"
                print(f"{name} at all {self.units} at once: {nats if found.caution else f'{share:.3f} ({nats})'}")

    def _table(self, columns: Sequence[str], values: np.ndarray) -> None:
        """One line for each token at which some value [pos, column] is not next to 0."""
        seen = np.abs(values * self.patching.difference if self.patching.caution else values).max(axis=1)
        kept = np.flatnonzero(seen >= SHOWN_FROM).tolist()
        rows = [(self._label(i), *self._cells(values[i])) for i in kept]
        if rows:
            screen.print_table([self.of[1], *columns], rows)
        if len(kept) < len(values):
            print(
                f"({len(values) - len(kept)} of {len(values)} {self.units} left out: closer to 0 than {SHOWN_FROM:g})"
            )

    def _cells(self, shares: np.ndarray) -> "list[str | Text]":
        """Each share, and the nats that it is; nats alone where there is nothing to carry."""
        found = self.patching
        return [_cell(None if found.caution else float(x), float(x) * found.difference) for x in shares]

    def _label(self, position: int) -> str:
        """A token, and the other's where it differs."""
        one, other = (screen.token(x[position]) for x in (self.patching.tokens, self.patching.others))
        return f"'{one}'" if one == other else f"'{one}' < '{other}'"


def _cell(share: float | None, nats: float) -> "str | Text":
    from rich.text import Text

    in_nats = f"{nats:+.2f}" if abs(nats) >= SHOWN_FROM else "0.00"
    if share is None:
        return in_nats
    written = f"{share:.2f} ({in_nats})" if abs(share) >= SHOWN_FROM else "0.00 (0.00)"
    return Text(written, style=f"on {heat.hue(share)}" if sys.stdout.isatty() else "")


def look(
    run: "Run",
    text: str,
    other: str,
    answers: Sequence[str] | None,
    address: str | None,
    at: int | None = None,
    *,
    estimate: bool = False,
) -> PatchedShown:
    """Patch activations of `other` into `text` under the weights of step `at`: all layers, or one address.

    Raises UserError and AddressError as `Run.patch` does.
    """
    from rich.console import Console
    from rich.progress import Progress

    with Progress(
        console=Console(file=screen.terminal(sys.stderr)), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        line = bar.add_task("patching", total=None)
        found = run.patch(
            text,
            other,
            answers=answers,
            addresses=[address] if address else [],
            at=at,
            estimate=estimate,
            progress=lambda done, of: bar.update(line, completed=done, total=of),
        )
    classes = run.config.model.classes
    name = classes.__getitem__ if classes else run.tokenizer.token  # type: ignore[union-attr]
    a, b = found.answers
    of = ("image", "patch") if run.task.reads == "images" else ("text", "token")
    return PatchedShown(found, (name(a), name(b)), MIXES[run.config.model.resolved().layout.mixer], of)
