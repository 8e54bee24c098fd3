"""Models held beside each other by which words are alike in each: planted agreement, seeds, and the derived numbers."""

import dataclasses

import numpy as np
import pytest
import torch

from qkv.errors import SourceError
from qkv.randomness import generator
from qkv.studies.engine.design import Arm
from qkv.studies.engine.training import TRAINERS, run_trial
from qkv.studies.probes.relatedness import compared, relatedness
from qkv.studies.question import Ask
from qkv.studies.questions import find


@pytest.fixture
def draws():
    """The same numbers for each test, whatever ran before it."""
    return generator("tests", "relatedness")


def kept(name: str, replicate: int, cosines: np.ndarray) -> dict[str, float]:
    """A row as the probe gives it, of 10 made pairs in both spaces."""
    row = {"replicate": float(replicate)}
    for space in ("W_E", "mean"):
        row |= {f"{space}|{name}|a|{'bcdefghijk'[i]}": float(x) for i, x in enumerate(cosines)}
    return row


def test_tasks_are_compared_across_seeds_and_within_their_replicate(draws):
    rise, fall, other = np.arange(10.0), -np.arange(10.0), draws.normal(size=10)
    rows = [
        kept("causal", 1, rise), kept("causal again", 1, rise**3), kept("masked", 1, fall),
        kept("masked again", 1, np.exp(rise)), kept("causal", 2, other), {"loss of another probe": 1.0},
    ]  # fmt: skip
    found = compared(rows)
    first = found[0]
    assert first["W_E: causal ~ causal"] == pytest.approx(1.0) and first["W_E: masked ~ masked"] == pytest.approx(-1.0)
    assert first["W_E: causal ~ masked"] == pytest.approx((1.0 - 1.0) / 2), "(causal, again) 1 and (again, masked) -1"
    assert first["W_E: ceiling causal ~ masked"] == 0.0, "masked agrees with itself less than by chance"
    assert first["mean: masked ~ causal"] == first["mean: causal ~ masked"]
    assert found[3] == first and found[4] == {} and found[5] == {}, "nothing to compare is no number"


def test_the_ceiling_is_the_geometric_mean_of_what_tasks_agree_with_themselves(draws):
    """Two measures of one thing under noise: they correlate by about the root of the product of their reliabilities."""
    truth, n = draws.normal(size=4000), 4000
    noisy = {name: truth + sd * draws.normal(size=n) for name, sd in
             {"causal": 0.5, "causal again": 0.5, "masked": 2.0, "masked again": 2.0}.items()}  # fmt: skip
    rows = [
        {"replicate": 1.0} | {f"W_E|{name}|a|w{i}": float(x) for i, x in enumerate(values)}
        for name, values in noisy.items()
    ]
    found = compared(rows)[0]
    assert found["W_E: causal ~ causal"] == pytest.approx(0.79, abs=0.03)
    assert found["W_E: masked ~ masked"] == pytest.approx(0.19, abs=0.04)
    assert found["W_E: causal ~ masked"] == pytest.approx(found["W_E: ceiling causal ~ masked"], abs=0.03)


def test_only_pairs_that_both_models_know_are_compared():
    some, other = kept("causal", 1, np.arange(10.0)), kept("causal again", 1, np.arange(10.0))
    other["W_E|causal again|zz|zzz"] = 99.0
    del other["W_E|causal again|a|k"], some["W_E|causal|a|c"]
    assert compared([some, other])[0]["W_E: causal ~ causal"] == pytest.approx(1.0)


def test_the_probe_writes_down_the_cosines_of_words(untrained, small_text):
    finished = untrained(small_text, "causal", tokenizer="word")
    row = relatedness(finished)
    names = [key for key in row if key.startswith("W_E|causal|")]
    words = sorted({word for key in names for word in key.split("|")[2:]})
    assert len(names) == len(words) * (len(words) - 1) // 2 and "." not in words and "king" in words
    vocabulary, table = finished.corpus.tokenizer.vocabulary, finished.parts.catalogue.view("W_E").detach().double()
    rows = torch.stack([table[vocabulary[word]] for word in words])
    cosines = torch.nn.functional.normalize(rows - rows.mean(0), dim=1)
    a, b = words.index("cat"), words.index("queen")
    assert row["W_E|causal|cat|queen"] == pytest.approx(float(cosines[a] @ cosines[b]), abs=1e-5)
    assert row["replicate"] == 1.0 and relatedness(finished) == row


def test_a_model_agrees_with_itself_turned_and_not_with_another_start(untrained, small_text):
    first, second = (relatedness(untrained(small_text, "causal", tokenizer="word", seed=seed)) for seed in (1, 2))
    again = {key.replace("|causal|", "|causal again|"): value for key, value in first.items()}
    assert compared([first, again])[0]["W_E: causal ~ causal"] == pytest.approx(1.0)
    other = {key.replace("|causal|", "|causal again|"): value for key, value in second.items()} | {"replicate": 1.0}
    assert abs(compared([first, other])[0]["W_E: causal ~ causal"]) < 0.4


def test_too_few_words_are_refused_in_a_sentence(untrained, tmp_path, draws):
    path = tmp_path / "numbers.txt"
    path.write_text(" ".join(str(i) for i in draws.integers(30, size=8000)))
    with pytest.raises(SourceError, match="0 words of letters stand 4 times or more"):
        relatedness(untrained(path, "causal", tokenizer="word"))


def test_the_same_on_another_seed_is_the_loop_on_that_seed(untrained, small_text):
    """Weights, start and losses, to the bit; and nothing of the first seed."""
    here, there = (untrained(small_text, "causal", tokenizer="char", seed=seed) for seed in (3, 500_003))
    both = [
        TRAINERS[how](finished.trial, finished.parts, ()) for how, finished in (("other seed", here), ("loop", there))
    ]
    assert both[0] == both[1] and both[0].steps == 1
    for name in ("state", "start"):
        ours, theirs = (f.parts.start if name == "start" else f.parts.catalogue.state() for f in (here, there))
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[a], theirs[a]) for a in ours)


def test_end_task_takes_over_the_rate_of_its_first_seed():
    design = find("end-task").design(Ask(named=("a text", "0" * 64), quick=True))
    twins = [arm for arm in design.arms if arm.trainer == "other seed"]
    assert [(arm.name, arm.tune) for arm in twins] == [("causal again", "causal"), ("masked again", "masked")]
    assert set(design.primary.arms) == {arm.name for arm in design.arms}, "all of them are trained first"


def test_a_row_of_a_training_on_another_seed_is_named_so(small_text):
    from qkv.studies.engine.design import Scale, Text, Trial

    text, scale = (
        Text(tokenizer="word"),
        Scale(d_model=8, n_layers=1, n_heads=1, n_ctx=16, batch_size=4, steps=2, val_tokens=512),
    )
    sha256 = Ask(source=str(small_text)).corpus(text).sha256
    arm = Arm(name="x", what="", trainer="other seed", probes=("relatedness",))
    trial = Trial(
        arm=arm, text=text, scale=scale, source=str(small_text), source_sha256=sha256, lr=0.01, seed=1, software="x"
    )  # fmt: skip
    row, plain = (
        run_trial(dataclasses.replace(trial, arm=dataclasses.replace(arm, trainer=how)), None)
        for how in ("other seed", "loop")
    )
    assert any(key.startswith("W_E|causal again|") for key in row["measures"]) and row["loss"] != plain["loss"]
