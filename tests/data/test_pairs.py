"""Sentence pairs: reading, splitting, one vocabulary, and buckets that are pure functions of their number."""

import gzip

import numpy as np
import pytest

from qkv.data.baseline.dictionary import Dictionary, words
from qkv.data.buckets import bucket_edges, filled, n_buckets, train_bucket
from qkv.data.config import DataConfig, whole_source
from qkv.data.pairs import decode_line, encode_lines, line_of, load_pairs, split_pair
from qkv.errors import ConfigError, SourceError
from qkv.randomness import generator


def corpus_of(files, **settings):
    return load_pairs(DataConfig(source=":".join(map(str, files)), **settings))


@pytest.fixture(scope="module")
def corpus(small_pairs):
    return corpus_of(small_pairs)


def write(folder, left: str, right: str):
    (folder / "a.de").write_text(left, encoding="utf-8")
    (folder / "a.en").write_text(right, encoding="utf-8")
    return folder / "a.de", folder / "a.en"


def test_pairs_come_back_from_their_tokens_line_by_line(corpus):
    sources, targets = corpus.lines("train")
    assert len(sources) == len(targets) == len(corpus.train) == corpus.n_train
    end = corpus.tokenizer.end_id
    for i in (0, 7, len(sources) - 1):
        for side, lines in ((corpus.train.source, sources), (corpus.train.target, targets)):
            ids = side.document(i)
            assert ids[-1] == end and end not in ids[:-1]
            assert decode_line(corpus.tokenizer, ids) == lines[i]


def test_a_word_has_the_same_tokens_first_and_later_in_a_line(corpus):
    ids, lengths = encode_lines(corpus.tokenizer, ["Hund sieht Hund"])
    assert len(ids) == lengths[0]
    first, last = (ids[: (len(ids) - 2) // 2], ids[len(ids) - 1 - (len(ids) - 2) // 2 : -1])
    assert first.tolist() == last.tolist()


def test_a_line_is_read_as_training_read_it(corpus, tmp_path):
    texts = ["die\u00a0Katze", "zu  Hause", "\u3000der\tHund ", "x\r\x85 y\u2028z"]
    files = write(tmp_path, "".join(f"{text}\n" for text in texts * 9), "".join(f"b {i}\n" for i in range(36)))
    found = corpus_of(files, val=":".join(map(str, files)))
    assert found.lines("train")[0] == [text.strip() for text in texts] * 9 == [line_of(text) for text in texts] * 9
    assert line_of(" zwei\n \n  Zeilen\r\n") == "zwei Zeilen" and line_of(" \n") == ""


def test_a_tenth_is_held_out_and_equal_pairs_stay_on_one_side(corpus):
    seen = set(zip(*corpus.lines("train"), strict=True))
    held = list(zip(*corpus.lines("val"), strict=True))
    assert 30 <= len(held) <= 70 and len(corpus.train) + len(held) == 600
    assert not seen & set(held)


def test_a_pair_for_validation_is_taken_whole_and_gzip_reads_the_same(small_pairs, tmp_path):
    zipped = []
    for file in small_pairs:
        zipped.append(tmp_path / f"{file.name}.gz")
        zipped[-1].write_bytes(gzip.compress(file.read_bytes()))
    plain = corpus_of(small_pairs, val=":".join(map(str, small_pairs)))
    packed = corpus_of(zipped, val=":".join(map(str, small_pairs)))
    assert len(plain.train) == len(plain.val) == 600
    assert np.array_equal(plain.train.source.ids, packed.train.source.ids)
    assert plain.sha256 != packed.sha256  # of the files as they lie on disk
    for corpus in (plain, packed):
        assert "600 of its 600 validation pairs also stand in the training part" in corpus.describe()
    other = write(tmp_path, "ein Satz\n\n", "a sentence\nnone\n")
    corpus = corpus_of(small_pairs, val=":".join(map(str, other)))
    assert corpus.note == "1 pair with an empty side left out"


def test_the_vocabulary_is_fitted_to_both_sides_of_the_training_part_only(small_pairs, tmp_path):
    val = write(tmp_path, "zzqq zzqq\n" * 3, "xxyy xxyy\n" * 3)
    corpus = corpus_of(small_pairs, val=":".join(map(str, val)))
    known = corpus.tokenizer.vocabulary
    assert any("Katze" in token for token in known) and any("forest" in token for token in known)
    assert not any("zzqq" in token or "xxyy" in token for token in known)


def test_empty_sides_are_left_out_and_said(tmp_path):
    files = write(tmp_path, "eins\n\ndrei\r\n" * 20, "one\ntwo\n  \n" * 20)
    corpus = corpus_of(files, val=":".join(map(str, files)))
    assert len(corpus.train) == 20 and "80 pairs with an empty side left out" in corpus.describe()
    assert set(corpus.lines("val")[0]) == {"eins"}


def test_pairs_too_alike_to_hold_some_out_are_refused_and_none_is_cut(tmp_path):
    files = write(
        tmp_path, "das Haus ist klein und das Dorf ist weit\n" * 40, "the house is small, the village far\n" * 40
    )
    with pytest.raises(SourceError, match="the 40 pairs of .* too few or too alike to hold some out;.*--val"):
        corpus_of(files)
    assert len(corpus_of(files, val=":".join(map(str, files))).val) == 40


def test_only_line_feeds_end_lines(tmp_path):
    files = write(tmp_path, "eins\u2028zwei\x0cdrei\n" * 3, "one\none\none")
    corpus = corpus_of(files, val=":".join(map(str, files)))
    assert len(corpus.train) == 3


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ("a\n" * 30, "b\n" * 29, "has 30 lines and .* has 29; line i of one must be the translation"),
        ("a\n" * 30, "", "is empty; expected text"),
        ("a\nb\nc\n", "d\ne\nf\n", "at least 20 and 1 are needed"),
    ],
)
def test_files_that_are_no_pairs_are_refused_in_one_sentence(tmp_path, left, right, message):
    with pytest.raises(SourceError, match=message):
        corpus_of(write(tmp_path, left, right))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{de}", "is not a pair of files; translate needs two of equally many lines"),
        ("{de}:", "names one file; translate needs two"),
        ("{de}:{folder}/small.fr", "no file .*small.fr'; did you mean"),
        ("{de}:{folder}", "is a folder; translate needs two files"),
    ],
)
def test_a_source_that_is_no_pair_says_what_to_type(small_pairs, source, message):
    with pytest.raises(SourceError, match=message):
        load_pairs(DataConfig(source=source.format(de=small_pairs[0], folder=small_pairs[0].parent)))


def test_options_without_a_meaning_are_refused(small_pairs):
    with pytest.raises(SourceError, match="has no columns; leave --text-column out"):
        corpus_of(small_pairs, text_column="text")
    with pytest.raises(ConfigError, match="unknown tokenizer 'bpee'; did you mean 'bpe'"):
        corpus_of(small_pairs, tokenizer="bpee")


def test_a_colon_inside_a_name_is_no_cut(tmp_path):
    (tmp_path / "a:b").write_text("x\n")
    (tmp_path / "c").write_text("y\n")
    assert split_pair(f"{tmp_path}/a:b:{tmp_path}/c") == (tmp_path / "a:b", tmp_path / "c")


# buckets


def test_an_epoch_of_buckets_holds_every_pair_once_and_each_epoch_is_another(corpus):
    n = n_buckets(corpus.train, 64, 128)
    epochs = [[train_bucket(corpus.train, 64, 128, 3, e * n + i) for i in range(n)] for e in range(2)]
    for epoch in epochs:
        assert sorted(np.concatenate(epoch).tolist()) == list(range(len(corpus.train)))
    assert [b.tolist() for b in epochs[0]] != [b.tolist() for b in epochs[1]]
    first, second = ({frozenset(b.tolist()) for b in epoch} for epoch in epochs)
    assert len(first & second) < len(first) / 2  # pairs of one length change their neighbours


def test_a_bucket_is_a_pure_function_of_seed_and_number(corpus):
    later = train_bucket(corpus.train, 64, 128, 3, 41)
    for number in (90, 0, 7):
        train_bucket(corpus.train, 64, 128, 3, number)
    assert np.array_equal(train_bucket(corpus.train, 64, 128, 3, 41), later)
    others = [train_bucket(corpus.train, 64, 128, seed, 41) for seed in (4, 5, 6)]
    assert any(not np.array_equal(later, other) for other in others)


def test_buckets_hold_a_token_count_with_little_padding():
    rng = np.random.default_rng(0)
    source = rng.integers(4, 40, size=4000)
    target = np.maximum(3, source + rng.integers(-4, 5, size=4000))
    order, edges = bucket_edges(source, target, 512)
    assert sorted(order.tolist()) == list(range(4000))
    real = padded = 0
    for first, stop in zip(edges, edges[1:], strict=False):
        chosen = order[first:stop]
        width = max(source[chosen].max(), target[chosen].max())
        assert stop - first == 1 or width * (stop - first) <= 512
        real += source[chosen].sum() + target[chosen].sum()
        padded += (stop - first) * (source[chosen].max() + target[chosen].max())
    assert real / padded > 0.95


def test_pairs_longer_than_the_model_reads_are_in_no_bucket(corpus):
    longest = max(int(lengths.max()) for lengths in corpus.train.lengths())
    n = n_buckets(corpus.train, longest - 1, 128)
    found = np.concatenate([train_bucket(corpus.train, longest - 1, 128, 0, i) for i in range(n)])
    source, target = corpus.train.lengths()
    assert len(found) == int(((source < longest) & (target < longest)).sum()) < len(corpus.train)
    with pytest.raises(SourceError, match="no training pair has at most 2 tokens on both sides"):
        n_buckets(corpus.train, 2, 128)


def test_sequences_are_filled_on_the_right():
    ids, real = filled([np.array([1, 2]), np.array([3])], 9)
    assert ids.tolist() == [[1, 2], [3, 9]] and real.tolist() == [[True, True], [True, False]]


# the dictionary


def test_ibm_model_1_equals_its_formula_in_loops():
    sources = ["das Haus", "das Buch", "ein Buch", "das kleine Haus"]
    targets = ["the house", "the book", "a book", "the small house"]
    t: dict[tuple[str, str], float] = {}
    pairs = [(["", *words(s)], words(e)) for s, e in zip(sources, targets, strict=True)]
    for s, e in pairs:
        t |= {(a, b): 1.0 for a in s for b in e}
    for _ in range(5):
        count: dict[tuple[str, str], float] = dict.fromkeys(t, 0.0)
        for s, e in pairs:
            for b in e:
                whole = sum(t[a, b] for a in s)
                for a in s:
                    count[a, b] += t[a, b] / whole
        total = {a: sum(v for (x, _), v in count.items() if x == a) for a, _ in t}
        t = {(a, b): v / total[a] for (a, b), v in count.items()}
    dictionary = Dictionary(sources, targets)
    for word in ("das", "Haus", "Buch", "ein", "kleine"):
        best = max(v for (a, _), v in t.items() if a == word)
        assert t[word, dictionary.translate(word)] == pytest.approx(best, abs=1e-12)
    assert dictionary.translate("das kleine Buch zzz") == "the small book zzz"


# odd pairs


def test_one_long_pair_does_not_send_the_short_ones_to_validation(tmp_path):
    draws = generator("tests", "long pair")
    rows = [" ".join(draws.choice(list("abcdefghijklmnopqrstuvwxyz"), size=12)) for _ in range(120)]
    rows[60] = " ".join(draws.choice(list("abcdefghijklmnopqrstuvwxyz"), size=20_000))
    text = "".join(f"{row}\n" for row in rows)
    corpus = corpus_of(write(tmp_path, text, text))
    assert len(corpus.val) == 12 and len(corpus.train) == 108
    assert corpus.rule == "12 of 120 pairs for validation"
    even = corpus_of(write(tmp_path, text.replace(rows[60], rows[60][:23]), text.replace(rows[60], rows[60][:23])))
    assert len(even.val) == 12 and corpus.sha256 != even.sha256


def test_half_a_pair_is_told_as_that(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a\n", "b\n")
    for half in (":a.de", "a.de:"):
        with pytest.raises(SourceError, match="names one file; translate needs two"):
            split_pair(whole_source(half))


def test_a_table_of_pairs_is_told_how_to_become_two_files(tmp_path):
    table = tmp_path / "pairs.tsv"
    table.write_text("ein Hund\ta dog\n")
    with pytest.raises(SourceError, match="is not a pair of files; .*cut -f2 TABLE > right.txt"):
        split_pair(str(table))
