"""Tokenizers from slow files alone (no tokenizer.json): AutoTokenizer's ids, or one clear refusal."""

import io
import json
import random

import pytest
import sentencepiece
import transformers

import tokenizers
from qkv.errors import SourceError
from qkv.interop import read_checkpoint
from qkv.tokenizers.tokenizer import load_tokenizer

PROSE = (
    "The quick brown fox can't jump over 12345 lazy dogs; they've 3.14 pies.\n\n  It's naïve café Ünïcödé, we'll see"
    " 日本語 and emoji 😀!  Don't STOP me now\tI'm HAVING \r\n such a good time, résumé e\u0301 ﬁ ½ "
)
MARKS = "<s> </s> <|endoftext|> <pad> [MASK] <mask> <|im_start|> <extra> [SEP] <unk>".split()
OF_ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SPELLED = "abcdefghijklmnopqrstuvwxyz0123456789"
LINES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({*PROSE.lower().split(), *SPELLED, *".,;'!"})]
LINES += ["##" + letter for letter in SPELLED]


def pair(folder, *special):
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(
        [PROSE] * 5, vocab_size=390, special_tokens=list(special), min_frequency=1, show_progress=False
    )
    made.save_model(str(folder))


def lines(folder, *more):
    (folder / "vocab.txt").write_text("\n".join([*LINES, *more]) + "\n", encoding="utf-8")


def model(folder, **options):
    out = io.BytesIO()
    usual = dict(
        model_type="bpe", vocab_size=380, byte_fallback=True, hard_vocab_limit=False, remove_extra_whitespaces=False,
        normalization_rule_name="identity", character_coverage=1.0, minloglevel=2,
    )  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(PROSE.split("\n") * 20), model_writer=out, **(usual | options)
    )
    (folder / "tokenizer.model").write_bytes(out.getvalue())


def decoder(*tokens):
    flags = {"rstrip": False, "single_word": False}
    return {str(i): flags | dict(content=c, special=s, lstrip=left, normalized=n) for i, c, s, left, n in tokens}


def folder(tmp_path, model_type, make, config, more):
    make(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    for name, content in ({"tokenizer_config.json": config} | more).items():
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def texts(n):
    draw, words = random.Random(0), PROSE.split(" ") + MARKS
    return [
        "".join(draw.choice(words) + draw.choice([" ", "  ", "", "\n", " "]) for _ in range(draw.randint(0, 12)))
        for _ in range(n)
    ]


LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
IM = [(390, "<|endoftext|>", True, False, False), (391, "<|im_start|>", True, False, False)]
SAME = {
    "gpt2": ("gpt2", lambda f: pair(f, "<|endoftext|>"), {}, {}),
    "gpt2 without its end": ("gpt2", pair, {}, {}),
    "gpt2, space before a text": ("gpt2", pair, {"add_prefix_space": True}, {}),
    "gpt2, mark before a text": ("gpt2", pair, {"add_bos_token": True}, {}),
    "gpt2, added_tokens.json": (
        "gpt2", pair, {},
        {"added_tokens.json": {"<extra>": 390, "<|im_start|>": 391},
         "special_tokens_map.json": {"eos_token": "<|im_start|>"}},
    ),
    "gpt2, added in its settings": (
        "gpt2", pair,
        {"tokenizer_class": "GPT2Tokenizer", "additional_special_tokens": ["<mask>"], "added_tokens_decoder": decoder(
            IM[0], (391, "<mask>", True, True, False), (392, "<extra>", False, False, True))}, {},
    ),
    "gpt2 with the tokenizer of Qwen2": ("gpt2", pair, {"tokenizer_class": "Qwen2Tokenizer"}, {}),
    "gpt2 with the tokenizer of RoBERTa": (
        "gpt2", lambda f: pair(f, *OF_ROBERTA), {"tokenizer_class": "RobertaTokenizerFast"}, {}
    ),
    "llama with the tokenizer of GPT-2": ("llama", pair, {"tokenizer_class": "GPT2Tokenizer"}, {}),
    "neox": ("gpt_neox", lambda f: pair(f, "<|endoftext|>", "<|padding|>"), {}, {}),
    "neox, marks around a text": ("gpt_neox", pair, {"add_bos_token": True, "add_eos_token": True}, {}),
    "roberta": ("roberta", lambda f: pair(f, *OF_ROBERTA), {}, {}),
    "roberta, a mark that takes the space": (
        "roberta", lambda f: pair(f, *OF_ROBERTA), {"mask_token": "<mask>", "added_tokens_decoder": decoder(
            (0, "<s>", True, False, True), (4, "<mask>", True, True, False))}, {},
    ),
    "qwen2": ("qwen2", pair, {}, {}),
    "qwen2 that names another class": (
        "qwen2", pair, {"tokenizer_class": "LlamaTokenizer", "bos_token": None, "eos_token": "<|im_start|>",
                        "added_tokens_decoder": decoder(*IM)}, {},
    ),
    "qwen3": ("qwen3", pair, {"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": False}, {}),
    "bert": ("bert", lines, {}, {}),
    "bert of capitals": ("bert", lambda f: lines(f, "The", "STOP"), {}, {}),
    "bert, case kept": (
        "bert", lambda f: lines(f, "The", "STOP"),
        {"do_lower_case": False, "strip_accents": False, "tokenize_chinese_chars": False}, {},
    ),
    "bert, added": ("bert", lines, {}, {"added_tokens.json": {"<extra>": len(LINES)}}),
    "distilbert": ("distilbert", lines, {"tokenizer_class": "DistilBertTokenizer"}, {}),
    "llama": ("llama", model, LLAMA | {"add_bos_token": True}, {}),
    "llama as before": ("llama", model, LLAMA | {"add_bos_token": True, "legacy": True}, {}),
    "llama, no space before a text": ("llama", model, LLAMA | {"add_prefix_space": False}, {}),
    "llama, pieces of its user": (
        "llama", lambda f: model(f, user_defined_symbols=["<extra>", "<|im_start|>"]), LLAMA, {}
    ),
    "llama, digits apart": ("llama", lambda f: model(f, split_digits=True, pad_id=3), LLAMA, {}),
    "llama, added": ("llama", model, LLAMA, {"added_tokens.json": {"<extra>": 380}}),
    "llama, added in its settings": (
        "llama", model, LLAMA | {"add_bos_token": True, "add_eos_token": True, "added_tokens_decoder": decoder(
            (0, "<unk>", True, True, False), (1, "<s>", True, True, False), (2, "</s>", True, True, False),
            (380, "<|im_start|>", True, False, False))}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
@pytest.mark.filterwarnings("ignore:Deprecated in 0.9.0")  # of tokenizers, to transformers 5.8
def test_ids_are_those_of_transformers(name, tmp_path):
    place = folder(tmp_path, *SAME[name])
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(place)
    except ValueError as error:
        if "RoBERTa" in name and "values to unpack" in str(error):
            pytest.skip("transformers 5.8 cannot read the two files of RoBERTa's tokenizer")
        raise
    ours = load_tokenizer(place, rows=10**6)
    ours.framed = True
    assert len(theirs) == ours.d_vocab
    for text in texts(500):
        ids = theirs(text)["input_ids"]
        assert ours.encode_whole(text, special=True).tolist() == ids, text
        assert ours.encode_whole(text).tolist() == theirs(text, split_special_tokens=True)["input_ids"], text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


REFUSED = {
    "CLIP's class": ("gpt2", pair, {"tokenizer_class": "CLIPTokenizer"}, {}, "class CLIPTokenizer is not read, only"),
    "a class that reads other files": ("llama", pair, LLAMA, {}, "class LlamaTokenizer is not read, only of GPT2"),
    "no class": ("llama", pair, {}, {}, "names no tokenizer_class; put a tokenizer.json"),
    "Japanese BERT": ("bert", lines, {"tokenizer_class": "BertJapaneseTokenizer"}, {}, "class BertJapaneseTokenizer"),
    "Mistral's": ("mistral", model, LLAMA, {}, "MistralTokenizer is not read"),
    "a gap": ("gpt2", pair, {}, {"added_tokens.json": {"<extra>": 500}}, "'<extra>' has the id 500 by its file, and 3"),
    "rules": ("llama", lambda f: model(f, normalization_rule_name="nmt_nfkc"), LLAMA, {}, "rules that change char"),
    "spaces": ("llama", lambda f: model(f, remove_extra_whitespaces=True), LLAMA, {}, "spaces to be removed"),
    "no space": ("llama", lambda f: model(f, add_dummy_prefix=False), LLAMA, {}, "no space before a text"),
    "Unigram": ("llama", lambda f: model(f, model_type="unigram", vocab_size=330), LLAMA, {}, "a Unigram model, where"),
    "no bytes": ("llama", lambda f: model(f, byte_fallback=False, vocab_size=120), LLAMA, {}, "no bytes for unknown"),
    "no model": ("llama", lambda f: (f / "tokenizer.model").write_bytes(b"\xff" * 9), LLAMA, {}, "is no SentencePiece"),
    "no token": ("gpt2", pair, {}, {"special_tokens_map.json": {"eos_token": {"a": 1}}}, "is no token"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_with_its_cause(name, tmp_path):
    *made, cause = REFUSED[name]
    with pytest.raises(SourceError) as caught:
        load_tokenizer(folder(tmp_path, *made))
    assert cause in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_keeps_its_marks_and_one_whose_pieces_are_not_read_says_why(theirs, tmp_path):
    theirs.save_theirs(tmp_path / "a", "gpt2", vocab_size=390)
    pair(tmp_path / "a", "<|endoftext|>")
    read = read_checkpoint(tmp_path / "a")
    assert read.tokenizer is not None and read.tokenizer.end_id == 0 and read.tokenizer.d_vocab == 390
    theirs.save_theirs(tmp_path / "b", "mistral", vocab_size=380)
    model(tmp_path / "b")
    read = read_checkpoint(tmp_path / "b")
    assert read.tokenizer is None and "MistralTokenizer is not read" in "; ".join(read.notes)
