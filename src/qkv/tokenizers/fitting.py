"""Vocabularies fitted to a text: char, byte, word, BPE, WordPiece and Unigram, written as HF `tokenizers`.

Every fit is a pure function of the text: words are counted once, in Python, and merges are learned from the counts by
the library's byte-pair trainer, whose result does not depend on the order of its hash maps. (Its own WordPiece and
Unigram trainers do: two processes give two vocabularies for the same text.) WordPiece here is byte-pair merging over
`##` pieces, as that trainer also does it; Unigram is in `unigram.py`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice, repeat

import numpy as np

import tokenizers
from qkv.errors import ConfigError, unknown
from qkv.jsontypes import JsonObject
from qkv.tokenizers.encoding import (
    BRACKETS,
    BYTE_CHARACTERS,
    BYTE_LEVEL,
    EVERY_CHARACTER,
    METASPACE,
    WORD_OR_MARK,
    WORDS,
    WORDS_AND_MARKS,
    Splitting,
    ascii_words,
    unit_text,
    units,
)
from qkv.tokenizers.unigram import cut_words, fit_pieces
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

KINDS = ("char", "byte", "word", "bpe", "wordpiece", "unigram")

FITTED_SAMPLE = 16 << 20
"""Bytes of text that a vocabulary is fitted to at most (characters and bytes excepted: they look at all of it)."""

MOST_CHARACTERS = 8192
"""A character vocabulary keeps this many at most, the most frequent ones, when no size is given."""

MOST_ALPHABET = 1000
"""Distinct characters that WordPiece starts from at most, the most frequent ones."""

LONGEST_STRETCH = 1024
"""Letters without a space that merges are learned from in one piece; the trainer's time grows with their square."""

Hf = tokenizers.Tokenizer


def vocabulary_law(kind: str, n_bytes: int) -> int:
    """The vocabulary to fit to that many bytes of text: about 1.4 sqrt(n_bytes), in steps of 64, from 512 to 32768.

    A token of a larger text is seen often enough to be worth its row: at this size a row of the vocabulary is met some
    hundred times in the text, at 1 MB as at 500 MB. Words take four times as many, since they have no pieces to fall
    back on. For char and byte the law does not apply; the result is 0 (all characters) and 256.
    """
    if kind in ("char", "byte"):
        return 0 if kind == "char" else 256
    size = round(1.4 * n_bytes**0.5 / 64) * 64
    return min(max(size * (4 if kind == "word" else 1), 512), 1 << 15)


def fit(kind: str, texts: Iterable[str], vocab: int, specials: list[str]) -> Hf:
    """A tokenizer of that kind for these texts.

    vocab: size of the vocabulary, `specials` included; 0 for all characters (char only). A text too small to fill it
    gives fewer. `specials` become special tokens; they stand first, or last for char and byte.

    Raises ConfigError for an unknown kind or a vocabulary too small for its alphabet.
    """
    fitters = {"char": _char, "byte": _byte, "word": _word, "bpe": _bpe, "wordpiece": _wordpiece, "unigram": _unigram}
    if kind not in fitters:
        raise ConfigError(unknown("tokenizer", kind, KINDS))
    hf = fitters[kind](texts, vocab, specials)
    hf.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    return hf


def _char(texts: Iterable[str], vocab: int, specials: list[str]) -> Hf:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text) if len(text) < 1 << 14 else counts.update(_character_counts(text))
    room = (vocab - len(specials)) if vocab else MOST_CHARACTERS
    if room < 1:
        raise ConfigError(f"vocab is {vocab}; characters need more than the {len(specials)} special tokens")
    kept = sorted(sorted(counts, key=lambda c: (-counts[c], c))[:room])
    hf = Hf(models.WordLevel({token: i for i, token in enumerate([*kept, *specials])}, unk_token="[UNK]"))
    hf.pre_tokenizer = pre_tokenizers.Split(Regex(EVERY_CHARACTER), "isolated")
    hf.decoder = decoders.Fuse()
    return hf


def _character_counts(text: str) -> dict[str, int]:
    """How often each character occurs; several times as fast as a Counter for long texts."""
    points = np.frombuffer(text.encode("utf-32-le", "replace"), dtype="<u4")
    counts = np.bincount(points)
    return {chr(point): int(counts[point]) for point in np.flatnonzero(counts)}


def _byte(texts: Iterable[str], vocab: int, specials: list[str]) -> Hf:
    if vocab not in (0, 256, 256 + len(specials)):
        raise ConfigError(f"vocab is {vocab}; the byte tokenizer has 256, leave vocab out")
    hf = Hf(models.BPE({character: byte for byte, character in enumerate(BYTE_CHARACTERS)}, []))
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    hf.decoder = decoders.ByteLevel()
    return hf


def _word(texts: Iterable[str], vocab: int, specials: list[str]) -> Hf:
    hf = Hf(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    hf.pre_tokenizer = pre_tokenizers.Split(Regex(WORD_OR_MARK), "removed", invert=True)
    counts = _count_words(hf, WORDS, texts)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    common = [word for word in ranked if counts[word] > 1] or ranked
    tokens = dict.fromkeys([*specials, *common[: _room(vocab, specials, 1)]])
    hf.model = models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]")
    return hf


def _bpe(texts: Iterable[str], vocab: int, specials: list[str]) -> Hf:
    hf = Hf(models.BPE())
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    hf.decoder = decoders.ByteLevel()
    _room(vocab, specials, 257)
    vocabulary, merges = _merges(_count_words(hf, BYTE_LEVEL, texts), vocab, specials, list(BYTE_CHARACTERS))
    hf.model = models.BPE(vocabulary, merges)
    return hf


def _wordpiece(texts: Iterable[str], vocab: int, specials: list[str]) -> Hf:
    hf = Hf(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    hf.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    hf.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    hf.decoder = decoders.WordPiece()
    counts = _count_words(hf, WORDS_AND_MARKS, texts)
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        letters.update({letter: count * word.count(letter) for letter in set(word)})
    alphabet = sorted(sorted(letters, key=lambda c: (-letters[c], c))[:MOST_ALPHABET])
    # Letters inside a word become private characters, so that a plain byte-pair trainer keeps "x" and "##x" apart.
    inside = {letter: chr(0xF0000 + i) for i, letter in enumerate(alphabet)}
    outside = {private: letter for letter, private in inside.items()}
    marked = {
        word[0] + "".join(map(inside.__getitem__, word[1:])): count
        for word, count in counts.items()
        if all(letter in inside for letter in word)
    }
    vocabulary, _ = _merges(marked, vocab, specials, [])
    if vocab < len(specials) + len({letter for word in marked for letter in word}) + 1:
        raise ConfigError(f"vocab is {vocab}; the letters of this text alone need {len(vocabulary)}, give more")

    def spelled(token: str) -> str:
        plain = "".join(outside.get(letter, letter) for letter in token)
        return "##" + plain if token[0] in outside else plain

    pieces = {token if token in specials else spelled(token): i for token, i in vocabulary.items()}
    hf.model = models.WordPiece(pieces, unk_token="[UNK]", max_input_chars_per_word=100)
    return hf


def _unigram(texts: Iterable[str], vocab: int, specials: list[str]) -> Hf:
    hf = Hf(models.Unigram())
    hf.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.Split(Regex(BRACKETS), "isolated"),  # so that no piece ever spells a special token
            pre_tokenizers.Metaspace(prepend_scheme="never"),
        ]
    )
    hf.decoder = decoders.Metaspace(prepend_scheme="never")
    pieces = fit_pieces(_count_words(hf, METASPACE, texts), _room(vocab, specials, 1))
    hf.model = models.Unigram([*((name, 0.0) for name in specials), *pieces], unk_id=specials.index("[UNK]"))
    return hf


def _room(vocab: int, specials: list[str], least: int) -> int:
    """How many tokens are left beside the special ones."""
    if vocab < len(specials) + least:
        raise ConfigError(f"vocab is {vocab}; expected at least {len(specials) + least} with its special tokens")
    return vocab - len(specials)


def _count_words(hf: Hf, splitting: Splitting, texts: Iterable[str]) -> dict[str, int]:
    """How often each word (as the tokenizer's own normalizer and pre-tokenizer see it) occurs."""
    found: Counter[str] = Counter()
    for text in texts:
        found.update(units(text))
    counts: dict[str, int] = {}
    for unit, count in found.items():
        text = unit_text(unit)
        words = ascii_words(text, splitting)
        if words is None:
            normal = text if hf.normalizer is None else hf.normalizer.normalize_str(text)
            words = [word for word, _ in hf.pre_tokenizer.pre_tokenize_str(normal)]
        elif splitting.spelling:
            words = [word.translate(splitting.spelling) for word in words]
        for word in words:
            counts[word] = counts.get(word, 0) + count
    return counts


def _merges(
    counts: dict[str, int], vocab: int, specials: list[str], alphabet: list[str]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Byte-pair merges of counted words (Sennrich et al. 2016, arXiv 1508.07909): vocabulary and merges in order.

    Words of more than LONGEST_STRETCH letters are cut into stretches of that length; pairs across a cut do not count.
    """
    hf = Hf(models.BPE())
    hf.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=specials, initial_alphabet=alphabet, min_frequency=2, show_progress=False
    )
    hf.train_from_iterator(_repeated(cut_words(counts, LONGEST_STRETCH)), trainer)
    model: JsonObject = json.loads(hf.to_str())["model"]
    merges = [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in model["merges"]]
    return model["vocab"], merges


def _repeated(counts: dict[str, int]) -> Iterator[str]:
    """Each word as often as it was counted, since the trainer takes text and no counts."""
    words = chain.from_iterable(map(repeat, counts, counts.values()))
    while text := " ".join(islice(words, 1 << 14)):
        yield text
