"""Entities as spans of labeled words, and the labels that the words of a text get together: Viterbi's path (1967).

    path = argmax of sum over words of log p(label | word) + weight log(p(label | label before) / p(label))

where O costs `penalty` nats more and the end of a text counts as a label. Weight and penalty have the highest F1 on
training texts that neither part was fitted to, with attention or without it. If this is not more than one standard
error above the F1 of the linear model's most probable labels, the answers are these.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from qkv.data.baseline.linear import log_softmax
from qkv.data.baseline.words import runs_of
from qkv.data.examples import Examples, LabelledWords
from qkv.data.sources.tagged import OUTSIDE
from qkv.tasks.combined import Combined

Entity = tuple[int, int, str]
"""First word, end and kind."""
_WAYS = ((0.0, 0.0), *product((0.5, 1.0), (0.0, 0.5, 1.0, 1.5)))
"""Weights and penalties."""
_MOST = 20_000
"""Words at most that these are chosen on."""


def entities(classes: np.ndarray, owners: np.ndarray, names: Sequence[str]) -> list[Entity]:
    """(first word, end, kind) of each entity, in order; classes and owners int64 [n_words]: the label of a word, a
    number in `names`, and its text.
    """
    if not len(classes):
        return []
    kinds = sorted({name[2:] for name in names if name != OUTSIDE})
    number = {kind: i for i, kind in enumerate(kinds)}
    kind = np.array([-1 if name == OUTSIDE else number[name[2:]] for name in names])[classes]
    begins, ends = (np.array([name[0] in marks for name in names])[classes] & (kind >= 0) for marks in ("BSU", "ESL"))
    other = np.append(True, (owners[1:] != owners[:-1]) | (kind[1:] != kind[:-1]) | ends[:-1])
    starts = (kind >= 0) & (begins | other)
    firsts, bounds = np.flatnonzero(starts), np.append(np.flatnonzero(starts | (kind < 0)), len(classes))
    stops = bounds[np.searchsorted(bounds, firsts, side="right")]
    return [(a, b, kinds[k]) for a, b, k in zip(firsts.tolist(), stops.tolist(), kind[firsts].tolist(), strict=True)]


def compared(answers: np.ndarray, part: LabelledWords, names: Sequence[str]) -> list[list[Entity]]:
    """The entities that are answered rightly, answered, and labeled."""
    given, there = (entities(some, part.owners, names) for some in (answers, part.classes))
    known = set(there)
    return [[one for one in given if one in known], given, there]


def hits(answers: np.ndarray, part: LabelledWords, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(2 TP, 2 TP + FP + FN) of each text: float64 [n_texts]."""
    marks = np.zeros((3, len(part)))
    for row, some in zip(marks, compared(answers, part, names), strict=True):
        row[[first for first, _, _ in some]] = 1
    right, given, there = (part.by_text(row)[0] for row in marks)
    return 2 * right, given + there


def transitions(part: LabelledWords, names: Sequence[str]) -> np.ndarray:
    """log(p(b | a) / p(b)) of labels a, b in a row: float64 [n + 1, n + 1], the last being the end of a text. Each row
    counts one label more, drawn from p(b), so that what never occurs has a value.
    """
    n = len(names)
    chain = np.append(np.insert(part.classes, [first for first, _ in runs_of(part.owners)], n), n)
    counts = np.zeros((n + 1, n + 1))
    np.add.at(counts, (chain[:-1], chain[1:]), 1)
    share = np.maximum(counts.sum(0) / counts.sum(), np.finfo(float).tiny)
    return np.log((counts / share + 1) / (counts.sum(1, keepdims=True) + 1))


def decoded(scores: np.ndarray, owners: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The labels of the highest sum of scores [n_words, n] and transitions [.., n + 1, n + 1]: int64 [.., n_words]."""
    n, firsts = scores.shape[1], [first for first, _ in runs_of(owners)]
    words = np.append(np.insert(np.full(len(owners), True), firsts, False), False)
    rows = np.full((len(words), n + 1), -np.inf)
    rows[words, :n], rows[~words, n] = scores, 0
    best, back = rows[0], []
    for row in rows[1:]:
        paths = best[..., None] + table
        best = paths.max(-2) + row
        back.append(paths.argmax(-2))
    labels = [np.full(table.shape[:-2], n)]
    for before in reversed(back):
        labels.append(np.take_along_axis(before, labels[-1][..., None], -1)[..., 0])
    return np.stack(labels[::-1], -1)[..., words]


def choose(combined: Combined, attention: np.ndarray, data: Examples, names: Sequence[str]) -> Combined:
    """With the factors, weight and penalty of the highest F1; attention: what it says of the weighed words."""
    train, rows = data.train, data.weighed
    assert isinstance(train, LabelledWords)
    if len(rows) > _MOST:
        rows = rows[train.owners[rows] < train.owners[rows[_MOST]]]
    held, rest = (replace(train, classes=train.classes[i], owners=train.owners[i]) for i in (rows, ~data.held))
    table, outside = transitions(rest, names), np.array([*(name == OUTSIDE for name in names), False])
    tables = [weight * table - penalty * outside for weight, penalty in _WAYS]
    tried = []
    for scale, share in [(combined.scale or 1.0, combined.share), *[(1.0, 0.0)] * bool(combined.share)]:
        said = scale * data.linear[1][: len(rows)] + (share * attention[: len(rows)] if share else 0)
        for way, answers in zip(_WAYS, decoded(log_softmax(said), held.owners, np.stack(tables)), strict=True):
            tried.append((*hits(answers, held, names), replace(combined, scale=scale, share=share, decoding=way)))
    f1 = [right.sum() / max(1.0, size.sum()) for right, size, _ in tried]
    best, counted = int(np.argmax(f1)), len(tried) - len(_WAYS)
    one, other = ((tried[i][0] - f1[i] * tried[i][1]) / max(1.0, tried[i][1].sum()) for i in (best, counted))
    clear = len(one) > 1 and f1[best] - f1[counted] > len(one) ** 0.5 * (one - other).std(ddof=1)
    found = tried[best if clear else counted][2]
    every = found.decoding[0] * transitions(train, names) - found.decoding[1] * outside
    return replace(found, transitions=every if any(found.decoding) else None)
