"""The linear model of answers: against scikit-learn, by hand, at the edges of texts, and on names that it never saw."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from qkv.data.baseline import spans
from qkv.data.baseline.linear import hash_of
from qkv.data.baseline.spans import fit_spans, span_scores
from qkv.randomness import generator

NAMES = "Ada Bob Cleo Dan Eve Fay Gus Hal Ivy Jon Kim Leo Mia Ned Ola Pam".split()
TOWNS = "Oslo Rome Bern Lima Kiel Pisa Nice Bonn Turku Cork Brno Graz Linz Metz Lyon Bari".split()


def some_texts(n: int, length: int) -> list[list[str]]:
    draw = generator("tests", "spans")
    asked = ["Who met Ada? [SEP] ", "Where is it? [SEP] ", "Ada or Bob? [SEP] "]
    words = [*"Ada Bob met it in 1815 .".split()]
    return [[str(draw.choice(asked)), *map(str, draw.choice(words, length))] for _ in range(n)]


def test_between_two_words_it_is_the_logistic_regression_of_scikit_learn() -> None:
    texts = some_texts(60, 2)
    last = generator("tests", "ends").integers(0, 2, 60)
    first = last * generator("tests", "starts").integers(0, 2, 60)
    ends = np.zeros((60, 3, 2))
    ends[np.arange(60), 1 + first, 0] = ends[np.arange(60), 1 + last, 1] = 1
    scores = span_scores(fit_spans(texts, ends.reshape(-1, 2), tolerance=1e-9), texts).reshape(60, 3, 2)
    counts = np.zeros((180, 1 << 16))
    for column in spans._features(texts):
        counts[np.arange(180), column] += 1
    counts = counts[:, counts.any(0)].reshape(60, 3, -1)
    apart = counts[:, 2] - counts[:, 1]
    for k, second in enumerate((first, last)):
        oracle = LogisticRegression(C=1, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(apart, second)
        found = scores[:, 2, k] - scores[:, 1, k]
        np.testing.assert_allclose(found, oracle.decision_function(apart), atol=1e-4)
        assert np.abs(found).max() > 0.5


def test_a_single_word_teaches_nothing() -> None:
    assert not fit_spans([["Who? [SEP] ", "Ada"]], np.array([[0, 0], [1, 1]])).any()


def test_sentences_rank_by_their_words_of_the_question() -> None:
    # ("" for the question) a b . c a . d : of four sentences two have a (ln 5/2) and one has c (ln 5)
    words, shared = ["", *"a b . c a . d".split()], np.array([0, 1, 0, 0, 1, 1, 0, 0], dtype=bool)
    hashed = np.array([hash_of(word) for word in words], dtype=np.uint64)
    sentence = np.array([0, 1, 1, 1, 2, 2, 2, 3])
    ranks = spans._ranks(hashed, shared, sentence, np.zeros(8, dtype=np.int64))
    assert ranks.tolist() == [2, 1, 1, 1, 0, 0, 0, 3]
    twice = [np.concatenate([x, x + more]) for x, more in ((sentence, 4), (np.zeros(8, dtype=np.int64), 1))]
    assert (spans._ranks(np.tile(hashed, 2), np.tile(shared, 2), *twice) == np.tile(ranks, 2)).all()


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_scores_of_a_text_do_not_depend_on_others(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    texts = [some_texts(1, n)[0][: n + 1] for n in (1, 2, 3, 7, 30, 1, 12)]
    texts[3][0], texts[4][0] = "Which 1815 met Ada Bob there? [SEP] ", "? [SEP] "
    weights = generator("tests").normal(size=(1 << 16, 2))
    alone = [span_scores(weights, [text]) for text in texts]
    monkeypatch.setattr(spans, "_CHUNK", chunk)
    together = np.split(span_scores(weights, texts), np.cumsum([len(text) for text in texts])[:-1])
    for one, other in zip(alone, together, strict=True):  # a constant of the text has no meaning
        np.testing.assert_allclose(one[1:] - one[1], other[1:] - other[1], atol=1e-9)


def test_it_finds_the_town_of_a_name_that_it_never_saw() -> None:
    def row(i: int, j: int) -> list[str]:
        text = f"{NAMES[i]} was born in {TOWNS[i]} . {NAMES[j]} was born in {TOWNS[j]} ."
        return [f"Where was {NAMES[j]} born? [SEP] ", *text.split()]

    texts = [row(*pair) for i in range(0, 12, 2) for pair in ((i, i + 1), (i + 1, i))]
    ends = np.zeros((len(texts), 13, 2))
    ends[:, 11] = 1
    for text in texts[::2]:  # of every second one the first sentence is asked
        text[0] = text[0].replace(text[7], text[1])
    ends[::2] = np.roll(ends[::2], -6, axis=1)
    weights = fit_spans(texts, ends.reshape(-1, 2))
    asked = [row(12, 13), row(15, 14)]
    asked[1][0] = "Where was Pam born? [SEP] "
    found = span_scores(weights, asked).reshape(2, 13, 2)[:, 1:].argmax(1) + 1
    assert found.tolist() == [[11, 11], [5, 5]]
