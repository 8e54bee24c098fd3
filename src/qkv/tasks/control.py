"""Labels of the random-label control: uniform draws, afresh at every step, from which nothing can be learned."""

import numpy as np
import torch

from qkv.randomness import uniforms
from qkv.tasks.batch import Batch, places_of, rows_of
from qkv.tasks.data import ModelT, ReadT
from qkv.tasks.evaluation import Objective

__all__ = ["with_uniform_labels"]


def with_uniform_labels(
    task: Objective[ReadT, ModelT], batch: Batch, labels: np.ndarray, seed: int, step: int, examples: np.ndarray
) -> Batch:
    """The same inputs; every target an independent uniform draw from `labels` (int64 [n], see `Objective.labels`).

    A draw is a pure function of (seed, step, example, place in its window), whatever else is in the batch; `examples`
    are the global indices (int64) that `batch` was made of. The lowest expected loss of any model is ln(n).
    """
    names = examples if batch.examples is None else batch.examples.numpy()
    if task.target == "token":
        names = (names[rows_of(batch).numpy()] << 24) + places_of(batch).numpy()
    drawn = (uniforms(names, seed, "uniform labels", step) * len(labels)).astype(np.int64)
    return batch._replace(targets=torch.from_numpy(labels[drawn]), answers=None)
