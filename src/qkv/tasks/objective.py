"""What the language tasks share: the loss of a batch at the positions that have a target, and the random-label null.

The output matrix is applied to the hidden vectors of those positions only. Positions are gathered by `F.embedding`,
whose backward adds in a fixed order (tensor indexing does not, with more than one thread); so does that of its sparse
form, which a large tied table gets.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.tokens import Tokens
from qkv.randomness import generator
from qkv.tasks.batch import Batch, rows_of
from qkv.tasks.crossentropy import linear_cross_entropy, token_scores
from qkv.tasks.figures import Scores
from qkv.tasks.task import Drop

__all__ = ["batch_loss", "batch_scores", "output_matrix", "random_targets"]


def output_matrix(model: Any) -> tuple[Tensor, Tensor | None]:
    """(W_U [d_model, d_vocab], b_U [d_vocab] or None) of a language model; a tied W_U is the transposed view of W_E."""
    own = model.head.W_U
    return (model.embedding.W_E.t() if own is None else own), model.head.b_U


def batch_loss(model: Any, batch: Batch, drop: Drop | None = None) -> tuple[Tensor, int]:
    """(sum over targets of -log softmax(h W_U + b_U)[target], number of targets), the sum a float32 scalar in nats."""
    h, own = _answering(model, batch, drop), model.head.W_U
    weight = model.embedding.W_E if own is None else own  # W_E itself: rows that were read are added to its gradient
    nats = linear_cross_entropy(h, weight, model.head.b_U, batch.targets, is_table=own is None)
    return nats, batch.n_targets


def batch_scores(model: Any, batch: Batch) -> Scores:
    """Each target's own nats and whether it is the model's most probable answer; no gradient, no dropout."""
    with torch.no_grad():
        weight, bias = output_matrix(model)
        return Scores(*token_scores(_answering(model, batch, None), weight, bias, batch.targets), rows_of(batch))


def _answering(model: Any, batch: Batch, drop: Drop | None) -> Tensor:
    """What W_U is applied to at the positions that have a target: [n_targets, d_model]."""
    inputs = _rows(model, batch.inputs)
    h = model.hidden(inputs, mask=batch.mask, documents=batch.documents, drop=drop).flatten(0, 1)
    return model.head.transformed(h if batch.positions is None else F.embedding(batch.positions, h))


def _rows(model: Any, ids: Tensor) -> Tensor:
    """Rows of W_E [batch, pos, d_model] where a table is tied and large, else the ids, for the model to take them.

    The gradient of a tied W_E is dense, by way of the output; the rows that were read then join it one by one instead
    of as a second table of zeros.
    """
    table = model.embedding.W_E
    if model.head.W_U is not None or ids.device.type != "cpu" or table.shape[0] <= ids.numel():
        return ids
    if not (torch.is_grad_enabled() and table.requires_grad) or torch.compiler.is_compiling():
        return ids
    return F.embedding(ids, table, sparse=True)


def random_targets(
    tokens: Tokens, seed: int, step: int, examples: np.ndarray, n: int, never: np.ndarray | None = None
) -> np.ndarray:
    """Labels that no input can tell: int64 [batch, n] tokens, each taken from a uniformly random place in `tokens`.

    A place of a token that is `never` a target (bool [d_vocab], not true of all tokens there are) is drawn anew.
    So they follow the unigram distribution of the training tokens exactly and independently of everything else; what is
    left to learn is that distribution. (A shuffle of a batch's own targets would not do: rare words of a window would
    stay likelier among its targets.) A pure function of (seed, step, global example index).
    """
    rows = []
    for example in examples:
        stream = generator(seed, "random labels", step, int(example))
        row = tokens.ids.take(stream.integers(len(tokens), size=n)).astype(np.int64)
        while never is not None and (again := np.flatnonzero(never[row])).size:
            row[again] = tokens.ids.take(stream.integers(len(tokens), size=again.size))
        rows.append(row)
    return np.stack(rows)
