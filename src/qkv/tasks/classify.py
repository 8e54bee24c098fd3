"""Telling classes of texts apart: one answer to a whole text, from the mean of its vectors after the last layer.

Loss is in nats per text; the figure is accuracy, 0..1. Texts lie side by side in rows (`qkv.data.packing`), so a
short phrase costs its own tokens and no padding; positions attend within their own text. A text over n_ctx is cut.

Training texts are made harder, each draw by name. Every token is left out with probability `word_dropout`, so that the
model has to say the same of what is left (Iyyer et al. 2015, ACL, "Deep unordered composition rivals syntactic
methods"). A share `disturbed` of texts gets a class drawn evenly from all (Xie et al. 2016, arXiv 1605.00055), which in
the mean is a smoothed label: the model may not be surer than that. So the training loss is above what the same texts
cost undisturbed; validation disturbs nothing.

With `teachers`, trainings of the same task by other seeds are asked what a text is once words are left out of it, and
their mean probabilities are learned in the place of its class (`qkv.recipe.teaching`). A share `joined` of the texts
then has another behind it: answers to what teachers were not trained on say most that the labels do not.

With `--from` the body of a masked or causal run is taken over under a new head, and trained on (fine-tuned) or held
with `--only head` (feature-based); the difference between the two was drawn by Devlin et al. 2018, section 5.3.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.baseline.linear import Linear, log_softmax, of_classes
from qkv.data.config import DataConfig, LabelledOptions
from qkv.data.examples import Examples, Labelled, encoded, load_examples, n_columns
from qkv.data.packing import once_an_epoch, pack_rows
from qkv.errors import ConfigError
from qkv.jsontypes import JsonObject
from qkv.models.embedding import word_means
from qkv.models.layout import Sizes
from qkv.models.zoo import TextClassifier
from qkv.randomness import uniforms
from qkv.tasks.batch import Batch, rows_of
from qkv.tasks.combined import Combined, calibration, combine
from qkv.tasks.data import class_yardsticks
from qkv.tasks.evaluation import loss_interval, wilson
from qkv.tasks.figures import Evaluation, Figure, Scores
from qkv.tasks.task import Drop, PredictOptions, Progress, Ranked, Task, Yardsticks, ranked
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.tokens import Tokens

LONGEST = 256
"""Most positions that n_ctx is chosen to hold; more can be set."""
_WIDTH = 64
"""Rows are at least so wide where a batch fills them: wider ones waste attention, narrower ones leave gaps."""
PREDICTED = 128
"""Texts answered at a time."""


@dataclass(frozen=True, kw_only=True)
class Classify(Task[Examples, TextClassifier]):
    """The task `classify`. Raises ConfigError for a share out of range."""

    name: str = "classify"
    model_kind: str = "Classifier"
    word_dropout: float = 0.3
    """Probability with which a token is left out of a training text; one token always stays."""
    disturbed: float = 0.2
    """Probability with which a training text gets a class drawn evenly from all instead of its own."""
    columns: int = 1
    """How many texts each one is made of, with [SEP] between them."""
    teachers: Callable[[Batch], Tensor] | None = field(default=None, repr=False, compare=False)
    """Gives the probabilities [n_texts, n_classes] that a training batch is to be answered with; None: its classes."""
    joined: float = 0.0
    """Probability with which a training text that teachers answer has another behind it, where n_ctx holds both."""
    combined: Combined | None = field(default=None, repr=False, compare=False)
    """The linear model that attention is added to in answers and figures; None: attention answers alone."""

    shape: ClassVar[str] = "class"
    """What each text has (`qkv.data.labelled.SHAPES`)."""
    size_law: ClassVar[str] = "labelled texts"
    starts_from: ClassVar[Mapping[str, str]] = {
        "MaskedLM": "Classifier",
        "CausalLM": "CausalClassifier",
        "Classifier": "Classifier",
        "CausalClassifier": "CausalClassifier",
    }
    tokenizer: ClassVar[str] = "word"
    label_column: ClassVar[bool] = True
    examples: ClassVar[str] = "texts"
    target: ClassVar[str] = "text"
    prompt: ClassVar[str] = "a text to label"
    predict_options: ClassVar[tuple[str, ...]] = ("special",)
    too_long: ClassVar[str] = "its end is not read"
    judged: ClassVar[bool] = True
    taught: ClassVar[bool] = True
    yardsticks: ClassVar[Mapping[str, str]] = {
        "majority": "the commonest class",
        "tfidf": "TF-IDF + logistic regression",
    }
    unscored: ClassVar[str] = ""
    """What is said of --scores where it has no meaning."""
    companion: ClassVar[str] = "linear.safetensors"
    counts: ClassVar[type[Linear]] = Linear
    """What the linear model counts."""

    def __post_init__(self) -> None:
        if not 0 <= self.joined <= 1:
            raise ConfigError(f"joined is {self.joined}; expected a share from 0 to 1")

    # data and sizes

    def with_settings(self, config: DataConfig) -> Self:
        """With the options of labelled texts."""
        options = config.labels or LabelledOptions()
        return dataclasses.replace(
            self, word_dropout=options.word_dropout, disturbed=options.disturbed, columns=n_columns(config)
        )

    def load(self, config: DataConfig, *, cache: Path | None, progress: Progress | None = None) -> Examples:
        """By `qkv.data.examples.load_examples`."""
        return load_examples(config, cache=cache, progress=progress, shape=self.shape)

    def classes(self, data: Examples) -> tuple[str, ...]:
        """As the labels are written."""
        return data.classes

    def needed_positions(self, data: Examples) -> int:
        """The longest text of either part, in steps of 16 from 64 to 256."""
        longest = max(int(part.lengths.max()) for part in (data.train, data.val))
        return min(LONGEST, max(_WIDTH, -(-longest // 16) * 16))

    def positions(self, data: Examples, sizes: Sizes) -> int:
        """The mean length of a training text, as far as n_ctx holds it."""
        return max(1, round(float(np.minimum(data.train.lengths, sizes.n_ctx).mean())))

    def cautions(self, data: Examples, sizes: Sizes) -> list[str]:
        """How many texts are cut."""
        lengths = np.concatenate([data.train.lengths, data.val.lengths])
        n = int((lengths > sizes.n_ctx).sum())
        what = f"{n:,} of {len(lengths):,} texts are longer than the context of {sizes.n_ctx} tokens and are cut there"
        return [f"{what} (--set n_ctx={int(lengths.max())} reads all)."] if n else []

    def yardstick_nats(self, data: Examples) -> float:
        """The entropy of the training classes, of values as points."""
        wanted, n = data.train.wanted, len(data.train)
        share = np.bincount(data.train.classes) / n if wanted is None else wanted.mean(0, dtype=np.float64)
        return float(-(share[share > 0] * np.log(share[share > 0])).sum())

    def baselines(self, data: Examples, sizes: "Sizes", cache: Path | None) -> Yardsticks:
        """The commonest class, and TF-IDF with logistic regression where scikit-learn is installed."""
        from qkv.data.baseline.classes import labelled_baselines

        return class_yardsticks(labelled_baselines(data), "tfidf")

    def judging_seconds(self, data: Examples, sizes: Sizes) -> float:
        """That of a table of usual size."""
        return 2.0

    def baselines_seconds(self, data: Examples, sizes: Sizes, cache: Path | None) -> float:
        """By the characters that the linear model counts: 5 to 6 s for a million (SST-2's phrases, two EPYC cores)."""
        if data.keeps_linear:
            return 0.0
        return 5.5e-6 * sum(map(len, data.train.texts)) * len(data.counted) / len(data.train)

    # batches and losses

    def train_batch(self, corpus: Examples, sizes: Sizes, seed: int, step: int, examples: np.ndarray) -> Batch:
        """Every text once an epoch, in an order of its own; see `Task.train_batch`."""
        part, rows = corpus.train, corpus.trained
        index = np.asarray(examples, dtype=np.int64)
        texts = rows[once_an_epoch(len(rows), seed, "texts", index)]
        ids, lengths = _cut(part, texts, sizes.n_ctx)
        if self.joined and self.teachers is not None:
            ids, lengths = self._behind(part, rows, texts, lengths, sizes.n_ctx, seed, step, index)
        if self.word_dropout:
            ids, lengths = self._thinned(ids, lengths, seed, step, index)
        classes = part.classes[texts]
        if self.disturbed and part.wanted is None:
            other = uniforms(index, seed, "disturbed", step) < self.disturbed
            any_class = (uniforms(index, seed, "disturbed class", step) * len(corpus.classes)).astype(np.int64)
            classes = np.where(other, any_class, classes)
        batch = batch_of(ids, lengths, classes, sizes.n_ctx)
        answers = _wanted(part, texts) if self.teachers is None else self.teachers(batch)
        if corpus.weights is not None:
            wanted = F.one_hot(batch.targets, len(corpus.classes)).float() if answers is None else answers
            answers = wanted * torch.from_numpy(corpus.weights[part.classes[texts]]).float()[:, None]
        return batch if answers is None else batch._replace(answers=answers)

    def _behind(
        self,
        part: Labelled,
        rows: np.ndarray,
        texts: np.ndarray,
        lengths: np.ndarray,
        n_ctx: int,
        seed: int,
        step: int,
        examples: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The texts, some with any other one behind them: tokens and lengths, as `_cut`."""
        others = rows[(uniforms(examples, seed, "behind", step) * len(rows)).astype(np.int64)]
        both = uniforms(examples, seed, "joined", step) < self.joined
        both &= lengths + np.minimum(part.lengths[others], n_ctx) <= n_ctx
        pieces = np.repeat(texts, 1 + both)
        firsts = np.arange(len(texts)) + np.cumsum(both) - both
        pieces[firsts[both] + 1] = others[both]
        ids, each = _cut(part, pieces, n_ctx)
        return ids, np.add.reduceat(each, firsts)

    def _thinned(
        self, ids: np.ndarray, lengths: np.ndarray, seed: int, step: int, examples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Some tokens left out of each text: what stays, and the lengths of that."""
        owners = np.repeat(np.arange(len(lengths)), lengths)
        firsts = np.cumsum(lengths) - lengths
        places = np.arange(len(ids)) - firsts[owners]
        draws = uniforms(examples[owners] * (1 << 20) + places, seed, "word dropout", step)
        stays = draws >= self.word_dropout
        stays |= draws == np.maximum.reduceat(draws, firsts)[owners]  # the likeliest to stay does
        return ids[stays], np.add.reduceat(stays.astype(np.int64), firsts)

    def val_batches(self, corpus: Examples, sizes: Sizes, batch_size: int) -> Iterator[Batch]:
        """The whole validation part in its order, nothing left out."""
        part = corpus.val
        for first in range(0, len(part), batch_size):
            texts = np.arange(first, min(first + batch_size, len(part)))
            batch = batch_of(*_cut(part, texts, sizes.n_ctx), part.classes[texts], sizes.n_ctx)
            yield batch._replace(answers=_wanted(part, texts))

    def loss(self, model: TextClassifier, batch: Batch, drop: Drop | None = None) -> tuple[Tensor, int]:
        """(sum of nats, number of texts); see `Task.loss`."""
        logits = text_logits(model, batch, drop)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        wanted = batch.targets if batch.answers is None else batch.answers
        return F.cross_entropy(logits, wanted, reduction="sum"), batch.n_targets

    def answers(self, model: TextClassifier, batch: Batch) -> Tensor:
        """The probability of each class for each text of a batch: float32 [n_texts, n_classes]."""
        return text_logits(model, batch, None).float().softmax(-1)

    def score(self, model: TextClassifier, batch: Batch) -> Scores:
        """Each text's nats, and whether its class, or the point nearest to its value, is the most probable one."""
        with torch.no_grad():
            logits = text_logits(model, batch, None).float()
            nats = F.cross_entropy(logits, batch.targets if batch.answers is None else batch.answers, reduction="none")
            rows = rows_of(batch) if batch.words is not None else torch.arange(batch.n_targets, device=logits.device)
            return Scores(nats, logits.argmax(-1) == batch.targets, rows)

    def evaluate(self, model: TextClassifier, data: Examples) -> Evaluation:
        """Loss, and accuracy with Wilson's interval over the validation texts."""
        attention = self._logits_of(model, data.val, np.arange(len(data.val)))
        said = self._together(data.val.read, attention)
        nats, sizes = data.val.by_text(self._nats_of(said, data.val))
        (loss, interval), n = loss_interval(nats, sizes), int(sizes.sum())
        figures = self._judged(said, data.val)
        if self.combined is not None:
            figures["stored_loss"] = Figure(loss, interval, f"nats per {self.target} of the stored model")
        figures |= self._parts(attention, data.val)
        return Evaluation(loss=loss, loss_interval=interval, figures=figures, n_targets=n, n_windows=len(sizes))

    def _together(self, texts: list[str], attention: np.ndarray) -> np.ndarray:
        """What attention says of texts, with the linear model where there is one; shape and unit stay."""
        return attention if self.combined is None else self.combined.logits(texts, attention)

    def _parts(self, attention: np.ndarray, part: Labelled) -> dict[str, Figure]:
        """The metric of the linear model and of attention alone; none without a linear model."""
        if self.combined is None:
            return {}
        counted = self.combined.counted(part.read)
        figures = {
            f"linear_{self.metric}": self._metric(counted, part, " of the linear model alone", 1),
            f"attention_{self.metric}": self._metric(attention, part, " of attention alone", 2),
            "attention_share": Figure(self.combined.share, None, "weight of attention"),
        }
        if (folded := self.combined.folded) is not None:
            about = "accuracy of the linear model, cross-validated on the training texts"
            figures["linear_cross_validated"] = Figure(folded[0], (folded[1], folded[2]), about)
        return figures

    def _nats_of(self, said: np.ndarray, part: Labelled) -> np.ndarray:
        """The loss of each text, by what is said of it."""
        return of_classes(part.classes)(said)[0]

    def _metric(self, said: np.ndarray, part: Labelled, of: str = "", which: int = 0) -> Figure:
        """The task's metric of what the model (0), the linear model (1) or attention (2) says of a part."""
        share = float((said.argmax(1) == part.classes).mean())
        return Figure(share, wilson(share, len(said)), f"accuracy{of}")

    def _judged(self, said: np.ndarray, part: Labelled) -> dict[str, Figure]:
        """The figures of what the model says, the metric first."""
        error, chance = calibration(np.exp(log_softmax(said)), part.classes)
        return {
            self.metric: self._metric(said, part),
            "calibration_error": Figure(error, None, "calibration error (15 bins of equally many)"),
            "calibration_by_chance": Figure(chance, None, "expected of exact probabilities"),
        }

    def decisions(self, model: TextClassifier, data: Examples) -> JsonObject:
        """See `qkv.tasks.labels.decisions`; empty for labels of other shapes."""
        from qkv.tasks.labels.decisions import decisions

        if self.shape != "class":
            return {}
        attention = self._logits_of(model, data.val, np.arange(len(data.val)))
        linear = None if self.combined is None else self.combined.linear
        said = self._together(data.val.texts, attention)
        return decisions(data.val, data.classes, said, lambda texts: self.said(model, data.tokenizer, texts), linear)

    def completed(self, model: TextClassifier, data: Examples) -> tuple[Self, bytes]:
        """With the linear model, weighed on texts that attention was not trained on."""
        attention = self._logits_of(model, data.train, data.weighed)
        combined = self._chosen(combine(data, attention), data, attention)
        return dataclasses.replace(self, combined=combined), combined.stored()

    def _chosen(self, combined: Combined, data: Examples, attention: np.ndarray) -> Combined:
        """With what else is chosen on the texts that both parts are weighed on, of which attention says this."""
        return combined

    def with_companion(self, content: bytes) -> Self:
        """With a linear model that was stored."""
        return dataclasses.replace(self, combined=Combined.read(content, self.counts))

    def _logits_of(self, model: TextClassifier, part: Labelled, texts: np.ndarray) -> np.ndarray:
        """What attention says of some texts of a part: float64 [n, n_classes]."""
        device, found = next(model.parameters()).device, [np.zeros((0, len(model.config.classes)))]
        for first in range(0, len(texts), PREDICTED):
            chunk = texts[first : first + PREDICTED]
            batch = batch_of(*_cut(part, chunk, model.sizes.n_ctx), part.classes[chunk], model.sizes.n_ctx)
            with torch.no_grad():
                found.append(text_logits(model, batch.to(device), None).double().cpu().numpy())
        return self._said(model, np.concatenate(found))

    def _said(self, model: TextClassifier, logits: np.ndarray) -> np.ndarray:
        """What the model's logits [n, n_classes] say, as it is added to what the linear model says."""
        return logits

    # answers

    def predict(
        self, model: TextClassifier, tokenizer: Tokenizer | None, texts: Sequence[str], options: PredictOptions
    ) -> list[str]:
        """The label of each text, as it was written in the training file."""
        assert tokenizer is not None, "a task on text has one"
        found = self.probabilities(model, tokenizer, texts, options.special)
        return [model.config.classes[i] for i in found.argmax(1)]

    def scores(
        self, model: TextClassifier, tokenizer: Tokenizer | None, texts: Sequence[str], k: int, options: PredictOptions
    ) -> list[Ranked]:
        """The k most probable labels of each text. Raises ConfigError where `unscored` says why there are none."""
        if self.unscored:
            raise ConfigError(f"--scores has no meaning for the task {self.name}{self.unscored}")
        assert tokenizer is not None, "a task on text has one"
        found = self.probabilities(model, tokenizer, texts, options.special)
        return [ranked(model.config.classes.__getitem__, p, k) for p in found]

    def probabilities(
        self, model: TextClassifier, tokenizer: Tokenizer, texts: Sequence[str], special: bool = False
    ) -> np.ndarray:
        """The probability of each class for each text: float64 [n_texts, n_classes]."""
        return np.exp(log_softmax(self.said(model, tokenizer, texts, special)))

    def said(
        self, model: TextClassifier, tokenizer: Tokenizer, texts: Sequence[str], special: bool = False
    ) -> np.ndarray:
        """What the model says of each text, before a softmax: float64 [n_texts, n_classes]."""
        ids, lengths = encoded(tokenizer, list(texts), self.columns, special)
        tokens = Tokens.of(ids, lengths, texts, tokenizer.d_vocab, None)
        part = Labelled(tokens=tokens, classes=np.zeros(len(texts), dtype=np.int64), texts=list(texts))
        return self._together(part.texts, self._logits_of(model, part, np.arange(len(part))))

    def sample_inputs(self, data: Examples) -> list[str]:
        """The first validation text of each class, three at most."""
        _, firsts = np.unique(data.val.classes, return_index=True)
        return [data.val.texts[i] for i in sorted(firsts)[:3]]

    def shown(self, text: str, output: str) -> str:
        """The label, then the text."""
        return f"{output}\t{text}"


def _wanted(part: Labelled, texts: np.ndarray) -> Tensor | None:
    """What is to be answered of these texts, [n, n_classes]; None where each has its class."""
    return None if part.wanted is None else torch.from_numpy(part.wanted[texts])


def _cut(part: Labelled, texts: np.ndarray, n_ctx: int) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of these texts one behind another, int64 [n_tokens], each cut at n_ctx, and their lengths [n]."""
    starts = part.tokens.offsets[texts]
    lengths = np.minimum(part.tokens.offsets[texts + 1] - starts, n_ctx)
    places = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return part.ids.take(np.repeat(starts, lengths) + places).astype(np.int64), lengths


def batch_of(ids: np.ndarray, lengths: np.ndarray, classes: np.ndarray, n_ctx: int) -> Batch:
    """Texts in rows; `documents` holds each position's text, the number of texts where nothing lies."""
    rows = pack_rows(ids, lengths, max(int(lengths.max()), min(_WIDTH, n_ctx, int(lengths.sum()))))
    owners = torch.from_numpy(rows.owners)
    return Batch(
        inputs=torch.from_numpy(rows.ids),
        targets=torch.from_numpy(np.ascontiguousarray(classes)),
        mask=owners < len(lengths),
        documents=owners,
        places=torch.from_numpy(rows.places),
    )


def text_logits(model: TextClassifier, batch: Batch, drop: Drop | None) -> Tensor:
    """Logits [n_texts, n_classes] of the texts of a batch, or [n_words, n_classes] of its words."""
    assert batch.documents is not None and batch.places is not None and batch.mask is not None
    inside = None
    if drop is not None:
        inside = drop.placed(torch.where(batch.mask, batch.documents, 0), batch.places)
    h = model.hidden(batch.inputs, documents=batch.documents, drop=inside, types=batch.types)
    if batch.words is not None and batch.positions is not None:
        return model.head(word_means(h, batch.words, batch.positions))
    pooled = model.pooled(h, batch.documents, batch.n_targets)
    return model.head(pooled if drop is None else drop("pooled", pooled))
