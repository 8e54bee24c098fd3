"""From a model of ours to one GGUF file, in the layouts and by the names of llama.cpp (ggml-org/ggml, docs/gguf.md).

llama.cpp knows a model by its architecture and computes what that has built in, so a model is written only where one of
them computes the same; any other is refused, with what stands in the way. Weights are float32: quantizing is
llama.cpp's own step. Where it has no tokenizer of the model's kind, the file says so and takes token ids.
"""

import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from qkv.errors import ConfigError, RunFolderError
from qkv.folder.run_folder import check_place, write_atomically
from qkv.interop.exporting import Fit, first_fit, stored_tensors
from qkv.interop.families import FAMILIES
from qkv.interop.family import Family, attention, linear, norm, row
from qkv.interop.name_map import STACKED, TRANSPOSED, Form, Row
from qkv.interop.tokenizer_files import token_ids
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.models.layout import ModelConfig, turned_width
from qkv.models.positions import SLOWED
from qkv.tokenizers.tokenizer import Tokenizer

Value = bool | int | float | str | list[str] | list[int]
"""What a key of the file holds."""

_ALIGNED = 32
"""Bytes: every tensor begins at a multiple of this."""


@dataclass(frozen=True)
class _Architecture:
    """One of llama.cpp's, as far as it differs from others here."""

    name: str
    """`general.architecture`."""
    joined: bool = False
    """Whether q, k and v are one matrix; such an architecture has biases everywhere, and GELU by its tanh form."""
    pairs: bool = False
    """Whether rotary positions turn neighboring coordinates; then W_Q and W_K are written in that order."""
    biases: tuple[str, ...] = ("none",)
    """Which attention biases it has (`Layout.biased`)."""


ARCHITECTURES: Mapping[str, _Architecture] = {
    "qwen3": _Architecture("qwen3"),
    "llama": _Architecture("llama", pairs=True, biases=("none", "qkv", "all")),
    "mistral": _Architecture("llama", pairs=True),
    "qwen2": _Architecture("qwen2", biases=("qkv",)),
    "gpt2": _Architecture("gpt2", joined=True, biases=("all",)),
    "gpt_neox": _Architecture("gptneox", joined=True, biases=("all",)),
}
"""Family of transformers -> the architecture of llama.cpp that computes the same."""

_WORDS, _DIGITS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|", r"\p{N}"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PRE_TOKENIZERS = {_WORDS + _DIGITS + "{1,3}" + _REST: "llama-bpe", _WORDS + _DIGITS + _REST: "qwen2"}
"""Pattern of a Split before byte-level BPE -> llama.cpp's name for it; without one, ByteLevel's own is "gpt-2"."""


def _paired(d_head: int) -> Form:
    """The rows of heads, [out, in] or a bias [out], so that coordinate i's partner i + d_head / 2 follows it."""
    return Form(
        TRANSPOSED.stored_shape,
        lambda stored, shapes: [stored.unflatten(0, (-1, d_head // 2, 2)).transpose(1, 2).flatten(0, 2).t()],
        lambda parts: parts[0].t().unflatten(0, (-1, 2, d_head // 2)).transpose(1, 2).flatten(0, 2),
    )


def write_gguf(
    config: ModelConfig,
    state: Mapping[str, Tensor],
    tokenizer: Tokenizer | None,
    out: Path,
    *,
    name: str,
    wanted: str = "",
    marks: JsonMapping | None = None,
    chat: JsonMapping | None = None,
) -> Fit:
    """Write a model as the file `out`; returns the family that it was written as, and notes for the user.

    `name` is what the file calls the model; the other arguments are those of `exporting.write_checkpoint`.

    Raises ConfigError where llama.cpp has no architecture for the model, RunFolderError where `out` is taken,
    StorageError where it cannot be written.
    """
    check_file(out)
    family, architecture, notes = _fit(config, wanted)
    tensors = stored_tensors(_as_stored(family, architecture), config, state)
    if architecture.name == "gptneox":  # which reads no output matrix from the embedding
        tensors.setdefault("output.weight", tensors["token_embd.weight"])
    if (factors := _slowed(config)) is not None:
        tensors["rope_freqs.weight"] = factors
    about: dict[str, Value] = {"general.architecture": architecture.name, "general.name": name, "general.file_type": 0}
    about |= {f"{architecture.name}.{key}": value for key, value in _settings(config, architecture).items()}
    ids = {**token_ids(tokenizer, config), **(marks or {})}
    about |= _tokenizer_keys(tokenizer, config, ids, notes)
    if chat:
        about["tokenizer.chat_template"] = chat["template"]
    write_atomically(out, _chunks(about, tensors))
    return Fit(family, family.auto, notes=tuple(notes))


def check_file(out: Path) -> None:
    """Make sure that the file `out` may be made. Raises RunFolderError where it is there, UserError where it cannot."""
    if os.path.lexists(out):
        raise RunFolderError(f"{out} is there already; choose another --out")
    check_place(out)


def _fit(config: ModelConfig, wanted: str) -> tuple[Family, _Architecture, list[str]]:
    """The family and architecture that a model is of, and what is not quite the same. Raises ConfigError."""
    refused = "--format huggingface and --format onnx can hold it"
    if config.kind != "CausalLM":
        raise ConfigError(
            f"a GGUF file holds a model that predicts the next token, a CausalLM and no {config.kind}; {refused}"
        )
    fit = first_fit(config, [FAMILIES[name] for name in sorted(ARCHITECTURES, key=lambda name: name != wanted)])
    if (family := fit.family) is None:
        raise ConfigError(f"qkv writes no architecture of llama.cpp for this model: {fit.why_not}; {refused}")
    architecture, layout = ARCHITECTURES[family.name], config.layout
    scaling = layout.rope_scaling
    obstacles = {
        f"attention_bias = {layout.biased}": layout.biased not in architecture.biases,
        f"scale = {layout.scale}": not layout.scale,
        f"window = {layout.window}": bool(layout.window),
        f"mlp = {layout.mlp}": architecture.joined and layout.mlp not in ("gelu", "gelu_tanh"),
        f"rope_share = {layout.rope_share:g}": architecture.name != "gptneox" and layout.rope_share != 1,
        f"rope_scaling = {scaling.kind}": scaling.kind not in ("none", "linear") and architecture.name != "llama",
        f"rope_scaling.stretch = {scaling.stretch:g}": scaling.stretch != 1,
    }
    if lacks := [what for what, there in obstacles.items() if there]:
        raise ConfigError(f"llama.cpp's {architecture.name} has not {', '.join(lacks)}; {refused}")
    approximated = "llama.cpp computes GELU by its tanh approximation: its logits differ slightly from this model's"
    return family, architecture, [approximated] if layout.mlp == "gelu" else []


def _as_stored(family: Family, architecture: _Architecture) -> Family:
    """The family by llama.cpp's names of its tensors."""
    block = "blk.{L}."

    def rows(config: ModelConfig) -> list[Row]:
        heads = attention(block, "attn_q attn_k attn_v attn_output")
        if architecture.pairs:
            form = _paired(config.sizes.d_head)
            turned = "attn_q.", "attn_k."
            heads = [replace(one, form=form) if any(name in one.stored for name in turned) else one for one in heads]
        if architecture.joined:
            for what, kind in (("weight", "W"), ("bias", "b")):
                parts = (f"L{{L}}.{kind}_{one}" for one in "QKV")
                heads = [row(f"{block}attn_qkv.{what}", *parts, form=STACKED), *heads]
            heads = heads[:2] + heads[8:]
        return [
            row("token_embd.weight", "W_E"),
            row("position_embd.weight", "W_pos"),
            *norm(f"{block}attn_norm", "L{L}.norm1"),
            *heads,
            row(f"{block}attn_q_norm.weight", "L{L}.qnorm.gain"),
            row(f"{block}attn_k_norm.weight", "L{L}.knorm.gain"),
            *norm(f"{block}ffn_norm", "L{L}.norm2"),
            *linear(f"{block}ffn_gate", "L{L}.W_gate"),
            *linear(f"{block}ffn_up", "L{L}.W_in", "L{L}.b_in"),
            *linear(f"{block}ffn_down", "L{L}.W_out", "L{L}.b_out"),
            *norm("output_norm", "norm_f"),
            row("output.weight", "W_U", form=TRANSPOSED),
        ]

    return replace(family, rows=rows)


def _settings(config: ModelConfig, architecture: _Architecture) -> dict[str, Value]:
    """What follows the architecture's name in the file's keys."""
    sizes, layout = config.sizes, config.layout
    eps = "attention.layer_norm_rms_epsilon" if layout.norm == "rms" else "attention.layer_norm_epsilon"
    settings: dict[str, Value] = {
        "vocab_size": sizes.d_vocab,
        "context_length": sizes.n_ctx,
        "embedding_length": sizes.d_model,
        "block_count": sizes.n_layers,
        "feed_forward_length": sizes.d_mlp,
        "attention.head_count": sizes.n_heads,
        "attention.head_count_kv": sizes.n_kv_heads,
        "attention.key_length": sizes.d_head,
        "attention.value_length": sizes.d_head,
        eps: layout.norm_eps,
    }
    if layout.positions == "rotary":
        settings["rope.dimension_count"] = turned_width(sizes.d_head, layout.rope_share)
        settings["rope.freq_base"] = layout.rope_base
    if layout.rope_scaling.kind == "linear":
        settings |= {"rope.scaling.type": "linear", "rope.scaling.factor": layout.rope_scaling.factor}
    if architecture.name == "gptneox":
        settings["use_parallel_residual"] = layout.parallel
    return settings


def _slowed(config: ModelConfig) -> Tensor | None:
    """What each pair's angle is divided by, float32 [d_head / 2]; None where one factor or none serves all pairs."""
    layout = config.layout
    if layout.rope_scaling.kind in ("none", "linear"):
        return None
    width = turned_width(config.sizes.d_head, layout.rope_share)
    return (1 / SLOWED[layout.rope_scaling.kind](layout.rope_scaling, width, layout.rope_base)).float()


def _tokenizer_keys(
    tokenizer: Tokenizer | None, config: ModelConfig, ids: JsonMapping, notes: list[str]
) -> dict[str, Value]:
    """The tokenizer as llama.cpp reads it; where it has none of the kind, none, with tokenizer.json for others."""
    form: JsonObject = json.loads(tokenizer.to_json()) if tokenizer else {}
    before = _pre_tokenizer(form)
    if tokenizer is None or not before:
        kind = f"of this kind ({tokenizer.kind})" if tokenizer else "in the run"
        whose = "llama.cpp has no tokenizer" if tokenizer else "There is no tokenizer"
        notes.append(f"{whose} {kind}, so the file takes token ids and no text")
        none: dict[str, Value] = {"tokenizer.ggml.model": "none"}
        return none | ({"tokenizer.huggingface.json": tokenizer.to_json()} if tokenizer else {})
    spelled = {i: token for token, i in tokenizer.vocabulary.items()}
    special = {token["id"]: 3 if token["special"] else 4 for token in form["added_tokens"]}
    rows = range(config.sizes.d_vocab)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in form["model"]["merges"]]
    keys: dict[str, Value] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": before,
        "tokenizer.ggml.tokens": [spelled.get(i, f"[PAD{i}]") for i in rows],
        "tokenizer.ggml.token_type": [special.get(i, 1) if i in spelled else 5 for i in rows],  # as gguf.TokenType
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": bool(len(tokenizer.around[0])),
    }
    names = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    for ours, theirs in names.items():
        value = ids.get(ours)
        if value is not None:
            keys[f"tokenizer.ggml.{theirs}"] = value[0] if isinstance(value, list) else value
    if "tokenizer.ggml.eos_token_id" not in keys:
        notes.append("The tokenizer has no end token, and llama.cpp then takes token 11; generate with --ignore-eos")
    return keys


def _pre_tokenizer(form: JsonMapping) -> str:
    """llama.cpp's name for how a tokenizer.json cuts texts before byte-level BPE; "" where it has none."""
    model, stage = form.get("model", {}), form.get("pre_tokenizer") or {}
    normal = (form.get("normalizer") or {}).get("type")
    if model.get("type") != "BPE" or not model["merges"] or model.get("byte_fallback"):
        return ""
    plain = {"type": "ByteLevel", "add_prefix_space": False}
    if normal is None and stage.get("use_regex", True) and plain.items() <= stage.items():
        return "gpt-2"
    first, *rest = stage.get("pretokenizers") or [{}]
    byte_level = len(rest) == 1 and (plain | {"use_regex": False}).items() <= rest[0].items()
    if not byte_level or normal not in (None, "NFC") or first.get("behavior") != "Isolated" or first.get("invert"):
        return ""
    return PRE_TOKENIZERS.get((first.get("pattern") or {}).get("Regex", ""), "")


# the file


def _chunks(about: Mapping[str, Value], tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes of a GGUF file, version 3: header, keys, the place of every tensor, the tensors."""
    head = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(about))]
    head += [_text(key) + _value(value) for key, value in about.items()]
    place = 0
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)[::-1]  # the dimension that lies together comes first
        head.append(_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, place))  # 0: float32
        place += _up(4 * tensor.numel())
    whole = b"".join(head)
    yield whole.ljust(_up(len(whole)), b"\0")
    for tensor in tensors.values():
        numbers = tensor.to("cpu", torch.float32).contiguous().numpy()
        yield numbers.data.cast("B")
        yield bytes(_up(numbers.nbytes) - numbers.nbytes)


def _up(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNED) * _ALIGNED


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    """The number of a value's type, and the value; whole numbers are unsigned, and signed within a list."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int | float):
        return struct.pack("<II", 4, value) if isinstance(value, int) else struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    texts = [_text(item) for item in value if isinstance(item, str)]
    items = b"".join(texts) if texts else struct.pack(f"<{len(value)}i", *value)
    return struct.pack("<IIQ", 9, 8 if texts else 5, len(value)) + items
