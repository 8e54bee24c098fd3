"""A layout is the published architecture: logits and gradients equal those of transformers on random weights, in
float64.

Llama and Qwen3 compute norms and rotary angles (and, without the fused attention, softmax) in float32 there, whatever
the dtype of the model. They are compared twice: as published, within float32's accuracy, and with those float32 islands
written in float64, to 1e-10.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

from qkv.models import Encoder, Layout, ModelConfig, Sizes, build

transformers = pytest.importorskip("transformers", reason="needs the dev extra (transformers)")

CLOSE, ISLANDS = 1e-10, 2e-5
SIZES = dict(d_vocab=19, d_model=24, n_layers=2, n_heads=4, n_ctx=12, d_mlp=40)


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 19, (3, 12), generator=torch.Generator().manual_seed(2))


def copy_blocks(
    theirs: dict[str, torch.Tensor], names: dict[str, str], prefix: str, ours: dict, *, transpose: bool
) -> None:
    """Write their layer weights into ours, by a table of names; linear weights [out, in] become [in, out]."""
    for layer in range(2):
        for our_name, their_name in names.items():
            value = theirs[prefix.format(layer) + their_name]
            ours[f"blocks.{layer}.{our_name}"].data = (value.t() if transpose and value.ndim == 2 else value).clone()


GATED = {
    "norm1.gain": "input_layernorm.weight",
    "norm2.gain": "post_attention_layernorm.weight",
    "attention.W_Q": "self_attn.q_proj.weight",
    "attention.W_K": "self_attn.k_proj.weight",
    "attention.W_V": "self_attn.v_proj.weight",
    "attention.W_O": "self_attn.o_proj.weight",
    "mlp.W_gate": "mlp.gate_proj.weight",
    "mlp.W_in": "mlp.up_proj.weight",
    "mlp.W_out": "mlp.down_proj.weight",
}
QK_NORM = {"attention.qnorm.gain": "self_attn.q_norm.weight", "attention.knorm.gain": "self_attn.k_norm.weight"}


def randomise(model: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3 + 0.1
    return model.double().eval()


def gated_pair(kind: str, n_kv_heads: int, d_head: int):
    """Their Llama or Qwen3 and our model with the same random weights."""
    common = dict(
        vocab_size=19,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=n_kv_heads,
        head_dim=d_head,
        rms_norm_eps=1e-6,
        max_position_embeddings=12,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    config, model = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }[kind]
    theirs = randomise(model(config(**common)))
    layout = Layout(qk_norm=kind == "qwen3", tied=False, rope_base=500.0, norm_eps=1e-6, start="normal")
    sizes = Sizes(**SIZES, n_kv_heads=n_kv_heads, d_head=d_head)
    ours = build(ModelConfig(kind="CausalLM", sizes=sizes, layout=layout), 0).double()
    state, mine = theirs.state_dict(), dict(ours.named_parameters())
    copy_blocks(state, GATED | (QK_NORM if kind == "qwen3" else {}), "model.layers.{}.", mine, transpose=True)
    mine["embedding.W_E"].data = state["model.embed_tokens.weight"].clone()
    mine["norm_f.gain"].data = state["model.norm.weight"].clone()
    mine["head.W_U"].data = state["lm_head.weight"].t().clone()
    return theirs, ours


def without_islands(theirs: torch.nn.Module, base: float, d_head: int) -> None:
    """Write their norms and rotary angles in float64."""

    def norm_forward(norm: torch.nn.Module):
        def forward(x: torch.Tensor) -> torch.Tensor:
            return norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)

        return forward

    def angles(x: torch.Tensor, position_ids: torch.Tensor):
        frequencies = base ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
        turns = position_ids[..., None].double() * frequencies
        turns = torch.cat((turns, turns), dim=-1)
        return turns.cos(), turns.sin()

    for module in theirs.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = norm_forward(module)
    theirs.model.rotary_emb.forward = angles


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize(("n_kv_heads", "d_head"), [(4, 6), (2, 8)])
def test_rotary_rms_swiglu_layout_is_llama_and_with_qk_norm_it_is_qwen3(kind, n_kv_heads, d_head, ids):
    theirs, ours = gated_pair(kind, n_kv_heads, d_head)
    expected = theirs(ids).logits
    torch.testing.assert_close(ours(ids), expected, rtol=ISLANDS, atol=ISLANDS)
    torch.testing.assert_close(ours.forward_recorded(ids)[0], expected, rtol=ISLANDS, atol=ISLANDS)
    without_islands(theirs, 500.0, d_head)
    expected = theirs(ids).logits
    torch.testing.assert_close(ours(ids), expected, rtol=CLOSE, atol=CLOSE)
    torch.testing.assert_close(ours.forward_recorded(ids)[0], expected, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_gradients_of_llama_and_qwen3_are_ours(kind, ids):
    theirs, ours = gated_pair(kind, 2, 8)
    without_islands(theirs, 500.0, 8)
    theirs(ids).logits.logsumexp(-1).sum().backward()
    ours(ids).logsumexp(-1).sum().backward()
    expected, mine = dict(theirs.named_parameters()), dict(ours.named_parameters())
    for layer in range(2):
        for our_name, their_name in (GATED | (QK_NORM if kind == "qwen3" else {})).items():
            grad = expected[f"model.layers.{layer}.{their_name}"].grad
            grad = grad.t() if grad.ndim == 2 else grad
            torch.testing.assert_close(mine[f"blocks.{layer}.{our_name}"].grad, grad, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(mine["embedding.W_E"].grad, expected["model.embed_tokens.weight"].grad)


GPT2 = {
    "norm1.gain": "ln_1.weight",
    "norm1.bias": "ln_1.bias",
    "norm2.gain": "ln_2.weight",
    "norm2.bias": "ln_2.bias",
    "attention.W_O": "attn.c_proj.weight",
    "attention.b_O": "attn.c_proj.bias",
    "mlp.W_in": "mlp.c_fc.weight",
    "mlp.b_in": "mlp.c_fc.bias",
    "mlp.W_out": "mlp.c_proj.weight",
    "mlp.b_out": "mlp.c_proj.bias",
}


def test_learned_layernorm_gelu_tanh_tied_layout_is_gpt2(ids):
    config = transformers.GPT2Config(
        vocab_size=19, n_positions=12, n_embd=24, n_layer=2, n_head=4, n_inner=40, attn_implementation="sdpa"
    )
    theirs = randomise(transformers.GPT2LMHeadModel(config))
    layout = Layout(positions="learned", norm="layer", norm_eps=1e-5, mlp="gelu_tanh", bias=True, start="gpt2")
    ours = build(ModelConfig(kind="CausalLM", sizes=Sizes(**SIZES), layout=layout), 0).double()
    state, mine = theirs.state_dict(), dict(ours.named_parameters())
    copy_blocks(state, GPT2, "transformer.h.{}.", mine, transpose=False)
    for layer in range(2):
        for kind in ("weight", "bias"):
            parts = state[f"transformer.h.{layer}.attn.c_attn.{kind}"].split(24, dim=-1)
            for letter, part in zip("QKV", parts, strict=True):
                mine[f"blocks.{layer}.attention.{kind[0].replace('w', 'W')}_{letter}"].data = part.clone()
    mine["embedding.W_E"].data = state["transformer.wte.weight"].clone()
    mine["embedding.W_pos"].data = state["transformer.wpe.weight"].clone()
    mine["norm_f.gain"].data = state["transformer.ln_f.weight"].clone()
    mine["norm_f.bias"].data = state["transformer.ln_f.bias"].clone()
    assert "head.W_U" not in mine and "head.b_U" not in mine
    torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=CLOSE, atol=CLOSE)
    theirs(ids).logits.logsumexp(-1).sum().backward()
    ours(ids).logsumexp(-1).sum().backward()
    expected = dict(theirs.named_parameters())["transformer.wte.weight"].grad
    torch.testing.assert_close(mine["embedding.W_E"].grad, expected, rtol=1e-9, atol=1e-9)


BERT = {
    "attention.W_Q": "attention.self.query.weight",
    "attention.b_Q": "attention.self.query.bias",
    "attention.W_K": "attention.self.key.weight",
    "attention.b_K": "attention.self.key.bias",
    "attention.W_V": "attention.self.value.weight",
    "attention.b_V": "attention.self.value.bias",
    "attention.W_O": "attention.output.dense.weight",
    "attention.b_O": "attention.output.dense.bias",
    "norm1.gain": "attention.output.LayerNorm.weight",
    "norm1.bias": "attention.output.LayerNorm.bias",
    "mlp.W_in": "intermediate.dense.weight",
    "mlp.b_in": "intermediate.dense.bias",
    "mlp.W_out": "output.dense.weight",
    "mlp.b_out": "output.dense.bias",
    "norm2.gain": "output.LayerNorm.weight",
    "norm2.bias": "output.LayerNorm.bias",
}


@pytest.mark.parametrize("padded", [False, True])
def test_post_norm_learned_gelu_layout_is_the_body_of_bert(padded, ids):
    config = transformers.BertConfig(
        vocab_size=19,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=12,
        type_vocab_size=1,
        attn_implementation="sdpa",
    )
    theirs = randomise(transformers.BertModel(config, add_pooling_layer=False))
    layout = Layout(
        positions="learned",
        norm="layer",
        norm_place="post",
        norm_eps=1e-12,
        norm_e=True,
        mlp="gelu",
        bias=True,
        start="bert",
    )
    ours = Encoder(Sizes(**SIZES), layout).double()
    state, mine = theirs.state_dict(), dict(ours.named_parameters())
    copy_blocks(state, BERT, "encoder.layer.{}.", mine, transpose=True)
    mine["embedding.W_E"].data = state["embeddings.word_embeddings.weight"].clone()
    positions, types = state["embeddings.position_embeddings.weight"], state["embeddings.token_type_embeddings.weight"]
    mine["embedding.W_pos"].data = positions + types[0]
    mine["embedding.norm_e.gain"].data = state["embeddings.LayerNorm.weight"].clone()
    mine["embedding.norm_e.bias"].data = state["embeddings.LayerNorm.bias"].clone()
    mask = torch.ones(3, 12, dtype=torch.bool)
    if padded:
        mask[1, 7:] = False
        mask[2, 3:] = False
    expected = theirs(ids, attention_mask=mask.long()).last_hidden_state
    torch.testing.assert_close(ours(ids, mask)[mask], expected[mask], rtol=CLOSE, atol=CLOSE)


def test_sinks_are_those_of_gpt_oss():
    from types import SimpleNamespace

    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    from qkv.models import attend_explicit
    from qkv.models.masks import Visible

    generator = torch.Generator().manual_seed(5)
    q, k, v, sinks = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((2, 4, 7, 6), (2, 2, 7, 6), (2, 2, 7, 6), (4,))
    )
    theirs = SimpleNamespace(sinks=sinks, num_key_value_groups=2, training=False)
    future = torch.full((1, 1, 7, 7), -torch.inf, dtype=torch.float64).triu(1)
    z, pattern = eager_attention_forward(theirs, q, k, v, future, scaling=0.4)
    own, _, own_pattern = attend_explicit(q, k, v, Visible(True, None), 0.4, sinks=sinks)
    torch.testing.assert_close(own, z.transpose(1, 2), rtol=0, atol=CLOSE)
    torch.testing.assert_close(own_pattern, pattern, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n_buckets, reach", [(32, 128), (8, 9), (32, 200)])
def test_every_distance_is_in_the_bucket_of_t5(causal, n_buckets, reach):
    from qkv.models.positions import Relative

    bucket = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket
    ours, n, like = Relative(1, n_buckets, reach, causal=causal), 300, torch.zeros(1, 1, 1)
    ours.W_rel.data = torch.arange(n_buckets, dtype=torch.float32)[:, None]
    wanted = bucket(torch.arange(n) - torch.arange(n)[:, None], not causal, n_buckets, reach)
    assert torch.equal(ours.bias(n, n, like)[0].long(), wanted)
    assert torch.equal(ours.bias(2, n, like)[0].long(), wanted[-2:])
