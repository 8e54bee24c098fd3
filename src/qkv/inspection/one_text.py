"""One text as a task sees it: a batch of one row, its tokens, and a model to differentiate on it.

What is asked of the text is what validation asks: of a causal model every token after the first, of a masked one the
tokens that validation would hide in a text of that length. Refuses a text that does not fit into one window.
"""

import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TypeVar

import numpy as np
from torch import nn

from qkv.errors import UserError
from qkv.models.blocks import Block
from qkv.models.layout import Sizes
from qkv.models.zoo import BlockStack
from qkv.tasks.batch import Batch
from qkv.tasks.task import Task
from qkv.tasks.text import TextTask
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.tokens import Tokens
from qkv.words import many

ModuleT = TypeVar("ModuleT", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class OneText:
    """A text, and the batch that a task makes of it."""

    text: str
    tokens: list[str]
    """As the model reads them, [pos]: of a causal task without the last token, which is only a target."""
    batch: Batch
    """One row, without padding."""

    @property
    def n_targets(self) -> int:
        """How many tokens the loss is the mean over."""
        return self.batch.n_targets


def one_text(task: Task, tokenizer: Tokenizer | None, sizes: Sizes, text: str) -> OneText:
    """The batch of one text, whole.

    Raises UserError for a text of fewer than 2 tokens or more than a window holds, or a task that predicts no tokens.
    """
    if not isinstance(task, TextTask):
        raise UserError(
            f"the task {task.name} does not predict the tokens of a text; expected a causal or masked model"
        )
    assert tokenizer is not None, "a text task has one"
    before, after = tokenizer.around
    ids = np.concatenate([before, tokenizer.encode(text, special=task.marks), after]).astype(np.int64)
    causal = task.model_kind == "CausalLM"
    most = sizes.n_ctx + causal
    if not 2 <= len(ids) <= most:
        raise UserError(
            f"the text has {many(len(ids), 'token')}; expected 2 to {most}, which one window of this model holds"
        )
    part = Tokens(ids=ids, offsets=np.array([0, len(ids)]), n_bytes=len(text.encode(errors="replace")))
    batch = next(task.val_batches(SimpleNamespace(val=part, tokenizer=tokenizer), sizes, 1))  # type: ignore[arg-type]
    if not batch.n_targets:
        raise UserError(f"the text holds nothing that {task.name} would ask for; give a longer one")
    inputs = batch.inputs[:, : len(ids) - causal]  # the rest fills the window
    whole = batch.positions is None or batch.n_targets == inputs.numel()
    short = Batch(inputs, batch.targets, None if whole and causal else batch.positions)
    return OneText(text, [tokenizer.token(int(i)) for i in inputs[0]], short)


def float64_copy(model: ModuleT) -> ModuleT:
    """The same model in float64, in evaluation mode, every parameter requiring a gradient; the given one is kept."""
    return copy.deepcopy(model).double().requires_grad_(True).eval()


def blocks_of(model: BlockStack) -> list[Block]:
    """Its blocks, from the first layer to the last."""
    return [block for block in model.blocks if isinstance(block, Block)]
