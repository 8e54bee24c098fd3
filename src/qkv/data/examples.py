"""Labelled texts, split, cut into tokens: what a classifier trains on and is measured on.

Without a file of its own for validation a tenth of every class is held out, at most 10,000 texts. Near-copies and
phrases of one text (see `dedup`) are on one side. Texts are chosen in the order of a hash of their words: the split
depends on the texts and on no seed; on their order only where so many share a passage that near-copies are missed.
Classes are those of the training part; a label that occurs elsewhere only is an error with its line.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import safetensors.numpy

from qkv.data.baseline.linear import (
    BETWEEN,
    STRENGTH,
    WORDS,
    Linear,
    Loss,
    balanced,
    cross_validated,
    fit_linear,
    fit_scores,
    of_classes,
    of_sets,
    of_values,
    read_linear,
    sample,
)
from qkv.data.baseline.words import OfWords, contexts, runs_of
from qkv.data.caching import cache_key, read_cached, write_cached
from qkv.data.config import DataConfig, LabelledOptions
from qkv.data.corpus import Progress, fitted_tokenizer, joined_hash
from qkv.data.dataset import DataSet
from qkv.data.dedup import Sketches, group_copies, joined_groups, phrase_groups, sketch
from qkv.data.labelled import LabelledTexts, check_classes, class_order, labels_of, read_labelled
from qkv.data.sources.receipt import ReadFile, Receipt, Rows, make_receipt
from qkv.data.sources.source import Chunk
from qkv.data.sources.tables import count_rows, each_column
from qkv.data.split import Part, Split, repeated
from qkv.errors import SourceError
from qkv.randomness import generator
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.tokens import Tokens, n_utf8
from qkv.words import many, some

MOST_VAL_TEXTS = 10_000
MOST_HELD, FEWEST_HELD = 2_000, 100
"""Training texts that attention is not trained on: a tenth of each class, at most so many in all, and of a small set up
to a fifth, so that there are so many."""
MOST_CHARACTERS, MOST_COUNTED = 8_000_000, 200_000
"""About so many, of the training texts that the linear model is fitted to, and how many these are at most."""
MOST_FOLDED, _FOLDS = 5_000, 5
"""Training texts up to which the linear model is also cross-validated, and in how many folds."""

MOST_POINTS = 17
"""Between which values are learned."""
RIDGE = 1.0
"""The strength of the linear model of values: the penalty of the weights is half their squares."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Labelled:
    """One part: texts as tokens, with the class of each."""

    tokens: Tokens
    """Document i is text i; none is empty."""
    classes: np.ndarray
    """int64 [n]: the number of its class."""
    texts: list[str] = field(repr=False)
    wanted: np.ndarray | None = None
    """float32 [n, n_classes]: of sets 1 for each label of a text; of values the shares of the two points around it,
    whose mean is the value. Then `classes` is its rarest label, or the nearest point. None: each text has its class.
    """
    values: np.ndarray | None = None
    """float64 [n], as read; None: they are no numbers."""

    def __len__(self) -> int:
        return len(self.classes)

    @cached_property
    def read(self) -> list[str]:
        """What the linear model reads of each that has a class."""
        return self.texts

    def each(self, values: np.ndarray) -> np.ndarray:
        """Values of texts [n_texts], for each that has a class."""
        return values

    def by_text(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(sum of values, how many) of each text, of values float64 [n] of each that has a class."""
        return values, np.ones(len(values))

    @property
    def ids(self) -> np.ndarray:
        """All tokens one after another, [n_tokens]: what counts of tokens read."""
        return self.tokens.ids

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, int64 [n], at least 1."""
        return np.diff(self.tokens.offsets)


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledWords(Labelled):
    """One part whose words have classes: `classes` and `len` are of words, `texts` and `tokens` of texts."""

    owners: np.ndarray
    """int64 [n]: the text of each word, not decreasing."""
    spans: np.ndarray
    """int64 [n, 2]: its first character and end there."""
    edges: np.ndarray
    """int64 [n + 1]: its first token in `tokens.ids`, and where the last word ends; what is between words belongs to
    the word behind it."""

    @cached_property
    def words(self) -> list[str]:
        """Each word as it is written."""
        return [self.texts[i][a:b] for i, (a, b) in zip(self.owners.tolist(), self.spans.tolist(), strict=True)]

    @cached_property
    def read(self) -> list[str]:
        """Each word with its neighbors."""
        return contexts(self.words, self.owners)

    def each(self, values: np.ndarray) -> np.ndarray:
        """Of the text of each word."""
        return values[self.owners]

    def by_text(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(sum of values, how many words) of each text that has words."""
        _, owners = np.unique(self.owners, return_inverse=True)
        return np.bincount(owners, values), np.bincount(owners).astype(np.float64)

    n_asked: ClassVar[int] = 0
    """1 where the first word of a text is a question that is read with each piece."""

    def pieces(self, n_ctx: int) -> np.ndarray:
        """Each text, or of one that is longer than n_ctx tokens pieces of whole words: int64 [n_pieces, 2], the first
        word and the end of each. A single longer word is a piece too. Those behind a question overlap by half.
        """
        if n_ctx not in self._pieces:
            found, edges = [], self.edges
            for first, end in runs_of(self.owners):
                room = n_ctx - min(int(edges[first + self.n_asked] - edges[first]), n_ctx // 2)
                first += self.n_asked
                while edges[end] - edges[first] > room and end - first > 1:
                    fits, half = np.searchsorted(edges, edges[first] + [room, room // 2], side="right").tolist()
                    found.append((first, max(fits - 1, first + 1)))
                    first = max(half - 1, first + 1) if self.n_asked else found[-1][1]
                found.append((first, end))
            self._pieces[n_ctx] = np.array(found, dtype=np.int64).reshape(-1, 2)
        return self._pieces[n_ctx]

    def cut(self, pieces: np.ndarray, n_ctx: int) -> "Cut":
        """The tokens of pieces, each cut at n_ctx, which only a single long word exceeds; questions are cut at half."""
        heads, edges = np.searchsorted(self.owners, self.owners[pieces[:, 0]]), self.edges
        starts = edges[np.stack([heads, pieces[:, 0]], axis=1)]
        lengths = edges[np.stack([heads + self.n_asked, pieces[:, 1]], axis=1)] - starts
        lengths[:, 0] = np.minimum(lengths[:, 0], n_ctx // 2)
        lengths[:, 1] = np.minimum(lengths[:, 1], n_ctx - lengths[:, 0])
        each = lengths.ravel()
        at = np.arange(int(each.sum())) + np.repeat(starts.ravel() - np.cumsum(each) + each, each)
        return self.ids.take(at).astype(np.int64), lengths.sum(axis=1), np.searchsorted(edges, at, side="right") - 1

    _pieces: dict[int, np.ndarray] = field(default_factory=dict, repr=False)


Cut = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Pieces one behind another: tokens int64 [n_tokens], tokens of each piece int64 [n], the word of each token."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Answered(LabelledWords):
    """One part of questions, each of which is the first word of its text; `classes` is 1 for the first word of the
    answer and 2 for its last, or their sum.
    """

    n_asked: ClassVar[int] = 1
    answers: list[list[str]]
    """All right ones to each question."""

    @cached_property
    def ends(self) -> np.ndarray:
        """Whether an answer begins, and ends, with each word: float32 [n, 2]."""
        return (self.classes[:, None] & [1, 2] > 0).astype(np.float32)

    @cached_property
    def kinds(self) -> np.ndarray:
        """2 for a word of a text that is in its question, in any case, 1 for others, 0 for questions: int64 [n]."""
        asked = [{*WORDS.findall(text.partition(BETWEEN)[0].lower())} for text in self.texts]
        found = [1 + (word.lower() in asked[of]) for of, word in zip(self.owners.tolist(), self.words, strict=True)]
        return np.where(np.diff(self.owners, prepend=-1) > 0, 0, found)

    def by_text(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(sum of values, how many questions) of each different text, of values of words or of questions."""
        _, of = np.unique([text.partition(BETWEEN)[2] for text in self.texts], return_inverse=True)
        each = of if len(values) == len(of) else of[self.owners]
        return np.bincount(each, values), np.bincount(of).astype(np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples(DataSet):
    """Labelled texts for training and validation, and what they came from."""

    tokenizer: Tokenizer
    train: Labelled
    val: Labelled
    classes: tuple[str, ...]
    """Names of the classes, by number."""
    held: np.ndarray
    """bool [n_train]: training texts that attention is not trained on, so that the linear model and it are weighed."""
    groups: np.ndarray
    """int64 [n_train]: equal for training texts that stay on one side of a split."""
    shape: str = "class"
    """What a text has (`labelled.SHAPES`): one of the classes, a set of them, a value, whose points they are, or a
    class for each word. Of words, `held` and `groups` are of words too."""
    weights: np.ndarray | None = None
    """float64 [n_classes]: what a text of each class counts in training; None: all count alike."""
    cache: Path | None = field(default=None, repr=False)
    """Where the linear model is kept."""

    @property
    def n_train(self) -> int:
        """Training texts: what the size law of labelled texts counts."""
        return len(self.train.texts)

    @cached_property
    def unit(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the training values; None where there are none."""
        if self.train.values is None:
            return None
        return float(self.train.values.mean()), float(self.train.values.std()) or 1.0

    def loss(self, rows: np.ndarray) -> Loss:
        """What scores of these training texts cost; of values in units of their standard deviation."""
        part = self.train
        if self.unit is not None and part.values is not None:
            return of_values((part.values[rows] - self.unit[0]) / self.unit[1])
        return of_classes(part.classes[rows]) if part.wanted is None else of_sets(part.wanted[rows].astype(np.float64))

    @cached_property
    def trained(self) -> np.ndarray:
        """The numbers of the training texts that attention is trained on, int64."""
        return np.flatnonzero(~self.held)

    @cached_property
    def counted(self) -> np.ndarray:
        """The numbers of the training texts that the linear model is fitted to, increasing; all of a usual set."""
        mean = sum(map(len, self.train.texts)) / len(self.train)
        most = min(MOST_COUNTED, int(MOST_CHARACTERS / max(1.0, mean)))
        kinds = np.zeros(self.n_train, dtype=np.int64) if self.shape == "words" else self.train.classes
        chosen = sample("labelled baselines", kinds, max(1, most * self.n_train // len(self.train)))
        return np.flatnonzero(self.train.each(np.isin(np.arange(self.n_train), chosen)))

    @cached_property
    def folded(self) -> np.ndarray | None:
        """Whether a linear model of the other four fifths of the training texts, cut between groups, tells the class of
        each: bool [n_train]; None for more than 5,000, where one held-out part says enough.
        """
        names, owner = np.unique(self.groups, return_inverse=True)
        if not _FOLDS <= len(names) or len(self.train) > MOST_FOLDED or self.shape != "class":
            return None
        folds = generator("folds").permutation(len(names))[owner] % _FOLDS
        logits = cross_validated(self.train.texts, self.train.classes, len(self.classes), folds)
        return logits.argmax(1) == self.train.classes

    @cached_property
    def weighed(self) -> np.ndarray:
        """The numbers of the held texts that the linear model counts."""
        return self.counted[self.held[self.counted]]

    @cached_property
    def linear_name(self) -> str:
        """What the linear model is kept under: the hash of all that it is made of."""
        part = self.train
        given = part.classes, part.wanted, part.values, self.held, self.weights, self.counted
        hashes = ["" if one is None else hashlib.sha256(one.tobytes()).hexdigest() for one in given]
        texts = hashlib.sha256()
        for text in part.read:
            texts.update(text.encode() + b"\0")
        return f"baselines/linear-{cache_key(self.shape, len(self.classes), texts.hexdigest(), *hashes)}.safetensors"

    @property
    def keeps_linear(self) -> bool:
        """Whether the linear model need not be fitted any more."""
        return self.cache is not None and (self.cache / self.linear_name).is_file()

    @cached_property
    def linear(self) -> tuple[Linear, np.ndarray]:
        """The linear model of the training texts, and the logits [n_weighed, n_classes] that one without the held texts
        gives to those that are `weighed`. 5 to 6 s for a million characters, unless it is in the cache.
        """
        kept = read_cached(self.cache, self.linear_name)
        if kept is None:
            linear, scores = self._fitted()
            kept = safetensors.numpy.save(linear.tensors() | {"held": np.ascontiguousarray(scores)})
            write_cached(self.cache, self.linear_name, kept)
        tensors = safetensors.numpy.load(kept)
        return read_linear(tensors, OfWords if self.shape == "words" else Linear), tensors["held"]

    def _fitted(self) -> tuple[Linear, np.ndarray]:
        inside = self.counted
        held, n_classes = self.held[inside], len(self.classes)
        texts = [self.train.read[i] for i in inside.tolist()]
        if self.shape in ("class", "words"):
            kind = OfWords if self.shape == "words" else Linear
            classes, weights = self.train.classes[inside], self.weights
            return fit_linear(texts, classes, n_classes, held=held, class_weights=weights, kind=kind)
        n_out, strength = (1, RIDGE) if self.shape == "value" else (n_classes, STRENGTH)
        return fit_scores(texts, self.loss(inside), n_out, held=held, strength=strength)

    def describe(self) -> str:
        """One line: how many texts, of which classes."""
        what = f"of {len(self.classes)} classes ({some(self.classes, 6)})"
        if self.shape == "set":
            what = f"with some of {len(self.classes)} labels ({some(self.classes, 6)})"
        elif self.shape == "value":
            what = f"with values from {self.classes[0]} to {self.classes[-1]}"
        elif self.shape == "span":
            what = "with a question each that a piece of the text answers"
        elif self.shape == "words":
            what = f"with one of {len(self.classes)} labels ({some(self.classes, 6)}) for each of their words"
        return (
            f"{self.name}: {self.n_train:,} training and {len(self.val.texts):,} validation texts {what};"
            f" {self.rule}; {self.note} ({self.tokenizer.kind}, vocabulary {self.tokenizer.d_vocab:,})."
        )


def load_examples(
    config: DataConfig,
    *,
    cache: Path | None,
    task_specials: bool = False,
    progress: Progress | None = None,
    shape: str = "class",
) -> Examples:
    """Read labelled texts, split them, fit or read their tokenizer, and cut them into tokens.

    shape: what each text has. task_specials: whether the vocabulary needs [PAD] [UNK] [CLS] [SEP] [MASK]. Where
    `config.classes` is given, labels are those (a run's own), and the texts of `config.val` are measured only.

    Raises SourceError or ConfigError, in one sentence, for what cannot be read as asked.
    """
    source = read_labelled(config, shape=shape)
    classes = config.classes or _classes(source)
    val = _validation(replace(config, classes=classes), source)
    if not config.classes:
        check_classes(source)
    numbers = _strata(source, classes)
    options = config.labels or LabelledOptions(linear=False)
    holds = options.linear and not config.classes and shape != "span"
    sketches = sketch(source.read, compare=val is None or holds)
    groups = _groups(source, sketches)
    held_out = None if val is not None else hold_out(numbers, groups, sketches.keys, MOST_VAL_TEXTS)
    if held_out is not None:
        rule = _checked_rule(config, source, numbers, held_out, classes)
        sides = [_chosen(source, ~held_out), _chosen(source, held_out)]
    else:
        assert val is not None
        sides = [(one.texts, one.labels, one.spans) for one in (source, val)]
        _strata(val, classes, source.path)
        rule = _given(config, source, val, sketches)
    mine = np.ones(len(numbers), dtype=bool) if held_out is None else ~held_out
    together = _renumbered(groups[mine])
    asked = (config.text_column, config.label_column, config.group_column, source.kind, source.note, shape)
    digest = cache_key(source.sha256, val.sha256 if val else "", *asked)
    more = [val.sha256] if val else ["split 2"] * sketches.marks
    config = replace(config, text_column="question,text") if shape == "span" else config
    told, columns = progress or (lambda what, share: None), n_columns(config)
    tokenizer = _tokenizer(config, sides[0][0], digest, task_specials or columns > 1, cache, told)
    classes = classes or _points(np.array(sides[0][1], dtype=np.float64))
    train, measured = (_labelled(side, tokenizer, columns, classes, shape) for side in sides)
    return Examples(
        name=source.name, kind=source.kind, note=source.note, rule=rule, shape=shape, classes=classes, cache=cache,
        sha256=joined_hash(source.sha256, *more) if more else source.sha256,
        tokenizer=tokenizer, train=train, val=measured, groups=train.each(together),
        held=train.each(_held(numbers[mine], together, sketches.keys[mine]) & holds),
        weights=balanced(train.classes, len(classes)) if options.class_weights == "balanced" else None,
        receipt=_receipt(source, val, held_out, columns),
    )  # fmt: skip


def _classes(source: LabelledTexts) -> tuple[str, ...]:
    """The classes or labels of the texts, in order; none of values."""
    if source.shape in ("value", "span"):
        return ("start", "end") if source.shape == "span" else ()
    return class_order([name for names in source.names for name in names])


def _points(values: np.ndarray) -> tuple[str, ...]:
    """The points between which values [n] are learned: all different ones where they are few, else quantiles."""
    found = np.unique(values)
    if len(found) > MOST_POINTS:
        found = np.unique(np.quantile(values, np.linspace(0, 1, MOST_POINTS)))
    return tuple(repr(value) for value in found.tolist())


def _strata(source: LabelledTexts, classes: tuple[str, ...], trained_on: str = "") -> np.ndarray:
    """What a split keeps the shares of, int64 [n]: classes, the rarest label of each set or of its words (n_classes
    where it has none), tenths of values.

    Raises SourceError for a label that is none of the classes, with its line.
    """
    if source.shape == "span":
        return np.zeros(len(source.labels), dtype=np.int64)
    if source.shape == "value":
        values = np.array(source.labels, dtype=np.float64)
        return np.searchsorted(np.unique(np.quantile(values, np.arange(1, 10) / 10)), values)
    known = {name: i for i, name in enumerate(classes)}
    sets = source.names
    for i, label in ((i, label) for i, labels in enumerate(sets) for label in labels):
        if label not in known:
            shown = some(classes)
            where = f" in {trained_on!r}" if trained_on else ""
            raise SourceError(
                f"{source.place(i)} has the label {label[:40]!r}, a class that training has not"
                f" seen{where}; its classes: {shown}"
            )
    counts = Counter(label for labels in sets for label in labels)
    rarest = (min(labels, key=lambda label: (counts[label], label), default="") for labels in sets)
    return np.array([known.get(label, len(classes)) for label in rarest], dtype=np.int64)


def _renumbered(groups: np.ndarray) -> np.ndarray:
    """The first member of each text's group among these texts: int64 [n]."""
    _, firsts, owner = np.unique(groups, return_index=True, return_inverse=True)
    return firsts[owner]


def _held(classes: np.ndarray, groups: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The training texts that attention is not trained on: bool [n]; arguments as `hold_out`."""
    share = min(0.2, max(0.1, FEWEST_HELD / len(classes)))
    return hold_out(classes, groups, keys, MOST_HELD, share)


def _groups(source: LabelledTexts, sketches: Sketches) -> np.ndarray:
    """What stays on one side of a split: near-copies, phrases of one text, rows of one group; int64 [n], the first
    member of each text's group. Where there are no sketches to compare, equal texts alone.
    """
    groups = group_copies(sketches)
    if not len(sketches.bins):
        return groups
    groups = phrase_groups(groups, source.read)
    return joined_groups(groups, source.groups) if source.groups else groups


def n_columns(config: DataConfig) -> int:
    """How many texts each row holds, in columns of their own."""
    return len(each_column(config.text_column))


def encode_texts(tokenizer: Tokenizer, texts: list[str], columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids of all texts one after another and the length of each; of several columns, [SEP] between two is that token.

    A tokenizer without the token reads its letters.
    """
    if columns < 2 or not texts:
        return tokenizer.encode_many(texts)
    parts = [text.split(BETWEEN, columns - 1) for text in texts]
    ids, lengths = tokenizer.encode_many([part for each in parts for part in each])
    token = tokenizer.special.get("[SEP]")
    between = tokenizer.encode(BETWEEN) if token is None else np.array([token])
    n_parts = np.array([len(each) for each in parts])
    lasts = np.cumsum(n_parts) - 1
    gaps = np.delete(np.cumsum(lengths), lasts)
    ids = np.insert(ids, np.repeat(gaps, len(between)), np.tile(between, len(gaps)))
    return ids, np.add.reduceat(lengths, lasts + 1 - n_parts) + (n_parts - 1) * len(between)


def _receipt(source: LabelledTexts, val: LabelledTexts | None, held_out: np.ndarray | None, columns: int) -> Receipt:
    """What became of the rows of a source, and of what it is validated on, None where that is a part of it; a row holds
    texts in so many columns.
    """
    read, roles, labels, n_blank, n_rows = [], {}, [], 0, 0
    for side in (source,) if val is None else (source, val):
        starts = [first for _, first in side.files] + [len(side.texts)]
        sizes = np.array([n_utf8(text.split(BETWEEN, columns - 1)) for text in side.texts], dtype=np.int64)
        measured = np.full(len(sizes), side is val) if held_out is None else held_out
        what = (
            "labels, columns that are not read, and what is between cells" if side.columns else "labels and white space"
        )
        for (name, first), stop, facts in zip(side.files, starts[1:], side.facts, strict=True):
            mine, held = sizes[first:stop], measured[first:stop]
            rest = 0 if name.lower().endswith(".parquet") else facts.n_bytes - int(mine.sum())
            losses = {"byte order mark": facts.n_raw - facts.n_bytes, what: rest}
            read.append((ReadFile(Path(name), losses), int(mine[~held].sum()), int(mine[held].sum())))
        roles, n_blank = roles | dict(side.columns), n_blank + side.n_blank
        labels += [name for names in side.names for name in names]
        n_rows += len(side.labels)
    rows = Rows(
        read=n_rows,
        set_aside=sum(count_rows(one.path) for one in source.passed if one.is_test),
        left_out=n_blank,
        why=f"{many(n_blank, 'row')} without text" if n_blank else "",
    )
    classes = {} if source.shape == "value" else dict(Counter(labels).most_common())
    return make_receipt(read, source.passed, rows=rows, columns=roles, classes=classes)


def _validation(config: DataConfig, source: LabelledTexts) -> LabelledTexts | None:
    """The texts that are measured on, where they are given or the folder has a part for that; else None."""
    if config.val and config.val == config.source and source.published is None:
        return source
    if config.val:
        return read_labelled(replace(config, source=config.val, val=""), measured=True, shape=source.shape)
    has_part = source.published is not None and source.published.validation
    return read_labelled(config, measured=True, shape=source.shape) if has_part else None


def _given(config: DataConfig, source: LabelledTexts, val: LabelledTexts, train: Sketches) -> str:
    """What is said where all of one source is trained on and another one measured on; with a warning where texts of the
    second also stand in the first, letter for letter.
    """
    n = int(np.isin(sketch(val.read, compare=False).keys, train.keys).sum())
    name = f"{val.published.measured_name} of {val.name}" if val.published else val.name
    if source.published is None:
        said = repeated(n, len(val.texts), "texts")
        return f"validation on {name}" + (f" ({said})" if said else "")
    said = repeated(n, len(val.texts), "validation texts")
    return "; ".join(filter(None, (source.published.said(validation=name if config.val else ""), said)))


def _rule(numbers: np.ndarray, held_out: np.ndarray, classes: Sequence[str], column: str) -> str:
    """What is held out, in words: of each class as much as was wanted, or less where groups stay together; without
    classes, of all.
    """
    n = max(len(classes), int(numbers.max()) + 1)
    counts, held = (np.bincount(some, minlength=n) for some in (numbers, numbers[held_out]))
    share = min(0.1, MOST_VAL_TEXTS / len(numbers))
    part = "a tenth" if share == 0.1 else f"{100 * share:.2g}%"
    part += " of each class" * bool(classes)
    rule = f"{int(held.sum()):,} of {len(numbers):,} texts held out for validation, {part}"
    none = [(name, count) for name, count, n in zip(classes, counts, held, strict=bool(classes)) if not n]
    lonely, alike = ([repr(name) for name, count in none if (count == 1) == one] for one in (True, False))
    if (held != _wanted(counts, MOST_VAL_TEXTS)).any():
        rule += " at most, since near-copies and phrases of one text stay together"
        rule += f" (none of {_some(alike)})" if alike else ""
    if column:
        rule += f"; rows with the same {column!r} are on one side"
    if lonely:
        rule += f"; none of {_some(lonely)}, of which there is one text: its accuracy is not measured"
    return rule


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + " and others" * (len(names) > 3)


def _wanted(counts: np.ndarray, most: int, share: float = 0.1) -> np.ndarray:
    """How many of each class are to be held out, of so many: int64 [n_classes]."""
    share = min(share, most / counts.sum())
    return np.where(counts > 1, np.maximum(1, np.floor(counts * share)), 0).astype(np.int64)


def hold_out(
    classes: np.ndarray, groups: np.ndarray, keys: np.ndarray, most: int = MOST_VAL_TEXTS, share: float = 0.1
) -> np.ndarray:
    """Which texts are held out, bool [n]: whole groups, a share of each class, at most `most` in all.

    classes: int64 [n]; groups: int64 [n], the first member of each text's group; keys: uint64 [n], which order the
    draw: groups by their least key, each that still fits. A class of which there are at least two texts gives at least
    one, if its groups allow it, and always keeps one.
    """
    n = len(classes)
    left = _wanted(np.bincount(classes), most, share)
    least = np.full(n, np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(least, groups, keys)
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    members = dict(zip(groups[order][starts].tolist(), np.split(order, starts[1:]), strict=True))
    chosen = np.zeros(n, dtype=bool)
    for first in sorted(members, key=lambda group: (least[group], group)):
        inside, wanted = np.unique(classes[members[first]], return_counts=True)
        if (wanted <= left[inside]).all():
            chosen[members[first]] = True
            left[inside] -= wanted
            if not left.any():
                break
    return chosen


_Side = tuple[list[str], list[str], list[Sequence[tuple[int, int]]]]
"""Texts, labels and spans of words."""


def _chosen(source: LabelledTexts, wanted: np.ndarray) -> _Side:
    """Of some rows."""
    rows = np.flatnonzero(wanted).tolist()
    return [source.texts[i] for i in rows], [source.labels[i] for i in rows], [source.spans[i] for i in rows]


def _checked_rule(
    config: DataConfig, source: LabelledTexts, numbers: np.ndarray, held_out: np.ndarray, classes: tuple[str, ...]
) -> str:
    """What is held out, in words. Raises SourceError where nothing could be, or a class would not be trained on."""
    if not held_out.any() or len(set(numbers[~held_out].tolist())) < len(set(numbers.tolist())):
        some = "some of each class out" if source.shape == "class" else "some out"
        raise SourceError(
            f"the {len(numbers):,} rows of {source.path!r} are too few or too alike to hold {some};"
            " give labelled texts for validation with --val FILE"
        )
    rule = _rule(numbers, held_out, classes if source.shape == "class" else (), config.group_column)
    return source.published.said(minus=rule) if source.published else rule


def _tokenizer(
    config: DataConfig, texts: list[str], digest: str, specials: bool, cache: Path | None, told: Progress
) -> Tokenizer:
    """Fitted to the training texts, or read."""

    def split() -> Split:
        plain = [text.replace(BETWEEN, "\n", n_columns(config) - 1) for text in texts]
        part = Part(read=lambda: (Chunk(text, True) for text in plain), n_bytes=n_utf8(plain))
        return Split(train=part, val=part, rule="", many_documents=False)

    return fitted_tokenizer(config, split, digest, False, specials, cache, told)


def encoded(
    tokenizer: Tokenizer, texts: list[str], columns: int = 1, special: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Ids and lengths as of `encode_texts`, or with special tokens that are spelled out; a text without tokens is a
    single unknown one (or token 0, where nothing is unknown).
    """
    ids, lengths = encode_texts(tokenizer, texts, columns)
    if special:
        each = [tokenizer.encode(text, special=True) for text in texts]
        lengths = np.array([len(one) for one in each], dtype=np.int64)
        ids = np.concatenate([np.zeros(0, dtype=np.int64), *each])
    empty = lengths == 0
    return np.insert(ids, np.cumsum(lengths)[empty], tokenizer.unknown_id or 0), np.maximum(lengths, 1)


def answered_texts(
    texts: list[str], spans: Sequence[Sequence[tuple[int, int]]], labels: list[str], tokenizer: Tokenizer
) -> Answered:
    """Texts behind questions as the tokens of their words; labels as in `labelled.LabelledTexts`, or none."""
    firsts, rows = np.cumsum([0, *map(len, spans)]), [labels_of(label) for label in labels]
    classes = np.zeros(firsts[-1], dtype=np.int64)
    for at, bit in ((1, 1), (2, 2)):
        classes[firsts[: len(rows)] + np.array([int(row[at]) for row in rows], dtype=np.int64)] += bit
    return Answered(**vars(labelled_words(texts, spans, classes, tokenizer, 2)), answers=[row[3:] for row in rows])


def labelled_words(
    texts: list[str],
    spans: Sequence[Sequence[tuple[int, int]]],
    classes: np.ndarray | None,
    tokenizer: Tokenizer,
    columns: int = 1,
) -> LabelledWords:
    """Texts as the tokens of their words, each cut by itself with what is before it; classes int64 [n_words]; None: all
    are 0.
    """
    pieces = [
        text[before:end]
        for text, words in zip(texts, spans, strict=True)
        for before, (_, end) in zip([0, *(end for _, end in words)], words, strict=False)
    ]
    ids, lengths = encoded(tokenizer, pieces, columns)
    owners = np.repeat(np.arange(len(texts)), [len(words) for words in spans])
    by_text = np.bincount(owners, lengths, minlength=len(texts)).astype(np.int64)
    return LabelledWords(
        tokens=Tokens.of(ids, by_text, texts, tokenizer.d_vocab, tokenizer.unknown_id),
        classes=np.zeros(len(owners), dtype=np.int64) if classes is None else classes,
        texts=texts,
        owners=owners,
        spans=np.array([span for words in spans for span in words], dtype=np.int64).reshape(-1, 2),
        edges=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )


def _labelled(side: _Side, tokenizer: Tokenizer, columns: int, names: tuple[str, ...], shape: str) -> Labelled:
    """Texts as tokens, and what they have."""
    texts, labels, spans = side
    known = {name: i for i, name in enumerate(names)}
    if shape == "words":
        classes = np.array([known[name] for label in labels for name in labels_of(label)], dtype=np.int64)
        return labelled_words(texts, spans, classes, tokenizer)
    if shape == "span":
        return answered_texts(texts, spans, labels, tokenizer)
    ids, lengths = encoded(tokenizer, texts, columns)
    tokens = Tokens.of(ids, lengths, texts, tokenizer.d_vocab, tokenizer.unknown_id)
    if shape == "class":
        classes = np.array([known[label] for label in labels], dtype=np.int64)
        return Labelled(tokens=tokens, classes=classes, texts=texts)
    if shape == "value":
        values = np.array(labels, dtype=np.float64)
        wanted = between_points(values, np.array(names, dtype=np.float64)).astype(np.float32)
        return Labelled(tokens=tokens, classes=wanted.argmax(1), texts=texts, wanted=wanted, values=values)
    wanted = np.zeros((len(texts), len(names)), dtype=np.float32)
    for i, label in enumerate(labels):
        wanted[i, [known[name] for name in labels_of(label)]] = 1
    rarest = np.where(wanted > 0, wanted.sum(0), np.inf).argmin(1)
    return Labelled(tokens=tokens, classes=rarest, texts=texts, wanted=wanted)


def between_points(values: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The shares [n, n_points] of the two points around each value [n], whose mean it is; points increase, and a value
    outside takes the point at that end.
    """
    inside = np.clip(values, points[0], points[-1])
    right = np.clip(np.searchsorted(points, inside), 1, len(points) - 1)
    share = (inside - points[right - 1]) / (points[right] - points[right - 1])
    found, rows = np.zeros((len(values), len(points))), np.arange(len(values))
    found[rows, right - 1], found[rows, right] = 1 - share, share
    return found
