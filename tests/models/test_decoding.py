"""Reading one token at a time gives the logits of the whole forward pass, in every layout that it serves."""

import copy
import itertools

import numpy as np
import pytest
import torch

from qkv import native
from qkv.kernels import cache as caches
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.decoding import Decoding, decoding_of, give_back, keep_layout, serves
from qkv.tasks import generation
from qkv.tasks.generation import Sampling, generate

SIZES = dict(d_vocab=11, d_model=12, n_layers=2, n_heads=4, n_ctx=9, d_head=6)
LAYOUTS = [
    dict(positions=positions, norm=norm, qk_norm=qk_norm, mlp=mlp, bias=bias, tied=tied)
    for (positions, qk_norm), (norm, bias), (mlp, tied) in itertools.product(
        [("rotary", True), ("rotary", False), ("learned", False), ("none", True), ("sinusoidal", False)],
        [("rms", False), ("rms", True), ("layer", True), ("layer", False)],
        [("swiglu", False), ("gelu_tanh", True), ("relu2", False), ("none", True)],
    )
    if not (mlp == "swiglu" and bias)
]


def randomised(**layout) -> torch.nn.Module:
    sizes = SIZES | ({"n_kv_heads": 2} if layout["positions"] == "rotary" else {})
    model = build(ModelConfig(kind="CausalLM", sizes=Sizes(**sizes), layout=Layout(**layout)), 0).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5
    return model


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(str(value) for value in layout.values()))
def test_single_steps_give_the_logits_of_the_forward_pass(layout, split, monkeypatch):
    if split:
        monkeypatch.setattr(caches, "SPLIT_FROM", 0)
        monkeypatch.setattr(caches, "ROOM", 2)
    model = randomised(**layout)
    assert serves(model)
    ids = torch.randint(11, (3, 9), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        whole, cache, read = model(ids), model.new_cache(3), model.new_cache(3, 4)
        model.hidden(ids, cache=cache)
        model.hidden(ids[:, :4], cache=read)
        single = Decoding(model)
        single.begin(read)
        for pos in range(4, 9):
            torch.testing.assert_close(single.step(ids[:, pos]), whole[:, pos], rtol=0, atol=1e-11)
    assert bool(single.cache.settled) == split
    for layer, (parts, store) in enumerate(zip(single.cache.recent(), cache.store, strict=True)):
        rows = len(parts[0])
        older = single.cache.settled[layer] if split else (store.new_empty(rows, 6, 0), store.new_empty(rows, 0, 6))
        held = [torch.cat((older[0], parts[0]), dim=2)[:, :, :9].mT, torch.cat((older[1], parts[1]), dim=1)[:, :9]]
        torch.testing.assert_close(torch.stack(held).view(store.shape), store, rtol=0, atol=1e-11)


@pytest.mark.skipif(native.load("decoding") is None, reason=native.why_not("decoding"))
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("batch", [1, 3, 9])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(str(value) for value in layout.values()))
def test_compiled_steps_give_the_logits_of_the_forward_pass(layout, batch, split, monkeypatch):
    if split:
        monkeypatch.setattr(caches, "SPLIT_FROM", 0)
        monkeypatch.setattr(caches, "ROOM", 2)
    exact = randomised(**layout)
    model = copy.deepcopy(exact).float()
    ids = torch.randint(11, (batch, 9), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        whole, read = exact(ids), model.new_cache(batch, 4)
        model.hidden(ids[:, :4], cache=read)
        single = Decoding(model)
        assert single.is_compiled
        single.begin(read)
        scale = whole.abs().max()
        for pos in range(4, 9):
            assert (single.step(ids[:, pos]) - whole[:, pos]).abs().max() < 1e-5 * scale
    assert bool(single.cache.settled) == split


@pytest.mark.skipif(native.load("decoding") is None, reason=native.why_not("decoding"))
def test_the_number_of_threads_changes_no_bit_of_a_compiled_step():
    model = randomised(positions="rotary", norm="rms", qk_norm=True, mlp="swiglu", bias=False, tied=False).float()
    ids, before, found = (
        torch.randint(11, (5, 9), generator=torch.Generator().manual_seed(2)),
        torch.get_num_threads(),
        [],
    )
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            with torch.inference_mode():
                read = model.new_cache(5, 4)
                model.hidden(ids[:, :4], cache=read)
                single = Decoding(model)
                if found:
                    read.store.copy_(found[0])
                else:
                    found.append(read.store.clone())
                single.begin(read)
                found.append(torch.stack([single.step(ids[:, pos]) for pos in range(4, 9)]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[1], found[2])


@pytest.mark.parametrize("mlp", ["relu", "gelu", "gelu_tanh", "relu2"])
def test_the_bias_behind_an_mlp_is_the_weight_of_a_neuron_that_reads_nothing(mlp):
    model = randomised(positions="learned", norm="layer", qk_norm=False, mlp=mlp, bias=True, tied=True)
    layer, block = Decoding(model)._layers[0], model.blocks[0]
    assert layer.b_out is None and len(layer.W_out) % 16 == len(block.mlp.W_out) % 16
    x = torch.randn(3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(layer._mlp(x.clone()), x + block.mlp(block.norm2(x)), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "layout",
    [
        dict(norm_place="post"),
        dict(norm="none"),
        dict(skip=False),
        dict(parallel=True),
        dict(rope_share=0.7),
        dict(head_transform=True, mlp="gelu"),
    ],
)
def test_other_layouts_are_left_to_the_model(layout):
    model = build(ModelConfig(kind="CausalLM", sizes=Sizes(**SIZES), layout=Layout(**layout)), 0)
    assert not serves(model)


def test_a_very_long_context_is_left_to_the_model_whose_tables_grow_with_the_text():
    sizes = Sizes(**SIZES | {"n_ctx": 1 << 22})
    model = build(ModelConfig(kind="CausalLM", sizes=sizes, layout=Layout()), 0)
    assert not serves(model)


def test_what_is_laid_out_is_kept_only_for_models_that_ask_and_only_while_their_weights_are_the_same():
    model, other = (randomised(**LAYOUTS[0]).float() for _ in range(2))
    keep_layout(model)
    with torch.inference_mode():
        first = decoding_of(model)
        first.begin(model.new_cache(1, 4))
        assert decoding_of(model) is not first, "the first caller is not done with it"
        give_back(model, first)
        assert decoding_of(model) is first
        first.begin(model.new_cache(1, 4))
        give_back(model, first)
        model.blocks[1].mlp.W_in.data[0, 0] += 1e-3  # no counter of versions sees this
        assert decoding_of(model) is not first
        single = decoding_of(other)
        single.begin(other.new_cache(1, 4))
        give_back(other, single)
        assert decoding_of(other) is not single


def test_a_continuation_by_what_was_kept_equals_one_by_a_model_that_keeps_nothing():
    model, other = (randomised(**LAYOUTS[0]).float() for _ in range(2))
    keep_layout(model)
    prompts = [np.array([1, 2, 3]), np.array([4])]
    for seed in range(3):
        ours, theirs = (
            generate(each, prompts, tokens=12, how=Sampling(temperature=1.0), seed=seed) for each in (model, other)
        )
        assert all(map(np.array_equal, ours, theirs))


def test_a_single_token_lays_nothing_out(monkeypatch):
    monkeypatch.setattr(generation, "decoding_of", lambda model: pytest.fail("laid out"))
    model = randomised(**LAYOUTS[0]).float()
    assert generate(model, [np.array([1, 2])], tokens=1, how=Sampling(temperature=0.0), seed=0)[0].shape == (1,)
