"""The rate's factor: its shape, and what does not depend on the horizon."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.training.config import ScheduleConfig
from qkv.training.schedules import decay_end, decay_start, lr_scale

SHAPE = ScheduleConfig(steps=100, warmup_steps=9, decay_share=0.4, floor=0.1)


def test_the_rate_climbs_stays_and_falls() -> None:
    rates = [lr_scale(step, SHAPE) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and rates[4] == pytest.approx(0.5)
    assert rates[9:60] == [1.0] * 51
    falls = [a - b for a, b in zip(rates[60:], rates[61:], strict=False)]
    assert all(fall == pytest.approx(0.9 / 41) for fall in falls)
    assert rates[-1] == pytest.approx(0.1 + 0.9 / 41)


def test_a_decay_of_the_whole_run_begins_at_once() -> None:
    schedule = ScheduleConfig(steps=10, decay_share=1.0)
    assert decay_start(10, schedule) == 0
    assert [lr_scale(s, schedule) for s in range(10)] == pytest.approx([(10 - s) / 11 for s in range(10)])


def test_beyond_the_horizon_the_rate_is_that_of_a_later_end_and_falls_again() -> None:
    assert [decay_end(step, 100) for step in (0, 99, 100, 124, 125, 156)] == [100, 100, 125, 125, 156, 195]
    rates = [lr_scale(step, SHAPE) for step in range(100, 125)]
    assert rates == pytest.approx([0.1 + 0.9 * (125 - step) / 63 for step in range(100, 125)])
    others = [ScheduleConfig(steps=100, warmup_steps=9, decay_share=share, floor=0.1) for share in (0.0, 0.41, 1.0)]
    for other in others:  # nor does it matter where the decay to the horizon began
        assert [lr_scale(step, other, 100, 90) for step in range(100, 125)] == rates
    assert [decay_end(step, 1) for step in range(5)] == [1, 2, 3, 4, 5]


def test_an_unmeasured_horizon_has_no_decay() -> None:
    schedule = ScheduleConfig(warmup_steps=3)
    assert lr_scale(10**6, schedule) == 1.0


@given(st.integers(1, 10_000), st.integers(0, 200), st.floats(0, 1), st.floats(0, 1), st.integers(0, 20_000))
@settings(deadline=None)
def test_the_rate_is_above_zero_and_at_most_one(steps: int, warmup: int, decay: float, floor: float, step: int) -> None:
    schedule = ScheduleConfig(steps=steps, warmup_steps=warmup, decay_share=decay, floor=floor)
    rate = lr_scale(min(step, steps - 1), schedule)
    assert 0 < rate <= 1


@given(st.integers(10, 1000), st.integers(10, 1000), st.floats(0.1, 1.0))
@settings(deadline=None)
def test_before_both_decays_two_horizons_agree(first: int, second: int, decay: float) -> None:
    schedule = ScheduleConfig(warmup_steps=5, decay_share=decay)
    shared = min(decay_start(first, schedule), decay_start(second, schedule))
    assert all(lr_scale(s, schedule, first) == lr_scale(s, schedule, second) for s in range(shared))


@pytest.mark.parametrize("warmup", [0, 7])
def test_a_cosine_is_that_of_torch_after_the_warm_up(warmup: int) -> None:
    schedule = ScheduleConfig(steps=50, warmup_steps=warmup, decay="cosine", decay_share=1.0, floor=0.1)
    weight = torch.nn.Parameter(torch.zeros(1))
    theirs = torch.optim.SGD([weight], lr=1.0)
    half_wave = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=50 - warmup + 1, eta_min=0.1)
    for step in range(warmup, 50):
        theirs.step()
        half_wave.step()
        assert lr_scale(step, schedule) == pytest.approx(min(1.0, half_wave.get_last_lr()[0]), abs=1e-12), step
    assert [lr_scale(step, schedule) for step in range(warmup)] == [(s + 1) / (warmup + 1) for s in range(warmup)]
    assert decay_start(50, schedule) == warmup


def test_a_cosine_that_a_clock_settled_late_begins_there() -> None:
    schedule = ScheduleConfig(warmup_steps=5, decay="cosine", decay_share=1.0)
    assert lr_scale(19, schedule, 100, 20) == 1.0
    assert lr_scale(60, schedule, 100, 20) == pytest.approx((1 + math.cos(math.pi * 41 / 81)) / 2)
