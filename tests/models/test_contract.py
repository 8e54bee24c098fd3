"""What every model promises, held over layouts of every kind."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from qkv.models import CausalLM, Layout, MaskedLM, ModelConfig, RopeScaling, Sizes, build

LAYOUTS = {
    "modern": Layout(positions="rotary", norm="rms", qk_norm=True, mlp="swiglu"),
    "fast": Layout(positions="rotary", norm="rms", qk_norm=True, mlp="relu2", norm_e=True, tied=False),
    "gpt2": Layout(positions="learned", norm="layer", mlp="gelu_tanh", bias=True, start="gpt2"),
    "bert": Layout(
        positions="learned", norm="layer", norm_place="post", norm_e=True, mlp="gelu", bias=True, start="bert"
    ),
    "llama": Layout(positions="rotary", norm="rms", mlp="swiglu", tied=False, start="normal"),
    "vaswani": Layout(
        positions="sinusoidal",
        norm="layer",
        norm_place="post",
        mlp="relu",
        bias=True,
        embed_scale=True,
        start="xavier",
    ),
    "textbook": Layout(positions="learned", norm="layer", mlp="gelu", tied=False, start="xavier"),
    "bare": Layout(positions="none", norm="none", mlp="none", skip=False, tied=False, scale=False, start="xavier"),
    "post rms": Layout(positions="rotary", norm="rms", norm_place="post", qk_norm=True, mlp="relu2", start="xavier"),
    "parallel": Layout(norm="layer", mlp="gelu", bias=True, rope_share=0.5, parallel=True, tied=False, start="gpt2"),
    "biased q, k, v": Layout(
        attention_bias="qkv",
        rope_scaling=RopeScaling(kind="yarn", factor=4.0, slow=0.5, fast=2.0, original_ctx=6, stretch=1.2),
        start="normal",
    ),
    "transform": Layout(
        positions="learned", norm="layer", norm_place="post", mlp="relu", bias=True, head_transform=True, start="bert"
    ),
    "lstm": Layout(mixer="lstm", positions="none", norm="none", mlp="none", skip=False, tied=False, start="recurrent"),
    "lstm in blocks": Layout(mixer="lstm", positions="learned", norm="layer", mlp="gelu", bias=True, start="recurrent"),
    "bag": Layout(mixer="mean", positions="none", norm="rms", mlp="relu", start="recurrent"),
    "qk norm without rotary": Layout(positions="learned", norm="rms", qk_norm=True, mlp="swiglu", start="xavier"),
    "window": Layout(window=4, window_layers="wf", window_rope_base=50.0, rope_layers="rn", start="normal"),
    "window everywhere": Layout(positions="learned", norm="layer", mlp="gelu", bias=True, window=3, start="gpt2"),
    "alibi": Layout(positions="alibi", norm="layer", norm_e=True, mlp="gelu_tanh", bias=True, start="gpt2"),
    "alibi in windows": Layout(positions="alibi", window=4, window_layers="fw", start="normal"),
    "relative": Layout(positions="relative", relative_buckets=8, relative_reach=9, scale=False, start="normal"),
    "relative in windows": Layout(
        positions="relative", relative_buckets=4, window=4, window_layers="fw", mlp="relu", tied=False, start="xavier"
    ),
    "sinks": Layout(sinks=True, window=4, window_layers="wf", attention_bias="all", start="normal"),
    "caps": Layout(score_cap=2.0, logit_cap=3.0, score_factor=0.7, mlp="geglu_tanh", tied=False, start="normal"),
    "norm of outputs": Layout(norm_place="out", qk_norm=True, qk_norm_whole=True, start="xavier"),
    "norms on both sides": Layout(norm_place="both", norm="layer", norm_bias="all", mlp="geglu", start="xavier"),
    "factors": Layout(embedding_factor=3.0, residual_factor=0.4, logit_factor=0.5, start="normal"),
    "shared norm": Layout(
        norm="layer", norm_bias="all", mlp="gelu", mlp_bias="all", parallel=True, shared_norm=True, start="gpt2"
    ),
    "biased output": Layout(positions="learned", norm="layer", mlp="relu", bias=True, attention_bias="out"),
    "norm without gain": Layout(norm="layer", norm_gain=False, mlp="silu", start="normal"),
    "no first norm": Layout(norm="layer", norm_e=True, first_norm=False, mlp="geglu", head_bias=True, start="normal"),
    "one layer again": Layout(
        positions="learned",
        norm="layer",
        norm_place="post",
        norm_e=True,
        mlp="gelu",
        bias=True,
        head_transform=True,
        shared_layers=True,
        start="bert",
    ),
}
SHARED = {"modern", "llama", "gpt2"}
WITHOUT_ATTENTION = {"lstm", "lstm in blocks", "bag"}
NARROW_TABLE = {"one layer again"}


def config_of(kind: str, name: str) -> ModelConfig:
    shared, types = 2 if name in SHARED else 0, 2 if name == "transform" else 0
    n_heads = 1 if name in WITHOUT_ATTENTION else 4
    d_embed = 6 if name in NARROW_TABLE else 0
    sizes = Sizes(
        d_vocab=13, d_model=16, n_layers=2, n_heads=n_heads, n_ctx=10, n_kv_heads=shared, n_types=types, d_embed=d_embed
    )
    return ModelConfig(kind=kind, sizes=sizes, layout=LAYOUTS[name])


def randomised(config: ModelConfig) -> CausalLM | MaskedLM:
    """In float64, with every parameter random, so that no zero hides a leak."""
    model = build(config, 0).double()
    generator = torch.Generator().manual_seed(8)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


@pytest.fixture(params=[(kind, name) for name in LAYOUTS for kind in ("CausalLM", "MaskedLM")], ids="-".join)
def config(request) -> ModelConfig:
    return config_of(*request.param)


@pytest.fixture
def model(config) -> CausalLM | MaskedLM:
    return randomised(config)


@pytest.fixture(params=LAYOUTS)
def causal(request) -> CausalLM | MaskedLM:
    return randomised(config_of("CausalLM", request.param))


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 13, (3, 10), generator=torch.Generator().manual_seed(9))


MASK = torch.tensor([[True] * 10, [True] * 6 + [False] * 4, [False] * 3 + [True] * 7])


def test_logits_have_the_shape_and_dtype_promised(config, ids):
    model = build(config, 0)
    logits = model(ids)
    assert logits.shape == (3, 10, 13) and logits.dtype == torch.float32
    assert model.hidden(ids).shape == (3, 10, 16)
    assert model(ids[:, :1]).shape == (3, 1, 13)
    assert model.config == config.resolved()


def test_the_same_seed_gives_the_same_model_and_another_seed_another(config):
    one, same, other = build(config, 3).state_dict(), build(config, 3).state_dict(), build(config, 4).state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_gradient_reaches_every_parameter(model, ids):
    F.cross_entropy(model(ids).flatten(0, 1), ids.flip(1).flatten()).backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), path
        assert path.endswith("b_K") or (parameter.grad != 0).any(), path  # softmax does not see a shift of all keys


@pytest.mark.parametrize("masked", [False, True])
def test_recorded_logits_equal_those_of_the_plain_forward(model, ids, masked):
    mask = MASK if masked else None
    logits, record = model.forward_recorded(ids, mask)
    torch.testing.assert_close(logits, model(ids, mask), rtol=0, atol=1e-11)
    assert list(record) == model.activation_names()


def test_gradients_of_the_fast_path_equal_those_of_the_explicit_path(model, ids):
    grads = []
    for forward in (model, lambda ids, mask: model.forward_recorded(ids, mask)[0]):
        model.zero_grad()
        F.cross_entropy(forward(ids, MASK)[MASK], ids[MASK]).backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
    for fast, explicit in zip(*grads, strict=True):
        torch.testing.assert_close(fast, explicit, rtol=0, atol=1e-11)


def test_recorded_activations_have_the_shapes_promised(model, ids):
    sizes = model.config.sizes
    _, record = model.forward_recorded(ids)
    stream = (3, 10, 16)
    shapes = {"embed": stream, "norm_f": stream}
    around = ("resid_pre", "x", "attn_out", "mix_out", "resid_mid", "mlp_out", "resid_post")
    per_layer = {name: stream for name in around}
    per_layer |= {name: (3, sizes.n_heads, 10, sizes.d_head) for name in "qz"}
    per_layer |= {name: (3, sizes.n_kv_heads, 10, sizes.d_head) for name in "kv"}
    per_layer |= {name: (3, sizes.n_heads, 10, 10) for name in ("scores", "pattern")}
    shapes |= {f"L{layer}.{name}": shape for layer in range(2) for name, shape in per_layer.items()}
    for name, tensor in record.items():
        assert tuple(tensor.shape) == shapes[name], name
    for layer in range(2 if model.layout.mixer == "attention" else 0):
        pattern = record[f"L{layer}.pattern"]
        weights, sink = record[f"L{layer}.scores"].exp(), model.blocks[layer].attention.b_sink
        others = 0.0 if sink is None else sink.exp()[:, None, None]
        torch.testing.assert_close(pattern, weights / (weights.sum(-1, keepdim=True) + others))
        assert sink is None or pattern.sum(-1).max() < 0.99


def test_padding_never_reaches_a_real_token(model, ids):
    logits = model(ids, MASK)
    changed = torch.where(MASK, ids, (ids + 1) % 13)
    torch.testing.assert_close(model(changed, MASK)[MASK], logits[MASK], rtol=0, atol=1e-12)


def test_the_future_never_reaches_a_causal_model_and_always_a_masked_one(model, ids):
    logits = model(ids)
    changed = ids.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 13
    apart = (model(changed)[:, :6] - logits[:, :6]).abs().max()
    assert apart < 1e-12 if isinstance(model, CausalLM) else apart > 1e-6


def test_a_cache_filled_in_pieces_gives_the_logits_of_the_whole(causal, ids):
    whole, cache = causal(ids), causal.new_cache(3)
    with torch.no_grad():
        pieces = [causal.unembed(causal.hidden(piece, cache=cache)) for piece in ids.split([4, 1, 3, 1, 1], dim=1)]
    assert cache.length == 10
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-11)


def test_a_cache_serves_prompts_padded_on_the_left(causal, ids):
    mask = torch.tensor([[True] * 10, [False] * 2 + [True] * 8, [False] * 5 + [True] * 5])
    cache = causal.new_cache(3)
    with torch.no_grad():
        first = causal.unembed(causal.hidden(ids[:, :7], mask=mask[:, :7], cache=cache))
        steps = [
            causal.unembed(causal.hidden(ids[:, i : i + 1], mask=mask[:, : i + 1], cache=cache)) for i in (7, 8, 9)
        ]
    got = torch.cat([first, *steps], dim=1)
    torch.testing.assert_close(got[mask], causal(ids, mask)[mask], rtol=0, atol=1e-11)


def test_replacing_an_activation_by_itself_changes_nothing_and_by_another_changes_the_logits(model, ids):
    logits, record = model.forward_recorded(ids)
    for name in model.activation_names():
        same = model.forward_with(ids, {name: record[name]})
        torch.testing.assert_close(same, logits, rtol=0, atol=1e-11)
        noise = record[name] * torch.rand_like(record[name]).where(record[name].isfinite(), torch.ones(()).double())
        assert (model.forward_with(ids, {name: noise}) - logits).abs().max() > 1e-7, name


def test_dropout_is_the_callers_and_is_asked_at_every_site(model, ids):
    sites: list[str] = []

    def drop(site: str, tensor: torch.Tensor) -> torch.Tensor:
        sites.append(site)
        return tensor

    torch.testing.assert_close(model.hidden(ids, drop=drop), model.hidden(ids), rtol=0, atol=1e-12)
    mixed = "attn_out" if model.layout.mixer == "attention" else "mix_out"
    per_layer = (mixed,) if model.layout.mlp == "none" else (mixed, "mlp_out")
    assert sites == ["embed", *(f"L{layer}.{name}" for layer in range(2) for name in per_layer)]
    zeroed = model.hidden(ids, drop=lambda site, x: x * 0 if site == f"L1.{mixed}" else x)
    assert (zeroed - model.hidden(ids)).abs().max() > 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precisions_stay_near_float64(model, ids, dtype):
    exact = model(ids, MASK)[MASK]
    rounded = model.to(dtype)(ids, MASK)[MASK]
    assert rounded.dtype == dtype
    allowed = {torch.float32: 1e-5, torch.bfloat16: 0.08}[dtype]
    assert (rounded.double() - exact).norm() <= allowed * exact.norm()


def test_autocast_serves_masks_and_gradients(config, ids):
    model = build(config, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(ids, MASK)
    logits.float().square().mean().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters() if parameter.grad is not None)


def test_a_model_on_the_meta_device_has_the_shapes_and_no_memory(config):
    shapes = {name: parameter.shape for name, parameter in build(config, 0).named_parameters()}
    empty = build(config, 0, materialise=False)
    assert all(parameter.is_meta for parameter in empty.parameters())
    assert {name: parameter.shape for name, parameter in empty.named_parameters()} == shapes


def test_training_twice_from_the_same_start_gives_the_same_bits(config, ids):
    states = []
    for _ in range(2):
        model = build(dataclasses.replace(config), 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(ids).flatten(0, 1), ids.flip(1).flatten()).backward()
            optimizer.step()
        states.append(model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
