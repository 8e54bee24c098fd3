"""Families of encoders: BERT, RoBERTa, DistilBERT, and ViT."""

from dataclasses import replace

from qkv.interop.family import ACTS, PLAIN, TIED_USUALLY, Family, linear, norm, row
from qkv.interop.name_map import ONE, TRANSPOSED, After, PatchForm, Row
from qkv.interop.settings import Always, Dropout, ImageSize, Labels, Piece, Setting
from qkv.models.layout import ModelConfig

__all__ = ["BERT", "DISTILBERT", "ROBERTA", "VIT"]


# BERT, RoBERTa, DistilBERT


def _bert_body(base: str) -> list[Row]:
    block = f"{base}encoder.layer.{{L}}."
    return [
        *(row(f"{base}embeddings.{name}_embeddings.weight", address) for name, address in
          (("word", "W_E"), ("token_type", "W_type"))),
        *norm(f"{base}embeddings.LayerNorm", "norm_e"),
        *linear(f"{block}attention.self.query", "L{L}.W_Q", "L{L}.b_Q"),
        *linear(f"{block}attention.self.key", "L{L}.W_K", "L{L}.b_K"),
        *linear(f"{block}attention.self.value", "L{L}.W_V", "L{L}.b_V"),
        *linear(f"{block}attention.output.dense", "L{L}.W_O", "L{L}.b_O"),
        *norm(f"{block}attention.output.LayerNorm", "L{L}.norm1"),
        *linear(f"{block}intermediate.dense", "L{L}.W_in", "L{L}.b_in"),
        *linear(f"{block}output.dense", "L{L}.W_out", "L{L}.b_out"),
        *norm(f"{block}output.LayerNorm", "L{L}.norm2"),
    ]  # fmt: skip


def _bert_rows(config: ModelConfig) -> list[Row]:
    head = "cls.predictions."
    return [
        *_bert_body("bert."),
        row("bert.embeddings.position_embeddings.weight", "W_pos"),
        *linear(f"{head}transform.dense", "W_transform", "b_transform"),
        *norm(f"{head}transform.LayerNorm", "norm_u"),
        row(f"{head}decoder.weight", "W_U", form=TRANSPOSED),
        row(f"{head}decoder.bias", "b_U"),
        row(f"{head}bias", "b_U", copy=not config.layout.tied),  # transformers reads it where W_U is tied only
    ]


def _roberta_rows(config: ModelConfig) -> list[Row]:
    return [
        *_bert_body("roberta."),
        row("roberta.embeddings.position_embeddings.weight", "W_pos", form=After(_ROBERTA_FIRST)),
        *linear("lm_head.dense", "W_transform", "b_transform"),
        *norm("lm_head.layer_norm", "norm_u"),
        row("lm_head.decoder.weight", "W_U", form=TRANSPOSED),
        row("lm_head.decoder.bias", "b_U"),
        row("lm_head.bias", "b_U", copy=not config.layout.tied),
    ]


def _distilbert_rows(config: ModelConfig) -> list[Row]:
    block = "distilbert.transformer.layer.{L}."
    return [
        row("distilbert.embeddings.word_embeddings.weight", "W_E"),
        row("distilbert.embeddings.position_embeddings.weight", "W_pos"),
        *norm("distilbert.embeddings.LayerNorm", "norm_e"),
        *linear(f"{block}attention.q_lin", "L{L}.W_Q", "L{L}.b_Q"),
        *linear(f"{block}attention.k_lin", "L{L}.W_K", "L{L}.b_K"),
        *linear(f"{block}attention.v_lin", "L{L}.W_V", "L{L}.b_V"),
        *linear(f"{block}attention.out_lin", "L{L}.W_O", "L{L}.b_O"),
        *norm(f"{block}sa_layer_norm", "L{L}.norm1"),
        *linear(f"{block}ffn.lin1", "L{L}.W_in", "L{L}.b_in"),
        *linear(f"{block}ffn.lin2", "L{L}.W_out", "L{L}.b_out"),
        *norm(f"{block}output_layer_norm", "L{L}.norm2"),
        *linear("vocab_transform", "W_transform", "b_transform"),
        *norm("vocab_layer_norm", "norm_u"),
        *linear("vocab_projector", "W_U", "b_U"),
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
        TIED_USUALLY,
        Dropout(("hidden_dropout_prob",), ("attention_probs_dropout_prob",), 0.1),
        Always("position_embedding_type", "absolute"),
        *pieces,
        *PLAIN,
    )


_POOLER = "the pooler of the first token"
BERT = Family(
    name="bert",
    title="BERT",
    kind="MaskedLM",
    preset="bert",
    architecture="BertForMaskedLM",
    also=("BertForPreTraining",),
    auto="AutoModelForMaskedLM",
    base="bert.",
    pieces=_bert_pieces(
        Setting("max_position_embeddings", "sizes.n_ctx", 512), Setting("hidden_act", "layout.mlp", "gelu", ACTS)
    ),
    layout=_BOTH_SIDES,
    rows=_bert_rows,
    buffers=("*.embeddings.position_ids",),
    left_out={"bert.pooler.*": _POOLER, "cls.seq_relationship.*": "the next-sentence head"},
    frame=("[CLS]", "[SEP]"),
    even_heads=True,
)
ROBERTA = Family(
    name="roberta",
    title="RoBERTa",
    kind="MaskedLM",
    preset="bert",
    architecture="RobertaForMaskedLM",
    auto="AutoModelForMaskedLM",
    base="roberta.",
    pieces=_bert_pieces(
        Setting("max_position_embeddings", "sizes.n_ctx", 512, plus=_ROBERTA_FIRST),
        Setting("hidden_act", "layout.mlp", "gelu", ACTS[:1]),
        Always("pad_token_id", _ROBERTA_FIRST - 1),
    ),
    layout=_BOTH_SIDES,
    rows=_roberta_rows,
    buffers=("*.embeddings.position_ids",),
    left_out={"roberta.pooler.*": _POOLER},
    frame=("<s>", "</s>"),
    even_heads=True,
)
DISTILBERT = Family(
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
        Setting("activation", "layout.mlp", "gelu", ACTS[:1] + ACTS[4:5]),
        Always("sinusoidal_pos_embds", False, also=(True,)),  # the rows are in the file either way
        Always("tie_weights_", True, written=False),
        TIED_USUALLY,
        Dropout(("dropout",), ("attention_dropout",), 0.1),
        *PLAIN,
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
        row("vit.embeddings.cls_token", "W_token", form=ONE),
        row("vit.embeddings.position_embeddings", "W_pos", form=ONE),
        row("vit.embeddings.patch_embeddings.projection.weight", "W_E", form=cut),
        row("vit.embeddings.patch_embeddings.projection.bias", "b_E"),
        *norm("vit.layernorm", "norm_f"),
        *linear("classifier", "W_cls", "b_cls"),
    ]
    for stem, alias in ((old, False), (new, True)):  # the names before version 5 of transformers, and those since
        named = [
            row
            for *names, weight, bias in parts
            for row in linear(stem + names[alias], "L{L}." + weight, "L{L}." + bias)
        ]
        named += norm(f"{stem}layernorm_before", "L{L}.norm1") + norm(f"{stem}layernorm_after", "L{L}.norm2")
        rows += [replace(row, alias=alias) for row in named]
    return rows


VIT = Family(
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
        Setting("hidden_act", "layout.mlp", "gelu", ACTS),
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
        *PLAIN,
    ),
    layout={"positions": "learned", "norm": "layer", "bias": True, "tied": False, "pool": "class", "start": "bert"},
    rows=_vit_rows,
    left_out={"vit.pooler.*": _POOLER},
    even_heads=True,
)
