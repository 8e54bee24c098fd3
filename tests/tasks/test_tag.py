"""Labels of words: what is read and refused, batches, losses and figures against oracles written here."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import precision_recall_fscore_support

from qkv.data.baseline.words import Counted
from qkv.data.config import DataConfig, LabelledOptions
from qkv.data.examples import Examples, LabelledWords
from qkv.data.sources.tagged import from_spans, read_tagged, words_of
from qkv.errors import ConfigError, SourceError
from qkv.models import build
from qkv.models.embedding import word_means
from qkv.models.layout import Layout, ModelConfig, Sizes
from qkv.randomness import generator
from qkv.tasks import PredictOptions, find_task
from qkv.tasks.labels.decisions import label_table
from qkv.tasks.labels.tag import Entities, Tag, entities

WORDS = "soup ball train bread goal map apple race city rice".split()
FIRST, LAST = "Ada Alan Grace Kurt".split(), "Byron Turing Hopper Gödel".split()


def spans_of(n: int) -> list[dict]:
    """Texts in which a first name before a last name is a person, and neither alone is."""
    draws, rows = generator("tests", "tag"), []
    for _ in range(n):
        text, spans = "", []
        for _ in range(int(draws.integers(3, 9))):
            kind = draws.integers(4)
            name = f"{draws.choice(FIRST)} {draws.choice(LAST)}"
            piece = (name, str(draws.choice(FIRST)), str(draws.choice(WORDS)), str(draws.choice(WORDS)))[kind]
            if kind == 0:
                spans.append({"start": len(text), "end": len(text) + len(name), "label": "PER"})
            text += piece + (", " if draws.random() < 0.2 else " ")
        rows.append({"text": text.strip(), "entities": spans})
    return rows


def sentences(n: int) -> list[list[tuple[str, str]]]:
    """Words whose label is the length of the word before."""
    draws, found = generator("tests", "sentences"), []
    for _ in range(n):
        words = [str(word) for word in draws.choice(WORDS, size=int(draws.integers(3, 9)))]
        found.append([(word, f"L{len(before)}") for before, word in zip(["", *words], words, strict=False)])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("tag")
    (place / "names.jsonl").write_text("".join(json.dumps(row) + "\n" for row in spans_of(200)), encoding="utf-8")
    lines = ["".join(f"{word} {label}\n" for word, label in sentence) for sentence in sentences(200)]
    (place / "words.conll").write_text("\n".join(lines), encoding="utf-8")
    return place


def load(path: Path, tokenizer: str = "word", **more) -> Examples:
    labels = LabelledOptions(word_dropout=0.3)
    return find_task("tag").load(DataConfig(source=str(path), tokenizer=tokenizer, labels=labels, **more), cache=None)


@pytest.fixture(scope="module")
def names(folder: Path) -> Examples:
    return load(folder / "names.jsonl")


@pytest.fixture(scope="module")
def words(folder: Path) -> Examples:
    return load(folder / "words.conll", "char")


def made(data: Examples, n_ctx: int = 64, kind: str = "Classifier"):
    sizes = Sizes(d_vocab=data.tokenizer.d_vocab, d_model=16, n_layers=1, n_heads=2, n_ctx=n_ctx)
    model = build(ModelConfig(kind=kind, sizes=sizes, layout=Layout(start="gpt2"), classes=data.classes), 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += torch.from_numpy(generator("tests", name).normal(0, 0.3, parameter.shape)).float()
    return model


# what is read


def test_spans_become_labels_of_words_with_their_places(names: Examples) -> None:
    known = {row["text"]: row["entities"] for row in spans_of(200)}
    assert names.classes == ("B-PER", "I-PER", "O") and isinstance(find_task("tag").of_classes(names.classes), Entities)
    for part in (names.train, names.val):
        assert isinstance(part, LabelledWords)
        found: dict[int, list[dict]] = {}
        for first, end, kind in entities(part.classes, part.owners, names.classes):
            one = {"start": int(part.spans[first, 0]), "end": int(part.spans[end - 1, 1]), "label": kind}
            found.setdefault(int(part.owners[first]), []).append(one)
        assert [found.get(i, []) for i in range(len(part.texts))] == [known[text] for text in part.texts]
        assert part.words == [text[a:b] for text in part.texts for a, b in words_of(text)]
    assert not {*names.train.texts} & {*names.val.texts}


def test_words_are_runs_of_letters_and_the_forms_of_spans_are_alike() -> None:
    text = "Zoë's 3-day trip to 東京."
    assert [text[a:b] for a, b in words_of(text)] == ["Zoë", "'", "s", "3", "-", "day", "trip", "to", "東", "京", "."]
    for form in ([{"start": 20, "end": 22, "label": "LOC"}, {"start": 0, "end": 3, "label": "PER"}],
                 [[0, 3, "PER"], [20, 22, "LOC"]], [(19, 22, "LOC"), (0, 3, "PER")]):  # fmt: skip
        labels = from_spans(text, [*map(list, form)] if isinstance(form[0], tuple) else form, "")[1]
        assert [label for label in labels if label != "O"] == ["B-PER", "B-LOC", "I-LOC"]
    assert from_spans("a b", None, "")[1] == ["O", "O"]


ROWS = '{"text": "Ada met Alan", "entities": [[0, 3, "PER"]]}\n'
MISTAKES = {
    "overlap": ("a.jsonl", [[0, 7, "A"], [4, 12, "B"]], "line 2: the spans 0 to 7 and 4 to 12 overlap"),
    "outside": ("a.jsonl", [[8, 13, "A"]], "line 2: the span 8 to 13 is outside the text of 12 characters"),
    "empty": ("a.jsonl", [[4, 4, "A"]], "the span 4 to 4 is outside the text"),
    "begins inside": ("a.jsonl", [[1, 3, "A"]], "the span 1 to 3 begins inside the word 'Ada'"),
    "ends inside": ("a.jsonl", [[4, 9, "A"]], "the span 4 to 9 ends inside the word 'Alan'"),
    "no word": ("a.jsonl", [[3, 4, "A"]], "the span 3 to 4 holds no word"),
    "no label": ("a.jsonl", [[0, 3]], r"line 2 has the span \[0, 3\]; expected \[\{"),
    "truth": ("a.jsonl", [[False, True, "A"]], "has the span"),
    "no list": ("a.jsonl", "Ada", "line 2 has str for spans; expected a list"),
    "cells": ("a.conll", "a A\nb x B\n\n", "line 2 has 3 cells; expected 2, as in the first line"),
    "one cell": ("a.conll", "a\nb\n\n", "line 1 has 1 cells; expected a word and its label"),
    "ten cells": ("a.conllu", "1\ta\ta\tX\n", "line 1 has 4 cells; expected 10 cells with tabs between"),
    "missing": ("a.conllu", "1\ta" + "\t_" * 8 + "\n", r"line 1 has no label \(upos\)"),
    "empty file": ("a.conll", "", "is empty"),
    "comments": ("a.conll", "# a\n\n", "holds no labeled words"),
    "a table": ("a.csv", "text,label\na,b\n", "labels of words are read from .jsonl with spans, from .conllu"),
    "one label": ("a.conll", "a A\nb A\n\n" * 3, "all 6 words of .* have the label 'A'"),
    "no classes": ("a.conll", "".join(f"a X{i}\n" for i in range(40)), "40 of 40 words of .* that no other word has"),
}


@pytest.mark.parametrize("name, content, message", MISTAKES.values(), ids=MISTAKES)
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, name: str, content, message: str) -> None:
    if name == "a.jsonl":
        content = ROWS + json.dumps({"text": "Ada met Alan", "entities": content}) + "\n"
    (tmp_path / name).write_text(content)
    with pytest.raises(SourceError, match=message):
        load(tmp_path / name)


@pytest.mark.parametrize("gap", ["\t", " "])
def test_words_that_begin_with_a_number_sign_are_words(tmp_path: Path, gap: str) -> None:
    lines = [("#Paris", "B-LOC"), ("is", "O"), ("", ""), ("#", "O"), ("#TeamUSA", "B-ORG"), ("#", "B-X"), ("", "")]
    text = "".join(gap.join(line).rstrip() + "\n" for line in lines)
    (tmp_path / "a.conll").write_text("#begin document (a); part 0\n# source: news\n#\n" + text + "#end document\n\n")
    found = read_tagged(tmp_path / "a.conll")
    assert [list(zip(one.words, one.labels, strict=True)) for one in found] == [lines[:2], lines[3:6]]


def test_a_column_of_conllu_is_the_label_and_copies_stay_on_one_side(tmp_path: Path) -> None:
    rows = [[(word, label, f"x{label}") for word, label in sentence] for sentence in sentences(120)]
    text = "".join(
        "".join(f"{i}\t{w}\t_\t{a}\t{b}\t_\t_\t_\t_\t_\n" for i, (w, a, b) in enumerate(s, 1)) + "\n" for s in rows
    )
    (tmp_path / "a.conllu").write_text(text * 2)
    data = load(tmp_path / "a.conllu", label_column="xpos")
    assert all(name.startswith("xL") for name in data.classes) and len(data.val.texts) > 5
    assert not {*data.train.texts} & {*data.val.texts}
    other = load(tmp_path / "a.conllu", label_column="xpos", val=str(tmp_path / "a.conllu"))
    assert len(other.train.texts) == len(other.val.texts) == 240
    with pytest.raises(SourceError, match="no CoNLL-U file"):
        (tmp_path / "b.conll").write_text("a A\n")
        load(tmp_path / "b.conll", label_column="xpos")


# batches and losses


@torch.no_grad()
@pytest.mark.parametrize("kind", ["Classifier", "CausalClassifier"])
def test_a_word_is_the_mean_of_its_tokens_and_each_is_asked_once(words: Examples, kind: str) -> None:
    task, model, part = find_task("tag"), made(words, kind=kind), words.val
    expected = []
    for i, text in enumerate(part.texts):
        mine = np.flatnonzero(part.owners == i)
        ids, edges = [], [0]
        for before, word in zip([0, *part.spans[mine, 1]], mine, strict=False):
            ids += words.tokenizer.encode(text[before : part.spans[word, 1]]).tolist()
            edges.append(len(ids))
        h = model.hidden(torch.tensor([ids]))[0]
        expected += [h[a:b].mean(0) for a, b in zip(edges, edges[1:], strict=False)]
    logits, targets = model.head(torch.stack(expected)), torch.from_numpy(part.classes)
    np.testing.assert_allclose(task._logits_of(model, part, np.arange(len(part))), logits, atol=1e-4)
    np.testing.assert_allclose(task._logits_of(model, part, np.array([7, 3])), logits[[7, 3]], atol=1e-4)
    batches = [*task.val_batches(words, model.sizes, 7)]
    assert sum(batch.n_targets for batch in batches) == len(part)
    assert all((batch.positions.diff() > 0).all() for batch in batches)
    nats = sum(float(task.loss(model, batch)[0]) for batch in batches)
    assert nats == pytest.approx(float(F.cross_entropy(logits, targets, reduction="sum")), rel=1e-4)
    found = task.evaluate(model, words)
    right = (logits.argmax(1) == targets).float().mean()
    assert found.figures["accuracy"].value == pytest.approx(float(right)) and found.n_windows == len(part.texts)
    assert found.loss == pytest.approx(nats / len(part), rel=1e-4)
    scored = [task.score(model, batch) for batch in batches]
    assert [int(one.rows.max()) + 1 for one in scored] == [7] * (len(batches) - 1) + [
        len(part.texts) - 7 * (len(batches) - 1)
    ]


@torch.no_grad()
def test_a_long_text_is_read_in_pieces_of_whole_words(words: Examples) -> None:
    task, model, part = find_task("tag"), made(words, n_ctx=9), words.val
    pieces = part.pieces(9)
    assert pieces[0, 0] == 0 and pieces[-1, 1] == len(part) and (pieces[1:, 0] == pieces[:-1, 1]).all()
    assert (part.owners[pieces[:, 0]] == part.owners[pieces[:, 1] - 1]).all() and len(pieces) > len(part.texts)
    assert (part.edges[pieces[:, 1]] - part.edges[pieces[:, 0]] <= 9).all()
    assert task._logits_of(model, part, np.arange(len(part))).any(1).all()
    assert "are longer than the context of 9 tokens" in task.cautions(words, model.sizes)[0]
    tiny = part.pieces(2)  # every word alone
    np.testing.assert_array_equal(tiny[:, 0], np.arange(len(part)))
    assert sum(batch.n_targets for batch in task.val_batches(words, made(words, n_ctx=2).sizes, 50)) == len(part)


def test_a_training_batch_depends_on_its_examples_alone_and_hides_words(names: Examples) -> None:
    task, sizes = Tag(word_dropout=0.4), made(names).sizes
    n = int((~names.held[names.train.pieces(64)[:, 0]]).sum())
    epoch = np.arange(n)
    batch = task.train_batch(names, sizes, 1, 0, epoch)
    hidden = (batch.inputs[batch.mask] == names.tokenizer.unknown_id).float().mean()
    assert 0.3 < float(hidden) < 0.5 and batch.n_targets == int((~names.held).sum())
    counts = np.bincount(batch.targets, minlength=3)
    np.testing.assert_array_equal(counts, np.bincount(names.train.classes[~names.held], minlength=3))
    one = task.train_batch(names, sizes, 1, 0, epoch[5:6])
    row, column = np.argwhere((batch.documents == 5).numpy())[0]
    width = int(one.mask.sum())
    assert batch.inputs[row, column : column + width].equal(one.inputs[0, :width])
    drawn = task.uniform(batch, np.arange(3), 1, 0, epoch).targets
    assert np.abs(np.bincount(drawn, minlength=3) / len(drawn) - 1 / 3).max() < 0.06
    assert task.uniform(one, np.arange(3), 1, 0, epoch[5:6]).targets.equal(
        drawn[batch.documents.flatten()[batch.positions] == 5]
    )


def test_the_mean_of_a_word_has_a_gradient_and_takes_no_other_position() -> None:
    h = torch.randn(2, 4, 3, requires_grad=True)
    words = torch.tensor([[0, 0, 1, -1], [0, 1, 2, 2]])
    found = word_means(h, words, torch.tensor([1, 2, 4, 5, 7]))
    expected = torch.stack([h[0, :2].mean(0), h[0, 2], h[1, 0], h[1, 1], h[1, 2:].mean(0)])
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert h.grad[0, 3].eq(0).all() and h.grad[0, 0].eq(0.5).all()


# figures


def seqeval_entities(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """As `seqeval.metrics.sequence_labeling.get_entities` defines them: (kind, first, last)."""
    chunks, begin, prev_tag, prev_type = [], 0, "O", ""
    for i, label in enumerate([*labels, "O"]):
        tag, kind = label[0], label.split("-", 1)[-1] if label != "O" else ""
        ends = prev_tag in "ES" or (prev_tag in "BI" and tag in "BSO") or (prev_tag != "O" and prev_type != kind)
        starts = tag in "BS" or (prev_tag in "ESO" and tag in "EI") or (tag != "O" and prev_type != kind)
        if ends and prev_tag != "O":
            chunks.append((prev_type, begin, i - 1))
        begin = i if starts else begin
        prev_tag, prev_type = tag, kind
    return chunks


def test_entities_and_their_f1_are_those_of_seqeval(names: Examples) -> None:
    classes = ("B-A", "B-B", "E-A", "I-A", "I-B", "O", "S-B")
    draws = generator("tests", "entities")
    owners = np.sort(draws.integers(60, size=400))
    part_classes, answers = draws.integers(7, size=400), draws.integers(7, size=400)
    answers = np.where(draws.random(400) < 0.6, part_classes, answers)
    found, expected = [], []
    for some in (part_classes, answers):
        mine = [(k, a, b - 1) for a, b, k in entities(some, owners, classes)]
        theirs = []
        for i in np.unique(owners):
            at = np.flatnonzero(owners == i)
            theirs += [(k, int(at[a]), int(at[b])) for k, a, b in seqeval_entities([classes[c] for c in some[at]])]
        assert mine == theirs
        found.append(mine)
        expected.append(set(theirs))
    spans = np.zeros((400, 2), dtype=np.int64)
    part = LabelledWords(tokens=names.val.tokens, classes=part_classes, texts=[""] * 60, owners=owners, spans=spans,
                         edges=np.arange(401))  # fmt: skip
    task = Entities(names=classes)
    figure = task.figure(answers, part)
    f1 = 2 * len(expected[0] & expected[1]) / (len(expected[0]) + len(expected[1]))
    assert figure.value == pytest.approx(f1) and figure.interval[0] < f1 < figure.interval[1]
    for row in task._by_label(answers, part, classes):
        there, given = ({one for one in some if one[0] == row["label"]} for some in expected)
        assert row["n"] == len(there) and row["precision"] == pytest.approx(len(there & given) / len(given))
        assert row["recall"] == pytest.approx(len(there & given) / len(there))


def test_the_table_of_labels_is_that_of_scikit_learn() -> None:
    draws = generator("tests", "table")
    wanted, answers = draws.integers(3, size=200), draws.integers(4, size=200)
    counts = [np.bincount(some, minlength=4) for some in (answers[answers == wanted], answers, wanted)]
    rows = {row["label"]: row for row in label_table("abcd", *counts)}
    with np.errstate(all="ignore"):
        theirs = precision_recall_fscore_support(wanted, answers, labels=range(4), zero_division=np.nan)
    for i, name in enumerate("abc"):
        assert [rows[name][key] for key in ("precision", "recall", "f1", "n")] == pytest.approx(
            [one[i] for one in theirs]
        )
    assert rows["d"]["recall"] is None and rows["d"]["precision"] == 0


def test_counting_takes_the_commonest_label_of_a_word_or_of_its_ending() -> None:
    known = [
        ("run", 0),
        ("run", 1),
        ("run", 1),
        ("walking", 2),
        ("talking", 2),
        ("king", 3),
        ("the", 4),
        ("the", 4),
        ("a", 4),
    ]
    counted = Counted([word for word, _ in known], np.array([label for _, label in known]))
    assert counted.answers(["run", "king", "baking", "THE", "zzz"]).tolist() == [1, 3, 2, 4, 4]


def test_the_linear_model_reads_neighbors_and_is_stored(words: Examples) -> None:
    task, model = find_task("tag"), made(words)
    known = task.baselines(words, model.sizes, None).summary
    assert known["linear"] == 1.0 > 0.6 > known["by_word"]
    whole, stored = task.completed(model, words)
    assert whole.combined.share == 0 and whole.evaluate(model, words).figures["accuracy"].value == 1
    texts = ["soup ball train", "", "goal  map"]
    again = task.with_companion(stored)
    assert again.predict(model, words.tokenizer, texts, PredictOptions()) == [
        "soup/L0 ball/L4 train/L4", "", "goal/L0 map/L4",
    ]  # fmt: skip
    assert [one["start"] for one in again.spans(model, words.tokenizer, texts)[2]] == [0, 6]
    with pytest.raises(ConfigError, match="--scores has no meaning for the task tag"):
        task.scores(model, words.tokenizer, texts, 2, PredictOptions())


def test_entities_are_answered_in_brackets_with_their_places(names: Examples) -> None:
    model = made(names)
    task = find_task("tag").of_classes(names.classes).completed(model, names)[0]
    text = "Ada Byron, bread and Alan"
    assert task.predict(model, names.tokenizer, [text], PredictOptions()) == ["[Ada Byron](PER), bread and Alan"]
    (one,) = task.spans(model, names.tokenizer, [text])[0]
    assert (one["start"], one["end"], one["text"], one["label"]) == (0, 9, "Ada Byron", "PER") and 0.5 < one[
        "probability"
    ] <= 1


def test_what_the_baselines_take_is_guessed_by_the_characters_that_are_counted(words: Examples) -> None:
    seconds = find_task("tag").baselines_seconds(
        words, Sizes(d_vocab=1, d_model=1, n_layers=1, n_heads=1, n_ctx=32), None
    )
    assert seconds == pytest.approx(5.5e-6 * sum(map(len, words.train.texts)))
