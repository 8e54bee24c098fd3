"""Tokenizers from files that others published: tokenizer.json, WordPiece vocab.txt, byte-level BPE pairs, SentencePiece
models of Llama or of two sides.

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
from qkv.signatures import refuse_pointer
from qkv.tokenizers.sentencepiece import FILES, LLAMA_FILE, are_rules, read_sides
from qkv.tokenizers.slow_files import BESIDE, PAIRS, read_pair, read_sentencepiece, read_wordpiece

SOURCE_FILE = "tokenizer.source.json"
"""Beside a tokenizer.json: the same for what is translated, where that is cut by another."""

_EXPECTED = (
    "tokenizer.json, vocab.txt (WordPiece), encoder.json + vocab.bpe, vocab.json + merges.txt, source.spm + "
    "target.spm + vocab.json, or Llama's tokenizer.model"
)


def read_tokenizer(path: Path, rows: int = 0) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer | None]:
    """The tokenizer in a file or folder, and that of the source side where there is another. `rows` is how many tokens
    the model has; 0 is as many as the files have.

    Raises SourceError where the path is missing, holds no tokenizer, or a broken one, DamagedFileError where it is that
    of a run and has changed since.
    """
    if not path.exists():
        raise missing_file(path, "tokenizer kind, file or folder")
    for file in _files_of(path):
        refuse_pointer(file)
    try:
        found = _from_folder(path, rows) if path.is_dir() else _from_file(path, rows)
    except (SourceError, DamagedFileError):
        raise
    except Exception as error:  # the library raises plain Exception for every broken file
        reason = str(error).splitlines()[0][:200]
        raise SourceError(f"{str(path)!r} is no tokenizer that can be read: {reason}") from None
    if found is None:
        raise SourceError(f"no tokenizer in {str(path)!r}; expected {_EXPECTED}")
    own, source = found if isinstance(found, tuple) else (found, None)
    for side in filter(None, (own, source)):
        # the library's other calls allocate every id up to the largest
        ids = side.get_vocab(with_added_tokens=True).values()
        if (largest := max(ids, default=0)) >= (most := 4 * len(ids) + 65_536):
            raise SourceError(
                f"{str(path)!r} has {len(ids):,} tokens and an id of {largest:,}; expected ids below {most:,}"
            )
    return own, source


def _files_of(path: Path) -> list[Path]:
    """The files that a tokenizer may be read from, in a folder or as that file alone."""
    names = ("tokenizer.json", "vocab.txt", LLAMA_FILE, SOURCE_FILE, *FILES, *PAIRS[0], *PAIRS[1], *BESIDE)
    return [path / name for name in names] if path.is_dir() else [path]


_Sides = tuple[tokenizers.Tokenizer, tokenizers.Tokenizer | None]


def _from_folder(folder: Path, rows: int) -> _Sides | tokenizers.Tokenizer | None:
    if (folder / "tokenizer.json").is_file():
        return _from_json(folder / "tokenizer.json")
    if all((folder / name).is_file() for name in FILES):
        source, target = read_sides(folder)
        return target, source
    for vocabulary, merges in PAIRS:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            return read_pair(folder / vocabulary, folder / merges, rows)
    if (folder / LLAMA_FILE).is_file():
        return read_sentencepiece(folder, rows)
    return read_wordpiece(folder / "vocab.txt", rows) if (folder / "vocab.txt").is_file() else None


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


def _from_file(path: Path, rows: int) -> _Sides | tokenizers.Tokenizer | None:
    for vocabulary, merges in PAIRS:
        if path.name in (vocabulary, merges):
            if not all((path.parent / name).is_file() for name in (vocabulary, merges)):
                raise SourceError(f"{str(path)!r} needs {vocabulary} and {merges} side by side")
            return read_pair(path.parent / vocabulary, path.parent / merges, rows)
    if path.name == LLAMA_FILE:
        return read_sentencepiece(path.parent, rows)
    if path.suffix == ".txt":
        return read_wordpiece(path, rows)
    return _from_json(path) if path.suffix == ".json" else None
