"""When a training gets somewhere: the step at which its loss is first as low as what stands for a stage.

Stages of a text are what counting reaches on the very same tokens: `unigram` (each token by its frequency), `bigram`
(which follows which) and `beyond pairs`, half-way from there to what counting threes reaches. The stage of a
block that comes again and again is `copying`: half of what is left to whoever knows its letters and strikes them out
one by one. The loss is that of fixed
validation windows, looked at by a pass of its own at steps a constant factor apart; between two looks the step is
interpolated, linearly in its logarithm. A stage that is not reached counts as reached at the horizon.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch

from qkv.data.corpus import Corpus
from qkv.data.ngrams import ngram_losses
from qkv.studies.repeat import Repeat
from qkv.training.record import Observer, RunContext, StepRecord

__all__ = ["Onsets", "crossing", "look_steps", "stages"]

_PER_DOUBLING = 5
_TOKENS = 1024
"""Of the validation windows that are looked at."""
_MOST_COUNTED = 1 << 20
"""Training tokens that are counted, the first ones."""


def look_steps(steps: int) -> tuple[int, ...]:
    """1 to `steps`, five a doubling, whole numbers, the last one included."""
    n = math.ceil(_PER_DOUBLING * math.log2(max(2, steps)))
    found = {round(2 ** (i / _PER_DOUBLING)) for i in range(n)}
    return tuple(sorted({step for step in found if step < steps} | {steps}))


def crossing(looks: Sequence[tuple[int, float]], level: float) -> float | None:
    """The step at which the loss is first at `level` or below; None where it never is.

    looks: (step, loss) in order, the first at step 0.
    """
    if looks[0][1] <= level:
        return float(looks[0][0])
    for (a, high), (b, low) in zip(looks, looks[1:], strict=False):
        if low <= level:
            share = (high - level) / (high - low)
            return b * share if a == 0 else math.exp((1 - share) * math.log(a) + share * math.log(b))
    return None


def stages(task: Any, corpus: Corpus, n_tokens: int) -> Mapping[str, float]:
    """Stage -> loss in nats per target that stands for it, on the first `n_tokens` validation tokens."""
    if isinstance(task, Repeat):
        return {"copying": task.struck_out / 2}
    return _counted(corpus, n_tokens)


@lru_cache(maxsize=8)
def _counted(corpus: Corpus, n_tokens: int) -> Mapping[str, float]:
    ids, d_vocab = corpus.train.ids[:_MOST_COUNTED], corpus.tokenizer.d_vocab
    val = corpus.val.ids[: n_tokens + 1]
    one, two, three = (float(nats.mean()) for nats in ngram_losses(np.asarray(ids), np.asarray(val), d_vocab, 3))
    return {"unigram": one, "bigram": two, "beyond pairs": (two + three) / 2}


class Onsets(Observer):
    """The loss of fixed windows at steps a constant factor apart, and where it passes the stages."""

    def __init__(self) -> None:
        self.looks: list[tuple[int, float]] = []
        self._stages: Mapping[str, float] = {}

    def on_start(self, context: RunContext) -> None:
        """Stand at the start."""
        model: Any = context.model
        sizes, self._task, self._model = model.config.sizes, context.task, model
        batches = context.task.val_batches(context.corpus, sizes, max(1, _TOKENS // sizes.n_ctx))
        (self._batch,) = islice(batches, 1)
        self._stages = stages(context.task, context.corpus, self._batch.inputs.numel())
        self._steps, self._at = context.steps, frozenset(look_steps(context.steps))
        self._look(0)

    def wants(self, step: int) -> bool:
        return step in self._at

    def after_update(self, record: StepRecord) -> None:
        """Look."""
        self._look(record.step)

    def _look(self, step: int) -> None:
        with torch.no_grad():
            nats, n = self._task.loss(self._model, self._batch)
        self.looks.append((step, float(nats) / n))

    def found(self) -> dict[str, float]:
        """`step of STAGE`: when it was reached, the horizon where it was not; `reached STAGE`: 1 or 0."""
        found = {}
        for stage, level in self._stages.items():
            step = crossing(self.looks, level)
            found[f"step of {stage}"] = float(self._steps) if step is None else step
            found[f"reached {stage}"] = float(step is not None)
        return found
