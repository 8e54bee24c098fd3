"""How many parameters a model has before it is built, and the width at which it has a given number of them."""

import dataclasses
from collections.abc import Iterator

from qkv.errors import ConfigError
from qkv.models.layout import ModelConfig
from qkv.models.zoo import build
from qkv.words import many

_WIDEST = 1 << 14


def n_parameters(config: ModelConfig) -> int:
    """Numbers in all parameters of the model, shared ones once. Nothing is allocated."""
    return sum(parameter.numel() for parameter in build(config, 0, materialise=False).parameters())


def with_parameters(config: ModelConfig, n: int, *, other_heads: bool = False) -> ModelConfig:
    """The same with d_model such that `n_parameters` comes nearest to n.

    Depth, d_head and d_mlp / d_model stay (d_mlp to the next multiple of 16), so d_model goes in steps of one head, or
    of one key/value head and the query heads that share it; of 4 where there is a single head. Where such a step misses
    n by more than a tenth, as with small models, `other_heads` lets heads be narrower or wider, in steps of 4.

    Raises ConfigError where the narrowest such model has more than twice as many, or the widest fewer.
    """
    config = config.resolved()
    narrow, wide = 1, _WIDEST // _step(config)
    asked = f"{n:,} parameters were asked for; a model of these {many(config.sizes.n_layers, 'layer')} has"
    other_heads = other_heads and config.sizes.n_heads > 1
    smallest = next(_of_other_heads(config, narrow)) if other_heads else _of_width(config, narrow)
    if (least := n_parameters(smallest)) > 2 * n:
        width = smallest.sizes.d_model
        raise ConfigError(f"{asked} at least {least:,}, with d_model {width}; give more, or --set n_layers=1")
    if (most := n_parameters(_of_width(config, wide))) < n:
        raise ConfigError(
            f"{asked} at most {most:,}, with d_model {wide * _step(config):,}; give fewer, or more layers with"
            " --set n_layers=N"
        )
    while wide - narrow > 1:
        middle = (narrow + wide) // 2
        if n_parameters(_of_width(config, middle)) <= n:
            narrow = middle
        else:
            wide = middle
    candidates = [_of_width(config, narrow), _of_width(config, wide)]
    found = min(candidates, key=lambda candidate: _miss(candidate, n))
    if not other_heads or 10 * _miss(found, n) <= n:
        return found
    return min((found, *_of_other_heads(config, narrow), *_of_other_heads(config, wide)), key=lambda one: _miss(one, n))


def _miss(config: ModelConfig, n: int) -> int:
    return abs(n_parameters(config) - n)


def _of_other_heads(config: ModelConfig, steps: int) -> Iterator[ModelConfig]:
    """As many heads as `steps` steps give, each of any width from half of what it is to twice as much."""
    given, wide = config.sizes, _of_width(config, steps)
    for d_head in range(max(4, given.d_head // 8 * 4), 2 * given.d_head + 1, 4):
        d_model = wide.sizes.n_heads * d_head
        d_mlp = max(16, round(d_model * given.d_mlp / given.d_model / 16) * 16)
        yield dataclasses.replace(
            config, sizes=dataclasses.replace(wide.sizes, d_model=d_model, d_head=d_head, d_mlp=d_mlp)
        ).resolved()


def _step(config: ModelConfig) -> int:
    """By how much d_model can grow."""
    sizes = config.sizes
    return 4 if sizes.n_heads == 1 else sizes.d_head * (sizes.n_heads // sizes.n_kv_heads)


def _of_width(config: ModelConfig, steps: int) -> ModelConfig:
    """The same, `steps` steps wide."""
    sizes, d_model = config.sizes, steps * _step(config)
    n_heads = 1 if sizes.n_heads == 1 else d_model // sizes.d_head
    return dataclasses.replace(
        config,
        sizes=dataclasses.replace(
            sizes,
            d_model=d_model,
            d_mlp=max(16, round(d_model * sizes.d_mlp / sizes.d_model / 16) * 16),
            n_heads=n_heads,
            n_kv_heads=n_heads * sizes.n_kv_heads // sizes.n_heads,
            d_head=d_model if n_heads == 1 else sizes.d_head,
        ),
    ).resolved()
