"""The name map of every family of checkpoints: its configuration and its tensors, read in both directions.

One family is one entry of `FAMILIES`. Addresses, shapes and what a layout can be are ours (`qkv.models`); names are
those of Hugging Face `transformers`. Rotary positions pair coordinate i with i + d/2 in both, so W_Q and W_K are copied
as they are; only weights in Meta's original Llama format pair neighbours, and those are not read here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qkv.interop.rows import BESIDE, ONE, SAME, TRANSPOSED, After, Form, Interleaved, PatchForm, Row
from qkv.interop.settings import Always, Both, Dropout, ImageSize, Labels, Piece, Rope, Setting, Shared, Window
from qkv.models.layout import ModelConfig

__all__ = ["FAMILIES", "Family"]


@dataclass(frozen=True, kw_only=True)
class Family:
    """How one kind of checkpoint is written."""

    name: str
    """`model_type` of its config.json."""
    title: str
    """As people call it."""
    kind: str
    """The kind of model it becomes: CausalLM, MaskedLM, ImageClassifier or EncoderDecoderLM."""
    preset: str
    """The preset whose optimizer fits it, for training it further."""
    architecture: str
    """The class of transformers that loads what we export."""
    also: tuple[str, ...] = ()
    """Other `architectures` whose files hold the same model."""
    auto: str
    """The class of transformers that finds it: AutoModelForCausalLM, AutoModelForSeq2SeqLM, ..."""
    base: str
    """What every name begins with, save those of the way out; some files leave it out."""
    pieces: tuple[Piece, ...]
    """Its config.json."""
    layout: Mapping[str, Any]
    """What of our layout is the same in all of them."""
    rows: Callable[[ModelConfig], Sequence[Row]]
    """Its tensors."""
    buffers: tuple[str, ...] = ()
    """Patterns of tensors that are constants, and not weights."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Patterns of tensors that belong to another use of the model -> what they are, in words."""
    frame: tuple[str, str] | None = None
    """The special tokens that it puts around a text where its tokenizer files do not say so."""
    even_heads: bool = False
    """Whether transformers insists that d_model divides into n_heads."""


def _row(stored: str, *addresses: str, form: Form = SAME, copy: bool = False) -> Row:
    return Row(stored, addresses, form, copy)


def _linear(stored: str, weight: str, bias: str = "") -> list[Row]:
    """The rows of a torch Linear: weight [out, in] and, where there may be one, a bias."""
    rows = [_row(f"{stored}.weight", weight, form=TRANSPOSED)]
    return rows + ([_row(f"{stored}.bias", bias)] if bias else [])


def _norm(stored: str, address: str) -> list[Row]:
    """The rows of a norm; one without a bias has no second."""
    return [_row(f"{stored}.weight", f"{address}.gain"), _row(f"{stored}.bias", f"{address}.bias")]


_TABLE = _row("lm_head.weight", "W_U", form=TRANSPOSED)
_TIED = Setting("tie_word_embeddings", "layout.tied", False, ((True, True), (False, False)))
_TIED_USUALLY = Setting("tie_word_embeddings", "layout.tied", True, ((True, True), (False, False)))
_ACTS = (
    ("gelu", "gelu"),
    ("gelu_new", "gelu_tanh"),
    ("gelu_pytorch_tanh", "gelu_tanh"),
    ("gelu_fast", "gelu_tanh"),
    ("relu", "relu"),
    ("relu2", "relu2"),
)


def _idle(**values: Any) -> tuple[Always, ...]:
    """Keys that compute nothing where they have this value."""
    return tuple(Always(key, value, written=False) for key, value in values.items())


_PLAIN = _idle(
    is_decoder=False, is_encoder_decoder=False, add_cross_attention=False, cross_attention_hidden_size=None,
    tie_encoder_decoder=False, chunk_size_feed_forward=0, pruned_heads={},
)  # fmt: skip


# GPT-2


def _gpt2_rows(config: ModelConfig) -> list[Row]:
    block = "transformer.h.{L}."
    return [
        _row("transformer.wte.weight", "W_E"),
        _row("transformer.wpe.weight", "W_pos"),
        *_norm(f"{block}ln_1", "L{L}.norm1"),
        _row(f"{block}attn.c_attn.weight", "L{L}.W_Q", "L{L}.W_K", "L{L}.W_V", form=BESIDE),
        _row(f"{block}attn.c_attn.bias", "L{L}.b_Q", "L{L}.b_K", "L{L}.b_V", form=BESIDE),
        _row(f"{block}attn.c_proj.weight", "L{L}.W_O"),
        _row(f"{block}attn.c_proj.bias", "L{L}.b_O"),
        *_norm(f"{block}ln_2", "L{L}.norm2"),
        _row(f"{block}mlp.c_fc.weight", "L{L}.W_in"),
        _row(f"{block}mlp.c_fc.bias", "L{L}.b_in"),
        _row(f"{block}mlp.c_proj.weight", "L{L}.W_out"),
        _row(f"{block}mlp.c_proj.bias", "L{L}.b_out"),
        *_norm("transformer.ln_f", "norm_f"),
        _TABLE,
    ]


_GPT2 = Family(
    name="gpt2",
    title="GPT-2",
    kind="CausalLM",
    preset="gpt2",
    architecture="GPT2LMHeadModel",
    also=("GPT2Model",),
    auto="AutoModelForCausalLM",
    base="transformer.",
    pieces=(
        Setting("vocab_size", "sizes.d_vocab", 50257),
        Setting("n_positions", "sizes.n_ctx", 1024),
        Setting("n_embd", "sizes.d_model", 768),
        Setting("n_layer", "sizes.n_layers", 12),
        Setting("n_head", "sizes.n_heads", 12),
        Setting("n_inner", "sizes.d_mlp", None),
        Setting("activation_function", "layout.mlp", "gelu_new", _ACTS[1:2] + _ACTS[:1] + _ACTS[2:]),
        Setting("layer_norm_epsilon", "layout.norm_eps", 1e-5),
        Setting("scale_attn_weights", "layout.scale", True, ((True, True), (False, False))),
        _TIED_USUALLY,
        Dropout(("resid_pdrop", "embd_pdrop"), ("attn_pdrop",), 0.1),
        Always("scale_attn_by_inverse_layer_idx", False),
        *_idle(n_special=0),
        Always("predict_special_tokens", True, also=(False,), written=False),
        Always("reorder_and_upcast_attn", False, also=(True,)),  # the same product in float32: the model is float32
        *_PLAIN,
    ),
    layout={"positions": "learned", "norm": "layer", "bias": True, "start": "gpt2"},
    rows=_gpt2_rows,
    buffers=("*.attn.bias", "*.attn.masked_bias"),
    even_heads=True,
)


# Llama, Mistral, Qwen2, Qwen3


def _gated_rows(config: ModelConfig) -> list[Row]:
    block = "model.layers.{L}."
    attention, mlp = f"{block}self_attn.", f"{block}mlp."
    return [
        _row("model.embed_tokens.weight", "W_E"),
        *_norm(f"{block}input_layernorm", "L{L}.norm1"),
        *_linear(f"{attention}q_proj", "L{L}.W_Q", "L{L}.b_Q"),
        *_linear(f"{attention}k_proj", "L{L}.W_K", "L{L}.b_K"),
        *_linear(f"{attention}v_proj", "L{L}.W_V", "L{L}.b_V"),
        *_linear(f"{attention}o_proj", "L{L}.W_O", "L{L}.b_O"),
        _row(f"{attention}q_norm.weight", "L{L}.qnorm.gain"),
        _row(f"{attention}k_norm.weight", "L{L}.knorm.gain"),
        *_norm(f"{block}post_attention_layernorm", "L{L}.norm2"),
        *_linear(f"{mlp}gate_proj", "L{L}.W_gate"),
        *_linear(f"{mlp}up_proj", "L{L}.W_in"),
        *_linear(f"{mlp}down_proj", "L{L}.W_out"),
        *_norm("model.norm", "norm_f"),
        _TABLE,
    ]


def _gated(name: str, title: str, *pieces: Piece, **layout: Any) -> Family:
    """A family of the layout of Llama: RMSNorm before each sublayer, rotary positions, SwiGLU."""
    even_heads = layout.pop("even_heads", False)
    return Family(
        name=name,
        title=title,
        kind="CausalLM",
        preset="llama",
        architecture=f"{title.replace('.', '')}ForCausalLM",
        also=(f"{title}Model",),
        auto="AutoModelForCausalLM",
        base="model.",
        pieces=(
            Setting("vocab_size", "sizes.d_vocab", 32000),
            Setting("hidden_size", "sizes.d_model", 4096),
            Setting("intermediate_size", "sizes.d_mlp", 11008),
            Setting("num_hidden_layers", "sizes.n_layers", 32),
            Setting("num_attention_heads", "sizes.n_heads", 32),
            Setting("num_key_value_heads", "sizes.n_kv_heads", None),
            Setting("max_position_embeddings", "sizes.n_ctx", 2048),
            Setting("rms_norm_eps", "layout.norm_eps", 1e-6),
            Always("hidden_act", "silu", also=("swish",)),
            _TIED,
            Dropout((), ("attention_dropout",)),
            *pieces,
            Rope(),
            *_PLAIN,
        ),
        layout={"positions": "rotary", "norm": "rms", "mlp": "swiglu", "start": "normal"} | layout,
        rows=_gated_rows,
        buffers=("*.rotary_emb.inv_freq",),
        even_heads=even_heads,
    )


_HEAD_DIM = Setting("head_dim", "sizes.d_head", None)
_ATTENTION_BIAS = Setting("attention_bias", "layout.attention_bias", False, ((False, "same"), (True, "all")))
_LLAMA = _gated(
    "llama",
    "Llama",
    _HEAD_DIM,
    _ATTENTION_BIAS,
    Always("mlp_bias", False),
    *_idle(is_llama_config=True, rope_interleaved=False, activation="swiglu"),
    even_heads=True,
)
_MISTRAL = _gated("mistral", "Mistral", _HEAD_DIM, Window())
_QWEN2 = _gated(
    "qwen2",
    "Qwen2",
    Window("use_sliding_window"),
    *_idle(use_mrope=False),
    attention_bias="qkv",
    even_heads=True,
)
_QWEN3 = _gated(
    "qwen3",
    "Qwen3",
    Setting("head_dim", "sizes.d_head", 128),
    _ATTENTION_BIAS,
    Window("use_sliding_window"),
    qk_norm=True,
)


# GPT-NeoX


def _neox_rows(config: ModelConfig) -> list[Row]:
    block, joined = "gpt_neox.layers.{L}.", Interleaved(config.sizes.d_head)
    return [
        _row("gpt_neox.embed_in.weight", "W_E"),
        *_norm(f"{block}input_layernorm", "L{L}.norm1"),
        _row(f"{block}attention.query_key_value.weight", "L{L}.W_Q", "L{L}.W_K", "L{L}.W_V", form=joined),
        _row(f"{block}attention.query_key_value.bias", "L{L}.b_Q", "L{L}.b_K", "L{L}.b_V", form=joined),
        *_linear(f"{block}attention.dense", "L{L}.W_O", "L{L}.b_O"),
        *_norm(f"{block}post_attention_layernorm", "L{L}.norm2"),
        *_linear(f"{block}mlp.dense_h_to_4h", "L{L}.W_in", "L{L}.b_in"),
        *_linear(f"{block}mlp.dense_4h_to_h", "L{L}.W_out", "L{L}.b_out"),
        *_norm("gpt_neox.final_layer_norm", "norm_f"),
        _row("embed_out.weight", "W_U", form=TRANSPOSED),
    ]


_NEOX = Family(
    name="gpt_neox",
    title="GPT-NeoX",
    kind="CausalLM",
    preset="gpt2",
    architecture="GPTNeoXForCausalLM",
    also=("GPTNeoXModel",),
    auto="AutoModelForCausalLM",
    base="gpt_neox.",
    pieces=(
        Setting("vocab_size", "sizes.d_vocab", 50432),
        Setting("hidden_size", "sizes.d_model", 6144),
        Setting("intermediate_size", "sizes.d_mlp", 24576),
        Setting("num_hidden_layers", "sizes.n_layers", 44),
        Setting("num_attention_heads", "sizes.n_heads", 64),
        Setting("max_position_embeddings", "sizes.n_ctx", 2048),
        Setting("layer_norm_eps", "layout.norm_eps", 1e-5),
        Setting("hidden_act", "layout.mlp", "gelu", _ACTS),
        Setting("use_parallel_residual", "layout.parallel", True, ((True, True), (False, False))),
        Setting("attention_bias", "layout.attention_bias", True, ((True, "same"), (False, "none"))),
        _TIED,
        Dropout(("hidden_dropout",), ("attention_dropout",)),
        Rope("rotary_emb_base", "rotary_pct", share=0.25, shares=True, again=("rope_theta", "partial_rotary_factor")),
        *_idle(attention_probs_dropout_prob=0, hidden_dropout_prob=0),
        *_PLAIN,
    ),
    layout={"positions": "rotary", "norm": "layer", "bias": True, "start": "gpt2"},
    rows=_neox_rows,
    buffers=("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"),
    even_heads=True,
)


# BERT, RoBERTa, DistilBERT


def _bert_body(base: str) -> list[Row]:
    block = f"{base}encoder.layer.{{L}}."
    return [
        *(_row(f"{base}embeddings.{name}_embeddings.weight", address) for name, address in
          (("word", "W_E"), ("token_type", "W_type"))),
        *_norm(f"{base}embeddings.LayerNorm", "norm_e"),
        *_linear(f"{block}attention.self.query", "L{L}.W_Q", "L{L}.b_Q"),
        *_linear(f"{block}attention.self.key", "L{L}.W_K", "L{L}.b_K"),
        *_linear(f"{block}attention.self.value", "L{L}.W_V", "L{L}.b_V"),
        *_linear(f"{block}attention.output.dense", "L{L}.W_O", "L{L}.b_O"),
        *_norm(f"{block}attention.output.LayerNorm", "L{L}.norm1"),
        *_linear(f"{block}intermediate.dense", "L{L}.W_in", "L{L}.b_in"),
        *_linear(f"{block}output.dense", "L{L}.W_out", "L{L}.b_out"),
        *_norm(f"{block}output.LayerNorm", "L{L}.norm2"),
    ]  # fmt: skip


def _bert_rows(config: ModelConfig) -> list[Row]:
    head = "cls.predictions."
    return [
        *_bert_body("bert."),
        _row("bert.embeddings.position_embeddings.weight", "W_pos"),
        *_linear(f"{head}transform.dense", "W_transform", "b_transform"),
        *_norm(f"{head}transform.LayerNorm", "norm_u"),
        _row(f"{head}decoder.weight", "W_U", form=TRANSPOSED),
        _row(f"{head}decoder.bias", "b_U"),
        _row(f"{head}bias", "b_U", copy=not config.layout.tied),  # transformers reads it where W_U is tied only
    ]


def _roberta_rows(config: ModelConfig) -> list[Row]:
    return [
        *_bert_body("roberta."),
        _row("roberta.embeddings.position_embeddings.weight", "W_pos", form=After(_ROBERTA_FIRST)),
        *_linear("lm_head.dense", "W_transform", "b_transform"),
        *_norm("lm_head.layer_norm", "norm_u"),
        _row("lm_head.decoder.weight", "W_U", form=TRANSPOSED),
        _row("lm_head.decoder.bias", "b_U"),
        _row("lm_head.bias", "b_U", copy=not config.layout.tied),
    ]


def _distilbert_rows(config: ModelConfig) -> list[Row]:
    block = "distilbert.transformer.layer.{L}."
    return [
        _row("distilbert.embeddings.word_embeddings.weight", "W_E"),
        _row("distilbert.embeddings.position_embeddings.weight", "W_pos"),
        *_norm("distilbert.embeddings.LayerNorm", "norm_e"),
        *_linear(f"{block}attention.q_lin", "L{L}.W_Q", "L{L}.b_Q"),
        *_linear(f"{block}attention.k_lin", "L{L}.W_K", "L{L}.b_K"),
        *_linear(f"{block}attention.v_lin", "L{L}.W_V", "L{L}.b_V"),
        *_linear(f"{block}attention.out_lin", "L{L}.W_O", "L{L}.b_O"),
        *_norm(f"{block}sa_layer_norm", "L{L}.norm1"),
        *_linear(f"{block}ffn.lin1", "L{L}.W_in", "L{L}.b_in"),
        *_linear(f"{block}ffn.lin2", "L{L}.W_out", "L{L}.b_out"),
        *_norm(f"{block}output_layer_norm", "L{L}.norm2"),
        *_linear("vocab_transform", "W_transform", "b_transform"),
        *_norm("vocab_layer_norm", "norm_u"),
        *_linear("vocab_projector", "W_U", "b_U"),
    ]


_ROBERTA_FIRST = 2
"""RoBERTa counts positions from the padding token's id and one: rows 0 and 1 are no position of a text."""

_BOTH_SIDES = {
    "positions": "learned",
    "norm": "layer",
    "norm_place": "post",
    "norm_e": True,
    "bias": True,
    "head_transform": True,
    "start": "bert",
}


def _bert_pieces(*pieces: Piece) -> tuple[Piece, ...]:
    return (
        Setting("vocab_size", "sizes.d_vocab", 30522),
        Setting("hidden_size", "sizes.d_model", 768),
        Setting("num_hidden_layers", "sizes.n_layers", 12),
        Setting("num_attention_heads", "sizes.n_heads", 12),
        Setting("intermediate_size", "sizes.d_mlp", 3072),
        Setting("type_vocab_size", "sizes.n_types", 2, least=1),  # every token has one
        Setting("layer_norm_eps", "layout.norm_eps", 1e-12),
        _TIED_USUALLY,
        Dropout(("hidden_dropout_prob",), ("attention_probs_dropout_prob",), 0.1),
        Always("position_embedding_type", "absolute"),
        *pieces,
        *_PLAIN,
    )


_POOLER = "the pooler of the first token"
_BERT = Family(
    name="bert",
    title="BERT",
    kind="MaskedLM",
    preset="bert",
    architecture="BertForMaskedLM",
    also=("BertForPreTraining",),
    auto="AutoModelForMaskedLM",
    base="bert.",
    pieces=_bert_pieces(
        Setting("max_position_embeddings", "sizes.n_ctx", 512), Setting("hidden_act", "layout.mlp", "gelu", _ACTS)
    ),
    layout=_BOTH_SIDES,
    rows=_bert_rows,
    buffers=("*.embeddings.position_ids",),
    left_out={"bert.pooler.*": _POOLER, "cls.seq_relationship.*": "the next-sentence head"},
    frame=("[CLS]", "[SEP]"),
    even_heads=True,
)
_ROBERTA = Family(
    name="roberta",
    title="RoBERTa",
    kind="MaskedLM",
    preset="bert",
    architecture="RobertaForMaskedLM",
    auto="AutoModelForMaskedLM",
    base="roberta.",
    pieces=_bert_pieces(
        Setting("max_position_embeddings", "sizes.n_ctx", 512, plus=_ROBERTA_FIRST),
        Setting("hidden_act", "layout.mlp", "gelu", _ACTS[:1]),
        Always("pad_token_id", _ROBERTA_FIRST - 1),
    ),
    layout=_BOTH_SIDES,
    rows=_roberta_rows,
    buffers=("*.embeddings.position_ids",),
    left_out={"roberta.pooler.*": _POOLER},
    frame=("<s>", "</s>"),
    even_heads=True,
)
_DISTILBERT = Family(
    name="distilbert",
    title="DistilBERT",
    kind="MaskedLM",
    preset="bert",
    architecture="DistilBertForMaskedLM",
    auto="AutoModelForMaskedLM",
    base="distilbert.",
    pieces=(
        Setting("vocab_size", "sizes.d_vocab", 30522),
        Setting("max_position_embeddings", "sizes.n_ctx", 512),
        Setting("dim", "sizes.d_model", 768),
        Setting("hidden_dim", "sizes.d_mlp", 3072),
        Setting("n_layers", "sizes.n_layers", 6),
        Setting("n_heads", "sizes.n_heads", 12),
        Setting("activation", "layout.mlp", "gelu", _ACTS[:1] + _ACTS[4:5]),
        Always("sinusoidal_pos_embds", False, also=(True,)),  # the rows are in the file either way
        Always("tie_weights_", True, written=False),
        _TIED_USUALLY,
        Dropout(("dropout",), ("attention_dropout",), 0.1),
        *_PLAIN,
    ),
    layout=_BOTH_SIDES | {"norm_eps": 1e-12},
    rows=_distilbert_rows,
    buffers=("*.embeddings.position_ids",),
    frame=("[CLS]", "[SEP]"),
    even_heads=True,
)

# ViT


def _vit_rows(config: ModelConfig) -> list[Row]:
    assert config.patches is not None
    old, new = "vit.encoder.layer.{L}.", "vit.layers.{L}."
    cut = PatchForm(config.patches.channels, config.patches.patch)
    parts = [
        ("attention.attention.query", "attention.q_proj", "W_Q", "b_Q"),
        ("attention.attention.key", "attention.k_proj", "W_K", "b_K"),
        ("attention.attention.value", "attention.v_proj", "W_V", "b_V"),
        ("attention.output.dense", "attention.o_proj", "W_O", "b_O"),
        ("intermediate.dense", "mlp.fc1", "W_in", "b_in"),
        ("output.dense", "mlp.fc2", "W_out", "b_out"),
    ]
    rows = [
        _row("vit.embeddings.cls_token", "W_token", form=ONE),
        _row("vit.embeddings.position_embeddings", "W_pos", form=ONE),
        _row("vit.embeddings.patch_embeddings.projection.weight", "W_E", form=cut),
        _row("vit.embeddings.patch_embeddings.projection.bias", "b_E"),
        *_norm("vit.layernorm", "norm_f"),
        *_linear("classifier", "W_cls", "b_cls"),
    ]
    for stem, alias in ((old, False), (new, True)):  # the names before version 5 of transformers, and those since
        named = [
            row
            for *names, weight, bias in parts
            for row in _linear(stem + names[alias], "L{L}." + weight, "L{L}." + bias)
        ]
        named += _norm(f"{stem}layernorm_before", "L{L}.norm1") + _norm(f"{stem}layernorm_after", "L{L}.norm2")
        rows += [replace(row, alias=alias) for row in named]
    return rows


_VIT = Family(
    name="vit",
    title="ViT",
    kind="ImageClassifier",
    preset="gpt2",
    architecture="ViTForImageClassification",
    auto="AutoModelForImageClassification",
    base="vit.",
    pieces=(
        Setting("hidden_size", "sizes.d_model", 768),
        Setting("num_hidden_layers", "sizes.n_layers", 12),
        Setting("num_attention_heads", "sizes.n_heads", 12),
        Setting("intermediate_size", "sizes.d_mlp", 3072),
        Setting("hidden_act", "layout.mlp", "gelu", _ACTS),
        Setting("layer_norm_eps", "layout.norm_eps", 1e-12),
        Setting("patch_size", "patches.patch", 16),
        Setting("num_channels", "patches.channels", 3),
        ImageSize(),
        Labels(),
        Always("qkv_bias", True),
        Always("encoder_stride", 16, written=False, also=tuple(range(1, 257))),  # of another head
        Always("pooler_output_size", None, written=False, also=tuple(range(1, 8193))),
        Always("pooler_act", "tanh", written=False),
        Dropout(("hidden_dropout_prob",), ("attention_probs_dropout_prob",)),
        *_PLAIN,
    ),
    layout={"positions": "learned", "norm": "layer", "bias": True, "tied": False, "pool": "class", "start": "bert"},
    rows=_vit_rows,
    left_out={"vit.pooler.*": _POOLER},
    even_heads=True,
)

# Marian


def _marian_rows(config: ModelConfig) -> list[Row]:
    tied = config.layout.tied
    rows = [_row("model.shared.weight", "enc.W_E")] if tied else []
    rows += [
        replace(_row("model.encoder.embed_tokens.weight", "enc.W_E"), alias=tied),
        _row("model.decoder.embed_tokens.weight", "dec.W_E"),
        _TABLE,
        _row("final_logits_bias", "b_U", form=ONE),
    ]
    for side, stem in (("enc", "model.encoder.layers.{L}."), ("dec", "model.decoder.layers.{L}.")):
        here = f"{side}.L{{L}}."
        rows += _marian_attention(f"{stem}self_attn.", here) + _norm(f"{stem}self_attn_layer_norm", f"{here}norm1")
        if side == "dec":
            rows += _marian_attention(f"{stem}encoder_attn.", f"{here}cross.")
            rows += _norm(f"{stem}encoder_attn_layer_norm", f"{here}norm_cross")
        rows += _linear(f"{stem}fc1", f"{here}W_in", f"{here}b_in") + _linear(
            f"{stem}fc2", f"{here}W_out", f"{here}b_out"
        )
        rows += _norm(f"{stem}final_layer_norm", f"{here}norm2")
    return rows


def _marian_attention(stored: str, address: str) -> list[Row]:
    names = (("q_proj", "Q"), ("k_proj", "K"), ("v_proj", "V"), ("out_proj", "O"))
    return [
        row for name, kind in names for row in _linear(f"{stored}{name}", f"{address}W_{kind}", f"{address}b_{kind}")
    ]


_MARIAN = Family(
    name="marian",
    title="Marian",
    kind="EncoderDecoderLM",
    preset="vaswani",
    architecture="MarianMTModel",
    auto="AutoModelForSeq2SeqLM",
    base="model.",
    pieces=(
        Both(("vocab_size",), "sizes.d_vocab", 58101, also=("decoder_vocab_size",)),
        Setting("max_position_embeddings", "sizes.n_ctx", 1024),
        Setting("d_model", "sizes.d_model", 1024),
        Both(("encoder_layers", "decoder_layers"), "sizes.n_layers", 12, also=("num_hidden_layers",)),
        Both(("encoder_attention_heads", "decoder_attention_heads"), "sizes.n_heads", 16),
        Both(("encoder_ffn_dim", "decoder_ffn_dim"), "sizes.d_mlp", 4096),
        Setting("activation_function", "layout.mlp", "gelu", (("silu", "silu"), ("swish", "silu"), *_ACTS)),
        Setting("scale_embedding", "layout.embed_scale", False, ((True, True), (False, False))),
        Shared(),
        Dropout(("dropout",), ("attention_dropout", "activation_dropout"), 0.1),
        *(Always(key, 0.0, written=False) for key in ("encoder_layerdrop", "decoder_layerdrop")),
        *(Always(key, False, written=False) for key in ("normalize_before", "add_final_layer_norm", "add_bias_logits")),
        Always("normalize_embedding", False, written=False),
        Always("static_position_embeddings", True, written=False),
        Always("is_encoder_decoder", True),
        *(piece for piece in _PLAIN if piece.key != "is_encoder_decoder"),
    ),
    layout={
        "positions": "sinusoidal_halves",
        "norm": "layer",
        "norm_place": "post",
        "norm_eps": 1e-5,
        "bias": True,
        "head_bias": True,
        "start": "xavier",
    },
    rows=_marian_rows,
    buffers=("*.embed_positions.weight",),
    even_heads=True,
)

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (_GPT2, _LLAMA, _QWEN3, _QWEN2, _MISTRAL, _NEOX, _BERT, _ROBERTA, _DISTILBERT, _VIT, _MARIAN)
}
"""`model_type` -> family; for export the first that fits is taken."""
