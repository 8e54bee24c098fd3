"""`qkv show RUN [ADDR] --text "SOURCE => TARGET"`: which source tokens each target token looks at.

Cross-attention at target position i chooses token i + 1, so each row is labelled by the token that it predicts. It is
often read as an alignment; nothing in training asks it to be one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from qkv.commands.printing import heat, screen
from qkv.commands.show.text import ActivationShown, activation_shown
from qkv.data.pairs import ARROW, encode_lines, line_of, start_of
from qkv.errors import UserError
from qkv.jsontypes import JsonObject
from qkv.models.addresses import parse_address
from qkv.tasks import PredictOptions

if TYPE_CHECKING:
    from qkv.api import Run


@dataclass(frozen=True)
class AlignmentShown:
    """The cross-attention of every layer and head on one pair."""

    source: list[str]
    target: list[str]
    """The tokens predicted at each position."""
    patterns: list[np.ndarray]
    """Per layer [head, target_pos, source_pos]; rows sum to 1."""
    translated: bool
    """Whether the target is the model's own translation."""

    @property
    def mean(self) -> np.ndarray:
        """Over layers and heads, [target_pos, source_pos]."""
        return np.concatenate(self.patterns).mean(0)

    def by_head(self) -> Iterator[tuple[str, np.ndarray]]:
        """(dec.L0.cross.H0, its pattern), ..."""
        for layer, found in enumerate(self.patterns):
            yield from ((f"dec.L{layer}.cross.H{head}", pattern) for head, pattern in enumerate(found))

    def as_json(self) -> JsonObject:
        """Both sides' tokens, the mean over heads, the likeliest link of each target token, every head's pattern."""
        heads = [{"address": f"{name}.pattern", "pattern": pattern} for name, pattern in self.by_head()]
        return {
            "source": self.source,
            "target": self.target,
            "translated": self.translated,
            "mean": self.mean,
            "alignment": [[i, int(j)] for i, j in enumerate(self.mean.argmax(1))],
            "heads": heads,
        }

    def print(self) -> None:
        """The mean over heads as a table of links and a map, then a small map of every head."""
        mean = self.mean
        what = "its own translation" if self.translated else "the given target"
        print(f"What {what} attends to in the source: the mean of {len(np.concatenate(self.patterns))} heads.\n")
        rows = []
        for word, shares in zip(self.target, mean, strict=True):
            first, second = np.argsort(-shares, kind="stable")[[0, min(1, len(shares) - 1)]]
            first_word, second_word = (screen.token(self.source[i]) for i in (first, second))
            rows.append((screen.token(word), first_word, f"{shares[first]:.2f}", second_word))
        screen.print_table(["predicted token", "attends most to", "share", "then to"], rows)
        print(
            f"\nUniform attention would give each of the {len(self.source)} source tokens {1 / len(self.source):.2f}."
        )
        print("Each map has one row per predicted token and one column per source token; bright means attended to.\n")
        heat.draw_patterns(self.by_head())


def look(run: "Run", text: str, address: str | None, at: int | None = None) -> AlignmentShown | ActivationShown:
    """Run the model, or its snapshot of step `at`, on a pair and take every head's cross-attention, or one activation.

    Raises UserError for a side that is empty or longer than the context, AddressError for what is not an activation.
    """
    tokenizer, (source, arrow, target) = run.tokenizer, text.partition(ARROW)
    assert tokenizer is not None, "a translation run has a tokenizer"
    if not source.strip() or (arrow and not target.strip()):
        raise UserError(f'{text!r} has an empty side; type --text "SOURCE {ARROW} TARGET", or a source alone')
    model = run.model_at(at)
    if not arrow:
        target = run.task.predict(model, tokenizer, [source], PredictOptions())[0]
    cut = ((source, tokenizer.of_source), (target, tokenizer))
    sides = [encode_lines(cutter, [line_of(side)])[0] for side, cutter in cut]
    n_ctx = run.config.model.sizes.n_ctx
    for side, name in zip(sides, ("source", "target"), strict=True):
        if len(side) > n_ctx:
            raise UserError(f"the {name} has {len(side)} tokens; this model reads {n_ctx}")
    inputs = np.concatenate([[start_of(tokenizer)], sides[1][:-1]])
    with torch.no_grad():
        _, record = model.forward_recorded(*(torch.from_numpy(ids[None]) for ids in (sides[0], inputs)))
    read, entered, predicted = ([tokenizer.token(int(i)) for i in ids] for ids in (sides[0], inputs, sides[1]))
    if address is not None:
        parsed = parse_address(address)
        of_source = parsed.scope == "enc" or (parsed.cross and parsed.name in ("k", "v"))
        keys = read if parsed.scope == "enc" or parsed.cross else entered
        return activation_shown(record, address, run.config.model.sizes, read if of_source else entered, keys)
    names = [f"dec.L{layer}.cross.pattern" for layer in range(run.config.model.sizes.n_layers)]
    return AlignmentShown(read, predicted, [record[name][0].float().numpy() for name in names], not arrow)
