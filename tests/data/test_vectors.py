"""Word vectors from files, as GloVe and word2vec write them."""

import gzip
import struct

import numpy as np
import pytest

from qkv.data.vectors import Vectors, read_vectors, shared
from qkv.errors import SourceError

GLOVE = "the 0.5 -1 2e-1\ncat 1 2 3\n. . . 4 5 6\ncat 9 9 9\n"
VALUES = np.array([[0.5, -1, 0.2], [1, 2, 3], [4, 5, 6]], dtype=np.float32)


def binary(words, values, head=None, between=b"\n") -> bytes:
    body = b"".join(
        w.encode() + b" " + struct.pack(f"<{len(v)}f", *v) + between for w, v in zip(words, values, strict=True)
    )
    return (head or f"{len(words)} {len(values[0])}\n").encode() + body


@pytest.mark.parametrize("name", ["v.txt", "v.vec", "v.txt.gz"])
@pytest.mark.parametrize("head", ["", "3 3\n", "4 3\n"])
def test_text_with_and_without_a_first_line_reads_the_same_and_a_word_counts_once(tmp_path, name, head):
    path, data = tmp_path / name, (head + GLOVE).encode()
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    vectors = read_vectors(path)
    assert vectors.words == ("the", "cat", ". . .") and vectors.width == 3  # a word of GloVe may hold spaces
    assert np.array_equal(vectors.values, VALUES)
    assert (vectors.row("Cat"), vectors.row("cat"), vectors.row("dog")) == (1, 1, None)


@pytest.mark.parametrize("between", [b"\n", b""])
def test_binary_files_with_and_without_line_ends_read_the_same(tmp_path, between):
    (tmp_path / "v.bin").write_bytes(binary(["the", "käse", "x"], VALUES, between=between))
    vectors = read_vectors(tmp_path / "v.bin")
    assert vectors.words == ("the", "käse", "x") and np.array_equal(vectors.values, VALUES)


def test_what_gensim_writes_is_read_back(tmp_path):
    models = pytest.importorskip("gensim.models", reason="needs the extra `static` (gensim)")
    theirs = models.KeyedVectors(3)
    theirs.add_vectors(["the", "cat", "x"], VALUES)
    for name, is_binary in (("v.txt", False), ("v.bin", True)):
        theirs.save_word2vec_format(str(tmp_path / name), binary=is_binary)
        ours = read_vectors(tmp_path / name)
        assert sorted(ours.words) == ["cat", "the", "x"]
        assert all(np.array_equal(ours.values[ours.row(word)], theirs[word]) for word in ours.words)


@pytest.mark.parametrize(
    "name, data, sentence",
    [
        ("v.txt", b"", "holds no vectors"),
        ("v.txt", b"the 1 2 3\ncat 1 2\n", "line 2: expected a word and 3 numbers .* found 2 numbers"),
        ("v.txt", b"the 1 2 3\ncat 1 two 3\n", "line 2: 'cat 1 two 3.* is not a word and 3 numbers"),
        (
            "v.txt",
            b"3 2\na 1 2 3 4\nb 1 2 3 4\nc 1 2 3 4\n",
            "line 2: expected a word and 2 numbers .* found 4 numbers",
        ),
        ("v.txt", b"the 1 2\ncat 1 -2e-3 3\n", "line 2: expected a word and 2 numbers .* found 3 numbers"),
        ("v.txt", b"the 1 nan 3\n", "the vector of 'the' is not finite"),
        ("v.txt", b"3 2\nthe 1 2\ncat 3 4\n", "cut off: it holds 2 of 3 vectors"),
        ("v.txt", b"the 1 1e43 3\n", "the vector of 'the' is not finite"),
        ("v.txt", binary(["the"], VALUES[:1] * 1e30), "has to end in .bin|is not a word"),
        ("v.bin", GLOVE.encode(), "expected a first line 'count width'"),
        ("v.bin", binary(["the", "cat"], VALUES[:2])[:-6], "cut off: it holds 1 of 2 vectors"),
        ("v.txt.gz", gzip.compress(GLOVE.encode(), mtime=0)[:20], "it may be cut off"),
    ],
)
def test_a_file_that_is_not_whole_or_no_vectors_is_told_in_one_sentence(tmp_path, name, data, sentence):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=sentence):
        read_vectors(tmp_path / name)


@pytest.mark.parametrize("head", ["", "4 2\n"])
def test_a_word_may_hold_spaces_and_be_a_number_and_a_byte_order_mark_is_dropped(tmp_path, head):
    words = ["the", ". . .", "at name@example.com", "1984"]
    content = head + "".join(f"{word} {i} .5\n" for i, word in enumerate(words))
    (tmp_path / "v.txt").write_text("\ufeff" + content, encoding="utf-8")
    found = read_vectors(tmp_path / "v.txt")
    assert found.words == tuple(words) and found.values.tolist() == [[i, 0.5] for i in range(4)]


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(SourceError, match="does not exist; expected a file of word vectors"):
        read_vectors(tmp_path / "none.txt")


def test_the_published_control_is_read_whole_whatever_its_first_line_says(real_data):
    path = real_data / "glove-4k" / "glove50_4k.txt.gz"
    if not path.is_file():
        pytest.skip("QKV_DATA holds no glove-4k")
    vectors = read_vectors(path)  # its first line says 4196
    assert (len(vectors.words), vectors.width) == (4197, 50)


def test_sets_shared_with_one_another_hold_the_same_words():
    one = Vectors(words=("The", "cat", "the", "Paris"), values=np.arange(8, dtype=np.float32).reshape(4, 2))
    other = Vectors(words=("paris", "dog", "the"), values=np.arange(6, dtype=np.float32).reshape(3, 2))
    mine, theirs = shared(one, [other]), shared(other, [one])
    assert mine.words == theirs.words == ("paris", "the")
    assert mine.values.tolist() == [[6, 7], [4, 5]] and theirs.values.tolist() == [[0, 1], [4, 5]]
