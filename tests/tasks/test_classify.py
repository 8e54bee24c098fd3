"""Classification: packing, batches and dropout change no text's loss; the figures are those of a plain model."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.data.config import DataConfig, LabelledOptions
from qkv.data.examples import Examples, load_examples
from qkv.errors import ConfigError
from qkv.models import build
from qkv.models.layout import Layout, ModelConfig, Sizes
from qkv.randomness import generator
from qkv.tasks import Classify, PredictOptions
from qkv.tasks.evaluation import wilson
from qkv.training.dropout import make_drop

WORDS = "good fine great bad poor awful film plot cast score the a of and".split()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    """300 texts of 1 to 30 words; the class is whether good words outnumber bad ones."""
    draws, rows = generator("tests", "classify"), []
    for _ in range(300):
        words = draws.choice(WORDS, size=int(draws.integers(1, 31)))
        score = sum(word in WORDS[:3] for word in words) - sum(word in WORDS[3:6] for word in words)
        rows.append(f"{'up' if score > 0 else 'down'} {' '.join(words)}")
    path = tmp_path_factory.mktemp("classify") / "rows.txt"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return load_examples(DataConfig(source=str(path), tokenizer="word"), cache=None)


@pytest.fixture(params=["rotary", "learned", "sinusoidal"])
def model(request: pytest.FixtureRequest, data: Examples):
    return made(data, positions=request.param)


def made(data: Examples, *, kind: str = "Classifier", **layout):
    sizes = Sizes(d_vocab=data.tokenizer.d_vocab, d_model=16, n_layers=2, n_heads=2, n_ctx=32)
    config = ModelConfig(kind=kind, sizes=sizes, layout=Layout(**{"start": "gpt2", **layout}), classes=data.classes)
    model = build(config, 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += torch.from_numpy(generator("tests", name).normal(0, 0.2, parameter.shape)).float()
    return model


def one_by_one(model, data: Examples) -> tuple[torch.Tensor, torch.Tensor]:
    """(nats, right) of each validation text read alone."""
    logits = torch.cat(
        [model(torch.from_numpy(data.val.tokens.document(i).astype("int64"))[None]) for i in range(len(data.val))]
    )
    classes = torch.from_numpy(data.val.classes)
    return F.cross_entropy(logits, classes, reduction="none"), logits.argmax(1) == classes


@torch.no_grad()
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_texts_in_shared_rows_cost_what_they_cost_alone(model, data: Examples, batch_size: int) -> None:
    expected, right = one_by_one(model, data)
    scores = [Classify().score(model, batch) for batch in Classify().val_batches(data, model.sizes, batch_size)]
    torch.testing.assert_close(torch.cat([s.nats for s in scores]), expected, rtol=1e-4, atol=1e-5)
    assert torch.cat([s.correct for s in scores]).equal(right)


@torch.no_grad()
def test_a_causal_body_in_shared_rows_too(data: Examples) -> None:
    model = made(data, kind="CausalClassifier")
    (batch,) = Classify().val_batches(data, model.sizes, 1000)
    torch.testing.assert_close(Classify().score(model, batch).nats, one_by_one(model, data)[0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_evaluation_has_loss_accuracy_and_wilsons_interval(model, data: Examples) -> None:
    nats, right = one_by_one(model, data)
    found = Classify().evaluate(model, data)
    assert found.loss == pytest.approx(float(nats.mean()), rel=1e-4)
    assert found.accuracy == pytest.approx(float(right.float().mean()))
    assert found.accuracy_interval == wilson(found.accuracy, len(data.val))
    assert found.as_json().keys() >= {"loss", "loss_interval", "accuracy", "accuracy_interval"}
    assert found.n_windows == found.n_targets == len(data.val)


def test_time_is_kept_for_the_linear_model_by_the_characters_that_it_counts(data: Examples) -> None:
    n = sum(len(data.train.texts[i]) for i in data.counted)
    assert (
        Classify().baselines_seconds(data, Sizes(d_vocab=1, d_model=1, n_layers=1, n_heads=1, n_ctx=32), None)
        == pytest.approx(5.5e-6 * n)
        and n > 100
    )


def test_a_linear_model_that_is_kept_has_the_same_numbers_and_takes_no_time(data: Examples, tmp_path, monkeypatch):
    sizes = Sizes(d_vocab=1, d_model=1, n_layers=1, n_heads=1, n_ctx=32)
    first, again = (dataclasses.replace(data, cache=tmp_path) for _ in range(2))
    linear, held = first.linear
    assert Classify().baselines_seconds(first, sizes, None) == 0.0
    monkeypatch.setattr("qkv.data.examples.fit_linear", lambda *given, **named: pytest.fail("fitted again"))
    found, logits = again.linear
    assert np.array_equal(held, logits) and held.shape == (len(data.weighed), 2)
    assert all(np.array_equal(value, found.tensors()[name]) for name, value in linear.tensors().items())
    others = dataclasses.replace(data, cache=tmp_path, weights=np.array([1.0, 2.0]))
    assert not others.keeps_linear


def test_wilsons_interval_is_that_of_scipy() -> None:
    from scipy import stats

    for right, n in ((0, 5), (7, 9), (720, 872), (30, 30)):
        expected = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
        assert wilson(right / n, n) == pytest.approx((expected.low, expected.high), abs=1e-9)


def batch(task: Classify, data: Examples, examples: range, step: int = 3, **more):
    return task.train_batch(
        data, Sizes(d_vocab=1, d_model=1, n_layers=1, n_heads=1, n_ctx=32), 5, step, np.array(examples), **more
    )


def contents(batch) -> list[tuple[list[int], int]]:
    """(tokens, class) of each text of a batch."""
    found = []
    for i in range(batch.n_targets):
        mine = batch.documents == i
        order = batch.places[mine].argsort()
        found.append((batch.inputs[mine][order].tolist(), int(batch.targets[i])))
    return found


@pytest.mark.parametrize("word_dropout", [0.0, 0.4])
def test_a_batch_is_the_same_in_parts_and_in_any_order(data: Examples, word_dropout: float) -> None:
    task = Classify(word_dropout=word_dropout)
    whole = contents(batch(task, data, range(40, 72)))
    parts = contents(batch(task, data, range(40, 50))) + contents(batch(task, data, range(50, 72)))
    turned = contents(batch(task, data, range(71, 39, -1)))
    assert whole == parts == turned[::-1]


def test_an_epoch_reads_every_text_once(data: Examples) -> None:
    n = len(data.train)
    for epoch in (0, 3):
        found = contents(batch(Classify(word_dropout=0.0, disturbed=0.0), data, range(epoch * n, (epoch + 1) * n)))
        texts = [(data.train.tokens.document(i).tolist(), int(data.train.classes[i])) for i in range(n)]
        assert sorted(found) == sorted(texts) and found != texts


def test_left_out_words_are_as_many_as_said_and_one_always_stays(data: Examples) -> None:
    n = len(data.train)
    whole, thin = (contents(batch(Classify(word_dropout=p), data, range(n))) for p in (0.0, 0.5))
    kept = sum(len(ids) for ids, _ in thin) / sum(len(ids) for ids, _ in whole)
    assert kept == pytest.approx(0.5, abs=0.05) and min(len(ids) for ids, _ in thin) == 1
    assert all(_is_part(some, of) and label == same for (some, label), (of, same) in zip(thin, whole, strict=True))
    assert contents(batch(Classify(word_dropout=0.5), data, range(n), step=4)) != thin


def _is_part(some: list[int], of: list[int]) -> bool:
    rest = iter(of)
    return all(token in rest for token in some)


def test_disturbed_labels_are_as_many_as_said_and_drawn_evenly(data: Examples) -> None:
    n = 20 * len(data.train)
    plain, some = (batch(Classify(disturbed=share), data, range(n)) for share in (0.0, 0.4))
    assert plain.inputs.equal(some.inputs)
    changed = plain.targets != some.targets  # of two classes, half of the draws hit the text's own
    for kind in (0, 1):
        mine = plain.targets == kind
        assert float(changed[mine].float().mean()) == pytest.approx(0.2, abs=4 * (0.16 / int(mine.sum())) ** 0.5)


def test_settings_say_how_much_is_left_out_and_disturbed(data: Examples) -> None:
    """And nothing else of a task; without any they are those of a task by itself."""
    options = LabelledOptions(word_dropout=0.5, disturbed=0.4)
    asked = dataclasses.replace(Classify(), joined=0.25).with_settings(DataConfig(labels=options))
    assert asked == Classify(word_dropout=0.5, disturbed=0.4, joined=0.25)
    assert Classify(word_dropout=0.0).with_settings(DataConfig()) == Classify()
    for wrong in (-0.1, 1.0):
        with pytest.raises(ConfigError, match="disturbed is .*; expected a share from 0 up to but not 1"):
            LabelledOptions(disturbed=wrong)


def test_dropout_in_shared_rows_is_that_of_each_text_alone(data: Examples) -> None:
    """Packed, and in two micro-batches of one row a text: the same masks, so the same loss."""
    model, task = made(data), Classify(word_dropout=0.0)
    examples = range(10, 30)
    drop = make_drop(0.3, 1, 2, np.array(examples))
    packed, _ = task.loss(model, batch(task, data, examples), drop)
    plain, _ = task.loss(model, batch(task, data, examples))
    alone = sum(
        task.loss(model, batch(task, data, range(i, i + 1)), make_drop(0.3, 1, 2, np.array([i])))[0] for i in examples
    )
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-4)
    assert abs((packed - plain).item()) > 0.1


def test_a_text_longer_than_the_context_is_cut_there(data: Examples) -> None:
    model = made(data)
    long = " ".join(["good"] * 100)
    same = Classify().probabilities(model, data.tokenizer, [long, " ".join(["good"] * 32)])
    np.testing.assert_allclose(same[0], same[1], atol=1e-6)


def test_predicted_labels_are_the_likeliest_and_any_text_has_one(data: Examples) -> None:
    model, texts = made(data), [*data.val.texts[:20], "never seen words", "", "   "]
    shares = Classify().probabilities(model, data.tokenizer, texts)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)
    labels = Classify().predict(model, data.tokenizer, texts, PredictOptions())
    assert labels == [data.classes[i] for i in shares.argmax(1)]
    assert Classify().predict(model, data.tokenizer, [], PredictOptions()) == []
