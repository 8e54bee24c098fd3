"""Translation: predict each token of a target from those before it and the whole source (Vaswani et al. 2017).

Training targets are smoothed (0.1 of each target's weight is spread evenly over the vocabulary), and dropout is what
the size law says; the validation loss is of the plain targets, in nats per target token, the end of each target counted
as one. An example is a bucket of pairs of similar length (`qkv.data.buckets`). Translations are searched for with beams
(`beams`), and judged by BLEU. Sampling and back-translation are not made here.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.baseline.dictionary import Dictionary
from qkv.data.buckets import bucket_edges, filled, n_buckets, train_bucket
from qkv.data.config import DataConfig
from qkv.data.pairs import PairCorpus, Pairs, decode_line, encode_lines, end_of, line_of, load_pairs, start_of
from qkv.errors import ConfigError
from qkv.models.zoo import EncoderDecoderLM
from qkv.tasks.batch import Batch, rows_of
from qkv.tasks.beams import DEFAULT_BEAMS, DEFAULT_PENALTY, Search, search
from qkv.tasks.bleu import bleu, bleu_tokens, require_sacrebleu
from qkv.tasks.crossentropy import linear_cross_entropy, token_scores
from qkv.tasks.evaluation import evaluate
from qkv.tasks.figures import Evaluation, Figure, Scores
from qkv.tasks.task import Drop, PredictOptions, Progress, Stack, Task, Yardsticks
from qkv.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from qkv.models.layout import Sizes

SMOOTHING = 0.1
BUCKET_TOKENS = 512
"""Positions of a training bucket on its longer side, padding included."""


@dataclass(frozen=True, kw_only=True)
class Translate(Task[PairCorpus, EncoderDecoderLM]):
    """The task `translate`."""

    name: str = "translate"
    model_kind: str = "EncoderDecoderLM"
    most_translated: int = 0
    """Pairs that BLEU is taken over, at most, spread evenly over the validation part; 0: all."""

    stack: ClassVar[Stack] = "encoder-decoder"
    preset: ClassVar[str] = "shared"
    size_law: ClassVar[str] = "pairs"
    starts_from: ClassVar[Mapping[str, str]] = {"EncoderDecoderLM": "EncoderDecoderLM"}
    tokenizer: ClassVar[str] = "bpe"
    examples: ClassVar[str] = "buckets"
    items: ClassVar[str] = "pairs"
    target: ClassVar[str] = "token"
    asked: ClassVar[str] = "the next {unit} of the translation"
    prompt: ClassVar[str] = "Ein Mann schläft."
    predict_options: ClassVar[tuple[str, ...]] = ("temperature", "beams", "length_penalty", "special")
    metric: ClassVar[str] = "bleu"
    judged: ClassVar[bool] = True
    yardsticks: ClassVar[Mapping[str, str]] = {
        "copy": "the source copied as it is",
        "dictionary": "the word-for-word translation (IBM Model 1, likeliest word)",
    }

    # data

    def load(self, config: DataConfig, *, cache: Path | None, progress: Progress | None = None) -> PairCorpus:
        """By `qkv.data.pairs.load_pairs`. Raises MissingExtra without sacrebleu: a run ends with its BLEU."""
        require_sacrebleu()
        return load_pairs(config)

    def needed_positions(self, data: PairCorpus) -> int:
        """The power of two, 64 to 512, that holds the longest training pair."""
        most = max(int(lengths.max()) for lengths in data.train.lengths())
        return min(512, max(64, 1 << (most - 1).bit_length()))

    def positions(self, data: PairCorpus, sizes: "Sizes") -> int:
        """Tokens of a bucket, those of sources counted as well."""
        return max(1, data.train.n_tokens // n_buckets(data.train, sizes.n_ctx, BUCKET_TOKENS))

    def cautions(self, data: PairCorpus, sizes: "Sizes") -> list[str]:
        """How many training pairs are left out, and how many validation pairs are cut."""
        found = []
        for part, name, what in ((data.train, "training", "left out"), (data.val, "validation", "cut there")):
            longer = np.maximum(*part.lengths())
            n = int((longer > sizes.n_ctx).sum())
            words = f"{n:,} of {len(part):,} {name} pairs are longer than the context of {sizes.n_ctx} tokens and are"
            found += [f"{words} {what} (--set n_ctx={int(longer.max())} reads all)."] if n else []
        return found

    def yardstick_nats(self, data: PairCorpus) -> float:
        """Nats per validation target token under the unigram counts of the training targets, one added to each."""
        size = data.tokenizer.d_vocab
        counts = np.bincount(data.train.target.ids.astype(np.int64), minlength=size) + 1
        return float(-np.log(counts / counts.sum())[data.val.target.ids.astype(np.int64)].mean())

    def baselines(self, data: PairCorpus, sizes: "Sizes", cache: Path | None) -> Yardsticks:
        """BLEU of the copied source and of word-for-word translation, on the pairs that the model's is taken over."""
        sources, references = self._translated(data)
        dictionary = Dictionary(*data.lines("train"))
        found = {
            "copy": bleu(sources, references)[0],
            "dictionary": bleu([dictionary.translate(line) for line in sources], references)[0],
        }
        return Yardsticks(summary=found, facts={"bleu": found})

    # batches and losses

    def train_batch(self, corpus: PairCorpus, sizes: "Sizes", seed: int, step: int, examples: np.ndarray) -> Batch:
        """The pairs of these buckets; see `Task.train_batch`."""
        buckets = [train_bucket(corpus.train, sizes.n_ctx, BUCKET_TOKENS, seed, int(e)) for e in examples]
        names = [(int(e) << 24) + np.arange(len(b)) for e, b in zip(examples, buckets, strict=True)]
        batch = _batch(corpus.train, np.concatenate(buckets), corpus.tokenizer)
        return batch._replace(examples=torch.from_numpy(np.concatenate(names)), smoothing=SMOOTHING)

    def val_batches(self, corpus: PairCorpus, sizes: "Sizes", batch_size: int) -> Iterator[Batch]:
        """Every validation pair once, similar lengths together; what is longer than n_ctx is cut there.

        Batches are of `batch_size` buckets' tokens.
        """
        source, target = (np.minimum(lengths, sizes.n_ctx) for lengths in corpus.val.lengths())
        order, edges = bucket_edges(source, target, batch_size * BUCKET_TOKENS)
        for first, stop in zip(edges, edges[1:], strict=False):
            yield _batch(corpus.val, order[first:stop], corpus.tokenizer, sizes.n_ctx)

    def loss(self, model: EncoderDecoderLM, batch: Batch, drop: Drop | None = None) -> tuple[Tensor, int]:
        """(sum of nats, smoothed where the batch is for training; number of target tokens)."""
        h = _answering(model, batch, drop)
        return linear_cross_entropy(h, *_output(model), batch.targets, batch.smoothing), batch.n_targets

    def score(self, model: EncoderDecoderLM, batch: Batch) -> Scores:
        """Each target token's nats, and whether it is the most probable next token."""
        with torch.no_grad():
            found = token_scores(_answering(model, batch, None), *_output(model), batch.targets)
        return Scores(*found, rows_of(batch))

    def evaluate(self, model: EncoderDecoderLM, data: PairCorpus) -> Evaluation:
        """Loss and BLEU over the validation pairs, translated with the usual beams."""
        found = evaluate(model, self, data)
        sources, references = self._translated(data)
        n, most = len(data.val), len(sources)
        outputs = self.predict(model, data.tokenizer, sources, PredictOptions(cut=True))
        value, interval = bleu(outputs, references)
        label = f"BLEU ({bleu_tokens(references)}, cased)"
        figures = {"bleu": Figure(value, interval, label), "accuracy": found.figures["accuracy"]}
        note = f"BLEU is that of {most:,} of {n:,} validation pairs, spread evenly" if most < n else ""
        return dataclasses.replace(found, figures=figures, note=note)

    def _translated(self, data: PairCorpus) -> list[list[str]]:
        """Sources and references of the validation pairs that BLEU is taken over."""
        n = len(data.val)
        kept = np.linspace(0, n - 1, min(n, self.most_translated or n)).round().astype(int)
        return [[side[i] for i in kept] for side in data.lines("val")]

    def in_brief(self) -> Self:
        """With BLEU over 500 pairs, which a small model translates in 2 s."""
        return dataclasses.replace(self, most_translated=500)

    def judging_seconds(self, data: PairCorpus, sizes: "Sizes") -> float:
        """Measured on 2,862 pairs, 2 + 2 layers of 64; wider models take longer."""
        n = min(len(data.val), self.most_translated or len(data.val))
        return 8e-4 * len(data.val) + 3.5e-3 * n * max(1.0, sizes.d_model / 64)

    # answers

    def predict(
        self, model: EncoderDecoderLM, tokenizer: Tokenizer | None, texts: Sequence[str], options: PredictOptions
    ) -> list[str]:
        """The translation of each line; an empty line stays empty.

        Raises ConfigError for a temperature other than 0 and, unless `options.cut`, for a line beyond n_ctx tokens.
        """
        assert tokenizer is not None, "a task on text has one"
        if options.temperature:
            raise ConfigError(
                f"translations are searched for, not drawn: temperature {options.temperature:g} has no meaning here;"
                f" 0 is greedy, and --beams N keeps N open"
            )
        greedy = options.temperature == 0
        if greedy and options.beams not in (None, 1):
            raise ConfigError(f"temperature 0 is greedy, which keeps one translation open, not {options.beams} beams")
        lines = [line_of(text) for text in texts]
        ids, lengths = encode_lines(tokenizer.of_source, lines)
        sources = np.split(ids, np.cumsum(lengths)[:-1]) if len(lines) else []
        n_ctx, end = model.config.sizes.n_ctx, end_of(tokenizer)
        if options.special:
            sources = [np.append(tokenizer.of_source.encode(" " + line, special=True), end) for line in lines]
        for i, source in enumerate(sources):
            if len(source) > n_ctx:
                if not options.cut:
                    raise ConfigError(f"line {i + 1} has {len(source)} tokens; this model reads {n_ctx}: split it")
                sources[i] = np.append(source[: n_ctx - 1], end)
        how = Search(
            end=end,
            start=start_of(tokenizer),
            beams=1 if greedy else options.beams or DEFAULT_BEAMS,
            length_penalty=DEFAULT_PENALTY if options.length_penalty is None else options.length_penalty,
            banned=sorted(tokenizer.special_ids - {end}),
        )
        asked = [i for i, line in enumerate(lines) if line]
        outputs = [""] * len(lines)
        for i, found in zip(asked, search(model, [sources[i] for i in asked], how), strict=True):
            outputs[i] = decode_line(tokenizer, found.ids)
        return outputs

    def sample_inputs(self, data: PairCorpus) -> list[str]:
        """The first two sources of the validation part."""
        return data.lines("val")[0][:2]

    def shown(self, text: str, output: str) -> str:
        """A source and its translation."""
        return f"{text} -> {output}"


def _batch(pairs: Pairs, numbers: np.ndarray, tokenizer: Tokenizer, n_ctx: int = 0) -> Batch:
    """These pairs as one batch, each in a row of its own; with n_ctx, sides that are longer are cut to it.

    An input is the token that begins a target (its end token, usually), then the target without its end. What fills a
    target stands behind it, where causality hides it, so models are not given its mask.
    """
    start, end = start_of(tokenizer), end_of(tokenizer)
    sources = [pairs.source.document(int(i)) for i in numbers]
    targets = [pairs.target.document(int(i)) for i in numbers]
    if n_ctx:
        sources = [s if len(s) <= n_ctx else np.append(s[: n_ctx - 1], end) for s in sources]
        targets = [t[:n_ctx] for t in targets]
    source, source_real = filled(sources, end)
    target, real = filled(targets, end)
    inputs = np.concatenate([np.full((len(target), 1), start), target[:, :-1]], axis=1)
    full = bool(real.all())
    return Batch(
        inputs=torch.from_numpy(inputs),
        targets=torch.from_numpy(target[real]),
        positions=None if full else torch.from_numpy(np.flatnonzero(real)),
        mask=None if full else torch.from_numpy(real),
        source=torch.from_numpy(source),
        source_mask=None if source_real.all() else torch.from_numpy(source_real),
    )


def _output(model: EncoderDecoderLM) -> tuple[Tensor, Tensor | None]:
    """W_U [d_model, d_vocab] (tied, the transposed view of enc.W_E) and b_U."""
    head, table = model.head, model.enc.embedding.W_E
    assert head is not None and table is not None, "a model of tokens has both"
    return (table.t() if head.W_U is None else head.W_U), head.b_U


def _answering(model: EncoderDecoderLM, batch: Batch, drop: Drop | None) -> Tensor:
    """What W_U is applied to at the positions that have a target: [n_targets, d_model]."""
    assert batch.source is not None and model.head is not None, "a batch of pairs"
    h = model.hidden(batch.source, batch.inputs, source_mask=batch.source_mask, drop=drop).flatten(0, 1)
    return model.head.transformed(h if batch.positions is None else F.embedding(batch.positions, h))
