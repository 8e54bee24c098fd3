"""What tasks on a plain text share: loading the corpus, describing it, and finding a few words of it for a prompt.

A corpus is one stream of tokens for training and one for validation; windows of it are cut by the tasks themselves.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from qkv.data.baseline.text import bigram_loss
from qkv.data.config import DataConfig
from qkv.data.corpus import Corpus, load_corpus
from qkv.models.zoo import LanguageModel
from qkv.tasks.batch import Batch
from qkv.tasks.figures import Scores
from qkv.tasks.objective import batch_loss, batch_scores
from qkv.tasks.task import Drop, Progress, Task

if TYPE_CHECKING:
    from qkv.models.layout import Sizes

_MANY_UNKNOWN = 0.2
"""The share of [UNK] tokens in a part from which on the user is warned."""
_READ_TOKENS = 4096
"""Of the validation text, in search of prose."""
_PROSE = 0.9
"""Least share of words in plain letters; the first begins with a capital."""


@dataclass(frozen=True, kw_only=True)
class TextTask(Task[Corpus, LanguageModel]):
    """The part of a task that is the same for every language model; abstract."""

    needs_specials: bool = False
    """Whether its tokenizer must hold [PAD], [MASK] and the other special tokens."""

    tokenizer: ClassVar[str] = "bpe"
    examples: ClassVar[str] = "windows"
    target: ClassVar[str] = "token"
    ordered: ClassVar[bool] = True

    def load(self, config: DataConfig, *, cache: Path | None, progress: Progress | None = None) -> Corpus:
        """By `qkv.data.corpus.load_corpus`."""
        return load_corpus(config, cache=cache, task_specials=self.needs_specials, progress=progress)

    def cautions(self, data: Corpus, sizes: "Sizes") -> list[str]:
        """How much of the text the tokenizer does not know, where that is much."""
        parts = ((data.train, "training"), (data.val, "validation"))
        return [
            f"{tokens.n_unknown / len(tokens):.0%} of the {name} tokens are [UNK], which the tokenizer"
            f" ({data.tokenizer.kind}) does not know; --tokenizer bpe knows any text."
            for tokens, name in parts
            if tokens.n_unknown > _MANY_UNKNOWN * len(tokens)
        ]

    def yardstick_nats(self, data: Corpus) -> float:
        """Nats per validation token under the bigram counts of the training part."""
        return bigram_loss(data)

    def loss(self, model: LanguageModel, batch: Batch, drop: Drop | None = None) -> tuple[Tensor, int]:
        """(sum of nats, number of targets); see `Task.loss`."""
        return batch_loss(model, batch, drop)

    def score(self, model: LanguageModel, batch: Batch) -> Scores:
        """Each target's nats, and whether it is the most probable token."""
        return batch_scores(model, batch)

    def prose(self, data: Corpus, n: int) -> list[str]:
        """The first `n` words in a row of the validation text that read like a sentence's beginning.

        A text may begin with a heading, a rule or a table; where nothing in its first pages reads like prose, the words
        that it begins with.
        """
        words = data.tokenizer.decode(data.val.ids[:_READ_TOKENS]).split()
        plain = [word.strip(".,;:!?'\"()").isalpha() for word in words]
        for i in range(len(words) - n + 1):
            if words[i][0].isupper() and plain[i] and sum(plain[i : i + n]) >= _PROSE * n:
                return words[i : i + n]
        return words[:n]
