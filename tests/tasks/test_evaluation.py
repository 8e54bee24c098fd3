"""Figures of a whole split: against plain sums, SciPy's t and simulated coverage."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from qkv.errors import ConfigError
from qkv.tasks import TASKS, Causal, Masked, evaluate, find_task, validation_loss
from qkv.tasks.evaluation import loss_interval, ratio_interval, student_t


@pytest.mark.parametrize("task", [Causal(), Masked()], ids=lambda task: task.name)
def test_evaluation_agrees_with_validation_loss_and_with_argmax(corpus_of, model_of, task):
    corpus = corpus_of(specials=task.needs_specials)
    model = model_of(task.model_kind, corpus.tokenizer.d_vocab)
    result = evaluate(model, task, corpus, batch_size=9)
    assert result == evaluate(model, task, corpus, batch_size=9)
    assert result.loss == pytest.approx(validation_loss(model, task, corpus, 4), rel=1e-6)
    right = n = 0
    for batch in task.val_batches(corpus, model.config.sizes, 5):
        with torch.no_grad():
            answers = model(batch.inputs, batch.mask).argmax(-1).flatten()
        right += int((answers[slice(None) if batch.positions is None else batch.positions] == batch.targets).sum())
        n += batch.n_targets
    assert result.n_targets == n and result.n_windows == 63
    assert result.accuracy == pytest.approx(right / n)
    assert result.loss_interval[0] < result.loss < result.loss_interval[1]
    assert 0 <= result.accuracy_interval[0] <= result.accuracy <= result.accuracy_interval[1] <= 1


def test_bits_per_byte_is_the_code_length_over_the_original_bytes(corpus_of, model_of):
    corpus = corpus_of(specials=False)
    model = model_of("CausalLM", corpus.tokenizer.d_vocab)
    result = evaluate(model, Causal(), corpus)
    assert result.bits_per_byte == pytest.approx(result.loss * len(corpus.val) / math.log(2) / corpus.val.n_bytes)


@pytest.mark.parametrize("task", [Causal(), Masked()], ids=lambda task: task.name)
def test_the_loss_by_position_is_that_of_the_targets_that_stand_there(corpus_of, model_of, task):
    corpus = corpus_of(specials=task.needs_specials)
    model = model_of(task.model_kind, corpus.tokenizer.d_vocab)
    result = evaluate(model, task, corpus, batch_size=9)
    assert [(place.first, place.last) for place in result.by_position] == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16)]
    assert sum(place.n_targets for place in result.by_position) == result.n_targets
    whole = sum(place.loss * place.n_targets for place in result.by_position) / result.n_targets
    assert whole == pytest.approx(result.loss, rel=1e-6)
    nats = {place: [] for place in range(16)}
    for batch in task.val_batches(corpus, model.config.sizes, 5):
        with torch.no_grad():
            answers = model(batch.inputs, batch.mask).log_softmax(-1).flatten(0, 1)
        places = np.arange(batch.inputs.numel()) if batch.positions is None else batch.positions.numpy()
        for place, target in zip(places, batch.targets, strict=True):
            nats[int(place) % 16].append(-float(answers[int(place), target]))
    for found in result.by_position:
        there = [x for place in range(found.first - 1, found.last) for x in nats[place]]
        assert found.loss == pytest.approx(np.mean(there), rel=1e-5) and found.n_targets == len(there)
        assert found.interval[0] < found.loss < found.interval[1]


def test_the_last_place_is_inside_the_window(corpus_of, model_of):
    corpus = corpus_of(specials=False)
    found = evaluate(model_of("CausalLM", corpus.tokenizer.d_vocab, n_ctx=11), Causal(), corpus).by_position
    assert [(place.first, place.last) for place in found] == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 11)]


def test_perplexity_by_words_is_the_text_s_nats_over_its_words_and_line_ends(corpus_of, model_of):
    corpus = corpus_of(specials=False)
    text = corpus.tokenizer.decode(corpus.val.ids)
    corpus.n_words = lambda: len(text.split()) + text.count("\n")
    result = Causal().evaluate(model_of("CausalLM", corpus.tokenizer.d_vocab), corpus)
    found = result.figures["word_perplexity"]
    assert found.value == pytest.approx(math.exp(result.loss * len(corpus.val) / corpus.n_words()))
    assert found.interval[0] < found.value < found.interval[1]
    assert result.as_json()["word_perplexity"] == found.value


def test_one_window_has_no_interval(corpus_of, model_of):
    corpus = corpus_of(specials=True, n_val=12)
    result = evaluate(model_of("MaskedLM", corpus.tokenizer.d_vocab), Masked(), corpus)
    assert result.n_windows == 1 and result.loss_interval is None and result.accuracy_interval is None


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 10, 30, 100, 10_000])
def test_student_t_agrees_with_scipy(degrees):
    assert student_t(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=2e-3)


def test_equal_sizes_give_the_interval_of_a_mean():
    x = np.random.default_rng(0).normal(3, 1, size=12)
    ratio, (low, high) = ratio_interval(x * 5, np.full(12, 5.0))
    expected = stats.t.interval(0.95, 11, loc=x.mean(), scale=stats.sem(x))
    assert ratio == pytest.approx(x.mean())
    assert (low, high) == pytest.approx(expected, rel=1e-4)


def test_intervals_of_unequal_units_cover_as_often_as_they_say():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        sizes = rng.integers(1, 20, size=40).astype(float)
        low, high = ratio_interval(rng.gamma(2 * sizes, 1.0), sizes)[1]
        covered += low <= 2.0 <= high
    assert abs(covered / 2000 - 0.95) < 0.02


def test_the_interval_of_a_loss_ends_at_zero():
    nats, targets = np.array([0.0, 0.02]), np.ones(2)
    assert ratio_interval(nats, targets)[1][0] < 0
    loss, (low, high) = loss_interval(nats, targets)
    assert (loss, low) == (pytest.approx(0.01), 0.0) and high > 0.1
    assert loss_interval(nats[:1], targets[:1]) == (0.0, None)


def test_tasks_are_found_by_name_and_misses_name_the_nearest():
    assert find_task("causal") is TASKS["causal"]
    with pytest.raises(ConfigError, match="did you mean 'masked'"):
        find_task("maskd")


@pytest.mark.parametrize("right", [False, True])
def test_an_accuracy_of_none_or_all_has_wilson_s_interval(corpus_of, model_of, right):
    """Windows do not differ then: their spread says 0 to 0, or 1 to 1."""
    corpus = corpus_of(specials=True)

    class Always(Masked):
        def score(self, model, batch):
            found = super().score(model, batch)
            return found._replace(correct=torch.full_like(found.correct, right))

    found = evaluate(model_of("MaskedLM", corpus.tokenizer.d_vocab), Always(), corpus)
    wanted = stats.binomtest(found.n_targets * right, found.n_targets).proportion_ci(method="wilson")
    assert found.accuracy == right and found.accuracy_interval == pytest.approx((wanted.low, wanted.high))
