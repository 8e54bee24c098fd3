"""What an encoder-decoder promises beyond `test_contract`: two sequences, masks of each, packing, caches, addresses."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import MarianConfig, MarianMTModel

from qkv.models import Catalogue, EncoderDecoderLM, Layout, ModelConfig, Sizes, build

LAYOUTS = {
    "modern": Layout(positions="rotary", norm="rms", qk_norm=True, mlp="swiglu", tied=False, start="xavier"),
    "fast": Layout(positions="rotary", norm="rms", qk_norm=True, mlp="relu2"),
    "vaswani": Layout(
        positions="sinusoidal", norm="layer", norm_place="post", mlp="relu", bias=True, embed_scale=True, start="xavier"
    ),
    "textbook": Layout(positions="learned", norm="layer", mlp="gelu", tied=False, start="xavier"),
    "relative": Layout(
        positions="relative",
        relative_buckets=8,
        relative_reach=9,
        scale=False,
        mlp="relu",
        logit_factor=0.25,
        start="xavier",
    ),
    "relative, one table in": Layout(
        positions="relative", scale=False, mlp="geglu_tanh", tied=False, shared_embedding=True, start="xavier"
    ),
}
SOURCE = torch.randint(0, 13, (3, 9), generator=torch.Generator().manual_seed(9))
TARGET = torch.randint(0, 13, (3, 7), generator=torch.Generator().manual_seed(10))
SOURCE_MASK = torch.tensor([[True] * 9, [True] * 6 + [False] * 3, [True] * 4 + [False] * 5])
TARGET_MASK = torch.tensor([[True] * 7, [True] * 3 + [False] * 4, [True] * 6 + [False]])


def config_of(name: str) -> ModelConfig:
    sizes = Sizes(d_vocab=13, d_model=16, n_layers=2, n_heads=4, n_ctx=10, n_kv_heads=2 if name == "modern" else 0)
    return ModelConfig(kind="EncoderDecoderLM", sizes=sizes, layout=LAYOUTS[name])


@pytest.fixture(params=LAYOUTS)
def config(request) -> ModelConfig:
    return config_of(request.param)


@pytest.fixture
def model(config) -> EncoderDecoderLM:
    """In float64, with every parameter random, so that no zero hides a leak."""
    model = build(config, 0).double()
    assert isinstance(model, EncoderDecoderLM)
    generator = torch.Generator().manual_seed(8)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-11)


def test_logits_have_the_shape_and_dtype_promised(config):
    model = build(config, 0)
    logits = model(SOURCE, TARGET)
    assert logits.shape == (3, 7, 13) and logits.dtype == torch.float32
    assert model.config == config.resolved()


def test_the_same_seed_gives_the_same_model_and_another_seed_another(config):
    one, same, other = (build(config, seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_gradient_reaches_every_parameter_and_each_is_catalogued_once(model):
    F.cross_entropy(model(SOURCE, TARGET).flatten(0, 1), TARGET.flip(1).flatten()).backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), path
        assert path.endswith("b_K") or (parameter.grad != 0).any(), path  # softmax does not see a shift of all keys
    entries = list(Catalogue(model))
    assert sorted(map(id, (entry.parameter for entry in entries))) == sorted(map(id, model.parameters()))
    addresses = {entry.address for entry in entries}
    assert {"enc.W_E", "enc.L0.W_Q", "enc.L1.W_out", "dec.L0.W_K", "dec.L1.cross.W_K", "dec.L1.cross.W_O"} <= addresses
    assert ("W_U" in addresses) == (not model.layout.tied)


def test_catalogue_reads_heads_and_circuits_of_cross_attention(model):
    catalogue = Catalogue(model)
    cross = model.dec.blocks[1].cross
    d_head = model.sizes.d_head
    torch.testing.assert_close(catalogue.view("dec.L1.cross.H1.W_Q"), cross.W_Q[:, d_head : 2 * d_head].detach())
    assert catalogue.circuit("dec.L1.cross.H1.OV").left.shape == (16, d_head)
    assert len(catalogue.select("dec.L*.cross.W_[QK]")) == 4


def test_weights_come_back_exactly_and_a_model_may_start_from_them(model, config, tmp_path):
    save_file(Catalogue(model).state(), tmp_path / "model.safetensors")
    other = build(config, 5).double()
    Catalogue(other).load_state(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other(SOURCE, TARGET), model(SOURCE, TARGET))


@pytest.mark.parametrize("masks", [(None, None), (SOURCE_MASK, TARGET_MASK)])
def test_recorded_logits_and_gradients_equal_those_of_the_plain_forward(model, masks):
    real = torch.ones_like(TARGET, dtype=torch.bool) if masks[1] is None else masks[1]
    grads, logits = [], []
    for forward in (model, lambda *args: model.forward_recorded(*args)[0]):
        model.zero_grad()
        logits.append(forward(SOURCE, TARGET, *masks)[real])
        F.cross_entropy(logits[-1], TARGET[real]).backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
    close(*logits)
    for fast, explicit in zip(*grads, strict=True):
        close(fast, explicit)


def test_every_activation_is_recorded_by_name_and_may_be_replaced(model):
    logits, record = model.forward_recorded(SOURCE, TARGET)
    assert list(record) == model.activation_names()
    heads = model.sizes.n_heads
    assert record["dec.L1.cross.pattern"].shape == (3, heads, 7, 9)
    assert record["dec.L1.pattern"].shape == (3, heads, 7, 7) and record["enc.L0.pattern"].shape == (3, heads, 9, 9)
    close(record["dec.L0.cross.pattern"].sum(-1), torch.ones(3, heads, 7, dtype=torch.float64))
    for name in model.activation_names():
        close(model.forward_with(SOURCE, TARGET, {name: record[name]}), logits)
    elsewhere = record["dec.L1.cross.pattern"][:, 2].roll(1, dims=-1)
    assert (model.forward_with(SOURCE, TARGET, {"dec.L1.cross.H2.pattern": elsewhere}) - logits).abs().max() > 1e-7


def test_padding_of_either_side_never_reaches_a_real_token(model):
    logits = model(SOURCE, TARGET, SOURCE_MASK, TARGET_MASK)[TARGET_MASK]
    source = torch.where(SOURCE_MASK, SOURCE, (SOURCE + 1) % 13)
    target = torch.where(TARGET_MASK, TARGET, (TARGET + 1) % 13)
    close(model(source, target, SOURCE_MASK, TARGET_MASK)[TARGET_MASK], logits)
    close(model(source, target, SOURCE_MASK)[TARGET_MASK], logits)  # what stands behind a target needs no mask
    alone = [model(SOURCE[i : i + 1, :s], TARGET[i : i + 1, :t])[0] for i, s, t in ((0, 9, 7), (1, 6, 3), (2, 4, 6))]
    close(torch.cat(alone), logits)


def test_a_target_sees_the_whole_source_and_no_future_of_its_own(model):
    logits = model(SOURCE, TARGET)
    later = TARGET.clone()
    later[:, 4:] = (later[:, 4:] + 1) % 13
    close(model(SOURCE, later)[:, :4], logits[:, :4])
    last = SOURCE.clone()
    last[:, -1] = (last[:, -1] + 1) % 13
    assert (model(last, TARGET)[:, 0] - logits[:, 0]).abs().min(dim=-1).values.max() > 1e-9


def test_pairs_packed_into_one_row_do_not_see_each_other(model):
    source = torch.cat([SOURCE[0, :5], SOURCE[1, :4]])[None]
    target = torch.cat([TARGET[0, :3], TARGET[1, :4]])[None]
    source_documents = torch.tensor([[0] * 5 + [1] * 4])
    target_documents = torch.tensor([[0] * 3 + [1] * 4])
    h = model.hidden(source, target, source_documents=source_documents, target_documents=target_documents)
    alone = [model(SOURCE[:1, :5], TARGET[:1, :3]), model(SOURCE[1:2, :4], TARGET[1:2, :4])]
    close(model.unembed(h), torch.cat(alone, dim=1))


def test_a_cache_whose_rows_are_chosen_anew_goes_on_as_those_rows_would(model):
    rows = torch.tensor([2, 0, 0, 1])
    with torch.no_grad():
        context = model.encode(SOURCE, SOURCE_MASK)
        cache = model.dec.new_cache(3)
        model.dec.hidden(TARGET[:, :3], context=context, context_mask=SOURCE_MASK, cache=cache)
        cache.select(rows)
        asked = []
        model.dec.blocks[0].cross.keys_values = lambda *args, **kw: asked.append(args)  # made once, never again
        again = model.dec.hidden(TARGET[rows, 3:5], context=context[rows], context_mask=SOURCE_MASK[rows], cache=cache)
    assert not asked and cache.length == 5 and cache.batch == 4
    del model.dec.blocks[0].cross.keys_values
    plain = model.hidden(SOURCE[rows], TARGET[rows, :5], source_mask=SOURCE_MASK[rows])
    close(again, plain[:, 3:])


def test_dropout_is_asked_at_every_site_of_both_stacks(model):
    sites: list[str] = []
    model.hidden(SOURCE, TARGET, drop=lambda site, x: sites.append(site) or x)
    enc = ["enc.embed", *(f"enc.L{i}.{name}" for i in range(2) for name in ("attn_out", "mlp_out"))]
    dec = [f"dec.L{i}.{name}" for i in range(2) for name in ("attn_out", "cross.attn_out", "mlp_out")]
    assert sites == [*enc, "dec.embed", *dec]


def test_autocast_serves_masks_and_gradients(config):
    model = build(config, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(SOURCE, TARGET, SOURCE_MASK, TARGET_MASK)
    logits.float().square().mean().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters() if parameter.grad is not None)


def test_a_model_on_the_meta_device_has_the_shapes_and_no_memory(config):
    shapes = {name: parameter.shape for name, parameter in build(config, 0).named_parameters()}
    empty = build(config, 0, materialise=False)
    assert all(parameter.is_meta for parameter in empty.parameters())
    assert {name: parameter.shape for name, parameter in empty.named_parameters()} == shapes


@pytest.mark.parametrize("padded", [False, True])
def test_post_norm_layout_with_sine_tables_is_marian(padded):
    """float64 parity with `MarianMTModel` on random weights; its table of sines is copied into W_pos."""
    theirs = MarianMTModel(
        MarianConfig(
            vocab_size=13,
            d_model=16,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            max_position_embeddings=10,
            activation_function="relu",
            scale_embedding=True,
            dropout=0.0,
            pad_token_id=12,
            eos_token_id=11,
            forced_eos_token_id=None,
            decoder_start_token_id=12,
            attn_implementation="eager",
        )
    )
    theirs = theirs.double().eval()
    generator = torch.Generator().manual_seed(4)
    for name, parameter in theirs.named_parameters():
        if "embed_positions" not in name:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    layout = dataclasses.replace(LAYOUTS["vaswani"], positions="learned", norm_eps=1e-5)
    sizes = Sizes(d_vocab=13, d_model=16, n_layers=2, n_heads=4, n_ctx=10, d_mlp=24)
    ours = build(ModelConfig(kind="EncoderDecoderLM", sizes=sizes, layout=layout), 0).double()
    Catalogue(ours).load_state(_from_marian(dict(theirs.state_dict())))
    source_mask = SOURCE_MASK if padded else torch.ones_like(SOURCE_MASK)
    with torch.no_grad():
        expected = theirs(input_ids=SOURCE, attention_mask=source_mask.long(), decoder_input_ids=TARGET).logits
        close(ours(SOURCE, TARGET, source_mask if padded else None), expected)


def _from_marian(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Addresses -> weights; linear layers are stored the other way round."""
    out = {"enc.W_E": state["model.shared.weight"]}
    for side, stack in (("enc", "encoder"), ("dec", "decoder")):
        out[f"{side}.W_pos"] = state[f"model.{stack}.embed_positions.weight"]
        for layer in range(2):
            base, ours = f"model.{stack}.layers.{layer}", f"{side}.L{layer}"
            attentions = [("self_attn", "")] + ([("encoder_attn", "cross.")] if side == "dec" else [])
            for theirs, name in attentions:
                for letter, part in zip("QKVO", ("q_proj", "k_proj", "v_proj", "out_proj"), strict=True):
                    out[f"{ours}.{name}W_{letter}"] = state[f"{base}.{theirs}.{part}.weight"].T
                    out[f"{ours}.{name}b_{letter}"] = state[f"{base}.{theirs}.{part}.bias"]
            for fc, name in (("fc1", "in"), ("fc2", "out")):
                out[f"{ours}.W_{name}"] = state[f"{base}.{fc}.weight"].T
                out[f"{ours}.b_{name}"] = state[f"{base}.{fc}.bias"]
            norms = [("self_attn_layer_norm", "norm1"), ("final_layer_norm", "norm2")]
            norms += [("encoder_attn_layer_norm", "norm_cross")] if side == "dec" else []
            for theirs, name in norms:
                out[f"{ours}.{name}.gain"] = state[f"{base}.{theirs}.weight"]
                out[f"{ours}.{name}.bias"] = state[f"{base}.{theirs}.bias"]
    return {address: values.contiguous() for address, values in out.items()}
