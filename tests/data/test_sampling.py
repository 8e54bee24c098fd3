"""What stands in place of a long training text, and that what is measured on stays whole."""

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from qkv.data.config import DataConfig
from qkv.data.corpus import load_corpus
from qkv.data.sources.sampling import held, sampled
from qkv.data.sources.source import open_source, open_validation
from qkv.data.split import split_source
from qkv.tokenizers.tokens import n_utf8


def words(draws: random.Random, n: int) -> str:
    return " ".join("".join(draws.choices("abcdefghijklmné", k=draws.randint(2, 9))) for _ in range(n))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, draws = tmp_path_factory.mktemp("rows") / "rows.jsonl.gz", random.Random(3)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": words(draws, draws.randint(20, 400))}) + "\n" for _ in range(400))
    return path


@pytest.fixture(scope="module")
def long_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "long.txt"
    path.write_text(words(random.Random(4), 600_000), encoding="utf-8")
    return path


def pieces(part) -> list[str]:
    return [chunk.text for chunk in part.read()]


def test_whole_documents_spread_over_the_text_are_taken(table: Path) -> None:
    whole = split_source(open_source(DataConfig(source=str(table))))
    some = sampled(whole, 100_000)
    documents, chosen = pieces(whole.train), pieces(some.train)
    places = [documents.index(text) for text in chosen]
    assert places == sorted(set(places)) and places[-1] > 0.9 * len(documents)
    assert some.train.n_bytes == sum(len(text.encode()) for text in chosen) == pytest.approx(100_000, rel=0.05)
    assert all(chunk.ends for chunk in some.train.read())
    assert "0.1 of 0.5 MB for training, in even pieces" in some.rule and some.rule.startswith(whole.rule)


def test_stretches_of_one_long_text_are_taken_and_no_word_is_cut(long_text: Path) -> None:
    whole = split_source(open_source(DataConfig(source=str(long_text))))
    some = sampled(whole, 300_000)
    text, chosen = "".join(pieces(whole.train)), pieces(some.train)
    places = [text.index(piece) for piece in chosen]
    assert len(chosen) > 2 and places == sorted(places) and places[-1] > len(text) / 2
    assert set("".join(chosen).split()) <= set(text.split())
    assert some.train.n_bytes == pytest.approx(300_000, rel=0.02)
    assert [chunk.ends for chunk in some.train.read()] == [False] * (len(chosen) - 1) + [True]


def test_what_is_measured_on_is_the_same_whole_part(table: Path, long_text: Path) -> None:
    for path in (table, long_text):
        whole = split_source(open_source(DataConfig(source=str(path))))
        some = sampled(whole, 100_000)
        assert pieces(some.val) == pieces(whole.val) and some.val.n_bytes == whole.val.n_bytes
        assert sampled(whole, 0) is whole and sampled(whole, 1 << 30) is whole


def test_a_corpus_of_a_part_is_the_same_with_a_cache_and_is_kept_apart(table: Path, tmp_path: Path) -> None:
    def corpus(train_bytes: int, cache: Path | None):
        config = DataConfig(source=str(table), tokenizer="bpe", vocab=300, train_bytes=train_bytes)
        return load_corpus(config, cache=cache)

    whole, some = corpus(0, tmp_path), corpus(60_000, tmp_path)
    assert len(some.train) < len(whole.train) / 3 and some.val.n_bytes == whole.val.n_bytes
    for again in (corpus(60_000, None), corpus(60_000, tmp_path), corpus(60_000, tmp_path)):
        assert (again.train.ids == some.train.ids).all() and (again.val.ids == some.val.ids).all()
        assert again.tokenizer.sha256 == some.tokenizer.sha256 and again.rule == some.rule
    assert sum(len(text.encode()) for text in some.text("train")) < 70_000  # each document's end mark among them


@pytest.mark.parametrize("mark", ["", "<|endoftext|>"])
def test_text_alone_is_counted_also_beside_a_source_for_validation(tmp_path: Path, mark: str) -> None:
    """A column that is not read, and marks between documents, are no text to train on."""
    draws, paths = random.Random(5), [tmp_path / f"{name}{'.txt' if mark else '.jsonl'}" for name in ("a", "b")]
    texts = [words(draws, 5) for _ in range(2000)]
    rows = [json.dumps({"text": text, "meta": "m" * 300}) + "\n" for text in texts]
    for path, n in zip(paths, (2000, 100), strict=True):
        path.write_text(mark.join(texts[:n]) if mark else "".join(rows[:n]), encoding="utf-8")
    config = DataConfig(source=str(paths[0]), val=str(paths[1]), tokenizer="byte", document_end=mark)
    both = split_source(open_source(config), open_validation(config))
    assert both.train.n_bytes == n_utf8(texts) and both.val.n_bytes == n_utf8(texts[:100])
    some = load_corpus(replace(config, train_bytes=20_000), cache=None)
    assert some.train.n_bytes == pytest.approx(20_000, rel=0.05)


def test_a_held_source_is_read_once_inside_and_from_its_files_after(table: Path) -> None:
    source, n_read = open_source(DataConfig(source=str(table))), 0
    plain = list(source.chunks())

    def counted(start: int, stop: int | None):
        nonlocal n_read
        n_read += 1
        return iter(plain)

    with held(replace(source, read=counted), 1 << 20) as quick:
        assert list(quick.chunks()) == list(quick.chunks()) == plain and n_read == 1
    assert list(quick.chunks()) == plain and n_read == 2
    with held(source, 10) as quick:
        assert quick is source
