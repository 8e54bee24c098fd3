"""Labelled files are read as they are meant; each thing that can be wrong with one is a sentence of its own."""

from pathlib import Path

import pytest

from qkv.data.config import DataConfig
from qkv.data.labelled import check_classes, class_order, read_labelled
from qkv.errors import SourceError

ROWS = [("a good film", "pos"), ("a bad film", "neg"), ("good , good", "pos"), ("so bad", "neg")]


def write(path: Path, text: str) -> DataConfig:
    path.write_text(text, encoding="utf-8")
    return DataConfig(source=str(path))


FORMS = {
    "lines.txt": "".join(f"{label} {text}\n" for text, label in ROWS),
    "tabs.txt": "".join(f"{label}\t{text}\n" for text, label in ROWS),
    "table.tsv": "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS),
    "table.csv": "label,text\r\n" + "".join(f'{label},"{text}"\r\n' for text, label in ROWS),
    "rows.jsonl": "".join(f'{{"text": "{text}", "label": "{label}"}}\n' for text, label in ROWS),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_texts_labels_and_lines(tmp_path: Path, name: str) -> None:
    found = read_labelled(write(tmp_path / name, FORMS[name]))
    assert list(zip(found.texts, found.labels, strict=True)) == ROWS
    header = name.startswith("table")
    assert found.lines == [i + 1 + header for i in range(4)]


def test_columns_are_found_by_name_and_taken_as_asked(tmp_path: Path) -> None:
    rows = (
        "id,review,stars,mood\n1,long text here,5,up\n2,other text here,1,down\n3,more text here,5,up\n4,x y,1,down\n"
    )
    config = write(tmp_path / "t.csv", rows)
    asked = DataConfig(source=config.source, text_column="review", label_column="mood")
    assert read_labelled(asked).labels == ["up", "down", "up", "down"]
    assert read_labelled(DataConfig(source=config.source, label_column="stars")).texts[0] == "long text here"
    with pytest.raises(SourceError, match="which column holds the labels.*id, review, stars, mood"):
        read_labelled(config)


def test_the_first_cell_of_a_header_may_be_empty_as_pandas_writes_it(tmp_path: Path) -> None:
    rows = ["a good film", "a bad film", "so good", "so bad"]
    config = write(
        tmp_path / "t.csv", ",tweet,target\n" + "".join(f"{i},{text},{i % 2}\n" for i, text in enumerate(rows))
    )
    found = read_labelled(DataConfig(source=config.source, label_column="target"))
    assert found.texts == rows and found.labels == ["0", "1", "0", "1"]
    headless = write(tmp_path / "u.tsv", "".join(f"\t{text}\t{i % 2}\n" for i, text in enumerate(rows)))
    assert read_labelled(DataConfig(source=headless.source, label_column="3")).texts == rows


def test_a_label_that_is_named_tells_the_header(tmp_path: Path) -> None:
    rows = "".join(f"words and words {i}\t{i % 2}\n" for i in range(4))
    config = write(tmp_path / "t.tsv", f"{'a very long name of a column of texts ' * 2}\tgroup\n{rows}")
    found = read_labelled(DataConfig(source=config.source, label_column="group"))
    assert len(found.texts) == 4 and found.labels == ["0", "1", "0", "1"]


def test_a_comma_in_a_text_that_is_not_quoted_is_said(tmp_path: Path) -> None:
    rows = "".join(f"a good film {i},pos\n" for i in range(300))
    for text in (rows + "good, good,neg\n", "good, good,neg\n" + rows):
        with pytest.raises(SourceError, match=r"line \d+ has 3 cells, the header names 2: quote the text"):
            read_labelled(write(tmp_path / "t.csv", "text,label\n" + text))
    found = read_labelled(write(tmp_path / "t.csv", "text,label\ngood,neg,,\n" + rows))
    assert found.texts[0] == "good"  # a spreadsheet's empty cells are nothing


def test_numbers_and_truth_values_are_labels_too(tmp_path: Path) -> None:
    rows = "".join(f'{{"text": "a {i}", "label": {(i + 1) % 2}}}\n' for i in range(4))
    assert read_labelled(write(tmp_path / "n.jsonl", rows)).labels == ["1", "0", "1", "0"]
    truth = rows.replace("1}", "true}").replace("0}", "false}")
    assert read_labelled(write(tmp_path / "t.jsonl", truth)).labels == ["true", "false", "true", "false"]


def test_half_a_surrogate_pair_in_a_label_becomes_the_replacement_character(tmp_path: Path) -> None:
    rows = '{"text": "a 1", "label": "b"}\n{"text": "a 2", "label": "a\\ud83d"}\n' * 2
    assert read_labelled(write(tmp_path / "s.jsonl", rows)).labels == ["b", "a\ufffd", "b", "a\ufffd"]


def test_classes_are_ordered_by_value_or_by_letter() -> None:
    assert class_order(["10", "9", "10", "-1"]) == ("-1", "9", "10")
    assert class_order(["pos", "neg", "pos"]) == ("neg", "pos")
    assert class_order(["1", "--1", "2"]) == ("--1", "1", "2")
    assert class_order(["10", "9", "1" * 5000])[0] == "10"


def test_rows_without_text_are_left_out_and_counted(tmp_path: Path) -> None:
    found = read_labelled(write(tmp_path / "t.tsv", FORMS["table.tsv"] + " \tpos\n"))
    assert len(found.texts) == 4 and "1 row without text left out" in found.note


WRONG = {
    "a missing label": ("t.tsv", "sentence\tlabel\na b\tx\nc d\t\ne f\ty\n", "line 3 has no label .column 'label'"),
    "a short row": ("t.tsv", "sentence\tlabel\na b\tx\nc d\ne f\ty\n", "line 3 has no label"),
    "a null in JSON": (
        "t.jsonl",
        '{"text": "a", "label": "x"}\n{"text": "b", "label": null}\n{"text": "c", "label": "x"}\n',
        "line 2 has no label",
    ),
    "a line of one word": ("t.txt", "x a b\ny\nx c\ny d\n", "line 2 is 'y', one word"),
    "an empty line between lines": ("t.txt", "x a b\n\ny c\nx d\ny e\n", "line 2 is empty, in the middle"),
    "an empty line in a table": ("t.csv", "text,label\na b,x\n\nc d,y\n", "line 3 is empty, in the middle"),
    "an empty line in JSON": (
        "t.jsonl",
        '{"text": "a", "label": "x"}\n\n{"text": "b", "label": "x"}\n',
        "line 2 is empty",
    ),
    "an array": ("t.jsonl", "[1, 2]\n[3, 4]\n", "JSON"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, what: str) -> None:
    name, text, words = WRONG[what]
    with pytest.raises(SourceError, match=words):
        read_labelled(write(tmp_path / name, text))


def test_empty_lines_at_the_end_are_nothing(tmp_path: Path) -> None:
    for name in ("lines.txt", "table.tsv", "table.csv", "rows.jsonl"):
        assert len(read_labelled(write(tmp_path / name, FORMS[name] + "\n\n")).texts) == 4


def test_a_column_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    config = write(tmp_path / "t.tsv", FORMS["table.tsv"])
    with pytest.raises(SourceError, match="no column 'labl'.*sentence, label.*did you mean 'label'"):
        read_labelled(DataConfig(source=config.source, label_column="labl"))
    lines = write(tmp_path / "t.txt", FORMS["lines.txt"])
    with pytest.raises(SourceError, match="has no columns.*leave --label-column out"):
        read_labelled(DataConfig(source=lines.source, label_column="label"))
    with pytest.raises(SourceError, match="are both 'label'"):
        read_labelled(DataConfig(source=config.source, label_column="label", text_column="label"))


def test_a_classifier_needs_a_file(tmp_path: Path) -> None:
    for source, words in (("", "needs labelled texts"), (str(tmp_path), "is a folder"), ("hf:x/y", "read from files")):
        with pytest.raises(SourceError, match=words):
            read_labelled(DataConfig(source=source))
    with pytest.raises(SourceError, match="no file or folder"):
        read_labelled(DataConfig(source=str(tmp_path / "nothing.tsv")))


def test_prose_and_columns_of_numbers_are_no_labels(tmp_path: Path) -> None:
    prose = "".join(f"word{i} stands first here\n" for i in range(50))
    scores = "text,label\n" + "".join(f"a text,{i}.5\n" for i in range(50))
    for name, text in (("t.txt", prose), ("t.csv", scores)):
        with pytest.raises(SourceError, match="50 of 50 rows .* a label that no other row has"):
            check_classes(read_labelled(write(tmp_path / name, text)))
    check_classes(read_labelled(write(tmp_path / "good.txt", FORMS["lines.txt"])))


def test_a_label_that_two_columns_claim_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("text,label,label\n" + "".join(f"words {i},{i % 2},x\n" for i in range(8)))
    for asked in ("", "label"):
        with pytest.raises(SourceError, match="has 2 columns called 'label'; give them names that differ"):
            read_labelled(DataConfig(source=str(tmp_path / "a.csv"), label_column=asked))
