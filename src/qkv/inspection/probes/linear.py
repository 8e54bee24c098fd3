"""Linear probes by layer: how much of some labels can be read off the vectors by logistic regression.

A probe learns from four fifths of the texts and is judged on the rest, each coordinate brought to mean 0 and deviation
1. Its accuracy says little alone: next to it are the most frequent class, of words the most frequent label of each
word, and the control task (Hewitt and Liang 2019, EMNLP): labels drawn at random for each word (for each text), as
frequent as the real ones. Accuracy minus that of the control is the selectivity.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qkv.data.baseline.linear import classes_of, fit_dense
from qkv.data.sources.tagged import TaggedText
from qkv.errors import UserError
from qkv.inspection.contextual import Contextual
from qkv.randomness import generator
from qkv.tasks.evaluation import ratio_interval, wilson

MOST_LABELS = 20_000
"""Texts are read until there are so many labels."""
_TEST = 0.2
_TOLERANCE = 1e-7


class Items(NamedTuple):
    """What is probed: n vectors of each layer, with labels."""

    layers: Sequence[str]
    vectors: np.ndarray
    """float32 [n, layers, d_model]."""
    labels: list[str]
    names: list[str]
    """The word, or the text, that each vector is of."""
    texts: np.ndarray
    """int64 [n]: the text that each is in."""


class LayerProbe(NamedTuple):
    """What can be read off one layer."""

    layer: str
    accuracy: float
    low: float
    """The end of the 95% interval over texts."""
    high: float
    control: float
    selectivity: float


@dataclass(frozen=True, kw_only=True)
class Probes:
    """The probes of all layers, and what they are compared with, on the same items."""

    layers: list[LayerProbe]
    majority: float
    by_word: float | None
    """Accuracy of the most frequent label of each word; None for labels of texts."""
    classes: list[str]
    n_train: int
    n_test: int


def word_items(tagged: Sequence[TaggedText], found: Sequence[Contextual]) -> Items:
    """The last token of each word that has one. Raises UserError where the tokenizer gives no offsets."""
    vectors, labels, names, texts = [], [], [], []
    for i, (sentence, read) in enumerate(zip(tagged, found, strict=True)):
        if read.offsets is None:
            raise UserError(
                "the tokenizer of this run does not say where its tokens are in a text; probe labels of texts"
            )
        for (first, end), word, label in zip(sentence.spans, sentence.words, sentence.labels, strict=True):
            inside = np.flatnonzero((read.offsets[:, 0] < end) & (read.offsets[:, 1] > first))
            if len(inside):
                vectors.append(read.vectors[:, inside[-1]])
                labels.append(label)
                names.append(word)
                texts.append(i)
    return Items(found[0].layers, np.array(vectors), labels, names, np.array(texts, dtype=np.int64))


def text_items(labels: Sequence[str], found: Iterable[Contextual]) -> Items:
    """The mean of each text's tokens."""
    read = [(one.text, one.layers, one.pooled) for one in found]
    pooled = np.array([mean for _, _, mean in read])
    return Items(read[0][1], pooled, list(labels), [text for text, _, _ in read], np.arange(len(read)))


def probe(items: Items, *, by_word: bool) -> Probes:
    """A probe and a control for each layer. Raises UserError for too few texts, or labels, to learn from."""
    n_texts = int(items.texts.max(initial=-1)) + 1
    order = generator("probe", "texts").permutation(n_texts)
    test = np.isin(items.texts, order[: max(1, round(_TEST * n_texts))])
    names = sorted({label for label, is_test in zip(items.labels, test, strict=True) if not is_test})
    if len(names) < 2 or not test.any():
        raise UserError(
            f"{n_texts} texts with {len(set(items.labels))} labels are too few to probe; expected labels of at least"
            " two kinds, in several texts"
        )
    number = {name: i for i, name in enumerate(names)}
    classes = np.array([number.get(label, -1) for label in items.labels])
    types = {name: i for i, name in enumerate(sorted(set(items.names)))}
    owner = np.array([types[name] for name in items.names])
    control = _control(owner, classes[~test], len(names))
    layers = []
    for i, layer in enumerate(items.layers):
        found, random = (_answers(items.vectors[:, i], test, some, len(names)) for some in (classes, control))
        accuracy, low, high = _interval(found == classes[test], items.texts[test])
        chance = float((random == control[test]).mean())
        layers.append(LayerProbe(layer, accuracy, low, high, chance, accuracy - chance))
    most = int(np.bincount(classes[~test]).argmax())
    counted: dict[int, Counter[int]] = defaultdict(Counter)
    for word, known in zip(owner[~test].tolist(), classes[~test].tolist(), strict=True):
        counted[word][known] += 1
    usual = [counted[word].most_common(1)[0][0] if word in counted else most for word in owner[test].tolist()]
    return Probes(
        layers=layers,
        majority=float((classes[test] == most).mean()),
        by_word=float((classes[test] == usual).mean()) if by_word else None,
        classes=names,
        n_train=int((~test).sum()),
        n_test=int(test.sum()),
    )


def _control(owner: np.ndarray, classes: np.ndarray, n_classes: int) -> np.ndarray:
    """A label for each item that depends on its word (by number, `owner`) alone, drawn by the frequencies of `classes`:
    int64 [n].
    """
    shares = np.bincount(classes, minlength=n_classes) / len(classes)
    return generator("probe", "control").choice(n_classes, size=int(owner.max()) + 1, p=shares)[owner]


def _answers(x: np.ndarray, test: np.ndarray, classes: np.ndarray, n_classes: int) -> np.ndarray:
    """What a probe that learned from the other items answers to those of the test."""
    known = x[~test].astype(np.float64)
    mean, deviation = known.mean(0), known.std(0)
    scaled = (x.astype(np.float64) - mean) / np.where(deviation > 0, deviation, 1.0)
    weights, bias = fit_dense(scaled[~test], classes[~test], n_classes, tolerance=_TOLERANCE)
    return classes_of(scaled[test] @ weights + bias).argmax(1)


def _interval(right: np.ndarray, texts: np.ndarray) -> tuple[float, float, float]:
    """Accuracy, and its 95% interval over texts."""
    _, owner = np.unique(texts, return_inverse=True)
    sizes = np.bincount(owner).astype(np.float64)
    accuracy, interval = ratio_interval(np.bincount(owner, right), sizes)
    if interval is None or accuracy in (0.0, 1.0) or (sizes == 1).all():
        interval = wilson(accuracy, len(right))
    return accuracy, max(0.0, interval[0]), min(1.0, interval[1])
