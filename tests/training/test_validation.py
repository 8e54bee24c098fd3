"""Validation: how often by law, and a target loss found exactly and cheaply."""

import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.training.checkpoint import TrainingState
from qkv.training.config import TrainingConfig
from qkv.training.precision import Machine
from qkv.training.validation import Validation, evaluation_steps


@given(st.integers(1, 20_000), st.integers(64, 20_000), st.integers(100, 10**6), st.booleans())
@settings(deadline=None)
def test_the_law_keeps_to_its_bounds(horizon: int, tokens_per_step: int, val_tokens: int, target: bool) -> None:
    steps = evaluation_steps(horizon, tokens_per_step, val_tokens, target)
    assert steps[-1] == horizon and steps[0] >= 1 and len(steps) <= 16
    cost = (len(steps) - 1) * val_tokens / 3 / (horizon * tokens_per_step)
    assert cost <= 0.12


def test_a_usual_run_is_validated_ten_to_sixteen_times_and_more_often_early() -> None:
    steps = evaluation_steps(1500, 3072, 111_540)
    assert 5 <= len(steps) <= 16
    gaps = [b - a for a, b in zip((0, *steps), steps, strict=False)]
    assert gaps == sorted(gaps)


def test_the_mean_is_the_mean_over_all_targets(tiny: ModuleType) -> None:
    made = tiny.parts()
    validation = Validation(made["model"], made["task"], made["corpus"], made["config"], Machine())
    loss = validation.measure(TrainingState(step=1), always=True)
    ids = torch.from_numpy(made["corpus"].val.ids.astype("int64"))
    n = (len(ids) - 1) // tiny.N_CTX * tiny.N_CTX
    inputs, targets = ids[:n].view(-1, tiny.N_CTX), ids[1 : n + 1].view(-1, tiny.N_CTX)
    with torch.no_grad():
        logits = torch.cat([made["model"](inputs).flatten(0, 1), made["model"](ids[None, n:-1])[0]])
        expected = torch.nn.functional.cross_entropy(logits, torch.cat([targets.flatten(), ids[n + 1 :]]))
    assert loss == pytest.approx(float(expected), rel=1e-5)
    assert validation.n_targets == len(ids) - 1


class Curve:
    """A task whose validation loss at step s is known: batches differ, and all fall together."""

    def __init__(self, losses: list[float], n_batches: int = 60) -> None:
        self.losses, self.n_batches, self.step, self.scored = losses, n_batches, 0, 0

    def positions(self, corpus: Any, sizes: Any) -> int:
        return sizes.n_ctx

    def val_batches(self, corpus: Any, sizes: Any, batch_size: int) -> Any:
        self.offsets = [0.3 * ((7 * i) % self.n_batches / self.n_batches - 0.5) for i in range(self.n_batches)]
        for number in range(self.n_batches):
            targets = torch.full((batch_size * 16,), number)
            yield SimpleNamespace(inputs=targets.view(batch_size, 16), targets=targets, mask=None)

    def loss(self, model: Any, batch: Any, drop: Any = None) -> tuple[torch.Tensor, int]:
        self.scored += 1
        number, n = int(batch.targets[0]), batch.targets.numel()
        return torch.tensor((self.losses[self.step] + self.offsets[number]) * n, dtype=torch.float64), n

    def mean(self, step: int) -> float:
        return self.losses[step] + sum(self.offsets) / self.n_batches


def follow(curve: Curve, target: float, steps: int) -> tuple[int, int]:
    """Where a run with this curve would stop, and how many full passes it took beside those by law."""
    model = SimpleNamespace(config=SimpleNamespace(sizes=SimpleNamespace(n_ctx=16)))
    config = TrainingConfig(batch_size=512, until_loss=target)
    validation = Validation(model, curve, None, config, Machine())
    state, passes = TrainingState(horizon=steps), 0
    for state.step in range(1, steps + 1):
        curve.step = state.step
        state.train_loss = curve.mean(state.step)
        loss = validation.measure(state)
        if loss is not None:
            by_law = state.step in evaluation_steps(steps, 512 * 16, validation.n_tokens, True)
            state.evaluated_step, passes = state.step, passes + (not by_law)
            assert loss == pytest.approx(curve.mean(state.step))
            if loss <= target:
                return state.step, passes
    return -1, passes


def test_the_first_validation_is_expected_to_take_as_long_as_it_will() -> None:
    def slow(batch: Any) -> tuple[torch.Tensor, int]:
        time.sleep(0.02)
        return torch.zeros(()), batch.targets.numel()

    model = SimpleNamespace(config=SimpleNamespace(sizes=SimpleNamespace(n_ctx=16)))
    validation = Validation(model, Curve([1.0]), None, TrainingConfig(batch_size=512), Machine(), loss=slow)
    assert 0.02 * 60 <= validation.expected_seconds() <= 0.04 * 60


@pytest.mark.parametrize("target", [3.0, 2.0, 1.6])
def test_a_target_is_found_soon_after_it_is_passed(target: float) -> None:
    curve = Curve([1.5 + 3 / (1 + s / 50) for s in range(2001)])
    found, passes = follow(curve, target, 2000)
    passed = next(s for s in range(2001) if curve.mean(s) <= target)
    assert passed <= found <= passed * 1.05 + 6
    assert passes <= 3
    assert curve.scored / curve.n_batches < 12


def test_a_target_that_is_never_reached_costs_little_and_is_never_claimed() -> None:
    curve = Curve([2.0 + 3 / (1 + s / 50) for s in range(1001)])
    assert follow(curve, 1.9, 1000)[0] == -1
    assert curve.scored / curve.n_batches < 12


def test_a_stop_that_is_asked_for_leaves_the_validation_undone(tiny: ModuleType) -> None:
    made = tiny.parts() | {"corpus": tiny.corpus(40_000)}
    asked = iter([False, True])
    validation = Validation(
        made["model"], made["task"], made["corpus"], made["config"], Machine(), stop=lambda: next(asked, True)
    )
    assert validation.n_tokens > 2048  # more than one batch, so that there is a moment between two
    assert validation.measure(TrainingState(step=1), always=True) is None
