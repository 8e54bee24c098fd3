"""Tokenizers from the files that came before tokenizer.json: a vocabulary, and JSON beside it that says how it is used.

The same vocab.json and merges.txt give other ids under another class of transformers: GPT-2, RoBERTa, GPT-NeoX and
Qwen2 each split a text by a rule of their own. So the class decides: the one that `tokenizer_class` names, else the one
of the model's type. Special tokens come from tokenizer_config.json, special_tokens_map.json and added_tokens.json. What
a file asks for and is not known here is refused by name; ids are those of transformers' AutoTokenizer (tested).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
from qkv.errors import SourceError
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.tokenizers.sentencepiece import LLAMA_FILE, read_llama
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

PAIRS = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")
"""Files that say how a vocabulary is used."""

_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NAMES: tuple[str, ...] = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_END = "<|endoftext|>"
_BERT: dict[str, str] = dict(zip(_NAMES[2:], ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"), strict=True))
_ROBERTA: dict[str, str] = dict(zip(_NAMES, ("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"), strict=True))
_LEGACY_MARKS = (_END, "<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""Special tokens of a pair that comes without any word about them."""


@dataclass(frozen=True, kw_only=True)
class _Class:
    """What a tokenizer class of transformers does with its vocabulary."""

    kind: str
    """bytes (BPE over bytes), pieces (WordPiece) or sentencepiece."""
    named: Mapping[str, str]
    """Its special tokens, where no file names others."""
    pattern: str = ""
    """How a text is split; empty is GPT-2's rule."""
    composed: bool = False
    """Whether a text is put into Unicode's composed form (NFC) first."""
    framed: bool = False
    """Whether cls_token and sep_token belong around a text."""


_GPT2 = _Class(kind="bytes", named=dict.fromkeys(_NAMES[:3], _END))
_OF_ROBERTA = _Class(kind="bytes", named=_ROBERTA, framed=True)
_NEOX = _Class(kind="bytes", named={**_GPT2.named, "pad_token": "<|padding|>"}, composed=True)
_QWEN2 = _Class(
    kind="bytes", named=dict.fromkeys(("eos_token", "unk_token", "pad_token"), _END), pattern=_QWEN, composed=True
)
_OF_BERT = _Class(kind="pieces", named=_BERT, framed=True)
_LLAMA = _Class(kind="sentencepiece", named={name: _ROBERTA[name] for name in _NAMES[:3]})
_CLASSES = {
    "GPT2Tokenizer": _GPT2,
    "CodeGenTokenizer": _GPT2,
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer"), _OF_ROBERTA),
    "GPTNeoXTokenizer": _NEOX,
    "Qwen2Tokenizer": _QWEN2,
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"), _OF_BERT),
    "LlamaTokenizer": _LLAMA,
}
_OF_TYPE = {
    "gpt2": "GPT2Tokenizer", "gpt_neox": "GPTNeoXTokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer",
    "roberta": "RobertaTokenizer", "bert": "BertTokenizer", "distilbert": "DistilBertTokenizer",
    "mistral": "MistralTokenizer",
}  # fmt: skip
"""model_type -> the class where no file names one."""
_UNTRUSTED = ("qwen2", "mistral")
"""Types whose files often name a class that is not theirs: transformers goes by the type, and so do we."""
_ANY = ("", "PreTrainedTokenizer", "TokenizersBackend")
"""Names that say nothing about the rules."""


@dataclass
class _Said:
    """What the files beside a vocabulary say of it."""

    folder: Path
    name: str = ""
    """The tokenizer's class, empty where nothing names it."""
    model_type: str = ""
    settings: JsonObject = field(default_factory=dict)
    """tokenizer_config.json, over special_tokens_map.json where it lists no added tokens itself."""
    added: dict[int, AddedToken] = field(default_factory=dict)
    """Tokens beside the vocabulary, by the ids that they must have."""

    def refuse(self, what: str) -> SourceError:
        """The error for what cannot be read as it stands."""
        return SourceError(f"{self.folder}: {what}; put a tokenizer.json with the same ids beside the weights")


def _said(folder: Path) -> _Said:
    """Raises ValueError for broken JSON."""
    settings, config = _json(folder / BESIDE[0]), _json(folder / BESIDE[3])
    declared = str(settings.get("tokenizer_class") or config.get("tokenizer_class") or "").removesuffix("Fast")
    model_type = str(config.get("model_type", ""))
    trusted = declared not in _ANY and model_type not in _UNTRUSTED
    said = _Said(folder, declared if trusted else _OF_TYPE.get(model_type, ""), model_type, settings)
    if "added_tokens_decoder" in settings:
        said.added = {int(i): _token(token) for i, token in settings["added_tokens_decoder"].items()}
        return said
    said.settings = settings | _json(folder / BESIDE[1])
    special = {_token(token).content for token in _special(said.settings).values()}
    for content, i in _json(folder / BESIDE[2]).items():
        said.added[int(i)] = AddedToken(content, normalized=content not in special, special=content in special)
    return said


def _json(path: Path) -> JsonObject:
    """The object in a file that may be missing."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return found


def _token(said: object) -> AddedToken:
    """A token as it is written in JSON: its spelling alone, or with its flags."""
    if isinstance(said, str):
        return AddedToken(said, special=True, normalized=False)
    if not isinstance(said, Mapping) or not isinstance(said.get("content"), str):
        raise ValueError(f"{str(said)[:60]!r} is no token")
    flags = {flag: bool(said[flag]) for flag in ("single_word", "lstrip", "rstrip", "normalized") if flag in said}
    return AddedToken(said["content"], special=bool(said.get("special", True)), **flags)


def _special(settings: JsonMapping) -> dict[str, object]:
    """The special tokens that settings name, by key or, of a list, by number."""
    found: dict[str, object] = {}
    for key, value in settings.items():
        if key in ("additional_special_tokens", "extra_special_tokens") and value:
            found |= value if isinstance(value, dict) else {f"{key}.{n}": token for n, token in enumerate(value)}
        elif key.endswith("_token") and isinstance(value, str | dict):
            found[key] = value
    return found


def _class_of(said: _Said, kind: str, file: str) -> _Class:
    """The rules of the class that the files name, of one that comes without any word about it the usual ones.

    Raises SourceError for a class that is not read, or that reads other files.
    """
    if not said.name and not said.model_type:
        return {"bytes": _GPT2, "pieces": _OF_BERT, "sentencepiece": _LLAMA}[kind]
    found, fine = _CLASSES.get(said.name), [name for name, one in _CLASSES.items() if one.kind == kind]
    if not said.name:
        raise said.refuse(f"the rules for {file} are not known: tokenizer_config.json names no tokenizer_class")
    if found is None or found.kind != kind:
        raise said.refuse(f"{file} of the tokenizer class {said.name} is not read, only of {', '.join(fine)}")
    return found


def _finish(hf: tokenizers.Tokenizer, said: _Said, rules: _Class, rows: int) -> tokenizers.Tokenizer:
    """Add the special tokens and what belongs around a text. `rows` bounds what a class adds unasked; 0 is nothing.

    Raises SourceError where an added token would get another id than the files say.
    """
    settings = said.settings
    usual = {name: token for name, token in rules.named.items() if name not in settings}
    given = _special(settings)
    names = {_token(token).content for token in (*usual.values(), *given.values())}
    for token in said.added.values():
        token.special = token.special or token.content in names
    known = {token.content for token in said.added.values()}
    hf.add_tokens([token for _, token in sorted(said.added.items())])
    for i, token in said.added.items():
        if (got := hf.token_to_id(token.content)) != i:
            raise said.refuse(f"the added token {token.content!r} has the id {i} by its file, and {got} by its place")
    spelled = dict.fromkeys(("bos_token", "eos_token", "add_bos_token", "add_eos_token"))
    spelled |= usual | {name: _token(token).content for name, token in given.items()}
    wanted = [(name, given.get(name, usual.get(name))) for name in _NAMES]
    wanted += [(name, token) for name, token in given.items() if name not in _NAMES]
    for name, said_token in wanted:
        token = None if said_token is None else _token(said_token)
        if token is None or token.content in known:
            continue
        if name in given or hf.token_to_id(token.content) is not None or hf.get_vocab_size() < rows:
            hf.add_special_tokens([token])
    sides = ("cls_token", "sep_token") if rules.framed else ("bos_token", "eos_token")
    frame = [spelled.get(name) if rules.framed or settings.get(f"add_{name}") else None for name in sides]
    marks = [mark for mark in frame if mark and hf.token_to_id(mark) is not None]
    if marks:
        first, last = (f"{mark} " if mark in marks else "" for mark in frame)
        hf.post_processor = processors.TemplateProcessing(
            single=f"{first}$A {last}".strip(),
            pair=f"{first}$A {last}$B:1 {last}".strip(),
            special_tokens=[(mark, hf.token_to_id(mark)) for mark in dict.fromkeys(marks)],
        )
    return hf


# the three kinds of vocabularies


def read_pair(vocabulary_path: Path, merges_path: Path, rows: int) -> tokenizers.Tokenizer:
    """Byte-level BPE as published with GPT-2 (Radford et al. 2019): token -> id, and merges in order."""
    said = _said(vocabulary_path.parent)
    rules = _class_of(said, "bytes", f"{vocabulary_path.name} + {merges_path.name}")
    vocabulary: dict[str, int] = json.loads(vocabulary_path.read_text(encoding="utf-8"))
    lines = merges_path.read_text(encoding="utf-8").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line.strip() and not line.startswith("#version")]
    if any(len(pair) != 2 for pair in merges):
        raise SourceError(f"{str(merges_path)!r} is no list of merges: expected two pieces a line")
    hf = tokenizers.Tokenizer(models.BPE(vocabulary, merges))  # type: ignore[arg-type]
    prefix = bool(said.settings.get("add_prefix_space") or False)
    if rules.composed:
        hf.normalizer = normalizers.NFC()
    whole = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not rules.pattern)
    split = [pre_tokenizers.Split(Regex(rules.pattern), "isolated"), whole] if rules.pattern else []
    hf.pre_tokenizer = pre_tokenizers.Sequence(split) if split else whole
    hf.decoder = decoders.ByteLevel()
    hf.post_processor = processors.ByteLevel(trim_offsets=False)
    if not said.name and not said.settings and not said.added:
        hf.add_special_tokens([_token(mark) for mark in _LEGACY_MARKS if mark in vocabulary])
        return hf
    return _finish(hf, said, rules, rows)


def read_wordpiece(path: Path, rows: int) -> tokenizers.Tokenizer:
    """A WordPiece vocabulary, one token a line (Devlin et al. 2019, arXiv 1810.04805).

    Text is put in lower case and loses its accents as tokenizer_config.json or the class says; of a vocabulary that
    comes alone, where it holds no capital letter.
    """
    said = _said(path.parent)
    rules = _class_of(said, "pieces", path.name)
    lines = path.read_text(encoding="utf-8").split("\n")
    tokens = [line.rstrip("\r") for line in lines[: -1 if lines[-1] == "" else None]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    unknown = _token(said.settings.get("unk_token") or rules.named["unk_token"]).content
    if unknown not in vocabulary:
        raise SourceError(f"{str(path)!r} is no WordPiece vocabulary: it has no line {unknown}")
    uncased = not any("A" <= c <= "Z" for token in tokens if not token.startswith("[") for c in token)
    lowercase = said.settings.get("do_lower_case", uncased or said.name in _CLASSES)
    hf = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    hf.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=said.settings.get("tokenize_chinese_chars", True),
        strip_accents=said.settings.get("strip_accents"),
        lowercase=bool(lowercase),
    )
    hf.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    hf.decoder = decoders.WordPiece()
    return _finish(hf, said, rules, rows)


def read_sentencepiece(folder: Path, rows: int) -> tokenizers.Tokenizer:
    """Llama's tokenizer.model: BPE over the pieces of SentencePiece, bytes for what they do not spell."""
    said = _said(folder)
    rules = _class_of(said, "sentencepiece", LLAMA_FILE)
    legacy, prefix = said.settings.get("legacy", False), said.settings.get("add_prefix_space")
    hf = read_llama(folder / LLAMA_FILE, prefix=prefix is not False, everywhere=bool(legacy))
    return _finish(hf, said, rules, rows)
