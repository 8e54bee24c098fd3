"""Every kind of source is read whole, and every bad one is refused in one clear sentence."""

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.data.config import DataConfig
from qkv.data.sources.reading import character_start, read_text
from qkv.data.sources.source import Source, open_source
from qkv.data.sources.tables import columns_of
from qkv.errors import ConfigError, SourceError, missing_file


def opened(path: Path, **columns: str) -> Source:
    return open_source(DataConfig(source=str(path), **columns))


def refused(path: Path | str, **columns: str) -> str:
    with pytest.raises(SourceError) as caught:
        source = open_source(DataConfig(source=str(path), **columns))
        list(source.documents())
    message = str(caught.value)
    assert "\n" not in message and "Traceback" not in message
    return message


def test_a_text_file_is_one_document_with_its_line_ends_kept(tmp_path: Path) -> None:
    text = "one\r\ntwo\rthree\n\nvier: größer 漢字 😀\n"
    (tmp_path / "my text.txt").write_bytes(text.encode())
    source = opened(tmp_path / "my text.txt")
    assert list(source.documents()) == [text]
    assert (source.name, source.kind, source.n_bytes) == ("my-text", "text", len(text.encode()))
    with gzip.open(tmp_path / "same.txt.gz", "wt", encoding="utf-8", newline="") as file:
        file.write(text)
    zipped = opened(tmp_path / "same.txt.gz")
    assert list(zipped.documents()) == [text] and zipped.n_bytes == source.n_bytes
    assert zipped.sha256 != source.sha256 and zipped.name == "same"


def test_a_name_that_says_nothing_is_replaced_by_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "tiny shakespeare"
    folder.mkdir()
    (folder / "input.txt").write_text("words and words")
    assert opened(folder / "input.txt").name == "tiny-shakespeare"


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfabc")
    source = opened(tmp_path / "a.txt")
    assert list(source.documents()) == ["abc"] and source.n_bytes == 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(
    text=st.text(st.characters(blacklist_characters="\0\ufeff", blacklist_categories=("Cs",)), min_size=1),
    size=st.integers(1, 9),
)
def test_text_read_in_blocks_and_ranges_is_the_text(tmp_path: Path, text: str, size: int) -> None:
    path = tmp_path / "any.txt"
    path.write_bytes(text.encode())
    assert "".join(read_text(path, size=size)) == text
    data = text.encode()
    for offset in range(len(data) + 1):
        cut = character_start(path, offset)
        assert offset <= cut <= offset + 3
        assert "".join(read_text(path, 0, cut, size)) + "".join(read_text(path, cut, None, size)) == text


def test_a_folder_gives_each_text_file_in_order_of_its_path(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.md").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0\xff")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / ".hidden.txt").write_text("never")
    (tmp_path / "rows.jsonl").write_text('"third"\n"fourth"\n')
    with gzip.open(tmp_path / "z.txt.gz", "wt") as file:
        file.write("fifth")
    source = opened(tmp_path)
    assert list(source.documents()) == ["first", "third", "fourth", "fifth", "second"]
    assert source.kind == "folder" and "2 that are not text passed over" in source.note
    before = source.sha256
    (tmp_path / "a.txt").rename(tmp_path / "a1.txt")
    assert opened(tmp_path).sha256 != before


def test_what_was_made_of_the_texts_of_a_folder_is_not_read_with_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "b.txt").write_text("second")
    before = opened(tmp_path)
    made = {
        "runs/begun": ("config.toml", "source.json", "checkpoints/step-00000000/state.json"),
        "runs/slim": ("config.toml", "manifest.json", "model.safetensors", "report.html"),
        "runs/study-a-b-12345678": ("runs.jsonl", "design-12345678.json", "page.html"),
        "out": ("config.json", "model-00001-of-00002.safetensors", "README.md"),
    }
    for folder, names in made.items():
        for name in names:
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text("words of ours")
    found = opened(tmp_path)
    assert list(found.documents()) == ["first", "second"]
    assert (found.sha256, found.n_bytes) == (before.sha256, before.n_bytes)
    assert found.note == "2 files read, 4 folders of runs, studies or exported models passed over"
    assert "it holds runs, studies or exported models only" in refused(tmp_path / "runs")
    for folder in made:
        assert "is a run, a study or an exported model, and no text; name the text" in refused(tmp_path / folder)
    (tmp_path / "site").mkdir()
    for name in ("config.toml", "manifest.json", "page.md"):
        (tmp_path / "site" / name).write_text(name)
    assert list(opened(tmp_path).documents())[2:] == ["config.toml", "page.md"]


def test_a_file_whose_beginning_alone_is_text_is_passed_over_unless_its_name_says_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "b.txt").write_text("second")
    before = opened(tmp_path)
    for name in ("dump", "log.csv"):
        (tmp_path / name).write_bytes(b"a line, and more\n" * 1000 + b"\xff\xfe")
    found = opened(tmp_path)
    assert list(found.documents()) == ["first", "second"] and found.sha256 == before.sha256
    assert found.note == "2 files read, 2 that are not text passed over"
    (tmp_path / "dump").rename(tmp_path / "dump.txt")
    assert refused(tmp_path).startswith(f"'{tmp_path / 'dump.txt'}' is not UTF-8 text: byte 17000 is 0xff")
    for i in range(4):
        (tmp_path / f"old{i}.txt").write_bytes(b"caf\xe9")
    told = refused(tmp_path)
    assert "5 files are named like text and are none" in told and "byte 17000 is 0xff" in told
    assert all(f"old{i}.txt'" in told for i in range(3)) and "old3" not in told


def test_rows_with_more_cells_than_the_header_are_refused_with_their_line(tmp_path: Path) -> None:
    rows = "".join(f"{i},plain words\n" for i in range(300))
    (tmp_path / "a.csv").write_text("id,text\n" + rows + "300,words, and more\n")
    assert "line 302 has 3 cells, the header names 2: quote the text" in refused(tmp_path / "a.csv")
    (tmp_path / "b.tsv").write_text("1\tplain words\n2\twords\tand more\n" * 3)
    assert "line 2 has 3 cells, the first row 2: take the tabs out of the text" in refused(tmp_path / "b.tsv")
    (tmp_path / "c.csv").write_text("id,text\n" + rows + "300,words, ,\n301\n")
    assert len(list(opened(tmp_path / "c.csv").documents())) == 301


@pytest.mark.parametrize("header", ["text,label,", "words,mood,,"])
def test_empty_names_at_the_end_of_a_header_name_nothing(tmp_path: Path, header: str) -> None:
    """As spreadsheets write them; what stands below must be empty too, since no name could ask for it."""
    rows = [("good plain words", "pos"), ("words that are worse", "neg"), ("words and words again", "pos")]
    commas = "," * (header.count(",") - 1)
    (tmp_path / "a.csv").write_text("\n".join([header, *(f"{text},{label}{commas}" for text, label in rows)]) + "\n")
    assert list(opened(tmp_path / "a.csv").documents()) == [text for text, _ in rows]
    assert columns_of(tmp_path / "a.csv") == tuple(header.split(",")[:2])
    (tmp_path / "b.csv").write_text(f"text,label,\n{rows[0][0]},pos,\nan unquoted, text,neg\n{rows[2][0]},pos,\n")
    assert "line 3 has 3 cells, the header names 2: quote the text" in refused(tmp_path / "b.csv")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            "a few words, wide\n".encode("utf-16"),
            "UTF-16 text; save it as UTF-8: iconv -f UTF-16 -t UTF-8 '{path}' > utf8.txt",
        ),
        ("漢字漢字".encode("utf-16"), "UTF-16 text"),
        ("a few words".encode("utf-32"), "UTF-32 text"),
        (gzip.compress(b"a few words", mtime=0), "a gzip file; give it a name that ends in .gz"),
        (b"PK\x03\x04\x14\0\x06\0\x08\0", "a zip archive, as .docx and .xlsx are too"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "a PDF; expected its text, in UTF-8: pdftotext '{path}' text.txt"),
    ],
)
def test_a_file_of_another_kind_is_named_with_what_to_do(tmp_path: Path, data: bytes, words: str) -> None:
    """And the command to type names the file as it can be found from here."""
    (path := tmp_path / "my file.txt").write_bytes(data)
    assert f"my file.txt' is {words.format(path=path)}" in refused(path)


def test_a_column_that_is_there_twice_is_not_chosen(tmp_path: Path) -> None:
    rows = "".join(f"some words,{i},more of them\n" for i in range(4))
    (tmp_path / "a.csv").write_text("text,id,text\n" + rows)
    for asked in ({}, {"text_column": "text"}):
        assert "has 2 columns called 'text'; give them names that differ" in refused(tmp_path / "a.csv", **asked)
    assert list(opened(tmp_path / "a.csv", text_column="id").documents()) == ["0", "1", "2", "3"]


def test_a_quotation_mark_that_is_never_closed_is_named_by_the_line_of_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n" + "some words,a\n" * 5 + '"left open,b\n' + "some words,a\n" * 300)
    assert "line 7 begins a row with a quotation mark that is never closed" in refused(tmp_path / "a.csv")


def test_a_table_with_semicolons_for_commas_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"good words, number {i};pos\n" for i in range(5))
    (tmp_path / "a.csv").write_text("text;label\n" + rows)
    assert "has semicolons between its columns (text, label); expected commas" in refused(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("text\n" + "".join(f"one; two {i}\n" for i in range(5)))
    (tmp_path / "c.csv").write_text("first of all; a sentence that is no header at all\n" + "one; two\nthree; four\n")
    for name, n in (("b.csv", 5), ("c.csv", 3)):
        assert len(list(opened(tmp_path / name).documents())) == n


@pytest.mark.parametrize(
    ("name", "between", "words"),
    [
        (
            "a.csv",
            "\t",
            "has tabs between its columns (text, label); expected commas: give it a name that ends in .tsv",
        ),
        ("a.csv", "|", "has bars between its columns (text, label); expected commas: save it so, or with tabs"),
        ("a.csv", ";", "has semicolons between its columns (text, label); expected commas: save it so, or with tabs"),
        ("a.tsv", ",", "has commas between its columns (text, label); expected tabs: give it a name that ends in .csv"),
        ("a.tsv", ";", "has semicolons between its columns (text, label); expected tabs: save it so, or with tabs"),
    ],
)
@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("columns", [{}, {"text_column": "text", "label_column": "label"}])
def test_columns_cut_by_another_separator_than_the_name_says_are_named(
    tmp_path: Path, name: str, between: str, words: str, quote: str, columns: dict[str, str]
) -> None:
    inner = between if quote else ","
    rows = "".join(f"{quote}good words{inner} number {i}{quote}{between}{i % 2}\n" for i in range(300))
    (tmp_path / name).write_text(f"text{between}label\n" + rows)
    assert words in refused(tmp_path / name, **columns)


def test_tabs_in_every_row_separate_columns_without_names_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("".join(f"one{', more' * (i % 3)} {i}\t{i % 2}\n" for i in range(9)))
    assert "has tabs between its columns; expected commas" in refused(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("text\n" + "".join(f"a\tb {i}\n" if i % 2 else f"a b {i}\n" for i in range(9)))
    (tmp_path / "c.csv").write_text("text,label\n" + "".join(f"a\tb {i},1\n" for i in range(9)))
    (tmp_path / "d.tsv").write_text("text\n" + "".join(f"one, two; {i}\n" for i in range(9)))
    (tmp_path / "e.tsv").write_text("a, b; c, d\n" + "".join(f"one, two; {i}\n" for i in range(9)))
    for name, n in (("b.csv", 9), ("c.csv", 9), ("d.tsv", 9), ("e.tsv", 10)):
        assert len(list(opened(tmp_path / name).documents())) == n, name


def test_in_a_folder_what_is_named_like_a_table_and_is_none_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "b.txt").write_text("second")
    before = opened(tmp_path)
    wrong = {
        "settings.json": '{\n  "a": 1\n}\n',
        "n.csv": "x,y\n1,2\n3,4\n",
        "one.tsv": "text\n",
        "r.csv": "a,b\n1,c\n2,d,e\n",
    }
    for name, content in wrong.items():
        (tmp_path / name).write_text(content)
    found = opened(tmp_path)
    assert list(found.documents()) == ["first", "second"]
    assert (found.sha256, found.n_bytes) == (before.sha256, before.n_bytes)
    assert "2 files read, 4 tables without text that can be read passed over" in found.note
    assert "line 1 is not JSON" in refused(tmp_path / "settings.json")
    assert "unknown column 'body'" in refused(tmp_path, text_column="body")
    (tmp_path / "rows.jsonl").write_text('{"body": "third"}\n{"body": "fourth"}\n')
    assert list(opened(tmp_path, text_column="body").documents()) == ["first", "second", "third", "fourth"]
    for name in ("a.txt", "b.txt", "rows.jsonl"):
        (tmp_path / name).unlink()
    assert "no column of text" in refused(tmp_path)


def test_json_lines_give_the_text_column_found_by_name_or_length(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"id": i, "url": "http://a/very/long/address/" + "x" * 90, "text": f"row {i}"} for i in range(3)]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n" + json.dumps({"id": 9, "text": ""}) + "\n")
    assert list(opened(path).documents()) == ["row 0", "row 1", "row 2"]
    assert opened(path, text_column="url").documents().__next__().startswith("http")
    path.write_text("".join(json.dumps({"a": 1, "b": "short", "c": f"much longer {i}"}) + "\n" for i in range(3)))
    assert list(opened(path).documents()) == [f"much longer {i}" for i in range(3)]
    assert list(opened(path, label_column="c").documents()) == ["short"] * 3


def test_half_a_surrogate_pair_in_json_becomes_the_replacement_character(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('"a\\ud83d"\n"\\ud83d\\ude00"\n')
    assert list(opened(tmp_path / "a.jsonl").documents()) == ["a\ufffd", "😀"]


def test_csv_with_quotes_and_tsv_without_are_read_as_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('label,text\n1,"two\nlines, ""quoted"""\n0,plain\n')
    assert list(opened(tmp_path / "a.csv").documents()) == ['two\nlines, "quoted"', "plain"]
    (tmp_path / "a.tsv").write_text('sentence\tlabel\nan "open quote\t1\nsecond\t0\n')
    assert list(opened(tmp_path / "a.tsv").documents()) == ['an "open quote', "second"]


def test_a_table_without_a_header_has_numbered_columns(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("1\tthe first sentence of them\n0\tand the second one\n")
    assert list(opened(tmp_path / "a.tsv").documents()) == ["the first sentence of them", "and the second one"]
    assert list(opened(tmp_path / "a.tsv", text_column="1").documents()) == ["1", "0"]
    assert "expected one of: 1, 2" in refused(tmp_path / "a.tsv", text_column="3")


def test_a_first_cell_that_is_a_common_name_and_occurs_below_it_is_no_header(tmp_path: Path) -> None:
    kinds = ["question", "statement"] * 4
    texts = [f"a sentence, number {i} of them" for i in range(8)]
    (tmp_path / "a.csv").write_text("".join(f'{kind},"{text}"\n' for kind, text in zip(kinds, texts, strict=True)))
    assert list(opened(tmp_path / "a.csv").documents()) == texts
    assert list(opened(tmp_path / "a.csv", text_column="2", label_column="1").documents()) == texts
    once = "question\twhat time is it\n" + "".join(f"statement\t{text}\n" for text in texts)
    (tmp_path / "b.tsv").write_text(once)
    assert list(opened(tmp_path / "b.tsv", text_column="2", label_column="1").documents()) == [
        "what time is it",
        *texts,
    ]
    (tmp_path / "c.tsv").write_text("label\ttext\n" + once)
    assert list(opened(tmp_path / "c.tsv").documents()) == ["what time is it", *texts]
    assert "unknown column '2'; expected one of: label, text" in refused(tmp_path / "c.tsv", text_column="2")


def test_a_csv_cell_larger_than_the_modules_own_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"text\n{'x' * 300_000}\nsmall\n")
    assert [len(text) for text in opened(tmp_path / "a.csv").documents()] == [300_000, 5]


def test_a_missing_file_is_refused_with_the_nearest_names(tmp_path: Path) -> None:
    (tmp_path / "shakespeare.txt").write_text("x")
    assert "did you mean" in (message := refused(tmp_path / "shakespear.txt")) and "shakespeare.txt" in message
    assert "no folder" in refused(tmp_path / "nowhere" / "a.txt")
    assert "give a text file" in refused(tmp_path / "zzzzzz")
    told = str(missing_file(tmp_path, "file", "one like the config.toml of a run"))
    assert told == f"{str(tmp_path)!r} is a folder; give one like the config.toml of a run"


def test_empty_blank_and_binary_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text("")
    assert "is empty" in refused(tmp_path / "e.txt")
    (tmp_path / "b.txt").write_text(" \n\t\n")
    assert "is blank" in refused(tmp_path / "b.txt")
    (tmp_path / "n.txt").write_bytes(b"abc\0def")
    assert "binary (a NUL byte at byte 3)" in refused(tmp_path / "n.txt")


@pytest.mark.parametrize("before", [0, 5, (1 << 20) - 1, 1 << 20, (1 << 20) + 7])
def test_bytes_that_are_not_utf8_are_refused_with_their_place(tmp_path: Path, before: int) -> None:
    (tmp_path / "l.txt").write_bytes(b"a" * before + "é".encode("latin-1") + b"bc")
    assert f"byte {before} is 0xe9" in refused(tmp_path / "l.txt")


def test_a_text_that_ends_inside_a_character_is_refused(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_bytes(b"abc" + "漢".encode()[:2])
    assert "byte 3 is 0xe6" in refused(tmp_path / "l.txt")


def test_a_broken_gzip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"hello " * 5000)[:40])
    assert "not a whole gzip file" in refused(tmp_path / "a.txt.gz")
    (tmp_path / "b.txt.gz").write_text("hello")
    assert "not a whole gzip file" in refused(tmp_path / "b.txt.gz")


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    assert "it holds no file" in refused(tmp_path / "d")
    (tmp_path / "d" / "x.bin").write_bytes(b"\0\1\2")
    assert "none of its 1 files is UTF-8 text" in refused(tmp_path / "d")
    (tmp_path / "d" / "x.txt").write_bytes(b"fine until \xff here")
    assert "x.txt" in (message := refused(tmp_path / "d")) and "byte 11 is 0xff" in message


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret.txt"
    path.write_text("x")
    path.chmod(0)
    assert "Permission denied" in refused(path)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", "text,label\n", "has one line"),
        ("a.csv", "text,label\nonly,1\n", "a header and one row"),
        ("a.jsonl", '{"text": "x"}\n', "has one line"),
        ("a.tsv", "text\tlabel\n", "has one line"),
        ("a.jsonl", '{"text": "x"}\n{"text": }\n', "line 2 is not JSON"),
        ("a.jsonl", '{"text": "x"}\n{"text": ["y"]}\n', "'text' is list"),
        (
            "a.jsonl",
            '{"text": "x"}\n{"text": "x", "n": ' + "1" * 5000 + "}\n",
            "line 2 is not JSON: a number of too many",
        ),
        ("a.json", '[{"text": "x"},\n{"text": "y"}]\n', "array"),
        ("a.jsonl", '{"n": 1}\n{"n": 2}\n', "no column of text (columns: n)"),
        ("a.jsonl", '{"turns": [{"content": "Hi"}]}\n' * 2, "jq -r '.turns[] | .role + \": \" + .content' "),
        ("a.csv", 'text\n"never closed\nx\n', "line 2 begins a row with a quotation mark that is never closed"),
    ],
)
def test_broken_tables_are_refused(tmp_path: Path, name: str, content: str, expected: str) -> None:
    (tmp_path / name).write_text(content)
    assert expected in refused(tmp_path / name)


def test_an_unknown_column_is_refused_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("sentence,label\na b,1\nc d,0\n")
    assert "unknown column 'sentense'; did you mean 'sentence'" in refused(tmp_path / "a.csv", text_column="sentense")
    assert "--label-column" in refused(tmp_path / "a.csv", label_column="lable")


def test_columns_named_for_a_plain_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    assert "leave --text-column out" in refused(tmp_path / "a.txt", text_column="text")


def test_a_pair_of_files_is_refused_with_the_task_it_is_for(tmp_path: Path) -> None:
    for name in ("l.de", "r.en"):
        (tmp_path / name).write_text("a")
    assert "--task translate" in refused(f"{tmp_path / 'l.de'}:{tmp_path / 'r.en'}")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "a device or a pipe" in refused(tmp_path / "pipe")


def test_a_name_too_long_for_the_system_is_refused() -> None:
    assert "cannot be read" in refused("x" * 5000) or "no file" in refused("x" * 5000)


def test_a_negative_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match="vocab is -1"):
        DataConfig(vocab=-1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(data=st.binary(max_size=300), name=st.sampled_from(["a.txt", "a.jsonl", "a.csv", "a.tsv", "a.txt.gz", "a.json"]))
def test_any_bytes_are_read_or_refused_but_never_crash(tmp_path: Path, data: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(data)
    try:
        for text in opened(tmp_path / name).documents():
            text.encode()
    except SourceError as error:
        assert "\n" not in str(error)
