"""Giving each word of a text a label: parts of speech, or named entities as spans of words.

A word's vector is the mean of the vectors of its tokens after the last layer, so it has read the whole text (over a
causal body, what comes before the word's end). Loss is in nats per word. A text longer than n_ctx is read in pieces of
whole words, in training too. While training, a share `word_dropout` of the tokens is shown as the unknown one, so that
a label is also learned from what is around a word (Kiperwasser and Goldberg 2016, TACL 4); a tokenizer without such a
token hides none.

The figure is accuracy over words. Where all labels are O, B-X or I-X, it is the F1 of entities: spans count as right if
both ends and the label are (Tjong Kim Sang and De Meulder 2003, CoNLL), read as the script of that task reads them, and
labels are chosen together (`decoding`). Intervals resample texts, since words of one text are not independent.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor

from qkv.data.baseline.classes import labelled_baselines
from qkv.data.baseline.linear import Linear, log_softmax
from qkv.data.baseline.words import Counted, OfWords
from qkv.data.examples import Cut, Examples, Labelled, LabelledWords, labelled_words
from qkv.data.packing import once_an_epoch, pack_rows
from qkv.data.sources.tagged import OUTSIDE, words_of
from qkv.jsontypes import JsonObject
from qkv.models.layout import Sizes
from qkv.models.zoo import TextClassifier
from qkv.randomness import uniforms
from qkv.tasks.batch import Batch, Drop
from qkv.tasks.classify import PREDICTED, Classify, batch_of, text_logits
from qkv.tasks.combined import Combined
from qkv.tasks.evaluation import bootstrap
from qkv.tasks.figures import Figure
from qkv.tasks.labels.decisions import label_table, word_decisions
from qkv.tasks.labels.decoding import Entity, choose, compared, decoded, entities, hits
from qkv.tasks.task import PredictOptions, Yardsticks
from qkv.tokenizers.tokenizer import Tokenizer

_SPAN_LABEL = re.compile(r"[BIESLU]-.+", re.DOTALL)
_SHORT = 120
"""Characters of a sample at most, where a text is so short."""


@dataclass(frozen=True, kw_only=True)
class Tag(Classify):
    """The task `tag`."""

    name: str = "tag"
    shape: ClassVar[str] = "words"
    target: ClassVar[str] = "word"
    asked: ClassVar[str] = "the label of each word"
    prompt: ClassVar[str] = "a text whose words to label"
    predict_options: ClassVar[tuple[str, ...]] = ()
    too_long: ClassVar[str] = ""
    picks: ClassVar[bool] = False
    exported: ClassVar[bool] = False
    taught: ClassVar[bool] = False
    unscored: ClassVar[str] = "; --json gives the probability of each label"
    counts: ClassVar[type[Linear]] = OfWords
    yardsticks: ClassVar[Mapping[str, str]] = {
        "majority": "the most frequent label",
        "by_word": "the most frequent label of each word",
        "linear": "logistic regression on words, neighbors and affixes",
    }

    def of_classes(self, classes: Sequence[str]) -> Self:
        """`Entities` where the classes are labels of spans."""
        others = [name for name in classes if name != OUTSIDE]
        if not others or not all(map(_SPAN_LABEL.fullmatch, others)):
            return self
        given = {one.name: getattr(self, one.name) for one in dataclasses.fields(Tag)}
        return cast(Self, Entities(names=tuple(classes), **given))

    # data and batches

    def cautions(self, data: Examples, sizes: Sizes) -> list[str]:
        """How many texts are read in pieces."""
        n = int((np.concatenate([data.train.lengths, data.val.lengths]) > sizes.n_ctx).sum())
        return [f"{n:,} texts are longer than the context of {sizes.n_ctx} tokens and are read in pieces."] * bool(n)

    def baselines(self, data: Examples, sizes: Sizes, cache: Path | None) -> Yardsticks:
        """The most frequent label of each word, and logistic regression."""
        train, val = _words(data.train), _words(data.val)
        found, judge = labelled_baselines(data), cast(Tag, self.of_classes(data.classes))
        counted = Counted(train.words, train.classes).answers(val.words)
        usual = np.full(len(val), np.bincount(train.classes).argmax())
        answers = {"majority": usual, "by_word": counted, "linear": data.linear[0].logits(val.read).argmax(1)}
        scores = {name: judge.figure(some, val).value for name, some in answers.items()}
        nats = {"majority": found.majority_nats, "linear": found.linear_nats}
        note = found.note.replace("TF-IDF", "the linear model").replace("texts", "words")
        return Yardsticks(summary=scores, nats=nats, facts=nats | {judge.metric: scores, "note": note}, note=note)

    def train_batch(self, corpus: Examples, sizes: Sizes, seed: int, step: int, examples: np.ndarray) -> Batch:
        """Every piece once an epoch, in an order of its own; see `Task.train_batch`."""
        part, index = _words(corpus.train), np.asarray(examples, dtype=np.int64)
        pieces = part.pieces(sizes.n_ctx)
        free = np.flatnonzero(~corpus.held[pieces[:, 0]])
        chosen = pieces[free[once_an_epoch(len(free), seed, "texts", index)]]
        ids, lengths, words = part.cut(chosen, sizes.n_ctx)
        unknown = corpus.tokenizer.unknown_id
        if self.word_dropout and unknown is not None:
            owners = np.repeat(np.arange(len(lengths)), lengths)
            places = np.arange(len(ids)) - (np.cumsum(lengths) - lengths)[owners]
            hidden = uniforms(index[owners] * (1 << 20) + places, seed, "word dropout", step) < self.word_dropout
            ids = np.where(hidden, unknown, ids)
        return self._batch(part, (ids, lengths, words), sizes)[0]

    def val_batches(self, corpus: Examples, sizes: Sizes, batch_size: int) -> Iterator[Batch]:
        """All pieces of the validation part in their order, nothing hidden."""
        part = _words(corpus.val)
        pieces = part.pieces(sizes.n_ctx)
        for first in range(0, len(pieces), batch_size):
            yield self._batch(part, part.cut(pieces[first : first + batch_size], sizes.n_ctx), sizes)[0]

    def _batch(self, part: LabelledWords, cut: Cut, sizes: Sizes) -> tuple[Batch, np.ndarray]:
        """Pieces in rows, and the number in the part of each word that is asked for."""
        ids, lengths, words = cut
        batch = batch_of(ids, lengths, lengths, sizes.n_ctx)
        assert batch.mask is not None and batch.documents is not None
        mask, owners = batch.mask.numpy(), batch.documents.numpy()
        # a word that occurs twice in a batch, in pieces that follow each other, is two words
        word = np.where(mask, pack_rows(words, lengths, mask.shape[1]).ids, -1)
        changes = (word[:, 1:] != word[:, :-1]) | (owners[:, 1:] != owners[:, :-1])
        begins, ends = (mask & np.pad(changes, ((0, 0), side), constant_values=True) for side in ((1, 0), (0, 1)))
        positions = np.flatnonzero(ends)
        numbers, at = word.ravel()[positions], torch.from_numpy(np.where(mask, np.cumsum(begins, axis=1) - 1, -1))
        targets = torch.from_numpy(part.classes[numbers])
        return batch._replace(targets=targets, positions=torch.from_numpy(positions), words=at), numbers

    def _logits_of(self, model: TextClassifier, part: Labelled, texts: np.ndarray) -> np.ndarray:
        """What attention says of some words of a part: float64 [n, n_classes]."""
        words, device, sizes = _words(part), next(model.parameters()).device, model.sizes
        asked = np.zeros(len(part) + 1, dtype=np.int64)
        asked[texts + 1] = 1
        pieces, before = words.pieces(sizes.n_ctx), np.cumsum(asked)
        pieces = pieces[before[pieces[:, 1]] > before[pieces[:, 0]]]
        found, times = np.zeros((len(part), len(model.config.classes))), np.zeros((len(part), 1))
        for first in range(0, len(pieces), PREDICTED):
            batch, numbers = self._batch(words, words.cut(pieces[first : first + PREDICTED], sizes.n_ctx), sizes)
            with torch.no_grad():
                np.add.at(found, numbers, self._said_of(model, batch.to(device), None).double().cpu().numpy())
            np.add.at(times, numbers, 1)
        return found[texts] / times[texts]

    def _said_of(self, model: TextClassifier, batch: Batch, drop: Drop | None) -> Tensor:
        """Logits [n_words, n_classes]; of a word in several pieces the mean answers."""
        return text_logits(model, batch, drop)

    # figures

    def figure(self, answers: np.ndarray, part: Labelled, of: str = "") -> Figure:
        """The metric of answers int64 [n_words], with its interval over texts."""
        right, n = _words(part).by_text((answers == part.classes).astype(np.float64))
        return Figure(*bootstrap(right[:, None], n[:, None]), f"accuracy{of}")

    def _metric(self, said: np.ndarray, part: Labelled, of: str = "", which: int = 0) -> Figure:
        return self.figure(said.argmax(1) if which else self._answered(said, _words(part).owners), part, of)

    def _answered(self, said: np.ndarray, owners: np.ndarray) -> np.ndarray:
        """The label of each word, int64 [n], by what the model says of it [n, n_classes]."""
        if self.combined is None or self.combined.transitions is None:
            return said.argmax(1)
        return decoded(log_softmax(said), owners, self.combined.transitions)

    def decisions(self, model: TextClassifier, data: Examples) -> JsonObject:
        """See `qkv.tasks.labels.decisions.word_decisions`."""
        val = _words(data.val)
        said = self._together(val.read, self._logits_of(model, val, np.arange(len(val))))
        answers = self._answered(said, val.owners)
        return word_decisions(val, data.classes, said, answers) | {"labels": self._by_label(answers, val, data.classes)}

    def _by_label(self, answers: np.ndarray, part: LabelledWords, names: Sequence[str]) -> list[JsonObject]:
        """Of each label."""
        right = answers == part.classes
        counts = (np.bincount(some, minlength=len(names)) for some in (answers[right], answers, part.classes))
        return label_table(names, *counts)

    # answers

    def predict(
        self, model: TextClassifier, tokenizer: Tokenizer | None, texts: Sequence[str], options: PredictOptions
    ) -> list[str]:
        """Each text as word/label word/label."""
        return [
            " ".join(f"{one['text']}/{one['label']}" for one in found) for found in self.spans(model, tokenizer, texts)
        ]

    def spans(self, model: TextClassifier, tokenizer: Tokenizer | None, texts: Sequence[str]) -> list[list[JsonObject]]:
        """Each word or entity, and how probable its least probable label is; see `Presentation.spans`."""
        assert tokenizer is not None, "a task on text has one"
        part = labelled_words(list(texts), [words_of(text) for text in texts], None, tokenizer)
        said = self._together(part.read, self._logits_of(model, part, np.arange(len(part))))
        answers, found = self._answered(said, part.owners), [[] for _ in texts]
        sure = np.exp(log_softmax(said)[np.arange(len(said)), answers])
        for first, end, label in self._found(answers, part.owners, model.config.classes):
            text, (start, until) = int(part.owners[first]), (part.spans[first][0], part.spans[end - 1][1])
            found[text].append(
                {"start": int(start), "end": int(until), "text": texts[text][start:until], "label": label,
                 "probability": float(sure[first:end].min())}
            )  # fmt: skip
        return found

    def _found(self, answers: np.ndarray, owners: np.ndarray, names: tuple[str, ...]) -> list[Entity]:
        """What is labeled."""
        return [(i, i + 1, names[label]) for i, label in enumerate(answers.tolist())]

    def sample_inputs(self, data: Examples) -> list[str]:
        """The first three validation texts of at most 120 characters, or the first one."""
        short = [text for text in data.val.texts if len(text) <= _SHORT]
        return short[:3] or data.val.texts[:1]

    def shown(self, text: str, output: str) -> str:
        """The words with their labels."""
        return output


@dataclass(frozen=True, kw_only=True)
class Entities(Tag):
    """The task `tag` where labels are those of spans: one entity from a B-X on, or from an I-X that continues no X."""

    metric: ClassVar[str] = "entity_f1"
    asked: ClassVar[str] = "the entities"
    names: tuple[str, ...]
    """The classes by number."""

    def figure(self, answers: np.ndarray, part: Labelled, of: str = "") -> Figure:
        """The F1 of entities, with its interval over texts."""
        found = hits(answers, _words(part), self.names)
        return Figure(*bootstrap(found[0][:, None], found[1][:, None]), f"entity F1{of}")

    def _chosen(self, combined: Combined, data: Examples, attention: np.ndarray) -> Combined:
        """With what gives the highest F1."""
        return choose(combined, attention, data, self.names)

    def _judged(self, said: np.ndarray, part: Labelled) -> dict[str, Figure]:
        answers = self._answered(said, _words(part).owners)
        n_right, n_given, n_there = map(len, compared(answers, _words(part), self.names))
        weight, penalty = (0.0, 0.0) if self.combined is None else self.combined.decoding
        more = {
            "entity_precision": Figure(n_right / max(1, n_given), None, "precision of entities"),
            "entity_recall": Figure(n_right / max(1, n_there), None, "recall of entities"),
            "accuracy": super().figure(answers, part),
            "transition_weight": Figure(weight, None, "weight of transitions between labels"),
            "outside_penalty": Figure(penalty, None, "penalty of the label O, nats"),
        }
        return super()._judged(said, part) | more

    def _by_label(self, answers: np.ndarray, part: LabelledWords, names: Sequence[str]) -> list[JsonObject]:
        """Of each kind of entity."""
        kinds = sorted({name[2:] for name in names if name != OUTSIDE})
        counts = [Counter(kind for _, _, kind in some) for some in compared(answers, part, names)]
        return label_table(kinds, *(np.array([count[kind] for kind in kinds]) for count in counts))

    def predict(
        self, model: TextClassifier, tokenizer: Tokenizer | None, texts: Sequence[str], options: PredictOptions
    ) -> list[str]:
        """Each text, its entities as [words](label)."""
        outputs = []
        for text, found in zip(texts, self.spans(model, tokenizer, texts), strict=True):
            for one in reversed(found):
                text = f"{text[: one['start']]}[{one['text']}]({one['label']}){text[one['end'] :]}"
            outputs.append(text)
        return outputs

    def _found(self, answers: np.ndarray, owners: np.ndarray, names: tuple[str, ...]) -> list[Entity]:
        return entities(answers, owners, names)


def _words(part: Labelled) -> LabelledWords:
    """The part, whose words have classes."""
    assert isinstance(part, LabelledWords)
    return part
