"""Wall time turned into a horizon."""

import random

import pytest

from qkv.training.checkpoint import TrainingState
from qkv.training.config import ScheduleConfig
from qkv.training.schedules import Pace, decay_start, lr_scale


def simulate(
    seconds_at: object,
    deadline: float,
    schedule: ScheduleConfig,
    state: TrainingState | None = None,
    reserve: float = 0.0,
) -> tuple[TrainingState, float, list[int]]:
    """A run whose step s takes seconds_at(s): (final state, seconds used by updates, horizons in order)."""
    state = state or TrainingState()
    pace, clock, horizons = Pace(schedule, state, deadline), 0.0, []
    while not (state.horizon and state.step >= state.horizon) and not pace.is_over(clock, reserve):
        clock += seconds_at(state.step)  # type: ignore[operator]
        state.step += 1
        if pace.measure(state, clock, lambda: reserve):
            horizons.append(state.horizon)
    return state, clock, horizons


def test_what_is_left_of_the_time_is_never_below_zero_and_nothing_where_the_clock_ends_no_run() -> None:
    pace = Pace(ScheduleConfig(), TrainingState(), 60.0)
    assert [pace.left(0.0), pace.left(45.0), pace.left(61.0)] == [60.0, 15.0, 0.0]
    assert Pace(ScheduleConfig(steps=10), TrainingState(), None).left(5.0) is None


@pytest.mark.parametrize("decay_share", [0.2, 0.4, 1.0])
def test_an_even_machine_fills_the_time(decay_share: float) -> None:
    schedule = ScheduleConfig(decay_share=decay_share)
    state, clock, horizons = simulate(lambda s: 0.5 if s < 3 else 0.02, 60.0, schedule)
    assert state.step == state.horizon
    assert 0.95 * 60 <= clock <= 60
    assert len(horizons) <= 3


def test_the_time_of_the_last_validation_is_kept() -> None:
    state, clock, _ = simulate(lambda s: 0.02, 60.0, ScheduleConfig(decay_share=0.4), reserve=15.0)
    assert state.step == state.horizon
    assert 0.95 * 45 <= clock <= 45


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_a_machine_that_changes_speed_is_corrected_before_the_decay(factor: float) -> None:
    schedule = ScheduleConfig(decay_share=0.4)
    state, clock, horizons = simulate(lambda s: 0.02 if s < 300 else 0.02 * factor, 60.0, schedule)
    assert state.step == state.horizon
    assert 0.9 * 60 <= clock <= 60
    assert 2 <= len(horizons) <= 6


def test_a_machine_that_slows_down_in_the_decay_is_stopped_by_the_clock() -> None:
    state, clock, _ = simulate(lambda s: 0.02 if s < 2400 else 0.2, 60.0, ScheduleConfig(decay_share=0.4))
    assert state.step < state.horizon
    assert clock == pytest.approx(60, abs=0.3)


@pytest.mark.parametrize("later", [0.01, 0.02, 0.03])
def test_the_updates_are_those_of_a_run_that_was_given_the_number(later: float) -> None:
    schedule = ScheduleConfig(decay_share=0.4, warmup_steps=10)
    state = TrainingState()
    pace, clock, rates = Pace(schedule, state, 30.0), 0.0, []
    while not state.horizon or state.step < state.horizon:
        rates.append(lr_scale(state.step, schedule, state.horizon))
        clock += 0.02 if state.step < 200 else later
        state.step += 1
        pace.measure(state, clock, float)
    assert rates == [lr_scale(s, schedule, state.horizon) for s in range(state.horizon)]


def test_a_longer_plan_needs_the_time_for_all_of_it() -> None:
    state = TrainingState()
    pace = Pace(ScheduleConfig(steps=100), state, 60.0)
    assert not pace.has_time_for(1, state, 0.0, 0.0)
    state.step = 100
    assert pace.has_time_for(45, state, 40.0, 0.0) and not pace.has_time_for(50, state, 40.0, 0.0)
    assert not pace.has_time_for(45, state, 40.0, 5.0)
    assert not Pace(ScheduleConfig(steps=100), state, None).has_time_for(1, state, 40.0, 0.0)


@pytest.mark.parametrize("seed", range(40))
def test_every_rate_follows_from_what_the_state_keeps_however_uneven_the_machine(seed: int) -> None:
    """On machines that halt and change speed, with any share of decay: the rates are those of `horizon` and
    `decays_from` of the last state, which is all that a replay knows."""
    rng = random.Random(seed)
    for share in (0.3, 0.5, 0.8, 0.95, 1.0):
        schedule = ScheduleConfig(decay_share=share, warmup_steps=rng.choice([0, 10]))
        state, clock, rates = TrainingState(), 0.5, []
        pace, base = Pace(schedule, state, 15.0, validation_share=rng.choice([0.0, 0.5])), 10 ** rng.uniform(-3, -1)
        while not (state.horizon and state.step >= state.horizon) and not pace.is_over(clock, 0.3):
            rates.append(lr_scale(state.step, schedule, state.horizon, state.decays_from))
            base *= rng.choice([0.5, 2, 3]) if rng.random() < 0.01 else 1
            clock += base * rng.uniform(0.8, 1.2) + (rng.uniform(0, 2) if rng.random() < 0.005 else 0)
            state.step += 1
            pace.measure(state, clock, lambda: 0.3)
        again = [lr_scale(step, schedule, state.horizon, state.decays_from) for step in range(len(rates))]
        assert rates == again, share
        assert pace.is_over(clock, 0.3) or rates[-1] < 1 or warm(schedule, state), "it ends decayed"


def warm(schedule: ScheduleConfig, state: TrainingState) -> bool:
    """Whether there were too few updates for any decay."""
    return state.horizon - max(state.decays_from, decay_start(state.horizon, schedule)) < 2


def test_a_decay_that_begins_where_the_machine_was_last_measured_is_settled_there() -> None:
    """Step 768 is one at which the speed is marked (3, 6, 12, ...): the first update of the decay leads from it."""
    schedule = ScheduleConfig(decay_share=0.5)
    state, rates, clock = TrainingState(), [], 0.0
    pace = Pace(schedule, state, 15.0)
    while not state.horizon or state.step < state.horizon:
        rates.append(lr_scale(state.step, schedule, state.horizon, state.decays_from))
        state.step += 1
        if state.step == 700:
            state.horizon = 2 * 768
        clock += 0.0097 if state.step < 760 else 0.005  # it seems that more would fit
        pace.measure(state, clock, float)
    assert pace.is_settled
    assert rates == [lr_scale(step, schedule, state.horizon, state.decays_from) for step in range(state.horizon)]


def test_steps_given_are_the_horizon() -> None:
    state, _, horizons = simulate(lambda s: 0.01, 60.0, ScheduleConfig(steps=50))
    assert (state.step, state.horizon, horizons) == (50, 50, [])


def test_a_resumed_run_keeps_a_settled_horizon_whatever_the_clock_says() -> None:
    schedule = ScheduleConfig(decay_share=0.4)
    resumed = TrainingState(step=180, horizon=300)  # the next update is the first of the decay
    state, clock, horizons = simulate(lambda s: 1.0, 5.0, schedule, resumed)
    assert (state.step, horizons) == (300, []) and clock == 120


def test_a_resumed_run_whose_horizon_was_a_guess_ends_by_its_time() -> None:
    resumed = TrainingState(step=100, horizon=100_000)  # guessed on a machine that was much faster
    state, clock, horizons = simulate(lambda s: 0.02, 30.0, ScheduleConfig(decay_share=0.4), resumed)
    assert state.step == state.horizon == horizons[-1] and 0.9 * 30 <= clock <= 30


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_a_horizon_is_settled_at_the_first_step_of_its_decay_and_seen_to_be_on_resume(factor: float) -> None:
    schedule, state = ScheduleConfig(decay_share=0.4), TrainingState()
    pace, clock = Pace(schedule, state, 30.0), 0.0
    while not pace.is_settled:
        clock += 0.02 if state.step < 300 else 0.02 * factor
        state.step += 1
        pace.measure(state, clock, float)
    assert state.step >= decay_start(state.horizon, schedule)
    assert Pace(schedule, state, 1.0).is_settled
    assert not Pace(schedule, TrainingState(step=state.step - 1, horizon=state.horizon), 1.0).is_settled


def test_a_single_slow_step_still_gives_a_horizon() -> None:
    state, _, _ = simulate(lambda s: 3.0, 20.0, ScheduleConfig(decay_share=0.4))
    assert 3 <= state.step <= 7
