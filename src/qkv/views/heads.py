"""What a page carries of attention: every head's pattern on a chosen text, and where that head mostly looks.

Patterns come from the model's own recorded forward pass, are kept in 256 steps (causal ones as lower triangles), and
each summary stands beside what even attention over the same tokens would give: its null.
"""

from collections.abc import Sequence

import numpy as np
import torch

from qkv.views.packed import pack
from qkv.views.payloads import AttentionText, Cell, HeadNote

__all__ = ["attention_text", "head_notes", "longest_in"]

LONGEST = 128
"""Tokens of a text of which a page is sent every number; longer texts are cut and that is said."""
PATTERN_BYTES = 2_900_000
"""Room for the patterns of one text at one step, as text in the page."""


def longest_in(n_heads: int, *, causal: bool) -> int:
    """How many tokens of a text fit the page with `n_heads` heads in all: one byte a number, four thirds as text."""
    fits = (n for n in range(LONGEST, 1, -1) if _cells(n, causal) * n_heads * 4 / 3 <= PATTERN_BYTES)
    return next(fits, 2)


def _cells(n: int, causal: bool) -> int:
    return n * (n + 1) // 2 if causal else n * n


def attention_text(
    tokens: Sequence[str],
    patterns: Sequence[Sequence[np.ndarray]],
    *,
    steps: Sequence[int],
    origin: str,
    causal: bool,
) -> AttentionText:
    """One text as payload.

    `patterns` has for each of `steps` one array [head, query_pos, key_pos] per layer, rows summing to 1, the same
    number of heads in each.
    """
    n, n_layers = len(tokens), len(patterns[0])
    stacked = np.stack([np.stack(layers) for layers in patterns]).astype(np.float64)
    assert stacked.shape[3:] == (n, n), f"patterns {stacked.shape} of a text of {n} tokens"
    kept = stacked[:, :, :, *np.tril_indices(n)] if causal else stacked
    notes = (head_notes(layer, found, causal) for layers in patterns for layer, found in enumerate(layers))
    return AttentionText(
        tokens=tuple(tokens),
        origin=origin,
        steps=tuple(steps),
        patterns=pack(np.clip(kept, 0.0, 1.0), as_bytes=True),
        causal=causal,
        n_layers=n_layers,
        n_heads=stacked.shape[2],
        heads=tuple(note for layer in notes for note in layer),
    )


def head_notes(layer: int, pattern: np.ndarray, causal: bool) -> list[HeadNote]:
    """Mean shares of attention on the first, the own, the previous and (not causal) the next token, and the entropy.

    `pattern` is [head, query_pos, key_pos]. Positions where the named token does not exist, or is the own or previous
    one, are left out of that mean. Entropy is H = -sum p ln p in nats, averaged over query positions, with 0 ln 0 = 0;
    its null is the entropy of even attention, the mean over positions of ln(number of keys in sight).
    """
    n_heads, n = pattern.shape[:2]
    in_sight = np.arange(1, n + 1) if causal else np.full(n, n)
    even = 1.0 / in_sight
    positions = np.arange(n)
    notes = []
    for head in range(n_heads):
        p = np.asarray(pattern[head])
        looks = {"itself": (positions, positions)}
        if n > 2:
            looks["the previous"] = (positions[1:], positions[1:] - 1)
            looks["the first"] = (positions[2:], np.zeros(n - 2, dtype=int))
            if not causal:
                looks["the next"] = (positions[:-1], positions[:-1] + 1)
        shares = tuple(
            Cell(name=name, share=float(p[q, k].mean(dtype=np.float64)), even=float(even[q].mean()))
            for name, (q, k) in looks.items()
        )
        entropy = torch.special.entr(torch.from_numpy(p)).sum(1, dtype=torch.float64).mean()
        notes.append(
            HeadNote(
                layer=layer,
                head=head,
                shares=shares,
                entropy_nats=float(entropy),
                even_entropy_nats=float(np.log(in_sight).mean()),
            )
        )
    return notes
