"""A tokenizer: text to ids and back, fitted to a text or read from files, always kept as an HF `tokenizer.json`.

Six kinds are fitted: char, byte, word, bpe, wordpiece, unigram (`fitting`); those that others published are read
(`pretrained`). Text is always plain text: a special token spelled out in it, such as "[MASK]", is its letters, unless
`encode(text, special=True)` asks for the token.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

import tokenizers
from qkv.errors import SourceError, UserError, first_line
from qkv.jsontypes import JsonObject
from qkv.tokenizers.encoding import (
    BYTE_CHARACTERS,
    EVERY_CHARACTER,
    ByteCodec,
    CharCodec,
    Codec,
    HfCodec,
    SideCodec,
    UnitCodec,
    splitting_of,
    whole_characters,
)
from qkv.tokenizers.fitting import KINDS, fit, vocabulary_law
from qkv.tokenizers.pretrained import SOURCE_FILE, read_tokenizer
from qkv.tokenizers.sentencepiece import OTHER, is_side
from tokenizers import AddedToken

__all__ = ["KINDS", "Tokenizer", "fit_tokenizer", "load_tokenizer", "vocabulary_law"]

SPECIALS = {
    "[PAD]": ("[PAD]", "<pad>", "<|padding|>"),
    "[UNK]": ("[UNK]", "<unk>"),
    "[CLS]": ("[CLS]", "<cls>", "<s>"),
    "[SEP]": ("[SEP]", "</s>"),
    "[MASK]": ("[MASK]", "<mask>"),
    "[END]": ("[END]", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[SEP]", "</s>"),
}
"""Our names for special tokens, and the spellings that they are known by, likeliest first."""

TASK_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""What masked and labelled tasks need."""

UNKNOWN_MARK = "\ufffd"
_BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


class Readable(dict[str, int]):
    """Every name of a token -> id, and how a text that is no token is cut."""

    def __init__(self, names: Mapping[str, int], cut: Callable[[str], list[str]]) -> None:
        super().__init__(names)
        self.cut = cut
        """A text -> the tokens that it becomes, as a person reads them."""


class Tokenizer:
    """Text to ids and back."""

    def __init__(self, hf: tokenizers.Tokenizer) -> None:
        hf.no_padding()
        hf.no_truncation()
        self.hf = hf
        """The library's tokenizer, as written to tokenizer.json."""
        self.framed = False
        """Whether the model learned texts with the marks that the template puts around them ([CLS] and [SEP], say)."""
        self.columns = 1
        """How many texts with [SEP] between two the model learned to read as one."""
        self.unread = ""
        """Why the model does not read a text by itself, in a sentence; empty where it does."""
        self.ends: tuple[int, ...] = ()
        """More tokens that end a text of the model, as the files of an imported one say."""
        self.start: int | None = None
        """The token that a target of an imported encoder-decoder begins from; None where that is its end. Models with a
        tokenizer for each side, as Marian's, begin from [PAD]."""
        self.source: Tokenizer | None = None
        """What cuts the source of a translation, with the same ids; None where that is this one."""
        form = json.loads(hf.to_str())
        self.kind: str = _kind(form)
        """char, byte, word, bpe, wordpiece, unigram, or other."""
        numbered = hf.get_vocab(with_added_tokens=True)
        last = numbered.get(OTHER) if is_side(form) else None
        self.vocabulary: dict[str, int] = {t: i for t, i in numbered.items() if last is None or i < last}
        """Token as spelled in tokenizer.json -> id, special tokens included."""
        self.d_vocab: int = max(self.vocabulary.values(), default=-1) + 1
        """Ids are 0 to d_vocab - 1."""
        decoder = hf.get_added_tokens_decoder()
        added = {token.content: i for i, token in decoder.items() if token.special}
        self.special: dict[str, int] = {}
        """Our name of each special token there is ([PAD] [UNK] [CLS] [SEP] [MASK] [END]) -> id."""
        for name, spellings in SPECIALS.items():
            for spelling in spellings:
                if spelling in added or (name == "[UNK]" and spelling in self.vocabulary):
                    self.special[name] = self.vocabulary[spelling]
                    break
        self._byte_level = _is_byte_level(form)
        self._spaced = self.kind == "unigram" or (self.kind == "bpe" and not self._byte_level)
        """Whether U+2581 stands for a space in its tokens."""
        self._added = added
        self._matched = frozenset(i for i, token in decoder.items() if not token.special)
        self.special_ids: frozenset[int] = frozenset({*added.values(), *self.special.values()})
        """Ids of all special tokens, of those too that an imported one has beyond ours."""
        self._by_id = {i: token for token, i in self.vocabulary.items()}
        self._two_sided = last is not None
        marked = self.vocabulary.items() if self._two_sided else ()
        self._others = {t.removeprefix(OTHER): i for t, i in marked if t.startswith(OTHER)}
        self.plain = tokenizers.Tokenizer.from_str(hf.to_str())
        """The same, to which special tokens spelled in a text are letters."""
        self.plain.encode_special_tokens = True
        self._codec = _codec(self, form, self.plain)
        self.always_lossless: bool = self.kind == "byte" or (self.kind == "bpe" and _spells_every_byte(form))
        """Whether decode(encode(text)) == text for every text."""

    @property
    def of_source(self) -> "Tokenizer":
        """What cuts the source of a translation."""
        return self.source or self

    @property
    def end_id(self) -> int | None:
        """The token that stands between documents, or None."""
        return self.special.get("[END]")

    @cached_property
    def frame(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids that its files' own template puts before and after a text: two int64 arrays, mostly empty."""
        with _applied():
            inside, whole = (self.plain.encode("a", add_special_tokens=added).ids for added in (False, True))
        n = len(inside)
        start = next((i for i in range(len(whole) - n + 1) if whole[i : i + n] == inside), len(whole))
        return np.array(whole[:start], dtype=np.int64), np.array(whole[start + n :], dtype=np.int64)

    @property
    def around(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids that the model expects before and after a text that it is asked about: its frame where it is `framed`."""
        empty = np.empty(0, dtype=np.int64)
        return self.frame if self.framed else (empty, empty)

    def encode_whole(self, text: str, special: bool = False) -> np.ndarray:
        """Ids of a text by itself as the model expects it: `encode(text)` with what belongs `around` it, int64.

        Raises UserError for a model that reads none.
        """
        if self.unread:
            raise UserError(self.unread)
        before, after = self.around
        return np.concatenate([before, self.encode(text, special=special), after])

    @property
    def unknown_id(self) -> int | None:
        """The token for what the vocabulary does not hold, or None where it spells everything."""
        return self.special.get("[UNK]")

    @cached_property
    def surfaces(self) -> dict[int, str]:
        """id -> the letters that the token stands for inside a text: as read, without `##`."""
        continued = self.kind == "wordpiece"
        read = {i: self.token(i) for i in self._by_id}
        return {i: t[2:] if continued and t.startswith("##") and len(t) > 2 else t for i, t in read.items()}

    def encode(self, text: str, special: bool = False) -> np.ndarray:
        """Ids of a text, int64 [n_tokens]; nothing is put before or after it.

        With `special` a special token spelled in the text, such as "[MASK]", becomes that token; [SEP] between
        `columns` does in any case.
        """
        if special and self._added:
            if self.kind not in ("char", "byte"):
                if self._two_sided:
                    return _side_codec(self, self.hf).encode_many([whole_characters(text)])[0]
                with _applied():
                    found = self.hf.encode(whole_characters(text), add_special_tokens=False)
                return np.array(found.ids, dtype=np.int64)
            parts = re.split("(" + "|".join(map(re.escape, self._added)) + ")", text)
            found = [np.array([self._added[part]]) if i % 2 else self.encode(part) for i, part in enumerate(parts)]
            return np.concatenate(found)
        mark = self.special.get("[SEP]", -1)
        ids, lengths = self.encode_many([text] if mark < 0 else text.split(" [SEP] ", self.columns - 1))
        return np.insert(ids.astype(np.int64), np.cumsum(lengths)[:-1], mark)

    def encode_many(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of many texts one after another, integers [n_tokens], and the length of each, int64 [n_texts]."""
        if not texts:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        with _applied():
            try:
                return self._codec.encode_many(texts)
            except (UnicodeEncodeError, TypeError):  # half of a surrogate pair is no character
                return self._codec.encode_many([whole_characters(text) for text in texts])

    def offsets(self, text: str) -> np.ndarray | None:
        """First character and end of each token of `encode(text)`, int64 [n_tokens, 2]; None where the library cuts
        the text otherwise.
        """
        whole = whole_characters(text)
        with _applied():
            found = self.hf.encode(whole, add_special_tokens=False)
        is_same = np.array_equal(np.asarray(found.ids, dtype=np.int64), self.encode(whole))
        return np.array(found.offsets, dtype=np.int64).reshape(-1, 2) if is_same else None

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of some ids; special tokens are left out, save the unknown one of `char`, which shows as U+FFFD."""
        numbers = [int(i) for i in ids]
        if self.kind == "char":
            marks = {i: "" for i in self.special_ids}
            marks[self.special.get("[UNK]", -1)] = UNKNOWN_MARK
            return "".join(marks[i] if i in marks else self._by_id.get(i, "") for i in numbers)
        if self.kind == "byte":
            return bytes(i for i in numbers if i < 256).decode("utf-8", "replace")
        text = self.hf.decode([i for i in numbers if i in self._by_id], skip_special_tokens=True)
        return text.replace(OTHER, "") if self._two_sided else text

    def token(self, i: int) -> str:
        """One token as a person reads it: its leading space as a space, `##` kept, part of a character as <0xE2>."""
        raw = self._by_id.get(int(i))
        if raw is None:
            return f"<{int(i)}>"
        if int(i) in self.special_ids:
            return raw
        if self._byte_level and int(i) not in self._matched:
            data = bytes(_BYTES.get(character, 0x3F) for character in raw)
            try:
                return data.decode()
            except UnicodeDecodeError:
                return f"<{'+'.join(f'0x{byte:02X}' for byte in data)}>"
        if self._two_sided:
            raw = raw.removeprefix(OTHER)
        return raw.replace("\u2581", " ") if self._spaced else raw

    @cached_property
    def readable(self) -> "Readable":
        """Every way to name one token -> id: as in tokenizer.json, as read, and bare ("the" for " the").

        A bare name that could be several tokens means the one at the beginning of a word, for it is the word.
        """
        shown = {self.token(i): i for i in self._by_id}
        bare = {token.strip(): i for token, i in shown.items() if token.strip()}
        words = {token[1:]: i for token, i in shown.items() if len(token) > 1 and token[0] == " " and token[1] != " "}
        return Readable(bare | shown | self.vocabulary | words, lambda text: [self.token(i) for i in self.encode(text)])

    def is_lossless(self, text: str) -> bool:
        """Whether decode(encode(text)) gives the text back; [UNK], shown as U+FFFD, is not that character."""
        ids = self.encode(text)
        return self.decode(ids) == text and not (self.unknown_id is not None and (ids == self.unknown_id).any())

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """The tokenizer of a tokenizer.json's content."""
        return cls(tokenizers.Tokenizer.from_str(text))

    def to_json(self) -> str:
        """The content of its tokenizer.json."""
        return self.hf.to_str(pretty=False)

    def files(self) -> dict[str, str]:
        """Name -> content of what a run folder keeps of it."""
        return {"tokenizer.json": self.to_json()} | ({SOURCE_FILE: self.source.to_json()} if self.source else {})

    @property
    def sha256(self) -> str:
        """Of its tokenizer.json."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write it as an HF tokenizers file, which `load_tokenizer` and the library itself read."""
        Path(path).write_text(self.to_json(), encoding="utf-8")


@contextlib.contextmanager
def _applied() -> Iterator[None]:
    """Tell what the library raises over a rule of a tokenizer.json, a plain Exception or a panic, as a SourceError."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        why = first_line(error) if isinstance(error, Exception) else "the library gave up"
        raise SourceError(f"a rule of tokenizer.json cannot be applied to this text ({why})") from None


def fit_tokenizer(
    kind: str, texts: Iterable[str], vocab: int = 0, *, specials: bool = False, end: bool = False
) -> Tokenizer:
    """A tokenizer of that kind fitted to the texts.

    vocab: its size with special tokens; 0 takes the least that `vocabulary_law` gives. With `specials` it has [PAD]
    [UNK] [CLS] [SEP] [MASK], else [UNK] where it is needed; `end` adds [END], the mark between documents, unless [SEP]
    is there.

    Raises ConfigError for an unknown kind or a vocabulary too small.
    """
    needs_unknown = kind not in ("byte", "bpe")
    names: list[str] = [*TASK_SPECIALS] if specials else ["[UNK]"] * needs_unknown
    if end and not specials:
        names.append("[END]")
    hf = fit(kind, texts, vocab or vocabulary_law(kind, 0), names)
    return Tokenizer.from_json(hf.to_str())  # as it will be read, to the last digit of a score


def load_tokenizer(path: Path | str, *, specials: bool = False, end: bool = False, rows: int = 0) -> Tokenizer:
    """A tokenizer from a file or folder; special tokens that are asked for and missing are added behind its own ids.
    `rows` is how many tokens its model has, where there is one.

    Raises SourceError where nothing there is a tokenizer.
    """
    own, source = read_tokenizer(Path(path), rows)
    tokenizer = Tokenizer(own)
    wanted = [*(TASK_SPECIALS if specials else ()), *(("[END]",) if end else ())]
    missing = [name for name in wanted if name not in tokenizer.special]
    if missing == ["[UNK]"] and tokenizer.always_lossless:
        missing = []
    if missing:
        tokenizer.hf.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in missing])
        tokenizer = Tokenizer(tokenizer.hf)
    if source is not None:
        tokenizer.source = Tokenizer(source)
        tokenizer.start = tokenizer.special.get("[PAD]")
    return tokenizer


def _kind(form: JsonObject) -> str:
    """What a tokenizer.json is, by its model and pre-tokenizer."""
    model, before = form["model"]["type"], form.get("pre_tokenizer") or {}
    if model == "WordLevel":
        return "char" if before.get("pattern") == {"Regex": EVERY_CHARACTER} else "word"
    if model == "BPE" and _is_byte_level(form):
        return "byte" if not form["model"]["merges"] and _bytes_are_ids(form) and not _matches_first(form) else "bpe"
    return {"BPE": "bpe", "WordPiece": "wordpiece", "Unigram": "unigram"}.get(model, "other")


def _is_byte_level(form: JsonObject) -> bool:
    before = form.get("pre_tokenizer") or {}
    stages = before.get("pretokenizers", [before])
    return any(stage.get("type") == "ByteLevel" for stage in stages)


def _matches_first(form: JsonObject) -> bool:
    """Whether it has added tokens that are not special: the library finds these in the raw text, before it is cut."""
    return any(not token["special"] for token in form["added_tokens"])


def _bytes_are_ids(form: JsonObject) -> bool:
    vocabulary = form["model"]["vocab"]
    return all(vocabulary.get(character) == byte for byte, character in enumerate(BYTE_CHARACTERS))


def _spells_every_byte(form: JsonObject) -> bool:
    """Byte-level BPE with all 256 bytes, nothing normalised, no space put in front, no token matched first."""
    before = form.get("pre_tokenizer") or {}
    plain = form.get("normalizer") is None and "add_prefix_space" in before and not before["add_prefix_space"]
    plain = plain and not _matches_first(form)
    decodes = (form.get("decoder") or {}).get("type") == "ByteLevel"
    return plain and decodes and all(c in form["model"]["vocab"] for c in BYTE_CHARACTERS)


def _side_codec(tokenizer: Tokenizer, hf: tokenizers.Tokenizer) -> SideCodec:
    return SideCodec(hf, tokenizer._others, tokenizer.d_vocab, tokenizer.special["[UNK]"])


def _codec(tokenizer: Tokenizer, form: JsonObject, plain: tokenizers.Tokenizer) -> Codec:
    """The quickest way that gives the library's ids."""
    if tokenizer._two_sided:
        return _side_codec(tokenizer, plain)
    if _matches_first(form):
        return HfCodec(plain)
    if tokenizer.kind == "char" and form.get("normalizer") is None and "[UNK]" in tokenizer.special:
        letters = {token: i for token, i in tokenizer.vocabulary.items() if i not in tokenizer.special_ids}
        return CharCodec(letters, tokenizer.special["[UNK]"])
    if tokenizer.kind == "byte" and form.get("normalizer") is None:
        return ByteCodec()
    splitting = splitting_of(form)
    return HfCodec(plain) if splitting is None else UnitCodec(plain, splitting)
