"""When a training gets somewhere: the step at which its loss is first as low as what stands for a stage.

Stages of a text are what counting reaches on the very same tokens: `unigram` (each token by its frequency), `bigram`
(which follows which) and `beyond pairs`, half-way from there to what counting threes reaches. The stage of a
block that comes again and again is `copying`: half of what is left to whoever knows its letters and strikes them out
one by one. The loss is that of fixed
validation windows, looked at by a pass of its own at steps a constant factor apart; between two looks the step is
interpolated, linearly in its logarithm. A stage that is not reached counts as reached at the horizon.

A lower loss cannot be reached before a higher one, so stages say when and nothing of the order. What does is what a
model is like on the way: the look at which its predictions are nearest to those of frequencies, of pairs and of threes,
by the mean of KL(model || counting) over places of the same windows. These may come in any order.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from qkv.data.baseline.ngrams import ngram_losses
from qkv.data.corpus import Corpus
from qkv.inspection.changepoints import crossing
from qkv.studies.synthetic.tasks import Repeat
from qkv.training.record import Observer, RunContext, StepRecord

_PER_DOUBLING = 5
_TOKENS = 1024
"""Of the validation windows that are looked at."""
_MOST_COUNTED = 1 << 20
"""Training tokens that are counted, the first ones."""
_MOST_PREDICTED = 1 << 18
"""Numbers of one counted prediction of every token after each context; of a large vocabulary fewer places are read."""
_ORDERS = ("unigram", "bigram", "trigram")


def look_steps(steps: int) -> tuple[int, ...]:
    """1 to `steps`, five a doubling, whole numbers, the last one included."""
    n = math.ceil(_PER_DOUBLING * math.log2(max(2, steps)))
    found = {round(2 ** (i / _PER_DOUBLING)) for i in range(n)}
    return tuple(sorted({step for step in found if step < steps} | {steps}))


def stages(task: object, corpus: Corpus, n_tokens: int) -> Mapping[str, float]:
    """Stage -> loss in nats per target that stands for it, on the first `n_tokens` validation tokens."""
    if isinstance(task, Repeat):
        return {"copying": task.by_counting / 2}
    return _counted(corpus, n_tokens)


@lru_cache(maxsize=8)
def _counted(corpus: Corpus, n_tokens: int) -> Mapping[str, float]:
    ids, d_vocab = corpus.train.ids[:_MOST_COUNTED], corpus.tokenizer.d_vocab
    val = corpus.val.ids[: n_tokens + 1]
    one, two, three = (float(nats.mean()) for nats in ngram_losses(np.asarray(ids), np.asarray(val), d_vocab, 3))
    return {"unigram": one, "bigram": two, "beyond pairs": (two + three) / 2}


def predictions(corpus: Corpus, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What counting ones, twos and threes predicts behind the places of some windows that have a token before them.

    inputs: ids [n_windows, n_ctx] -> places in `inputs` laid flat, int64 [n], the first ones where the vocabulary is
    large; ln p of every token there, float64 [3, n, d_vocab], by `qkv.data.baseline.ngrams`.
    """
    d_vocab = corpus.tokenizer.d_vocab
    n = max(1, _MOST_PREDICTED // d_vocab)
    places = np.arange(inputs.size).reshape(inputs.shape)[:, 1:].reshape(-1)[:n]
    before = inputs.reshape(-1)[places[:, None] + [-1, 0]]
    contexts, which = np.unique(before, axis=0, return_inverse=True)
    asked = np.empty((len(contexts), d_vocab, 3), dtype=np.int64)  # each context with each token behind it
    asked[..., :2], asked[..., 2] = contexts[:, None], np.arange(d_vocab)
    train = np.asarray(corpus.train.ids[:_MOST_COUNTED])
    nats = [of_order[1::3] for of_order in ngram_losses(train, asked.reshape(-1), d_vocab, len(_ORDERS))]
    return places, -np.stack(nats).reshape(len(_ORDERS), *asked.shape[:2])[:, which.reshape(-1)]


class Onsets(Observer):
    """The loss of fixed windows at steps a constant factor apart, and where it passes the stages.

    On text also how far the predictions are from those of counting.
    """

    def __init__(self) -> None:
        self.looks: list[tuple[int, float]] = []
        self.distances: list[np.ndarray] = []
        """Of each look on text: KL(model || counting ones, twos, threes), float64 [3]."""
        self._stages: Mapping[str, float] = {}
        self._counted: tuple[Tensor, Tensor] | None = None

    def on_start(self, context: RunContext) -> None:
        model: Any = context.model
        corpus = cast(Corpus, context.corpus)
        sizes, self._task, self._model = model.config.sizes, context.task, model
        batches = context.task.val_batches(corpus, sizes, max(1, _TOKENS // sizes.n_ctx))
        (self._batch,) = islice(batches, 1)
        self._stages = stages(context.task, corpus, self._batch.inputs.numel())
        if not isinstance(context.task, Repeat):
            places, counted = predictions(corpus, self._batch.inputs.numpy())
            self._counted = torch.from_numpy(places), torch.from_numpy(counted)
        self._steps, self._at = context.steps, frozenset(look_steps(context.steps))
        self._look(0)

    def wants(self, step: int) -> bool:
        return step in self._at

    def after_update(self, record: StepRecord) -> None:
        self._look(record.step)

    def _look(self, step: int) -> None:
        with torch.no_grad():
            nats, n = self._task.loss(self._model, self._batch)
            if self._counted is not None:
                places, counted = self._counted
                own = self._model(self._batch.inputs).flatten(0, 1)[places].double().log_softmax(-1)
                self.distances.append((own.exp() * (own - counted)).sum(-1).mean(-1).numpy())
        self.looks.append((step, float(nats) / n))

    def found(self) -> dict[str, float]:
        """`step of STAGE`: when it was reached, the horizon where it was not; `reached STAGE`: 1 or 0.

        On text also `nearest ORDER`: the look at which the predictions are nearest to those of counting so many tokens.
        """
        found = {}
        if self.distances:
            nearest = np.argmin(self.distances, axis=0)
            found = {f"nearest {order}": float(self.looks[i][0]) for order, i in zip(_ORDERS, nearest, strict=True)}
        for stage, level in self._stages.items():
            step = crossing(self.looks, level)
            found[f"step of {stage}"] = float(self._steps) if step is None else step
            found[f"reached {stage}"] = float(step is not None)
        return found
