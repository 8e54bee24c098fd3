"""Masked language modelling: hide some tokens of a window, predict them from both sides, fill [MASK] in a text.

Devlin et al. 2018 (arXiv 1810.04805). Loss is in nats per hidden token, a figure of its own that is never called bits
per byte: tokens are predicted with their surroundings known, which is no code for the text. Windows are packed full
with text; every position is real except at the end of the last validation window. Where a window holds pieces of
several documents, positions attend within their own and are counted from its beginning.

Two choices differ from 2018. **Rate**: training hides 30 % (`rate`) instead of 15 %, since a step's cost hardly depends
on it while the number of answers learned from doubles. Wettig et al. 2023 (arXiv 2202.08005) find 15 % not optimal in
general and a higher rate better the larger the model (40 % for BERT-large); Portes et al. 2023 (arXiv 2312.17482) train
a base-sized model at 30 %. Models here are smaller than either, and the rate was not tuned on them. **Corruption**:
every hidden token becomes [MASK]; the 2018 rule (80 % [MASK], 10 % a random word, 10 % left) is `random=0.1, kept=0.1`.
[MASK] alone is what `predict` meets, and the 10 % that stay bear on how long layers keep a token's identity, so a study
of that question needs the pure arm. Validation always hides 15 %, all as [MASK], the same tokens for every run on that
text, so that losses compare whatever a run was trained at.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from qkv.data.baseline.both_sides import Hidden, expected_seconds, hidden_baselines, most_scored
from qkv.data.config import DataConfig
from qkv.data.packing import train_starts, window_documents
from qkv.errors import ConfigError, SourceError
from qkv.models.zoo import LanguageModel
from qkv.randomness import generator
from qkv.tasks.batch import Batch
from qkv.tasks.filling import fill, open_marks
from qkv.tasks.task import PredictOptions, Progress, Ranked, Yardsticks, ranked
from qkv.tasks.text import TextTask
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.tokens import Tokens

if TYPE_CHECKING:
    from qkv.data.corpus import Corpus
    from qkv.models.layout import Sizes

VALIDATION_RATE = 0.15


_SAMPLED_WORDS = 24
_STRETCH = 1 << 16
"""Tokens looked at a time for one that can be hidden."""


@dataclass(frozen=True, kw_only=True)
class Masked(TextTask):
    """The task `masked`. Raises ConfigError for shares out of range."""

    name: str = "masked"
    model_kind: str = "MaskedLM"
    needs_specials: bool = True
    rate: float = 0.3
    """Share of a training window's tokens that are hidden; the count per window is fixed, at least 1."""
    random: float = 0.0
    """Share of the hidden tokens that show a random ordinary token instead of [MASK]."""
    kept: float = 0.0
    """Share of the hidden tokens that show themselves instead of [MASK]."""

    starts_from: ClassVar[Mapping[str, str]] = {"MaskedLM": "MaskedLM"}
    size_law: ClassVar[str] = "hidden text"
    tokenizer: ClassVar[str] = "wordpiece"
    asked: ClassVar[str] = "a hidden {unit}"
    prompt: ClassVar[str] = "the [MASK] of"
    predict_options: ClassVar[tuple[str, ...]] = ("temperature", "top_k", "top_p", "seed", "special")
    too_long: ClassVar[str] = "each [MASK] is read with the tokens around it alone"
    marks: ClassVar[bool] = True
    given: ClassVar[str] = "the text with gaps"
    yardsticks: ClassVar[Mapping[str, str]] = {
        "unigram": "unigram (how often each token occurs)",
        "ngram": "best n-gram, read from both sides (Kneser-Ney, order {order})",
    }

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ConfigError(f"rate is {self.rate}; expected a share of tokens to hide, above 0 and up to 1")
        if self.random < 0 or self.kept < 0 or self.random + self.kept > 1:
            raise ConfigError(f"random is {self.random} and kept is {self.kept}; expected shares that sum to at most 1")

    def load(self, config: DataConfig, *, cache: Path | None, progress: Progress | None = None) -> "Corpus":
        """As every text. Raises SourceError where the tokenizer knows nothing of a part: there is nothing to hide."""
        corpus = super().load(config, cache=cache, progress=progress)
        special = _special(corpus.tokenizer)
        for tokens, name in ((corpus.train, "training"), (corpus.val, "validation")):
            if all(special[tokens.ids[i : i + _STRETCH]].all() for i in range(0, len(tokens), _STRETCH)):
                raise SourceError(
                    f"{corpus.name!r}: of the {name} text the tokenizer ({corpus.tokenizer.kind}) knows nothing, all"
                    f" {len(tokens):,} tokens are [UNK] and none can be hidden; give text that it knows, or train with"
                    " --tokenizer bpe, which knows any"
                )
        return corpus

    def baselines(self, data: "Corpus", sizes: "Sizes", cache: Path | None) -> Yardsticks:
        """Counting on both sides of the very tokens that are hidden in validation, by
        `qkv.data.baseline.both_sides`."""
        facts, by_target = hidden_baselines(data, self.hidden_text(data, sizes), cache)
        nats = {name: facts[name] for name in ("unigram", "ngram", "ngram_order")}
        return Yardsticks(summary={}, nats=nats, facts=facts, by_target=by_target, note=facts["note"])

    def baselines_seconds(self, data: "Corpus", sizes: "Sizes", cache: Path | None) -> float:
        """By `qkv.data.baseline.both_sides.expected_seconds`."""
        return expected_seconds(data, self.hidden_text(data, sizes), cache)

    def hidden_text(self, data: "Corpus", sizes: "Sizes") -> Hidden:
        """The validation text as a model of these sizes sees it, up to as many hidden tokens as counting scores.

        What a position cannot see (the next window, another document) is kept apart from it.
        """
        unseen, most = data.tokenizer.d_vocab, most_scored(data.tokenizer.d_vocab)
        parts, n, n_hidden = [], 0, 0
        for batch in self.val_batches(data, sizes, 64):
            assert batch.positions is not None, "a masked task asks for its hidden positions alone"
            shown, hidden = batch.inputs.numpy().copy(), batch.positions.numpy()
            shown.reshape(-1)[hidden] = unseen
            if batch.mask is not None:
                shown[~batch.mask.numpy()] = unseen
            breaks = np.zeros(shown.shape, dtype=bool)
            breaks[:, 0] = True
            if batch.documents is not None:
                breaks[:, 1:] = np.diff(batch.documents.numpy(), axis=1) != 0
            places = np.arange(shown.size) + np.cumsum(breaks)
            apart = np.full(shown.size + breaks.sum(), unseen, dtype=np.int64)
            apart[places] = shown.reshape(-1)
            parts.append((apart, places[hidden] + n, batch.targets.numpy()))
            n, n_hidden = n + len(apart), n_hidden + len(hidden)
            if n_hidden >= most:
                break
        whole, places, answers = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Hidden(whole, places[:most], answers[:most])

    def train_batch(self, corpus: "Corpus", sizes: "Sizes", seed: int, step: int, examples: np.ndarray) -> Batch:
        """Windows of n_ctx tokens with `rate` of them hidden, others in every step; see `Task.train_batch`."""
        tokens, special = corpus.train, _special(corpus.tokenizer)
        starts = train_starts(tokens, _window(sizes) - 1, seed, examples)
        windows = tokens.ids.take(starts[:, None] + np.arange(_window(sizes))).astype(np.int64)
        streams = [generator(seed, "mask", step, int(example)) for example in examples]
        keys = np.stack([stream.random(windows.shape[1]) for stream in streams])
        hidden = _hidden(keys, windows, np.ones_like(windows, dtype=bool), special, self.rate)
        shown = windows.copy()
        shown[hidden] = corpus.tokenizer.special["[MASK]"]
        if self.random or self.kept:
            self._corrupt(shown, windows, hidden, streams, np.flatnonzero(~special))
        return _batch(shown, windows, hidden, documents=_documents(tokens, starts, windows.shape[1]))

    def labels(self, data: "Corpus", n: int) -> np.ndarray:
        """All tokens but the special ones."""
        return np.flatnonzero(~_special(data.tokenizer))

    def _corrupt(
        self,
        shown: np.ndarray,
        windows: np.ndarray,
        hidden: np.ndarray,
        streams: Sequence[np.random.Generator],
        ordinary: np.ndarray,
    ) -> None:
        """Let `random` of the hidden tokens show another token, and `kept` of them themselves, in place."""
        draws = np.stack([stream.random(windows.shape[1]) for stream in streams])
        others = ordinary[np.stack([stream.integers(len(ordinary), size=windows.shape[1]) for stream in streams])]
        other, itself = hidden & (draws < self.random), hidden & (draws >= 1 - self.kept)
        shown[other] = others[other]
        shown[itself] = windows[itself]

    def val_batches(self, corpus: "Corpus", sizes: "Sizes", batch_size: int) -> Iterator[Batch]:
        """The validation split in windows of n_ctx side by side, 15 % hidden; the same for every seed, rate and run."""
        special, mask_id = _special(corpus.tokenizer), corpus.tokenizer.special["[MASK]"]
        around = corpus.tokenizer.around
        for first, windows, real in _side_by_side(corpus.val, _window(sizes) - sum(map(len, around)), batch_size):
            names = range(first, first + len(windows))
            documents = _documents(corpus.val, np.array(names) * windows.shape[1], windows.shape[1])
            if any(map(len, around)):
                windows, real, documents = _framed(windows, real, documents, *around)
            keys = np.stack([generator("mask", "validation", i).random(windows.shape[1]) for i in names])
            hidden = _hidden(keys, windows, real, special, VALIDATION_RATE)
            yield _batch(np.where(hidden, mask_id, windows), windows, hidden, None if real.all() else real, documents)

    def sample_inputs(self, data: "Corpus") -> list[str]:
        """The first words of prose in the validation text, every fourth of them hidden; none where they are fewer."""
        words = ["[MASK]" if i % 4 == 3 else word for i, word in enumerate(self.prose(data, _SAMPLED_WORDS))]
        return [" ".join(words)] if len(words) > 3 else []

    def predict(
        self, model: LanguageModel, tokenizer: Tokenizer | None, texts: Sequence[str], options: PredictOptions
    ) -> list[str]:
        """Each text with every [MASK] typed in it filled; see `qkv.tasks.filling.fill`."""
        assert tokenizer is not None, "a task on text has one"
        return fill(model, tokenizer, texts, options)

    def scores(
        self, model: LanguageModel, tokenizer: Tokenizer | None, texts: Sequence[str], k: int, options: PredictOptions
    ) -> list[list[Ranked]]:
        """The k most probable tokens at each [MASK] of each text, the others still hidden."""
        assert tokenizer is not None, "a task on text has one"
        found = open_marks(model, tokenizer, texts, options)
        return [[ranked(tokenizer.token, p, k) for p in marks] for marks in found]


def _window(sizes: "Sizes") -> int:
    if sizes.n_ctx < 2:
        raise ConfigError(f"n_ctx is {sizes.n_ctx}; a masked model needs at least 2 positions, one to see by")
    return sizes.n_ctx


def _special(tokenizer: Tokenizer) -> np.ndarray:
    """Which ids are never hidden: bool [d_vocab]; there is nothing to learn in [UNK]."""
    special = np.zeros(tokenizer.d_vocab, dtype=bool)
    special[list(tokenizer.special.values())] = True
    return special


def _hidden(keys: np.ndarray, windows: np.ndarray, real: np.ndarray, special: np.ndarray, rate: float) -> np.ndarray:
    """Which positions are hidden, bool [batch, pos]: the round(rate * pos) smallest keys of each row, at least 1.

    Positions that are not real or hold a special token come last and are then left out, so a row may hide fewer. A
    short row (the end of a split) hides its share of what is real. keys: float64 [batch, pos] in 0..1.
    """
    candidates = real & ~special[windows]
    keys = np.where(candidates, keys, 2.0)
    count = np.maximum(1, np.rint(rate * real.sum(axis=1))).astype(np.int64)
    last = np.take_along_axis(np.sort(keys, axis=1), count[:, None] - 1, axis=1)
    return (keys <= last) & candidates


def _side_by_side(tokens: Tokens, n_ctx: int, batch_size: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(number of the first window, windows int64 [batch, n_ctx], real bool [batch, n_ctx]), filled with token 0."""
    total = -(-len(tokens) // n_ctx)
    for first in range(0, total, batch_size):
        places = (np.arange(first, min(first + batch_size, total)) * n_ctx)[:, None] + np.arange(n_ctx)
        real = places < len(tokens)
        yield first, np.where(real, tokens.ids.take(np.where(real, places, 0)), 0).astype(np.int64), real


def _framed(
    windows: np.ndarray, real: np.ndarray, documents: np.ndarray | None, before: np.ndarray, after: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """All three with what belongs around a text: each row's real tokens [n] become before, [n], after."""
    n, sides = real.sum(axis=1), ((0, 0), (len(before), len(after)))
    out, ends = np.pad(windows, sides), len(before) + n[:, None] + np.arange(len(after))
    out[:, : len(before)] = before
    np.put_along_axis(out, ends, np.broadcast_to(after, ends.shape), axis=1)
    there = np.arange(out.shape[1]) < (n + len(before) + len(after))[:, None]
    return out, there, None if documents is None else np.pad(documents, sides, mode="edge")


def _documents(tokens: Tokens, starts: np.ndarray, n: int) -> np.ndarray | None:
    """The document of each position of these windows, int64 [batch, n]; None where each lies in one document."""
    if tokens.n_documents == 1:
        return None
    documents = window_documents(tokens, starts, n - 1)
    return documents if (documents[:, 0] != documents[:, -1]).any() else None


def _batch(
    shown: np.ndarray,
    answers: np.ndarray,
    hidden: np.ndarray,
    real: np.ndarray | None = None,
    documents: np.ndarray | None = None,
) -> Batch:
    positions = np.flatnonzero(hidden)
    return Batch(
        torch.from_numpy(shown),
        torch.from_numpy(answers.reshape(-1)[positions]),
        torch.from_numpy(positions),
        None if real is None else torch.from_numpy(real),
        None if documents is None else torch.from_numpy(documents),
    )
