"""Families of encoder-decoders: Marian."""

from dataclasses import replace

from qkv.interop.family import ACTS, PLAIN, TABLE, Family, linear, norm, row
from qkv.interop.name_map import ONE, Row
from qkv.interop.settings import Always, Both, Dropout, Setting, Shared
from qkv.models.layout import ModelConfig

__all__ = ["MARIAN"]


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
        rows += _marian_attention(f"{stem}self_attn.", here) + norm(f"{stem}self_attn_layer_norm", f"{here}norm1")
        if side == "dec":
            rows += _marian_attention(f"{stem}encoder_attn.", f"{here}cross.")
            rows += norm(f"{stem}encoder_attn_layer_norm", f"{here}norm_cross")
        rows += linear(f"{stem}fc1", f"{here}W_in", f"{here}b_in") + linear(
            f"{stem}fc2", f"{here}W_out", f"{here}b_out"
        )
        rows += norm(f"{stem}final_layer_norm", f"{here}norm2")
    return rows


def _marian_attention(stored: str, address: str) -> list[Row]:
    names = (("q_proj", "Q"), ("k_proj", "K"), ("v_proj", "V"), ("out_proj", "O"))
    return [
        row for name, kind in names for row in linear(f"{stored}{name}", f"{address}W_{kind}", f"{address}b_{kind}")
    ]


MARIAN = Family(
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
        Setting("activation_function", "layout.mlp", "gelu", (("silu", "silu"), ("swish", "silu"), *ACTS)),
        Setting("scale_embedding", "layout.embed_scale", False, ((True, True), (False, False))),
        Shared(),
        Dropout(("dropout",), ("attention_dropout", "activation_dropout"), 0.1),
        *(Always(key, 0.0, written=False) for key in ("encoder_layerdrop", "decoder_layerdrop")),
        *(Always(key, False, written=False) for key in ("normalize_before", "add_final_layer_norm", "add_bias_logits")),
        Always("normalize_embedding", False, written=False),
        Always("static_position_embeddings", True, written=False),
        Always("is_encoder_decoder", True),
        *(piece for piece in PLAIN if piece.key != "is_encoder_decoder"),
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
