"""Families of decoders as data: what their configuration says, and a name for each of their modules.

A family here is a table from our parts to the names of its modules, and the pieces of its `config.json`
(`settings`, `layers`); `tensors` makes the rows of the name map from the table. Ingredients are those of
`qkv.models.layout`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice

from qkv.interop.family import ACTS, PLAIN, TIED, TIED_USUALLY, Family, attention, idle, linear, mlp, norm, row
from qkv.interop.layers import Joint, every, layer_words, rope_by_layer, shortest, unread, windows
from qkv.interop.name_map import ONE_PLUS, SAME, STACKED, Form, Row, after, by_heads, of_neighbours
from qkv.interop.settings import YES_NO, Always, Dropout, Piece, Reading, Rope, Setting
from qkv.jsontypes import JsonObject
from qkv.models.layout import ModelConfig, turned_width

GATED: Mapping[str, str] = {
    "W_E": "model.embed_tokens",
    "norm1": "input_layernorm",
    "QKVO": "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj",
    "norm2": "post_attention_layernorm",
    "gated": "mlp.gate_proj mlp.up_proj mlp.down_proj",
    "norm_f": "model.norm",
    "W_U": "lm_head",
}
"""Part -> the names of its modules in Llama and its relatives; those of a layer behind `model.layers.{L}.`."""


def _gated_but(*parts: str, **others: str) -> dict[str, str]:
    """The same without some parts, and with others."""
    return {part: name for part, name in GATED.items() if part not in parts} | others


def tensors(
    names: Mapping[str, str],
    block: str = "model.layers.{L}.",
    *,
    one_plus: bool = False,
    neighbours: bool = False,
    interleaved: bool = False,
    before: int = 0,
) -> Callable[[ModelConfig], list[Row]]:
    """The rows of a table of names; those of a layer are written without `block`.

    `one_plus`: gains are stored as what they are above 1. `neighbours`: rotary positions pair neighbours.
    `interleaved`: the joint tensor of q, k and v goes by heads. `before`: rows of W_pos that no position reads.
    """

    def gains(stored: str, address: str) -> list[Row]:
        gain = row(f"{stored}.weight", f"{address}.gain", form=ONE_PLUS) if one_plus else norm(stored, address)[0]
        return [gain, row(f"{stored}.bias", f"{address}.bias")]

    def joint(stored: str, weights: str, form: Form) -> list[Row]:
        kinds = weights.split()
        rows = [row(f"{stored}.weight", *(f"L{{L}}.W_{kind}" for kind in kinds), form=form)]
        return [*rows, row(f"{stored}.bias", *(f"L{{L}}.b_{kind}" for kind in kinds), form=form)]

    def of(config: ModelConfig) -> list[Row]:
        sizes, rows = config.sizes, []
        heads = by_heads(sizes.n_kv_heads) if interleaved else STACKED
        turned = of_neighbours(sizes.d_head, turned_width(sizes.d_head, config.layout.rope_share))
        for part, said in names.items():
            stored = [block + name for name in said.split()]
            if part == "QKVO":
                found = attention("", " ".join(stored))
                rows += [
                    replace(one, form=turned) if neighbours and one.addresses[0][-1] in "QK" else one for one in found
                ]
            elif part == "QKV O":
                rows += joint(stored[0], "Q K V", heads) + linear(stored[1], "L{L}.W_O", "L{L}.b_O")
            elif part == "mlp":
                rows += mlp("", " ".join(stored))
            elif part == "gated":
                rows += linear(stored[0], "L{L}.W_gate") + mlp("", " ".join(stored[1:]))
            elif part == "joint gated":
                rows += joint(stored[0], "gate in", STACKED) + linear(stored[1], "L{L}.W_out", "L{L}.b_out")
            elif part in ("W_E", "W_type", "W_pos"):
                rows += [row(f"{said}.weight", part, form=after(before) if part == "W_pos" and before else SAME)]
            elif part.startswith("W_"):
                rows += linear(said, part, f"b{part[1:]}")
            else:
                in_block = part not in ("norm_f", "norm_e", "norm_u")
                rows += gains(stored[0] if in_block else said, f"L{{L}}.{part}" if in_block else part)
        return rows

    return of


def decoder(
    model_type: str,
    title: str,
    cls: str,
    rows: Callable[[ModelConfig], list[Row]],
    *pieces: Piece,
    base: str = "model.",
    even_heads: bool = True,
    **layout: bool | str | float,
) -> Family:
    """A family of causal models of that class, with the pieces that nearly all have."""
    given = {key for piece in pieces for key in piece.keys}
    return Family(
        name=model_type, title=title, kind="CausalLM", architecture=cls, also=(cls.replace("ForCausalLM", "Model"),),
        auto="AutoModelForCausalLM", base=base, preset="llama" if layout.get("norm", "rms") == "rms" else "gpt2",
        pieces=(*pieces, *(piece for piece in PLAIN if piece.key not in given)),
        layout={"positions": "rotary", "norm": "rms", "mlp": "swiglu", "start": "normal"} | layout,
        rows=rows, even_heads=even_heads,
        buffers=("*.rotary_emb.inv_freq",
                 *(f"*.{a}.{b}" for a in ("attn", "attention") for b in ("bias", "masked_bias"))),
    )  # fmt: skip


def sizes(
    vocab: int,
    d: int,
    layers: int,
    heads: int,
    ctx: int,
    *,
    mlp: int = 0,
    kv: int | bool = True,
    head: int | bool = False,
) -> tuple[Piece, ...]:
    """The usual keys of sizes with the values of a silent file; `kv` heads of keys, `head` a d_head; True is
    one that follows from the others."""
    return (
        Setting("vocab_size", "sizes.d_vocab", vocab),
        Setting("hidden_size", "sizes.d_model", d),
        Setting("num_hidden_layers", "sizes.n_layers", layers),
        Setting("num_attention_heads", "sizes.n_heads", heads),
        Setting("max_position_embeddings", "sizes.n_ctx", ctx),
        *([Setting("intermediate_size", "sizes.d_mlp", mlp)] if mlp else []),
        *([Setting("num_key_value_heads", "sizes.n_kv_heads", None if kv is True else kv)] if kv else []),
        *([Setting("head_dim", "sizes.d_head", None if head is True else head)] if head else []),
        Dropout((), ("attention_dropout",)),
    )


def _eps(key: str = "rms_norm_eps", usual: float = 1e-6) -> Setting:
    return Setting(key, "layout.norm_eps", usual)


SILU = Always("hidden_act", "silu", also=("swish",))
GELU_NEW = Setting("activation_function", "layout.mlp", "gelu_new", ACTS[1:2] + ACTS[:1] + ACTS[2:])
BIASED = Setting("attention_bias", "layout.attention_bias", False, ((False, "same"), (True, "all")))


def _whole(value: float) -> float:
    """A whole number as one, less the rounding of a root."""
    return round(value) if math.isclose(value, round(value), rel_tol=1e-9) else value


def _score_factor(key: str, usual: float, power: float) -> Joint:
    """A key whose `power` scores are multiplied by."""

    def read(reading: Reading) -> None:
        given = reading.number(key, usual, "expected a number above 0", least=1e-9)
        reading.values["layout.score_factor"] = float(given**power)

    def write(config: ModelConfig, out: JsonObject) -> None:
        layout = config.layout
        factor = layout.score_factor or (config.sizes.d_head**-0.5 if layout.scale else 1.0)
        out[key] = _whole(factor ** (1 / power))

    return Joint((key,), read, write)


# Llama with one thing or another changed

OLMO = decoder(
    "olmo", "OLMo", "OlmoForCausalLM",
    tensors(_gated_but("norm1", "norm2", "norm_f")),
    *sizes(50304, 4096, 32, 32, 2048, mlp=11008), SILU, BIASED, TIED, Rope(), *idle(clip_qkv=None),
    norm="layer", norm_gain=False, norm_bias="none", norm_eps=1e-5,
)  # fmt: skip
_OUTPUT_NORMS = _gated_but(
    "norm1", norm1="post_attention_layernorm", norm2="post_feedforward_layernorm",
    qnorm="self_attn.q_norm", knorm="self_attn.k_norm",
)  # fmt: skip
_OLMO = (*sizes(50304, 4096, 32, 32, 2048, mlp=11008), SILU, BIASED, TIED, _eps(usual=1e-5))
OLMO2 = decoder(
    "olmo2", "OLMo 2", "Olmo2ForCausalLM", tensors(_OUTPUT_NORMS), *_OLMO, Rope(),
    norm_place="out", qk_norm=True, qk_norm_whole=True,
)  # fmt: skip
_THREE_OF_FOUR = every(4, first="sliding_attention", last="full_attention")
OLMO3 = decoder(
    "olmo3", "OLMo 3", "Olmo3ForCausalLM", tensors(_OUTPUT_NORMS), *_OLMO,
    windows(usual=_THREE_OF_FOUR, keeps=True), rope_by_layer(500000.0, 500000.0),
    norm_place="out", qk_norm=True, qk_norm_whole=True,
)  # fmt: skip
SMOLLM3 = decoder(
    "smollm3", "SmolLM3", "SmolLM3ForCausalLM", tensors(GATED),
    *sizes(128256, 2048, 36, 16, 32768, mlp=11008, kv=4), SILU, BIASED, TIED_USUALLY, _eps(),
    windows(switch="use_sliding_window", width=None),
    layer_words("no_rope_layers", "layout.rope_layers", ((1, "r"), (0, "n")),
                every(4, first=1, last=0, key="no_rope_layer_interval")),
    Rope(base=2000000.0), *idle(mlp_bias=False), unread("no_rope_layer_interval"),
)  # fmt: skip
_JOINT = {"joint gated": "mlp.gate_up_proj mlp.down_proj"}
PHI3 = decoder(
    "phi3", "Phi-3", "Phi3ForCausalLM",
    tensors(_gated_but("QKVO", "gated") | {"QKV O": "self_attn.qkv_proj self_attn.o_proj"} | _JOINT),
    *sizes(32064, 3072, 32, 32, 4096, mlp=8192), SILU, TIED, _eps(usual=1e-5), Dropout(("resid_pdrop", "embd_pdrop")),
    windows(width=None, layered=False), Rope(shares=True),
    Always("original_max_position_embeddings", 4096, also=tuple(range(1, 1 << 17)), written=False),
)  # fmt: skip
GRANITE = decoder(
    "granite", "Granite", "GraniteForCausalLM", tensors(GATED),
    *sizes(32000, 4096, 32, 32, 2048, mlp=11008), SILU, BIASED, TIED, _eps(), Rope(), Always("mlp_bias", False),
    Setting("embedding_multiplier", "layout.embedding_factor", 1.0),
    Setting("residual_multiplier", "layout.residual_factor", 1.0),
    _score_factor("attention_multiplier", 1.0, 1),
    Joint(("logits_scaling",), lambda reading: reading.values.update(
        {"layout.logit_factor": 1 / reading.number("logits_scaling", 1.0, "expected a number above 0", least=1e-9)}),
        lambda config, out: out.update(logits_scaling=1 / config.layout.logit_factor)),
)  # fmt: skip
HELIUM = decoder(
    "helium", "Helium", "HeliumForCausalLM", tensors(GATED, neighbours=True),
    *sizes(48000, 2560, 24, 20, 4096, mlp=7040, head=128), SILU, BIASED, TIED, _eps(usual=1e-8), Rope(base=100000.0),
    Always("mlp_bias", False),
)  # fmt: skip
GLM = decoder(
    "glm", "GLM-4", "GlmForCausalLM",
    tensors(_gated_but("gated") | _JOINT, neighbours=True),
    *sizes(151552, 4096, 40, 32, 131072, mlp=13696, kv=2, head=128), SILU, TIED, _eps(usual=1.5625e-07),
    Rope(share=0.5, shares=True),
    Setting("attention_bias", "layout.attention_bias", True, ((True, "qkv"), (False, "same"))),
)  # fmt: skip
GLM4 = decoder(
    "glm4", "GLM-4 0414", "Glm4ForCausalLM",
    tensors(_gated_but("gated") | _JOINT
            | {"norm1_out": "post_self_attn_layernorm", "norm2_out": "post_mlp_layernorm"}, neighbours=True),
    *GLM.pieces, norm_place="both",
)  # fmt: skip
_UNGATED = _gated_but("gated", mlp="mlp.up_proj mlp.down_proj")
ARCEE = decoder(
    "arcee", "Arcee AFM", "ArceeForCausalLM", tensors(_UNGATED),
    *sizes(32000, 2560, 32, 32, 4096, mlp=18432, head=True), BIASED, TIED, _eps(usual=1e-5), Rope(),
    Always("hidden_act", "relu2"), Always("mlp_bias", False), mlp="relu2",
)  # fmt: skip
NEMOTRON = decoder(
    "nemotron", "Nemotron", "NemotronForCausalLM", tensors(_UNGATED, one_plus=True),
    *sizes(256000, 6144, 32, 48, 4096, mlp=24576, head=True), BIASED, TIED, _eps("norm_eps", 1e-5),
    Rope(share=0.5, shares=True), Always("hidden_act", "relu2"), Always("mlp_bias", False),
    mlp="relu2", norm="layer", norm_bias="all",
)  # fmt: skip
STARCODER2 = decoder(
    "starcoder2", "StarCoder2", "Starcoder2ForCausalLM",
    tensors(_gated_but("gated", mlp="mlp.c_fc mlp.c_proj")),
    *sizes(49152, 3072, 30, 24, 4096, mlp=12288, kv=2), Setting("hidden_act", "layout.mlp", "gelu_pytorch_tanh", ACTS),
    _eps("norm_epsilon", 1e-5), TIED_USUALLY, windows(width=None, layered=False), Rope(), Always("use_bias", True),
    Dropout(("residual_dropout", "embedding_dropout")), Always("mlp_type", "default", written=False),
    norm="layer", bias=True,
)  # fmt: skip

# Gemma


def _cap(key: str, path: str, usual: float | None) -> Joint:
    """A key of a cap, or null."""

    def read(reading: Reading) -> None:
        if reading.given.get(key, usual) is not None:
            reading.values[path] = float(reading.number(key, usual, "expected a number above 0", least=1e-9))

    return Joint((key,), read, lambda c, out: out.update({key: getattr(c.layout, path.partition(".")[2]) or None}))


_FROM_HEADS = _score_factor("query_pre_attn_scalar", 256, -0.5)
_GEMMA = {"mlp": "geglu_tanh", "embed_scale": True}
_TANH = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")
_GEMMA_NORMS = _gated_but(
    "norm2", norm1_out="post_attention_layernorm", norm2="pre_feedforward_layernorm",
    norm2_out="post_feedforward_layernorm",
)  # fmt: skip
GEMMA = decoder(
    "gemma", "Gemma", "GemmaForCausalLM", tensors(GATED, one_plus=True),
    *sizes(256000, 3072, 28, 16, 8192, mlp=24576, head=256), BIASED, TIED_USUALLY, _eps(), Rope(),
    Always("hidden_act", "gelu_pytorch_tanh", also=("gelu", *_TANH)),
    Always("hidden_activation", "gelu_pytorch_tanh", also=(None, *_TANH), written=False),
    Always("use_bidirectional_attention", None, also=(False,)), **_GEMMA,
)  # fmt: skip
GEMMA2 = decoder(
    "gemma2", "Gemma 2", "Gemma2ForCausalLM", tensors(_GEMMA_NORMS, one_plus=True),
    *sizes(256000, 2304, 26, 8, 8192, mlp=9216, kv=4, head=256), BIASED, TIED_USUALLY, _eps(), Rope(),
    windows(usual=every(2, first="sliding_attention", last="full_attention")), _FROM_HEADS,
    _cap("attn_logit_softcapping", "layout.score_cap", 50.0), _cap("final_logit_softcapping", "layout.logit_cap", 30.0),
    Always("hidden_activation", "gelu_pytorch_tanh", also=_TANH),
    Always("hidden_act", "gelu_pytorch_tanh", also=_TANH, written=False),
    Always("cache_implementation", "hybrid", written=False),
    Always("use_bidirectional_attention", None, also=(False,)), norm_place="both", **_GEMMA,
)  # fmt: skip
GEMMA3 = decoder(
    "gemma3_text", "Gemma 3", "Gemma3ForCausalLM",
    tensors(_GEMMA_NORMS | {"qnorm": "self_attn.q_norm", "knorm": "self_attn.k_norm"}, one_plus=True),
    *sizes(262208, 2304, 26, 8, 131072, mlp=9216, kv=4, head=256), BIASED, TIED_USUALLY, _eps(),
    windows(usual=every(6, first="sliding_attention", last="full_attention", key="sliding_window_pattern"), keeps=True),
    rope_by_layer(1000000.0, 10000.0), _FROM_HEADS,
    _cap("attn_logit_softcapping", "layout.score_cap", None), _cap("final_logit_softcapping", "layout.logit_cap", None),
    Always("hidden_activation", "gelu_pytorch_tanh", also=_TANH),
    Always("cache_implementation", "hybrid", written=False),
    unread("_sliding_window_pattern", "sliding_window_pattern"),
    Always("use_bidirectional_attention", False, also=(None,)), norm_place="both", qk_norm=True, **_GEMMA,
)  # fmt: skip

# Blocks side by side

_ONE_NORM = _gated_but("norm2")
STABLELM = decoder(
    "stablelm", "StableLM", "StableLmForCausalLM", tensors(GATED),
    *sizes(50304, 2560, 32, 32, 4096, mlp=6912), SILU, TIED, _eps("layer_norm_eps", 1e-5),
    *(Setting("use_parallel_residual", path, False, YES_NO) for path in ("layout.shared_norm", "layout.parallel")),
    Dropout(("hidden_dropout",)), Always("qk_layernorm", False),
    Setting("use_qkv_bias", "layout.attention_bias", False, ((False, "same"), (True, "qkv"))),
    Rope(share=0.25, shares=True), norm="layer", norm_bias="all",
)  # fmt: skip
COHERE = decoder(
    "cohere", "Command R", "CohereForCausalLM", tensors(_ONE_NORM, neighbours=True),
    *sizes(256000, 8192, 40, 64, 8192, mlp=22528), SILU, BIASED, TIED_USUALLY, _eps("layer_norm_eps", 1e-5),
    Rope(base=500000.0),
    Setting("logit_scale", "layout.logit_factor", 0.0625), Always("use_qk_norm", False),
    norm="layer", parallel=True, shared_norm=True,
)  # fmt: skip
PHI = decoder(
    "phi", "Phi", "PhiForCausalLM",
    tensors(_gated_but("norm2", "gated", QKVO=GATED["QKVO"].replace("o_proj", "dense"), mlp="mlp.fc1 mlp.fc2",
                       norm_f="model.final_layernorm")),
    *sizes(51200, 2048, 24, 32, 2048, mlp=8192), TIED, _eps("layer_norm_eps", 1e-5),
    Setting("hidden_act", "layout.mlp", "gelu_new", ACTS[1:2] + ACTS[:1] + ACTS[2:]),
    Dropout(("resid_pdrop", "embd_pdrop")), Always("qk_layernorm", False), Rope(share=0.5, shares=True),
    norm="layer", bias=True, head_bias=True, parallel=True, shared_norm=True,
)  # fmt: skip


def _rotary_dim(reading: Reading) -> None:
    """Coordinates that are turned, out of those of a head."""
    d_head = reading.values["sizes.d_model"] // max(1, reading.values["sizes.n_heads"])
    what = f"expected an even number up to {d_head}, the width of a head"
    turned = reading.number("rotary_dim", 64, what, whole=True, least=2, below=d_head + 1)
    share = turned / d_head
    reading.values["layout.rope_share"] = share if turned_width(d_head, share) == turned else math.nextafter(share, 2)


GPTJ = decoder(
    "gptj", "GPT-J", "GPTJForCausalLM",
    tensors({
        "W_E": "transformer.wte", "norm1": "ln_1", "QKVO": "attn.q_proj attn.k_proj attn.v_proj attn.out_proj",
        "mlp": "mlp.fc_in mlp.fc_out", "norm_f": "transformer.ln_f", "W_U": "lm_head"}, "transformer.h.{L}.",
        neighbours=True),
    Setting("vocab_size", "sizes.d_vocab", 50400), Setting("n_positions", "sizes.n_ctx", 2048),
    Setting("n_embd", "sizes.d_model", 4096), Setting("n_layer", "sizes.n_layers", 28),
    Setting("n_head", "sizes.n_heads", 16), Setting("n_inner", "sizes.d_mlp", None),
    Joint(("rotary_dim",), _rotary_dim,
          lambda config, out: out.update(rotary_dim=turned_width(config.sizes.d_head, config.layout.rope_share))),
    TIED, _eps("layer_norm_epsilon", 1e-5), GELU_NEW,
    Dropout(("resid_pdrop", "embd_pdrop"), ("attn_pdrop",)),
    *idle(rotary=True, scale_attn_weights=True, tokenizer_class=None),
    base="transformer.", norm="layer", bias=True, attention_bias="none", head_bias=True, parallel=True,
    shared_norm=True,
)  # fmt: skip


def _falcon_heads(reading: Reading) -> None:
    """Key/value heads, and whether attention and MLP stand side by side behind one norm or two."""
    given, n_heads = reading.given, reading.values["sizes.n_heads"]
    newer = given.get("new_decoder_architecture", False)
    usual = 1 if given.get("multi_query", True) else n_heads
    kv = reading.number("num_kv_heads", n_heads, whole=True) if newer else usual
    parallel = bool(newer or given.get("parallel_attn", True))
    two = newer and (given.get("num_ln_in_parallel_attn") or 2) == 2
    reading.values |= {"sizes.n_kv_heads": kv or n_heads}
    reading.values |= {"layout.parallel": parallel, "layout.shared_norm": parallel and not two}


def _write_falcon_heads(config: ModelConfig, out: JsonObject) -> None:
    layout, kv, heads = config.layout, config.sizes.n_kv_heads, config.sizes.n_heads
    newer = layout.parallel and (not layout.shared_norm or kv not in (1, heads))
    out |= {"new_decoder_architecture": newer, "multi_query": kv == 1, "num_kv_heads": kv}
    out["parallel_attn"] = layout.parallel
    out["num_ln_in_parallel_attn"] = (1 if layout.shared_norm else 2) if newer else None


def _falcon_rows(config: ModelConfig) -> list[Row]:
    two = config.layout.parallel and not config.layout.shared_norm
    one, other = ("ln_attn", "ln_mlp") if two else ("input_layernorm", "post_attention_layernorm")
    names = {
        "W_E": "transformer.word_embeddings", "norm1": one, "norm2": other,
        "QKV O": "self_attention.query_key_value self_attention.dense",
        "mlp": "mlp.dense_h_to_4h mlp.dense_4h_to_h", "norm_f": "transformer.ln_f", "W_U": "lm_head",
    }  # fmt: skip
    if config.layout.shared_norm:
        del names["norm2"]
    return tensors(names, "transformer.h.{L}.", interleaved=True)(config)


FALCON = decoder(
    "falcon", "Falcon", "FalconForCausalLM", _falcon_rows,
    *sizes(65024, 4544, 32, 71, 2048, kv=False), Setting("ffn_hidden_size", "sizes.d_mlp", None),
    Joint(("new_decoder_architecture", "multi_query", "num_kv_heads", "parallel_attn", "num_ln_in_parallel_attn"),
          _falcon_heads, _write_falcon_heads),
    Setting("activation", "layout.mlp", "gelu", ACTS), Setting("bias", "layout.bias", False, YES_NO),
    _eps("layer_norm_epsilon", 1e-5), TIED_USUALLY, Dropout(("hidden_dropout",)), Rope(), Always("alibi", False),
    base="transformer.", norm="layer", norm_bias="all",
)  # fmt: skip

# Learned positions, local attention, ALiBi


def _one_head(reading: Reading) -> None:
    """One key/value head for all query heads, as StarCoder has it."""
    if reading.given.get("multi_query", True) is not True:
        raise reading.refuse("multi_query", "qkv reads this family with one key/value head for all query heads")
    reading.values["sizes.n_kv_heads"] = 1


def _read_global_local(reading: Reading) -> None:
    """GPT-Neo: which layers are local, as runs of kinds that repeat, or layer by layer."""
    n_layers = int(reading.values["sizes.n_layers"])
    runs = reading.given.get("attention_types", [[["global", "local"], -(-n_layers // 2)]])
    try:
        runs = ((some, min(n, n_layers + 1)) for some, n in runs)
        kinds = reading.given.get("attention_layers") or (kind for some, n in runs for _ in range(n) for kind in some)
        letters = "".join({"global": "f", "local": "w"}[kind] for kind in islice(kinds, n_layers + 1))
    except (TypeError, ValueError, KeyError):
        letters = ""
    if len(letters) != n_layers:
        raise reading.refuse("attention_types", f"expected global or local for each of {n_layers} layers")
    width = int(reading.number("window_size", 256, "expected a number of positions", whole=True, least=1))
    if "w" in letters and width < reading.values["sizes.n_ctx"]:
        reading.values |= {"layout.window": width, "layout.window_layers": shortest(letters)}


def _write_global_local(config: ModelConfig, out: JsonObject) -> None:
    layers = ["local" if config.layout.windowed(layer) else "global" for layer in range(config.sizes.n_layers)]
    out |= {"attention_types": [[layers, 1]], "attention_layers": layers}
    out["window_size"] = config.layout.window or config.sizes.n_ctx


_GPT = {
    "W_E": "transformer.wte", "W_pos": "transformer.wpe", "norm1": "ln_1", "norm2": "ln_2",
    "mlp": "mlp.c_fc mlp.c_proj", "norm_f": "transformer.ln_f", "W_U": "lm_head",
}  # fmt: skip
GPT_NEO = decoder(
    "gpt_neo", "GPT-Neo", "GPTNeoForCausalLM",
    tensors(_GPT | {"QKVO": " ".join(f"attn.attention.{name}_proj" for name in ("q", "k", "v", "out"))},
            "transformer.h.{L}."),
    Setting("vocab_size", "sizes.d_vocab", 50257), Setting("max_position_embeddings", "sizes.n_ctx", 2048),
    Setting("hidden_size", "sizes.d_model", 2048), Setting("num_layers", "sizes.n_layers", 24),
    Setting("num_heads", "sizes.n_heads", 16), Setting("intermediate_size", "sizes.d_mlp", None),
    Joint(("attention_types", "attention_layers", "window_size"), _read_global_local, _write_global_local),
    GELU_NEW, _eps("layer_norm_epsilon", 1e-5), TIED_USUALLY,
    Dropout(("resid_dropout", "embed_dropout"), ("attention_dropout",)),
    base="transformer.", positions="learned", norm="layer", bias=True, attention_bias="out", scale=False, start="gpt2",
)  # fmt: skip
_OPT_MODULES = {
    "W_E": "model.decoder.embed_tokens", "W_pos": "model.decoder.embed_positions", "norm1": "self_attn_layer_norm",
    "QKVO": "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.out_proj", "norm2": "final_layer_norm",
    "mlp": "fc1 fc2", "norm_f": "model.decoder.final_layer_norm", "W_U": "lm_head",
}  # fmt: skip


def _no_projection(reading: Reading) -> None:
    d_model = reading.values["sizes.d_model"]
    if reading.number("word_embed_proj_dim", d_model) != d_model:
        raise reading.refuse("word_embed_proj_dim", "qkv has no projection around the blocks (project_in, project_out)")


OPT = decoder(
    "opt", "OPT", "OPTForCausalLM", tensors(_OPT_MODULES, "model.decoder.layers.{L}.", before=2),
    *sizes(50272, 768, 12, 12, 2048, kv=False), Setting("ffn_dim", "sizes.d_mlp", 3072),
    Joint(("word_embed_proj_dim",), _no_projection, lambda c, out: out.update(word_embed_proj_dim=c.sizes.d_model)),
    Setting("do_layer_norm_before", "layout.norm_place", True, ((True, "pre"), (False, "post"))),
    Setting("activation_function", "layout.mlp", "relu", ACTS), TIED_USUALLY, Dropout(("dropout",), (), 0.1),
    Always("enable_bias", True), Always("layer_norm_elementwise_affine", True),
    *idle(_remove_final_layer_norm=False, layerdrop=0.0, activation_dropout=0.0),
    positions="learned", norm="layer", norm_eps=1e-5, bias=True, start="gpt2",
)  # fmt: skip
BIOGPT = decoder(
    "biogpt", "BioGPT", "BioGptForCausalLM",
    tensors({part: name.replace("model.decoder", "biogpt") for part, name in _OPT_MODULES.items()}
            | {"norm_f": "biogpt.layer_norm", "W_U": "output_projection"}, "biogpt.layers.{L}.", before=2),
    *(piece for piece in sizes(42384, 1024, 24, 16, 1024, mlp=4096, kv=False) if not isinstance(piece, Dropout)),
    Setting("hidden_act", "layout.mlp", "gelu", ACTS), TIED_USUALLY,
    unread("layer_norm_eps"),  # its norms have that of torch
    Setting("scale_embedding", "layout.embed_scale", True, YES_NO),
    Dropout(("hidden_dropout_prob",), ("attention_probs_dropout_prob", "activation_dropout"), 0.1),
    *idle(layerdrop=0.0),
    base="biogpt.", positions="learned", norm="layer", norm_eps=1e-5, bias=True, start="gpt2",
)  # fmt: skip
BLOOM = decoder(
    "bloom", "BLOOM", "BloomForCausalLM",
    tensors({
        "W_E": "transformer.word_embeddings", "norm_e": "transformer.word_embeddings_layernorm",
        "norm1": "input_layernorm", "QKV O": "self_attention.query_key_value self_attention.dense",
        "norm2": "post_attention_layernorm", "mlp": "mlp.dense_h_to_4h mlp.dense_4h_to_h",
        "norm_f": "transformer.ln_f", "W_U": "lm_head"}, "transformer.h.{L}.", interleaved=True),
    Setting("vocab_size", "sizes.d_vocab", 250880), Setting("hidden_size", "sizes.d_model", 64, again=("n_embed",)),
    Setting("n_layer", "sizes.n_layers", 2, again=("num_hidden_layers",)),
    Setting("n_head", "sizes.n_heads", 8, again=("num_attention_heads",)), Setting("seq_length", "sizes.n_ctx", 2048),
    _eps("layer_norm_epsilon", 1e-5), TIED_USUALLY, Dropout(("hidden_dropout",), ("attention_dropout",)),
    Always("apply_residual_connection_post_layernorm", False), Always("slow_but_exact", False, also=(True,)),
    *idle(n_inner=None, attention_softmax_in_fp32=True, bias_dropout_fusion=True, masked_softmax_fusion=True,
          offset_alibi=100, skip_bias_add=True, skip_bias_add_qkv=False),
    base="transformer.", positions="alibi", norm="layer", norm_e=True, mlp="gelu_tanh", bias=True, start="gpt2",
)  # fmt: skip

GPT_BIGCODE = decoder(
    "gpt_bigcode", "StarCoder", "GPTBigCodeForCausalLM",
    tensors(_GPT | {"QKV O": "attn.c_attn attn.c_proj"}, "transformer.h.{L}."),
    Setting("vocab_size", "sizes.d_vocab", 50257), Setting("n_positions", "sizes.n_ctx", 1024),
    Setting("n_embd", "sizes.d_model", 768), Setting("n_layer", "sizes.n_layers", 12),
    Setting("n_head", "sizes.n_heads", 12), Setting("n_inner", "sizes.d_mlp", None),
    Joint(("multi_query", "num_key_value_heads"), _one_head, lambda config, out: out.update(multi_query=True)),
    Setting("activation_function", "layout.mlp", "gelu_pytorch_tanh", ACTS), TIED_USUALLY,
    _eps("layer_norm_epsilon", 1e-5), Setting("scale_attn_weights", "layout.scale", True, YES_NO),
    Dropout(("resid_pdrop", "embd_pdrop"), ("attn_pdrop",), 0.1),
    Always("attention_softmax_in_fp32", True, also=(False,), written=False),
    Always("scale_attention_softmax_in_fp32", True, also=(False,), written=False),
    *(Always(key, None, also=(True, False, 0, 1, 2, 3), written=False) for key in (
        "inference_runner", "max_batch_size", "max_sequence_length", "pre_allocate_kv_cache", "pad_key_length",
        "validate_runner_input")),
    base="transformer.", positions="learned", norm="layer", bias=True, start="gpt2",
)  # fmt: skip


def _read_mpt(reading: Reading) -> None:
    """MPT: what its attention has is in a table of its own."""
    said, n_heads = reading.given.get("attn_config") or {}, reading.values["sizes.n_heads"]
    if not isinstance(said, dict):
        raise reading.refuse("attn_config", "expected a table of settings")
    fixed = {"alibi": True, "qk_ln": False, "clip_qkv": None, "softmax_scale": None, "alibi_bias_max": 8}
    other = [name for name, value in {**fixed, "prefix_lm": False}.items() if said.get(name, value) != value]
    if other or n_heads & (n_heads - 1):
        what = f"its {other[0]} = {said[other[0]]}" if other else f"slopes for {n_heads} heads, no power of two,"
        raise reading.refuse("attn_config", f"qkv reads MPT with ALiBi and nothing else; {what} is not read")


MPT = decoder(
    "mpt", "MPT", "MptForCausalLM",
    tensors({
        "W_E": "transformer.wte", "norm1": "norm_1", "QKV O": "attn.Wqkv attn.out_proj", "norm2": "norm_2",
        "mlp": "ffn.up_proj ffn.down_proj", "norm_f": "transformer.norm_f", "W_U": "lm_head"},
        "transformer.blocks.{L}."),
    Setting("vocab_size", "sizes.d_vocab", 50368), Setting("max_seq_len", "sizes.n_ctx", 2048),
    Setting("d_model", "sizes.d_model", 2048), Setting("n_layers", "sizes.n_layers", 24),
    Setting("n_heads", "sizes.n_heads", 16),
    Joint(("attn_config",), _read_mpt, lambda config, out: out.update(attn_config={"alibi": True})),
    Always("expansion_ratio", 4), _eps("layer_norm_epsilon", 1e-5), Always("no_bias", True), TIED_USUALLY,
    Dropout(("resid_pdrop", "emb_pdrop")), *idle(logit_scale=None, embedding_fraction=1.0, verbose=0),
    *(Always(key, None, also=("cpu", "low_precision_layernorm", True, False), written=False) for key in (
        "init_device", "norm_type", "learned_pos_emb")),
    base="transformer.", positions="alibi", norm="layer", mlp="gelu", start="gpt2",
)  # fmt: skip

DECODERS: tuple[Family, ...] = (
    OLMO, OLMO2, OLMO3, SMOLLM3, PHI3, GRANITE, HELIUM, GLM, GLM4, ARCEE, NEMOTRON, STARCODER2, GEMMA, GEMMA2, GEMMA3,
    STABLELM, COHERE, PHI, GPTJ, FALCON, GPT_NEO, OPT, BIOGPT, BLOOM, GPT_BIGCODE, MPT,
)  # fmt: skip
