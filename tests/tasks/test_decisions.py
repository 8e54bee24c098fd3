"""What a report shows of a classifier's decisions: counts, bins and leave-one-out effects, against plain loops."""

import json

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from qkv.data.baseline.linear import fit_linear
from qkv.data.config import DataConfig, LabelledOptions
from qkv.data.examples import Examples, load_examples
from qkv.randomness import generator
from qkv.tasks.labels.decisions import MOST_CLASSES, decisions

GOOD, BAD, OTHER = "good fine great".split(), "bad poor awful".split(), "film plot cast the a of".split()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Examples:
    """A good or a bad word among others; a tenth of the labels is wrong."""
    draws, rows = generator("tests", "decisions"), []
    for i in range(400):
        label = int(draws.integers(2))
        words = [*draws.choice(OTHER, size=5), str(draws.choice((BAD, GOOD)[label])), str(i)]
        rows.append(f"{'up' if label != (draws.random() < 0.1) else 'down'} {' '.join(draws.permutation(words))}")
    path = tmp_path_factory.mktemp("decisions") / "t.txt"
    path.write_text("\n".join(rows) + "\n")
    options = LabelledOptions()
    return load_examples(DataConfig(source=str(path), tokenizer="word", labels=options), cache=None)


def odds(logits: np.ndarray, answer: int) -> float:
    p = np.exp(logits) / np.exp(logits).sum()
    return float(np.log(p[answer] / (1 - p[answer])))


def test_counts_bins_and_mistakes_are_those_of_the_answers(data: Examples) -> None:
    linear = data.linear[0]
    said = 2 * linear.logits(data.val.texts)
    found = decisions(data.val, data.classes, said, lambda texts: 2 * linear.logits(texts), linear)
    assert json.loads(json.dumps(found)) == found
    answers = said.argmax(1)
    assert found["confusion"] == confusion_matrix(data.val.classes, answers).tolist()
    assert found["n_wrong"] == (answers != data.val.classes).sum() > 0 and found["n"] == len(data.val)
    p = (np.exp(said) / np.exp(said).sum(1, keepdims=True)).max(1)
    right = answers == data.val.classes
    bins = np.array_split(np.argsort(p, kind="stable"), len(p) // 20)
    assert [one["accuracy"] for one in found["reliability"]] == pytest.approx([right[some].mean() for some in bins])
    assert [one["confidence"] for one in found["reliability"]] == pytest.approx([p[some].mean() for some in bins])
    assert sum(one["n"] for one in found["reliability"]) == len(p)
    expected = sorted(p[~right], reverse=True)[:8]
    assert [one["probability"] for one in found["mistakes"]] == pytest.approx(expected)
    for one in found["mistakes"]:
        place = data.val.texts.index(one["text"])
        assert (one["label"], one["answer"]) == tuple(data.classes[k[place]] for k in (data.val.classes, answers))


def test_a_words_effect_is_what_the_odds_lose_without_it(data: Examples) -> None:
    linear = data.linear[0]

    def whole(texts) -> np.ndarray:
        return 3 * linear.logits(texts)

    found = decisions(data.val, data.classes, whole(data.val.texts), whole, linear)
    one = found["mistakes"][0]
    answer, text = data.classes.index(one["answer"]), one["text"]
    assert " ".join(word["word"] for word in one["words"]) == text
    for word in one["words"]:
        cut = text[: word["start"]] + text[word["start"] + len(word["word"]) :]
        for name, read in (("model", whole), ("linear", linear.logits)):
            assert word[name] == pytest.approx(odds(read([text])[0], answer) - odds(read([cut])[0], answer), abs=1e-9)
    assert {row["word"] for row in found["words"][:4]} <= {*GOOD, *BAD}
    for row in found["words"]:
        assert row["weight"] == linear.weight_of(row["word"], data.classes.index(row["answer"]))
    up = data.classes.index("up")
    assert linear.weight_of("good", up) > 0 > linear.weight_of("bad", up) == -linear.weight_of("bad", 1 - up)
    assert linear.weight_of("never met", up) is None


def test_without_a_linear_model_and_with_many_classes_the_rest_is_one(data: Examples) -> None:
    n = MOST_CLASSES + 3
    classes = np.arange(len(data.val)) % n
    part = type(data.val)(tokens=data.val.tokens, classes=classes, texts=data.val.texts)
    said = np.eye(n)[classes]
    found = decisions(part, tuple(f"c{i}" for i in range(n)), said, lambda texts: np.zeros((len(texts), n)), None)
    assert len(found["classes"]) == MOST_CLASSES + 1 and found["classes"][-1] == "others"
    assert np.array(found["confusion"]).sum() == np.trace(found["confusion"]) == len(part)
    assert found["mistakes"] == [] and all(row["linear"] is None and row["weight"] is None for row in found["words"])
    three, _ = fit_linear(["a x", "b x", "c x"] * 4, np.arange(12) % 3, 3)
    for k, word in enumerate("abc"):
        weights = [three.weight_of(word, of) for of in range(3)]
        assert np.argmax(weights) == k and sum(weights) == pytest.approx(0, abs=1e-3)
