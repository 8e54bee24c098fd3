"""What is said of a run's heads is a mean over many windows, and its interval holds what all of them give."""

import numpy as np
import pytest
import torch

import qkv
from qkv.inspection.answers.heads import _series
from qkv.inspection.answers.reading import read
from qkv.inspection.events import RISES
from qkv.instruments.attention_stats import STATISTICS
from qkv.instruments.probe import WINDOWS, Probe
from qkv.randomness import generator
from qkv.tasks.batch import Batch

STEPS = 120
SIZES = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 128, "batch_size": 4}
MEASURES = [name for name in (*RISES, "entropy") if name in STATISTICS]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A text of stretches that differ, as documents do, so that its first window is not like the others."""
    draws = generator("tests", "stretches")
    stretches = []
    for _ in range(700):
        letters = draws.choice(list("abcdefghijklmnop"), size=int(draws.integers(1, 9)))
        stretches.append("".join(draws.choice(letters, size=int(draws.integers(40, 200)))))
    text = tmp_path_factory.mktemp("text") / "stretches.txt"
    text.write_text("\n".join(stretches), encoding="utf-8")
    options = dict(tokenizer="char", steps=STEPS, seed=1, threads=1, precision="fp32", report=False)
    return qkv.train(text, out=text.parent / "run", set=SIZES, **options)


def test_one_window_misleads_and_the_interval_of_many_holds_the_mean_of_all(run):
    task, corpus, model = run.task, run.corpus(), run.model_at(STEPS)
    whole = [batch.inputs for batch in task.val_batches(corpus, model.config.sizes, 1) if batch.positions is None]
    every = Probe(Batch(torch.cat(whole), torch.cat(whole)), None)
    assert len(whole) > 2 * WINDOWS
    names = [address for address, _, _ in every.addresses(model)]
    truth = dict(zip(STATISTICS, every.read(model), strict=True))
    inside, misled = [], 0
    with run.recorded() as telemetry:
        for measure in MEASURES:
            looked, one = _series(telemetry, measure), telemetry.grid(measure, "**.H*.pattern").value[:, -1]
            for address, mean, first_window in zip(names, truth[measure], one, strict=True):
                found = looked[address.removesuffix(".pattern")]
                assert found.windows == WINDOWS and found.interval[0] < found.now < found.interval[1]
                inside.append(found.interval[0] <= mean <= found.interval[1])
                misled += not found.interval[0] <= first_window <= found.interval[1]
    assert np.mean(inside) >= 0.8, inside  # 95 % of independent ones: those of one run share their windows
    assert misled >= len(inside) / 4, "the first window says what all do: this text shows too little"


def test_each_window_is_kept_so_that_a_mean_can_be_taken_again(run):
    told = next(answer for answer in read(run.path) if answer.key == "heads")
    assert told.numbers["windows"] == WINDOWS
    assert any(f"{WINDOWS} windows of the validation text" in line for line in told.more)
    with run.recorded() as telemetry:
        windows = telemetry.all_vectors("entropy")["L1.H1.pattern"]
        assert sorted(windows) == [0, STEPS] and all(len(values) == WINDOWS for values in windows.values())
        looked = _series(telemetry, "entropy")["L1.H1"]
        values = windows[STEPS].astype(float)
    assert looked.now == pytest.approx(values.mean())
    reach = 2.1314 * values.std(ddof=1) / np.sqrt(WINDOWS)  # the 97.5 % point of Student's t with 15 degrees
    assert looked.interval == pytest.approx((looked.now - reach, looked.now + reach), rel=1e-3)


def test_windows_are_spread_and_each_is_what_a_pass_of_its_own_gives(run):
    wide = Probe.of(run.task, run.corpus(), run.model, 1, is_wide=True)
    assert len(wide.batch.inputs) == len(wide.repeated) == WINDOWS
    windows = [batch.inputs[0] for batch in run.task.val_batches(run.corpus(), run.model.config.sizes, 1)]
    places = [next(i for i, w in enumerate(windows) if w.equal(one)) for one in wide.batch.inputs]
    assert places == sorted(places) and places[0] == 0 and places[-1] > 0.7 * len(windows)
    found = wide.read(run.model, by_window=True)
    for i in (0, 7, 15):
        row = slice(i, i + 1)
        alone = Probe(Batch(wide.batch.inputs[row], wide.batch.inputs[row]), wide.repeated[row]).read(run.model)
        np.testing.assert_allclose(found[:, :, i], alone, rtol=1e-5, atol=1e-6)
