"""`qkv show RUN [ADDR] --text TEXT`: where heads look, and activations on a text."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from qkv.commands.printing import heat, screen
from qkv.commands.printing.gradient_table import direct_json, path_json, print_direct, print_lens, print_path
from qkv.errors import AddressError, UserError, unknown
from qkv.inspection.attribution import no_sum
from qkv.jsontypes import JsonObject
from qkv.models.activations import parse_activation
from qkv.models.addresses import ACTIVATIONS, parse_address
from qkv.models.layout import Sizes
from qkv.tasks.image import one_image
from qkv.views.sections.heads import head_notes
from qkv.words import figure, many

if TYPE_CHECKING:
    from qkv.api import Run
    from qkv.inspection.attribution import Direct
    from qkv.inspection.lens import LensLayer
    from qkv.instruments.gradients import GradientPath
    from qkv.tokenizers.tokenizer import Tokenizer
    from qkv.views.sections.heads import HeadNote

WIDEST = 8
"""Components of an activation that are printed as figures."""


@dataclass(frozen=True)
class HeadsShown:
    """Every head's pattern on one text."""

    tokens: list[str]
    patterns: list[np.ndarray]
    """Per layer [head, query_pos, key_pos]."""
    notes: "list[HeadNote]"
    path: "GradientPath | None"
    """How the text's loss pulls at it; None where nothing is asked of so short a text, or by this task."""
    lens: "list[LensLayer]"
    """What each layer would answer; empty where there is no path."""
    direct: "Direct | None"
    """Who writes the answer; None where it is no sum of what the parts write, or nothing is asked."""
    tokenizer: "Tokenizer | None"
    no_sum: str = ""
    """The setting for which the answer is no sum."""

    def as_json(self) -> JsonObject:
        """Tokens, and for each head its pattern, its mean shares and its entropy with their nulls."""
        heads = [
            {
                "address": f"L{note.layer}.H{note.head}.pattern",
                "shares": {cell.name: {"share": cell.share, "even": cell.even} for cell in note.shares},
                "entropy_nats": note.entropy_nats,
                "even_entropy_nats": note.even_entropy_nats,
                "pattern": self.patterns[note.layer][note.head],
            }
            for note in self.notes
        ]
        path = None if self.path is None or self.tokenizer is None else path_json(self.path, self.tokenizer)
        lens = [dict(vars(layer)) for layer in self.lens]
        wrote = None if self.direct is None or self.tokenizer is None else direct_json(self.direct, self.tokenizer)
        return {
            "tokens": self.tokens,
            "heads": heads,
            "gradient_path": path,
            "logit_lens": lens,
            "direct_attribution": wrote,
        }

    def print(self) -> None:
        """One small map per head, then the table of where each looks."""
        print("Tokens: " + " ".join(screen.token(token) for token in self.tokens))
        if self.notes:
            self._print_heads()
        else:
            print("This model has no attention: there are no heads to show.")
        if self.path is not None and self.tokenizer is not None:
            print()
            print_path(self.path, self.tokenizer)
            print()
            print_lens(self.lens, self.tokenizer, self.tokens)
        if self.direct is not None and self.tokenizer is not None:
            print()
            print_direct(self.direct, self.tokenizer, self.tokens)
        elif self.no_sum:
            print(f"\nWith {self.no_sum}, the answer is no sum of what each part writes, so there is no table of it.")

    def _print_heads(self) -> None:
        print("Each map has one row per query token and one column per key token; bright means attended to.\n")
        heat.draw_patterns((f"L{n.layer}.H{n.head}", self.patterns[n.layer][n.head]) for n in self.notes)
        names = [cell.name for cell in self.notes[0].shares]
        rows = [
            (f"L{note.layer}.H{note.head}", *(f"{cell.share:.2f}" for cell in note.shares), f"{note.entropy_nats:.2f}")
            for note in self.notes
        ]
        nulls: dict[tuple[str, ...], int] = {}
        for note in self.notes:
            cells = (*(f"{c.even:.2f}" for c in note.shares), f"{note.even_entropy_nats:.2f}")
            nulls.setdefault(cells, note.layer)
        rows += [(f"uniform attention{f', as in L{at}' if len(nulls) > 1 else ''}", *c) for c, at in nulls.items()]
        screen.print_table(["share of attention on", *names, "entropy, nats"], rows)


@dataclass(frozen=True)
class ActivationShown:
    """One activation on one text."""

    address: str
    tokens: list[str]
    values: np.ndarray
    """[pos, components], or [query_pos, key_pos] for scores and pattern."""
    by_key: bool
    keys: list[str] | None = None
    """The tokens of key positions; None where they are `tokens`."""

    def as_json(self) -> JsonObject:
        """Tokens and values."""
        keys = {} if self.keys is None else {"keys": self.keys}
        return {"address": self.address, "tokens": self.tokens, "values": self.values} | keys

    def print(self) -> None:
        """A line of figures for each token, then the whole as a map."""
        print(f"{self.address}  [{', '.join(map(str, self.values.shape))}]\n")
        labels = [screen.token(token) for token in self.tokens]
        keys = labels if self.keys is None else [screen.token(token) for token in self.keys]
        width = len(keys) if self.by_key else min(WIDEST, self.values.shape[1])
        columns = keys if self.by_key else [f"[{i}]" for i in range(width)]
        norms = [] if self.by_key else [[figure(float(n))] for n in np.linalg.norm(self.values, axis=1)]
        rows = [
            (label, *(norms[i] if norms else []), *(figure(float(v)) for v in self.values[i, :width]))
            for i, label in enumerate(labels)
        ]
        screen.print_table(["query" if self.by_key else "token", *(["norm"] if norms else []), *columns], rows)
        print()
        heat.draw(heat.blocks(self.values, 48, screen.console().width - 2))


def look(run: "Run", text: str, address: str | None, at: int | None = None) -> HeadsShown | ActivationShown:
    """Run the model, or its snapshot of step `at`, once on `text` and take every head's pattern, or one activation.

    For a model of images `text` is the path of one.

    Raises UserError for a text that is empty or longer than the context, AddressError for what is not an activation,
    SourceError for an image that cannot be read.
    """
    of_image = run.task.reads == "images"
    inputs, tokens = one_image(Path(text), run.config.model) if of_image else words_of(run, text)
    with torch.no_grad():
        _, record = run.model_at(at).forward_recorded(inputs)
    if address is not None:
        return activation_shown(record, address, run.config.model.sizes, tokens)
    patterns = [record[name][0].float().numpy() for name in record if name.endswith(".pattern")]
    causal, layout = run.model.reader.causal, run.config.model.layout
    notes = [n for layer, pattern in enumerate(patterns) for n in head_notes(layer, pattern, causal, layout=layout)]
    if run.tokenizer is None:
        return HeadsShown(tokens, patterns, notes, None, [], None, None)
    try:
        path, lens = run.gradient_path(text, at=at), run.logit_lens(text, at=at)
    except UserError:  # one token alone, or a task that asks nothing of tokens: there is attention, but no loss
        path, lens = None, []
    try:
        wrote, why = run.attribution(text, at=at), no_sum(layout)
    except UserError:  # a masked model is asked at one [MASK]
        wrote, why = None, ""
    return HeadsShown(tokens, patterns, notes, path, lens, wrote, run.tokenizer, why)


def words_of(run: "Run", text: str) -> tuple[torch.Tensor, list[str]]:
    """Ids [1, pos] of a text, and its tokens."""
    if run.tokenizer is None:
        raise UserError(f"{run.path} has no tokenizer, so it cannot read a text; leave --text out")
    ids = run.tokenizer.encode_whole(text, special=run.task.marks)
    n_ctx = run.config.model.sizes.n_ctx
    if not 0 < len(ids) <= n_ctx:
        raise UserError(f"the text has {many(len(ids), 'token')}; this model reads 1 to {n_ctx}")
    return torch.as_tensor(np.asarray(ids, dtype=np.int64))[None], [run.tokenizer.token(int(i)) for i in ids]


def activation_shown(
    record: dict[str, torch.Tensor], address: str, sizes: Sizes, tokens: list[str], keys: list[str] | None = None
) -> ActivationShown:
    """One recorded activation of `tokens`; `keys` are those at key positions, where they are others.

    Raises AddressError for what is not recorded, and as `activation_values` does.
    """
    parsed = parse_address(address)
    name, by_key = str(replace(parsed, head=None)), parsed.name in ("scores", "pattern")
    if name not in record:
        raise AddressError(f"{unknown('activation', address, record)} A matrix is shown without --text.")
    values = activation_values(record[name][0].float(), name, address, sizes)
    return ActivationShown(address, tokens, values, by_key, keys if by_key else None)


def activation_values(value: torch.Tensor, name: str, address: str, sizes: Sizes) -> np.ndarray:
    """One activation of one text as [pos, components] or [query_pos, key_pos]; `name` is that of all its heads.

    Raises AddressError for a head that it has not, or where one must be named.
    """
    given = parse_address(address).head
    if given is not None and given[1] >= sizes.n_heads:
        raise AddressError(f"{name} has heads 0 to {len(value) - 1}; given: {address}")
    head, (stem, _, part) = parse_activation(address, [name], sizes)[1], name.rpartition(".")
    if head is not None:
        value = value[head]
    elif part in ("scores", "pattern"):
        raise AddressError(f"{name} has {len(value)} heads; name one: {stem}.H0.{part}")
    elif ACTIVATIONS.get(part) == "head":
        value = value.transpose(0, 1).flatten(1)
    return value.numpy()
