"""Tokenizers of encoder-decoders that have a SentencePiece model for each side: source.spm, target.spm, vocab.json.

So Marian's models come. Each side cuts a text by its own table of scores; vocab.json numbers the pieces of both, and a
piece that it does not number is unknown *after* the text was cut with it. A Unigram `tokenizer.json` has one list for
scores and ids, so each side gets one of its own, whose list is vocab.json's order:

- a piece that only the other side has is spelled behind `OTHER`, which occurs in no text, so that nothing is cut by it;
- a row of `OTHER` alone ends what is numbered, and pieces without a number stand behind it.

Nothing is lost by that: `sentencepiece_files` gives back files that cut and number alike. Unigram models that treat
white space as SentencePiece does by default are read (Kudo & Richardson 2018, arXiv 1808.06226); what else a model file
may ask for is refused by name. So is it with Llama's tokenizer.model (`read_llama`), a BPE model of its own options.
"""

import base64
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

import tokenizers
from qkv.errors import SourceError
from qkv.jsontypes import JsonMapping
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

FILES = ("source.spm", "target.spm", "vocab.json")
"""What a tokenizer of two sides consists of."""

LLAMA_FILE = "tokenizer.model"
"""What Llama's consists of."""

OTHER = "\U0010fffd"
"""A character for private use, in no text that such models are made for; to all other tokenizers it is a letter."""

END, UNKNOWN, PAD = "</s>", "<unk>", "<pad>"
_SPACE = "\u2581"
_LANGUAGE = re.compile(r">>.+<<")
"""A token that says into which language to translate, before the source."""

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
_TYPES = {_USER: "pieces of its user's own", _BYTE: "pieces for bytes"}
_MODELS: dict[int | bytes, str] = {2: "BPE", 3: "word", 4: "character"}


class _Model(NamedTuple):
    """One SentencePiece model."""

    scores: dict[str, float]
    """Of each piece that cuts a text, a logarithm of its probability."""
    normalization: bytes
    """Compiled rules that a text goes through first; empty for none."""


def read_sides(folder: Path) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """The tokenizers of sources and of targets.

    Raises SourceError for files that are none, or ask for what is not supported.
    """
    path = folder / "vocab.json"
    try:
        numbers = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SourceError(f"{str(path)!r} is no table of pieces: {error}") from None
    plain = isinstance(numbers, dict) and all(isinstance(i, int) for i in numbers.values())
    if not plain or sorted(numbers.values()) != list(range(len(numbers))):
        raise SourceError(f"{str(path)!r} is no table of pieces: expected each piece with its number, 0, 1, 2 ...")
    for mark in (END, UNKNOWN):
        if mark not in numbers:
            raise SourceError(f"{str(path)!r} has no piece {mark}, which every vocabulary of pairs has")
    if any(OTHER in piece for piece in numbers):
        raise SourceError(f"{str(path)!r} has a piece with the character {ascii(OTHER)}, which is reserved here")
    source, target = (_side(_read(folder / name), numbers) for name in FILES[:2])
    return source, target


def _side(model: _Model, numbers: Mapping[str, int]) -> tokenizers.Tokenizer:
    """One side: its pieces under their numbers."""
    scores, least = model.scores, min(model.scores.values())
    marks = [mark for mark in (END, UNKNOWN, PAD) if mark in numbers]
    languages = [piece for piece in numbers if _LANGUAGE.fullmatch(piece)]
    kept = {*scores, *marks, *languages}
    ordered = sorted(numbers, key=numbers.__getitem__)
    rows = [(piece if piece in kept else OTHER + piece, scores.get(piece, least)) for piece in ordered]
    beyond = [(piece, score) for piece, score in scores.items() if piece not in numbers]
    hf = tokenizers.Tokenizer(models.Unigram([*rows, (OTHER, least), *beyond], numbers[UNKNOWN], False))
    rules = [normalizers.Precompiled(model.normalization)] if model.normalization else []
    spaces = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), " ")]
    hf.normalizer = normalizers.Sequence([*rules, *spaces])
    split = not any(_SPACE in piece[1:] for piece in scores)
    hf.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always", split=split)
    hf.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme="always", split=split)
    hf.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, numbers[END])])
    hf.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    hf.add_tokens([AddedToken(mark, normalized=False, lstrip=True, rstrip=True) for mark in languages])
    return hf


def is_side(form: JsonMapping) -> bool:
    """Whether the content of a tokenizer.json may be one of `read_sides`, so that `OTHER` in it is a mark."""
    steps = (form.get("normalizer") or {}).get("normalizers") or [{}]
    return form["model"]["type"] == "Unigram" and steps[-1].get("pattern") == {"Regex": " {2,}"}


# model files: protocol buffers, of which these fields are read (sentencepiece_model.proto)


def _read(path: Path) -> _Model:
    """A model file. Raises SourceError for one that is none, or asks for what is not supported."""
    try:
        return _parsed(path, path.read_bytes())
    except (ValueError, IndexError, struct.error) as error:
        raise SourceError(f"{str(path)!r} is no SentencePiece model: {error}") from None


_Fields = dict[int, int | bytes]


def _parts(data: bytes) -> tuple[list[tuple[str, float, int]], _Fields, _Fields]:
    """(piece, score, kind) of each piece in order, and the fields of its trainer's and its normalizer's settings."""
    pieces: list[tuple[str, float, int]] = []
    trainer: _Fields = {}
    rules: _Fields = {}
    for field, value in _fields(data):
        if field == 1:
            piece = dict(_fields(_bytes(value)))
            (score,) = struct.unpack("<f", _bytes(piece.get(2, b"\0\0\0\0")))
            kind = piece.get(3, _NORMAL)
            pieces.append((_bytes(piece.get(1, b"")).decode(), score, kind if isinstance(kind, int) else 0))
        elif field == 2:
            trainer = dict(_fields(_bytes(value)))
        elif field == 3:
            rules = dict(_fields(_bytes(value)))
    return pieces, trainer, rules


def _parsed(path: Path, data: bytes) -> _Model:
    pieces, trainer, rules = _parts(data)
    for _, _, kind in pieces:
        if kind in _TYPES:
            raise SourceError(f"{str(path)!r} has {_TYPES[kind]}, which are not read")
    scores = {piece: score for piece, score, kind in pieces if kind == _NORMAL}
    if trainer.get(3, 1) != 1:
        raise SourceError(f"{str(path)!r} is a {_MODELS.get(trainer[3], 'unknown')} model; Unigram ones are read")
    _refuse_options(
        path,
        (trainer.get(24, 0), "white space behind words"),
        (trainer.get(35, 0), "bytes for unknown characters"),
        (not rules.get(3, 1), "no space before a text"),
        (not rules.get(4, 1), "spaces kept as they are"),
        (not rules.get(5, 1), "spaces as spaces"),
    )
    if not scores or "" in scores or not all(map(math.isfinite, scores.values())):
        raise ValueError("it has no pieces" if not scores else "a piece is empty, or its score is no number")
    compiled = _bytes(rules.get(2, b""))
    if compiled and not are_rules(compiled):
        raise ValueError("its rules for characters lead out of their table")
    return _Model(scores, compiled)


def _refuse_options(path: Path, *options: tuple[object, str]) -> None:
    """Raises SourceError for the first option that is asked for; all of these are not supported."""
    for asked, name in options:
        if asked:
            raise SourceError(f"{str(path)!r} asks for {name}, which is not supported")


def read_llama(path: Path, *, prefix: bool, everywhere: bool) -> tokenizers.Tokenizer:
    """Llama's model: BPE over pieces, a character that is no piece as its bytes, spaces kept. With `prefix` a space
    goes before a text, with `everywhere` behind each special token as well.

    Raises SourceError for a file that is none, or asks for what is not supported.
    """
    try:
        pieces, trainer, rules = _parts(path.read_bytes())
    except (ValueError, IndexError, struct.error) as error:
        raise SourceError(f"{str(path)!r} is no SentencePiece model: {error}") from None
    ids = {piece: i for i, (piece, _, _) in enumerate(pieces)}
    kind = trainer.get(3, 1)
    _refuse_options(
        path,
        (kind != 2, f"a {_MODELS.get(kind, 'Unigram')} model, where Llama has BPE"),
        (any(f"<0x{byte:02X}>" not in ids for byte in range(256)), "no bytes for unknown characters"),
        (trainer.get(24, 0), "white space behind words"),
        (rules.get(2, b""), "rules that change characters"),
        (not rules.get(3, 1), "no space before a text"),
        (rules.get(4, 1), "spaces to be removed"),
        (not rules.get(5, 1), "spaces as spaces"),
    )
    merges = sorted(
        (i, at, len(piece) - at, piece)
        for i, (piece, _, _) in enumerate(pieces)
        for at in range(1, len(piece))
        if piece[:at] in ids and piece[at:] in ids
    )
    pairs = [(piece[:at], piece[at:]) for _, at, _, piece in merges]
    hf = tokenizers.Tokenizer(models.BPE(ids, pairs, fuse_unk=True, byte_fallback=True))
    scheme = "never" if not prefix else "always" if everywhere else "first"
    hf.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme, split=False)
    strip = [decoders.Strip(content=" ", left=1)] if prefix else []
    hf.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    marks = [(piece, kind) for piece, _, kind in pieces if kind in (_CONTROL, _USER)]
    hf.add_tokens([AddedToken(piece, special=kind == _CONTROL, normalized=False) for piece, kind in marks])
    return hf


def are_rules(compiled: bytes) -> bool:
    """Whether compiled rules can be followed, whatever the text: the library that follows them checks nothing.

    They are a length, a trie as a double array of 32-bit units (Darts), and the strings that its leaves point to.
    """
    size = int.from_bytes(compiled[:4], "little")
    if len(compiled) < 8 or size % 4 or not 0 < size <= len(compiled) - 4:
        return False
    units = np.frombuffer(compiled, dtype="<u4", count=size // 4, offset=4).astype(np.int64)
    strings = compiled[4 + size :]
    try:
        strings.decode()
    except UnicodeDecodeError:
        return False
    at = np.union1d(0, np.flatnonzero(units >> 31 == 0))  # the others are leaves; where one begins is no question
    nodes = units[at]
    first = at ^ (nodes >> 10 << ((nodes & 1 << 9) >> 6))  # where a node's children begin, its leaf before them
    if (first | 255).max(initial=255) >= len(units):
        return False
    points = units[first[(nodes & 1 << 8) > 0]] & (1 << 31) - 1
    letters = np.frombuffer(strings + b"\0", dtype=np.uint8)
    return bool((points <= len(strings)).all() and (letters[points] & 0xC0 != 0x80).all())


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where bytes belong")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message: integers of varints, bytes of all else."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind} at byte {at}")
        if at + size > len(data):
            raise ValueError(f"it ends in the middle of a field at byte {at}")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError(f"no number at byte {at}")
        byte = data[at]
        number, shift, at = number | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return number, at


# and back


def sentencepiece_files(source: tokenizers.Tokenizer, target: tokenizers.Tokenizer) -> dict[str, bytes]:
    """Name -> content of the three files that `read_sides` makes these two of."""
    forms = [json.loads(side.to_str()) for side in (source, target)]
    rows = [piece for piece, _ in forms[0]["model"]["vocab"]]
    numbers = {piece.removeprefix(OTHER): i for i, piece in enumerate(rows[: rows.index(OTHER)])}
    files = {name: _written(form) for name, form in zip(FILES, forms, strict=False)}
    return files | {"vocab.json": json.dumps(numbers, ensure_ascii=False).encode()}


def _written(form: JsonMapping) -> bytes:
    """A model file of one side."""
    marks = {mark["content"] for mark in form["added_tokens"]}
    pieces = [_piece(UNKNOWN, 0.0, _UNKNOWN), _piece("<s>", 0.0, _CONTROL), _piece(END, 0.0, _CONTROL)]
    for piece, score in form["model"]["vocab"]:
        if not piece.startswith(OTHER) and piece not in marks:
            pieces.append(_piece(piece, score, _NORMAL))
    rules = next((r for r in form["normalizer"]["normalizers"] if r["type"] == "Precompiled"), None)
    compiled = base64.b64decode(rules["precompiled_charsmap"]) if rules else b""
    trainer = bytes([3 << 3, 1])  # Unigram
    normalizer = _length(1, b"nmt_nfkc" if compiled else b"identity") + (_length(2, compiled) if compiled else b"")
    return b"".join(pieces) + _length(2, trainer) + _length(3, normalizer)


def _piece(piece: str, score: float, kind: int) -> bytes:
    data = _length(1, piece.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", score)
    return _length(1, data + (bytes([3 << 3, kind]) if kind != _NORMAL else b""))


def _length(field: int, data: bytes) -> bytes:
    size, out = len(data), bytes([field << 3 | 2])
    while size > 127:
        out, size = out + bytes([size & 127 | 128]), size >> 7
    return out + bytes([size]) + data
