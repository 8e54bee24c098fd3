"""Nothing of what is measured on is trained on."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from qkv.data import split as split_module
from qkv.data.config import DataConfig
from qkv.data.corpus import load_corpus
from qkv.data.dedup import Sketches, group_copies, sketch
from qkv.data.sources.source import open_source, whole_documents
from qkv.data.split import Split, split_source
from qkv.errors import SourceError


def split_of(path: Path) -> Split:
    return split_source(open_source(DataConfig(source=str(path))))


def texts(part) -> list[str]:
    return list(whole_documents(part.read()))


def article(draws: random.Random, n: int = 60) -> str:
    return " ".join("".join(draws.choices("abcdefghijklmnop", k=draws.randint(2, 9))) for _ in range(n))


def test_the_last_tenth_of_a_text_is_held_out_at_a_character(tmp_path: Path) -> None:
    for text in ("abcdefghij" * 50, "漢字é😀" * 77, "x" * 89 + "😀" * 4):
        (tmp_path / "t.txt").write_text(text, encoding="utf-8")
        found = split_of(tmp_path / "t.txt")
        train, val = texts(found.train)[0], texts(found.val)[0]
        assert train + val == text
        assert len(train.encode()) == found.train.n_bytes and len(val.encode()) == found.val.n_bytes
        assert (
            0 <= len(text.encode()) // 10 - len(val.encode()) < 4 or len(val.encode()) <= len(text.encode()) // 10 + 1
        )
        assert not found.many_documents


def test_tinyshakespeare_is_cut_where_everybody_cuts_it(tinyshakespeare: Path) -> None:
    found = split_of(tinyshakespeare)
    assert (found.train.n_bytes, found.val.n_bytes) == (1003854, 111540)
    assert texts(found.val)[0] == tinyshakespeare.read_text()[int(1115394 * 0.9) :]


def test_at_most_two_megabytes_are_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_module, "MOST_VAL_BYTES", 100)
    (tmp_path / "t.txt").write_text("word " * 1000)
    assert split_of(tmp_path / "t.txt").val.n_bytes == 100
    draws = random.Random(0)
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(article(draws, 3)) + "\n" for _ in range(300)))
    assert split_of(tmp_path / "t.jsonl").val.n_bytes <= 100


def test_documents_are_split_whole_whatever_their_order(tmp_path: Path) -> None:
    draws = random.Random(1)
    articles = [article(draws) for _ in range(200)]
    sides = []
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in articles))
        found = split_of(tmp_path / name)
        train, val = texts(found.train), texts(found.val)
        assert sorted(train + val) == sorted(articles)
        assert [text for text in articles if text in set(val)] == val  # in the order of the source
        total = sum(map(len, articles))
        assert 0.08 * total < found.val.n_bytes <= 0.1 * total
        assert found.val.n_bytes == sum(len(text.encode()) for text in val)
        assert found.many_documents and f"{len(val)} of 200 documents" in found.rule
        sides.append(set(val))
        draws.shuffle(articles)
    assert sides[0] == sides[1]


def test_near_copies_stay_on_one_side(tmp_path: Path) -> None:
    draws = random.Random(2)
    families = []
    for _ in range(120):
        text = article(draws)
        words = text.split()
        words[draws.randrange(len(words))] = "changed"
        families.append([text, text.upper() + "!", " ".join(words), "A new first sentence. " + text])
    rows = [text for family in families for text in family]
    draws.shuffle(rows)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(text) + "\n" for text in rows))
    found = split_of(tmp_path / "a.jsonl")
    val = set(texts(found.val))
    assert val
    for family in families:
        assert len({text in val for text in family}) == 1
    assert "360 near-copies kept on the side of their originals" in found.rule


def test_strangers_are_not_taken_for_copies() -> None:
    draws = random.Random(3)
    documents = [article(draws) for _ in range(400)]
    assert (group_copies(sketch(documents)) == np.arange(400)).all()


def test_beyond_a_number_of_documents_only_equal_ones_are_kept_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = random.Random(6)
    articles = [article(draws, 30) for _ in range(300)]
    rows = [*articles, *(text + " more." for text in articles), *(text.upper() for text in articles)]
    documents = split_module.sketch(rows[:600]), split_module.sketch(rows[600:], compare=False)
    assert documents[1].bins.size == 0 and len(documents[1].keys) == 300
    together = Sketches(
        keys=np.concatenate([part.keys for part in documents]), bins=np.concatenate([part.bins for part in documents])
    )
    assert (group_copies(together) == np.tile(np.arange(300), 3)).all()
    monkeypatch.setattr(split_module, "MOST_SKETCHED", 0)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(text) + "\n" for text in rows))
    found = split_of(tmp_path / "a.jsonl")
    assert "of 900 documents for validation, 300 near-copies" in found.rule
    sides = [{"".join(filter(str.isalnum, text.lower())) for text in texts(part)} for part in (found.train, found.val)]
    assert sides[1] and not sides[0] & sides[1]


def test_sketches_do_not_depend_on_the_company_of_a_document() -> None:
    draws = random.Random(4)
    documents = [article(draws, n) for n in (1, 2, 5, 300, 20_000, 40)] + ["", "x", "漢字" * 30]
    together = sketch(documents)
    for i, text in enumerate(documents):
        alone = sketch([text])
        assert alone.keys[0] == together.keys[i] and (alone.bins[0] == together.bins[i]).all()


def test_short_documents_are_copies_only_where_their_letters_are_equal() -> None:
    groups = group_copies(sketch(["Yes.", "yes", "no", "NO!", "yes and no"]))
    assert groups.tolist() == [0, 0, 2, 2, 4]


def test_documents_of_marks_alone_are_compared_by_their_marks(tmp_path: Path) -> None:
    draws = random.Random(11)
    rows = ["".join(draws.choices("()[]{}<>", k=draws.randint(8, 40))) for _ in range(500)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(text) + "\n" for text in [*rows, f"{rows[0]}\n"]))
    found = split_of(tmp_path / "a.jsonl")
    assert found.revision == 3 and 0.08 < found.val.n_bytes / (found.val.n_bytes + found.train.n_bytes) <= 0.1
    assert found.rule.endswith("of 501 documents for validation, 1 near-copies kept on the side of their originals")


def test_a_few_long_documents_give_the_tail_of_each(tmp_path: Path) -> None:
    draws = random.Random(5)
    novels = [article(draws, 3000) for _ in range(3)]
    for i, text in enumerate(novels):
        (tmp_path / f"{i}.txt").write_text(text)
    (tmp_path / "copy.txt").write_text(novels[0].upper())
    found = split_of(tmp_path)
    train, val = texts(found.train), texts(found.val)
    assert len(train) == 3 and len(val) == 3
    for text, tail in zip(novels, val, strict=True):
        assert text.endswith(tail) and abs(len(tail) - len(text) / 10) < 2
        assert not any(tail.lower() in head.lower() for head in train)
    assert found.rule == "the last 10% of each of 3 documents for validation, 1 near-copy of them left out"
    assert found.revision == 2
    (tmp_path / "copy.txt").unlink()
    assert (again := split_of(tmp_path)).revision == 1 and texts(again.train) == train


@pytest.mark.parametrize(("most", "said"), [(2000, "4%"), (700, "1.4%"), (183, "0.37%")])
def test_a_share_of_less_than_a_tenth_is_said_with_two_digits(
    tmp_path: Path, monkeypatch, most: int, said: str
) -> None:
    draws = random.Random(6)
    for i in range(2):
        (tmp_path / f"{i}.txt").write_text(article(draws, 9000)[:25_000])
    monkeypatch.setattr("qkv.data.split.MOST_VAL_BYTES", most)
    assert split_of(tmp_path).rule == f"the last {said} of each of 2 documents for validation"


def test_of_near_copies_that_go_on_after_the_cut_the_longest_alone_is_used(tmp_path: Path) -> None:
    draws = random.Random(7)
    words = article(draws, 6000)
    (tmp_path / "a.txt").write_text(words[:20000])
    (tmp_path / "b.txt").write_text(words[:20000] + words[24000:32000])
    found = split_of(tmp_path)
    (train,), (val,) = texts(found.train), texts(found.val)
    assert train + val == (tmp_path / "b.txt").read_text() and len(val) == 2800
    assert found.rule == "the last 10% of the longest document for validation, 1 near-copy of it left out"


def test_short_documents_do_not_stand_for_a_long_one(tmp_path: Path) -> None:
    draws = random.Random(8)
    book, poems = article(draws, 15_000), [article(draws, 25) for _ in range(50)]
    for i, text in enumerate([book, *poems]):
        (tmp_path / f"{i:02}.txt").write_text(text)
    found = split_of(tmp_path)
    train, val = texts(found.train), texts(found.val)
    assert [head + tail for head, tail in zip(train, val, strict=True)] == [book, *poems]
    assert found.rule == "the last 10% of each of 51 documents for validation" and found.revision == 2


def test_a_corpus_that_was_split_otherwise_once_is_known_by_another_hash(tmp_path: Path) -> None:
    """So a run of before is refused in one sentence instead of going on with other text."""
    draws = random.Random(9)
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text(article(draws, 2000))
    plain = DataConfig(source=str(tmp_path), tokenizer="byte")
    assert load_corpus(plain, cache=None).sha256 == open_source(plain).sha256
    (tmp_path / "copy.txt").write_text((tmp_path / "0.txt").read_text())
    assert "1 near-copy of them left out" in load_corpus(plain, cache=None).describe()
    hashes = {load_corpus(plain, cache=cache).sha256 for cache in (None, tmp_path / ".kept", tmp_path / ".kept")}
    assert len(hashes) == 1 and hashes != {open_source(plain).sha256}


def test_the_end_of_a_text_is_read_without_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("漢字é😀x" * 400, encoding="utf-8")
    part = split_of(tmp_path / "t.txt").train
    whole = texts(part)[0]
    for n in (1, 10, 101, 5000):
        end = "".join(chunk.text for chunk in part.read_last(n))
        assert whole.endswith(end) and n <= len(end.encode()) <= max(n + 6, 0) or end == whole


def test_a_source_given_for_validation_is_taken_whole(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("to train on " * 10)
    (tmp_path / "v.txt").write_text("to measure on")
    train, val = (open_source(DataConfig(source=str(tmp_path / name))) for name in ("t.txt", "v.txt"))
    found = split_source(train, val)
    assert texts(found.train) == ["to train on " * 10] and texts(found.val) == ["to measure on"]


def test_a_single_document_or_a_tiny_text_cannot_be_split(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "only one"}\n{"text": ""}\n')
    with pytest.raises(SourceError, match="one document with text"):
        split_of(tmp_path / "a.jsonl")
    (tmp_path / "a.txt").write_text("hi\n")
    with pytest.raises(SourceError, match="3 bytes; too small"):
        split_of(tmp_path / "a.txt")


def test_bins_are_the_least_hashes_of_twelve_bytes_of_one_document() -> None:
    """Against the definition, letter by letter: running sums and batches change nothing."""
    base, draws = 0x9E3779B97F4A7C15, random.Random(10)
    mask, inverse = (1 << 64) - 1, pow(0x9E3779B97F4A7C15, -1, 1 << 64)

    def mixed(value: int) -> int:
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & mask
        value = (value ^ value >> 27) * 0x94D049BB133111EB & mask
        return value ^ value >> 31

    documents = [article(draws, n) for n in (0, 1, 2, 3, 40, 200)] + ["Abc, d", "x" * 11, "y" * 12]
    found = sketch(documents).bins
    for row, text in zip(found, documents, strict=True):
        letters = "".join(c for c in text.lower() if c.isalnum()).encode()
        least = [0xFFFFFFFF] * 16
        for i in range(len(letters) - 11):
            value = mixed(sum(letter * pow(base, j, 1 << 64) for j, letter in enumerate(letters[i : i + 12])) & mask)
            least[value >> 60] = min(least[value >> 60], value & 0xFFFFFFFE)
        assert row.tolist() == least
    assert inverse * base & mask == 1
