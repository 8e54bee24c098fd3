"""Answers in texts: how rows are read, windows, batches, the loss, decoding by brute force, and SQuAD's rules."""

import itertools
import json
import re
import string
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.data.baseline.spans import fit_spans, span_scores
from qkv.data.baseline.words import runs_of
from qkv.data.config import DataConfig
from qkv.data.examples import Answered
from qkv.data.sources.tagged import answers_in
from qkv.errors import SourceError
from qkv.models.layout import Sizes
from qkv.randomness import generator
from qkv.tasks import find_task
from qkv.tasks.batch import rows_of
from qkv.tasks.labels import answer
from qkv.tasks.labels.answer import MOST_WORDS, best_spans, f1_and_exact, normalized

TASK = find_task("answer")


def sizes_of(data, n_ctx: int) -> Sizes:
    return Sizes(d_vocab=data.tokenizer.d_vocab, d_model=8, n_layers=1, n_heads=1, n_ctx=n_ctx, n_types=3)


def load(tmp_path: Path, rows: list[dict], **more):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return TASK.load(DataConfig(source=str(path), tokenizer="word", **more), cache=None)


def some_rows(n: int, length: int = 6) -> list[dict]:
    """Two questions about each text, whose answers are its third and its last two words."""
    texts = [" ".join(f"w{i}x{j}" for j in range(length)) for i in range(n)]
    asked = [[("third", 2, 3), ("last", length - 2, length)] for _ in texts]
    return [
        {"question": f"Which is {name} after {text.split()[0]}?", "text": text, "answer": " ".join(text.split()[a:b])}
        for text, each in zip(texts, asked, strict=True) for name, a, b in each
    ]  # fmt: skip


# reading


@pytest.mark.parametrize(
    "text, value, places",
    [
        ("concatenate a cat", "cat", [(14, 17)]),  # as whole words, if there are
        ("concatenate", "cat", [(3, 6)]),
        ("concat cat", {"text": "cat", "start": 3}, [(3, 6)]),
        ("a cat, the cat", {"text": ["cat", "the cat"], "answer_start": [11, 7]}, [(11, 14), (7, 14)]),
        ("a cat sat", [{"text": "cat", "answer_start": 2}, {"text": "sat"}], [(2, 5), (6, 9)]),
        ("e\u0301te\u0301 (x)", ["(x)"], [(6, 9)]),
    ],
)
def test_answers_are_found(text: str, value, places: list) -> None:
    assert answers_in(text, value, "here") == (False, places)


def test_the_first_of_several_places_is_meant_and_counted(tmp_path: Path) -> None:
    assert answers_in("a cat, a cat", "cat", "here") == (True, [(2, 5)])
    data = load(tmp_path, [*some_rows(20), {"question": "Who?", "text": "one two one", "answer": "one"}])
    assert data.receipt.classes == {"answer found once": 40, "first of several places": 1}
    assert data.receipt.rows.read == 41
    share = next(iter(data.receipt.files.values()))
    assert share.train + share.validation + share.left_out == (tmp_path / "rows.jsonl").stat().st_size
    with pytest.raises(SourceError, match="^here: the text does not have the answer 'dog'"):
        answers_in("a cat", "dog", "here")


def test_questions_about_a_text_are_on_one_side(tmp_path: Path) -> None:
    data = load(tmp_path, some_rows(40))
    sides = [{text.partition(" [SEP] ")[2] for text in part.texts} for part in (data.train, data.val)]
    assert sides[1] and sides[0].isdisjoint(sides[1]) and len(data.train.texts) == 2 * len(sides[0])


def test_columns_are_found_or_named(tmp_path: Path) -> None:
    rows = [
        {
            "q": r["question"],
            "c": r["text"],
            "a": {"text": [r["answer"]], "answer_start": [r["text"].find(r["answer"])]},
        }
        for r in some_rows(20)
    ]
    data = load(tmp_path, rows, text_column="q,c", label_column="a")
    again = load(tmp_path, [{"question": r["q"], "context": r["c"], "answers": r["a"]} for r in rows])
    assert data.train.texts == again.train.texts and (data.train.classes == again.train.classes).all()
    part = data.train
    for i in range(len(part.texts)):
        words = np.flatnonzero(part.owners == i)
        first, last = (words[part.ends[words, k] > 0] for k in (0, 1))
        assert len(first) == len(last) == 1
        assert part.texts[i][part.spans[first[0], 0] : part.spans[last[0], 1]] == part.answers[i][0]
    with pytest.raises(SourceError, match="names 1 column; expected the question and the text"):
        load(tmp_path, rows, text_column="c", label_column="a")


# windows and batches


def test_windows_overlap_and_hold_every_word(tmp_path: Path) -> None:
    data = load(tmp_path, some_rows(20, 50))
    part, n_ctx = data.train, 24
    pieces = part.pieces(n_ctx)
    firsts = np.flatnonzero(np.diff(part.owners, prepend=-1))
    times = np.zeros(len(part))
    for first, end in pieces:
        times[first:end] += 1
    assert (times[firsts] == 0).all() and (np.delete(times, firsts) >= 1).all() and times.max() <= 3
    ids, lengths, words = part.cut(pieces, n_ctx)
    assert lengths.max() <= n_ctx and lengths.sum() == len(ids) == len(words)
    at = 0
    for (first, end), length in zip(pieces, lengths, strict=True):
        inside = np.unique(words[at : at + length])
        assert inside.tolist() == [firsts[part.owners[first]], *range(first, end)]
        at += length


def test_a_window_without_the_answer_is_answered_by_its_question(tmp_path: Path) -> None:
    data = load(tmp_path, some_rows(20, 50))
    sizes = sizes_of(data, 24)
    batch = TASK.train_batch(data, sizes, 1, 0, np.arange(64))
    owners, answers = rows_of(batch).numpy(), batch.answers.numpy()
    assert (np.stack([np.bincount(owners, end) for end in answers.T]) == 1).all() and batch.n_targets == 64
    heads = np.append(True, owners[1:] != owners[:-1])
    alone = answers[heads].sum(1)
    assert {*alone.tolist()} == {0.0, 2.0}
    assert batch.types.max() == 2 and (batch.types[~batch.mask] == 0).all()
    uniform = TASK.uniform(batch, np.arange(2), 1, 0, np.arange(64)).answers.numpy()
    assert (np.stack([np.bincount(owners, end) for end in uniform.T]) == 1).all() and (uniform != answers).any()


class Fixed(torch.nn.Module):
    """A model whose scores are those of a table by token."""

    def __init__(self, table: torch.Tensor, sizes: Sizes) -> None:
        super().__init__()
        self.table, self.sizes = torch.nn.Parameter(table), sizes
        self.config = type("Config", (), {"classes": ("start", "end")})

    def hidden(self, ids, **_):
        return self.table[ids]

    def head(self, h):
        return h


def test_the_loss_is_two_cross_entropies_over_the_words_of_each_window(tmp_path: Path) -> None:
    data = load(tmp_path, some_rows(20))
    sizes = sizes_of(data, 64)
    model = Fixed(torch.from_numpy(generator("tests").normal(size=(sizes.d_vocab, 2))).float(), sizes)
    (batch,) = TASK.val_batches(data, sizes, 100)
    part, expected, right = data.val, [], []
    assert isinstance(part, Answered)
    means = [
        model.table[torch.from_numpy(part.ids[a:b].astype(np.int64))].mean(0) for a, b in itertools.pairwise(part.edges)
    ]
    for i in range(len(part.texts)):
        inside = np.flatnonzero(part.owners == i)
        logs = torch.stack([means[j] for j in inside]).log_softmax(0)
        ends = [int(part.ends[inside, k].argmax()) for k in (0, 1)]
        expected.append(float(-(logs[ends[0], 0] + logs[ends[1], 1]).detach()))
        right.append(logs.argmax(0).tolist() == ends)
    scores = TASK.score(model, batch)
    np.testing.assert_allclose(scores.nats.numpy(), expected, rtol=1e-5)
    assert scores.correct.tolist() == right
    nats, n = TASK.loss(model, batch)
    assert float(nats.detach()) == pytest.approx(sum(expected), rel=1e-5) and n == len(expected)
    said = TASK._logits_of(model, part, np.arange(len(part)))
    np.testing.assert_allclose(part.by_text(TASK._nats_of(said, part))[0].sum(), sum(expected), rtol=1e-5)


def test_the_loss_is_not_rounded_where_the_model_computes_in_bfloat16(tmp_path: Path) -> None:
    data = load(tmp_path, some_rows(20))
    sizes = sizes_of(data, 64)
    table = 40 * generator("tests").normal(size=(sizes.d_vocab, 2))  # large scores
    model = Fixed(torch.from_numpy(table).float(), sizes)
    (batch,) = TASK.val_batches(data, sizes, 100)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        said = TASK._said_of(model, batch, None)
        nats = TASK.score(model, batch).nats
    assert (nats >= 0).all()
    for i, one in enumerate(nats):
        words, ends = said[rows_of(batch) == i].float(), batch.answers[rows_of(batch) == i].argmax(0)
        torch.testing.assert_close(one, F.cross_entropy(words.t(), ends, reduction="sum"))


def test_windows_compete_by_scores_that_count_from_their_question(tmp_path: Path) -> None:
    data = load(tmp_path, some_rows(20, 50))
    sizes, part = sizes_of(data, 24), data.val
    model = Fixed(torch.from_numpy(generator("tests").normal(size=(sizes.d_vocab, 2))).float(), sizes)
    table = model.table.detach().double().numpy()
    means = np.stack([table[part.ids[a:b]].mean(0) for a, b in itertools.pairwise(part.edges)])
    heads = np.flatnonzero(np.diff(part.owners, prepend=-1))[part.owners]
    said = TASK._logits_of(model, part, np.arange(len(part)))
    np.testing.assert_allclose(said, means - means[heads], atol=1e-5)


# decoding and figures


def test_the_best_span_is_that_of_brute_force() -> None:
    draw = generator("tests", "spans")
    lengths = [2, 3, 9, 40, 2]
    said, owners = draw.normal(size=(sum(lengths), 2)), np.repeat(np.arange(5), lengths)
    found, first = best_spans(said, owners), 0
    for length, (a, b, sure) in zip(lengths, found, strict=True):
        pairs = [
            (i, j) for i in range(first + 1, first + length) for j in range(i, min(i + MOST_WORDS, first + length))
        ]
        scores = np.array([said[i, 0] + said[j, 1] for i, j in pairs])
        assert (a, b) == pairs[int(scores.argmax())]
        assert sure == pytest.approx(np.exp(scores.max()) / np.exp(scores).sum())
        first += length


def squad_normal(s: str) -> str:
    """As the official script of SQuAD v1.1 has it."""
    s = "".join(ch for ch in s.lower() if ch not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", s).split())


def squad_f1(prediction: str, truth: str) -> float:
    given, wanted = squad_normal(prediction).split(), squad_normal(truth).split()
    same = sum((Counter(given) & Counter(wanted)).values())
    if same == 0:
        return 0
    precision, recall = same / len(given), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def test_figures_are_those_of_squad() -> None:
    draw = generator("tests", "squad")
    pieces = np.array(["the", "The", "a", "An", "cat", "cat's", "U.S.", "Theatre", "—", "1,000", "\n", "Ångström", "."])
    for _ in range(500):
        given, *right = (" ".join(draw.choice(pieces, draw.integers(0, 6))) for _ in range(3))
        assert normalized(given) == squad_normal(given)
        f1, exact = f1_and_exact(given, right)
        assert exact == max(squad_normal(given) == squad_normal(one) for one in right)
        assert f1 == pytest.approx(max(squad_f1(given, one) for one in right))


def test_the_baseline_is_fitted_to_training_rows_and_says_to_how_many(tmp_path: Path, monkeypatch) -> None:
    data = load(tmp_path, some_rows(40))
    known = TASK.baselines(data, sizes_of(data, 24), None)
    part = data.val
    texts, asked = ([one.words[a:b] for a, b in runs_of(one.owners)] for one in (data.train, part))
    scores = span_scores(fit_spans(texts, data.train.ends), asked)
    figures = TASK._scored(best_spans(scores, part.owners), part)
    assert known.summary == {"linear": figures["answer_f1"].value} and not known.note
    assert known.facts["exact_match"] == {"linear": figures["exact_match"].value}
    seconds = TASK.baselines_seconds(data, sizes_of(data, 24), None)
    assert seconds == pytest.approx(2.7e-5 * len(data.train) + 4e-6 * len(part))
    monkeypatch.setattr(answer, "MOST_FITTED", 100)
    assert TASK.baselines_seconds(data, sizes_of(data, 24), None) == pytest.approx(2.7e-3 + 4e-6 * len(part))
    n = 100 * len(texts) // len(data.train)
    fewer = TASK.baselines(data, sizes_of(data, 24), None)
    assert fewer.note == f"the baseline was fitted to {n} of {len(texts)} questions"
