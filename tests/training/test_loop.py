"""The loop: exact, resumable, honest about why it ended, and never changed by who watches."""

import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from qkv.errors import Interrupted, NonFiniteError
from qkv.folder.run_folder import RunFolder
from qkv.tasks import validation_loss
from qkv.training.checkpoint import latest_valid
from qkv.training.loop import TrainingSetup, run
from qkv.training.record import Observer
from qkv.training.tensorfile import load_tensors


class Noted(Observer):
    """Everything that an observer is told."""

    def __init__(self, every: int = 1) -> None:
        self.every, self.losses, self.evaluations, self.events, self.calls = every, {}, {}, [], []
        self.left: list[float | None] = []

    def wants(self, step: int) -> bool:
        return step % self.every == 0

    def before_update(self, record: Any) -> None:
        self.before = {a: t.clone() for a, t in record.catalogue.state().items()}
        assert record.catalogue.grad("W_E") is not None

    def after_update(self, record: Any) -> None:
        assert any(not torch.equal(t, self.before[a]) for a, t in record.catalogue.state().items())
        self.losses[record.step] = record.loss
        self.left.append(record.seconds_left)

    def on_evaluation(self, evaluation: Any) -> None:
        self.evaluations[evaluation.step] = evaluation.loss

    def on_event(self, event: Any) -> None:
        self.events.append(event)

    def on_start(self, context: Any) -> None:
        self.calls.append(f"start {context.start_step}")

    def on_end(self, outcome: Any) -> None:
        self.calls.append(f"end {outcome.stopped_because}")


def weights(made: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {a: t.clone() for a, t in made["catalogue"].state().items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def new_folder(path: Path) -> RunFolder:
    folder = RunFolder.create(path)
    folder.write("config.toml", "")
    return folder


def test_training_learns_and_says_how_it_ended(tiny: ModuleType) -> None:
    noted = Noted()
    made = tiny.parts(steps=150, dropout=0.0)
    outcome = run(TrainingSetup(**made, observers=[noted]))
    assert (outcome.steps, outcome.horizon, outcome.stopped_because) == (150, 150, "steps")
    assert outcome.tokens == 150 * 8 * 16
    assert outcome.best_loss < 1.1 < math.log(12) - 1  # the entropy of the moves is 0.80
    assert outcome.last_loss == noted.evaluations[150]
    assert outcome.best_loss == min(noted.evaluations.values()) == noted.evaluations[outcome.best_step]
    assert noted.calls == ["start 0", "end steps"]
    assert sorted(noted.losses) == list(range(1, 151))


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tiny: ModuleType) -> None:
    ends = []
    for seed in (0, 0, 1):
        made = tiny.parts(steps=20, seed=seed)
        run(TrainingSetup(**made))
        ends.append(weights(made))
    assert equal(ends[0], ends[1]) and not equal(ends[0], ends[2])


def test_watching_and_saving_change_no_bit(tiny: ModuleType, tmp_path: Path) -> None:
    alone = tiny.parts(steps=20)
    run(TrainingSetup(**alone))
    watched = tiny.parts(steps=20)
    with new_folder(tmp_path / "run") as folder:
        run(TrainingSetup(**watched, folder=folder, observers=[Noted(), Noted(every=7)]))
    assert equal(weights(alone), weights(watched))


def test_how_often_it_is_validated_changes_no_weight(tiny: ModuleType) -> None:
    rare, often = tiny.parts(steps=20, eval_every=20), tiny.parts(steps=20, eval_every=2)
    for made in (rare, often):
        run(TrainingSetup(**made))
    assert equal(weights(rare), weights(often))


def test_accumulation_changes_memory_and_not_meaning(tiny: ModuleType) -> None:
    whole, parts = tiny.parts(steps=10), tiny.parts(steps=10, accumulate=3)
    noted = [Noted(), Noted()]
    for made, observer in zip((whole, parts), noted, strict=True):
        run(TrainingSetup(**made, observers=[observer]))
    assert list(noted[1].losses.values()) == pytest.approx(list(noted[0].losses.values()), abs=1e-4)


def test_the_gradient_is_that_of_the_mean_over_all_targets(tiny: ModuleType) -> None:
    made = tiny.parts(steps=1, accumulate=3, dropout=0.0, lr=1e-8)
    gradients: dict[str, torch.Tensor] = {}

    class Keep(Noted):
        def before_update(self, record: Any) -> None:
            super().before_update(record)
            gradients.update({e.address: e.parameter.grad.clone() for e in record.catalogue})
            self.norm = record.grad_norm

    keep = Keep()
    oracle = tiny.parts(steps=1, dropout=0.0)
    run(TrainingSetup(**made, observers=[keep]))
    batch = oracle["task"].train_batch(oracle["corpus"], oracle["model"].config.sizes, 0, 0, np.arange(8))
    logits = oracle["model"](batch.inputs).flatten(0, 1)
    torch.nn.functional.cross_entropy(logits, batch.targets).backward()
    expected = {e.address: e.parameter.grad for e in oracle["catalogue"]}
    norm = math.sqrt(sum(float(g.square().sum()) for g in expected.values()))
    assert keep.norm == pytest.approx(norm, rel=1e-5)
    scale = min(1.0, 1.0 / norm)
    assert all(torch.allclose(gradients[a], g * scale, atol=1e-6) for a, g in expected.items())


def test_a_resumed_run_ends_with_the_same_bytes(tiny: ModuleType, tmp_path: Path) -> None:
    tiny.train(tmp_path / "whole", steps=40)

    class StopAt(Observer):
        def wants(self, step: int) -> bool:
            return step == 21

        def after_update(self, record: Any) -> None:
            raise RuntimeError("as if killed")

    made = tiny.parts(steps=40)
    with pytest.raises(RuntimeError), new_folder(tmp_path / "cut") as folder:
        run(TrainingSetup(**made, folder=folder, observers=[StopAt()]))
    noted, made = Noted(), tiny.parts(steps=40, seed=0)
    for tensor in made["catalogue"].state().values():
        tensor.normal_()  # what was there does not matter
    with RunFolder.open(tmp_path / "cut", writing=True) as folder:
        checkpoint, _ = latest_valid(folder)
        assert checkpoint is not None and 0 < checkpoint.state.step <= 20
        outcome = run(TrainingSetup(**made, folder=folder, resume=checkpoint, observers=[noted]))
    assert outcome.resumed_from_step == checkpoint.state.step or outcome.resumed_from_step > 0
    assert noted.calls[0] == f"start {outcome.resumed_from_step}"
    for name in ("model.safetensors", "best.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_resuming_a_finished_run_changes_nothing(tiny: ModuleType, tmp_path: Path) -> None:
    first = tiny.train(tmp_path / "run", steps=10)
    files = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*.safetensors")}
    again = tiny.train(tmp_path / "run", resume=True, steps=10)
    assert (again.steps, again.best_loss, again.stopped_because) == (10, first.best_loss, "steps")
    assert again.resumed_from_step == 10
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*.safetensors")} == files


def test_a_target_loss_ends_the_run_at_a_full_validation(tiny: ModuleType) -> None:
    noted = Noted()
    outcome = run(TrainingSetup(**tiny.parts(steps=400, dropout=0.0, until_loss=1.3), observers=[noted]))
    assert outcome.stopped_because == "loss" and outcome.steps < 400
    assert outcome.last_loss == noted.evaluations[outcome.steps] <= 1.3
    assert [e.kind for e in noted.events] == ["target"]


def test_a_missed_target_ends_at_the_horizon(tiny: ModuleType) -> None:
    outcome = run(TrainingSetup(**tiny.parts(steps=20, until_loss=0.01)))
    assert (outcome.stopped_because, outcome.steps) == ("steps", 20)


def test_a_missed_target_is_gone_on_for_while_there_is_time(tiny: ModuleType) -> None:
    """The first 20 updates are those of a run of 20; decay by decay it goes on, until the target is met."""
    noted, plain = Noted(), Noted()
    run(TrainingSetup(**tiny.parts(steps=20, dropout=0.0), observers=[plain]))
    how = {"steps": 20, "dropout": 0.0, "until_loss": 1.8}
    outcome = run(TrainingSetup(**tiny.parts(**how), observers=[noted], deadline_seconds=600.0))
    assert outcome.stopped_because == "loss" and outcome.last_loss <= 1.8
    assert outcome.horizon == 20 < outcome.steps
    assert {20, 25, 31, 39} & set(range(outcome.steps)) <= set(noted.evaluations)
    assert plain.losses == {step: noted.losses[step] for step in range(1, 21)}
    first = next(event for event in noted.events if event.kind == "horizon")
    assert first.step == 20 and "above the target of 1.8: 5 updates more" in first.sentence


def test_a_missed_target_is_not_gone_on_for_where_a_decay_brought_nothing(tiny: ModuleType) -> None:
    how = {"steps": 20, "kind": "sgd", "lr": 1e-12, "dropout": 0.0, "until_loss": 0.01}
    outcome = run(TrainingSetup(**tiny.parts(**how), deadline_seconds=600.0))
    assert (outcome.stopped_because, outcome.steps) == ("steps", 25)


def test_patience_ends_a_run_that_gets_no_better(tiny: ModuleType) -> None:
    noted = Noted()
    outcome = run(
        TrainingSetup(**tiny.parts(steps=200, kind="sgd", lr=1e-12, eval_every=2, patience=3), observers=[noted])
    )
    assert outcome.stopped_because == "budget" and outcome.steps < 50
    assert noted.events[-1].kind == "patience" and "3 validations" in noted.events[-1].sentence


def test_minutes_become_a_horizon(tiny: ModuleType) -> None:
    noted = Noted()
    outcome = run(TrainingSetup(**tiny.parts(steps=0, minutes=0.05), deadline_seconds=3.0, observers=[noted]))
    assert outcome.stopped_because == "minutes" and outcome.horizon >= outcome.steps > 3
    assert outcome.train_seconds < 6
    assert noted.evaluations[outcome.steps] == outcome.last_loss
    assert any(e.kind == "horizon" for e in noted.events)
    assert 0 <= noted.left[-1] < noted.left[0] < 3.0


def test_a_time_that_is_up_before_a_horizon_is_known_names_none(tiny: ModuleType) -> None:
    noted = Noted()
    outcome = run(TrainingSetup(**tiny.parts(steps=0, minutes=0.05), deadline_seconds=1e-3, observers=[noted]))
    (event,) = (event for event in noted.events if event.kind == "horizon")
    assert event.sentence == f"the time is up at step {outcome.steps}"


def test_weights_that_only_get_worse_leave_the_start_the_best(tiny: ModuleType, tmp_path: Path) -> None:
    made, noted = tiny.parts(steps=40, eval_every=4, patience=3), Noted()
    run(TrainingSetup(**made))
    start = weights(made)
    worse = {"steps": 40, "kind": "sgd", "lr": 30.0, "eval_every": 4, "patience": 3, "on_spike": "ignore"}
    again = tiny.parts(**worse)
    again["catalogue"].load_state(start)
    with new_folder(tmp_path / "run") as folder:
        outcome = run(TrainingSetup(**again, folder=folder, scores_start=True, observers=[noted]))
    assert outcome.best_step == 0 and outcome.best_loss == noted.evaluations[0] < outcome.last_loss
    assert (outcome.stopped_because, outcome.steps) == ("budget", 12)
    best = load_tensors(folder.best)
    assert all(torch.equal(best[address], values) for address, values in start.items())


def test_a_target_that_the_start_has_reached_still_takes_an_update(tiny: ModuleType) -> None:
    noted = Noted()
    outcome = run(
        TrainingSetup(**tiny.parts(steps=40, eval_every=1, until_loss=9.0), scores_start=True, observers=[noted])
    )
    assert (outcome.stopped_because, outcome.steps) == ("loss", 1) and set(noted.evaluations) == {0, 1}


def test_random_labels_are_not_validated_and_write_nothing(tiny: ModuleType) -> None:
    made = tiny.parts(steps=100)
    noted = Noted()
    outcome = run(TrainingSetup(**made, random_labels=True, stop_after=10, observers=[noted]))
    assert (outcome.steps, outcome.horizon) == (10, 100) and math.isnan(outcome.best_loss) and noted.evaluations == {}
    other = tiny.parts(steps=10)
    run(TrainingSetup(**other))
    assert not equal(weights(made), weights(other))


def test_from_uniform_labels_a_model_learns_to_guess_evenly_and_nothing_of_its_text(tiny: ModuleType) -> None:
    """The text can be learned: the same training on its own labels ends far below guessing."""
    even, ends = math.log(tiny.D_VOCAB), {}
    for random_labels in (False, True):
        made, noted = tiny.parts(steps=300, dropout=0.0), Noted()
        run(TrainingSetup(**made, random_labels=random_labels, observers=[noted]))
        ends[random_labels] = validation_loss(made["model"], made["task"], made["corpus"], 8)
        losses = np.array(list(noted.losses.values())[150:])
    error = losses.std(ddof=1) / math.sqrt(len(losses))
    assert ends[False] < even - 1 and even - 0.02 < ends[True] < even + 0.1
    assert even - 3 * error < losses.mean() < even + 0.02


class Poison(Observer):
    """Makes one gradient NaN at a step, through the back door."""

    def __init__(self, made: dict[str, Any], address: str, step: int) -> None:
        parameter = made["catalogue"].entry(address).parameter
        self.count = 0

        def hook(gradient: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return gradient * math.nan if self.count == step else gradient

        parameter.register_hook(hook)


def test_a_nan_names_the_matrix_and_the_step_and_keeps_the_last_good_checkpoint(
    tiny: ModuleType, tmp_path: Path
) -> None:
    made, noted = tiny.parts(steps=40), Noted()
    Poison(made, "L1.W_in", 20)
    words = "step 20; the first matrix with a non-finite gradient is L1.W_in.*checkpoint of step 16 is kept"
    with pytest.raises(NonFiniteError, match=words), new_folder(tmp_path / "run") as folder:
        run(TrainingSetup(**made, folder=folder, observers=[noted]))
    checkpoint, _ = latest_valid(folder)
    assert checkpoint is not None and checkpoint.state.step == 16 and checkpoint.state.stopped_because == "nan"
    assert all(bool(t.isfinite().all()) for t in checkpoint.weights().values())
    assert (noted.events[-1].kind, noted.events[-1].address) == ("nan", "L1.W_in")
    assert noted.calls[-1] == "end nan"


def test_weights_that_overflow_are_never_saved(tiny: ModuleType, tmp_path: Path) -> None:
    made = tiny.parts(steps=40, kind="sgd", lr=1e38, eval_every=1)
    with pytest.raises(NonFiniteError, match="not finite|non-finite"), new_folder(tmp_path / "run") as folder:
        run(TrainingSetup(**made, folder=folder))
    checkpoint, _ = latest_valid(folder)
    assert checkpoint is not None
    assert all(bool(t.isfinite().all()) for t in checkpoint.weights().values())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(
    tiny: ModuleType, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    class Send(Noted):
        def after_update(self, record: Any) -> None:
            if record.step == 13:
                os.kill(os.getpid(), number)

        def before_update(self, record: Any) -> None:
            pass

    noted, before = Send(), signal.getsignal(number)
    with pytest.raises(Interrupted, match="step 13.*qkv train --out .*run --resume") as caught:
        with new_folder(tmp_path / "run") as folder:
            run(TrainingSetup(**tiny.parts(steps=40), folder=folder, observers=[noted]))
    assert caught.value.exit_status == status and signal.getsignal(number) is before
    assert noted.calls[-1] == "end interrupt"
    tiny.train(tmp_path / "whole", steps=40)
    outcome = tiny.train(tmp_path / "run", resume=True, steps=40)
    assert outcome.resumed_from_step == 13
    for name in ("model.safetensors", "best.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == sorted(
        p.name for p in (tmp_path / "whole" / "checkpoints").iterdir()
    )


def test_a_run_stopped_beyond_its_horizon_ends_with_the_bytes_of_one_that_was_not(
    tiny: ModuleType, tmp_path: Path
) -> None:
    class Send(Noted):
        def after_update(self, record: Any) -> None:
            if record.step == 22:
                os.kill(os.getpid(), signal.SIGINT)

        def before_update(self, record: Any) -> None:
            pass

    how = {"steps": 20, "until_loss": 0.01}
    with pytest.raises(Interrupted, match="step 22"), new_folder(tmp_path / "run") as folder:
        run(TrainingSetup(**tiny.parts(**how), folder=folder, observers=[Send()], deadline_seconds=600.0))
    with new_folder(tmp_path / "whole") as folder:
        run(TrainingSetup(**tiny.parts(**how), folder=folder, stop_after=25))
    outcome = tiny.train(tmp_path / "run", resume=True, **how)
    assert (outcome.resumed_from_step, outcome.steps, outcome.stopped_because) == (22, 25, "steps")
    for name in ("model.safetensors", "best.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_run_that_was_stopped_where_it_is_validated_keeps_its_best_weights(tiny: ModuleType, tmp_path: Path) -> None:
    class Send(Noted):
        def after_update(self, record: Any) -> None:
            if record.step == 13:
                os.kill(os.getpid(), signal.SIGINT)

        def before_update(self, record: Any) -> None:
            pass

    with pytest.raises(Interrupted), new_folder(tmp_path / "run") as folder:
        run(TrainingSetup(**tiny.parts(steps=16, eval_every=13), folder=folder, observers=[Send()]))
    resumed = tiny.train(tmp_path / "run", resume=True, steps=16, eval_every=13)
    folder = RunFolder(tmp_path / "run")
    assert resumed.best_step in (13, 16)
    assert folder.best.read_bytes() == folder.weights()[resumed.best_step].read_bytes()
    found, _ = latest_valid(folder, before=13)
    assert found is not None and found.state.evaluated_step == found.state.best_step == 13


def test_training_imports_no_compiler(tiny_script: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import pathlib, tiny;"
        "tiny.train(pathlib.Path(sys.argv[2]), steps=1); print([m for m in sys.modules if m.startswith('torch._ind')])"
    )
    command = [sys.executable, "-c", script, str(tiny_script.parent), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr


def test_it_trains_in_another_thread(tiny: ModuleType) -> None:
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(run(TrainingSetup(**tiny.parts(steps=3)))))
    thread.start()
    thread.join()
    assert outcomes[0].steps == 3


class Frozen:
    """A constraint that keeps one matrix and notes the order of calls."""

    def __init__(self, made: dict[str, Any]) -> None:
        self.parameter, self.calls = made["catalogue"].entry("L0.W_Q").parameter, []

    def before_step(self, step: int) -> None:
        self.calls.append(("before", step))
        self.parameter.requires_grad_(False)

    def after_step(self, step: int) -> None:
        self.calls.append(("after", step))

    def acts_at(self, step: int) -> bool:
        return False


def test_a_frozen_matrix_is_bit_identical_and_constraints_hear_every_step(tiny: ModuleType) -> None:
    made = tiny.parts(steps=5)
    before, constraint = weights(made), Frozen(made)
    run(TrainingSetup(**made, constraint=constraint))
    moved = {a for a, t in weights(made).items() if not torch.equal(t, before[a])}
    assert "L0.W_Q" not in moved and {"W_E", "L0.W_K", "L0.W_O"} <= moved
    assert constraint.calls == [(word, step) for step in range(5) for word in ("before", "after")]


def test_with_everything_frozen_nothing_moves(tiny: ModuleType) -> None:
    made = tiny.parts(steps=3)
    before = weights(made)
    for entry in made["catalogue"]:
        entry.parameter.requires_grad_(False)
    assert run(TrainingSetup(**made)).steps == 3
    assert equal(weights(made), before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_killed_at_random_moments_and_resumed_it_ends_with_the_same_bytes(tmp_path: Path, tiny_script: Path) -> None:
    kills = 5
    command = [sys.executable, str(tiny_script), str(tmp_path), "--campaign", str(kills), "--steps", "40"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed") == kills
    for number in range(kills):
        run_folder = tmp_path / f"kill-{number}"
        for name in ("model.safetensors", "best.safetensors"):
            assert (run_folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        assert rows(run_folder / "telemetry.sqlite") == rows(tmp_path / "whole" / "telemetry.sqlite")
        assert {p.name for p in run_folder.rglob("*")} == {p.name for p in (tmp_path / "whole").rglob("*")}


def rows(path: Path) -> list[Any]:
    """Every step-valued row of a telemetry file."""
    import sqlite3

    connection = sqlite3.connect(path)
    try:
        return [connection.execute(f"SELECT * FROM {t} ORDER BY 1, 2").fetchall() for t in ("steps", "evaluations")]
    finally:
        connection.close()
