"""What a report shows of a classifier's decisions on the validation texts, computed once when a training ends.

Which classes are taken for which, how often the model is right at each confidence, its most confident mistakes, and
which words carry a decision: the log-odds of the answer minus those without the word, of the model and of the linear
model alone (leave-one-out; Li et al. 2016, arXiv 1612.08220).
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from qkv.data.baseline.linear import WORDS, Linear, log_softmax
from qkv.data.examples import Labelled, LabelledWords
from qkv.jsontypes import JsonObject
from qkv.randomness import generator
from qkv.tasks.evaluation import wilson

MOST_CLASSES = 12
"""That are shown, the most frequent ones; others are one more."""
MOST_MISTAKES = 8
_READ, _WORDS, _SHOWN = 100, 30, 14
"""Texts whose words are left out one by one, words of each at most, and words in the table."""
_AROUND = 60
"""Characters on either side of a word."""
_EACH = 20
"""Texts in a bin of confidence at least, of at most ten bins."""

Reader = Callable[[Sequence[str]], np.ndarray]
"""Texts -> logits float64 [n, n_classes]."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What a word adds to the log-odds of an answer, nats."""

    word: str
    start: int
    """Where it is in its text, in characters."""
    model: float
    linear: float | None
    """The same of the linear model alone; None without one."""


def decisions(
    part: Labelled, classes: tuple[str, ...], said: np.ndarray, whole: Reader, linear: Linear | None
) -> JsonObject:
    """The facts, for JSON. said: the model's logits [n, n_classes] of the part; `whole` asks it for other texts."""
    answers = said.argmax(1)
    shared, sure, wrong = _shared(part, classes, said, answers)
    others = generator("decisions").permutation(len(part))
    read = [*wrong.tolist(), *others[~np.isin(others, wrong)].tolist()][:_READ]
    texts = [part.texts[i] for i in read]
    effects = _effects(texts, answers[read], whole, linear)
    mistakes = [
        {"text": part.texts[i], "label": classes[part.classes[i]], "answer": classes[answers[i]],
         "probability": float(sure[i]), "words": [dataclasses.asdict(one) for one in found]}
        for i, found in zip(wrong.tolist(), effects, strict=False)
    ]  # fmt: skip
    words = _table(effects, [classes[i] for i in answers[read]], classes, linear)
    return shared | {"mistakes": mistakes, "words": words, "n_read": len(read)}


def word_decisions(part: LabelledWords, classes: tuple[str, ...], said: np.ndarray, answers: np.ndarray) -> JsonObject:
    """The same of labels of words, each mistake with what is around it; said: logits [n_words, n_classes], answers:
    int64 [n_words].
    """
    shared, sure, wrong = _shared(part, classes, said, answers)
    odds, mistakes = _odds(said, answers), []
    for i in wrong.tolist():
        text, (start, end) = part.texts[part.owners[i]], part.spans[i].tolist()
        first = max(0, start - _AROUND)
        word = {"word": text[start:end], "start": start - first, "model": float(odds[i]), "linear": None}
        mistakes.append(
            {"text": text[first : end + _AROUND], "label": classes[part.classes[i]], "answer": classes[answers[i]],
             "probability": float(sure[i]), "words": [word]}
        )  # fmt: skip
    return shared | {"unit": "word", "mistakes": mistakes, "words": [], "n_read": 0}


def _shared(
    part: Labelled, classes: tuple[str, ...], said: np.ndarray, answers: np.ndarray
) -> tuple[JsonObject, np.ndarray, np.ndarray]:
    """(what is shown of either, the probabilities of the answers, the most confident mistakes)."""
    sure = np.exp(log_softmax(said)[np.arange(len(said)), answers])
    right = answers == part.classes
    wrong = np.flatnonzero(~right)
    names, table = _confusion(part.classes, answers, classes)
    shared = {"n": len(part), "n_wrong": len(wrong), "classes": names, "confusion": table.tolist(),
              "reliability": _reliability(sure, right)}  # fmt: skip
    return shared, sure, wrong[np.argsort(-sure[wrong], kind="stable")][:MOST_MISTAKES]


def label_table(names: Sequence[str], right: np.ndarray, given: np.ndarray, there: np.ndarray) -> list[JsonObject]:
    """Precision, recall and F1 of each label, the most frequent first, from how often it is answered rightly, answered,
    and there: int64 [n] each. None where nothing is divided.
    """
    rows: list[JsonObject] = []
    for i in np.argsort(-there, kind="stable").tolist():
        hits, said, n = int(right[i]), int(given[i]), int(there[i])
        precision, recall, f1 = (a / b if b else None for a, b in ((hits, said), (hits, n), (2 * hits, said + n)))
        rows.append({"label": names[i], "n": n, "precision": precision, "recall": recall, "f1": f1})
    return rows


def _confusion(classes: np.ndarray, answers: np.ndarray, names: tuple[str, ...]) -> tuple[list[str], np.ndarray]:
    """(names of the classes that are shown, how often each label [row] got each answer [column]); the rest is one."""
    counts = np.bincount(classes, minlength=len(names))
    shown = np.sort(np.argsort(-counts, kind="stable")[:MOST_CLASSES])
    place = np.full(len(names), len(shown))
    place[shown] = np.arange(len(shown))
    n = len(shown) + (len(names) > len(shown))
    table = np.zeros((n, n), dtype=np.int64)
    np.add.at(table, (place[classes], place[answers]), 1)
    return [names[i] for i in shown] + ["others"] * (n > len(shown)), table


def _reliability(sure: np.ndarray, right: np.ndarray) -> list[JsonObject]:
    """Bins of equally many texts by confidence: its mean, and the accuracy with Wilson's interval."""
    found: list[JsonObject] = []
    for some in np.array_split(np.argsort(sure, kind="stable"), max(1, min(10, len(sure) // _EACH))):
        share = float(right[some].mean())
        low, high = wilson(share, len(some))
        found.append(
            {"confidence": float(sure[some].mean()), "accuracy": share, "low": low, "high": high, "n": len(some)}
        )
    return found


def _effects(texts: Sequence[str], answers: np.ndarray, whole: Reader, linear: Linear | None) -> list[list[Effect]]:
    """Of each text, what each word adds to the log-odds of its answer."""
    words = [
        [m for m in WORDS.finditer(text) if m.group()[0].isalnum() and m.group() != "SEP"][:_WORDS] for text in texts
    ]
    without = [text[: m.start()] + text[m.end() :] for text, found in zip(texts, words, strict=True) for m in found]
    owner = np.repeat(np.arange(len(texts)), [len(found) for found in words])
    each = []
    for reader in (whole, None if linear is None else linear.logits):
        if reader is None or not without:
            each.append([None] * len(without))
            continue
        before, after = _odds(reader(texts), answers), _odds(reader(without), answers[owner])
        each.append((before[owner] - after).tolist())
    found: list[list[Effect]] = [[] for _ in texts]
    flat = (m for matches in words for m in matches)
    for i, m, model, counted in zip(owner.tolist(), flat, *each, strict=True):
        found[i].append(Effect(word=m.group(), start=m.start(), model=model, linear=counted))
    return found


def _odds(logits: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """log p / (1 - p) of each text's answer, float64 [n]."""
    rows = np.arange(len(answers))
    others = logits.copy()
    others[rows, answers] = -np.inf
    highest = others.max(1)
    return logits[rows, answers] - highest - np.log(np.exp(others - highest[:, None]).sum(1))


def _table(
    effects: Sequence[Sequence[Effect]], answers: Sequence[str], classes: tuple[str, ...], linear: Linear | None
) -> list[JsonObject]:
    """The words with the largest effect on an answer, by its mean times the root of how many texts have them, each with
    its own weight in the linear model.
    """
    met: dict[tuple[str, str], list[Effect]] = defaultdict(list)
    for found, answer in zip(effects, answers, strict=True):
        for one in found:
            met[one.word.lower(), answer].append(one)
    rows: list[JsonObject] = []
    for (word, answer), found in met.items():
        counted = [one.linear for one in found if one.linear is not None]
        weight = None if linear is None else linear.weight_of(word, classes.index(answer))
        rows.append({"word": word, "answer": answer, "n": len(found), "weight": weight,
                     "model": float(np.mean([one.model for one in found])),
                     "linear": float(np.mean(counted)) if counted else None})  # fmt: skip
    rows.sort(key=lambda row: (-abs(row["model"]) * row["n"] ** 0.5, row["word"]))
    seen: set[str] = set()
    return [row for row in rows if not (row["word"] in seen or seen.add(row["word"]))][:_SHOWN]
