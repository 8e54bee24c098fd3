"""Probes are scikit-learn's on the same vectors; what a control gives is what memorized words give."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import qkv
from qkv import cli
from qkv.data.baseline.linear import classes_of, fit_dense
from qkv.data.sources.tagged import read_tagged
from qkv.errors import SourceError, UserError
from qkv.inspection.contextual import Contextual
from qkv.inspection.probes.linear import Items, probe, text_items
from qkv.randomness import generator


@pytest.mark.parametrize("n_classes", [2, 4])
def test_a_probe_is_scikit_learns_logistic_regression(n_classes: int) -> None:
    draws = generator("tests", "probe", n_classes)
    x, classes = draws.normal(size=(200, 12)), draws.integers(n_classes, size=200)
    weights, bias = fit_dense(x, classes, n_classes, tolerance=1e-10)
    expected = LogisticRegression(C=1.0, tol=1e-12, max_iter=5000).fit(x, classes).predict_proba(x)
    logits = classes_of(x @ weights + bias)
    found = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_accuracy_is_that_of_scikit_learn_on_the_same_texts_and_the_control_follows_words() -> None:
    draws = generator("tests", "probe", "items")
    n, words = 600, draws.integers(30, size=600)
    table = draws.normal(size=(30, 8))
    layers = np.stack([table[words], draws.normal(size=(n, 8))], 1).astype(np.float32)
    texts = np.arange(n) // 6
    items = Items(["embed", "noise"], layers, [f"l{w % 3}" for w in words], [f"w{w}" for w in words], texts)
    found = probe(items, by_word=True)
    test = np.isin(texts, generator("probe", "texts").permutation(100)[:20])
    for i, layer in enumerate(found.layers):
        x, y = layers[:, i].astype(np.float64), words % 3
        x = (x - x[~test].mean(0)) / x[~test].std(0)
        theirs = LogisticRegression(tol=1e-10, max_iter=5000).fit(x[~test], y[~test])
        assert layer.accuracy == pytest.approx(theirs.score(x[test], y[test]), abs=1e-6)
        assert layer.low <= layer.accuracy <= layer.high
        assert layer.selectivity == pytest.approx(layer.accuracy - layer.control)
    assert found.by_word == 1.0 and found.classes == ["l0", "l1", "l2"]
    assert found.layers[0].control > found.layers[1].control + 0.1  # vectors of words let labels of words be learned
    assert found.majority == pytest.approx((words[test] % 3 == np.bincount(words[~test] % 3).argmax()).mean())


def test_long_texts_are_kept_once_and_their_vectors_are_not_kept() -> None:
    draws = generator("tests", "probe", "long")
    n, layers = 64, draws.normal(size=(64, 1, 2)).astype(np.float32)
    texts = ["a" * 500_000 + str(i) for i in range(n)]

    def read() -> Iterator[Contextual]:
        for text, vectors in zip(texts, layers, strict=True):
            many = np.repeat(vectors[:, None], 100_000, axis=1)  # 0.8 MB
            yield Contextual(text=text, tokens=[], ids=np.zeros(100_000, np.int64), layers=["embed"], vectors=many)

    tracemalloc.start()
    found = probe(text_items(["x", "y"] * (n // 2), read()), by_word=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.n_train + found.n_test == n and peak < 2e7


CONLLU = (
    "# text = don't go\n1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_\n1\tdo\tdo\tAUX\t_\t_\t3\taux\t_\tSpaceAfter=No\n"
    "2\tn't\tnot\tPART\t_\t_\t3\tadvmod\t_\t_\n3\tgo\tgo\tVERB\t_\t_\t0\troot\t_\t_\n\n1\tYes\tyes\tINTJ\t_\t_\t0\troot\t_\t_\n"
)


def test_labeled_words_are_read_with_their_places(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(CONLLU)
    one, other = read_tagged(path)
    assert one.text == "don't go" and [one.text[a:b] for a, b in one.spans] == one.words == ["do", "n't", "go"]
    assert read_tagged(path, "misc")[0].labels == ["SpaceAfter=No", "_", "_"]
    assert one.labels == ["AUX", "PART", "VERB"] and other.labels == ["INTJ"]
    assert read_tagged(path, "deprel")[0].labels == ["aux", "advmod", "root"]
    with pytest.raises(SourceError, match="unknown column 'uposs'"):
        read_tagged(path, "uposs")
    (tmp_path / "b.conll").write_text("EU B-ORG\nrejects O\n\nlamb\n")
    with pytest.raises(SourceError, match="line 4 has 1 cells; expected a word and its label"):
        read_tagged(tmp_path / "b.conll")


def test_the_command_probes_words_and_texts_of_a_run(tmp_path: Path, capsys) -> None:
    words = "the cat sat on a mat and one dog ran to that house".split()
    draws = generator("tests", "probe", "run")
    lines = [list(draws.choice(words, size=6)) for _ in range(60)]
    (tmp_path / "t.txt").write_text("".join(" ".join(line) + "\n" for line in lines) * 4)
    sizes = {"d_model": 8, "n_layers": 1, "n_heads": 1, "n_ctx": 16}
    run = qkv.train(tmp_path / "t.txt", tokenizer="word", steps=2, set=sizes, out=tmp_path / "run", report=False)
    tagged = tmp_path / "w.conll"
    tagged.write_text(
        "\n\n".join("\n".join(f"{word}\t{'LONG' if len(word) > 2 else 'SHORT'}" for word in line) for line in lines)
    )
    assert cli.main(["probe", str(run.path), str(tagged), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["labels"] == "tokens" and [one["layer"] for one in found["layers"]] == [
        "embed",
        "L0.resid_post",
        "norm_f",
    ]
    assert (
        found["by_word"] == 1.0 and found["layers"][0]["accuracy"] > 0.9 and found["n_train"] + found["n_test"] == 360
    )
    table = tmp_path / "t.tsv"
    table.write_text("text\tlabel\n" + "".join(f"{' '.join(line)}\t{'cat' in line}\n" for line in lines))
    assert cli.main(["probe", str(run.path), str(table), "--at", "0"]) == 0
    said = capsys.readouterr().out
    assert "selectivity" in said and "the most frequent label of each word" not in said
    assert qkv.load(run.path).embed(["the cat"])[0].offsets.tolist() == [[0, 3], [4, 7]]
    tagged.write_text("the A\n")
    with pytest.raises(UserError, match="too few to probe"):
        run.probe(tagged)
