"""What tasks on a plain text share: the corpus they load, how it is told of, what a few words of it are.

A corpus is one stream of tokens for training and one for validation; windows of it are cut by the tasks themselves.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from qkv.data.baselines import bigram_loss
from qkv.data.config import DataConfig
from qkv.data.corpus import load_corpus
from qkv.tasks.task import Progress, TaskDefaults

if TYPE_CHECKING:
    from qkv.data.corpus import Corpus

__all__ = ["TextTask"]

_SAMPLED_TOKENS = 160
_SAMPLED_WORDS = 24


@dataclass(frozen=True, kw_only=True)
class TextTask(TaskDefaults):
    """The part of a task that is the same for every language model; abstract."""

    needs_specials: bool = False
    """Whether its tokenizer must hold [PAD], [MASK] and the other special tokens."""

    tokenizer: ClassVar[str] = "bpe"
    examples: ClassVar[str] = "windows"
    target: ClassVar[str] = "token"

    def load(self, config: DataConfig, *, cache: Path | None, progress: Progress | None = None) -> "Corpus":
        """By `qkv.data.corpus.load_corpus`."""
        return load_corpus(config, cache=cache, task_specials=self.needs_specials, progress=progress)

    def yardstick_nats(self, data: "Corpus") -> float:
        """Nats per validation token under the bigram counts of the training part."""
        return bigram_loss(data)

    def first_words(self, data: Any) -> list[str]:
        """The words that the validation text begins with, at most 24."""
        return data.tokenizer.decode(data.val.ids[:_SAMPLED_TOKENS]).split()[:_SAMPLED_WORDS]
