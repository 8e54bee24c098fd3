"""What a trained model knows of order: where a vector stands, what it costs to shuffle the tokens around, and how the
loss falls with the tokens that are seen before.

All on windows of the validation part, which nothing was trained on.
"""

from itertools import islice

import numpy as np
import torch
from torch import Tensor

from qkv.inspection.representation import probe_accuracy
from qkv.randomness import generator
from qkv.studies.engine.training_log import Finished
from qkv.tasks.batch import Batch
from qkv.tasks.evaluation import evaluate
from qkv.tasks.masked import Masked

_WINDOWS = 128
"""At most so many: half of them to fit on, half to test on."""
_SHUFFLED_WINDOWS = 256


@torch.no_grad()
def position(finished: Finished) -> dict[str, float]:
    """How well a linear probe reads the position of a token from its vector, by layer, on held-out windows.

    `position 0`: from what enters the first layer; `position 1` and on: from what leaves a layer, the last one after
    the last norm. 1 - |error| / (|error| of the middle position), by least squares: 1 is read exactly, 0 nothing, less
    is possible. `named N`: share of vectors whose position is named exactly, by a ridge regression of one-hot
    positions; chance is 1 / n_ctx. A masked model reads its windows unmasked.
    """
    n_ctx = finished.trial.scale.n_ctx
    ids = finished.corpus.val.ids
    n = min(_WINDOWS, len(ids) // n_ctx) // 2 * 2
    windows = torch.from_numpy(ids[: n * n_ctx].astype(np.int64)).view(n, n_ctx)
    places = np.tile(np.arange(n_ctx), n // 2)
    found = {}
    layers: list[Tensor] = []  # each [n_windows, n_ctx, d_model]
    layers.append(finished.model.hidden(windows, see=lambda block, x: layers.append(x)))
    for layer, x in enumerate(layers):
        vectors = x.double().numpy().reshape(2, n // 2 * n_ctx, -1)
        found[f"position {layer}"] = _read(vectors[0], vectors[1], places, n_ctx)
        found[f"named {layer}"] = probe_accuracy(vectors[0], places, vectors[1], places, n_ctx)
    return found


def _read(train: np.ndarray, test: np.ndarray, places: np.ndarray, n_ctx: int) -> float:
    """1 - mean |error| on `test` over that of always saying the middle; the same `places` in both."""
    mean = train.mean(0)
    middle = (n_ctx - 1) / 2
    weights = np.linalg.lstsq(train - mean, places - middle, rcond=1e-8)[0]
    errors = np.abs((test - mean) @ weights + middle - places)
    return float(1 - errors.mean() / np.abs(places - middle).mean())


def loss_by_position(finished: Finished) -> dict[str, float]:
    """`loss at 1`, `loss at 2`, `loss at 3-4`, `loss at 5-8`, ...: loss of targets for which so many tokens are read.

    Over the whole validation part, by `qkv.tasks.evaluation`; only tokens of the same window are read.
    """
    found = evaluate(finished.model, finished.parts.task, finished.corpus, 64).by_position
    return {f"loss at {part.first}" + (f"-{part.last}" if part.last > part.first else ""): part.loss for part in found}


@torch.no_grad()
def order(finished: Finished) -> dict[str, float]:
    """`order`: loss with the tokens around in another order, less the loss, on the same targets.

    Causal: the target behind each window, all tokens of the window but the last shuffled, so that what follows a token
    is no part of it. Masked: hidden tokens stay where they are, all others are shuffled; without positions it is 0.
    """
    task, model = finished.parts.task, finished.model
    batches = _hidden(finished) if isinstance(task, Masked) else [_behind(finished)]
    straight = shuffled = n = 0.0
    for batch, other in batches:
        straight += float(task.score(model, batch).nats.double().sum())
        shuffled += float(task.score(model, other).nats.double().sum())
        n += batch.n_targets
    return {"order": (shuffled - straight) / n}


def _behind(finished: Finished) -> tuple[Batch, Batch]:
    """Windows with the token behind each as its only target, in order and shuffled."""
    n_ctx, ids = finished.trial.scale.n_ctx, finished.corpus.val.ids
    n = min(_SHUFFLED_WINDOWS, (len(ids) - 1) // n_ctx)
    inputs = torch.from_numpy(ids[: n * n_ctx].astype(np.int64)).view(n, n_ctx)
    targets = torch.from_numpy(ids[n_ctx : n * n_ctx + 1 : n_ctx].astype(np.int64))
    positions = torch.arange(n) * n_ctx + n_ctx - 1
    moved = inputs.clone()
    for i in range(n):
        moved[i, :-1] = inputs[i, torch.from_numpy(generator("study", "order", i).permutation(n_ctx - 1))]
    return Batch(inputs, targets, positions), Batch(moved, targets, positions)


def _hidden(finished: Finished) -> list[tuple[Batch, Batch]]:
    """Validation windows, as they are and with all tokens that are not hidden dealt anew among their places.

    A token stays in its document.
    """
    out, batches = [], finished.parts.task.val_batches(finished.corpus, finished.model.config.sizes, 64)
    for batch in islice(batches, _SHUFFLED_WINDOWS // 64):
        moved, shown = batch.inputs.clone(), torch.ones_like(batch.inputs, dtype=torch.bool)
        shown.view(-1)[batch.positions] = False
        if batch.mask is not None:
            shown &= batch.mask
        documents = torch.zeros_like(batch.inputs) if batch.documents is None else batch.documents
        for i, row in enumerate(documents):
            draws = generator("study", "order", i)
            for document in row.unique():
                places = torch.nonzero(shown[i] & (row == document))[:, 0]
                moved[i, places] = batch.inputs[i, places[torch.from_numpy(draws.permutation(len(places)))]]
        out.append((batch, batch._replace(inputs=moved)))
    return out
