"""The tokenizer of a checkpoint: its files and the ids of its marks, read and written.

A line of a pair stands behind a space and ends with the end token, as `qkv.data.pairs` cuts it; a tokenizer.json that
is written for others says so itself, and that is taken off again where it is read.
"""

import json
from pathlib import Path

from qkv.errors import SourceError
from qkv.interop.chat import CHAT_FILE
from qkv.interop.family import Family
from qkv.interop.folders import json_file, read_json, within
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.models.layout import ModelConfig
from qkv.tokenizers.sentencepiece import END, LLAMA_FILE, PAD, UNKNOWN, sentencepiece_files
from qkv.tokenizers.sentencepiece import FILES as SIDES
from qkv.tokenizers.slow_files import BESIDE, PAIRS
from qkv.tokenizers.tokenizer import Tokenizer, load_tokenizer

MARKS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
"""Keys of config.json that name the tokens which begin, end and fill texts; the last two are an encoder-decoder's."""
WHOLE = (("tokenizer.json",), SIDES, *PAIRS, (LLAMA_FILE,), ("vocab.txt",))
"""Files of which each tuple is a tokenizer; the first that is there is read."""
LARGEST_TOKENIZER = 512 << 20
SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "source.spm", "target.spm")
"""Files of tokenizers that are not read, unless they are all three of a translation's."""

_TOKEN_NAMES = {"[PAD]": "pad_token", "[UNK]": "unk_token", "[CLS]": "cls_token", "[SEP]": "sep_token"}
_TOKEN_NAMES |= {"[MASK]": "mask_token", "[END]": "eos_token"}
_SPACE = {"type": "Prepend", "prepend": " "}
_A, _B = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")


# reading


def read_marks(folder: Path, config: ModelConfig) -> dict[str, int | list[int]]:
    """The tokens that begin, end and fill texts; what generation_config.json says goes before config.json.

    Ids that are no row of the table stand for none: small models often keep those of a large one in their settings. The
    start of a target has to be one, since every target begins from it. Raises SourceError for what is no number of a
    token.
    """
    found: dict[str, int | list[int]] = {}
    for name in ("config.json", "generation_config.json"):
        given = read_json(folder, name) if (folder / name).exists() else {}
        for key in MARKS if config.kind == "EncoderDecoderLM" else MARKS[:3]:
            value = given.get(key)
            ids = value if isinstance(value, list) else [] if value is None else [value]
            whole = [i for i in ids if isinstance(i, int) and not isinstance(i, bool)]
            rows = [i for i in whole if 0 <= i < config.sizes.d_vocab]
            if len(whole) < len(ids) or (ids and not rows and key == "decoder_start_token_id"):
                raise SourceError(
                    f"{folder / name}: {key} is {str(value)[:40]}; expected the number of a token, 0 to"
                    f" {config.sizes.d_vocab - 1}"
                )
            if rows:
                found[key] = rows if len(rows) > 1 else rows[0]
    return found


def read_tokenizer(folder: Path, family: Family, config: ModelConfig, notes: list[str]) -> Tokenizer | None:
    """The folder's tokenizer. Raises SourceError where it is broken or has ids beyond the table."""
    if family.kind == "ImageClassifier":
        return None
    there = [name for name in dict.fromkeys(sum(WHOLE, BESIDE)) if (folder / name).exists()]
    for name in there:
        size = within(folder, name).stat().st_size
        if size > LARGEST_TOKENIZER:
            raise SourceError(f"{folder / name} has {size:,} bytes; a tokenizer has less than {LARGEST_TOKENIZER:,}")
    read, rows = next((names for names in WHOLE if set(names) <= set(there)), ()), config.sizes.d_vocab
    try:
        tokenizer = load_tokenizer(folder, rows=rows) if read else None
        why = _unread(folder)
    except SourceError as error:
        if read != (LLAMA_FILE,):
            raise
        tokenizer, why = None, f" ({error})"
    if tokenizer is None:
        notes.append(f"{folder} has no tokenizer that can be read{why}: the model takes ids, and no text")
        return None
    if config.kind == "EncoderDecoderLM" and (form := _without_line(json.loads(tokenizer.to_json()))):
        tokenizer = Tokenizer.from_json(json.dumps(form))
    tokenizer.framed = True
    if tokenizer.d_vocab > rows:
        token = tokenizer.token(tokenizer.d_vocab - 1)
        raise SourceError(
            f"the tokenizer of {folder} has ids up to {tokenizer.d_vocab - 1} ({token!r}), but the model's table of"
            f" tokens has {rows} rows (0 to {rows - 1})"
        )
    if rows > tokenizer.d_vocab:
        notes.append(
            f"the table has {rows} rows and the tokenizer {tokenizer.d_vocab} tokens: the last rows are no token"
        )
    return tokenizer


def _unread(folder: Path) -> str:
    """Which tokenizer files of a folder are of a kind that is not read, and what to do, in brackets; or ""."""
    names = [name for name in SENTENCEPIECE if (folder / name).exists()]
    if not names:
        return ""
    beside = "" if not set(names) & set(SIDES) else " but as " + " + ".join(SIDES)
    what = f"{names[0]} is" if len(names) == 1 else f"{' and '.join(names)} are"
    return (
        f" ({what} SentencePiece, which is not read{beside}; put a tokenizer.json with the same ids beside the weights)"
    )


# writing


def token_ids(tokenizer: Tokenizer | None, config: ModelConfig) -> dict[str, int | None]:
    """What config.json says of a tokenizer's special tokens.

    A target of ours begins from its end token, unless the tokenizer says another. A model that writes has null for each
    mark that it lacks: for a missing key transformers takes Llama's ids or Marian's, and a text would end at the first
    token that happens to have such a number.
    """
    marks = {"CausalLM": MARKS[:3], "EncoderDecoderLM": MARKS}.get(config.kind, ())
    absent: dict[str, int | None] = dict.fromkeys(marks)
    names = {"[PAD]": "pad_token_id", "[END]": "eos_token_id"}
    found = {key: tokenizer.special[name] for name, key in names.items() if tokenizer and name in tokenizer.special}
    if config.kind == "EncoderDecoderLM":
        end = found.get("eos_token_id", 0)
        start = tokenizer.start if tokenizer and tokenizer.start is not None else end
        found = {"eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start} | found
    return absent | found


def tokenizer_files(tokenizer: Tokenizer, config: ModelConfig, chat: JsonMapping) -> dict[str, bytes]:
    """Name -> content of tokenizer.json and what AutoTokenizer asks for; marks around a text only where the model
    learned them. `chat` is the model's chat template (`chat.read_chat`).

    One of two sides becomes the files that it came from: transformers' class for it reads no tokenizer.json.
    """
    n_ctx = config.sizes.n_ctx
    if tokenizer.source is not None:
        marks = {"eos_token": END, "unk_token": UNKNOWN} | ({"pad_token": PAD} if PAD in tokenizer.vocabulary else {})
        about = {"tokenizer_class": "MarianTokenizer", "model_max_length": n_ctx, **marks}
        sides = sentencepiece_files(tokenizer.source.hf, tokenizer.hf)
        return sides | {"tokenizer_config.json": json_file(about)}
    form = json.loads(tokenizer.to_json())
    spelled = {i: token for token, i in tokenizer.vocabulary.items()}
    if not tokenizer.framed and any(len(ids) for ids in tokenizer.frame):
        form["post_processor"] = None
    end, framed = tokenizer.end_id, any(len(ids) for ids in tokenizer.around)
    if config.kind == "EncoderDecoderLM" and end is not None and not framed:
        form |= _as_line(form, spelled[end], end)
    if tokenizer.columns > 1 and "[SEP]" in tokenizer.special:
        mark = spelled[tokenizer.special["[SEP]"]]
        form["post_processor"] = _template([_A], [_A, _mark(mark), _B], mark, tokenizer.special["[SEP]"])
    names = {key: spelled[tokenizer.special[ours]] for ours, key in _TOKEN_NAMES.items() if ours in tokenizer.special}
    if tokenizer.framed and len(tokenizer.frame[0]) and "bos_token" not in names:
        names["bos_token"] = spelled[int(tokenizer.frame[0][0])]
    if config.kind not in ("CausalLM", "MaskedLM"):  # several texts at a time are filled up with something
        filler = names.get("eos_token") or names.get("unk_token")
        names |= {"pad_token": filler} if filler and "pad_token" not in names else {}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": n_ctx, **names, **chat.get("tokens", {})}
    template = {CHAT_FILE: chat["template"].encode()} if chat else {}
    return template | {
        "tokenizer.json": json.dumps(form, ensure_ascii=False).encode(),
        "tokenizer_config.json": json_file(about | {"clean_up_tokenization_spaces": False}),
    }


def _as_line(form: JsonMapping, end: str, end_id: int) -> JsonObject:
    """What of a tokenizer.json puts a space before a text and the end token behind it."""
    before = [form["normalizer"]] if form.get("normalizer") else []
    one, other = ([text, _mark(end)] for text in (_A, _B))
    return {
        "normalizer": {"type": "Sequence", "normalizers": [_SPACE, *before]},
        "post_processor": _template(one, [*one, *other], end, end_id),
    }


def _template(one: list[JsonObject], two: list[JsonObject], mark: str, i: int) -> JsonObject:
    """What puts a special token, whose id is `i`, around a text and around two."""
    special = {mark: {"id": mark, "ids": [i], "tokens": [mark]}}
    return {"type": "TemplateProcessing", "single": one, "pair": two, "special_tokens": special}


def _mark(token: str) -> JsonObject:
    return {"SpecialToken": {"id": token, "type_id": 0}}


def _without_line(form: JsonMapping) -> JsonObject | None:
    """The tokenizer.json that `_as_line` was said of; None where it was not."""
    normalizer = form.get("normalizer") or {}
    pieces = normalizer.get("normalizers") or []
    if normalizer.get("type") != "Sequence" or pieces[:1] != [_SPACE]:
        return None
    rest = pieces[1:]
    return {**form, "normalizer": rest[0] if rest else None, "post_processor": None}
