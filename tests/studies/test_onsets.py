"""Stages of a training: where a curve passes a level, what the levels are, and that looking changes nothing."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from qkv.models.layout import Sizes
from qkv.studies.engine.design import Arm, Scale, Text, Trial
from qkv.studies.engine.training import run_trial
from qkv.studies.probes.onsets import Onsets, crossing, look_steps, predictions, stages
from qkv.studies.synthetic import streams
from qkv.studies.synthetic.tasks import Repeat
from qkv.tasks import find_task

CHAIN = Text(
    stream="markov",
    settings=(("states", 6), ("sharpness", 2.0), ("noise", 0.1), ("tokens", 60_000), ("val_tokens", 20_000)),
)
MATRIX = streams.markov_matrix(6, 2.0, 0.1)
SIZES = Sizes(d_vocab=9, d_model=8, n_layers=1, n_heads=1, n_ctx=16)
REPEAT = Text(stream="repeat", settings=(("letters", 8), ("shortest", 3), ("longest", 5)))


def test_looks_are_a_constant_factor_apart_and_end_at_the_horizon():
    looks = look_steps(1000)
    assert looks[0] == 1 and looks[-1] == 1000 and list(looks) == sorted(set(looks)) and 40 <= len(looks) <= 52
    ratios = np.array(looks[1:]) / np.array(looks[:-1])
    assert ratios[looks.index(32) :].max() < 1.2 and look_steps(1) == (1,) and look_steps(3) == (1, 2, 3)


def test_a_level_is_passed_where_the_curve_is_between_two_looks():
    looks = [(0, 4.0), (1, 3.0), (2, 2.0), (8, 1.0), (16, 1.5), (32, 0.5)]
    assert crossing(looks, 2.0) == 2.0 and crossing(looks, 3.5) == 0.5
    assert crossing(looks, 1.5) == pytest.approx(4.0), "half-way in the logarithm from 2 to 8"
    assert crossing(looks, 1.0) == pytest.approx(8.0), "the first time, though the loss rises again"
    assert crossing(looks, 0.4) is None and crossing([(0, 1.0)], 2.0) == 0.0
    assert crossing([(0, 1.0), (1, 0.9)], 2.0) == 0.0, "below it from the start"


def test_stages_of_a_chain_are_its_entropies():
    made = streams.corpus(CHAIN, "", 0, None)
    found = stages(find_task("causal"), made, 19_999)
    matrix = streams.markov_matrix(6, 2.0, 0.1)
    stationary = np.linalg.matrix_power(matrix, 200)[0]
    assert found["unigram"] == pytest.approx(-(stationary * np.log(stationary)).sum(), abs=0.02)
    assert found["bigram"] == pytest.approx(streams.markov_entropy(matrix), abs=0.02)
    assert found["beyond pairs"] == pytest.approx(found["bigram"], abs=0.01), "there is nothing beyond"


def test_predictions_of_counting_are_distributions_whose_loss_is_that_of_the_stages():
    """Of a chain the threes know no more than the pairs, and the pairs are its matrix."""
    made = streams.corpus(CHAIN, "", 0, None)
    inputs = np.asarray(made.val.ids[:800], dtype=np.int64).reshape(50, 16)
    places, counted = predictions(made, inputs)
    assert (places % 16 > 0).all() and len(places) == 50 * 15
    assert np.exp(counted).sum(-1) == pytest.approx(np.ones((3, len(places))))
    targets = np.asarray(made.val.ids[1:801], dtype=np.int64)[places]
    loss = -counted[:, np.arange(len(places)), targets].mean(1)
    assert loss[0] > loss[1] + 0.1 and loss[1] == pytest.approx(streams.markov_entropy(MATRIX), abs=0.05)
    names = np.array([made.tokenizer.vocabulary[streams.word(i)] for i in range(6)])
    states = np.argmax(inputs.reshape(-1)[places][:, None] == names, axis=1)
    off = np.abs(np.exp(counted[1:, :, names]) - MATRIX[states])
    assert off[0].max() < 0.02 and off[1].mean() < 0.02, "threes are counted on fewer"


def test_the_look_that_is_nearest_may_come_in_any_order():
    """A model that says pairs first and frequencies later, which the order of losses could not tell."""
    made = streams.corpus(CHAIN, "", 0, None)
    ids = torch.from_numpy(np.asarray(made.val.ids[:256], dtype=np.int64).reshape(16, 16))
    places, counted = predictions(made, ids.numpy())
    said = torch.zeros(3, ids.numel(), made.tokenizer.d_vocab)
    said[0, places], said[1, places] = (torch.from_numpy(counted[k]).float() for k in (1, 0))
    turns = iter(said)

    class Task:
        def loss(self, model, batch):
            return 1.0, 1

    onsets = Onsets()
    onsets._task, onsets._batch, onsets._steps = Task(), SimpleNamespace(inputs=ids), 9
    onsets._model = lambda inputs: next(turns).view(*inputs.shape, -1)
    onsets._counted = torch.from_numpy(places), torch.from_numpy(counted)
    for step in (1, 5, 9):
        onsets._look(step)
    assert onsets.found()["nearest bigram"] == 1.0 and onsets.found()["nearest unigram"] == 5.0
    assert onsets.distances[0][1] == pytest.approx(0.0, abs=1e-5)


def trial(text: Text, source: str, **more) -> Trial:
    arm = {"name": "a", "what": "", "trainer": "timed"} | more
    scale = Scale(d_model=16, n_layers=1, n_heads=1, n_ctx=16, batch_size=16, steps=60, val_tokens=1024, evaluations=1)
    sha256 = streams.corpus(text, source, 1024, None).sha256
    return Trial(
        arm=Arm(**arm), text=text, scale=scale, source=source, source_sha256=sha256, lr=0.03, seed=1, software=""
    )


def test_looking_changes_no_bit_of_a_training_and_finds_where_it_passed(small_text):
    timed = trial(Text(), str(small_text))
    row = run_trial(timed, None)
    plain = run_trial(dataclasses.replace(timed, arm=dataclasses.replace(timed.arm, trainer="loop")), None)
    assert row["loss"] == plain["loss"] and row["curve"] == plain["curve"]
    m = row["measures"]
    assert m["reached unigram"] == 1.0 and 0 < m["step of unigram"] < m["step of bigram"] <= 60
    assert 0 < m["nearest unigram"] < 60 and {"nearest bigram", "nearest trigram"} < set(m)
    assert m["reached beyond pairs"] == 0.0 and m["step of beyond pairs"] == 60.0, "not reached counts as the horizon"


def test_a_training_that_stands_still_reaches_nothing(small_text):
    held = trial(Text(), str(small_text), changes=("W_U=zero",))
    m = run_trial(held, None)["measures"]
    assert [m[f"reached {stage}"] for stage in ("unigram", "bigram", "beyond pairs")] == [0.0] * 3


def test_copying_is_reached_at_half_of_what_striking_out_leaves():
    made, task = streams.corpus(REPEAT, "", 0, None), Repeat(letters=8, shortest=3, longest=5)
    assert stages(task, made, 100) == {"copying": pytest.approx(np.log([1, 2, 3]).mean() / 2)}
    m = run_trial(trial(REPEAT, "", task="repeat"), None)["measures"]
    assert set(m) == {"step of copying", "reached copying"}


def test_a_block_comes_again_and_every_letter_after_its_first_pass_is_asked_for():
    made, task = streams.corpus(REPEAT, "", 0, None), Repeat(letters=8, shortest=3, longest=5)
    batch = task.train_batch(made, SIZES, 1, 0, np.arange(20))
    lengths = []
    for row, window in enumerate(batch.inputs.tolist()):
        asked = [int(p) - 16 * row for p in batch.positions if 16 * row <= p < 16 * row + 16]
        n = asked[0]
        lengths.append(n)
        assert asked == list(range(n, 16)) and len(set(window[:n])) == n
        assert all(window[i] == window[i - n] for i in range(n, 16))
        first = int((batch.positions < 16 * row).sum())
        assert batch.targets[first : first + 16 - n].tolist() == [*window[n + 1 :], window[16 - n]]
    assert set(lengths) == {3, 4, 5}
    again = task.train_batch(made, SIZES, 1, 0, np.arange(20))
    assert (again.inputs == batch.inputs).all() and (again.targets == batch.targets).all()
    assert not (task.train_batch(made, SIZES, 1, 1, np.arange(20)).inputs == batch.inputs).all()
    one, other = (next(iter(task.val_batches(made, SIZES, n))) for n in (4, 8))
    assert (one.inputs == other.inputs[:4]).all()
