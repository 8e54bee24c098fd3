"""The linear model on n-grams is scikit-learn's, on the same vectors."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from qkv.data.baseline.linear import (
    STRENGTH,
    WORDS,
    Linear,
    Vectors,
    balanced,
    cross_validated,
    fit_linear,
    of_columns,
    read_linear,
)
from qkv.randomness import generator

STEMS = "good fine bad poor film plot cast it's Größe naïve don't a".split()


def texts(name: str, n: int = 80) -> list[str]:
    draws = generator("tests", "linear", name)
    return [" ".join(draws.choice(STEMS, size=int(draws.integers(1, 9)))) + " !\t?"[: i % 4] for i in range(n)]


@pytest.fixture(scope="module", params=[2, 3])
def fitted(request) -> tuple[int, np.ndarray, Linear]:
    classes = generator("tests", "linear", "classes").integers(request.param, size=80)
    return request.param, classes, fit_linear(texts("train"), classes, request.param, tolerance=1e-9)[0]


@pytest.fixture(scope="module")
def theirs() -> tuple[csr_matrix, csr_matrix]:
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORDS.pattern)
    runs = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, min_df=2)
    train = hstack([each.fit_transform(texts("train")) for each in (words, runs)]).tocsr()
    return train, hstack([each.transform(texts("other")) for each in (words, runs)]).tocsr()


@pytest.mark.parametrize("n_out", [1, 3])
@pytest.mark.parametrize("lengths", [[3, 0, 2, 0], [0, 0], []], ids=["some", "empty rows", "no rows"])
def test_products_are_those_of_dense_rows_without_a_word(n_out, lengths, recwarn) -> None:
    draws, n = generator("tests", "products"), sum(lengths)
    starts = np.cumsum([0, *lengths])
    columns = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(k) * 2 for k in lengths)])
    sparse = Vectors(starts=starts, columns=columns, values=draws.standard_normal(n))
    dense = np.zeros((len(lengths), 6))
    dense[np.repeat(np.arange(len(lengths)), lengths), columns] = sparse.values
    table, across = draws.standard_normal((6, n_out)), draws.standard_normal((len(lengths), n_out))
    np.testing.assert_allclose(sparse.times(table), dense @ table, rtol=1e-14)
    np.testing.assert_allclose(sparse.turned(6).times(across), dense.T @ across, rtol=1e-14)
    assert not recwarn.list


def test_vectors_are_those_of_scikit_learn_but_for_the_orderof_columns(fitted, theirs) -> None:
    x, expected = fitted[2].vectors(texts("other")), theirs[1]
    ours = csr_matrix((x.values, x.columns, x.starts), shape=(80, len(fitted[2].keys)))
    assert ours.shape == expected.shape
    np.testing.assert_allclose((ours @ ours.T).toarray(), (expected @ expected.T).toarray(), atol=1e-12)


def test_logits_are_those_of_scikit_learns_logistic_regression(fitted, theirs) -> None:
    n_classes, classes, model = fitted
    regression = LogisticRegression(C=STRENGTH, tol=1e-10, max_iter=5000).fit(theirs[0], classes)
    expected, found = regression.decision_function(theirs[1]), model.logits(texts("other"))
    np.testing.assert_allclose(found[:, 1] if n_classes == 2 else found, expected, atol=1e-6)


def test_weighted_classes_too(theirs) -> None:
    classes = (np.arange(80) % 5 == 0).astype(int)
    model, _ = fit_linear(texts("train"), classes, 2, class_weights=balanced(classes, 2), tolerance=1e-9)
    regression = LogisticRegression(C=STRENGTH, tol=1e-10, max_iter=5000, class_weight="balanced")
    expected = regression.fit(theirs[0], classes).decision_function(theirs[1])
    np.testing.assert_allclose(model.logits(texts("other"))[:, 1], expected, atol=1e-6)


def test_held_texts_are_answered_by_a_model_that_never_saw_their_classes() -> None:
    classes, held = generator("tests", "linear", "held").integers(2, size=80), np.arange(80) % 4 == 0
    turned = np.where(held, 1 - classes, classes)
    one, other = (fit_linear(texts("train"), some, 2, held=held, tolerance=1e-9) for some in (classes, turned))
    np.testing.assert_allclose(one[1], other[1], atol=1e-6)
    assert np.abs(one[0].logits(texts("other")) - other[0].logits(texts("other"))).max() > 0.1


def test_held_texts_are_answered_as_by_a_model_of_the_other_texts_alone() -> None:
    classes, held = generator("tests", "linear", "held").integers(2, size=80), np.arange(80) % 4 == 0
    given = texts("train")
    others = [text for text, out in zip(given, held, strict=True) if not out]
    alone, _ = fit_linear(others, classes[~held], 2, tolerance=1e-9)
    _, found = fit_linear(given, classes, 2, held=held, tolerance=1e-9)
    expected = alone.logits([text for text, out in zip(given, held, strict=True) if out])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    folds = np.where(held, 1, 0)
    np.testing.assert_allclose(cross_validated(given, classes, 2, folds)[held], expected, atol=1e-2)


def test_what_is_stored_is_read_again(fitted) -> None:
    again = read_linear(fitted[2].tensors())
    np.testing.assert_array_equal(again.logits(texts("other")), fitted[2].logits(texts("other")))


def columns(n: int, name: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Texts of two columns of made-up words; whether most words are shared, and whether red is in the first column."""
    draws, rows, alike, first = generator("tests", "columns", name), [], [], []
    for _ in range(n):
        left = [f"w{i}" for i in draws.integers(10_000, size=6)]
        same, red = bool(draws.integers(2)), bool(draws.integers(2))
        right = list(draws.permutation(left)) if same else [f"w{i}" for i in draws.integers(10_000, size=6)]
        sides = [*left, "red" if red else "blue"], [*right, "blue" if red else "red"]
        rows.append(" [SEP] ".join(" ".join(draws.permutation(side)) for side in sides))
        alike.append(same)
        first.append(red)
    return rows, np.array(alike, dtype=int), np.array(first, dtype=int)


def test_texts_of_two_columns_are_told_by_what_they_share_and_by_where_a_word_is() -> None:
    train, *answers = columns(200, "train")
    other, *wanted = columns(200, "other")
    for known, expected in zip(answers, wanted, strict=True):
        model, _ = fit_linear(train, known, 2)
        assert (model.logits(other).argmax(1) == expected).mean() > 0.95
    whole = [text.replace(" [SEP] ", " ") for text in train], [text.replace(" [SEP] ", " ") for text in other]
    blind, _ = fit_linear(whole[0], answers[1], 2)
    assert (blind.logits(whole[1]).argmax(1) == wanted[1]).mean() < 0.65  # as one text, the columns are not told apart


def test_bins_of_two_columns_are_shares_of_words_and_of_runs() -> None:
    rows, keys = of_columns(["alone", "a b c d [SEP] a b"])
    bins = {int(key) >> 4 & 15: int(key) & 15 for key in keys if key < 1 << 16}
    assert [bins[k] for k in range(3)] == [5, 5, 10] and bins[6] == 3  # half as many words: 0.5 - 0.2
    assert {int(key) >> 8 for key in keys if key < 1 << 16} == {0x01}
    assert set(rows.tolist()) == {1} and len(of_columns(["alone"])[1]) == 0
    assert len(set(map(int, keys)) & set(map(int, of_columns(["x b [SEP] b y"])[1])) - {*range(1 << 16)}) == 3
