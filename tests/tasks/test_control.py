"""The random-label control: uniform labels, afresh at every step, from which one learns only to guess evenly."""

import numpy as np
import pytest
import torch

from qkv.data.config import DataConfig
from qkv.data.examples import load_examples
from qkv.models.layout import Sizes
from qkv.studies.engine.design import Text
from qkv.studies.synthetic.streams import corpus as made_corpus
from qkv.studies.synthetic.tasks import Modular, Recall, Repeat
from qkv.tasks import Classify, find_task
from qkv.tasks.batch import with_uniform_labels

MADE = {
    "recall": (Recall, {"keys": 8, "values": 8}),
    "repeat": (Repeat, {"letters": 20}),
    "modular": (Modular, {"modulus": 11}),
}


@pytest.fixture(params=["causal", "masked", "classify", "image", "translate", *MADE])
def case(request, corpus_of, small_pairs, tmp_path):
    """(task, data, how many answers a model has)."""
    name = request.param
    if name in MADE:
        task, settings = MADE[name]
        data = made_corpus(Text(stream=name, settings=tuple(settings.items())), "", 0, None)
        return task(**settings), data, data.tokenizer.d_vocab
    if name == "classify":
        path = tmp_path / "rows.txt"
        rows = (f"{'up' if i % 3 else 'down'} {'good ' * (i % 7)}film {'ab'[i % 2] * (i // 2 + 1)}" for i in range(120))
        path.write_text("\n".join(rows))
        return Classify(), load_examples(DataConfig(source=str(path), tokenizer="word"), cache=None), 2
    if name == "image":
        return find_task(name), made_corpus(Text(stream="digits"), "", 0, None), 10
    if name == "translate":
        data = find_task(name).load(DataConfig(source=":".join(map(str, small_pairs))), cache=None)
        return find_task(name), data, data.tokenizer.d_vocab
    data = corpus_of(specials=name == "masked")
    return find_task(name), data, data.tokenizer.d_vocab


def drawn(case, examples, *, seed=1, step=5):
    task, data, n = case
    sizes = Sizes(d_vocab=n, d_model=8, n_layers=1, n_heads=1, n_ctx=16)
    plain = task.train_batch(data, sizes, seed, step, np.asarray(examples))
    by_place = task.target == "token"
    return plain, with_uniform_labels(plain, task.labels(data, n), seed, step, np.asarray(examples), by_place=by_place)


def test_only_targets_change_and_every_label_is_equally_likely_whatever_the_data(case):
    task, data, n = case
    labels = task.labels(data, n)
    assert len(labels) == n - 5 * (task.name == "masked")
    batches = [drawn(case, range(64), step=step) for step in range(40)]
    for plain, null in batches:
        assert null.targets.shape == plain.targets.shape and null.targets.dtype == plain.targets.dtype
        assert null.inputs is plain.inputs and null.positions is plain.positions
    draws, real = (torch.cat([pair[i].targets for pair in batches]).numpy() for i in (1, 0))
    counts = np.bincount(draws, minlength=n)[labels]
    assert counts.sum() == len(draws)
    p = 1 / len(labels)
    assert (np.abs(counts - len(draws) * p) < 4.5 * np.sqrt(len(draws) * p * (1 - p))).all()
    assert abs((draws == real).mean() - p) < 4.5 * np.sqrt(p / len(draws))  # independent of what would be right


def test_draws_are_of_seed_step_example_and_place_whatever_else_is_in_the_batch(case):
    whole, parts = (drawn(case, range(6))[1], [drawn(case, [i])[1] for i in range(6)])
    assert torch.cat([part.targets for part in parts]).equal(whole.targets)
    for other in (drawn(case, range(6), step=6)[1], drawn(case, range(6), seed=2)[1]):
        n = min(len(other.targets), len(whole.targets))
        assert not other.targets[:n].equal(whole.targets[:n])


def test_no_teacher_answers_in_the_place_of_a_label(case):
    task, data, n = case
    plain, _ = drawn(case, range(4))
    taught = plain._replace(answers=torch.ones(plain.n_targets, n) / n)
    labels, names = task.labels(data, n), np.arange(4)
    assert with_uniform_labels(taught, labels, 1, 5, names, by_place=task.target == "token").answers is None


def test_a_sum_over_places_and_examples_names_no_draw_twice(case):
    """One row of a window, and the next window, have other labels: nothing repeats that could be learned by heart."""
    task, data, n = case
    null = drawn(case, range(40))[1].targets.double().numpy()
    moved = null - null.mean()
    for lag in (1, 2, 16):
        assert abs((moved[lag:] * moved[:-lag]).mean() / moved.var()) < 4.5 / np.sqrt(len(null) - lag)
