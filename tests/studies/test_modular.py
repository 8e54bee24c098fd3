"""Modular addition: pairs that are shown and pairs that are held out."""

import numpy as np
import pytest

from qkv.studies.engine.design import Text
from qkv.studies.synthetic.streams import corpus
from qkv.studies.synthetic.tasks import Modular

TEXT = Text(stream="modular", settings=(("modulus", 31),))


def sums(batch, names):
    """(a, b, answer) of each window, as numbers."""
    number = {int(name): i for i, name in enumerate(names)}
    windows = zip(batch.inputs, batch.targets, strict=True)
    return np.array([[number[int(x)] for x in (*pair, answer)] for pair, answer in windows])


def test_every_answer_is_the_sum_and_no_held_out_pair_is_shown():
    task, made = Modular(modulus=31), corpus(TEXT, "", 0, None)
    names = made.train.ids[:31]
    shown = sums(task.train_batch(made, None, 1, 0, np.arange(20_000)), names)
    held = np.concatenate([sums(batch, names) for batch in task.val_batches(made, None, 50)])
    for a, b, answer in np.concatenate([shown, held]):
        assert answer == (a + b) % 31
    pairs, kept_back = {(a, b) for a, b, _ in shown}, {(a, b) for a, b, _ in held}
    assert not pairs & kept_back and len(pairs | kept_back) == 31**2
    assert len(kept_back) / 31**2 == pytest.approx(0.1, abs=0.04)


def test_batches_are_pure_functions_of_seed_and_number():
    task, made = Modular(modulus=31), corpus(TEXT, "", 0, None)
    one, part = (task.train_batch(made, None, 3, 0, np.arange(n, 64)) for n in (0, 40))
    assert (one.inputs[40:] == part.inputs).all() and (one.targets[40:] == part.targets).all()
    assert not (task.train_batch(made, None, 4, 0, np.arange(64)).inputs == one.inputs).all()
