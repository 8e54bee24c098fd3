"""Tokenizers give the library's ids, give texts back, and do not depend on the process that fits them."""

import hashlib
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenizers
from qkv.errors import ConfigError, SourceError
from qkv.tokenizers.encoding import (
    BYTE_LEVEL,
    METASPACE,
    WORDS,
    WORDS_AND_MARKS,
    HfCodec,
    UnitCodec,
    ascii_words,
    splitting_of,
)
from qkv.tokenizers.pretrained import is_nested, read_tokenizer
from qkv.tokenizers.tokenizer import KINDS, Tokenizer, fit_tokenizer, load_tokenizer, vocabulary_law

SIZES = {"char": 0, "byte": 0, "word": 300, "bpe": 420, "wordpiece": 200, "unigram": 200}
ANY_TEXT = st.text(st.characters(blacklist_categories=("Cs",)), max_size=80)
LIKELY_TEXT = st.lists(
    st.sampled_from(
        [
            "ka",
            "the",
            " ",
            "  ",
            "\n",
            "\n\n",
            "\t",
            "'s",
            "it's",
            "7",
            "1984",
            "_",
            "é",
            "ß",
            "[MASK]",
            "[UNK]",
            ".",
            "...",
            "<",
            "漢",
        ]
        + [
            "\r\n",
            "\x1c",
            "\u2028",
            "\u00a0",
            "\u2581",
            "Ġ",
            "##ka",
            "e\u0301",
            "\x0b",
            "\x7f",
            "lor",
            "A",
            "-",
            " \n ",
            "\u3000",
        ]
    ),
    max_size=25,
).map("".join)


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, prose: str) -> Tokenizer:
    """A tokenizer of each kind, fitted to the prose, with the special tokens of masked tasks."""
    return fit_tokenizer(request.param, [prose], SIZES[request.param], specials=True)


@pytest.fixture(scope="module")
def plain_tokenizers(prose: str) -> dict[str, Tokenizer]:
    """The same without these special tokens."""
    return {kind: fit_tokenizer(kind, [prose], SIZES[kind]) for kind in KINDS}


MATCHED = ["C++", "<user>", "covid-19", "New York", "ü"]


@pytest.fixture(scope="module", params=KINDS)
def added(request: pytest.FixtureRequest, plain_tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    """One of each kind to which somebody added tokens that are not special."""
    hf = tokenizers.Tokenizer.from_str(plain_tokenizers[request.param].to_json())
    hf.add_tokens(MATCHED)
    return Tokenizer.from_json(hf.to_str())


def library(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """What its tokenizer.json gives in the hands of the library."""
    read = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    read.encode_special_tokens = True
    return read


@settings(deadline=None, max_examples=60)
@given(text=ANY_TEXT | LIKELY_TEXT)
def test_ids_are_those_of_the_written_tokenizer_json(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text).tolist() == library(tokenizer).encode(text, add_special_tokens=False).ids


def test_ids_of_a_long_text_are_those_of_the_library(tokenizer: Tokenizer, prose: str) -> None:
    text = prose[:20_000]
    found = tokenizer.encode(text)
    assert found.dtype == np.int64 and found.min() >= 0 and found.max() < tokenizer.d_vocab
    assert found.tolist() == library(tokenizer).encode(text, add_special_tokens=False).ids
    ids, lengths = tokenizer.encode_many([text[:500], "", text[500:777]])
    assert lengths.tolist() == [len(tokenizer.encode(t)) for t in (text[:500], "", text[500:777])]
    assert ids[: lengths[0]].tolist() == tokenizer.encode(text[:500]).tolist()


@settings(deadline=None, max_examples=100)
@given(text=ANY_TEXT | LIKELY_TEXT)
def test_bytes_and_byte_pairs_give_every_text_back(plain_tokenizers: dict[str, Tokenizer], text: str) -> None:
    for kind in ("byte", "bpe"):
        assert plain_tokenizers[kind].always_lossless
        assert plain_tokenizers[kind].decode(plain_tokenizers[kind].encode(text)) == text
    for kind in ("char", "unigram"):
        tokenizer = plain_tokenizers[kind]
        known = not (tokenizer.encode(text) == tokenizer.unknown_id).any() and "\u2581" not in text
        assert tokenizer.is_lossless(text) == known or not text


@settings(deadline=None, max_examples=150)
@given(text=LIKELY_TEXT | st.text(st.characters(max_codepoint=127), max_size=40))
def test_the_ascii_patterns_split_as_the_library_does(plain_tokenizers: dict[str, Tokenizer], text: str) -> None:
    pairs = {"bpe": BYTE_LEVEL, "wordpiece": WORDS_AND_MARKS, "word": WORDS, "unigram": METASPACE}
    for kind, splitting in pairs.items():
        hf = plain_tokenizers[kind].hf
        words = ascii_words(text, splitting)
        if words is not None:
            normal = hf.normalizer.normalize_str(text) if hf.normalizer else text
            expected = [word for word, _ in hf.pre_tokenizer.pre_tokenize_str(normal)]
            assert [word.translate(splitting.spelling) for word in words] == expected


def test_a_fitted_tokenizer_reads_its_own_file(tokenizer: Tokenizer, prose: str, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        again = load_tokenizer(path)
        assert again.kind == tokenizer.kind and again.d_vocab == tokenizer.d_vocab
        assert again.special == tokenizer.special and again.sha256 == tokenizer.sha256
        assert again.encode(prose[:3000]).tolist() == tokenizer.encode(prose[:3000]).tolist()


def test_the_hugging_face_library_reads_the_file_and_gives_the_same_ids(
    tokenizer: Tokenizer, prose: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path / "tokenizer.json")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert fast.encode(prose[:2000], add_special_tokens=False) == tokenizer.encode(prose[:2000]).tolist()


def test_special_tokens_spelled_in_a_text_are_letters_unless_asked_for(tokenizer: Tokenizer) -> None:
    assert set(tokenizer.special) >= {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    text = "the [MASK] ka[SEP]"
    special = set(tokenizer.special.values()) - {tokenizer.special["[UNK]"]}
    assert not special & set(tokenizer.encode(text).tolist())
    found = tokenizer.encode(text, special=True).tolist()
    assert found.count(tokenizer.special["[MASK]"]) == 1 and found[-1] == tokenizer.special["[SEP]"]
    assert tokenizer.end_id == tokenizer.special["[SEP]"]
    assert "[MASK]" not in tokenizer.decode(found)
    assert tokenizer.token(tokenizer.special["[MASK]"]) == "[MASK]"


def test_the_vocabulary_has_the_size_asked_for(tokenizer: Tokenizer, prose: str) -> None:
    expected = {
        "char": len(set(prose)) + 5,
        "byte": 261,
        **{k: SIZES[k] for k in ("word", "bpe", "wordpiece", "unigram")},
    }
    assert tokenizer.d_vocab == expected[tokenizer.kind] == len(tokenizer.vocabulary)
    assert sorted(tokenizer.vocabulary.values()) == list(range(tokenizer.d_vocab))


def test_end_tokens_and_unknown_tokens_are_there_only_where_needed(prose: str) -> None:
    assert fit_tokenizer("bpe", [prose], 300).special == {}
    assert fit_tokenizer("bpe", [prose], 300, end=True).special == {"[END]": 0}
    char = fit_tokenizer("char", [prose], end=True)
    assert char.special == {"[UNK]": char.d_vocab - 2, "[END]": char.d_vocab - 1}
    assert fit_tokenizer("byte", [prose], end=True).special == {"[END]": 256}


def test_unknown_characters_become_unk_and_show_as_the_replacement_character(
    plain_tokenizers: dict[str, Tokenizer],
) -> None:
    char = plain_tokenizers["char"]
    found = char.encode("ka漢😀e")
    assert (found == char.unknown_id).tolist() == [False, False, True, True, False]
    assert char.decode(found) == "ka\ufffd\ufffde"


def test_the_mark_of_two_sided_tokenizers_is_a_letter_to_all_others(prose: str) -> None:
    mark = "\U0010fffd"
    text = "".join(f"{word}{mark}" for word in prose[:3000].split(" ")) + f"{mark}end"
    for kind in KINDS:
        tokenizer = fit_tokenizer(kind, [text], 0 if kind in ("char", "byte") else 500)
        assert (mark in tokenizer.decode(tokenizer.encode(f"a{mark}b"))) is (kind != "wordpiece")  # drops private ones
        assert (tokenizer.encode(text) < tokenizer.d_vocab).all()


def test_an_unknown_character_is_a_loss_even_where_it_is_the_replacement_character() -> None:
    tokenizer = fit_tokenizer("char", ["abc"])
    assert tokenizer.is_lossless("cab") and not tokenizer.is_lossless("a\ufffd")
    assert fit_tokenizer("char", ["abc\ufffd"]).is_lossless("a\ufffd")


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_a_long_stretch_without_spaces_is_fitted_in_seconds(kind: str) -> None:
    """Its square would take a minute. Encoding is of the whole stretch."""
    letters = "".join(random.Random(0).choices("ACGT", k=200_000))
    began = time.process_time()
    tokenizer = fit_tokenizer(kind, [letters], 400)
    ids = tokenizer.encode(letters)
    assert time.process_time() - began < 15
    if kind != "wordpiece":  # words of more than 100 letters are unknown to it
        assert tokenizer.decode(ids) == letters and len(ids) < len(letters) / 2


def test_half_a_surrogate_pair_does_not_crash(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("ka \ud83d the").tolist() == tokenizer.encode("ka \ufffd the").tolist()


def test_tokens_are_shown_as_a_person_reads_them(plain_tokenizers: dict[str, Tokenizer]) -> None:
    for kind in ("bpe", "unigram"):
        tokenizer = plain_tokenizers[kind]
        the = int(tokenizer.encode("ka the")[-1])
        assert tokenizer.token(the) == " the"
        assert tokenizer.readable["the"] == the and tokenizer.readable[" the"] == the
    assert plain_tokenizers["wordpiece"].readable["the"] == plain_tokenizers["wordpiece"].vocabulary["the"]
    assert plain_tokenizers["bpe"].token(plain_tokenizers["bpe"].vocabulary["Ã"]) == "<0xC3>"
    assert plain_tokenizers["byte"].token(0xC3) == "<0xC3>" and plain_tokenizers["byte"].token(10) == "\n"
    assert plain_tokenizers["char"].token(10**6) == "<1000000>"


SCRIPT = """
import sys, hashlib
from qkv.tokenizers.tokenizer import KINDS, fit_tokenizer
text = open(sys.argv[1], encoding="utf-8", newline="").read()
for kind, size in zip(KINDS, (0, 0, 300, 420, 200, 200)):
    print(fit_tokenizer(kind, [text], size, specials=True).sha256)
"""


def test_fits_are_the_same_in_every_process(prose: str, prose_file: Path) -> None:
    outputs = set()
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(prose_file)],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
        )
        outputs.add(run.stdout)
    here = [fit_tokenizer(kind, [prose], SIZES[kind], specials=True).sha256 for kind in KINDS]
    assert outputs == {"".join(f"{digest}\n" for digest in here)}


def test_byte_pairs_are_those_of_the_librarys_own_trainer(prose: str) -> None:
    reference = tokenizers.Tokenizer(tokenizers.models.BPE())
    reference.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, min_frequency=2, show_progress=False
    )
    reference.train_from_iterator([prose], trainer)
    assert fit_tokenizer("bpe", [prose], 400).vocabulary == reference.get_vocab()


def test_the_fit_of_a_stream_is_that_of_the_whole(prose: str) -> None:
    lines = prose.splitlines(keepends=True)
    for kind in KINDS:
        assert (
            fit_tokenizer(kind, iter(lines), SIZES[kind]).d_vocab == fit_tokenizer(kind, [prose], SIZES[kind]).d_vocab
        )
    assert fit_tokenizer("char", iter(lines)).sha256 == fit_tokenizer("char", [prose]).sha256


def test_the_law_grows_with_the_text_and_stays_within_bounds() -> None:
    assert vocabulary_law("bpe", 1000) == 512 and vocabulary_law("bpe", 10**12) == 32768
    assert vocabulary_law("bpe", 2_000_000) == 1984
    assert vocabulary_law("word", 2_000_000) == 4 * 1984
    assert vocabulary_law("char", 5) == 0 and vocabulary_law("byte", 5) == 256


@pytest.mark.parametrize(
    ("kind", "vocab", "expected"),
    [
        ("bpe", 100, "expected at least 257"),
        ("wordpiece", 10, "the letters of this text alone need"),
        ("char", 1, "characters need more than the 1 special"),
        ("byte", 300, "the byte tokenizer has 256"),
        ("bpee", 300, "did you mean 'bpe'"),
    ],
)
def test_vocabularies_that_cannot_be_are_refused(prose: str, kind: str, vocab: int, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        fit_tokenizer(kind, [prose], vocab)


def test_a_character_vocabulary_keeps_the_most_frequent(prose: str) -> None:
    char = fit_tokenizer("char", [prose], 20)
    assert char.d_vocab == 20 and "e" in char.vocabulary and len(set(prose)) > 20


def test_units_fall_back_on_the_library_where_spaces_do_not_split(prose: str) -> None:
    bpe = fit_tokenizer("bpe", [prose], 300)
    bpe.hf.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    prefixed = Tokenizer(bpe.hf)
    assert isinstance(prefixed._codec, HfCodec) and isinstance(bpe._codec, UnitCodec)
    assert not prefixed.always_lossless
    assert splitting_of(json.loads(prefixed.to_json())) is None
    assert prefixed.encode("the ka").tolist() == library(prefixed).encode("the ka").ids


@settings(deadline=None, max_examples=60)
@given(
    pieces=st.lists(st.sampled_from([*MATCHED, "New", "+", " ", "\n", "ka", "the", "[MASK]", ".", "é"]), max_size=20)
)
def test_added_tokens_that_are_not_special_are_found_as_the_library_finds_them(added: Tokenizer, pieces: list) -> None:
    text = "".join(pieces)
    ids = added.encode(text).tolist()
    assert ids == library(added).encode(text, add_special_tokens=False).ids
    assert not added.always_lossless  # the library reads an added "ü" back as a byte
    for token in MATCHED:
        assert (added.vocabulary[token] in ids) == (token in text)
        assert added.token(added.vocabulary[token]) == token


def test_special_ids_are_those_of_all_special_tokens(plain_tokenizers: dict[str, Tokenizer]) -> None:
    hf = tokenizers.Tokenizer.from_str(plain_tokenizers["bpe"].to_json())
    hf.add_tokens(["plain"])
    hf.add_special_tokens(["<|endoftext|>", "<|im_start|>"])
    read = Tokenizer(hf)
    assert set(read.special) == {"[END]"}
    assert read.special_ids == {read.vocabulary[token] for token in ("<|endoftext|>", "<|im_start|>")}
    word = plain_tokenizers["word"]
    assert word.special_ids == {word.unknown_id}


# Tokenizers that others published.


def test_gpt2_gives_the_published_ids(real_data: Path) -> None:
    cases = json.loads((real_data / "gpt2-bpe" / "reference_cases.json").read_text(encoding="utf-8"))
    for path in (real_data / "gpt2-bpe", real_data / "gpt2-bpe" / "vocab.bpe"):
        tokenizer = load_tokenizer(path)
        assert (tokenizer.kind, tokenizer.d_vocab, tokenizer.end_id) == ("bpe", 50257, 50256)
        for case in cases["encode"]:
            assert tokenizer.encode(case["text"]).tolist() == case["ids"]
            assert tokenizer.decode(case["ids"]) == case["text"]
        for case in cases["encode_with_special"]:
            assert tokenizer.encode(case["text"], special=True).tolist() == case["ids"]
            assert 50256 not in tokenizer.encode(case["text"]).tolist()
    assert tokenizer.readable["the"] == 262 and tokenizer.always_lossless


def test_bert_gives_the_published_tokens_ids_and_offsets(real_data: Path) -> None:
    cases = json.loads((real_data / "bert-vocab" / "reference_cases.json").read_text(encoding="utf-8"))
    tokenizer = load_tokenizer(real_data / "bert-vocab")
    assert (tokenizer.kind, tokenizer.d_vocab) == ("wordpiece", 30522)
    assert {name: tokenizer.special[name] for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")} == {
        "[PAD]": 0,
        "[UNK]": 100,
        "[CLS]": 101,
        "[SEP]": 102,
        "[MASK]": 103,
    }
    for case in cases["uncased_vocab_full"]:
        found = tokenizer.hf.encode(case["text"])
        assert found.tokens == case["tokens"] and [list(pair) for pair in found.offsets] == case["offsets"]
        assert tokenizer.encode(case["text"], special=True).tolist() == found.ids[1:-1]
    for case in cases["basic_lowercase"]:
        normal = tokenizer.hf.normalizer.normalize_str(case["text"])
        assert [word for word, _ in tokenizer.hf.pre_tokenizer.pre_tokenize_str(normal)] == case["tokens"]


def test_the_toy_vocabulary_of_the_authors_gives_their_pieces(real_data: Path, tmp_path: Path) -> None:
    cases = json.loads((real_data / "bert-vocab" / "reference_cases.json").read_text(encoding="utf-8"))
    (tmp_path / "vocab.txt").write_text("\n".join(cases["toy_vocab"]) + "\n")
    tokenizer = load_tokenizer(tmp_path)
    for case in cases["toy_full_lowercase"]:
        assert tokenizer.encode(case["text"]).tolist() == case["ids"]
    for case in cases["toy_wordpiece_only"]:
        assert [tokenizer.token(i) for i in tokenizer.encode(case["text"])] == case["tokens"]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    cased = load_tokenizer(tmp_path)
    for case in cases["basic_no_lowercase"]:
        normal = cased.hf.normalizer.normalize_str(case["text"])
        assert [word for word, _ in cased.hf.pre_tokenizer.pre_tokenize_str(normal)] == case["tokens"]


def test_missing_special_tokens_are_added_behind_a_read_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "Ġ": 3}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    assert load_tokenizer(tmp_path).special == {}
    tokenizer = load_tokenizer(tmp_path, specials=True)
    assert tokenizer.d_vocab == 9 and tokenizer.special["[PAD]"] == 4 and tokenizer.special["[MASK]"] == 8
    assert tokenizer.encode("ab [MASK]", special=True).tolist() == [2, 3, 8]
    assert load_tokenizer(tmp_path, end=True).special == {"[END]": 4}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "no tokenizer in"),
        ({"vocab.txt": "hello\nworld\n"}, "it has no line"),
        ({"tokenizer.json": "{}"}, "is no tokenizer that can be read"),
        ({"vocab.json": "[1, 2", "merges.txt": ""}, "is no tokenizer that can be read"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a b c\n"}, "expected two pieces a line"),
        ({"tokenizer.json": b"\xff\xfe"}, "is no tokenizer that can be read"),
    ],
)
def test_broken_tokenizer_files_are_refused_in_one_sentence(tmp_path: Path, files: dict, expected: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SourceError, match=expected) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_tokenizer_file_is_refused_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SourceError, match="did you mean"):
        load_tokenizer(tmp_path / "tokeniser.json")
    (tmp_path / "vocab.bpe").write_text("")
    with pytest.raises(SourceError, match="needs encoder.json and vocab.bpe side by side"):
        load_tokenizer(tmp_path / "vocab.bpe")


def test_a_digest_names_the_tokenizer(prose: str) -> None:
    tokenizer = fit_tokenizer("char", [prose])
    assert tokenizer.sha256 == hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


@pytest.mark.parametrize(
    ("pattern", "is_one"),
    [
        (r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", False),
        (r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+", False),
        (r"\(a+\)+", False), (r"[(a+)]+", False), (r"[^]a)+]+(b)", False), (r"(?:a|b)+", False), (r"(ab){2,5}+", False),
        ("(a+)+$", True), ("((a*)b)*", True), ("(a{2,})+", True), (r"(?:\w+\s?)*$", True), ("(x(a+)y){1,}", True),
    ],
)  # fmt: skip
def test_a_repetition_in_a_repetition_is_found(pattern, is_one):
    assert is_nested(pattern) == is_one


def test_a_tokenizer_with_a_pattern_that_may_not_end_or_an_id_out_of_all_range_is_refused(tmp_path):
    form = json.loads(fit_tokenizer("char", ["the cat"], 0).to_json())
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(form | {"pre_tokenizer": form["pre_tokenizer"] | {"pattern": {"Regex": "(a+)+$"}}}))
    with pytest.raises(SourceError, match="repeats what it repeats inside"):
        load_tokenizer(path)
    del form["model"]["vocab"]["[UNK]"]
    form["added_tokens"] = []
    path.write_text(json.dumps(form))
    broken = load_tokenizer(path)
    for use in (broken.encode, broken.offsets, lambda text: broken.encode(text, special=True)):
        with pytest.raises(SourceError, match="cannot be applied to this text"):
            use("dog")
    form["model"]["vocab"]["t"] = 2**32 - 1
    path.write_text(json.dumps(form))
    with pytest.raises(SourceError, match="an id of 4,294,967,295; expected ids below"):
        read_tokenizer(path)  # before anything allocates all ids up to the largest
