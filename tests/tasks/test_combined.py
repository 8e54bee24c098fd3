"""Attention is added to the linear model only where it helps on texts that neither was fitted to."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize

from qkv.data.config import DataConfig, LabelledOptions
from qkv.data.examples import Examples, load_examples
from qkv.errors import ConfigError
from qkv.models.layout import Sizes
from qkv.randomness import generator
from qkv.tasks import Classify
from qkv.tasks.combined import BINS, Combined, calibration, combine

SIZES = Sizes(d_vocab=1, d_model=1, n_layers=1, n_heads=1, n_ctx=32)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Examples:
    return load(tmp_path_factory.mktemp("combined") / "t.tsv")


def load(path, **options) -> Examples:
    """The class is whether "not" stands before "good", which no n-gram of up to two words says."""
    draws, rows = generator("tests", "combined"), []
    for i in range(400):
        words = list(draws.permutation(["not", "good", *draws.choice("a b c d e f".split(), size=4)]))
        rows.append(f"{' '.join(words)} {i}\t{'yes' if words.index('not') < words.index('good') else 'no'}")
    path.write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    labels = LabelledOptions(word_dropout=0, disturbed=0, **options)
    return load_examples(DataConfig(source=str(path), tokenizer="word", labels=labels), cache=None)


def knows(data: Examples, sure: float) -> np.ndarray:
    """Logits of a reader of word order for the weighed texts."""
    return sure * np.eye(2)[data.train.classes[data.weighed]]


def test_texts_are_held_from_training_and_none_of_them_is_in_a_batch(data: Examples) -> None:
    assert data.held.sum() == 72 and data.weighed.tolist() == np.flatnonzero(data.held).tolist()  # a fifth of 360
    n = len(data.trained)
    task = Classify(word_dropout=0, disturbed=0)
    batch = task.train_batch(data, SIZES, 1, 0, np.arange(n))
    seen = {tuple(batch.inputs[batch.documents == i].tolist()) for i in range(n)}
    ids = [tuple(data.train.tokens.document(i).tolist()) for i in range(len(data.train))]
    assert seen == {ids[i] for i in data.trained} and not seen & {ids[i] for i in data.weighed}


def test_attention_that_knows_more_is_taken_and_noise_is_not(data: Examples) -> None:
    both = combine(data, knows(data, 3.0))
    assert both.share > 1 and both.gain > 5 * both.error > 0
    noise = generator("tests", "noise").normal(size=(len(data.weighed), 2))
    for useless in (np.zeros_like(noise), noise, -knows(data, 3.0), np.full_like(noise, np.nan)):
        assert combine(data, useless).share == 0
    texts = data.val.texts
    alone = combine(data, noise)
    assert (alone.logits(texts, noise[:1]).argmax(1) == alone.linear.logits(texts).argmax(1)).all()


def test_factors_are_those_of_the_least_loss(data: Examples) -> None:
    attention, classes = 0.3 * knows(data, 1.0), torch.from_numpy(data.train.classes[data.weighed])
    attention[::8] *= -1
    counted = torch.from_numpy(data.linear[1])

    def loss(factors: np.ndarray) -> float:
        logits = factors[0] * counted + factors[1] * torch.from_numpy(attention)
        return float(F.cross_entropy(logits, classes, reduction="sum")) + 0.5 * float(((factors - [1, 0]) ** 2).sum())

    found = combine(data, attention)
    expected = minimize(loss, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10}).x
    assert (found.scale, found.share) == pytest.approx(expected, abs=1e-5)


def test_what_is_stored_is_read_again(data: Examples) -> None:
    made = combine(data, knows(data, 3.0))
    again = Combined.read(made.stored())
    attention = generator("tests", "some").normal(size=(len(data.val), 2))
    np.testing.assert_array_equal(again.logits(data.val.texts, attention), made.logits(data.val.texts, attention))
    assert (again.n_held, again.gain, again.error) == (made.n_held, made.gain, made.error)


def test_calibration_is_the_mean_distance_of_bins_of_equally_many() -> None:
    p = generator("tests", "calibration").uniform(0.5, 1, size=100 * BINS)
    exact = generator("tests", "exact").uniform(size=len(p)) < p
    probabilities = np.stack([p, 1 - p], 1)
    error, chance = calibration(probabilities, np.where(exact, 0, 1))
    order = np.argsort(p).reshape(BINS, -1)
    assert error == pytest.approx(np.abs(exact[order].mean(1) - p[order].mean(1)).mean())
    assert 0.5 * chance < error < 2 * chance
    assert calibration(probabilities, np.ones(len(p), dtype=int))[0] == pytest.approx(p.mean())


def test_balanced_classes_weigh_each_texts_loss(tmp_path) -> None:
    data = load(tmp_path / "t.tsv", class_weights="balanced")
    assert data.weights is not None
    weights = torch.from_numpy(data.weights)
    assert weights[data.train.classes].sum() == pytest.approx(len(data.train))
    batch = Classify(word_dropout=0, disturbed=0).train_batch(data, SIZES, 1, 0, np.arange(9))
    torch.testing.assert_close(batch.answers.sum(1).double(), weights[batch.targets])
    assert batch.answers.argmax(1).equal(batch.targets)
    with pytest.raises(ConfigError, match="class_weights is 'some'; expected 'none' or 'balanced'"):
        LabelledOptions(class_weights="some")
