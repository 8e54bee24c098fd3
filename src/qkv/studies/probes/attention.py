"""What attention of a trained model does: the roles of W_Q, W_K and W_V, how sharp its rows are, what a head is worth.

Angles and symmetry are of each head and of the function: no change of a head's basis alters the space that a factor
reads, nor the product W_Q W_K^T. Losses with an altered attention are over the whole validation part by the explicit
path, less the loss by the same path, so that nothing but the alteration is in the difference.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.instruments.attention_stats import STATISTICS
from qkv.instruments.gradients import Instead
from qkv.instruments.measures import subspace_angle, symmetric_share
from qkv.instruments.probe import Probe, fixed_batch
from qkv.models.matrices import Catalogue
from qkv.studies.engine.training_log import Finished
from qkv.tasks.batch import Batch

_WINDOWS = 32
"""Windows of the validation part that patterns are read on."""
_ABLATED_WINDOWS = 64
"""Windows of the validation part that heads are ranked on; models without some are scored on as many behind them."""
_AT_A_TIME = 8


# roles


@torch.no_grad()
def roles(finished: Finished) -> dict[str, float]:
    """Whether W_Q, W_K and W_V read different things of x, and whether it matters which of two tokens asks.

    `angle QK` and so on: mean over heads of the angle in degrees between what two factors read; random spaces are
    arccos(sqrt(d_head / d_model)) apart; not there for a head as wide as the model, which reads everything.
    `symmetric share`: mean over heads of the share of |W_Q W_K^T|^2 in its symmetric part; 0.5 for a random product, 1
    where q = k. `exchanged`: loss with W_Q and W_K in each other's place, less the loss, 0 where scores are symmetric.
    `symmetric part` and `antisymmetric part`: loss with that part of W_Q W_K^T alone, less the loss.
    """
    catalogue, sizes = finished.parts.catalogue, finished.model.config.sizes
    heads = [f"L{layer}.H{head}" for layer in range(sizes.n_layers) for head in range(sizes.n_heads)]
    each = {
        f"angle {a}{b}": [subspace_angle(catalogue.view(f"{h}.W_{a}"), catalogue.view(f"{h}.W_{b}")) for h in heads]
        for a, b in ("QK", "QV", "KV")
    }
    each["symmetric share"] = [symmetric_share(catalogue.circuit(f"{head}.QK").product()) for head in heads]
    known = {name: [value for value in values if value is not None] for name, values in each.items()}
    found = {name: float(np.mean(values)) for name, values in known.items() if values}
    usual = _loss_of(finished, lambda own, other, asks: own)
    return found | {name: _loss_of(finished, change) - usual for name, change in _SCORES.items()}


Change = Callable[[Tensor, Tensor, bool], Tensor]
"""(q, k of the same x, True) -> what stands for q; (k, q, False) -> what stands for k; [batch, head, pos, width]."""


def _part(sign: int) -> Change:
    """(q k^T + sign k q^T) / 2, as one product of vectors twice as wide."""
    return lambda own, other, asks: torch.cat((own, sign * other if asks else other), dim=-1) / (2 if asks else 1)


_SCORES: Mapping[str, Change] = {
    "exchanged": lambda own, other, asks: other,
    "symmetric part": _part(1),
    "antisymmetric part": _part(-1),
}
"""Quantity -> which scores it is of."""


def _loss_of(finished: Finished, change: Change) -> float:
    """Validation loss, q and k of every attention replaced; both are linear in x, so any mixture is a bilinear form."""
    model = finished.model
    attention, x = {block.name: block.attention for block in model.blocks}, {}

    def hook(name: str, tensor: Tensor) -> Tensor:
        layer, _, what = name.partition(".")
        if what == "x":
            x[layer] = tensor
        elif what == "q":
            return change(tensor, attention[layer].keys(x[layer]), True)
        elif what == "k":
            return change(tensor, attention[layer].queries(x[layer]), False)
        return tensor

    return _scored(Instead(model, hook=hook), finished.parts.task, finished.val_batches())


def _scored(model: Any, task: Any, batches: Iterator[Batch] | Sequence[Batch]) -> float:
    """Nats per target."""
    pairs = [task.loss(model, batch) for batch in batches]
    return sum(float(nats) for nats, _ in pairs) / sum(n for _, n in pairs)


# rows of the patterns


@torch.no_grad()
def patterns(finished: Finished) -> dict[str, float]:
    """How sharp rows of attention are, over heads and layers, on fixed windows of the validation part.

    `entropy share`: mean entropy in shares of what rows that weigh everything alike have, 0 (one key) to 1.
    `saturated`: share of rows with one key above 0.9. `largest score`: before softmax, as it enters it.
    """
    batch = fixed_batch(finished.parts.task, finished.corpus, finished.model.config.sizes, _WINDOWS)
    assert batch is not None
    probe = Probe(batch, None)
    read = dict(zip(STATISTICS, probe.read(finished.model), strict=True))
    even = copy.deepcopy(finished.model)
    for entry in Catalogue(even):
        if entry.kind == "W_Q":
            entry.parameter.zero_()
    most = dict(zip(STATISTICS, probe.read(even), strict=True))["entropy"]
    return {
        "entropy share": float(read["entropy"].mean() / most.mean()),
        "saturated": float(read["dominant_rows"].mean()),
        "largest score": float(read["largest_score"].max()),
    }


# heads


@torch.no_grad()
def ablation(finished: Finished) -> dict[str, float]:
    """What heads are worth to the finished model: loss without some of them, less the loss.

    A head is taken away by its W_O = 0. `one head`: the mean over single heads. `dearest head`: the loss of the one
    that is dearest. `pruned`: with only the dearest head of every layer left (Michel, Levy and Neubig 2019, arXiv
    1905.10650). Which are dearest is found on windows of their own: the best of several on the windows that they were
    chosen on looks better than it is. Raises SourceError for a text without windows for both.
    """
    task, sizes = finished.parts.task, finished.model.config.sizes
    to_rank, to_score = ranked_and_scored(finished)

    def cost(gone: Sequence[str], batches: Sequence[Batch]) -> float:
        usual = _scored(finished.model, task, batches)
        with replaced([(finished.parts.catalogue.view(head), torch.zeros(())) for head in gone]):
            return _scored(finished.model, task, batches) - usual

    layers = [[f"L{layer}.H{head}.W_O" for head in range(sizes.n_heads)] for layer in range(sizes.n_layers)]
    costs = {head: cost((head,), to_rank) for layer in layers for head in layer}
    dearest = {max(layer, key=costs.__getitem__) for layer in layers}
    return {
        "one head": float(np.mean(list(costs.values()))),
        "dearest head": cost((max(costs, key=costs.__getitem__),), to_score),
        "pruned": cost([head for head in costs if head not in dearest], to_score),
    }


def ranked_and_scored(finished: Finished) -> tuple[list[Batch], list[Batch]]:
    """Windows of the validation part to choose heads on, and others, behind them, to score the choice on.

    Raises SourceError where there are not enough for both.
    """
    batches = finished.parts.task.val_batches(finished.corpus, finished.model.config.sizes, _AT_A_TIME)
    found = list(islice(batches, 2 * _ABLATED_WINDOWS // _AT_A_TIME))
    if len(found) < 2:
        raise finished.too_small(
            f"its validation text has at most {_AT_A_TIME} windows; expected more, some to choose heads on and others"
            " to score them on"
        )
    return found[: len(found) // 2], found[len(found) // 2 :]


@contextmanager
def replaced(values: Sequence[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Tensors with the values of others; afterwards they are as before, bit for bit."""
    kept = [(tensor, tensor.clone()) for tensor, _ in values]
    try:
        for tensor, instead in values:
            tensor.copy_(instead)
        yield
    finally:
        for tensor, before in kept:
            tensor.copy_(before)
