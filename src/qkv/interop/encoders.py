"""Families of encoders as data: masked models, the same with a head for classes, and without a head.

Names are those of Hugging Face `transformers`, as in `decoders`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from qkv.interop.decoders import BIASED, sizes, tensors
from qkv.interop.family import ACTS, PLAIN, TIED_USUALLY, Family, attention, idle, linear, mlp, norm, row
from qkv.interop.layers import Joint, every, rope_by_layer, unread, windows
from qkv.interop.name_map import TRANSPOSED, Row
from qkv.interop.settings import YES_NO, Always, Dropout, Labels, Piece, Reading, Setting
from qkv.models.layout import ModelConfig

# BERT, RoBERTa, DistilBERT


def _of_bert(base: str, *, before: int = 0, bias: str = "", **head: str) -> Callable[[ModelConfig], list[Row]]:
    """The rows of BERT and its relatives, whose `head` has names of its own.

    `bias` is another name of b_U, which transformers reads where W_U is tied only. `before` is as in `tensors`.
    """
    table = f"{base}.embeddings."
    names = {
        "W_E": f"{table}word_embeddings", "W_type": f"{table}token_type_embeddings",
        "W_pos": f"{table}position_embeddings", "norm_e": f"{table}LayerNorm",
        "QKVO": "attention.self.query attention.self.key attention.self.value attention.output.dense",
        "norm1": "attention.output.LayerNorm", "mlp": "intermediate.dense output.dense", "norm2": "output.LayerNorm",
    }  # fmt: skip
    named = tensors(names | head, f"{base}.encoder.layer.{{L}}.", before=before)
    return lambda config: [*named(config), *([row(bias, "b_U", copy=not config.layout.tied)] if bias else [])]


_DISTILBERT = tensors({
    "W_E": "distilbert.embeddings.word_embeddings", "W_pos": "distilbert.embeddings.position_embeddings",
    "norm_e": "distilbert.embeddings.LayerNorm",
    "QKVO": "attention.q_lin attention.k_lin attention.v_lin attention.out_lin",
    "norm1": "sa_layer_norm", "mlp": "ffn.lin1 ffn.lin2", "norm2": "output_layer_norm",
    "W_transform": "vocab_transform", "norm_u": "vocab_layer_norm", "W_U": "vocab_projector",
}, "distilbert.transformer.layer.{L}.")  # fmt: skip

_ROBERTA_FIRST = 2
"""RoBERTa counts positions from the padding token's id and one: rows 0 and 1 are no position of a text."""

_BOTH_SIDES = {
    "positions": "learned", "norm": "layer", "norm_place": "post", "norm_e": True, "bias": True, "head_transform": True,
    "start": "bert",
}  # fmt: skip


def _bert_pieces(
    *pieces: Piece, vocab: int = 30522, usual: tuple[int, int, int] = (768, 12, 3072), dropout: float = 0.1
) -> tuple[Piece, ...]:
    """The keys of BERT's relatives; `usual` are d_model, n_heads and d_mlp of a silent file."""
    return (
        Setting("vocab_size", "sizes.d_vocab", vocab),
        Setting("hidden_size", "sizes.d_model", usual[0]),
        Setting("num_hidden_layers", "sizes.n_layers", 12),
        Setting("num_attention_heads", "sizes.n_heads", usual[1]),
        Setting("intermediate_size", "sizes.d_mlp", usual[2]),
        Setting("type_vocab_size", "sizes.n_types", 2, least=1),  # every token has one
        Setting("layer_norm_eps", "layout.norm_eps", 1e-12),
        TIED_USUALLY,
        Dropout(("hidden_dropout_prob",), ("attention_probs_dropout_prob",), dropout),
        Always("position_embedding_type", "absolute"),
        *pieces,
        *PLAIN,
    )


POOLER = "the pooler of the first token"
_N_CTX = Setting("max_position_embeddings", "sizes.n_ctx", 512)


def _masked(
    name: str,
    title: str,
    cls: str,
    rows: Callable[[ModelConfig], list[Row]],
    *pieces: Piece,
    also: tuple[str, ...] = (),
    left_out: Mapping[str, str] | None = None,
    **layout: bool | float,
) -> Family:
    """A family of masked models of that class in BERT's layout, but for `layout`."""
    return Family(
        name=name, title=title, kind="MaskedLM", preset="bert", architecture=cls, also=also,
        auto="AutoModelForMaskedLM", base=f"{name}.", pieces=pieces, layout=_BOTH_SIDES | layout, rows=rows,
        buffers=("*.embeddings.position_ids",), left_out=left_out or {}, even_heads=True,
    )  # fmt: skip


BERT = _masked(
    "bert", "BERT", "BertForMaskedLM",
    _of_bert("bert", W_transform="cls.predictions.transform.dense", norm_u="cls.predictions.transform.LayerNorm",
             W_U="cls.predictions.decoder", bias="cls.predictions.bias"),
    *_bert_pieces(_N_CTX, Setting("hidden_act", "layout.mlp", "gelu", ACTS)), also=("BertForPreTraining",),
    left_out={"bert.pooler.*": POOLER, "cls.seq_relationship.*": "the next-sentence head"},
)  # fmt: skip
ROBERTA = _masked(
    "roberta", "RoBERTa", "RobertaForMaskedLM",
    _of_bert("roberta", before=_ROBERTA_FIRST, W_transform="lm_head.dense", norm_u="lm_head.layer_norm",
             W_U="lm_head.decoder", bias="lm_head.bias"),
    *_bert_pieces(
        Setting("max_position_embeddings", "sizes.n_ctx", 512, plus=_ROBERTA_FIRST),
        Setting("hidden_act", "layout.mlp", "gelu", ACTS[:1]), Always("pad_token_id", _ROBERTA_FIRST - 1), vocab=50265,
    ),
    left_out={"roberta.pooler.*": POOLER},
)  # fmt: skip
DISTILBERT = _masked(
    "distilbert", "DistilBERT", "DistilBertForMaskedLM", _DISTILBERT,
    Setting("vocab_size", "sizes.d_vocab", 30522), _N_CTX, Setting("dim", "sizes.d_model", 768),
    Setting("hidden_dim", "sizes.d_mlp", 3072), Setting("n_layers", "sizes.n_layers", 6),
    Setting("n_heads", "sizes.n_heads", 12), Setting("activation", "layout.mlp", "gelu", ACTS[:1] + ACTS[4:5]),
    Always("sinusoidal_pos_embds", False, also=(True,)),  # the rows are in the file either way
    Always("tie_weights_", True, written=False), TIED_USUALLY, Dropout(("dropout",), ("attention_dropout",), 0.1),
    *PLAIN, norm_eps=1e-12,
)  # fmt: skip


# The same layout under other names, without a head, and with a head for classes


def _body(family: Family, cls: str) -> Family:
    """The family without its head: hidden vectors are the same, and our logits are h W_E^T."""

    def rows(config: ModelConfig) -> list[Row]:
        kept = [one for one in family.rows(config) if "b_U" not in one.addresses]
        return [replace(one, stored=one.stored.removeprefix(family.base)) for one in kept]

    return replace(
        family, name=f"{family.name} body", title=f"{family.title} without a head", architecture=cls, also=(),
        auto="AutoModel", base="", layout={**family.layout, "head_transform": False}, rows=rows,
        left_out={"pooler.*": POOLER}, absent=("b_U",),
    )  # fmt: skip


def _of_classes(family: Family, cls: str, pooler: str, classifier: str) -> Family:
    """The family with a head for classes: tanh of a layer on the first token, and one more layer."""

    def rows(config: ModelConfig) -> list[Row]:
        return [*family.rows(config), *linear(pooler, "W_pool", "b_pool"), *linear(classifier, "W_cls", "b_cls")]

    return replace(
        family, name=f"{family.name} classes", title=f"{family.title} for classes", kind="Classifier",
        architecture=cls, also=(), auto="AutoModelForSequenceClassification", pieces=(*family.pieces, Labels()),
        layout={**family.layout, "head_transform": False, "pool": "first"}, rows=rows, left_out={},
    )  # fmt: skip


_OTHERS = replace(ROBERTA, pieces=(Setting("vocab_size", "sizes.d_vocab", 30522), *ROBERTA.pieces[1:]))
XLM_ROBERTA = replace(_OTHERS, name="xlm-roberta", title="XLM-RoBERTa", architecture="XLMRobertaForMaskedLM")
CAMEMBERT = replace(_OTHERS, name="camembert", title="CamemBERT", architecture="CamembertForMaskedLM")

# Narrow tables: ELECTRA, ALBERT


def _read_embedding_size(reading: Reading) -> None:
    d_embed, d_model = reading.number("embedding_size", 128, whole=True, least=1), reading.values["sizes.d_model"]
    reading.values["sizes.d_embed"] = 0 if d_embed == d_model else d_embed


ELECTRA = _masked(
    "electra", "ELECTRA", "ElectraForMaskedLM",
    _of_bert("electra", W_project="electra.embeddings_project", W_transform="generator_predictions.dense",
             norm_u="generator_predictions.LayerNorm", W_U="generator_lm_head"),
    *_bert_pieces(
        _N_CTX, Setting("hidden_act", "layout.mlp", "gelu", ACTS[:1]),
        Joint(("embedding_size",), _read_embedding_size,
              lambda config, out: out.update(embedding_size=config.sizes.d_embed or config.sizes.d_model)),
        *idle(summary_last_dropout=0.1), usual=(256, 4, 1024),
    ),
)  # fmt: skip


_OUTSIDE_ALBERT = _of_bert(
    "albert", W_project="albert.encoder.embedding_hidden_mapping_in", W_transform="predictions.dense",
    norm_u="predictions.LayerNorm",
)  # fmt: skip


def _albert_rows(config: ModelConfig) -> list[Row]:
    stem = "albert.encoder.albert_layer_groups.0.albert_layers.0."
    return [
        *(one for one in _OUTSIDE_ALBERT(config) if not one.per_layer),
        *attention(f"{stem}attention.", "query key value dense", "L0."),
        *norm(f"{stem}attention.LayerNorm", "L0.norm1"),
        *mlp(stem, "ffn ffn_output", "L0."),
        *norm(f"{stem}full_layer_layer_norm", "L0.norm2"),
        row("predictions.decoder.weight", "W_U", form=TRANSPOSED),
        row("predictions.bias", "b_U"),
        replace(row("predictions.decoder.bias", "b_U"), alias=True),
    ]


ALBERT = _masked(
    "albert", "ALBERT", "AlbertForMaskedLM", _albert_rows,
    *_bert_pieces(
        _N_CTX, Setting("hidden_act", "layout.mlp", "gelu_new", ACTS[1:2] + ACTS[:1] + ACTS[2:]),
        Setting("embedding_size", "sizes.d_embed", 128, least=1), Always("num_hidden_groups", 1),
        Always("inner_group_num", 1),
        *idle(down_scale_factor=1, gap_size=0, net_structure_type=0, num_memory_blocks=0),
        vocab=30000, usual=(4096, 64, 16384), dropout=0.0,
    ),
    also=("AlbertForPreTraining",), shared_layers=True,
    left_out={"albert.pooler.*": POOLER, "sop_classifier.*": "the sentence-order head"},
)  # fmt: skip

# ModernBERT

_MODERN = tensors({
    "W_E": "model.embeddings.tok_embeddings", "norm_e": "model.embeddings.norm", "norm1": "attn_norm",
    "QKV O": "attn.Wqkv attn.Wo", "norm2": "mlp_norm", "joint gated": "mlp.Wi mlp.Wo", "norm_f": "model.final_norm",
    "W_U": "decoder", "W_transform": "head.dense", "norm_u": "head.norm",
})  # fmt: skip
MODERNBERT = Family(
    name="modernbert", title="ModernBERT", kind="MaskedLM", preset="bert", architecture="ModernBertForMaskedLM",
    auto="AutoModelForMaskedLM", base="model.",
    pieces=(
        *sizes(50368, 768, 22, 12, 8192, mlp=1152, kv=False), Setting("norm_eps", "layout.norm_eps", 1e-5),
        Setting("norm_bias", "layout.norm_bias", False, ((False, "same"), (True, "all"))), BIASED,
        Setting("decoder_bias", "layout.head_bias", True, YES_NO),
        windows(key="local_attention", width=128, keeps=True, halves=True, usual=every(
            3, first="sliding_attention", last="full_attention", key="global_attn_every_n_layers", at=0)),
        unread("global_attn_every_n_layers"),
        rope_by_layer(160000.0, 10000.0, ("global_rope_theta", "local_rope_theta")), TIED_USUALLY,
        Dropout(("embedding_dropout", "mlp_dropout")), Always("hidden_activation", "gelu"),
        Always("classifier_activation", "gelu"), Always("mlp_bias", False), Always("classifier_bias", False),
        Always("position_embedding_type", "absolute", also=("sans_pos",), written=False),
        Always("sparse_prediction", False, also=(True,), written=False),
        *idle(deterministic_flash_attn=False, sparse_pred_ignore_index=-100, embedding_norm=True, layer_norm_eps=1e-5),
        *(Always(key, None, also=(2.0, "cls", "mean", True, False), written=False) for key in (
            "initializer_cutoff_factor", "classifier_pooling", "reference_compile", "repad_logits_with_grad")),
        *PLAIN,
    ),
    layout={"norm": "layer", "mlp": "geglu", "norm_e": True, "first_norm": False, "head_transform": True,
            "start": "normal"},
    rows=_MODERN, even_heads=True,
)  # fmt: skip

_BODIES = (
    (BERT, "Bert"), (ROBERTA, "Roberta"), (DISTILBERT, "DistilBert"), (XLM_ROBERTA, "XLMRoberta"),
    (CAMEMBERT, "Camembert"),
)  # fmt: skip
ENCODERS: tuple[Family, ...] = (
    BERT, ROBERTA, DISTILBERT, XLM_ROBERTA, CAMEMBERT, ELECTRA, ALBERT, MODERNBERT,
    *(_body(family, f"{cls}Model") for family, cls in _BODIES),
    _of_classes(BERT, "BertForSequenceClassification", "bert.pooler.dense", "classifier"),
    *(_of_classes(family, f"{cls}ForSequenceClassification", "classifier.dense", "classifier.out_proj")
      for family, cls in (_BODIES[1], *_BODIES[3:])),
)  # fmt: skip
