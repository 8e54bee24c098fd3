"""The design of a quick study follows from its time, and what it can see is said before it trains."""

import dataclasses
import json
import math
import statistics
from pathlib import Path

import pytest

from qkv.errors import SourceError
from qkv.studies.engine import runner
from qkv.studies.engine.estimate import Estimate
from qkv.studies.engine.runner import Told
from qkv.studies.question import Ask, known
from qkv.studies.questions import find, questions
from qkv.studies.quick import first_words, power_words, sized
from qkv.studies.verdict.power import detectable

RESULTS = Path(__file__).parent.parent.parent / "docs" / "answers" / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*-quick.json")), ids=lambda path: path.stem)
def test_what_is_known_is_what_the_kept_quick_run_found(path):
    kept = json.loads(path.read_text("utf-8"))
    main, found = kept["contrasts"][0], known(kept["study"])
    sd = statistics.stdev(main["values"])
    assert (found["sd"], found["unit"], found["effect"]) == (float(f"{sd:.2g}"), main["unit"], main["name"])
    for arm in (arm for arm in kept["arms"] if arm["rates"]):
        mean = math.exp(sum(map(math.log, arm["rates"])) / len(arm["rates"]))
        assert found["rates"][arm["name"]] == float(f"{mean:.2g}")


@pytest.mark.parametrize("name", [name for name in questions() if known(name)])
def test_no_arm_of_a_quick_study_is_tuned(name, long_text, kept):
    named = Ask(named=("a text", "0" * 64), quick=True)
    design, tuned = (find(name).design(ask) for ask in (named, dataclasses.replace(named, tuned=True)))
    for arm, before in zip(design.arms, tuned.arms, strict=True):
        if before.tune == "own":
            assert arm.tune == "none" and arm.lr == known(name)["rates"].get(arm.name, before.lr)
        else:
            assert arm == before
    assert any(arm.tune == "own" for arm in tuned.arms)


def timed(design, seconds: float) -> Estimate:
    """An estimate in which each arm takes so many seconds a replicate."""
    each, steps = [arm.name for arm in design.arms], design.scale.steps
    return Estimate(
        seconds_per_replicate=dict.fromkeys(each, seconds), primary=design.main_arms, workers=1, slowest=seconds,
        slowest_step=seconds / steps, steps=steps, seconds_per_step=dict.fromkeys(each, seconds / steps),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "n", "times"),
    [(0.01, 12, 4), (0.5, 12, 4), (2.2, 12, 1), (4.0, 10, 1), (6.0, 6, 1), (100.0, 6, 1)],
)
def test_replicates_and_steps_follow_from_the_time_of_a_training(seconds, n, times):
    make, ask = find("frozen-embeddings").design, Ask(named=("a text", "0" * 64), quick=True)
    design = make(ask)
    found = sized(make, ask, design, timed(design, seconds), 3.0)
    assert (found.seeds, found.times) == (n, times)
    assert times == 1 or timed(design, times * seconds).minutes(n, design.main_arms) <= 1.5
    made = make(found)
    assert made.scale.steps == times * design.scale.steps and made.replicates == n
    assert sized(make, dataclasses.replace(ask, seeds=7), design, timed(design, seconds), 3.0).seeds == 7


def test_more_steps_are_no_reason_to_share_a_text(tiny_study, small_text):
    """Nor are they taken on a text that is too small for them."""
    ask = Ask(source=str(small_text), quick=True)
    design = tiny_study.design(ask)
    found = sized(tiny_study.design, ask, design, timed(design, 0.001), 3.0)
    assert found.seeds == min(12, max(6, design.slices)) and tiny_study.design(found).slices >= found.seeds

    def too_small(ask):
        if ask.times > 1:
            raise SourceError("too small")
        return tiny_study.design(ask)

    assert sized(too_small, ask, design, timed(design, 0.001), 3.0).times == 1


def test_a_measure_that_is_no_loss_is_taken_at_its_own_steps():
    make, ask = find("dynamics").design, Ask(named=("a text", "0" * 64), quick=True)
    assert sized(make, ask, make(ask), timed(make(ask), 0.001), 3.0).times == 1


def test_what_it_can_see_is_said_first_in_the_unit_of_the_effect():
    question, ask = find("frozen-embeddings"), Ask(named=("a text", "0" * 64), quick=True)
    design, sd = question.design(dataclasses.replace(ask, seeds=9)), known("frozen-embeddings")["sd"]
    words = power_words(design, 3.0)
    assert words.startswith(f"In 3 minutes I can see an effect above {detectable(sd, 9):.3f} nats per token")
    assert "if 9 replicates scatter as in the kept quick run (sd 0.022)" in words and "margin 0.030" in words
    first = first_words(question, ask, 3.0)
    assert f"see an effect above {detectable(sd, 6):.3f} to {detectable(sd, 12):.3f} nats per token" in first
    assert first_words(question, dataclasses.replace(ask, quick=False), 150.0) == f"{question.name}: {question.asks}"
    assert "train 7 replicates and see" in first_words(question, dataclasses.replace(ask, seeds=7), 3.0)
    assert "nats" not in power_words(dataclasses.replace(design, quick=False), 3.0)


def test_a_quick_study_goes_on_with_the_design_that_it_began(tiny_study, small_text, tmp_path, monkeypatch):
    """However fast the machine is by then."""
    monkeypatch.setattr(runner, "find", lambda name: tiny_study.QUESTION)
    said: list[str] = []

    def stop(made):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny_study.answer(small_text, tmp_path, quick=True, minutes=None, told=Told(say=said.append, progress=stop))
    (folder,) = tmp_path.iterdir()
    assert "replicates of frozen and trained" in said[1] and folder.name.startswith("study-tiny-quick-")
    monkeypatch.setattr(runner, "sized", lambda *asked: pytest.fail("its size was chosen again"))
    verdict = tiny_study.answer(small_text, tmp_path, quick=True, minutes=None)
    assert Path(verdict["run"]) == folder and verdict["not_reached"] == []
    assert verdict["seeds"] >= 6 and verdict["trainings"] == 2 * verdict["seeds"]
    assert "at fixed learning rates" in verdict["sentence"] and verdict["source"]["untuned"] is True


def test_that_replicates_share_a_text_is_said_before_it_trains(tiny_study, small_text):
    design = tiny_study.design(Ask(source=str(small_text)))
    words = [runner._main_words(dataclasses.replace(design, slices=n), timed(design, 1.0), 3.0) for n in (1, 3)]
    assert "Replicates share the text" in words[0] and "the interval is over seeds on one text." in words[0]
    assert "share" not in words[1] and "about 0.1 minutes" in words[1]
