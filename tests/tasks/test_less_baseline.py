"""A model's loss minus that of the best n-gram on the same tokens, as its run stores it and by hand."""

import numpy as np
import pytest
import torch

import qkv
from qkv.data.baseline.text import baselines
from qkv.tasks import evaluation
from qkv.tasks.evaluation import less_baseline

SIZES = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 32, "batch_size": 4}


@pytest.fixture(scope="module")
def run(small_text, tmp_path_factory):
    options = dict(tokenizer="char", steps=20, seed=1, threads=1, precision="fp32", report=False, set=SIZES)
    return qkv.train(small_text, out=tmp_path_factory.mktemp("runs") / "run", **options)


def by_hand(run, corpus, n_ctx=32):
    """Nats of every validation token after the first, window by window, float64."""
    ids = torch.from_numpy(corpus.val.ids.astype(np.int64))
    costs = []
    with torch.no_grad():
        for first in range(0, len(ids) - 1, n_ctx):
            window = ids[first : first + n_ctx + 1]
            logs = run.model(window[None, :-1])[0].double().log_softmax(-1)
            costs.append(-logs[torch.arange(len(window) - 1), window[1:]].numpy())
    return costs


def test_a_run_stores_what_its_windows_give(run):
    corpus = run.corpus()
    ngram = baselines(corpus).by_token
    costs = by_hand(run, corpus)
    starts = np.cumsum([0, *map(len, costs)])
    apart = [cost - ngram[at : at + len(cost)] for cost, at in zip(costs, starts, strict=False)]
    difference = np.concatenate(apart).mean()
    with run.recorded() as telemetry:
        found = telemetry.fact("loss_less_ngram")
        losses = telemetry.best_evaluation().loss, telemetry.fact("baselines")["ngram"]
    assert found["windows"] == len(costs) and found["difference"] == pytest.approx(difference, abs=1e-5)
    assert difference == pytest.approx(losses[0] - losses[1], abs=1e-4)
    draws = np.random.default_rng(0).integers(len(apart), size=(4000, len(apart)))  # the bootstrap over windows
    sums, sizes = np.array([each.sum() for each in apart]), np.array([len(each) for each in apart])
    low, high = np.quantile(sums[draws].sum(1) / sizes[draws].sum(1), (0.025, 0.975))
    assert (found["low"], found["high"]) == pytest.approx((low, high), abs=0.1 * (high - low))


def test_windows_of_a_long_text_are_spread_and_few(run, monkeypatch):
    corpus = run.corpus()
    ngram = baselines(corpus).by_token
    whole = less_baseline(run.model, run.task, corpus, ngram)
    monkeypatch.setattr(evaluation, "PAIRED", 24)
    few = less_baseline(run.model, run.task, corpus, ngram)
    assert few["windows"] <= 24 + 8 < whole["windows"]
    assert few["low"] <= whole["difference"] <= few["high"] and few["high"] - few["low"] > whole["high"] - whole["low"]
    part = less_baseline(run.model, run.task, corpus, ngram[:400])  # scored on the first tokens alone
    assert 400 // 32 - 8 <= part["windows"] <= 400 // 32
    assert less_baseline(run.model, run.task, corpus, ngram[:20]) is None
