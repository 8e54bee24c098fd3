"""Baselines are what their parts give, are kept, and agree across units."""

import lzma
import math
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

from qkv.data.baseline.ngrams import ngram_losses
from qkv.data.baseline.text import baselines, expected_seconds
from qkv.data.config import DataConfig
from qkv.data.corpus import load_corpus

module = sys.modules["qkv.data.baseline.text"]  # the package's own name for it is the function


@pytest.fixture(scope="module")
def corpus(prose_file: Path):
    return load_corpus(DataConfig(source=str(prose_file), tokenizer="bpe", vocab=400), cache=None)


def test_they_are_what_counting_and_compressing_give(corpus) -> None:
    found = baselines(corpus)
    orders = [float(nats.mean()) for nats in ngram_losses(corpus.train.ids, corpus.val.ids, 400, 8)]
    assert found.orders == pytest.approx(orders[: len(found.orders)])
    assert found.unigram == found.orders[0] and found.bigram == found.orders[1]
    assert found.ngram == min(found.orders) == found.orders[found.ngram_order - 1]
    train, val = ("".join(corpus.text(part)).encode() for part in ("train", "val"))
    bits = 8 * (len(lzma.compress(train + val, preset=6)) - len(lzma.compress(train, preset=6)))
    assert found.bits_per_byte["xz"] == pytest.approx(bits / len(val))
    assert found.xz == pytest.approx(bits * math.log(2) / len(corpus.val))
    assert found.note == ""
    best = list(ngram_losses(corpus.train.ids, corpus.val.ids, 400, 8))[found.ngram_order - 1]
    np.testing.assert_array_equal(found.by_token, best.astype(np.float32))
    assert "by_token" not in found.facts and len(best) == len(corpus.val) - 1


def test_both_units_tell_the_same(corpus) -> None:
    found = baselines(corpus)
    for name in ("unigram", "bigram", "ngram"):
        assert found.bits_per_byte[name] == pytest.approx(corpus.bits_per_byte(getattr(found, name)))
    assert found.bits_per_byte["ngram_order"] == found.ngram_order
    assert corpus.bits_per_byte(found.xz) == pytest.approx(found.bits_per_byte["xz"])


def test_the_ends_of_documents_are_coded_and_are_no_bytes_of_the_text(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    words = [" ".join(draws.choice(["sea", "king", "cat", "mat", "sat"], 2)) + f" {i}" for i in range(900)]
    (tmp_path / "short.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in words))
    corpus = load_corpus(DataConfig(source=str(tmp_path / "short.jsonl"), tokenizer="byte"), cache=None)
    found = baselines(corpus)
    train, val = ("".join(corpus.text(part)).encode() for part in ("train", "val"))
    bits = 8 * (len(lzma.compress(train + val, preset=6)) - len(lzma.compress(train, preset=6)))
    assert len(val) == corpus.val.n_bytes + corpus.val.n_documents > 1.05 * corpus.val.n_bytes
    assert found.bits_per_byte["xz"] == pytest.approx(bits / corpus.val.n_bytes)
    assert found.xz == pytest.approx(bits * math.log(2) / len(corpus.val))


def test_the_search_ends_after_two_orders_that_do_worse(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    (tmp_path / "noise.txt").write_text("".join(draws.choice(list("abcdef"), 8000)))
    found = baselines(load_corpus(DataConfig(source=str(tmp_path / "noise.txt"), tokenizer="char"), cache=None))
    assert len(found.orders) < 8 and found.ngram_order <= 2
    assert found.unigram == pytest.approx(math.log(6), abs=0.01)


def test_they_are_kept_and_read_again(corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = baselines(corpus, tmp_path)

    def never(*_: object) -> None:
        raise AssertionError("counted again")

    monkeypatch.setattr(module, "ngram_losses", never)
    again = baselines(corpus, tmp_path)
    assert again == first and again.by_token.tobytes() == first.by_token.tobytes()
    with pytest.raises(AssertionError, match="counted again"):
        baselines(corpus, tmp_path / "elsewhere")


def test_long_texts_are_sampled_and_say_so(corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MOST_COUNTED", 6400), ("MOST_SCORED", 500), ("XZ_WINDOW", 2000)):
        monkeypatch.setattr(module, name, value)
    found = baselines(corpus)
    assert (
        "counted on 6,400 of" in found.note
        and "first 500 validation" in found.note
        and "last 2,000 bytes" in found.note
        and "xz measured on the first 2,000 bytes of the validation text" in found.note
    )
    whole = module.spread(np.arange(100_000), 6400)
    assert len(whole) == 6400 and whole[0] == 0 and whole[-1] == 99_999 and (np.diff(whole) > 0).all()


def test_xz_is_given_the_last_bytes_of_training_and_the_first_of_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of many rows, which are gathered in a time that grows with their number, not with its square."""
    rows = [f"é{i:0160d}" for i in range(30_000)]
    text = "".join(rows).encode()
    monkeypatch.setattr(module, "XZ_WINDOW", 2_000_000)
    for pieces in (["".join(rows)], rows):
        began = time.process_time()
        found = module._texts(types.SimpleNamespace(text=lambda part, last_bytes=None, pieces=pieces: iter(pieces)))
        assert time.process_time() - began < 0.5
        assert found == (text[-2_000_000:], text[:2_000_000])


def test_tinyshakespeare_has_its_known_figures(tinyshakespeare: Path, tmp_path: Path) -> None:
    corpus = load_corpus(DataConfig(source=str(tinyshakespeare), tokenizer="char"), cache=tmp_path)
    found = baselines(corpus, tmp_path)
    assert (corpus.tokenizer.d_vocab, len(corpus.train), len(corpus.val)) == (66, 1003854, 111540)
    assert found.ngram_order == 6 and found.ngram == pytest.approx(1.558, abs=0.003)
    assert found.unigram == pytest.approx(3.347, abs=0.002) and found.bigram == pytest.approx(2.484, abs=0.002)
    assert found.bits_per_byte["xz"] == pytest.approx(2.516, abs=0.01)


def test_what_is_kept_takes_no_time_and_what_is_not_takes_it_by_its_size(corpus, tmp_path: Path) -> None:
    text = corpus.train.n_bytes + corpus.val.n_bytes
    assert expected_seconds(corpus, None) == expected_seconds(corpus, tmp_path) >= 0.85e-6 * text
    baselines(corpus, tmp_path)
    assert expected_seconds(corpus, tmp_path) == 0.0
