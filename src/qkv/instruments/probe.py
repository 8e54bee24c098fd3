"""The fixed text on which attention is looked at: the same windows at every step, so that only the model changes.

Some windows of the validation text for what heads do on it, and random tokens that repeat once for the induction
score. The probe runs a forward pass of its own, without gradient, and takes q and k of each layer before the fused
attention: nothing of the training is hooked, no random number of its is drawn, no table of scores is made.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.instruments.attention_stats import STATISTICS, attention_stats, induction_score
from qkv.randomness import generator

__all__ = ["INDUCTION", "Probe"]

INDUCTION = "induction"
TOKENS = 256
"""At least one window of the text, and as many as fit into this many tokens."""
REPEATED = 128
"""The repeated text has at most this many tokens."""


@dataclass(frozen=True)
class Probe:
    """What is run: a batch of the task's, and token ids that repeat; None where the model takes none."""

    batch: Any
    repeated: Tensor | None
    """int64 [1, 2 * period]"""

    @staticmethod
    def of(task: Any, corpus: Any, model: Any, seed: int) -> "Probe | None":
        """The probe of a training; None for a model without attention of the kind that is known here."""
        sizes = getattr(model, "sizes", None)
        if corpus is None or not (
            hasattr(model, "hidden") and hasattr(model, "blocks") and sizes is not None and sizes.n_ctx > 1
        ):
            return None
        batch = next(iter(task.val_batches(corpus, sizes, max(1, TOKENS // sizes.n_ctx))), None)
        if batch is None:
            return None
        period, repeated = min(sizes.n_ctx, REPEATED) // 2, None
        if sizes.d_vocab and period > 1 and not batch.inputs.is_floating_point():
            special = set((getattr(getattr(corpus, "tokenizer", None), "special", None) or {}).values())
            ordinary = np.array([i for i in range(sizes.d_vocab) if i not in special])
            once = generator("probe", "repeated", seed).choice(ordinary, size=period)
            repeated = torch.from_numpy(np.concatenate([once, once]))[None]
        return Probe(batch, repeated)

    def addresses(self, model: Any) -> list[tuple[str, int, int]]:
        """(address, layer, head) of every pattern that `read` speaks of, in its order."""
        return [
            (f"{block.name}.H{head}.pattern", block.layer, head)
            for block in model.blocks
            for head in range(block.attention.n_heads)
        ]

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of what `read` gives."""
        return (*STATISTICS, INDUCTION) if self.repeated is not None else STATISTICS

    @torch.no_grad()
    def read(self, model: Any) -> np.ndarray:
        """Every statistic of every head now: float64 [measure, head], NaN where undefined."""
        device = next(model.parameters()).device
        batch, causal, layers = self.batch.to(device), bool(model.causal), []
        masks = {"mask": batch.mask, "documents": batch.documents}
        for q, k, scale in _queries_keys(model, batch.inputs, **masks):
            found = attention_stats(q, k, scale=scale, causal=causal, documents=batch.documents, keys=batch.mask)
            layers.append(np.stack([found[name] for name in STATISTICS]))
        values = np.concatenate(layers, axis=1)
        if self.repeated is None:
            return values
        period = self.repeated.shape[1] // 2
        scores = [
            induction_score(q, k, scale=scale, period=period, causal=causal)
            for q, k, scale in _queries_keys(model, self.repeated.to(device))
        ]
        return np.concatenate([values, np.concatenate(scores)[None]])


def _queries_keys(model: Any, inputs: Tensor, **masks: Any) -> Iterator[tuple[Tensor, Tensor, float]]:
    """q, k and scale of each layer, in order, from one forward pass in evaluation mode's formulas."""
    found: list[tuple[Tensor, Tensor, float]] = []

    def see(block: Any, x: Tensor) -> None:
        attention = block.attention
        h = block.norm1(x) if block.pre and block.norm1 is not None else x
        found.append((attention.queries(h), attention.keys_values(h)[0], attention.scale))

    model.hidden(inputs, see=see, **{name: value for name, value in masks.items() if value is not None})
    yield from found
