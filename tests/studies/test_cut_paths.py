"""`gradient-path` cuts paths while it trains: what stays, what goes on learning, and what a price is taken against."""

import dataclasses

import pytest
import torch

from qkv.studies.engine.assembly import parts_of
from qkv.studies.engine.training import TRAINERS, run_trial
from qkv.studies.question import Ask
from qkv.studies.questions import find
from qkv.studies.synthetic.streams import corpus

NAMED = Ask(named=("a text", "0" * 64))
STAY = {
    "cut V": {"W_V"},
    "held V": {"W_V"},
    "cut QK": {"W_Q", "W_K"},
    "held QK": {"W_Q", "W_K"},
    "cut attention": {"norm1.gain"},
}
"""Arm -> what keeps the bits of its start in every layer."""


def designs():
    return [find("gradient-path").design(dataclasses.replace(NAMED, quick=quick)) for quick in (True, False)]


def trained(name: str, source: str):
    """The parts of an arm after three steps at a small size."""
    design = designs()[1]
    trial = design.trial(design.arm(name), 1, 0, source=source, report=True)
    small = dataclasses.replace(trial.scale, d_model=16, n_layers=3, n_ctx=16, batch_size=4, steps=3, val_tokens=64)
    trial = dataclasses.replace(trial, scale=small)
    made = corpus(trial.text, source, small.val_tokens, None)
    parts = parts_of(trial, made)
    TRAINERS["loop"](trial, parts, ())
    return parts


@pytest.mark.parametrize("name", [*STAY, "cut layers"])
def test_behind_a_cut_matrices_stay_to_the_bit_and_all_others_learn(name, small_text):
    parts = trained(name, str(small_text))
    state = parts.catalogue.state()
    still = {address for address in state if torch.equal(state[address], parts.start[address])}
    if name == "cut layers":
        assert still == {a for a in state if a in ("W_E", "W_pos") or a.startswith("L0.")}
    else:
        assert still == {a for a in state if a.partition(".")[2] in STAY[name]}


def test_a_row_names_what_stayed_behind_a_cut_beside_what_was_frozen(small_text):
    design, found = designs()[1], {}
    for name in ("trained", "held V", "cut V", "cut layers"):
        trial = design.trial(design.arm(name), 1, 0, source=str(small_text), report=True)
        small = dataclasses.replace(trial.scale, d_model=16, n_layers=2, n_ctx=16, batch_size=4, steps=3, val_tokens=64)
        arm = dataclasses.replace(trial.arm, probes=())
        sha256 = corpus(trial.text, str(small_text), 64, None).sha256
        found[name] = run_trial(dataclasses.replace(trial, scale=small, arm=arm, source_sha256=sha256), None)["frozen"]
    assert found["trained"] == [] and found["held V"] == found["cut V"] == ["L0.W_V", "L1.W_V"]
    assert {"W_E", "W_pos", "L0.W_Q", "L0.W_out"} < set(found["cut layers"]) and "L1.W_V" not in found["cut layers"]


def test_models_without_skip_connections_are_asked_only_where_they_learned():
    quick, full = designs()
    for design in (quick, full):
        needs = {c.name: c.needs for c in design.contrasts}
        assert needs["V - (Q + K) (skipless)"] == "learned (skipless)" in needs
    assert needs["V - (Q + K) (skipless Glorot)"] == "learned (skipless Glorot)"
    pair = [full.arm(name) for name in ("Glorot", "skipless Glorot")]
    assert [dict(arm.layout) for arm in pair] == [{"start": "xavier"}, {"skip": False, "start": "xavier"}]
    assert needs["skipless Glorot - Glorot"] == "learned (Glorot)"


def test_a_cut_attention_takes_its_path_from_what_lies_below_and_nothing_from_its_own_matrices(small_text):
    """At the first step: the gradients of the last attention are those of the model that cuts nothing."""
    found = {}
    for name in ("trained", "cut attention"):
        design = designs()[1]
        trial = design.trial(design.arm(name), 1, 0, source=str(small_text), report=True)
        made = corpus(trial.text, str(small_text), 1024, None)
        parts = parts_of(trial, made)
        parts.plan.at_start()
        parts.plan.before_step(0)
        nats, n = parts.task.loss(parts.model, next(iter(parts.task.val_batches(made, parts.model.config.sizes, 4))))
        (nats / n).backward()
        parts.plan.at_end()
        found[name] = {entry.address: entry.parameter.grad for entry in parts.catalogue}
    free, cut = found["trained"], found["cut attention"]
    for matrix in ("W_Q", "W_K", "W_V", "W_O", "W_in"):
        torch.testing.assert_close(cut[f"L3.{matrix}"], free[f"L3.{matrix}"], rtol=1e-4, atol=1e-8)
    assert not torch.allclose(cut["W_E"], free["W_E"], rtol=0.01)
    assert cut["W_E"].any() and cut["L0.W_V"].any()


def test_every_cut_is_priced_against_cutting_nothing_where_that_learned_something():
    for design in designs():
        arms, names = {arm.name: arm for arm in design.arms}, {contrast.name for contrast in design.contrasts}
        cuts = {name for name, arm in arms.items() if any("stop_gradient" in change for change in arm.changes)}
        assert cuts == ({"cut V", "cut QK"} if design.quick else {*cuts, "cut V", "cut QK", "cut attention"})
        assert {f"{name} - trained" for name in cuts} <= names
        if not design.quick:
            assert {"cut V - held V", "cut QK - held QK", "cut layers - trained"} <= names
        for contrast in design.contrasts:
            read = [arms[name] for name in contrast.arms]
            if any(arm.changes and arm.name != "large rows" for arm in read):
                assert contrast.needs == "learned (trained)" and {q for *_, q in contrast.terms} == {"loss"}
                assert all(
                    arm.tune == ("none" if design.quick else "own") and arm.layout == () and arm.sizes == ()
                    for arm in read
                )
        assert design.primary.name == "around (trained)" and not design.primary.gates
