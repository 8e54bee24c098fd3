"""A file that cannot be read is called what it is, by each reader that may meet it."""

import bz2
import gzip
import lzma
import sqlite3
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from qkv.data.config import DataConfig
from qkv.data.images import read_idx
from qkv.data.labelled import read_labelled
from qkv.data.sources.source import open_source
from qkv.data.split import split_source
from qkv.data.vectors import read_vectors
from qkv.errors import MissingExtra, SourceError
from qkv.signatures import signature_of, signature_of_file
from qkv.tokenizers.tokenizer import load_tokenizer

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 4096\n"


def refused(path: Path, read=lambda path: list(open_source(DataConfig(source=str(path))).documents())) -> str:
    with pytest.raises(SourceError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(f"'{path}' is ")
    return message.removeprefix(f"'{path}' is ")


def made_by_others(folder: Path) -> dict[str, Path]:
    """Files as other programs write them."""
    folder.mkdir()
    plain = folder / "plain"
    plain.write_bytes(b"some plain words\n" * 9)
    files = {name: folder / f"a.{name}" for name in ("bz2", "xz", "tar", "zip", "npy", "db", "old.gz")}
    files["bz2"].write_bytes(bz2.compress(plain.read_bytes()))
    files["xz"].write_bytes(lzma.compress(plain.read_bytes()))
    files["old.gz"].write_bytes(gzip.compress(plain.read_bytes()))
    with tarfile.open(files["tar"], "w") as tar:
        tar.add(plain, "plain")
    with zipfile.ZipFile(files["zip"], "w") as archive:
        archive.write(plain, "plain")
    np.save(files["npy"], np.arange(9))
    with sqlite3.connect(files["db"]) as base:
        base.execute("create table words (word)")
    base.close()
    return files


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bz2", "compressed by bzip2; decompress it first: bzip2 -dc"),
        ("xz", "compressed by xz; decompress it first: xz -dc"),
        ("tar", "a tar archive; unpack it first: tar -xf"),
        ("zip", "a zip archive"),
        ("npy", "a NumPy array"),
        ("db", "an SQLite database; expected UTF-8 text; save its text column as JSON lines"),
        ("old.gz", "a gzip file; give it a name that ends in .gz"),
    ],
)
def test_files_of_other_programs_are_named_under_any_ending(tmp_path: Path, name: str, words: str) -> None:
    path = tmp_path / "my words.txt"
    path.write_bytes(made_by_others(tmp_path / "made")[name].read_bytes())
    assert refused(path).startswith(words)


def test_what_is_compressed_under_its_own_ending_is_called_no_text_inside(tmp_path: Path) -> None:
    path = tmp_path / "numbers.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 20))
    assert refused(path) == "a gzip file, and what is inside is no UTF-8 text"


@pytest.mark.parametrize("content", [b"\0\0\x08\3" + bytes(200), gzip.compress(b"\0\0\x08\3" + bytes(200), mtime=0)])
def test_images_given_as_a_text_name_the_option(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    assert refused(path) == "an IDX file of images by its name; add --task image"
    with pytest.raises(SourceError, match="by its name; add --task image"):
        open_source(DataConfig(source=str(tmp_path)))
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99))
    with pytest.raises(SourceError, match="a folder for each class, and --task image"):
        open_source(DataConfig(source=str(tmp_path / "photos")))


@pytest.mark.parametrize("name", ["t.txt", "t.jsonl", "t.csv"])
def test_a_parquet_table_by_another_name_says_which_name_it_would_have(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    assert refused(tmp_path / name) == "a Parquet table; give it a name that ends in .parquet"


def test_a_damaged_parquet_table_is_called_one(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="reading Parquet needs pyarrow")
    (tmp_path / "t.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    assert refused(tmp_path / "t.parquet").startswith("not a whole Parquet table: ")


@pytest.mark.parametrize(("name", "head"), [("t.parquet", b"PAR1"), ("t.txt.zst", b"\x28\xb5\x2f\xfd")])
def test_without_pyarrow_the_command_that_installs_it_is_named(
    tmp_path: Path, name: str, head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / name).write_bytes(head + bytes(100))
    kind = "a Parquet table" if "parquet" in name else "compressed by zstd"
    with pytest.raises(MissingExtra, match=rf"{name}' is {kind}; to read it type: .* -m pip install .*\[table\]"):
        open_source(DataConfig(source=str(tmp_path / name)))


def test_zstd_is_read_where_it_is_whole_and_named_where_it_is_not(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="reading zstd needs pyarrow")
    path, text = tmp_path / "a.txt.zst", "line \u00e9\n" * 300_000
    with arrow.output_stream(str(path), compression="zstd") as file:
        file.write(text.encode())
    source = open_source(DataConfig(source=str(path)))
    assert "".join(source.documents()) == text and source.n_bytes == len(text.encode())
    assert split_source(source).train.n_bytes + split_source(source).val.n_bytes == len(text.encode())
    tail = "".join(chunk.text for chunk in split_source(source).val.read())
    assert tail and text.endswith(tail)
    path.write_bytes(path.read_bytes()[:-9])
    assert refused(path).startswith("not a whole zstd file: ")
    (tmp_path / "b.txt").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(50))
    assert refused(tmp_path / "b.txt") == "compressed by zstd; give it a name that ends in .zst"


@pytest.mark.parametrize(
    ("encoding", "named"),
    [
        ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"),
        ("utf-32-le", "UTF-32LE"),
        ("utf-32-be", "UTF-32BE"),
    ],
)
@pytest.mark.parametrize("text", ["plain words and more\n" * 90, "слова и ещё слова\n" * 400, "漢字 と かな\n" * 3])
def test_wide_text_without_a_mark_is_named_with_its_encoding(
    tmp_path: Path, encoding: str, named: str, text: str
) -> None:
    path = tmp_path / "wide.txt"
    path.write_bytes(text.encode(encoding))
    assert refused(path) == (
        f"{named[:6]} text without a byte order mark; save it as UTF-8: iconv -f {named} -t UTF-8 {path} > utf8.txt"
    )
    assert path.read_bytes().decode(named) == text  # by the name that is told to iconv


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"plain text of UTF-8, caf\xc3\xa9",
        b"ORCHESTRAL music, caf\xe9 by caf\xe9 in Latin-1\n" * 3,
        "кириллица в однобайтной кодировке\n".encode("cp1251") * 40,
        "漢字と かな\n".encode("gb18030") * 40,
        bytes(range(256)) * 4,
        np.arange(0, 400, dtype=np.uint16).tobytes(),
        np.arange(0, 400, dtype=np.int32).tobytes(),
        np.random.default_rng(0).bytes(4096),
        np.random.default_rng(1).integers(0, 50257, 2000).astype(np.uint16).tobytes(),
        b"abc\0def",
    ],
)
def test_what_nobody_knows_is_called_nothing(data: bytes) -> None:
    assert signature_of(data) is None


def test_a_page_saved_in_place_of_a_compressed_file_is_called_a_page_and_a_page_of_text_is_text(tmp_path: Path) -> None:
    page = b"<!DOCTYPE html>\n<html><body>You need to log in, caf\xe9</body></html>"
    (tmp_path / "a.txt.gz").write_bytes(page)
    assert refused(tmp_path / "a.txt.gz").startswith("a web page (HTML), which may have been saved in place of")
    (tmp_path / "a.html").write_bytes(page)
    assert "byte 51 is 0xe9; save it as UTF-8 (iconv -f WINDOWS-1252" in refused(tmp_path / "a.html")
    for name, encoding in (("a.csv", "latin-1"), ("b.csv", "utf-16")):  # the ending tells how a table is read
        (tmp_path / name).write_text("text,label\ncaf\xe9,a\n", encoding=encoding)
        assert f"-t UTF-8 {tmp_path / name} > utf8.csv" in refused(tmp_path / name)
    (tmp_path / "a.html").write_bytes(page.replace(b"\xe9", b"e"))
    assert signature_of(page) is None and signature_of_file(tmp_path / "a.html") is not None
    assert len(list(open_source(DataConfig(source=str(tmp_path / "a.html"))).documents())) == 1


def test_a_damaged_gzip_file_is_called_damaged(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(b"some words " * 200, mtime=0))
    data[-6] ^= 1  # of the checksum
    (tmp_path / "a.txt.gz").write_bytes(data)
    assert "not a whole gzip file" in refused(tmp_path / "a.txt.gz")


READERS = {
    "text.txt": None,
    "text.txt.gz": None,
    "table.csv": None,
    "table.jsonl": None,
    "labels.tsv": lambda path: read_labelled(DataConfig(source=str(path))),
    "lines.txt": lambda path: read_labelled(DataConfig(source=str(path))),
    "train-images-idx3-ubyte": lambda path: read_idx(path, (3,)),
    "train-images-idx3-ubyte.gz": lambda path: read_idx(path, (3,)),
    "glove.txt": read_vectors,
    "word2vec.bin": read_vectors,
    "tokenizer.json": load_tokenizer,
    "vocab.txt": load_tokenizer,
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_knows_what_git_lfs_leaves_in_place_of_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(POINTER)
    said = refused(tmp_path / name, READERS[name]) if READERS[name] else refused(tmp_path / name)
    assert said == "a git-lfs pointer and not the file itself; fetch it: git lfs pull"


@pytest.mark.parametrize("name", ["b.txt", "b.jsonl", "b.csv"])
def test_a_pointer_in_a_folder_is_never_passed_over(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_text("plain words")
    (tmp_path / "c.png").write_bytes(POINTER)  # a picture is no text anyway
    assert list(open_source(DataConfig(source=str(tmp_path))).documents()) == ["plain words"]
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(SourceError, match=f"{name}' is a git-lfs pointer and not the file itself"):
        open_source(DataConfig(source=str(tmp_path)))


def test_a_folder_of_such_files_alone_says_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(SourceError, match=r"none of its 1 files is UTF-8 text; '.*data.bin' is a Parquet table; give"):
        open_source(DataConfig(source=str(tmp_path)))
