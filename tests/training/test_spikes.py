"""Spikes: seen where there is one and never in ordinary training, with the culprit named; going back is exact."""

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from qkv.errors import NonFiniteError, SpikeError
from qkv.folder.run_folder import RunFolder
from qkv.randomness import generator
from qkv.training.checkpoint import latest_valid
from qkv.training.loop import TrainingSetup, run
from qkv.training.record import Observer
from qkv.training.spikes import ONSET, WINDOW, Rollback, Watch, is_spike, rate_factor, skipped


class Told(Observer):
    """Events, and what is raised while training `hurt`s itself."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.losses: dict[int, float] = {}

    def wants(self, step: int) -> bool:
        return True

    def after_update(self, record: Any) -> None:
        self.losses[record.step] = record.loss

    def on_event(self, event: Any) -> None:
        self.events.append(event)


class Hurt(Told):
    """Adds noise to a matrix after an update, once in this process: what a bad batch may do."""

    def __init__(self, at: int, address: str = "W_U", size: float = 20.0, often: int = 1) -> None:
        super().__init__()
        self.at, self.address, self.size, self.left = at, address, size, often

    def after_update(self, record: Any) -> None:
        super().after_update(record)
        if record.step == self.at and self.left:
            self.left -= 1
            weights = record.catalogue.entry(self.address).parameter
            noise = generator("hurt").normal(size=tuple(weights.shape)) * self.size
            weights.detach().add_(torch.tensor(noise, dtype=weights.dtype))


def folder_at(path: Path) -> RunFolder:
    folder = RunFolder.create(path)
    folder.write("config.toml", "")
    return folder


def weights(made: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {a: t.clone() for a, t in made["catalogue"].state().items()}


def test_five_losses_far_above_the_median_are_a_spike_and_four_are_none() -> None:
    noise = generator("spikes", 1).normal(0, 0.05, WINDOW)
    quiet = [2.0 + float(x) for x in noise]
    assert is_spike(quiet, 4.0) is None
    assert is_spike([*quiet, 3.0, 3.0, 3.0, 3.0], 4.0) is None
    assert is_spike([*quiet, 3.0, 3.0, 3.0, 3.0, 3.0], 4.0) == pytest.approx(2.0, abs=0.05)
    assert is_spike([*quiet, 3.0, 3.0, 2.1, 3.0, 3.0], 4.0) is None
    assert is_spike([*quiet, *[2.45] * ONSET], 4.0) is None  # less than a quarter of what was learned
    assert is_spike(quiet[:40] + [9.0] * ONSET, 4.0) is None  # too early to say


def test_losses_far_above_guessing_and_above_the_first_are_divergence() -> None:
    def found(first: float, n_answers: int, *losses: float) -> bool:
        return Watch([], losses, []).has_diverged(first, n_answers, len(losses))

    assert math.log(300) * 4 < 23
    assert found(5.7, 300, *[23.0] * ONSET) and found(5.7, 300, 5.7, *[3e11] * ONSET)
    assert not found(5.7, 300, *[23.0] * (ONSET - 1))
    assert not found(5.7, 300, 23.0, 23.0, 22.0, 23.0, 23.0)
    assert not found(12.0, 300, *[23.0] * ONSET)  # it began high, and may come down
    assert not Watch([], [23.0] * ONSET, []).has_diverged(5.7, 300, 100)  # a change has acted
    assert not found(0.0, 1, *[23.0] * ONSET)  # of one answer there is nothing to guess


@pytest.mark.parametrize("batch", [1, 4, 32])
@pytest.mark.parametrize("kind", ["normal", "heavy", "rare"])
def test_ordinary_losses_of_a_million_updates_hold_no_spike(batch: int, kind: str) -> None:
    draws, n = generator("spikes", kind, batch), 111_112  # nine times: a million
    if kind == "normal":
        each = draws.normal(1.5, 0.5, (n, batch))
    elif kind == "heavy":
        each = draws.standard_t(2, (n, batch)) * 0.3 + 2
    else:  # a classifier that is nearly always right: the loss of a mistake is thousands of times the usual
        each = np.where(draws.random((n, batch)) < 0.02, draws.exponential(2.0, (n, batch)), 0.002)
    losses = each.mean(1).tolist()
    watch = Watch([], [], [])
    first = 4.0 if kind != "rare" else math.log(2)
    assert [i for i, loss in enumerate(losses) if watch.add(loss, np.zeros(0), first) is not None] == []


@pytest.mark.parametrize("kind", ["muon", "adamw", "sgd"])
def test_ordinary_training_holds_no_spike(tiny: ModuleType, kind: str) -> None:
    told = Told()
    run(TrainingSetup(**tiny.parts(steps=200, kind=kind, on_spike="ignore"), observers=[told]))
    assert [event for event in told.events if event.kind == "spike"] == []


def test_the_culprit_is_the_matrix_whose_gradient_grew_most() -> None:
    watch = Watch(["A", "B", "C"], [], [])
    for _ in range(100):
        watch.add(1.0, np.array([1.0, 100.0, math.nan]), 2.0)
    watch.add(1.0, np.array([30.0, 200.0, math.nan]), 2.0)
    address, times = watch.culprit()
    assert address == "A" and times == pytest.approx(30, rel=0.01)
    again = Watch(["A", "B", "C"], watch.losses(), watch.logs())
    assert again.logs() == watch.logs() and again.losses() == watch.losses()


def test_by_default_a_spike_stops_the_run_names_the_matrix_and_keeps_a_checkpoint(
    tiny: ModuleType, tmp_path: Path
) -> None:
    hurt = Hurt(100)
    words = (
        r"at step 10\d; the gradient of (\S+) grew most.*checkpoint of step \d+ is kept; resume with qkv train --out"
    )
    with pytest.raises(SpikeError, match=words), folder_at(tmp_path / "run") as folder:
        run(TrainingSetup(**tiny.parts(steps=200), folder=folder, observers=[hurt]))
    (event,) = [event for event in hurt.events if event.kind == "spike"]
    assert event.address in tiny.parts()["catalogue"].addresses
    checkpoint, _ = latest_valid(folder)
    assert checkpoint is not None and checkpoint.state.stopped_because == "spike" and not checkpoint.state.is_finished


def test_ignored_it_is_written_down_and_training_goes_on(tiny: ModuleType) -> None:
    hurt = Hurt(100)
    outcome = run(TrainingSetup(**tiny.parts(steps=200, on_spike="ignore"), observers=[hurt]))
    assert outcome.steps == 200 and [event.kind for event in hurt.events].count("spike") >= 1


def test_rolling_back_skips_the_batches_and_says_so(tiny: ModuleType, tmp_path: Path) -> None:
    hurt = Hurt(100)
    made = tiny.parts(steps=160, on_spike="rollback")
    with folder_at(tmp_path / "run") as folder:
        outcome = run(TrainingSetup(**made, folder=folder, observers=[hurt]))
    assert outcome.steps == 160 and outcome.resumed_from_step is None
    (event,) = [event for event in hurt.events if event.kind.startswith("rollback")]
    assert event.step < 100 and "batches are skipped" in event.sentence and "halved" not in event.sentence
    checkpoint, _ = latest_valid(folder)
    assert checkpoint is not None
    (done,) = checkpoint.state.rollbacks
    assert done.to == event.step and 100 < done.seen < 110
    assert outcome.last_loss < 1.5

    # the oracle: the same steps from that checkpoint on the batches of later steps
    class Ahead(type(made["task"])):
        def train_batch(self, corpus: Any, sizes: Any, seed: int, step: int, examples: Any, **how: Any) -> Any:
            ahead = done.seen - done.to if step >= done.to else 0
            return super().train_batch(corpus, sizes, seed, step + ahead, examples + 8 * ahead, **how)

    oracle = tiny.parts(steps=160, dropout=0.0) | {"task": Ahead()}
    same = tiny.parts(steps=160, dropout=0.0, on_spike="rollback")
    with folder_at(tmp_path / "same") as folder:
        run(TrainingSetup(**same, folder=folder, observers=[Hurt(100)]))
    found = latest_valid(folder)[0]
    assert found is not None
    (done,) = found.state.rollbacks
    run(TrainingSetup(**oracle))
    assert all(torch.equal(t, weights(same)[a]) for a, t in weights(oracle).items())


def test_a_run_killed_after_rolling_back_ends_with_the_same_bytes(tiny: ModuleType, tmp_path: Path) -> None:
    whole = tiny.parts(steps=160, on_spike="rollback")
    with folder_at(tmp_path / "whole") as folder:
        run(TrainingSetup(**whole, folder=folder, observers=[Hurt(100)]))

    class Killed(Hurt):
        def after_update(self, record: Any) -> None:
            super().after_update(record)
            if record.step == 90 and not self.left:
                raise RuntimeError("as if killed")

    made = tiny.parts(steps=160, on_spike="rollback")
    with pytest.raises(RuntimeError), folder_at(tmp_path / "cut") as folder:
        run(TrainingSetup(**made, folder=folder, observers=[Killed(100)]))
    told, made = Told(), tiny.parts(steps=160, on_spike="rollback")
    with RunFolder.open(tmp_path / "cut", writing=True) as folder:
        checkpoint, _ = latest_valid(folder)
        assert checkpoint is not None and 60 < checkpoint.state.step <= 90 and len(checkpoint.state.rollbacks) == 1
        run(TrainingSetup(**made, folder=folder, resume=checkpoint, observers=[told]))
    assert any(event.kind == "rollback 1" for event in told.events)
    assert all(torch.equal(t, weights(whole)[a]) for a, t in weights(made).items())


def test_a_spike_that_comes_back_halves_the_rates_and_then_stops(tiny: ModuleType, tmp_path: Path) -> None:
    hurt = Hurt(100, often=99)
    with pytest.raises(SpikeError), folder_at(tmp_path / "run") as folder:
        run(TrainingSetup(**tiny.parts(steps=160, on_spike="rollback"), folder=folder, observers=[hurt]))
    said = {event.kind: event.sentence for event in hurt.events if event.kind.startswith("rollback")}
    assert {kind: "halved" in words for kind, words in said.items()} == {
        "rollback 1": False,
        "rollback 2": True,
        "rollback 3": True,
    }


def test_numbers_that_are_lost_are_rolled_back_too_and_else_stop(tiny: ModuleType, tmp_path: Path) -> None:
    hurt = Hurt(100, size=math.inf)
    with folder_at(tmp_path / "run") as folder:
        outcome = run(TrainingSetup(**tiny.parts(steps=160, on_spike="rollback"), folder=folder, observers=[hurt]))
    assert outcome.steps == 160 and any(event.kind == "rollback 1" for event in hurt.events)
    with pytest.raises(NonFiniteError, match="W_U"), folder_at(tmp_path / "stop") as folder:
        run(TrainingSetup(**tiny.parts(steps=160), folder=folder, observers=[Hurt(100, size=math.inf)]))


def test_a_change_that_acts_is_no_spike(tiny: ModuleType) -> None:
    class Reset:
        """Hurts a matrix on purpose, and says when."""

        def __init__(self, made: dict[str, Any], says: bool) -> None:
            self.weights, self.says = made["catalogue"].entry("W_U").parameter, says

        def before_step(self, step: int) -> None:
            if step == 100:
                self.weights.detach().add_(20 * torch.randn(self.weights.shape, generator=torch.manual_seed(0)))

        def after_step(self, step: int) -> None:
            pass

        def acts_at(self, step: int) -> bool:
            return self.says and step == 100

    made = tiny.parts(steps=120)
    with pytest.raises(SpikeError):
        run(TrainingSetup(**made, constraint=Reset(made, says=False)))
    made = tiny.parts(steps=120)
    assert run(TrainingSetup(**made, constraint=Reset(made, says=True))).steps == 120


def test_what_rollbacks_do_adds_up() -> None:
    done = (
        Rollback(seen=105, to=64, halved=False, address="W_E"),
        Rollback(seen=104, to=64, halved=True, address="W_E"),
    )
    assert skipped(done) == 81 and rate_factor(done) == 0.5


def test_with_a_checkpoint_after_every_update_there_is_one_to_go_back_to(
    tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.training.checkpoint._TOKENS_BETWEEN", {"cpu": 1})
    hurt = Hurt(100)
    with folder_at(tmp_path / "run") as folder:
        outcome = run(TrainingSetup(**tiny.parts(steps=160, on_spike="rollback"), folder=folder, observers=[hurt]))
    (event,) = [event for event in hurt.events if event.kind.startswith("rollback")]
    assert outcome.steps == 160 and 95 <= event.step <= 100
    whole = [p for p in folder.checkpoints.iterdir() if (p / "optimizer.safetensors").exists()]
    assert len(whole) == ONSET + 1
