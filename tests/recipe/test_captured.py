"""An update that is recorded once and played again is the update, bit for bit: on a processor, and on a CUDA device."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import qkv
from qkv import native
from qkv.recipe import Request
from qkv.recipe.build import assemble
from qkv.recipe.request import resolve
from qkv.training.distributed.ranks import ALONE
from qkv.training.distributed.whole import Weights
from qkv.training.dropout import make_drop
from qkv.training.graph_replay.update import Captured, captured
from qkv.training.optimizers import make_optimizer
from qkv.training.validation import Validation

CASES = (
    ("fast", "causal"),
    ("gpt2", "causal"),
    ("llama", "causal"),
    ("textbook", "causal"),
    ("lstm", "causal"),
    ("modern", "masked"),
    ("bert", "masked"),
    ("bert", "classify"),
    ("vaswani", "translate"),
    ("modern", "image"),
)
WHOLE = ("causal", "image")
"""Tasks whose batches are of whole rows."""

cpu = pytest.param("cpu", marks=pytest.mark.skipif(bool(native.why_not("passes")), reason="no compiler here"))
cuda = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]
)


def updated(plain: bool, given: dict, dropout: float) -> tuple[Weights, list[float]]:
    """What holds the weights after six updates, and losses and norms on the way; the last batch is a smaller one."""
    given["set"]["dropout"] = dropout
    config, corpus, _ = resolve(Request(**given), None)
    device = config.machine.device
    parts = assemble(config, corpus)
    parts.model.to(device)
    optimizer = make_optimizer(parts.catalogue, config.training.optimizer, precision=config.machine.precision)
    kind = Weights if plain else captured(config.machine)
    held, losses = kind(parts.model, parts.catalogue, optimizer, parts.task.loss, ALONE, config.machine), []
    with config.machine.active():
        for step, n in enumerate((8, 8, 8, 8, 8, 5)):
            examples = np.arange(8 * step, 8 * step + n)
            batch = parts.task.train_batch(corpus, parts.model.config.sizes, config.seed, step, examples)
            names = examples if batch.examples is None else batch.examples.numpy()
            drop, n_targets = make_drop(dropout, config.seed, step, names), batch.targets.numel()
            losses += [float(held.learn(batch, drop, n_targets)), held.clip_and_measure(1.0)[0]]
            scale = 1 - step / 10
            on_device = plain and device != "cpu"  # a graph reads the rate there, and rounds it so
            optimizer.step(torch.tensor(scale).to(device)) if on_device else held.update(scale)
            held.zero_grad()
    return held, losses


@pytest.mark.parametrize("device", [cpu, cuda])
@pytest.mark.parametrize(
    ("case", "precision", "dropout"),
    [*((case, precision, 0.1) for case in CASES for precision in ("fp32", "bf16")), (CASES[0], "bf16", 0.0)],
    ids=lambda x: str(x) if isinstance(x, float | str) else "-".join(x),
)
def test_an_update_that_is_played_again_is_the_update(case, device, precision, dropout, asked):
    """Passes are recorded of whole rows, on a device the optimizer's step of every task; all bits are the same."""
    played, ours = updated(False, asked(case, device=device, precision=precision), dropout)
    plain, theirs = updated(True, asked(case, device=device, precision=precision), dropout)
    assert isinstance(played, Captured) and not played._gives_up
    assert (played._passes is not None) == (case[1] in WHOLE)
    assert ours == theirs
    for entry in played.catalogue:
        assert torch.equal(entry.parameter, plain.catalogue.entry(entry.address).parameter), entry.address


@pytest.mark.parametrize("device", [cpu])
@pytest.mark.parametrize("most", [1 << 10, 1 << 19])
def test_work_over_too_much_memory_is_made_call_by_call(device, most, asked, monkeypatch: pytest.MonkeyPatch):
    """Whether the room ends on the way forward or on the way back."""
    monkeypatch.setattr("qkv.training.graph_replay.update._MOST_TAPED", most)
    monkeypatch.setattr("qkv.training.graph_replay.tape._CHUNK", 1 << 10)
    played, ours = updated(False, asked(CASES[0], device=device, precision="fp32"), 0.1)
    _, theirs = updated(True, asked(CASES[0], device=device, precision="fp32"), 0.1)
    assert isinstance(played, Captured) and played._gives_up and played._passes is None
    assert ours == theirs


@pytest.mark.parametrize("device", [cpu, cuda])
def test_what_follows_a_training_finds_the_memory_of_its_recording(device, asked, tmp_path: Path, monkeypatch):
    """From the last validation on, nothing of it is left."""
    held: list[Captured] = []
    has_recording: list[bool] = []

    def built(machine):
        return lambda *parts: held.append(captured(machine)(*parts)) or held[-1]

    def measured(self, state, **how):
        has_recording.append(held[0]._passes is not None)
        return measure(self, state, **how)

    measure = Validation.measure
    monkeypatch.setattr("qkv.training.loop.captured", built)
    monkeypatch.setattr(Validation, "measure", measured)
    qkv.train(out=tmp_path / "run", **asked(("fast", "causal"), device=device, watch="off", report=False))
    assert has_recording[-2:] == [True, False]
    assert held[0]._passes is None and all(p.grad is None for p in held[0].optimizer.parameters)


@pytest.mark.skipif(bool(native.why_not("passes")), reason="no compiler here")
@pytest.mark.parametrize(
    "changes",
    [
        ("L0.W_Q=freeze@3..7",),
        ("L*.v=stop_gradient@4..9",),
        ("L*.W_[QV]=lora(4,alpha=8)", "W_U=lora(3)"),
        ("L1.W_V=identity", "L0.H1.W_O=freeze"),
        ("W_E=random(0.5,train=true)",),
    ],
    ids="+".join,
)
def test_changes_reach_a_recorded_update(changes, asked: Callable[..., dict], tmp_path: Path):
    """What begins or ends on the way makes another recording; weights and losses are those without any."""
    given = asked(("fast", "causal"), device="cpu", watch="off", report=False, change=list(changes))
    first = qkv.train(out=tmp_path / "played", **given)
    second = qkv.train(out=tmp_path / "plain", **given | {"set": given["set"] | {"machine.capture": False}})
    ours, theirs = ({e.address: e.parameter for e in run.catalogue()} for run in (first, second))
    assert all(torch.equal(ours[address], theirs[address]) for address in theirs)
    assert first.summary["val_loss"] == second.summary["val_loss"]


@pytest.mark.skipif(bool(native.why_not("passes")), reason="no compiler here")
def test_a_resumed_training_ends_with_the_bits_of_one_that_was_not_stopped(asked, tmp_path: Path):
    """A session records anew, and a watched training looks at gradients that a replay has left."""
    given = asked(("fast", "causal"), device="cpu", watch="full", report=False)
    whole = qkv.train(out=tmp_path / "whole", **given)
    plain = qkv.train(out=tmp_path / "plain", **given | {"set": given["set"] | {"machine.capture": False}})
    ours, theirs = ({e.address: e.parameter for e in run.catalogue()} for run in (whole, plain))
    assert all(torch.equal(ours[address], theirs[address]) for address in theirs)
    assert qkv.api.verify(whole.path).is_whole
