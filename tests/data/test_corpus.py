"""A corpus in memory, from the cache and mapped from files is the same, and its bits per byte are honest."""

import contextlib
import dataclasses
import gzip
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from qkv.data import corpus as corpus_module
from qkv.data import tokenizing
from qkv.data.config import DataConfig
from qkv.data.corpus import Corpus, load_corpus
from qkv.data.sources.source import Chunk
from qkv.data.tokenizing import whole_words
from qkv.errors import ConfigError, SourceError, StorageError
from qkv.tokenizers.lossy_charge import charge_nats
from qkv.tokenizers.tokenizer import KINDS, fit_tokenizer

SIZES = {"char": 0, "byte": 0, "word": 300, "bpe": 420, "wordpiece": 200, "unigram": 200}


def config(path: Path, kind: str = "char", **more: object) -> DataConfig:
    return DataConfig(source=str(path), tokenizer=kind, vocab=SIZES.get(kind, 0), **more)  # type: ignore[arg-type]


def same(a: Corpus, b: Corpus) -> bool:
    return all(
        (x.ids == y.ids).all()
        and (x.offsets == y.offsets).all()
        and x.n_bytes == y.n_bytes
        and x.n_unknown == y.n_unknown
        for x, y in ((a.train, b.train), (a.val, b.val))
    ) and (a.tokenizer.sha256, a.sha256, a.rule, a.charge_nats) == (b.tokenizer.sha256, b.sha256, b.rule, b.charge_nats)


@pytest.fixture(scope="module")
def table_file(prose: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prose as a table of documents."""
    path = tmp_path_factory.mktemp("table") / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": line, "n": 1}) + "\n" for line in prose.splitlines()))
    return path


def test_tokens_are_the_text(prose: str, prose_file: Path) -> None:
    corpus = load_corpus(config(prose_file), cache=None)
    data = prose.encode()
    assert corpus.train.n_bytes + corpus.val.n_bytes == len(data)
    text = corpus.tokenizer.decode(np.concatenate([corpus.train.ids, corpus.val.ids]))
    assert text == prose
    assert corpus.train.ids.dtype == np.uint8 and corpus.train.n_documents == 1
    assert "".join(corpus.text("train")) + "".join(corpus.text("val")) == prose
    assert corpus.charge_nats == 0.0 and corpus.train.n_unknown == 0
    assert (corpus.name, corpus.kind) == ("prose", "text")


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_is_fitted_to_the_training_part_only(tmp_path: Path, kind: str) -> None:
    (tmp_path / "t.txt").write_text("plain old words here " * 200 + "ÜÖÄ unheard-of " * 15)
    corpus = load_corpus(config(tmp_path / "t.txt", kind), cache=None)
    expected = fit_tokenizer(kind, list(corpus.text("train")), SIZES[kind])
    assert corpus.tokenizer.sha256 == expected.sha256
    if kind not in ("byte", "bpe"):  # whose alphabet is all bytes
        assert "Ü" not in "".join(corpus.tokenizer.vocabulary)
    assert (corpus.val.n_unknown > 0) == (kind not in ("byte", "bpe"))


@pytest.mark.parametrize("kind", KINDS)
def test_kept_and_mapped_corpora_equal_the_one_made_in_memory(
    table_file: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = load_corpus(config(table_file, kind), cache=None)
    assert same(load_corpus(config(table_file, kind), cache=tmp_path), made)
    assert same(load_corpus(config(table_file, kind), cache=tmp_path), made)
    monkeypatch.setattr(corpus_module, "IN_MEMORY_BYTES", 1000)
    cache = tmp_path / "mapped"
    first = load_corpus(config(table_file, kind), cache=cache)
    assert same(first, made) and same(load_corpus(config(table_file, kind), cache=cache), made)
    assert isinstance(first.train.ids.base, np.memmap) and not first.train.ids.flags.writeable
    assert not [path for path in cache.rglob(".tmp-*")]


def test_documents_are_marked_by_end_tokens(table_file: Path) -> None:
    for specials in (False, True):
        corpus = load_corpus(config(table_file, "bpe"), cache=None, task_specials=specials)
        assert corpus.tokenizer.end_id == corpus.tokenizer.special["[SEP]" if specials else "[END]"]
        for part in (corpus.train, corpus.val):
            assert part.n_documents > 50
            assert (part.ids[part.offsets[1:] - 1] == corpus.tokenizer.end_id).all()
            assert (part.ids == corpus.tokenizer.end_id).sum() == part.n_documents
        document = corpus.tokenizer.decode(corpus.val.document(3))
        assert document in table_file.read_text() or json.dumps(document)[1:-1] in table_file.read_text()


def test_a_tokenizer_that_is_read_never_grows_for_an_end_mark(table_file: Path, prose: str, tmp_path: Path) -> None:
    plain = fit_tokenizer("char", [prose])
    plain.save(tmp_path / "tokenizer.json")
    corpus = load_corpus(config(table_file, str(tmp_path)), cache=None)
    assert corpus.tokenizer.d_vocab == plain.d_vocab and corpus.tokenizer.end_id is None
    assert (corpus.val.ids[corpus.val.offsets[1:] - 1] == plain.vocabulary["\n"]).all()


def test_a_broken_cache_is_made_anew(prose_file: Path, tmp_path: Path) -> None:
    made = load_corpus(config(prose_file, "bpe"), cache=tmp_path)
    folder = next((tmp_path / "tokens").iterdir())
    for name, content in (("train.ids", b"\0"), ("facts.json", b"{"), ("val.offsets", b"")):
        (folder / name).write_bytes(content)
        assert same(load_corpus(config(prose_file, "bpe"), cache=tmp_path), made)
        assert same(load_corpus(config(prose_file, "bpe"), cache=tmp_path), made)
    (folder / "facts.json").unlink()
    assert same(load_corpus(config(prose_file, "bpe"), cache=tmp_path), made)


def test_a_cache_that_cannot_be_written_is_as_good_as_none(prose_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert same(
        load_corpus(config(prose_file, "bpe"), cache=tmp_path / "file"),
        load_corpus(config(prose_file, "bpe"), cache=None),
    )


def test_a_large_text_without_room_in_the_cache_is_a_storage_error(
    prose_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "IN_MEMORY_BYTES", 1000)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match="cannot be kept in"):
        load_corpus(config(prose_file), cache=tmp_path / "file")
    with pytest.raises(StorageError, match="need a cache folder"):
        load_corpus(config(prose_file), cache=None)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_full_disk_is_a_storage_error_and_leaves_nothing_that_is_taken_for_whole(
    prose_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "IN_MEMORY_BYTES", 1000)
    noted = tokenizing._note

    def into_full(*given: object) -> None:
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(b"x")

    monkeypatch.setattr(tokenizing, "_note", into_full)
    with pytest.raises(StorageError, match="No space left"):
        load_corpus(config(prose_file), cache=tmp_path)
    assert {path.name[:6] for path in (tmp_path / "tokens").iterdir()} <= {".part-", ".lock-"}
    monkeypatch.setattr(tokenizing, "_note", noted)
    assert same(
        load_corpus(config(prose_file), cache=tmp_path), load_corpus(config(prose_file), cache=tmp_path / "new")
    )


def test_what_is_asked_changes_what_is_kept(table_file: Path, prose_file: Path, tmp_path: Path) -> None:
    a = load_corpus(config(table_file, "bpe"), cache=tmp_path)
    b = load_corpus(DataConfig(source=str(table_file), tokenizer="bpe", vocab=300), cache=tmp_path)
    c = load_corpus(config(prose_file, "bpe"), cache=tmp_path)
    d = load_corpus(config(table_file, "bpe", val=str(prose_file)), cache=tmp_path)
    assert len({x.tokenizer.sha256 for x in (a, b, c, d)}) == 4
    assert len({len(x.train) for x in (a, b, c, d)}) == 4
    assert d.sha256 != a.sha256 and d.val.n_documents == 1


@pytest.mark.parametrize("side", ["source", "val"])
def test_a_table_renamed_is_read_anew(tmp_path: Path, side: str) -> None:
    """The same bytes are other texts as CSV, where quotes are no text, than as TSV, and the cache keeps them apart."""
    rows = "text\n" + "".join(f'"number {i} is {i * i}"\n' for i in range(60))
    for name in ("reviews.csv", "reviews.tsv"):
        (tmp_path / name).write_text(rows)
    other = tmp_path / "other.jsonl"
    other.write_text("".join(f'"this is {i}"\n' for i in range(60)))
    found = []
    for cache in (tmp_path / "kept", None):
        for name in ("reviews.csv", "reviews.tsv"):
            source, val = (tmp_path / name, other) if side == "source" else (other, tmp_path / name)
            found.append(load_corpus(config(source, "bpe", val=str(val)), cache=cache))
    ids = [(corpus.train.ids.tolist(), corpus.val.ids.tolist()) for corpus in found]
    assert ids[:2] == ids[2:] and ids[0] != ids[1]


def test_progress_reaches_the_end(prose_file: Path) -> None:
    told: list[tuple[str, float]] = []
    load_corpus(config(prose_file), cache=None, progress=lambda what, share: told.append((what, share)))
    assert told[0] == ("fitting char vocabulary", 0.0)
    assert told[-1][0] == "tokenising" and 0.9 < told[-1][1] <= 1.0


def test_a_text_too_small_for_two_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a" * 30)
    (tmp_path / "v.txt").write_text("a")
    with pytest.raises(SourceError, match="held out for validation is 1 token long"):
        load_corpus(config(tmp_path / "t.txt", val=str(tmp_path / "v.txt")), cache=None)


def test_an_unknown_tokenizer_is_refused_with_the_kinds(prose_file: Path) -> None:
    with pytest.raises(ConfigError, match="unknown tokenizer 'nonsense'.*char, byte, word"):
        load_corpus(config(prose_file, "nonsense"), cache=None)
    with pytest.raises(SourceError, match="no tokenizer kind, file or folder './nowhere'|nowhere"):
        load_corpus(config(prose_file, "./nowhere"), cache=None)


def test_a_vocabulary_for_a_tokenizer_that_is_read_is_refused(prose_file: Path, tmp_path: Path, prose: str) -> None:
    fit_tokenizer("char", [prose]).save(tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match="no effect"):
        load_corpus(DataConfig(source=str(prose_file), tokenizer=str(tmp_path), vocab=100), cache=None)
    read = load_corpus(config(prose_file, str(tmp_path)), cache=None)
    assert read.tokenizer.kind == "char"


# Bits per byte.


def test_words_are_counted_whole_wherever_the_text_is_read_in_pieces(prose_file: Path) -> None:
    corpus = load_corpus(config(prose_file, "byte"), cache=None)
    text = "".join(corpus.text("val"))
    assert corpus.n_words() == len(text.split()) + text.count("\n") > 0
    for size in (1, 2, 7):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        cut = dataclasses.replace(corpus)
        object.__setattr__(cut, "text", lambda part, pieces=pieces: iter([*pieces[:3], "", *pieces[3:]]))
        assert cut.n_words() == corpus.n_words()


def test_the_end_of_a_document_ends_a_word_and_is_none(tmp_path: Path) -> None:
    rows = ["one two", "three", " four five ", "six\nseven"]
    (tmp_path / "v.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = load_corpus(config(tmp_path / "v.jsonl", "byte", val=str(tmp_path / "v.jsonl")), cache=None)
    assert "".join(corpus.text("val")).count("\0") == 4
    assert corpus.n_words() == 7 + 1


def test_bits_per_byte_divide_by_the_original_bytes(prose_file: Path) -> None:
    for kind in ("char", "byte", "bpe"):
        corpus = load_corpus(config(prose_file, kind), cache=None)
        assert corpus.bits_per_byte(2.0) == pytest.approx(2.0 * len(corpus.val) / math.log(2) / corpus.val.n_bytes)
    assert load_corpus(config(prose_file, "byte"), cache=None).bits_per_byte(math.log(2)) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["word", "wordpiece", "unigram", "char"])
def test_what_is_thrown_away_is_charged(tmp_path: Path, prose: str, kind: str) -> None:
    (tmp_path / "t.txt").write_text(prose + "漢字 unheard\t\tof " * 9)
    corpus = load_corpus(config(tmp_path / "t.txt", kind), cache=None)
    assert corpus.charge_nats is not None and corpus.charge_nats > 0
    free = (2.0 * len(corpus.val)) / math.log(2) / corpus.val.n_bytes
    assert corpus.bits_per_byte(2.0) == pytest.approx(free + corpus.charge_nats / math.log(2) / corpus.val.n_bytes)


def test_what_is_thrown_away_is_not_charged_by_counts_of_the_text_itself(tmp_path: Path, prose_file: Path) -> None:
    word = load_corpus(config(prose_file, "word"), cache=None)
    word.tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "other.txt").write_text("Other words, in  another\tspacing. " * 40)
    other, kept = tmp_path / "other.txt", str(tmp_path)
    again = load_corpus(config(other, kept, val=str(other)), cache=None)
    assert again.charge_nats is None and again.bits_per_byte(2.0) is None
    assert "cannot be counted on the text itself" in again.uncharged
    honest = load_corpus(config(prose_file, kept, val=str(other)), cache=None)
    assert honest.charge_nats is not None and honest.charge_nats > 0 and honest.uncharged == ""
    lossless = load_corpus(config(other, "byte", val=str(other)), cache=None)
    assert lossless.charge_nats == 0.0


@pytest.mark.parametrize("kept", [False, True])
def test_an_unknown_character_of_another_text_is_charged_as_plain_bytes(
    tmp_path: Path, prose: str, prose_file: Path, kept: bool
) -> None:
    """The text of a run may be gone, so nothing is counted: each byte and the end cost ln 257."""
    load_corpus(config(prose_file, "char"), cache=None).tokenizer.save(tmp_path / "tokenizer.json")
    other = tmp_path / "other.txt"
    other.write_text(prose[:2000] + "漢ж")
    cache = tmp_path / "cache" if kept else None
    for _ in range(2):
        found = load_corpus(config(other, str(tmp_path / "tokenizer.json"), val=str(other)), cache=cache)
        assert found.val.n_unknown == 2 and found.uncharged == ""
        assert found.charge_nats == pytest.approx((3 + 1 + 2 + 1) * math.log(257))
        expected = (2.0 * len(found.val) + found.charge_nats) / math.log(2) / len(other.read_bytes())
        assert found.bits_per_byte(2.0) == pytest.approx(expected)


def test_a_text_that_is_measured_on_itself_says_so(prose_file: Path) -> None:
    assert (
        "the very text that it is trained on"
        in load_corpus(config(prose_file, val=str(prose_file)), cache=None).describe()
    )
    assert "very text" not in load_corpus(config(prose_file), cache=None).describe()


def test_a_gzipped_copy_is_the_very_text(prose: str, prose_file: Path, table_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for i, half in enumerate((prose[:20_000], prose[20_000:])):
        (folder / f"{i}.txt").write_text(half)
    for path in (prose_file, table_file):
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "zipped").mkdir()
    for path in folder.iterdir():
        (tmp_path / "zipped" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    for source, copy in (
        (prose_file, tmp_path / f"{prose_file.name}.gz"),
        (table_file, tmp_path / f"{table_file.name}.gz"),
        (folder, tmp_path / "zipped"),
    ):
        assert "the very text that it is trained on" in load_corpus(config(source, val=str(copy)), cache=None).note
    assert "very text" not in load_corpus(config(prose_file, val=str(folder)), cache=None).note


def test_a_replacement_character_that_the_vocabulary_lacks_is_charged(prose: str, tmp_path: Path) -> None:
    """Decoded, [UNK] looks like it; training and validation lack it and have it."""
    (tmp_path / "a.txt").write_text(prose)
    (tmp_path / "b.txt").write_text(prose[:100] + "\ufffd" * 20)
    found = load_corpus(config(tmp_path / "a.txt", val=str(tmp_path / "b.txt")), cache=None)
    assert found.val.n_unknown == 20 and found.charge_nats is not None and found.charge_nats > 20


def test_the_charge_is_a_code_that_cannot_be_cheated(prose: str) -> None:
    """Shares of all gaps between two words, and of all strings, sum to at most one."""
    word = fit_tokenizer("word", [prose], 100)
    known = [token for token in word.vocabulary if token.isalpha() and token.isascii()][:2]
    counted = [prose[:20_000]]

    def nats(text: str) -> float:
        found = charge_nats(word, counted, [text])
        assert found is not None
        return found

    before, after = known
    base = nats(f"{before}") / 2  # an edge on either side, nothing at it
    gaps = [" ", "  ", "\n", "\n\n", "\t", " \n", "\r\n", " \n\n", "   "]
    total = sum(math.exp(-(nats(f"{before}{gap}{after}") - 2 * base)) for gap in gaps)
    assert 0.5 < total <= 1.0


def test_a_tokenizer_that_changes_letters_has_no_bits_per_byte(tmp_path: Path, prose: str, prose_file: Path) -> None:
    letters = sorted({c for c in prose.lower() if not c.isspace()})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters)]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    corpus = load_corpus(config(prose_file, str(tmp_path)), cache=None)
    assert corpus.charge_nats is None and corpus.bits_per_byte(2.0) is None
    assert "changes letters" in corpus.uncharged


# Large texts.


def test_cuts_inside_a_document_fall_where_a_word_begins() -> None:
    text = "the quick brown fox, it's 42!\n\njumps  over \n the lazy dog\nand on " * 40
    for size in (1, 7, 50, 333):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        chunks = [Chunk(piece, i == len(pieces) - 1) for i, piece in enumerate(pieces)]
        found = list(whole_words(chunks))
        assert "".join(chunk.text for chunk in found) == text and found[-1].ends
        assert len(found) > 3 or size > 300
        for chunk in found[1:]:
            assert chunk.text[0] != "\n" and (chunk.text[0] != " " or chunk.text[1] not in " \n")


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_do_not_depend_on_where_the_stream_was_cut(
    kind: str, prose: str, prose_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load_corpus(config(prose_file, kind), cache=None)
    from qkv.data import tokenizing
    from qkv.data.sources import reading

    monkeypatch.setattr(reading.read_text, "__defaults__", (0, None, 1000, None))
    monkeypatch.setattr(tokenizing, "_BATCH_CHARS", 3000)
    again = load_corpus(config(prose_file, kind), cache=None)
    assert again.charge_nats == pytest.approx(whole.charge_nats, rel=0.01)  # a cut hides the gap that it falls into
    assert same(dataclasses.replace(again, charge_nats=whole.charge_nats), whole)


MEMORY = """
import sys
import time
from pathlib import Path
from qkv.data import corpus, config
corpus.IN_MEMORY_BYTES = 1 << 20
found = corpus.load_corpus(config.DataConfig(source=sys.argv[1], tokenizer=sys.argv[2]), cache=Path(sys.argv[3]))
print(len(found.train))
"""


def peak_of(process: "subprocess.Popen[str]") -> float:
    """The most memory, in MiB, that a process has of its own until it ends; pages of mapped files are nobody's."""
    most = 0
    while process.poll() is None:
        with contextlib.suppress(OSError, IndexError):
            most = max(most, int(Path(f"/proc/{process.pid}/status").read_text().split("RssAnon:")[1].split()[0]))
        time.sleep(0.005)
    return most / 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RssAnon stands in /proc of Linux only")
@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_memory_does_not_grow_with_the_text(kind: str, prose: str, tmp_path: Path) -> None:
    peaks = []
    for copies in (420, 1050):  # 24 and 60 MB: both are more than what waits for busy processes at a time
        path = tmp_path / f"{copies}.txt"
        with open(path, "w", encoding="utf-8") as file:
            for _ in range(copies):
                file.write(prose)
        command = [sys.executable, "-c", MEMORY, str(path), kind, str(tmp_path / "cache")]
        gives_back = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # what is freed, at once
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **gives_back}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            peaks.append(peak_of(process))
            assert process.stdout is not None and int(process.stdout.read()) > 5_000 * copies
    assert 20 < peaks[0] and peaks[1] - peaks[0] < 12, f"{peaks} MiB"  # the ids alone would be 20 more


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "unigram", "wordpiece", "word"])
def test_every_tokenizer_is_measured_on_the_same_bytes(small_text, kind):
    from qkv.data.corpus import measured_on

    whole = load_corpus(DataConfig(source=str(small_text), tokenizer=kind), cache=None, task_specials=True)
    part = measured_on(whole, 1000)
    text = "".join(part.text("val"))
    assert "".join(whole.text("val")).startswith(text) and 980 < len(text) <= 1000
    assert part.val.n_bytes == len(text.encode()) and len(part.val) == len(part.tokenizer.encode(text))
    assert part.train is whole.train and measured_on(whole, 10**6) is whole
    if whole.tokenizer.is_lossless(text):
        assert part.charge_nats == 0.0 and part.tokenizer.decode(part.val.ids) == text
    else:
        assert 0 < part.charge_nats < whole.charge_nats
        assert part.charge_nats == pytest.approx(charge_nats(whole.tokenizer, whole.text("train"), [text]))
    bits = (2.0 * len(part.val) + part.charge_nats) / math.log(2) / len(text.encode())
    assert part.bits_per_byte(2.0) == pytest.approx(bits)


def test_documents_that_are_measured_on_keep_their_ends(tmp_path):
    from qkv.data.corpus import measured_on

    path = tmp_path / "texts.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"text number {i} of some words about {i * i}"}) + "\n" for i in range(400))
    )
    whole = load_corpus(DataConfig(source=str(path), tokenizer="bpe"), cache=None)
    part = measured_on(whole, 500)
    assert 1 < part.val.n_documents < whole.val.n_documents and part.val.n_bytes <= 500
    n = len(part.val.document(0))
    assert (part.val.document(0) == whole.val.ids[:n]).all() and part.val.document(1)[-1] == whole.val.document(1)[-1]
