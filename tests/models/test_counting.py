"""Counting parameters before a model is built, and the width that has a given number of them."""

import dataclasses
import re

import pytest

from qkv.errors import ConfigError
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.counting import n_parameters, with_parameters

LAYOUTS = {
    "attention": (Layout(qk_norm=True), Sizes(d_vocab=65, d_model=64, n_layers=3, n_heads=4, n_ctx=32, n_kv_heads=2)),
    "one head": (Layout(positions="learned"), Sizes(d_vocab=65, d_model=64, n_layers=2, n_heads=1, n_ctx=32)),
    "lstm": (
        Layout(mixer="lstm", positions="none", norm="none", mlp="none", skip=False, start="recurrent"),
        Sizes(d_vocab=65, d_model=64, n_layers=2, n_heads=1, n_ctx=32),
    ),
}


@pytest.fixture(params=LAYOUTS)
def config(request) -> ModelConfig:
    layout, sizes = LAYOUTS[request.param]
    return ModelConfig(kind="CausalLM", sizes=sizes, layout=layout)


def test_the_count_is_that_of_the_model_built(config):
    assert n_parameters(config) == sum(p.numel() for p in build(config, 0).parameters())


@pytest.mark.parametrize("n", [50_000, 400_000, 3_000_000])
def test_no_other_width_comes_nearer(config, n):
    found = with_parameters(config, n)
    assert found.layout == config.layout and found.sizes.n_layers == config.sizes.n_layers
    miss = abs(n_parameters(found) - n)
    width = 4 if config.sizes.n_heads == 1 else found.sizes.d_head * 2
    for wider in (-width, width):
        sizes = found.sizes
        d_model = sizes.d_model + wider
        if d_model <= 0:
            continue
        heads = 1 if sizes.n_heads == 1 else d_model // sizes.d_head
        other = dataclasses.replace(
            sizes,
            d_model=d_model,
            n_heads=heads,
            n_kv_heads=heads * sizes.n_kv_heads // sizes.n_heads,
            d_head=d_model if heads == 1 and sizes.n_heads == 1 else sizes.d_head,
            d_mlp=max(16, round(d_model * 4 / 16) * 16),
        )
        assert abs(n_parameters(dataclasses.replace(found, sizes=other)) - n) >= miss


def test_a_number_that_no_width_has_is_refused(config):
    with pytest.raises(ConfigError, match=r"10 parameters were asked for; a model of these \d layers has at least"):
        with_parameters(config, 10)


def test_more_than_the_widest_has_is_refused_with_what_that_has(config):
    with pytest.raises(
        ConfigError, match=r"a model of these \d layers has at most ([\d,]+), with d_model 16,384"
    ) as refused:
        with_parameters(config, 10**15)
    most = int(re.search(r"at most ([\d,]+)", str(refused.value))[1].replace(",", ""))
    assert with_parameters(config, most).sizes.d_model == 1 << 14


@pytest.mark.parametrize("n", [20_000, 50_000, 70_000])
def test_heads_of_another_width_come_near_to_a_small_number(n):
    sizes = Sizes(d_vocab=65, d_model=64, n_layers=2, n_heads=2, n_ctx=32)
    config = ModelConfig(kind="CausalLM", sizes=sizes, layout=Layout())
    found = with_parameters(config, n, other_heads=True)
    assert abs(n_parameters(found) - n) <= 0.15 * n
    assert found.sizes.d_head % 4 == 0 and found.sizes.d_model == found.sizes.n_heads * found.sizes.d_head
    assert n_parameters(found) == sum(p.numel() for p in build(found, 0).parameters())
    exact = with_parameters(config, 1_000_000)
    assert with_parameters(config, n_parameters(exact), other_heads=True) == exact
