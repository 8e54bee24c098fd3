"""Dropout by name: the same for the same names, whatever the batch; the rate asked for; nothing drawn at 0."""

from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.config

from qkv import native
from qkv.kernels import elementwise
from qkv.training.dropout import PlayedDropping, make_drop

ONES = torch.ones(6, 20, 30)


def dropped(p: float = 0.1, seed: int = 0, step: int = 3, ids: object = range(6), site: str = "embed") -> torch.Tensor:
    ids = np.array(list(ids))  # type: ignore[call-overload]
    drop = make_drop(p, seed, step, ids)
    assert drop is not None
    return drop(site, ONES[: len(ids)])


def test_nothing_is_drawn_at_zero() -> None:
    assert make_drop(0.0, 0, 0, np.arange(3)) is None


def test_a_mask_is_a_function_of_its_names_alone() -> None:
    assert torch.equal(dropped(), dropped())
    for other in (dropped(seed=1), dropped(step=4), dropped(site="L0.attn_out"), dropped(ids=range(6, 12))):
        assert not torch.equal(dropped(), other)


def test_splitting_or_turning_the_batch_changes_nothing() -> None:
    assert torch.equal(torch.cat([dropped(ids=[0, 1]), dropped(ids=[2, 3, 4, 5])]), dropped())
    assert torch.equal(dropped(ids=[5, 3, 1]), dropped()[[5, 3, 1]])


def test_padding_at_the_end_changes_nothing() -> None:
    drop = make_drop(0.3, 0, 0, np.arange(6))
    assert drop is not None
    assert torch.equal(drop("embed", ONES)[:, :13], drop("embed", ONES[:, :13]))


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5, 0.9])
def test_the_share_dropped_is_p_and_the_mean_is_kept(p: float) -> None:
    x = torch.ones(64, 64, 64)
    drop = make_drop(p, 0, 0, np.arange(64))
    assert drop is not None
    y = drop("embed", x)
    deviation = (p * (1 - p) / x.numel()) ** 0.5
    assert float((y == 0).float().mean()) == pytest.approx(p, abs=4 * deviation)
    assert float(y.mean()) == pytest.approx(1.0, abs=4 * deviation / (1 - p))
    kept = y[y != 0]
    assert torch.equal(kept, torch.full_like(kept, float(kept[0])))


def test_a_share_next_to_one_leaves_next_to_nothing() -> None:
    drop = make_drop(0.999999, 0, 0, np.arange(64))
    assert drop is not None
    y = drop("embed", torch.ones(64, 64, 64))
    assert bool(y.isfinite().all()) and 0 < int((y != 0).sum()) < 30


def test_neighbouring_examples_and_steps_are_uncorrelated() -> None:
    x = torch.ones(256, 1024)
    masks = []
    for step in range(2):
        drop = make_drop(0.5, 0, step, np.arange(256))
        assert drop is not None
        masks.append(drop("embed", x) / 2 - 0.5)
    first, second = masks
    bound = 5 / (256 * 1023) ** 0.5 / 4
    assert abs(float((first * second).mean())) < bound
    assert abs(float((first[1:] * first[:-1]).mean())) < bound
    for lag in (1, 2, 3, 4, 8):
        assert abs(float((first[:, lag:] * first[:, :-lag]).mean())) < bound


def test_the_gradient_passes_where_the_value_did() -> None:
    x = torch.ones(2, 50, requires_grad=True)
    drop = make_drop(0.4, 0, 0, np.arange(2))
    assert drop is not None
    y = drop("embed", x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_type_is_kept(dtype: torch.dtype) -> None:
    drop = make_drop(0.4, 0, 0, np.arange(6))
    assert drop is not None
    assert drop("embed", ONES.to(dtype)).dtype == dtype


@pytest.mark.filterwarnings("default")  # the compiler warns of itself
def test_a_compiler_takes_it_whole_and_does_not_begin_anew_at_each_step() -> None:
    import torch._dynamo.config

    def twice(x: torch.Tensor, drop: Any) -> torch.Tensor:
        return drop("L0.attn_out", drop("embed", x) + 1)

    compiled = torch.compile(twice, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in (3, 4, 5):
            drop = make_drop(0.2, 7, step, np.arange(6) + step)
            assert torch.equal(compiled(ONES, drop), twice(ONES, drop))


def test_played_again_it_follows_another_steps_draws() -> None:
    """Sites are known once they were asked for; from then on only memory is written."""
    first, second = (make_drop(0.3, 0, step, np.arange(6 * step, 6 * step + 6)) for step in (1, 2))
    assert first is not None and second is not None
    played = PlayedDropping(first, "cpu")
    sites = ("embed", "L0.attn_out", "L0.mlp_out")
    for site in sites:
        played(site, ONES)
    for drop in (first, second, first):
        played.follow(drop)
        for site in reversed(sites):
            assert torch.equal(played(site, ONES), drop(site, ONES))


def test_compiled_it_follows_without_another_graph() -> None:
    """Once its sites are known, by a pass that is not compiled."""
    first = make_drop(0.3, 0, 0, np.arange(6))
    assert first is not None
    played = PlayedDropping(first, "cpu")

    def passed(drop: Any) -> torch.Tensor:
        return torch.stack((drop("embed", ONES), drop("L0.attn_out", ONES)))

    passed(played)
    torch._dynamo.reset()
    compiled = torch.compile(passed, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(3):
            drop = make_drop(0.3, 0, step, np.arange(6 * step, 6 * step + 6))
            assert drop is not None
            played.follow(drop)
            assert torch.equal(compiled(played), passed(drop))


SHAPES = [(1, 1, 1), (3, 7, 5), (2, 33, 48), (5, 1, 1031), (2, 3, 40, 16)]
needs_passes = pytest.mark.skipif(native.load("passes") is None, reason=native.why_not("passes"))


def kinds_of_rows(drop: Any, shape: tuple[int, ...], generator: torch.Generator) -> tuple[Any, Any]:
    """As it is, and with several examples in a row, one behind another."""
    owners = (torch.arange(shape[0] * shape[1]).view(shape[:2]) * 7) % shape[0]
    return drop, drop.placed(owners, torch.randperm(shape[1], generator=generator).expand(shape[:2]))


def same_bits(results: list[tuple[Any, ...]]) -> None:
    for ours, theirs in zip(*results, strict=True):
        assert ours is not None and theirs is not None
        assert ours.dtype == theirs.dtype and torch.equal(ours.nan_to_num(3.0), theirs.nan_to_num(3.0))
        assert torch.equal(ours.isnan(), theirs.isnan())


@needs_passes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("p", [0.15, 0.9])
def test_compiled_it_draws_and_passes_back_the_same_bits(shape: tuple[int, ...], p: float, dtype: torch.dtype) -> None:
    drop = make_drop(p, 7, 11, np.arange(3, 3 + shape[0]))
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    x.view(-1)[0], x.view(-1)[-1] = float("inf"), float("nan")
    for named in kinds_of_rows(drop, shape, generator):
        results = []
        for compiled in (False, True):
            with elementwise.using(compiled):
                given = x.clone().requires_grad_()
                y = named("site", given)
                y.backward(dy)
                results.append((y.detach(), given.grad))
        same_bits(results)
        assert results[0][0].dtype == dtype


@needs_passes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_compiled_onto_a_stream_it_gives_the_same_bits(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    drop = make_drop(0.15, 7, 11, np.arange(3, 3 + shape[0]))
    generator = torch.Generator().manual_seed(0)
    x, stream, dy = (torch.randn(shape, generator=generator) for _ in range(3))
    x.view(-1)[0], stream.view(-1)[-1] = float("inf"), float("nan")
    for named in kinds_of_rows(drop, shape, generator):
        results = []
        for compiled in (False, True):
            with elementwise.using(compiled):
                given, before = x.to(dtype).requires_grad_(), stream.clone().requires_grad_()
                y = named.onto(before, "site", given)
                y.backward(dy)
                results.append((y.detach(), given.grad, before.grad))
        same_bits(results)
        with elementwise.using(False):
            same_bits([(results[1][0],), (stream + named("site", x.to(dtype)),)])
        assert results[0][0].dtype == torch.float32 and results[0][1].dtype == dtype
