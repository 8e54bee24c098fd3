"""Answering a question by a piece of a text: a score for each word as the first and as the last one of the answer.

Question, [SEP] and text are read together (Devlin et al. 2018, section 4.2). Each score is a softmax over the words of
a window, where the question counts as one word: the target if the window does not hold the whole answer. The loss is in
nats per question, over both ends. A row of W_type says whether a token is in the question, in the text, or in a word of
the text that also occurs in the question (Chen et al. 2017, arXiv 1704.00051): embeddings of rare words do not show
which words are equal. A text that is too long is read in windows that overlap by half. Scores are relative to that of
the question, so that all windows compete.

The answer is the likeliest piece of at most 30 words, by both of its ends. Figures are the F1 of its words and exact
match, as SQuAD counts them (Rajpurkar et al. 2016, arXiv 1606.05250), with intervals over texts.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from qkv.data.baseline.linear import BETWEEN, sample
from qkv.data.baseline.spans import MOST_FITTED, fit_spans, span_scores
from qkv.data.baseline.words import runs_of
from qkv.data.examples import Answered, Cut, Examples, Labelled, LabelledWords, answered_texts
from qkv.data.labelled import question_words
from qkv.data.packing import pack_rows
from qkv.errors import UserError, which
from qkv.jsontypes import JsonObject
from qkv.models.layout import Sizes
from qkv.models.zoo import TextClassifier
from qkv.randomness import uniforms
from qkv.tasks.batch import Batch, Drop, rows_of
from qkv.tasks.classify import Classify, text_logits
from qkv.tasks.evaluation import bootstrap
from qkv.tasks.figures import Figure, Scores
from qkv.tasks.labels.tag import Tag
from qkv.tasks.task import PredictOptions, Yardsticks
from qkv.tokenizers.tokenizer import Tokenizer

MOST_WORDS = 30
"""Of an answer."""
_KINDS = 3
Span = tuple[int, int, float]
"""First and last word of an answer, and its probability."""


@dataclass(frozen=True, kw_only=True)
class Answer(Tag):
    """The task `answer`."""

    name: str = "answer"
    shape: ClassVar[str] = "span"
    size_law: ClassVar[str] = "questions"
    metric: ClassVar[str] = "answer_f1"
    target: ClassVar[str] = "question"
    examples: ClassVar[str] = "questions"
    items: ClassVar[str] = "texts"
    asked: ClassVar[str] = "the answer, a piece"
    prompt: ClassVar[str] = "a question [SEP] a text"
    guessed: ClassVar[int] = 1
    unscored: ClassVar[str] = "; --json gives the probability of the answer"
    companion: ClassVar[str] = ""
    yardsticks: ClassVar[Mapping[str, str]] = {"linear": "logistic regression on words, overlaps and distances"}

    def model_sizes(self, data: Examples) -> Mapping[str, int]:
        """With the rows of W_type."""
        return {**super().model_sizes(data), "n_types": _KINDS}

    def yardstick_nats(self, data: Examples) -> float:
        """Of guessing among the words of each text."""
        return float(2 * np.log(np.bincount(cast(Answered, data.train).owners)).mean())

    def baselines(self, data: Examples, sizes: Sizes, cache: Path | None) -> Yardsticks:
        """See `qkv.data.baseline.spans`; it has no loss."""
        train, val = cast(Answered, data.train), cast(Answered, data.val)
        texts, asked = ([part.words[a:b] for a, b in runs_of(part.owners)] for part in (train, val))
        chosen = sample("answers counted", np.zeros(len(texts)), MOST_FITTED * len(texts) // len(train))
        weights = fit_spans([texts[i] for i in chosen], train.ends[np.isin(train.owners, chosen)])
        found = self._scored(best_spans(span_scores(weights, asked), val.owners), val)
        scores = {name: {"linear": figure.value} for name, figure in found.items()}
        note = f"the baseline was fitted to {len(chosen):,} of {len(texts):,} questions" * (len(chosen) < len(texts))
        return Yardsticks(summary=scores[self.metric], facts=scores | {"note": note}, note=note)

    def baselines_seconds(self, data: Examples, sizes: Sizes, cache: Path | None) -> float:
        """By words: 5 s for 200,000 that are fitted to, and 0.4 s for each 100,000 that are scored."""
        return 2.7e-5 * min(len(data.train), MOST_FITTED) + 4e-6 * len(data.val)

    def _batch(self, part: LabelledWords, cut: Cut, sizes: Sizes) -> tuple[Batch, np.ndarray]:
        """Windows in rows, with a target each; `answers` are its first and last words, the question's if the window has
        not both.
        """
        batch, numbers = super()._batch(part, cut, sizes)
        owners, ends = rows_of(batch).numpy(), cast(Answered, part).ends[numbers]
        whole = np.stack([np.bincount(owners, end) for end in ends.T]).min(axis=0) > 0
        ends = np.where(whole[owners][:, None], ends, np.append(True, owners[1:] != owners[:-1])[:, None])
        types = pack_rows(cast(Answered, part).kinds[cut[2]], cut[1], batch.inputs.shape[1]).ids
        return batch._replace(
            targets=torch.zeros(len(whole), dtype=torch.int64),
            answers=torch.from_numpy(np.float32(ends)),
            types=torch.from_numpy(types) if sizes.n_types == _KINDS else None,
        ), numbers

    def uniform(self, batch: Batch, labels: np.ndarray, seed: int, step: int, examples: np.ndarray) -> Batch:
        """Both ends of each answer are any words of its window."""
        owners, n = rows_of(batch).numpy(), np.bincount(rows_of(batch).numpy())
        places = np.stack([uniforms(examples, seed, f"uniform {end}", step) for end in ("start", "end")]) * n
        at = (np.argsort(owners, kind="stable")[np.cumsum(n) - n + places.astype(np.int64)]).ravel()
        answers = torch.zeros(len(owners), 2)
        answers[at, np.repeat([0, 1], len(n))] = 1
        return batch._replace(answers=answers)

    def _said_of(self, model: TextClassifier, batch: Batch, drop: Drop | None) -> Tensor:
        """Both scores of each word, minus those of its question: [n_words, 2]."""
        logits, owners = text_logits(model, batch, drop), rows_of(batch)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        heads = torch.cat([owners.new_ones(1, dtype=torch.bool), owners[1:] != owners[:-1]])
        return logits - F.embedding(heads.cumsum(0) - 1, F.embedding(heads.nonzero()[:, 0], logits))

    def loss(self, model: TextClassifier, batch: Batch, drop: Drop | None = None) -> tuple[Tensor, int]:
        """(sum over windows of the nats of both ends, number of windows)."""
        each, picked = self._ends(model, batch, drop)
        return each.logsumexp(-1).sum() - picked.sum(), batch.n_targets

    def score(self, model: TextClassifier, batch: Batch) -> Scores:
        """Each window's nats, and whether both ends are the likeliest ones."""
        with torch.no_grad():
            each, picked = self._ends(model, batch, None)
            right = (each.amax(-1) == picked).all(0)
            return Scores((each.logsumexp(-1) - picked).sum(0), right, torch.arange(len(right), device=right.device))

    def _ends(self, model: TextClassifier, batch: Batch, drop: Drop | None) -> tuple[Tensor, Tensor]:
        """Scores of words as either end in each window [2, n, n_words], and those of the answer's ends [2, n]."""
        assert batch.answers is not None
        logits, owners = self._said_of(model, batch, drop).t(), rows_of(batch)
        inside = owners == torch.arange(batch.n_targets, device=owners.device)[:, None]
        picked = torch.where(inside, (logits * batch.answers.t())[:, None], 0.0).sum(-1)  # bfloat16 would round `@`
        return torch.where(inside, logits[:, None], -torch.inf), picked

    # figures

    def _nats_of(self, said: np.ndarray, part: Labelled) -> np.ndarray:
        words = cast(Answered, part)
        runs = runs_of(words.owners)
        sums = np.concatenate([np.tile(np.logaddexp.reduce(said[a:b]), (b - a, 1)) for a, b in runs])
        return (words.ends * (sums - said)).sum(1)

    def _judged(self, said: np.ndarray, part: Labelled) -> dict[str, Figure]:
        words = cast(Answered, part)
        return self._scored(best_spans(said, words.owners), words)

    def _scored(self, spans: Sequence[Span], part: Answered) -> dict[str, Figure]:
        """F1 and exact match of the answers to all questions, with intervals over texts."""
        found = zip(*map(f1_and_exact, (text for text, _ in _texts(spans, part)), part.answers), strict=True)
        sums = [part.by_text(np.array(values)) for values in found]
        f1, exact = (bootstrap(right[:, None], n[:, None]) for right, n in sums)
        return {self.metric: Figure(*f1, "F1"), "exact_match": Figure(*exact, "exact match")}

    decisions = Classify.decisions

    # answers

    def predict(
        self, model: TextClassifier, tokenizer: Tokenizer | None, texts: Sequence[str], options: PredictOptions
    ) -> list[str]:
        """The answer to each question."""
        return [one[0]["text"] for one in self.spans(model, tokenizer, texts)]

    def spans(self, model: TextClassifier, tokenizer: Tokenizer | None, texts: Sequence[str]) -> list[list[JsonObject]]:
        """The answer to each question with its place in the text behind [SEP], and its probability among all pieces."""
        assert tokenizer is not None, "a task on text has one"
        pairs = [_pair(text, which(i, len(texts))) for i, text in enumerate(texts)]
        part = answered_texts(
            [BETWEEN.join(pair) for pair in pairs], [question_words(*p) for p in pairs], [], tokenizer
        )
        spans = best_spans(self._logits_of(model, part, np.arange(len(part))), part.owners)
        return [
            [{"start": start, "end": start + len(text), "text": text, "label": "answer", "probability": sure}]
            for (text, start), (_, _, sure) in zip(_texts(spans, part), spans, strict=True)
        ]


def best_spans(said: np.ndarray, owners: np.ndarray) -> list[Span]:
    """The likeliest answer in each text, whose first word, the question, is none, and its probability among all pieces.

    said: float64 [n_words, 2], the scores of a word as either end; owners: int64 [n_words], the text of each.
    """
    found = []
    for head, end in runs_of(owners):
        first = head + 1
        ends = np.pad(said[first:end, 1], (0, MOST_WORDS - 1), constant_values=-np.inf)
        sums = said[first:end, :1] + sliding_window_view(ends, MOST_WORDS)
        i, more = divmod(int(sums.argmax()), MOST_WORDS)
        found.append((first + i, first + i + more, float(1 / np.exp(sums - sums[i, more]).sum())))
    return found


def _texts(spans: Sequence[Span], part: Answered) -> list[tuple[str, int]]:
    """Each answer, and its first character in its text."""
    found = []
    for text, (first, last, _) in zip(part.texts, spans, strict=True):
        start = int(part.spans[first, 0])
        found.append((text[start : part.spans[last, 1]], start - text.index(BETWEEN) - len(BETWEEN)))
    return found


def normalized(answer: str) -> str:
    """As SQuAD compares answers: in lower case, without punctuation, without a, an and the, with single spaces."""
    plain = "".join(mark for mark in answer.lower() if mark not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def f1_and_exact(answer: str, right: Sequence[str]) -> tuple[float, float]:
    """The highest F1 of an answer's words over the right ones, and whether it is one of these, as SQuAD counts."""
    given, scores = normalized(answer).split(), []
    for wanted in (normalized(one).split() for one in right):
        shared = (Counter(given) & Counter(wanted)).total()
        scores.append((2 * shared / max(1, len(given) + len(wanted)), float(given == wanted)))
    return max(f1 for f1, _ in scores), max(exact for _, exact in scores)


def _pair(text: str, at: str = "") -> tuple[str, str]:
    """A question and its text, given with [SEP] between or as JSON. Raises UserError for anything else."""
    parts = text.split(BETWEEN, 1)
    if text.startswith("{"):
        with suppress(ValueError, KeyError, RecursionError):
            row = json.loads(text)
            parts = [row["question"], row.get("text", row.get("context"))]
    if len(parts) != 2 or not all(isinstance(part, str) and part.strip() for part in parts):
        like = '{"question": "Who came?", "text": "Ada came."}'
        raise UserError(f"{text[:40]!r} is no question and text{at}; expected 'QUESTION [SEP] TEXT', or {like}")
    return parts[0].replace(BETWEEN, " ").strip(), parts[1]
