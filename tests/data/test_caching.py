"""What is kept between runs is what was written, by the code that reads it, or it is made anew."""

from pathlib import Path

import pytest

from qkv.data import caching
from qkv.data.baseline.text import baselines
from qkv.data.caching import cache_key, read_cached, write_cached
from qkv.data.config import DataConfig
from qkv.data.corpus import joined_hash, load_corpus
from qkv.data.sources.default_corpus import default_documents


def test_a_file_that_was_altered_or_cut_off_is_none(tmp_path: Path) -> None:
    write_cached(tmp_path, "a/b.json", b"[1, 2]\n[3]")
    assert read_cached(tmp_path, "a/b.json") == b"[1, 2]\n[3]"
    whole = (tmp_path / "a" / "b.json").read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[:-1], whole.replace(b"2", b"4"), bytes(len(whole))):
        (tmp_path / "a" / "b.json").write_bytes(damaged)
        assert read_cached(tmp_path, "a/b.json") is None


def test_damaged_tokenizers_baselines_and_documents_are_made_anew(prose_file: Path, tmp_path: Path) -> None:
    config = DataConfig(source=str(prose_file), tokenizer="word")

    def made() -> tuple[str, object, list[str]]:
        corpus = load_corpus(config, cache=tmp_path)
        return corpus.tokenizer.to_json(), baselines(corpus, tmp_path), default_documents(tmp_path)

    first = made()
    kept = [path for name in ("tokenizers", "baselines", "default-corpus") for path in (tmp_path / name).iterdir()]
    assert len(kept) == 4  # the n-gram too keeps its losses by window
    for damaged in (b"", kept[0].read_bytes()[:100]):
        for path in kept:
            path.write_bytes(damaged)
        assert made() == first


def test_names_change_with_the_code_and_hashes_of_data_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_key("a", 1)
    assert before == cache_key("a", "1") != cache_key("a", "2")
    monkeypatch.setattr(caching, "_code", lambda: "other code")
    assert cache_key("a", 1) != before
    assert joined_hash("a", "b") == "5aa56b50c0873e9f2fe036ccd49eff0821dabda069755f82a660dee8da7af86c"
