"""Tokenizers of two sides: the ids and texts that sentencepiece and transformers' MarianTokenizer give."""

import base64
import json
import struct

import pytest

from qkv.errors import SourceError
from qkv.tokenizers.sentencepiece import FILES, OTHER, are_rules, read_sides, sentencepiece_files
from qkv.tokenizers.tokenizer import load_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")  # which cuts nothing


@pytest.fixture(scope="module")
def models(theirs):
    return theirs.side(theirs.GERMAN, 1), theirs.side(theirs.ENGLISH, 2)


TEXTS = [
    "Die grüne Straße läuft über das Haus.",
    "the green houses run over the bridges, quickly.",
    "  zwei   Mädchen\tspielen  ",
    "ﬁne ½ Ｈａｕｓ x² … „quoted“",  # put into other letters first
    "日本語 und 中文 house日本",
    "e\u0301 cafe\u0301 nai\u0308ve",
    "xyz qqq zwei",
    "",
    "a",
    "</s> <unk> is text",
]


@pytest.mark.parametrize("left_out", [(), ("▁das", "▁the", "s", "▁")])
def test_ids_are_those_of_the_published_classes(models, left_out, theirs, tmp_path):
    from transformers import MarianTokenizer

    folder = theirs.save_sides(tmp_path / "m", *models, left_out)
    published = MarianTokenizer(*(str(folder / name) for name in FILES))
    ours = load_tokenizer(folder)
    assert ours.d_vocab == len(json.loads((folder / "vocab.json").read_text())) and ours.start == ours.special["[PAD]"]
    texts = (
        [t for t in TEXTS if "</s>" not in t] + theirs.lines(theirs.GERMAN, 3, 40) + theirs.lines(theirs.ENGLISH, 4, 40)
    )
    unknown = 0
    for text in texts:
        wanted = published(text, add_special_tokens=False).input_ids
        assert ours.of_source.encode(text).tolist() == wanted, text
        assert ours.of_source.encode(" " + text).tolist() == wanted, text
        unknown += wanted.count(published.unk_token_id)
        wanted = published(text_target=text, add_special_tokens=False).input_ids
        assert ours.encode(text).tolist() == wanted, text
        assert (
            ours.decode(wanted).strip()
            == published.decode(wanted, skip_special_tokens=True).strip().replace("<unk>", "")
            or published.unk_token_id in wanted
        )
    assert unknown > (20 if left_out else 5)


def test_what_only_the_other_side_has_never_cuts_a_text_and_reads_as_it_is(models, theirs, tmp_path):
    ours = load_tokenizer(theirs.save_sides(tmp_path / "m", *models))
    source, target = ours.of_source, ours
    foreign = set(theirs.pieces(models[1])) - set(theirs.pieces(models[0]))
    assert "▁the" in foreign and "▁the" not in source.vocabulary and OTHER + "▁the" in source.vocabulary
    number = source.vocabulary[OTHER + "▁the"]
    assert source.token(number) == target.token(number) == " the" == source.token(target.vocabulary["▁the"])
    assert number not in source.encode("the house over the bridge").tolist()
    assert source.readable["the"] == target.readable["the"] == number
    assert OTHER not in source.decode([number]) and "the" in source.decode([number])


def test_a_token_that_names_a_language_is_one_token_before_the_text(models, theirs, tmp_path):
    from transformers import MarianTokenizer

    folder = theirs.save_sides(tmp_path / "m", *models)
    numbers = json.loads((folder / "vocab.json").read_text())
    numbers |= {">>fra<<": len(numbers), ">>deu<<": len(numbers) + 1}
    (folder / "vocab.json").write_text(json.dumps(numbers, ensure_ascii=False))
    published = MarianTokenizer(*(str(folder / name) for name in FILES))
    ours = load_tokenizer(folder)
    for text in (">>fra<< das Haus", ">>deu<<das Haus", "das Haus"):
        wanted = published(text, add_special_tokens=False).input_ids
        assert ours.of_source.encode(text).tolist() == wanted == ours.of_source.encode(" " + text).tolist()


def test_files_are_written_back_that_cut_and_number_alike(models, theirs, tmp_path):
    import sentencepiece

    folder = theirs.save_sides(tmp_path / "m", *models, ("▁das", "s"))
    source, target = read_sides(folder)
    written = sentencepiece_files(source, target)
    again = tmp_path / "again"
    again.mkdir()
    for name, data in written.items():
        (again / name).write_bytes(data)
    assert sentencepiece_files(*read_sides(again)) == written
    assert json.loads(written["vocab.json"]) == json.loads((folder / "vocab.json").read_text())
    for name, data in zip(FILES[:2], models, strict=True):
        one, two = (sentencepiece.SentencePieceProcessor(model_proto=d) for d in (data, written[name]))
        for text in TEXTS:
            assert one.encode(text, out_type=str) == two.encode(text, out_type=str), text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model_type": "bpe"}, "is a BPE model; Unigram ones are read"),
        ({"byte_fallback": True, "vocab_size": 400, "hard_vocab_limit": False}, "has pieces for bytes"),
        ({"user_defined_symbols": ["<here>"]}, "has pieces of its user's own"),
        ({"add_dummy_prefix": False}, "asks for no space before a text"),
        ({"remove_extra_whitespaces": False}, "asks for spaces kept as they are"),
        ({"treat_whitespace_as_suffix": True}, "asks for white space behind words"),
    ],
)
def test_what_is_not_had_here_is_refused_by_name(options, words, models, theirs, tmp_path):
    folder = theirs.save_sides(tmp_path / "m", *models)
    (folder / "target.spm").write_bytes(theirs.side(theirs.ENGLISH, 2, **options))
    with pytest.raises(SourceError) as caught:
        read_sides(folder)
    assert words in str(caught.value) and "target.spm" in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"{}",
        lambda data: b"\xff" * 40,
        lambda data: data + b"\x0a\xff\xff\xff\xff\x0f",
        lambda data: (
            data.replace(struct.pack("<f", 0.0), struct.pack("<f", float("nan")), 1) + b"\x0a\x05\x15\x00\x00\xc0\x7f"
        ),
    ],
)
def test_a_broken_model_file_is_one_sentence(damage, models, theirs, tmp_path):
    folder = theirs.save_sides(tmp_path / "m", *models)
    (folder / "source.spm").write_bytes(damage(models[0]))
    with pytest.raises(SourceError) as caught:
        read_sides(folder)
    assert "source.spm' is no SentencePiece model: " in str(caught.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("{", "is no table of pieces"),
        ("[]", "expected each piece with its number"),
        ('{"</s>": 0, "<unk>": 2}', "expected each piece with its number"),
        ('{"</s>": 0, "a": 1}', "has no piece <unk>"),
        (json.dumps({"</s>": 0, "<unk>": 1, OTHER + "a": 2}), "a piece with the character"),
    ],
)
def test_a_broken_table_is_one_sentence(table, words, models, theirs, tmp_path):
    folder = theirs.save_sides(tmp_path / "m", *models)
    (folder / "vocab.json").write_text(table)
    with pytest.raises(SourceError, match="vocab.json") as caught:
        read_sides(folder)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"])
def test_rules_for_characters_are_checked_before_they_are_followed(name, theirs, tmp_path):
    folder = theirs.save_sides(
        tmp_path / "m", *(theirs.side(theirs.ENGLISH, 2, normalization_rule_name=name) for _ in range(2))
    )
    tokenizer = load_tokenizer(folder)
    assert len(tokenizer.of_source.encode("THE Ｈouse ﬁne"))
    form = json.loads(tokenizer.to_json())
    rules = [rule for rule in form["normalizer"]["normalizers"] if rule["type"] == "Precompiled"]
    assert bool(rules) == (name != "identity")
    for rule in rules:
        compiled = base64.b64decode(rule["precompiled_charsmap"])
        assert are_rules(compiled)
        for broken in (compiled[:-40000], compiled[4:], b"\xff\xff\xff\x7f" + compiled[4:], compiled[:5000], b"abc"):
            assert not are_rules(broken)
            rule["precompiled_charsmap"] = base64.b64encode(broken).decode()
            (tmp_path / "tokenizer.json").write_text(json.dumps(form))
            with pytest.raises(SourceError, match="tokenizer.json"):
                load_tokenizer(tmp_path / "tokenizer.json")
