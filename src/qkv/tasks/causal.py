"""Causal language modelling: predict every token from those before it, and continue a text.

Loss is in nats per token and, through the bytes of the original text, in bits per byte. Training windows overlap by one
token, so that inside an epoch each token is a target once; validation predicts every token after the first exactly
once. A window begins without context: its first targets see little of what stood before, in training and validation
alike.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.packing import train_window, val_windows
from qkv.tasks.generation import generate
from qkv.tasks.objective import batch_loss, batch_scores, random_targets
from qkv.tasks.task import Batch, Drop, PredictOptions, Scores

if TYPE_CHECKING:
    from qkv.data.corpus import Corpus
    from qkv.models.layout import Sizes

__all__ = ["Causal"]

DEFAULT_TEMPERATURE = 0.8


@dataclass(frozen=True, kw_only=True)
class Causal:
    """The task `causal`."""

    name: str = "causal"
    model_kind: str = "CausalLM"
    needs_specials: bool = False

    def train_batch(
        self,
        corpus: "Corpus",
        sizes: "Sizes",
        seed: int,
        step: int,
        examples: np.ndarray,
        *,
        random_labels: bool = False,
    ) -> Batch:
        """Windows of n_ctx inputs, each with the token after it as target; see `Task.train_batch`."""
        windows = train_window(corpus.train, sizes.n_ctx, seed, examples)
        targets = windows[:, 1:]
        if random_labels:
            targets = random_targets(corpus.train, seed, step, examples, sizes.n_ctx)
        return Batch(_tensor(windows[:, :-1]), _tensor(targets).flatten())

    def val_batches(self, corpus: "Corpus", sizes: "Sizes", batch_size: int) -> Iterator[Batch]:
        """Every token of the validation split after the first as a target once, in windows of n_ctx."""
        for windows, real in val_windows(corpus.val, sizes.n_ctx, batch_size):
            inputs, targets = _tensor(windows[:, :-1]), _tensor(windows[:, 1:]).flatten()
            if real.all():
                yield Batch(inputs, targets)
            else:  # what fills a short window stands after its real tokens, which cannot see it
                positions = _tensor(np.flatnonzero(real))
                yield Batch(inputs, targets[positions], positions)

    def loss(self, model: Any, batch: Batch, drop: Drop | None = None) -> tuple[Tensor, int]:
        """(sum of nats, number of targets); see `Task.loss`."""
        return batch_loss(model, batch, drop)

    def score(self, model: Any, batch: Batch) -> Scores:
        """Each target's nats, and whether it is the most probable next token."""
        return batch_scores(model, batch)

    def bits_per_byte(self, corpus: "Corpus", nats: float) -> float | None:
        """nats / ln 2 / bytes of the original validation text."""
        return nats / math.log(2) / corpus.val.n_bytes

    def predict(self, model: Any, tokenizer: Any, texts: Sequence[str], options: PredictOptions) -> list[str]:
        """The continuation of each text, without the text itself, so that text + continuation reads on.

        An empty text is continued as if a new line began, or a new sentence where the tokenizer knows no line break.
        Special tokens are never sampled.
        """
        special = set(tokenizer.special.values())
        prompts = [np.asarray(tokenizer.encode(text), dtype=np.int64) for text in texts]
        prompts = [ids if len(ids) else _beginning(tokenizer, special) for ids in prompts]
        temperature = DEFAULT_TEMPERATURE if options.temperature is None else options.temperature
        continuations = generate(
            model,
            prompts,
            tokens=options.tokens,
            temperature=temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=options.seed,
            banned=sorted(special),
        )
        return [_text_after(tokenizer, p, c) for p, c in zip(prompts, continuations, strict=True)]


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def _beginning(tokenizer: Any, special: set[int]) -> np.ndarray:
    """What an empty text is continued from, int64 [1 or more]: a line break, a full stop or any ordinary token."""
    for text in ("\n", "."):
        ids = np.asarray(tokenizer.encode(text), dtype=np.int64)
        if len(ids) and special.isdisjoint(ids.tolist()):
            return ids
    return np.array([next((i for i in range(tokenizer.d_vocab) if i not in special), 0)])


def _text_after(tokenizer: Any, prompt: np.ndarray, continuation: np.ndarray) -> str:
    """How `continuation` reads after `prompt`: a word piece joins on, a new word brings its space."""
    before, whole = tokenizer.decode(prompt), tokenizer.decode(np.concatenate([prompt, continuation]))
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(continuation)
