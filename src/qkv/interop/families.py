"""The name map of every family of checkpoints: its configuration and its tensors, read in both directions.

One family is one entry of `FAMILIES`: decoders (GPT-2, Llama, Mistral, Qwen, GPT-NeoX), encoders (BERT, RoBERTa,
DistilBERT, ViT) and encoder-decoders (Marian). Addresses, shapes and what a layout can be are ours (`qkv.models`);
names are those of Hugging Face `transformers`. Rotary positions pair coordinate i with i + d/2 in both, so W_Q and W_K
are copied as they are; only weights in Meta's original Llama format pair neighbours, and those are not read here.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from qkv.extensions import Registry, instance_of
from qkv.interop.decoders import BIASED, DECODERS, GATED, GELU_NEW, SILU, decoder, sizes, tensors
from qkv.interop.encoders import ENCODERS, POOLER
from qkv.interop.family import ACTS, PLAIN, TABLE, TIED, TIED_USUALLY, Family, attention, idle, linear, mlp, norm, row
from qkv.interop.layers import Joint, unread, windows
from qkv.interop.name_map import BESIDE, ONE, SAME, TRANSPOSED, Form, Row, after, of_patches
from qkv.interop.settings import WORDS, YES_NO, Always, Dropout, ImageSize, Labels, Piece, Reading, Rope, Setting
from qkv.jsontypes import JsonMapping
from qkv.models import layout as layouts
from qkv.models.layout import ModelConfig

# GPT-2


def _gpt2_rows(config: ModelConfig) -> list[Row]:
    block = "transformer.h.{L}."

    def conv(name: str, kinds: str, form: Form = SAME) -> list[Row]:
        both = (("weight", "W"), ("bias", "b"))
        return [row(f"{block}{name}.{w}", *(f"L{{L}}.{x}_{k}" for k in kinds.split()), form=form) for w, x in both]

    return [
        row("transformer.wte.weight", "W_E"),
        row("transformer.wpe.weight", "W_pos"),
        *norm(f"{block}ln_1", "L{L}.norm1"),
        *conv("attn.c_attn", "Q K V", BESIDE),
        *conv("attn.c_proj", "O"),
        *norm(f"{block}ln_2", "L{L}.norm2"),
        *conv("mlp.c_fc", "in"),
        *conv("mlp.c_proj", "out"),
        *norm("transformer.ln_f", "norm_f"),
        TABLE,
    ]


GPT2 = replace(decoder(
    "gpt2", "GPT-2", "GPT2LMHeadModel", _gpt2_rows,
    Setting("vocab_size", "sizes.d_vocab", 50257), Setting("n_positions", "sizes.n_ctx", 1024),
    Setting("n_embd", "sizes.d_model", 768), Setting("n_layer", "sizes.n_layers", 12),
    Setting("n_head", "sizes.n_heads", 12), Setting("n_inner", "sizes.d_mlp", None), GELU_NEW,
    Setting("layer_norm_epsilon", "layout.norm_eps", 1e-5), Setting("scale_attn_weights", "layout.scale", True, YES_NO),
    TIED_USUALLY, Dropout(("resid_pdrop", "embd_pdrop"), ("attn_pdrop",), 0.1),
    Always("scale_attn_by_inverse_layer_idx", False), *idle(n_special=0),
    Always("predict_special_tokens", True, also=(False,), written=False),
    Always("reorder_and_upcast_attn", False, also=(True,)),  # the same product in float32: the model is float32
    base="transformer.", positions="learned", norm="layer", bias=True, start="gpt2",
), also=("GPT2Model",), buffers=("*.attn.bias", "*.attn.masked_bias"))  # fmt: skip


# Llama, Mistral, Qwen2, Qwen3

_NORMS = {"qnorm": "self_attn.q_norm", "knorm": "self_attn.k_norm"}
_GATED = {part: GATED[part] for part in ("W_E", "norm1", "QKVO")} | _NORMS


def _gated(name: str, title: str, *pieces: Piece, even_heads: bool = False, **layout: bool | str) -> Family:
    """A family of the layout of Llama: RMSNorm before each sublayer, rotary positions, SwiGLU."""
    family = decoder(
        name, title, f"{title}ForCausalLM", tensors({**_GATED, **GATED}), *sizes(32000, 4096, 32, 32, 2048, mlp=11008),
        Setting("rms_norm_eps", "layout.norm_eps", 1e-6), SILU, TIED, *pieces, Rope(),
        even_heads=even_heads,
    )  # fmt: skip
    return replace(family, layout={**family.layout, **layout})


_HEAD_DIM = Setting("head_dim", "sizes.d_head", None)
LLAMA = _gated(
    "llama", "Llama", _HEAD_DIM, BIASED, Always("mlp_bias", False),
    *idle(is_llama_config=True, rope_interleaved=False, activation="swiglu"), even_heads=True,
)  # fmt: skip
MISTRAL = _gated("mistral", "Mistral", _HEAD_DIM, windows(layered=False))
_QWEN_WINDOWS = windows(
    switch="use_sliding_window",
    usual=lambda n, reading: [
        "sliding_attention" if layer >= reading.number("max_window_layers", 28, whole=True) else "full_attention"
        for layer in range(n)
    ],
)
QWEN2 = _gated("qwen2", "Qwen2", _QWEN_WINDOWS, *idle(use_mrope=False), attention_bias="qkv", even_heads=True)
QWEN3 = _gated("qwen3", "Qwen3", Setting("head_dim", "sizes.d_head", 128), BIASED, _QWEN_WINDOWS, qk_norm=True)


# GPT-NeoX

_NEOX_ROWS = tensors(
    {
        "W_E": "gpt_neox.embed_in", "norm1": "input_layernorm",
        "QKV O": "attention.query_key_value attention.dense", "norm2": "post_attention_layernorm",
        "mlp": "mlp.dense_h_to_4h mlp.dense_4h_to_h", "norm_f": "gpt_neox.final_layer_norm", "W_U": "embed_out",
    }, "gpt_neox.layers.{L}.", interleaved=True,
)  # fmt: skip
NEOX = decoder(
    "gpt_neox", "GPT-NeoX", "GPTNeoXForCausalLM",
    # since version 5 of transformers a live model calls its output matrix lm_head
    lambda config: [*_NEOX_ROWS(config), replace(row("lm_head.weight", "W_U", form=TRANSPOSED), alias=True)],
    *sizes(50432, 6144, 44, 64, 2048, mlp=24576, kv=False), Setting("layer_norm_eps", "layout.norm_eps", 1e-5),
    Setting("hidden_act", "layout.mlp", "gelu", ACTS),
    Setting("use_parallel_residual", "layout.parallel", True, YES_NO),
    Setting("attention_bias", "layout.attention_bias", True, ((True, "same"), (False, "none"))), TIED,
    Dropout(("hidden_dropout",)),
    Rope("rotary_emb_base", "rotary_pct", share=0.25, shares=True, again=("rope_theta", "partial_rotary_factor")),
    *idle(attention_probs_dropout_prob=0, hidden_dropout_prob=0),
    base="gpt_neox.", norm="layer", bias=True, start="gpt2",
)  # fmt: skip


# ViT


def _vit_rows(config: ModelConfig) -> list[Row]:
    assert config.patches is not None
    cut = of_patches(config.patches.channels, config.patches.patch)
    rows = [
        row("vit.embeddings.cls_token", "W_token", form=ONE),
        row("vit.embeddings.position_embeddings", "W_pos", form=ONE),
        row("vit.embeddings.patch_embeddings.projection.weight", "W_E", form=cut),
        row("vit.embeddings.patch_embeddings.projection.bias", "b_E"),
        *norm("vit.layernorm", "norm_f"),
        *linear("classifier", "W_cls", "b_cls"),
    ]
    old = "attention.query attention.key attention.value output.dense", "intermediate.dense output.dense"
    new = "q_proj k_proj v_proj o_proj", "mlp.fc1 mlp.fc2"  # since version 5 of transformers
    for block, (heads, ways), alias in (("vit.encoder.layer.{L}.", old, False), ("vit.layers.{L}.", new, True)):
        named = attention(f"{block}attention.", heads) + mlp(block, ways)
        named += norm(f"{block}layernorm_before", "L{L}.norm1") + norm(f"{block}layernorm_after", "L{L}.norm2")
        rows += [replace(row, alias=alias) for row in named]
    return rows


VIT = Family(
    name="vit", title="ViT", kind="ImageClassifier", preset="gpt2", architecture="ViTForImageClassification",
    auto="AutoModelForImageClassification", base="vit.",
    pieces=(
        Setting("hidden_size", "sizes.d_model", 768), Setting("num_hidden_layers", "sizes.n_layers", 12),
        Setting("num_attention_heads", "sizes.n_heads", 12), Setting("intermediate_size", "sizes.d_mlp", 3072),
        Setting("hidden_act", "layout.mlp", "gelu", ACTS), Setting("layer_norm_eps", "layout.norm_eps", 1e-12),
        Setting("patch_size", "patches.patch", 16), Setting("num_channels", "patches.channels", 3), ImageSize(),
        Labels(), Always("qkv_bias", True),
        Always("encoder_stride", 16, written=False, also=tuple(range(1, 257))),  # of another head
        Always("pooler_output_size", None, written=False, also=tuple(range(1, 8193))),
        Always("pooler_act", "tanh", written=False),
        Dropout(("hidden_dropout_prob",), ("attention_probs_dropout_prob",)), *PLAIN,
    ),
    layout={"positions": "learned", "norm": "layer", "bias": True, "tied": False, "pool": "class", "start": "bert"},
    rows=_vit_rows, left_out={"vit.pooler.*": POOLER}, even_heads=True,
)  # fmt: skip


# Marian


def _marian_rows(config: ModelConfig) -> list[Row]:
    tied = config.layout.tied
    rows = [row("model.shared.weight", "enc.W_E")] if tied else []
    rows += [
        replace(row("model.encoder.embed_tokens.weight", "enc.W_E"), alias=tied),
        row("model.decoder.embed_tokens.weight", "dec.W_E"),
        TABLE,
        row("final_logits_bias", "b_U", form=ONE),
    ]
    for side, stem in (("enc", "model.encoder.layers.{L}."), ("dec", "model.decoder.layers.{L}.")):
        here = f"{side}.L{{L}}."
        names = "q_proj k_proj v_proj out_proj"
        rows += attention(f"{stem}self_attn.", names, here) + norm(f"{stem}self_attn_layer_norm", f"{here}norm1")
        if side == "dec":
            rows += attention(f"{stem}encoder_attn.", names, f"{here}cross.")
            rows += norm(f"{stem}encoder_attn_layer_norm", f"{here}norm_cross")
        rows += mlp(stem, "fc1 fc2", here) + norm(f"{stem}final_layer_norm", f"{here}norm2")
    return rows


_NO_DECODER = tuple(piece for piece in PLAIN if piece.key != "is_encoder_decoder")


def _seq2seq(
    name: str, title: str, cls: str, rows: Callable[[ModelConfig], list[Row]], *pieces: Piece, **layout: bool | str
) -> Family:
    """A family of encoder-decoders in the words of Marian and BART."""
    return Family(
        name=name, title=title, kind="EncoderDecoderLM", preset="vaswani", architecture=cls,
        auto="AutoModelForSeq2SeqLM", base="model.",
        pieces=(
            Setting("max_position_embeddings", "sizes.n_ctx", 1024), Setting("d_model", "sizes.d_model", 1024),
            Setting("encoder_layers", "sizes.n_layers", 12, same=("decoder_layers",), again=("num_hidden_layers",)),
            Setting("encoder_attention_heads", "sizes.n_heads", 16, same=("decoder_attention_heads",)),
            Setting("encoder_ffn_dim", "sizes.d_mlp", 4096, same=("decoder_ffn_dim",)),
            Setting("activation_function", "layout.mlp", "gelu", (("silu", "silu"), ("swish", "silu"), *ACTS)),
            Setting("scale_embedding", "layout.embed_scale", False, YES_NO),
            Dropout(("dropout",), ("attention_dropout", "activation_dropout"), 0.1),
            *idle(encoder_layerdrop=0.0, decoder_layerdrop=0.0, add_bias_logits=False, static_position_embeddings=True),
            Always("is_encoder_decoder", True), *pieces, *_NO_DECODER,
        ),
        layout={"norm": "layer", "norm_eps": 1e-5, "bias": True, "head_bias": True, "start": "xavier"} | layout,
        rows=rows, sines=("*.embed_positions.weight",) if layout["positions"] == "sinusoidal_halves" else (),
        even_heads=True,
    )  # fmt: skip


MARIAN = _seq2seq(
    "marian", "Marian", "MarianMTModel", _marian_rows,
    Setting("vocab_size", "sizes.d_vocab", 58101, again=("decoder_vocab_size",)),
    Setting("share_encoder_decoder_embeddings", "layout.tied", True, YES_NO, same=("tie_word_embeddings",)),
    *idle(normalize_before=False, add_final_layer_norm=False, normalize_embedding=False),
    positions="sinusoidal_halves", norm_place="post",
)  # fmt: skip


def _bart_rows(config: ModelConfig) -> list[Row]:
    rows = _marian_rows(config)
    for side, stem in (("enc", "model.encoder."), ("dec", "model.decoder.")):
        rows += [row(f"{stem}embed_positions.weight", f"{side}.W_pos", form=after(2))]
        rows += norm(f"{stem}layernorm_embedding", f"{side}.norm_e") + norm(f"{stem}layer_norm", f"{side}.norm_f")
    return rows


BART = _seq2seq(
    "bart", "BART", "BartForConditionalGeneration", _bart_rows, Setting("vocab_size", "sizes.d_vocab", 50265),
    TIED_USUALLY, *idle(normalize_before=False, add_final_layer_norm=False, normalize_embedding=True),
    positions="learned", norm_place="post", norm_e=True,
)  # fmt: skip
MBART = _seq2seq(
    "mbart", "mBART", "MBartForConditionalGeneration", _bart_rows, Setting("vocab_size", "sizes.d_vocab", 50265),
    TIED_USUALLY, *idle(normalize_before=True, add_final_layer_norm=True, normalize_embedding=True),
    positions="learned", norm_e=True,
)  # fmt: skip


# T5


def _t5_rows(config: ModelConfig) -> list[Row]:
    rows = [row("shared.weight", "enc.W_E"), row("decoder.embed_tokens.weight", "dec.W_E"), TABLE]
    rows += [replace(row("encoder.embed_tokens.weight", "enc.W_E"), alias=True)]
    for side, last in (("encoder", 1), ("decoder", 2)):
        here, layer = side[:3], f"{side}.block.{{L}}.layer."
        place, ff = f"{here}.L{{L}}.", f"{layer}{last}.DenseReluDense."
        rows += [row(f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", f"{here}.W_rel")]
        rows += attention(f"{layer}0.SelfAttention.", "q k v o", place) + norm(f"{layer}0.layer_norm", f"{place}norm1")
        if side == "decoder":
            rows += attention(f"{layer}1.EncDecAttention.", "q k v o", f"{place}cross.")
            rows += norm(f"{layer}1.layer_norm", f"{place}norm_cross")
        into = "wi_1" if config.layout.mlp in layouts.GATED else "wi"
        rows += linear(f"{ff}wi_0", f"{place}W_gate") + mlp(ff, f"{into} wo", place)
        rows += norm(f"{layer}{last}.layer_norm", f"{place}norm2")
        rows += norm(f"{side}.final_layer_norm", f"{here}.norm_f")
    return rows


def _read_t5_head(reading: Reading) -> None:
    """A tied table, whose logits are scaled, or one of its own, as from T5 v1.1 on; transformers 5 calls both tied."""
    tied = reading.given.get("scale_decoder_outputs")
    tied = reading.given.get("tie_word_embeddings", True) if tied is None else tied
    if not isinstance(tied, bool):
        raise reading.refuse("tie_word_embeddings", "expected true or false")
    factor = float(reading.values["sizes.d_model"] ** -0.5) if tied else 1.0
    reading.values |= {"layout.tied": tied, "layout.shared_embedding": not tied, "layout.logit_factor": factor}


_T5_HEAD = ("tie_word_embeddings", "scale_decoder_outputs")
_T5_MLPS = (("relu", "relu"), ("gated-gelu", "geglu_tanh"), ("gated-silu", "swiglu"), ("gelu", "gelu"))
T5 = Family(
    name="t5", title="T5", kind="EncoderDecoderLM", preset="vaswani", architecture="T5ForConditionalGeneration",
    auto="AutoModelForSeq2SeqLM", base="",
    pieces=(
        Setting("vocab_size", "sizes.d_vocab", 32128), Setting("n_positions", "sizes.n_ctx", 512),
        Setting("d_model", "sizes.d_model", 512, least=1), Setting("d_kv", "sizes.d_head", 64),
        Setting("d_ff", "sizes.d_mlp", 2048), Setting("num_layers", "sizes.n_layers", 6, again=("num_decoder_layers",)),
        Setting("num_heads", "sizes.n_heads", 8),
        Setting("relative_attention_num_buckets", "layout.relative_buckets", 32),
        Setting("relative_attention_max_distance", "layout.relative_reach", 128),
        Setting("layer_norm_epsilon", "layout.norm_eps", 1e-6),
        Setting("feed_forward_proj", "layout.mlp", "relu", _T5_MLPS),
        Joint(_T5_HEAD, _read_t5_head, lambda config, out: out.update(dict.fromkeys(_T5_HEAD, config.layout.tied))),
        unread("dense_act_fn", "is_gated_act"),  # follow from its MLP
        Dropout(("dropout_rate",), (), 0.1), Always("is_encoder_decoder", True), *_NO_DECODER,
    ),
    layout={"positions": "relative", "norm": "rms", "scale": False, "start": "xavier"}, rows=_t5_rows,
    left_out={"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": "a bias that is never read"},
)  # fmt: skip


_MT5_PIECES = (
    Setting("vocab_size", "sizes.d_vocab", 250112),
    Setting("d_ff", "sizes.d_mlp", 1024),
    Setting("num_layers", "sizes.n_layers", 8, again=("num_decoder_layers",)),
    Setting("num_heads", "sizes.n_heads", 6),
    Setting("feed_forward_proj", "layout.mlp", "gated-gelu", _T5_MLPS),
    unread("tie_word_embeddings"),  # files say true and false alike
)
_MT5_KEYS = {key for piece in _MT5_PIECES for key in piece.keys}
MT5 = replace(
    T5,
    name="mt5",
    title="mT5",
    architecture="MT5ForConditionalGeneration",
    pieces=(*_MT5_PIECES, *(piece for piece in T5.pieces if not _MT5_KEYS & set(piece.keys))),
    layout={**T5.layout, "tied": False, "shared_embedding": True},
    spare={"W_U": "enc.W_E"},
)


_OURS = (GPT2, LLAMA, QWEN3, QWEN2, MISTRAL, NEOX, *ENCODERS, VIT, MARIAN, BART, MBART, T5, MT5, *DECODERS)
FAMILIES: Registry[Family] = Registry("families", {family.name: family for family in _OURS}, instance_of(Family))
"""Name -> family, those that other packages add behind ours; for export the first that fits is taken."""


def families_of(model_type: object) -> list[Family]:
    """The families of a `model_type`, the one of its usual class first; none where it is not read."""
    for known in (FAMILIES.built_in, FAMILIES):  # other packages are asked where no family of ours is meant
        if found := [family for family in known.values() if family.model_type == model_type]:
            return found
    return []


# What is not read

BY_KEY: Mapping[str, str] = {key: part for part, keys in WORDS["by_key"].items() for key in keys.split()}
"""A key of config.json -> the ingredient that it speaks of."""
BY_TYPE: Mapping[str, str] = {name: part for part, names in WORDS["by_type"].items() for name in names.split()}
"""`model_type` -> the same, where no key says it."""


def why_not_read(given: JsonMapping) -> str:
    """One sentence on a config.json that no family reads; it begins with the kind of model."""
    model_type, page = given.get("model_type"), "docs/families.md lists what is read"
    if not model_type:
        return f"config.json names no model_type, so it is no model of transformers; {page}"
    ingredient = BY_TYPE.get(str(model_type)) or next((BY_KEY[key] for key in BY_KEY if given.get(key)), None)
    inner = next((key for key, said in given.items() if isinstance(said, dict) and said.get("model_type")), None)
    ingredient = ingredient or inner and f"several models in one ({inner})"
    why = f"it needs {ingredient}, which qkv does not have" if ingredient else "qkv has no table of its tensors' names"
    return f"{str(model_type)[:80]} is not read: {why}; {page}"
