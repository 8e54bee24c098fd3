"""Labelled texts are split without leaks, by class; a run's own classes are kept; tokens are those of the tokenizer."""

from pathlib import Path

import numpy as np
import pytest

from qkv.data.config import DataConfig
from qkv.data.examples import hold_out, load_examples
from qkv.errors import SourceError
from qkv.randomness import generator

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi".split()


def table(path: Path, n: int = 200, classes: tuple[str, ...] = ("up", "down"), share: float = 0.25) -> Path:
    draws = generator("tests", "examples", path.name)
    labels = [classes[0] if i % int(1 / share) == 0 else classes[1 + i % (len(classes) - 1)] for i in range(n)]
    rows = [f"{' '.join(draws.choice(WORDS, size=6))} {i}\t{label}" for i, label in enumerate(labels)]
    path.write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def load(path: Path, **more):
    return load_examples(DataConfig(source=str(path), tokenizer="word", **more), cache=None)


def test_a_tenth_of_every_class_is_held_out(tmp_path: Path) -> None:
    data = load(table(tmp_path / "t.tsv"))
    assert data.classes == ("down", "up")
    assert np.bincount(data.val.classes).tolist() == [15, 5] and len(data.train) == 180
    assert not set(data.val.texts) & set(data.train.texts)


def test_a_share_of_less_than_a_tenth_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(table(tmp_path / "t.tsv")).rule.endswith("validation, a tenth of each class")
    monkeypatch.setattr("qkv.data.examples.MOST_VAL_TEXTS", 7)
    data = load(table(tmp_path / "t.tsv"))
    assert data.rule.endswith("validation, 3.5% of each class") and len(data.val) == 6


def test_a_class_of_near_copies_that_are_not_held_out_is_said(tmp_path: Path) -> None:
    path = table(tmp_path / "t.tsv", classes=("up", "down", "same"))
    rows = path.read_text().splitlines()
    alike = "the printer on the second floor does not print any more since this morning, please help, ticket"
    rows = [f"{alike} {i}\tsame" if row.endswith("\tsame") else row for i, row in enumerate(rows)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    data = load(path)
    held = dict(zip(data.classes, np.bincount(data.val.classes, minlength=3).tolist(), strict=True))
    assert held == {"up": 5, "down": 5, "same": 0}
    together = "since near-copies and phrases of one text stay together (none of 'same')"
    assert data.rule.endswith(f"validation, a tenth of each class at most, {together}")


def test_a_class_of_one_text_is_trained_on_alone_and_said_to_be(tmp_path: Path) -> None:
    path = table(tmp_path / "t.tsv")
    path.write_text(path.read_text() + "quite another kind of text\tlone\n", encoding="utf-8")
    data = load(path)
    assert np.bincount(data.val.classes, minlength=3).tolist() == [15, 0, 5] and data.classes[1] == "lone"
    said = "a tenth of each class; none of 'lone', of which there is one text: its accuracy is not measured"
    assert data.rule.endswith(said) and said in data.describe()


def test_the_split_does_not_depend_on_the_order_of_the_rows(tmp_path: Path) -> None:
    first = table(tmp_path / "t.tsv")
    head, *rows = first.read_text().splitlines()
    second = tmp_path / "turned.tsv"
    second.write_text("\n".join([head, *rows[::-1]]) + "\n")
    assert set(load(first).val.texts) == set(load(second).val.texts)


def test_near_copies_stay_on_one_side(tmp_path: Path) -> None:
    path = table(tmp_path / "t.tsv")
    _, *rows = path.read_text().splitlines()
    copies = [row.upper() if i % 2 else row.replace(" ", " , ", 1) for i, row in enumerate(rows)]
    path.write_text("text\tlabel\n" + "\n".join(rows + copies).replace("UP", "up").replace("DOWN", "down") + "\n")
    data = load(path)
    plain = [{"".join(filter(str.isalnum, t.lower())) for t in part.texts} for part in (data.train, data.val)]
    assert len(data.val) > 20 and not plain[0] & plain[1]


def test_small_classes_give_one_text_and_always_keep_one() -> None:
    classes = np.array([0] * 30 + [1] * 2 + [2])
    chosen = hold_out(classes, np.arange(33), np.arange(33, dtype=np.uint64))
    assert np.bincount(classes[chosen], minlength=3).tolist() == [3, 1, 0]
    one_group = hold_out(classes, np.where(classes == 1, 30, np.arange(33)), np.arange(33, dtype=np.uint64))
    assert not one_group[30:32].any()


def test_tokens_are_those_of_each_text_alone(tmp_path: Path) -> None:
    data = load(table(tmp_path / "t.tsv", n=60))
    for part in (data.train, data.val):
        assert part.lengths.tolist() == [len(data.tokenizer.encode(text)) for text in part.texts]
        assert part.tokens.document(3).tolist() == data.tokenizer.encode(part.texts[3]).tolist()


def test_words_of_the_validation_part_are_unknown_to_the_tokenizer(tmp_path: Path) -> None:
    val = tmp_path / "val.tsv"
    val.write_text("text\tlabel\nalpha unheard\tup\nbeta\tdown\n")
    data = load(table(tmp_path / "t.tsv"), val=str(val))
    assert data.val.ids[1] == data.tokenizer.unknown_id and len(data.train) == 200


def test_texts_that_stand_in_both_files_are_counted(tmp_path: Path) -> None:
    path = table(tmp_path / "t.tsv")
    val = tmp_path / "val.tsv"
    val.write_text("\n".join([*path.read_text().splitlines()[:4], "new text\tup", ""]))
    assert "3 of its 4 texts also stand in the training part" in load(path, val=str(val)).rule


def test_a_tokenizer_is_kept_for_what_a_row_has_as_well(tmp_path: Path) -> None:
    """Ratings as classes and as values are held out by other rows, so another text is left to fit it to."""
    draws, path, config = generator("tests", "shapes"), tmp_path / "t.tsv", {"tokenizer": "word", "vocab": 60}
    rows = [f"{' '.join(f'w{n}' for n in draws.integers(0, 90, size=6))}\t{i % 40}" for i in range(200)]
    path.write_text("text\tlabel\n" + "\n".join(rows) + "\n")

    def fitted(shape: str, cache: Path | None):
        return load_examples(DataConfig(source=str(path), **config), cache=cache, shape=shape).tokenizer.to_json()

    alone = [fitted(shape, None) for shape in ("class", "value")]
    assert alone[0] != alone[1] and [fitted(shape, tmp_path / "kept") for shape in ("class", "value")] == alone


def test_one_class_is_not_enough_and_an_unseen_one_is_named_with_its_line(tmp_path: Path) -> None:
    path, one, other = table(tmp_path / "t.tsv"), tmp_path / "one.tsv", tmp_path / "other.tsv"
    one.write_text("text\tlabel\na b\tup\nc d\tup\n")
    with pytest.raises(SourceError, match="all 2 rows .* have the label 'up'; a classifier needs"):
        load(one)
    other.write_text("text\tlabel\na b\tup\nc d\tsideways\ne f\tsideways\n")
    with pytest.raises(SourceError, match=r"line 3 has the label 'sideways', a class that training has not.*down, up"):
        load(path, val=str(other))


def test_known_classes_are_kept_where_a_file_has_fewer(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("text\tlabel\na b\tup\nc d\tup\n")
    data = load(path, val=str(path), classes=("down", "flat", "up"))
    assert data.classes == ("down", "flat", "up") and data.val.classes.tolist() == [2, 2]


def test_too_few_texts_to_hold_some_out_say_so(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("text\tlabel\n" + "the very same sentence again\tup\nthe very same sentence again\tdown\n" * 2)
    with pytest.raises(SourceError, match="too few or too alike .* --val FILE"):
        load(path)


def test_words_are_counted_on_some_texts_of_every_class_in_whatever_order_the_rows_come(tmp_path, monkeypatch) -> None:
    from qkv.data.baseline import classes as room

    rows = [f"{WORDS[i % 2]} {i}\t{'ab'[i % 2]}" for i in range(60)] + ["xi 60\tc", "xi 61\tc"]
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    (tmp_path / "v.tsv").write_text("text\tlabel\nalpha x\ta\nbeta x\tb\n")
    data = load(tmp_path / "t.tsv", val=str(tmp_path / "v.tsv"))
    monkeypatch.setattr("qkv.data.examples.MOST_COUNTED", 20)
    found = room.labelled_baselines(data)
    assert found.linear == 1.0 and found.note == "TF-IDF counted 21 of 62 texts"
    assert set(data.train.classes[data.counted]) == {0, 1, 2}
