"""Sets of labels and numbers: what is read, the linear models and figures against scikit-learn's and scipy's."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import f1_score

from qkv.data.baseline.linear import STRENGTH, Vectors, fit_scores, of_sets, of_values, sigmoid
from qkv.data.config import DataConfig, LabelledOptions
from qkv.data.examples import RIDGE, Examples, between_points
from qkv.errors import ConfigError, SourceError
from qkv.models import build
from qkv.models.layout import Layout, ModelConfig, Sizes
from qkv.randomness import generator
from qkv.tasks import PredictOptions, find_task
from qkv.tasks.combined import Combined
from qkv.tasks.labels import multilabel
from qkv.tasks.labels.multilabel import NONE, best_threshold

TOPICS = {"food": "soup bread apple".split(), "sport": "ball goal race".split(), "travel": "train map city".split()}
VALUES = {"good": 2.0, "great": 3.5, "bad": -2.0, "awful": -3.5}
OTHER = "the a of and we saw it".split()


def rows(n: int) -> list[dict]:
    """Texts with the topics of their words, and with the sum of their words' values."""
    draws, found = generator("tests", "labels"), []
    for i in range(n):
        topics = [topic for topic in TOPICS if draws.random() < 0.4]
        words = [str(draws.choice(TOPICS[topic])) for topic in topics]
        rated = [str(word) for word in draws.choice([*VALUES], size=int(draws.integers(1, 4)))]
        text = " ".join(map(str, draws.permutation([*words, *rated, *draws.choice(OTHER, size=4)]))) + f" {i}"
        found.append({"text": text, "labels": topics, "score": 10 + sum(VALUES[word] for word in rated)})
    return found


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("labels") / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(400)))
    return path


def load(path: Path, task: str, **options) -> Examples:
    config = DataConfig(source=str(path), tokenizer="word", labels=LabelledOptions(word_dropout=0), **options)
    return find_task(task).load(config, cache=None)


@pytest.fixture(scope="module")
def sets(table: Path) -> Examples:
    return load(table, "multilabel")


@pytest.fixture(scope="module")
def numbers(table: Path) -> Examples:
    return load(table, "regress")


def made(data: Examples):
    sizes = Sizes(d_vocab=data.tokenizer.d_vocab, d_model=16, n_layers=1, n_heads=2, n_ctx=32)
    model = build(ModelConfig(kind="Classifier", sizes=sizes, layout=Layout(start="gpt2"), classes=data.classes), 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += torch.from_numpy(generator("tests", name).normal(0, 0.3, parameter.shape)).float()
    return model


def dense(x: Vectors, n: int) -> np.ndarray:
    found = np.zeros((len(x.starts) - 1, n))
    found[np.repeat(np.arange(len(found)), np.diff(x.starts)), x.columns] = x.values
    return found


# what is read


@pytest.mark.parametrize("cell", ["[" * 100_000 + "]" * 100_000, "[" + "-" * 100_000 + "1]", "['" + "a" * 100_000])
def test_a_cell_that_looks_like_a_deep_list_is_a_word(tmp_path: Path, cell: str) -> None:
    cells = [cell, cell, *(["['food', 'sport']", '["food"]'] * 20)]
    lines = "".join(f"text {i}\t{cell}\n" for i, cell in enumerate(cells))
    (tmp_path / "t.tsv").write_text("text\tlabels\n" + lines)
    data = load(tmp_path / "t.tsv", "multilabel")
    assert data.classes == (cell, "food", "sport") and len(data.train) + len(data.val) == 42


def test_sets_are_read_from_lists_and_from_cells_with_a_separator(tmp_path: Path, sets: Examples) -> None:
    written = [(row["text"], "; ".join(row["labels"])) for row in rows(400)]
    (tmp_path / "t.csv").write_text("text,tags\n" + "".join(f"{text},{cell}\n" for text, cell in written))
    lists = [(row["text"], json.dumps(row["labels"])) for row in rows(400)]
    (tmp_path / "t.tsv").write_text("text\tlabels\n" + "".join(f"{text}\t{cell}\n" for text, cell in lists))
    for path in (tmp_path / "t.csv", tmp_path / "t.tsv"):
        data = load(path, "multilabel")
        assert data.classes == sets.classes == ("food", "sport", "travel")
        np.testing.assert_array_equal(data.train.wanted, sets.train.wanted)
        assert data.train.texts == sets.train.texts
    known = {row["text"]: row["labels"] for row in rows(400)}
    for text, wanted in zip(sets.val.texts, sets.val.wanted, strict=True):
        assert [name for name, has in zip(sets.classes, wanted, strict=True) if has] == known[text]
    assert "cut at ';'" in load(tmp_path / "t.csv", "multilabel").note
    assert not {*sets.train.texts} & {*sets.val.texts} and len(sets.val) > 20


def test_a_validation_file_is_cut_where_training_was(tmp_path: Path) -> None:
    cells = {"ab": '"Food, wine; travel"', "cd": "travel"}
    rows = "".join(f"{word} {i},{cell}\n" for i in range(20) for word, cell in cells.items())
    (tmp_path / "train.csv").write_text("text,labels\n" + rows)
    (tmp_path / "val.csv").write_text('text,labels\nab,"Food, wine"\ncd,travel\n')
    data = load(tmp_path / "train.csv", "multilabel", val=str(tmp_path / "val.csv"))
    assert data.classes == ("Food, wine", "travel") and data.val.wanted.tolist() == [[1, 0], [0, 1]]
    data = load(tmp_path / "val.csv", "multilabel", classes=data.classes, val=str(tmp_path / "val.csv"))  # as eval does
    assert data.val.wanted.tolist() == [[1, 0], [0, 1]]


def test_macro_f1_is_inside_its_interval_where_every_label_is_rare() -> None:
    wanted = np.eye(60, dtype=np.float32)
    given = wanted > 0
    given[0, 0] = False
    f1, (low, high) = multilabel._macro(given, SimpleNamespace(wanted=wanted))
    assert f1 == pytest.approx(59 / 60) and low <= f1 <= high


def test_numbers_are_kept_and_written_as_shares_of_two_points(numbers: Examples) -> None:
    known = {row["text"]: row["score"] for row in rows(400)}
    points = np.array(numbers.classes, dtype=float)
    for part in (numbers.train, numbers.val):
        assert part.values.tolist() == [known[text] for text in part.texts]
        inside = np.clip(part.values, points[0], points[-1])
        np.testing.assert_allclose(part.wanted @ points, inside, atol=1e-5)
        assert ((part.wanted > 0).sum(1) <= 2).all()
    found = between_points(np.array([-9.0, 0.0, 1.0, 2.5, 9.0]), np.array([0.0, 1.0, 3.0]))
    assert found.tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0.25, 0.75], [0, 0, 1]]


MISTAKES = {
    "a word as a number": ("regress", "text,score\na b,1\nc d,x\ne f,3\n", "line 3 has the label 'x'; --task regress"),
    "no number": ("regress", "text,score\na b,1\nc d,\ne f,3\n", "line 3 has no label"),
    "infinite": ("regress", "text,score\na b,1\nc d,inf\ne f,3\n", "line 3 has the label 'inf'"),
    "one number": ("regress", "text,score\na b,1\nc d,1.0\ne f,1\n", "expected numbers that differ"),
    "single labels": ("multilabel", "text,tags\na b,x\nc d,y\ne f,x\n", "no row of .* has more than one label"),
    "prose": ("multilabel", "text,tags\na b,x 1;y 2\nc d,z 3\ne f,w 4\n", "4 labels of .* occur in one row only"),
    "a list as a class": ("classify", '{"text":"a","label":["x"]}\n{"text":"b","label":["y"]}\n', "multilabel reads"),
    "numbers as classes": (
        "classify",
        "text,label\n" + "".join(f"w{i},{i}.5\n" for i in range(40)),
        "for numbers give --task regress",
    ),
}  # fmt: skip


@pytest.mark.parametrize("task, content, message", MISTAKES.values(), ids=MISTAKES)
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, task: str, content: str, message: str) -> None:
    path = tmp_path / ("t.jsonl" if content.startswith("{") else "t.csv")
    path.write_text(content)
    with pytest.raises(SourceError, match=message):
        load(path, task)


# linear models


def test_the_linear_model_of_sets_is_a_logistic_regression_per_label(sets: Examples) -> None:
    wanted = sets.train.wanted.astype(float)
    model, _ = fit_scores(sets.train.texts, of_sets(wanted), 3, tolerance=1e-9)
    x, other = (dense(model.vectors(part.texts), len(model.keys)) for part in (sets.train, sets.val))
    for k in range(3):
        theirs = LogisticRegression(C=STRENGTH, tol=1e-10, max_iter=5000).fit(x, wanted[:, k])
        np.testing.assert_allclose(model.scores(sets.val.texts)[:, k], theirs.decision_function(other), atol=1e-5)


def test_the_linear_model_of_numbers_is_ridge_regression(numbers: Examples) -> None:
    values = numbers.train.values - numbers.train.values.mean()
    model, _ = fit_scores(numbers.train.texts, of_values(values), 1, strength=RIDGE, tolerance=1e-9)
    x, other = (dense(model.vectors(part.texts), len(model.keys)) for part in (numbers.train, numbers.val))
    theirs = Ridge(alpha=1 / RIDGE, tol=1e-10).fit(x, values)
    np.testing.assert_allclose(model.scores(numbers.val.texts)[:, 0], theirs.predict(other), atol=1e-5)


# losses and figures


def test_the_threshold_has_the_highest_micro_f1() -> None:
    draws = generator("tests", "threshold")
    for _ in range(5):
        wanted = draws.integers(2, size=(30, 3))
        p = np.round(np.clip(0.5 + 0.3 * (wanted - 0.5) + draws.normal(0, 0.3, wanted.shape), 0, 1), 1)
        best = max(f1_score(wanted, p >= t, average="micro", zero_division=0) for t in np.unique(p))
        assert f1_score(wanted, p >= best_threshold(p, wanted), average="micro") == pytest.approx(best)
    assert best_threshold(p[:0], wanted[:0]) == best_threshold(p, 0 * wanted) == 0.5


@torch.no_grad()
def test_sets_cost_the_mean_binary_cross_entropy_and_are_scored_as_scikit_learn_does(sets: Examples) -> None:
    task, model, wanted = find_task("multilabel"), made(sets), torch.from_numpy(sets.val.wanted)
    ids = [torch.from_numpy(sets.val.tokens.document(i).astype("int64"))[None] for i in range(len(sets.val))]
    logits = torch.cat([model(one) for one in ids])
    nats = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(1)
    found = [task.loss(model, batch) for batch in task.val_batches(sets, model.sizes, 7)]
    assert float(sum(one for one, _ in found)) == pytest.approx(float(nats.sum()), rel=1e-4)
    assert sum(n for _, n in found) == len(sets.val)
    scores = [task.score(model, batch) for batch in task.val_batches(sets, model.sizes, 7)]
    torch.testing.assert_close(torch.cat([one.nats for one in scores]), nats, rtol=1e-4, atol=1e-5)
    result = task.evaluate(model, sets)
    assert result.loss == pytest.approx(float(nats.mean()), rel=1e-4)
    for name in ("micro", "macro"):
        expected = f1_score(wanted, logits >= 0, average=name, zero_division=0)
        low, high = result.figures[f"{name}_f1"].interval
        assert result.figures[f"{name}_f1"].value == pytest.approx(expected) and low < expected < high
    assert result.figures["exact"].value == pytest.approx(float(((logits >= 0) == (wanted > 0)).all(1).float().mean()))


@torch.no_grad()
def test_numbers_are_the_mean_of_their_points_with_error_and_correlations(numbers: Examples) -> None:
    task, model = find_task("regress"), made(numbers)
    texts, values = numbers.val.texts, numbers.val.values
    ids = [torch.from_numpy(numbers.val.tokens.document(i).astype("int64"))[None] for i in range(len(values))]
    points = torch.tensor(list(map(float, numbers.classes)))
    expected = torch.cat([model(one).softmax(-1) @ points for one in ids]).numpy()
    found = task.said(model, numbers.tokenizer, texts)[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    figures = task.evaluate(model, numbers).figures
    assert figures["rmse"].value == pytest.approx(float(np.sqrt(np.mean((found - values) ** 2))))
    assert figures["rmse"].interval[0] < figures["rmse"].value < figures["rmse"].interval[1]
    assert figures["pearson"].value == pytest.approx(np.corrcoef(found, values)[0, 1])
    assert figures["spearman"].value == pytest.approx(spearmanr(found, values).statistic)
    assert task.predict(model, numbers.tokenizer, texts, PredictOptions()) == [repr(float(value)) for value in found]
    assert task.shown("a", "250234.15625001") == "250234.2\ta"
    with pytest.raises(ConfigError, match="--scores has no meaning"):
        task.scores(model, numbers.tokenizer, texts, 2, PredictOptions())


def test_the_control_of_sets_draws_every_label_evenly(sets: Examples) -> None:
    task, model, examples = find_task("multilabel"), made(sets), np.arange(300)
    batch = task.train_batch(sets, model.sizes, 1, 0, examples)
    drawn = task.uniform(batch, np.arange(3), 1, 0, examples).answers
    assert drawn.shape == (300, 3) and set(drawn.unique().tolist()) == {0, 1}
    assert (drawn.mean(0) - 0.5).abs().max() < 0.1 and np.abs(np.corrcoef(drawn.numpy().T) - np.eye(3)).max() < 0.2
    assert not drawn.equal(task.uniform(batch, np.arange(3), 1, 1, examples).answers)
    part = np.arange(40, 60)
    alone = task.train_batch(sets, model.sizes, 1, 0, part)
    assert task.uniform(alone, np.arange(3), 1, 0, part).answers.equal(drawn[40:60])


# with the linear model


@pytest.mark.parametrize("task", ["multilabel", "regress"])
def test_a_weak_model_is_left_out_and_what_is_stored_answers_alike(task: str, request, table: Path) -> None:
    data = request.getfixturevalue("sets" if task == "multilabel" else "numbers")
    model = made(data)
    whole, stored = find_task(task).completed(model, data)
    again = find_task(task).with_companion(stored)
    assert again.combined.thresholds == whole.combined.thresholds and again.combined.unit == whole.combined.unit
    texts = data.val.texts[:9]
    np.testing.assert_allclose(again.said(model, data.tokenizer, texts), whole.said(model, data.tokenizer, texts))
    found, known = whole.evaluate(model, data), whole.baselines(data, model.config.sizes, None)
    metric = whole.metric
    better = 1 if whole.higher_is_better else -1
    own = found.figures[metric].value
    assert better * own >= better * found.figures[f"attention_{metric}"].value
    assert own == pytest.approx(known.summary["tfidf"], rel=0.1)
    weakest = known.summary["commonest" if task == "multilabel" else "mean"]
    assert better * own > better * weakest
    if task == "regress":
        assert weakest == pytest.approx(np.sqrt(np.mean((data.val.values - data.train.values.mean()) ** 2)))
    else:
        assert whole.predict(model, data.tokenizer, ["soup", "the", "ball and soup"], PredictOptions()) == [
            "food", NONE, "food, sport",
        ]  # fmt: skip
        p = sigmoid(data.linear[0].scores(data.val.texts))
        assert known.nats["tfidf"] == pytest.approx(-np.log(np.where(data.val.wanted > 0, p, 1 - p)).mean())


def test_attention_that_knows_the_number_is_added_in_its_unit(numbers: Examples) -> None:
    from qkv.tasks.combined import combine

    exact = numbers.train.values[numbers.weighed][:, None]
    both = combine(numbers, exact)
    assert isinstance(both, Combined) and both.share > 0.5
    found = both.logits(numbers.val.texts, numbers.val.values[:, None])[:, 0]
    alone = both.counted(numbers.val.texts)[:, 0]
    error, counted = (np.sqrt(np.mean((one - numbers.val.values) ** 2)) for one in (found, alone))
    assert error < 0.5 * counted
