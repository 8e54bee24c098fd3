"""Trainings side by side are the trainings of the loop: the same validation losses, to rounding."""

import dataclasses
import math

import pytest

from qkv.studies.engine.design import Trial
from qkv.studies.engine.nested import inner_design
from qkv.studies.engine.stacked import losses_of
from qkv.studies.engine.training import run_trial
from qkv.studies.question import Ask
from qkv.studies.questions import find


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    """Of every arm, three seeds, slow and fast rates; ten in all, so that a stack is filled up."""
    outer = find("calibrate").design(Ask(quick=True))
    design = inner_design(outer.trial(outer.arms[0], 1, 0, source="", report=True))
    made = [
        design.trial(arm, r, k, source="", report=r == 2) for arm in design.arms for r, k in ((1, -1), (1, 1), (2, 0))
    ]
    return [*made, design.trial(design.arms[0], 3, 2, source="", report=True)]


def test_a_stack_of_trainings_gives_the_losses_of_the_loop(trials):
    stacked = losses_of(trials)
    assert stacked == pytest.approx([run_trial(trial, None)["loss"] for trial in trials], abs=2e-5)
    assert len(set(stacked)) == len(trials) and max(stacked) < 1.75, "they differ, and they learned"
    assert stacked == losses_of(trials), "the same bits when made again"


def test_a_stacked_training_that_diverges_is_said_to(trials):
    wild = dataclasses.replace(trials[0], lr=1e30)
    ours = losses_of([wild, trials[1]])
    theirs = [run_trial(trial, None) for trial in (wild, trials[1])]
    assert theirs[0]["diverged"] and ours[0] == math.inf and ours[1] == pytest.approx(theirs[1]["loss"], abs=2e-5)


def test_what_a_stack_does_not_do_is_refused(trials):
    for arm in (
        dataclasses.replace(trials[0].arm, changes=("W_E=freeze",)),
        dataclasses.replace(trials[0].arm, changes=("W_E=freeze@20..",)),
        dataclasses.replace(trials[0].arm, optimizer="sgd"),
    ):
        with pytest.raises(AssertionError):
            losses_of([dataclasses.replace(trials[0], arm=arm)])
