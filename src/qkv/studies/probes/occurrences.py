"""Every occurrence of a token in validation text with its vector at every layer: what probes of vectors measure on.

Layer 0 is what enters the first block (the row of W_E with its position), layer i what leaves block i. The windows are
those that the task itself is measured on: of a text side by side, of labelled texts one each. What a masked task hides
is shown, unless hiding is asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv.randomness import generator
from qkv.studies.engine.training_log import Finished
from qkv.tasks.batch import Batch
from qkv.tasks.masked import Masked

_TOKENS_AT_ONCE = 2048


@dataclass(frozen=True, kw_only=True, eq=False)
class Occurrences:
    """Tokens in their contexts."""

    ids: np.ndarray
    """int64 [n]: the token that stands there, hidden or not."""
    windows: np.ndarray
    """int64 [n]: the number of the window (or text) that it stands in."""
    vectors: np.ndarray
    """float32 [layer, n, d_model]; the first is what enters the first block."""


@torch.no_grad()
def occurrences(finished: Finished, most: int, *, hide: float = 0.0, draws: int = 1) -> Occurrences:
    """The occurrences in about the first `most` validation tokens.

    With `hide` that share of tokens shows [MASK], the model sees the rest, and the hidden places alone are given, in
    `draws` drawings of them.
    """
    corpus = finished.corpus
    mask_id = corpus.tokenizer.special["[MASK]"] if hide else -1
    parts = []
    for first, batch in _batches(finished, most):
        tokens, real = _shown(finished, batch)
        windows = first + _windows(batch)
        for draw in range(draws):
            chosen = real
            inputs = tokens
            if hide:
                keys = generator("occurrences", first, draw).random(tuple(tokens.shape))
                chosen = real & torch.from_numpy(keys < hide)
                inputs = torch.where(chosen, mask_id, tokens)
            vectors = _vectors(finished, batch, inputs)
            parts.append((tokens[chosen], windows[chosen], vectors[:, chosen]))
    ids, where = (torch.cat([part[i] for part in parts]).numpy() for i in range(2))
    return Occurrences(ids=ids, windows=where, vectors=torch.cat([part[2] for part in parts], dim=1).numpy())


def _batches(finished: Finished, most: int) -> Iterator[tuple[int, Batch]]:
    """(number of the first window, batch) until there are `most` tokens."""
    sizes = finished.model.config.sizes
    at_once, read, first = max(1, _TOKENS_AT_ONCE // sizes.n_ctx), 0, 0
    for batch in finished.parts.task.val_batches(finished.corpus, sizes, at_once):
        if read >= most:
            return
        yield first, batch
        read += batch.inputs.numel()
        first += int(_windows(batch).max()) + 1


def _windows(batch: Batch) -> Tensor:
    """The window of each position within the batch, int64 [batch, pos]: rows, or texts where rows hold several."""
    if batch.places is not None and batch.documents is not None:
        return batch.documents
    return torch.arange(len(batch.inputs))[:, None].expand(batch.inputs.shape)


def _shown(finished: Finished, batch: Batch) -> tuple[Tensor, Tensor]:
    """The tokens that stand there, int64 [batch, pos], and which of them are real ones and no special ones, bool."""
    tokens = batch.inputs
    if isinstance(finished.parts.task, Masked):
        assert batch.positions is not None
        tokens = tokens.flatten().scatter(0, batch.positions, batch.targets).view(tokens.shape)
    special = torch.tensor(sorted(finished.corpus.tokenizer.special.values()), dtype=torch.int64)
    real = torch.ones_like(tokens, dtype=torch.bool) if batch.mask is None else batch.mask
    return tokens, real & ~torch.isin(tokens, special)


def _vectors(finished: Finished, batch: Batch, inputs: Tensor) -> Tensor:
    """float32 [layer, batch, pos, d_model]."""
    model, kept = finished.model, {}
    names = ["embed", *(f"L{layer}.resid_post" for layer in range(model.config.sizes.n_layers))]

    def hook(name: str, x: Tensor) -> Tensor:
        if name in names:
            kept[name] = x
        return x

    packed = batch.places is not None  # then padding is a document of its own
    model.hidden(inputs, mask=None if packed else batch.mask, documents=batch.documents, hook=hook)
    return torch.stack([kept[name] for name in names])
