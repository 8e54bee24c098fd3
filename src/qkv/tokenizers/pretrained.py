"""Tokenizers from files that others published: tokenizer.json, WordPiece vocab.txt, byte-level BPE pairs, SentencePiece
models of two sides.

They give the published ids (tested against the reference cases of their authors). Nothing is downloaded here.
"""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import tokenizers
from qkv.errors import DamagedFileError, SourceError, missing_file
from qkv.folder.verified import check_file
from qkv.jsontypes import JsonObject
from qkv.signatures import refuse_pointer
from qkv.tokenizers.sentencepiece import FILES, are_rules, read_sides
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

__all__ = ["SOURCE_FILE", "is_nested", "read_tokenizer"]

PAIRS = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))

SOURCE_FILE = "tokenizer.source.json"
"""Beside a tokenizer.json: the same for what is translated, where that is cut by another."""

_EXPECTED = (
    "tokenizer.json, vocab.txt (WordPiece), encoder.json + vocab.bpe, vocab.json + merges.txt, or source.spm + "
    "target.spm + vocab.json"
)


def read_tokenizer(path: Path) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer | None]:
    """The tokenizer in a file or folder, and that of the source side where there is another.

    Raises SourceError where the path is missing, holds no tokenizer, or a broken one, DamagedFileError where it is that
    of a run and has changed since.
    """
    if not path.exists():
        raise missing_file(path, "tokenizer kind, file or folder")
    for file in _files_of(path):
        refuse_pointer(file)
    try:
        found = _from_folder(path) if path.is_dir() else _from_file(path)
    except (SourceError, DamagedFileError):
        raise
    except Exception as error:  # the library raises plain Exception for every broken file
        reason = str(error).splitlines()[0][:200]
        raise SourceError(f"{str(path)!r} is no tokenizer that can be read: {reason}") from None
    if found is None:
        raise SourceError(f"no tokenizer in {str(path)!r}; expected {_EXPECTED}")
    return found if isinstance(found, tuple) else (found, None)


def _files_of(path: Path) -> list[Path]:
    """The files that a tokenizer may be read from, in a folder or as that file alone."""
    names = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", SOURCE_FILE, *FILES, *PAIRS[0], *PAIRS[1])
    return [path / name for name in names] if path.is_dir() else [path]


_Sides = tuple[tokenizers.Tokenizer, tokenizers.Tokenizer | None]


def _from_folder(folder: Path) -> _Sides | tokenizers.Tokenizer | None:
    if (folder / "tokenizer.json").is_file():
        return _from_json(folder / "tokenizer.json")
    if all((folder / name).is_file() for name in FILES):
        source, target = read_sides(folder)
        return target, source
    for vocabulary, merges in PAIRS:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            return _byte_bpe(folder / vocabulary, folder / merges)
    return _wordpiece(folder / "vocab.txt") if (folder / "vocab.txt").is_file() else None


def _from_json(path: Path) -> _Sides:
    """A tokenizer.json, with its companion where there is one."""
    other = path.parent / SOURCE_FILE
    for file in (path, other):
        check_file(file)
    source = _json(other) if path.name == "tokenizer.json" and other.is_file() else None
    return _json(path), source


def _json(path: Path) -> tokenizers.Tokenizer:
    text = path.read_text(encoding="utf-8")
    normal = (json.loads(text).get("normalizer") or {}) if '"Precompiled"' in text else {}
    for rule in (normal, *normal.get("normalizers", [])):
        if rule.get("type") == "Precompiled" and not are_rules(base64.b64decode(rule["precompiled_charsmap"])):
            raise SourceError(f"{str(path)!r} is no tokenizer that can be read: its rules for characters are broken")
    for pattern in _patterns(json.loads(text)) if '"Regex"' in text else ():
        if is_nested(pattern):
            raise SourceError(
                f"{str(path)!r} is not read: its pattern {pattern[:60]!r} repeats what it repeats inside, on which"
                " matching a text may never end; write it without a repetition in a repetition"
            )
    return tokenizers.Tokenizer.from_str(text)


def _patterns(form: object) -> Iterator[str]:
    """Every regular expression in a tokenizer.json."""
    for name, inner in form.items() if isinstance(form, dict) else enumerate(form) if isinstance(form, list) else ():
        if name == "Regex" and isinstance(inner, str):
            yield inner
        else:
            yield from _patterns(inner)


def is_nested(pattern: str) -> bool:
    """Whether a group with an unbounded repetition inside is repeated without a bound, as in `(a+)+`: some texts then
    take a time that doubles with each character.
    """
    inside, repeats = [False], False
    for piece in re.findall(r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|[*+]|\{\d*,\d*\}|.", pattern, re.DOTALL):
        unbounded = piece in ("*", "+") or (piece[0] == "{" and piece.endswith(",}"))
        if unbounded and repeats:
            return True
        inside[-1] = inside[-1] or unbounded
        repeats = False
        if piece == "(":
            inside.append(False)
        elif piece == ")" and len(inside) > 1:
            repeats = inside.pop()
            inside[-1] = inside[-1] or repeats
    return False


def _from_file(path: Path) -> _Sides | tokenizers.Tokenizer | None:
    for vocabulary, merges in PAIRS:
        if path.name in (vocabulary, merges):
            if not all((path.parent / name).is_file() for name in (vocabulary, merges)):
                raise SourceError(f"{str(path)!r} needs {vocabulary} and {merges} side by side")
            return _byte_bpe(path.parent / vocabulary, path.parent / merges)
    if path.suffix == ".txt":
        return _wordpiece(path)
    return _from_json(path) if path.suffix == ".json" else None


def _settings(folder: Path) -> JsonObject:
    """What a tokenizer_config.json beside the vocabulary says, if there is one."""
    path = folder / "tokenizer_config.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _wordpiece(path: Path) -> tokenizers.Tokenizer | None:
    """A WordPiece vocabulary, one token a line (Devlin et al. 2019, arXiv 1810.04805).

    Text is put in lower case and loses its accents where the vocabulary holds no capital letter, unless a
    tokenizer_config.json says otherwise.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    tokens = [line.rstrip("\r") for line in lines[: -1 if lines[-1] == "" else None]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if "[UNK]" not in vocabulary:
        raise SourceError(f"{str(path)!r} is no WordPiece vocabulary: it has no line [UNK]")
    settings = _settings(path.parent)
    uncased = not any("A" <= c <= "Z" for token in tokens if not token.startswith("[") for c in token)
    lowercase = bool(settings.get("do_lower_case", uncased))
    hf = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    hf.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=lowercase,
    )
    hf.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    hf.decoder = decoders.WordPiece()
    specials = [name for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if name in vocabulary]
    hf.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    if "[CLS]" in vocabulary and "[SEP]" in vocabulary:
        hf.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    return hf


def _byte_bpe(vocabulary_path: Path, merges_path: Path) -> tokenizers.Tokenizer:
    """Byte-level BPE as published with GPT-2 (Radford et al. 2019): token -> id, and merges in order."""
    vocabulary: dict[str, int] = json.loads(vocabulary_path.read_text(encoding="utf-8"))
    lines = merges_path.read_text(encoding="utf-8").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line.strip() and not line.startswith("#version")]
    if any(len(pair) != 2 for pair in merges):
        raise SourceError(f"{str(merges_path)!r} is no list of merges: expected two pieces a line")
    hf = tokenizers.Tokenizer(models.BPE(vocabulary, merges))  # type: ignore[arg-type]
    prefix = bool(_settings(vocabulary_path.parent).get("add_prefix_space", False))
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    hf.decoder = decoders.ByteLevel()
    hf.post_processor = processors.ByteLevel(trim_offsets=False)
    marks = ("<|endoftext|>", "<s>", "<pad>", "</s>", "<unk>", "<mask>")
    hf.add_special_tokens([AddedToken(m, special=True, normalized=False) for m in marks if m in vocabulary])
    return hf
