"""Families of decoders: GPT-2, the gated ones (Llama, Mistral, Qwen), GPT-NeoX."""

from dataclasses import replace
from typing import Any

from qkv.interop.family import ACTS, PLAIN, TABLE, TIED, TIED_USUALLY, Family, idle, linear, norm, row
from qkv.interop.name_map import BESIDE, TRANSPOSED, Interleaved, Row
from qkv.interop.settings import Always, Dropout, Piece, Rope, Setting, Window
from qkv.models.layout import ModelConfig

__all__ = ["GPT2", "LLAMA", "MISTRAL", "NEOX", "QWEN2", "QWEN3"]


# GPT-2


def _gpt2_rows(config: ModelConfig) -> list[Row]:
    block = "transformer.h.{L}."
    return [
        row("transformer.wte.weight", "W_E"),
        row("transformer.wpe.weight", "W_pos"),
        *norm(f"{block}ln_1", "L{L}.norm1"),
        row(f"{block}attn.c_attn.weight", "L{L}.W_Q", "L{L}.W_K", "L{L}.W_V", form=BESIDE),
        row(f"{block}attn.c_attn.bias", "L{L}.b_Q", "L{L}.b_K", "L{L}.b_V", form=BESIDE),
        row(f"{block}attn.c_proj.weight", "L{L}.W_O"),
        row(f"{block}attn.c_proj.bias", "L{L}.b_O"),
        *norm(f"{block}ln_2", "L{L}.norm2"),
        row(f"{block}mlp.c_fc.weight", "L{L}.W_in"),
        row(f"{block}mlp.c_fc.bias", "L{L}.b_in"),
        row(f"{block}mlp.c_proj.weight", "L{L}.W_out"),
        row(f"{block}mlp.c_proj.bias", "L{L}.b_out"),
        *norm("transformer.ln_f", "norm_f"),
        TABLE,
    ]


GPT2 = Family(
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
        Setting("activation_function", "layout.mlp", "gelu_new", ACTS[1:2] + ACTS[:1] + ACTS[2:]),
        Setting("layer_norm_epsilon", "layout.norm_eps", 1e-5),
        Setting("scale_attn_weights", "layout.scale", True, ((True, True), (False, False))),
        TIED_USUALLY,
        Dropout(("resid_pdrop", "embd_pdrop"), ("attn_pdrop",), 0.1),
        Always("scale_attn_by_inverse_layer_idx", False),
        *idle(n_special=0),
        Always("predict_special_tokens", True, also=(False,), written=False),
        Always("reorder_and_upcast_attn", False, also=(True,)),  # the same product in float32: the model is float32
        *PLAIN,
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
        row("model.embed_tokens.weight", "W_E"),
        *norm(f"{block}input_layernorm", "L{L}.norm1"),
        *linear(f"{attention}q_proj", "L{L}.W_Q", "L{L}.b_Q"),
        *linear(f"{attention}k_proj", "L{L}.W_K", "L{L}.b_K"),
        *linear(f"{attention}v_proj", "L{L}.W_V", "L{L}.b_V"),
        *linear(f"{attention}o_proj", "L{L}.W_O", "L{L}.b_O"),
        row(f"{attention}q_norm.weight", "L{L}.qnorm.gain"),
        row(f"{attention}k_norm.weight", "L{L}.knorm.gain"),
        *norm(f"{block}post_attention_layernorm", "L{L}.norm2"),
        *linear(f"{mlp}gate_proj", "L{L}.W_gate"),
        *linear(f"{mlp}up_proj", "L{L}.W_in"),
        *linear(f"{mlp}down_proj", "L{L}.W_out"),
        *norm("model.norm", "norm_f"),
        TABLE,
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
            TIED,
            Dropout((), ("attention_dropout",)),
            *pieces,
            Rope(),
            *PLAIN,
        ),
        layout={"positions": "rotary", "norm": "rms", "mlp": "swiglu", "start": "normal"} | layout,
        rows=_gated_rows,
        buffers=("*.rotary_emb.inv_freq",),
        even_heads=even_heads,
    )


_HEAD_DIM = Setting("head_dim", "sizes.d_head", None)
_ATTENTION_BIAS = Setting("attention_bias", "layout.attention_bias", False, ((False, "same"), (True, "all")))
LLAMA = _gated(
    "llama",
    "Llama",
    _HEAD_DIM,
    _ATTENTION_BIAS,
    Always("mlp_bias", False),
    *idle(is_llama_config=True, rope_interleaved=False, activation="swiglu"),
    even_heads=True,
)
MISTRAL = _gated("mistral", "Mistral", _HEAD_DIM, Window())
QWEN2 = _gated(
    "qwen2",
    "Qwen2",
    Window("use_sliding_window"),
    *idle(use_mrope=False),
    attention_bias="qkv",
    even_heads=True,
)
QWEN3 = _gated(
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
        row("gpt_neox.embed_in.weight", "W_E"),
        *norm(f"{block}input_layernorm", "L{L}.norm1"),
        row(f"{block}attention.query_key_value.weight", "L{L}.W_Q", "L{L}.W_K", "L{L}.W_V", form=joined),
        row(f"{block}attention.query_key_value.bias", "L{L}.b_Q", "L{L}.b_K", "L{L}.b_V", form=joined),
        *linear(f"{block}attention.dense", "L{L}.W_O", "L{L}.b_O"),
        *norm(f"{block}post_attention_layernorm", "L{L}.norm2"),
        *linear(f"{block}mlp.dense_h_to_4h", "L{L}.W_in", "L{L}.b_in"),
        *linear(f"{block}mlp.dense_4h_to_h", "L{L}.W_out", "L{L}.b_out"),
        *norm("gpt_neox.final_layer_norm", "norm_f"),
        row("embed_out.weight", "W_U", form=TRANSPOSED),
        replace(row("lm_head.weight", "W_U", form=TRANSPOSED), alias=True),  # its name in a live model since version 5
    ]


NEOX = Family(
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
        Setting("hidden_act", "layout.mlp", "gelu", ACTS),
        Setting("use_parallel_residual", "layout.parallel", True, ((True, True), (False, False))),
        Setting("attention_bias", "layout.attention_bias", True, ((True, "same"), (False, "none"))),
        TIED,
        Dropout(("hidden_dropout",), ("attention_dropout",)),
        Rope("rotary_emb_base", "rotary_pct", share=0.25, shares=True, again=("rope_theta", "partial_rotary_factor")),
        *idle(attention_probs_dropout_prob=0, hidden_dropout_prob=0),
        *PLAIN,
    ),
    layout={"positions": "rotary", "norm": "layer", "bias": True, "start": "gpt2"},
    rows=_neox_rows,
    buffers=("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"),
    even_heads=True,
)
