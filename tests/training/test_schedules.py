"""The rate's factor: its shape, and what does not depend on the horizon."""

import pytest
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
