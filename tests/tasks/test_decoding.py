"""Labels that are chosen together: against all sequences, counts and other F1s; never below the linear model alone."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from qkv.data.baseline.linear import log_softmax
from qkv.data.config import DataConfig, LabelledOptions
from qkv.data.examples import Examples, LabelledWords
from qkv.randomness import generator
from qkv.tasks import find_task
from qkv.tasks.combined import Combined, combine
from qkv.tasks.labels import decoding
from qkv.tasks.labels.decisions import word_decisions
from qkv.tasks.labels.decoding import choose, decoded, hits, transitions
from qkv.tasks.labels.tag import Entities

KINDS = ("A", "B")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Examples:
    """Names whose kind is that of their first word; the second word says nothing, nor does a word on either side."""
    draws, lines = generator("tests", "decoding"), []
    for _ in range(300):
        sentence = ""
        for _ in range(int(draws.integers(2, 6))):
            kind = str(draws.choice(KINDS))
            sentence += f"w{draws.integers(20)} O\n" * int(draws.integers(1, 4))
            sentence += f"{kind.lower()}{draws.integers(12)} {f'B-{kind}' if draws.random() < 0.6 else 'O'}\n"
            if sentence.endswith(f"B-{kind}\n"):
                sentence += f"n{draws.integers(30)} I-{kind}\n" * int(draws.integers(1, 4))
        lines.append(sentence + "w0 O\n")
    path = tmp_path_factory.mktemp("decoding") / "a.conll"
    path.write_text("\n".join(lines))
    config = DataConfig(source=str(path), tokenizer="word", labels=LabelledOptions(word_dropout=0.3))
    return find_task("tag").load(config, cache=None)


def test_the_path_is_the_best_of_all_sequences() -> None:
    draws, n, owners = generator("tests", "paths"), 3, np.array([0, 0, 0, 2, 5, 5, 5, 5])
    scores, tables = draws.normal(size=(8, n)), draws.normal(size=(4, n + 1, n + 1))
    found = decoded(scores, owners, tables)
    for table, labels in zip(tables, found, strict=True):
        for text in np.unique(owners):
            at = np.flatnonzero(owners == text)

            def worth(path: tuple[int, ...], at: np.ndarray = at, table: np.ndarray = table) -> float:
                steps = zip((n, *path), (*path, n), strict=True)
                return scores[at, path].sum() + sum(table[step] for step in steps)

            assert tuple(labels[at]) == max(product(range(n), repeat=len(at)), key=worth)
    assert decoded(scores, owners, np.zeros((n + 1, n + 1))).tolist() == scores.argmax(1).tolist()
    assert decoded(scores[:0], owners[:0], tables).shape == (4, 0)


def test_transitions_are_those_that_are_counted(data: Examples) -> None:
    part, names = data.train, data.classes
    table, n = transitions(part, names), len(names)
    rows = [[n, *part.classes[part.owners == i].tolist(), n] for i in range(len(part.texts))]
    pairs = [pair for row in rows for pair in zip(row, row[1:], strict=False)]
    for a, b in product(range(n + 1), repeat=2):
        p = sum(pair[1] == b for pair in pairs) / len(pairs)
        after = [pair[1] for pair in pairs if pair[0] == a]
        assert table[a, b] == pytest.approx(np.log((after.count(b) + p) / (len(after) + 1) / p))
    inside, outside = names.index("I-A"), names.index("O")
    assert table[outside, inside] < -5 < table[names.index("B-A"), inside]


def f1(answers: np.ndarray, part: LabelledWords, names: tuple[str, ...]) -> float:
    found, sizes = hits(answers, part, names)
    return found.sum() / sizes.sum()


def test_entities_that_words_do_not_tell_are_found_by_transitions(data: Examples) -> None:
    names, nothing = data.classes, np.zeros((len(data.weighed), len(data.classes)))
    found = choose(combine(data, nothing), nothing, data, names)
    assert found.transitions is not None and found.decoding[0] in (0.5, 1.0) and found.share == 0
    said = found.logits(data.val.read, np.zeros((len(data.val), len(names))))
    task = Entities(names=names, combined=found)
    alone, together = (f1(some, data.val, names) for some in (said.argmax(1), task._answered(said, data.val.owners)))
    assert together > alone + 0.03
    figures = task._judged(said, data.val)
    assert figures["entity_f1"].value == pytest.approx(together)
    assert (figures["transition_weight"].value, figures["outside_penalty"].value) == found.decoding
    again = Entities(names=names, combined=Combined.read(found.stored(), task.counts))
    np.testing.assert_array_equal(again._answered(said, data.val.owners), task._answered(said, data.val.owners))
    assert again._judged(said, data.val)["outside_penalty"] == figures["outside_penalty"]


def test_attention_that_lowers_the_loss_and_the_f1_is_left_out(data: Examples) -> None:
    """It is right about most words that are O and unsure of all names: the loss falls, and so does the F1."""
    names, classes = data.classes, data.train.classes[data.weighed]
    outside = names.index("O")
    attention = np.zeros((len(classes), len(names)))
    attention[:, outside] = 6.0
    taken = replace(combine(data, np.zeros_like(attention)), share=1.0, scale=0.3)
    found = choose(taken, attention, data, names)
    assert (found.scale, found.share) == (1.0, 0.0)
    knows = 8.0 * np.eye(len(names))[classes]
    assert choose(combine(data, knows), knows, data, names).share > 0


def test_a_cautious_model_pays_for_words_outside_and_held_texts_are_not_counted(
    data: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, nothing = data.classes, np.zeros((len(data.weighed), len(data.classes)))
    outside = np.array(names) == "O"
    cautious = replace(data)
    cautious.__dict__["linear"] = (data.linear[0], data.linear[1] + 5.0 * outside)
    asked = []
    monkeypatch.setattr(decoding, "transitions", lambda part, names: asked.append(part) or transitions(part, names))
    found = choose(replace(combine(cautious, nothing), scale=1.0), nothing, cautious, names)
    assert [len(part) for part in asked] == [int((~data.held).sum()), len(data.train)]
    assert found.decoding[1] > 0
    expected = found.decoding[0] * transitions(data.train, names)
    expected[:, np.flatnonzero(outside)] -= found.decoding[1]
    np.testing.assert_allclose(found.transitions, expected)


def test_without_a_clear_gain_the_answers_are_those_of_the_linear_model(data: Examples) -> None:
    """Logits that are right leave nothing to gain, and few texts do not show a gain."""
    names, classes = data.classes, data.train.classes[data.weighed]
    nothing = np.zeros((len(classes), len(names)))
    sure = replace(data)
    sure.__dict__["linear"] = (data.linear[0], 9.0 * np.eye(len(names))[classes])
    found = choose(combine(sure, nothing), nothing, sure, names)
    assert found.transitions is None and found.decoding == (0.0, 0.0)
    sure.__dict__["linear"] = (data.linear[0], 3.0 * np.eye(len(names))[classes])
    for attention in (8.0 * np.eye(len(names))[classes], 20.0 * np.tile(np.array(names) == "O", (len(classes), 1))):
        taken = replace(combine(sure, nothing), scale=0.3, share=1.0)
        found = choose(taken, attention, sure, names)
        assert (found.share, found.transitions) == (0.0, None)
    few = replace(data, held=data.held & (data.train.owners == data.train.owners[data.weighed[0]]))
    few.__dict__["linear"] = (data.linear[0], data.linear[1][: len(few.weighed)])
    assert choose(combine(few, nothing[: len(few.weighed)]), nothing, few, names).transitions is None


def test_the_words_of_a_large_set_are_drawn_text_by_text(data: Examples, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.data.examples.MOST_COUNTED", 500)
    some = replace(data)
    counts = np.bincount(data.train.owners[some.counted], minlength=len(data.train.texts))
    whole = np.bincount(data.train.owners)
    assert 300 < len(some.counted) < 700 and {*(counts / whole).tolist()} == {0.0, 1.0}
    monkeypatch.setattr("qkv.tasks.labels.decoding._MOST", 40)
    nothing = np.zeros((len(data.weighed), len(data.classes)))
    assert choose(combine(data, nothing), nothing, data, data.classes).n_held == len(data.weighed)


def test_the_probability_of_an_answer_is_that_of_the_given_labels(data: Examples) -> None:
    said = generator("tests", "sure").normal(size=(len(data.val), len(data.classes)))
    combined = combine(data, np.zeros((len(data.weighed), len(data.classes))))
    table = transitions(data.val, data.classes)
    task = Entities(names=data.classes, combined=replace(combined, transitions=table, decoding=(1.0, 0.0)))
    answers = task._answered(said, data.val.owners)
    assert (answers != said.argmax(1)).mean() > 0.2
    shown = word_decisions(data.val, data.classes, said, answers)
    assert shown["n_wrong"] == int((answers != data.val.classes).sum())
    chances = np.exp(log_softmax(said))[np.arange(len(said)), answers]
    assert shown["mistakes"][0]["probability"] == pytest.approx(chances[answers != data.val.classes].max())
