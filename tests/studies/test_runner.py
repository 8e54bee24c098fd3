"""A study from the question to the verdict: pairing, killing, adding seeds, budgets, mistakes."""

import dataclasses
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from qkv.errors import ConfigError, Interrupted, MissingExtra, RunFolderError, SourceError
from qkv.installing import install
from qkv.studies.engine import estimate as estimates
from qkv.studies.engine import runner
from qkv.studies.engine.design import Design, Text, cost
from qkv.studies.engine.estimate import Estimate
from qkv.studies.engine.runner import Told
from qkv.studies.engine.store import StudyFolder, read_rows, unlike
from qkv.studies.engine.training import run_trial


@pytest.fixture
def tiny(tiny_study, monkeypatch):
    monkeypatch.setattr(runner, "find", lambda name: tiny_study.QUESTION)
    return tiny_study


@pytest.fixture(scope="module")
def whole(tiny_study, small_text, tmp_path_factory) -> Path:
    """The folder of an undisturbed tiny study."""
    found, kept = tmp_path_factory.mktemp("whole"), runner.find
    try:
        return Path(tiny_study.answer(small_text, found / "runs")["run"])
    finally:
        runner.find = kept


def verdict_of(folder: Path, runs: Path) -> bytes:
    """The bytes of a verdict, its own path apart."""
    return (folder / "verdict.json").read_bytes().replace(str(runs).encode(), b"")


def test_without_scipy_nothing_is_trained(tiny, small_text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingExtra, match=re.escape(install("study"))):
        runner.run_study("tiny", small_text, within=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_study_with_one_thread_says_why_it_trains_one_model_at_a_time(monkeypatch):
    for cores, workers, says in ((1, 1, False), (2, 1, True), (2, 2, False), (16, 2, True), (16, 8, False)):
        monkeypatch.setattr(runner.os, "sched_getaffinity", lambda _, n=cores: set(range(n)), raising=False)
        assert (f"OMP_NUM_THREADS={cores} " in runner._few_threads(workers)) == says


def test_the_verdict_follows_from_the_rows(whole):
    verdict = json.loads((whole / "verdict.json").read_text())
    rows = [row for row in read_rows(whole) if row.get("role") == "report"]
    loss = {(row["arm"], row["replicate"]): row["loss"] for row in rows}
    costs = [loss["frozen", r] - loss["trained", r] for r in (1, 2, 3)]
    assert verdict["effect"] == pytest.approx(np.median(costs), abs=1e-12)
    assert verdict["seeds"] == 3 and verdict["low"] < verdict["effect"] < verdict["high"]
    assert {"study", "verdict", "sentence", "unit", "margin", "p", "run"} <= verdict.keys()
    size = f"{verdict['effect']:+.3f} nats per token"
    assert size in verdict["sentence"] and "replicates of this spread" in verdict["sentence"]
    assert "over seeds and 3 slices of the text" in verdict["condition"]


def test_the_design_is_on_disk_before_the_first_training_and_hashed(whole):
    first, *rest = read_rows(whole)
    written = json.loads((whole / f"design-{first['design'][:8]}.json").read_text())
    assert first["replicates"] == 3 and all("arm" in row for row in rest)
    assert written["hash"] == first["design"] and written["protocol"].startswith(whole.name[-8:])


def test_a_row_is_the_same_bits_when_made_again(whole, tiny_study, small_text):
    design = tiny_study.design(runner.Ask(source=str(small_text)))
    row = next(row for row in read_rows(whole) if row.get("role") == "report" and row["arm"] == "trained")
    trial = design.trial(design.arms[0], row["replicate"], row["k"], source=str(small_text), report=True)
    again = run_trial(trial, None)
    assert trial.key == row["key"]
    assert {k: v for k, v in again.items() if k != "seconds"} == {k: row[k] for k in again if k != "seconds"}


def test_a_finished_study_trains_nothing_again(tiny, whole, small_text):
    log = (whole / "runs.jsonl").read_bytes()
    before = verdict_of(whole, whole.parent)
    tiny.answer(small_text, whole.parent, told=Told(progress=lambda made: pytest.fail("it trained")))
    assert (whole / "runs.jsonl").read_bytes() == log and verdict_of(whole, whole.parent) == before


@pytest.mark.parametrize("left", [b'{"key": "half a li', b'{"key": "zeros where sec\0\0\0\0\0\0"}\n'])
@pytest.mark.parametrize("after", [1, 9, 20])
def test_a_study_that_broke_off_ends_with_the_same_verdict(tiny, whole, small_text, tmp_path, after, left):
    seen = []

    def stop(made):
        seen.append(made)
        if len(seen) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny.answer(small_text, tmp_path / "runs", told=Told(progress=stop))
    folder = next((tmp_path / "runs").iterdir())
    assert len([row for row in read_rows(folder) if "arm" in row]) == after
    with open(folder / "runs.jsonl", "ab") as log:
        log.write(left)
    assert len([row for row in read_rows(folder) if "arm" in row]) == after
    again = tiny.answer(small_text, tmp_path / "runs")
    assert Path(again["run"]) == folder
    assert verdict_of(folder, tmp_path / "runs") == verdict_of(whole, whole.parent)
    keys = [row["key"] for row in read_rows(folder)]
    assert len(keys) == len(set(keys)), "nothing is run twice"


def test_workers_give_the_same_verdict_as_one_process(tiny, whole, small_text, tmp_path):
    verdict = tiny.answer(small_text, tmp_path / "runs", workers=2)
    assert verdict_of(Path(verdict["run"]), tmp_path / "runs") == verdict_of(whole, whole.parent)


def rows_in(runs: Path) -> int:
    """Whole lines in the log so far."""
    return sum(log.read_bytes().count(b"\n") for log in runs.glob("*/runs.jsonl"))


def test_a_study_killed_between_its_design_and_the_first_row_ends_alike(whole, small_text, tmp_path, tiny):
    begun = tmp_path / "runs" / whole.name
    begun.mkdir(parents=True)
    (design,) = whole.glob("design-*.json")
    (begun / design.name).write_bytes(design.read_bytes())
    tiny.answer(small_text, tmp_path / "runs")
    assert verdict_of(begun, tmp_path / "runs") == verdict_of(whole, whole.parent)
    assert [row["key"] for row in read_rows(begun)][0].startswith("design ")


@pytest.mark.slow
def test_a_study_killed_at_ten_random_moments_ends_with_the_same_bytes(whole, small_text, tmp_path, tiny_study):
    """Each time some trainings further and a random moment into the next, in one process and in two."""
    moments, kills, seen = random.Random(1), 0, []
    runs = tmp_path / "runs"
    while kills < 10:
        before = rows_in(runs)
        process = subprocess.Popen([sys.executable, tiny_study.__file__, small_text, runs, str(1 + kills % 2)])
        while rows_in(runs) < before + moments.choice((1, 1, 2, 3)) and process.poll() is None:
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.06))
        inside = process.poll() is None and not list(runs.glob("*/verdict.json"))
        process.kill()
        process.wait()
        kills += inside
        seen.append(rows_in(runs))
        if not inside:  # it came to its end: it loses its latest half, to be killed on the way again
            folder = next(runs.iterdir())
            (folder / "verdict.json").unlink(missing_ok=True)
            lines = (folder / "runs.jsonl").read_bytes().splitlines(keepends=True)
            (folder / "runs.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    assert len(set(seen)) >= 5, f"the kills were spread over the study: {seen}"
    subprocess.run([sys.executable, tiny_study.__file__, small_text, runs], check=True)
    folder = next(runs.iterdir())
    assert verdict_of(folder, runs) == verdict_of(whole, whole.parent)
    keys = [row["key"] for row in read_rows(folder)]
    assert len(keys) == len(set(keys)), "nothing is run twice"


def test_more_seeds_add_to_the_runs_that_are_there_and_the_verdict_says_so(tiny, small_text, tmp_path):
    first = tiny.answer(small_text, tmp_path / "runs", seeds=2)
    second = tiny.answer(small_text, tmp_path / "runs", seeds=3)
    assert second["run"] == first["run"] and second["seeds"] == 3
    assert second["earlier_designs"] == [2] and second["trainings"] > first["trainings"]


def test_a_budget_for_the_main_question_alone_is_taken_and_says_so(tiny, small_text):
    design = tiny.design(runner.Ask(source=str(small_text)))
    costs = {"trained": 20.0, "frozen": 20.0, "other": 200.0}
    found = Estimate(
        seconds_per_replicate=costs, primary=("trained", "frozen"), workers=1, slowest=1.0, slowest_step=0.1, steps=8,
        seconds_per_step=dict.fromkeys(costs, 0.5),
    )  # fmt: skip
    assert found.minutes(3) == pytest.approx(13.2) and found.minutes(3, found.primary) == pytest.approx(2.2)
    found.check(design, 14)
    asked = dataclasses.replace(
        design, contrasts=(*design.contrasts, cost("other - trained", "", "other", "trained", 0.05)),
        arms=(*design.arms, dataclasses.replace(design.arms[1], name="other", changes=("W_E=orthogonal",))),
    )  # fmt: skip
    assert found.reach(asked, 14) == (
        "In 14 minutes it can answer its main question (frozen - trained) and 1 of 1 other effect."
    )
    assert found.reach(asked, 3) == (
        "In 3 minutes it can answer its main question (frozen - trained) and 0 of 1 other effect; not other - trained,"
        " which take --minutes 16."
    )
    with pytest.raises(ConfigError, match="alone takes about 2.2 on 1 core; not even 2 .* type --minutes 5 for all"):
        found.check(design, 3, spent=1.9)
    with pytest.raises(ConfigError, match="main question alone takes about 2.2.*--seeds 2 would fit.*--minutes 3"):
        found.check(design, 2)


@pytest.mark.parametrize("minutes", [1e-6, 0.0])
def test_a_study_that_was_begun_takes_any_budget_and_says_what_there_is(tiny, small_text, tmp_path, minutes):
    def stop(made):
        if made.done == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny.answer(small_text, tmp_path / "runs", told=Told(progress=stop))
    found = tiny.answer(small_text, tmp_path / "runs", minutes=minutes)
    assert found["trainings"] == 12 and found["budget_minutes"] == minutes
    assert found["not_reached"] and found["seeds"] < 3 and found["verdict"] == "unresolved"
    whole = tiny.answer(small_text, tmp_path / "runs", minutes=2)
    assert whole["not_reached"] == [] and whole["seeds"] == 3 and whole["trainings"] > 12


def test_a_text_that_a_probe_finds_nothing_in_is_refused_before_anything_is_made(tiny, tmp_path, monkeypatch):
    numbers, runs = tmp_path / "numbers.txt", tmp_path / "runs"
    numbers.write_text(" ".join(str(random.Random(1).randrange(90) * i % 97) for i in range(9000)))

    def design(ask):
        words = (("text", Text(tokenizer="word", vocab=100)),)
        asks = dataclasses.replace(made.arms[0], probes=("relatedness",))
        return dataclasses.replace(made, texts=words, arms=(asks, made.arms[1]))

    made = tiny.design(runner.Ask(source=str(numbers)))
    monkeypatch.setattr(tiny, "QUESTION", dataclasses.replace(tiny.QUESTION, design=design))
    with pytest.raises(SourceError, match="0 words of letters stand 4 times or more in its validation text"):
        tiny.answer(numbers, runs)
    assert not runs.exists()


def test_trainings_of_another_text_or_version_are_said_to_be_of_no_use(tiny, small_text, tmp_path, monkeypatch):
    text, said = tmp_path / "play" / "input.txt", []
    text.parent.mkdir()
    shutil.copy(small_text, text)
    first = tiny.answer(text.parent, tmp_path / "runs", seeds=2)
    second = tiny.answer(text, tmp_path / "runs", seeds=2, told=Told(say=said.append))
    hashes = [verdict["source"]["sha256"][:16] for verdict in (first, second)]
    words = f"No training in {first['run']} can be used: its text has the sha256 {hashes[0]}, yours {hashes[1]}."
    assert said.count(words) == 1 and second["trainings"] == first["trainings"]
    monkeypatch.setattr("qkv.studies.question.software", lambda: "torch 0.0")
    other = tiny.design(runner.Ask(source=str(text)))
    assert unlike(other, Path(second["run"])) == f"it was made by {second['software']}, and this is torch 0.0"


def test_another_margin_judges_the_same_trainings_and_names_the_first(tiny, small_text, tmp_path, monkeypatch):
    first = tiny.answer(small_text, tmp_path / "runs")
    monkeypatch.setattr(runner, "pending", lambda *design: iter(()))  # whatever is missing stays so
    again = tiny.answer(small_text, tmp_path / "runs", margin=0.2, minutes=1e-6)
    assert again["run"] != first["run"] and (again["margin"], again["earlier_margins"]) == (0.2, [0.05])
    assert [row["values"] for row in again["contrasts"]] == [row["values"] for row in first["contrasts"]]
    assert again["trainings"] == first["trainings"] and again["not_reached"] == []
    assert again["notes"][0] == "The same trainings were judged before with a margin of 0.050"
    assert again["taken_over"] == [Path(first["run"]).name] and Path(first["run"]).name in again["notes"][1]
    assert tiny.answer(small_text, tmp_path / "runs", margin=0.2) == again | {"budget_minutes": 3}
    assert first["earlier_margins"] == []


def test_a_third_margin_names_both_before_it_and_so_does_a_study_killed_while_it_takes_over(tiny, small_text, tmp_path):
    before = [Path(tiny.answer(small_text, tmp_path / "runs", margin=margin)["run"]).name for margin in (0.05, 0.2)]
    third = tiny.answer(small_text, tmp_path / "runs", margin=0.3)
    assert third["earlier_margins"] == [0.05, 0.2] and sorted(third["taken_over"]) == sorted(before)
    folder = Path(third["run"])
    log, verdict = (folder / "runs.jsonl").read_bytes().splitlines(keepends=True), verdict_of(folder, folder.parent)
    for n in range(1, len(log)):
        (folder / "runs.jsonl").write_bytes(b"".join(log[:n]))
        tiny.answer(small_text, tmp_path / "runs", margin=0.3)
        assert verdict_of(folder, folder.parent) == verdict, n


def test_trainings_on_another_text_of_that_name_are_not_taken_over(tiny, small_text, tmp_path):
    tiny.answer(small_text, tmp_path / "runs")
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / small_text.name
    other.write_text(small_text.read_text(encoding="utf-8")[::-1], encoding="utf-8")
    with pytest.raises(ConfigError, match="minutes are too few for 3 replicates"):  # as for one that was not begun
        tiny.answer(other, tmp_path / "runs", minutes=1e-6)


def test_a_verdict_says_which_budget_it_had(tiny, whole, small_text):
    verdict = json.loads((whole / "verdict.json").read_text())
    assert (
        verdict["budget_minutes"] == 3 and verdict["planned_trainings"] == 30 and verdict["intervals"] == "Student's t"
    )


def test_a_spike_does_not_end_a_training_of_a_study(tiny, small_text, monkeypatch):
    from qkv.training import spikes

    monkeypatch.setattr(spikes, "is_spike", lambda losses, first: min(losses) if len(losses) > 3 else None)
    design = tiny.design(runner.Ask(source=str(small_text)))
    trial = design.trial(design.arms[0], 1, 0, source=str(small_text), report=True)
    row = run_trial(trial, None)
    assert not row["diverged"] and row["steps"] == trial.scale.steps


def test_a_budget_that_is_too_small_says_what_fits_and_makes_nothing(tiny, small_text, tmp_path):
    with pytest.raises(ConfigError, match=r"too few for 3000 replicates of tiny.*--seeds \d+ would fit"):
        tiny.answer(small_text, tmp_path / "runs", seeds=3000, minutes=2)
    assert not (tmp_path / "runs").exists()


def test_a_quick_study_whose_main_question_does_not_fit_is_refused_before_it_trains(
    tiny, small_text, tmp_path, monkeypatch
):
    """No --minutes was typed: the budget of a quick run holds all the same; arms of other questions are not timed."""
    monkeypatch.setattr(runner, "QUICK_MINUTES", 1e-6)
    timed, said = [], []
    seconds = estimates._seconds
    monkeypatch.setattr(estimates, "_seconds", lambda trial, cache: timed.append(trial.arm) or seconds(trial, cache))
    frozen = tiny.design(runner.Ask(source=str(small_text))).arms[1]
    other = dataclasses.replace(frozen, name="other", changes=("W_E=orthogonal",), probes=("rows",))

    def design(ask):
        made = tiny.design(ask)
        return dataclasses.replace(made, arms=(*made.arms, other))

    monkeypatch.setattr(tiny, "QUESTION", dataclasses.replace(tiny.QUESTION, design=design))
    with pytest.raises(ConfigError, match=r"^1e-06 minutes are too few .*; type --minutes \d+ for all of them$"):
        tiny.answer(small_text, tmp_path / "runs", told=Told(say=said.append), quick=True, minutes=None)
    assert {arm.name for arm in timed} == {"trained", "frozen"} and len(said) == 1
    assert not (tmp_path / "runs").exists()


def test_what_a_budget_reaches_is_said_before_the_first_training(tiny, small_text, tmp_path):
    said = []

    def stop(made):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny.answer(small_text, tmp_path / "runs", told=Told(progress=stop, say=said.append))
    (words,) = [words for words in said if words.startswith("In 3 minutes it can answer its main question")]
    assert words in said[1:] and said[1].startswith(
        "With 3 replicates it finds a main effect four times in five if that is 3.3 times the standard deviation"
    )
    assert "takes 3 replicates of frozen and trained, 8 steps each" in said[1] and "share the text" not in said[1]


def test_cells_that_were_not_reached_are_named(tiny, small_text, tmp_path, monkeypatch):
    """Where the estimate was too low: time is over before anything is trained."""
    monkeypatch.setattr(Estimate, "check", lambda *asked: None)
    verdict = tiny.answer(small_text, tmp_path / "runs", minutes=1e-6)
    assert verdict["verdict"] == "unresolved" and verdict["effect"] is None
    assert verdict["not_reached"] == ["trained: 3 of 3 replicates", "frozen: 3 of 3 replicates"]
    assert "No result yet" in verdict["sentence"]


@pytest.mark.parametrize(
    "more, words",
    [
        ({"seeds": 1}, "--seeds 2"),
        ({"margin": 0.0}, "expected a number above 0"),
        ({"workers": 0}, "expected at least 1"),
    ],
)
def test_a_mistake_is_one_sentence_and_makes_nothing(tiny, small_text, tmp_path, more, words):
    with pytest.raises(ConfigError, match=words):
        tiny.answer(small_text, tmp_path / "runs", **more)
    assert not (tmp_path / "runs").exists()


def test_a_text_that_is_too_small_says_how_much_would_do(tiny, tmp_path):
    (tmp_path / "short.txt").write_text("the cat sat on the mat. " * 3)
    with pytest.raises(SourceError, match="too small for this study.*expected at least"):
        tiny.answer(tmp_path / "short.txt", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_text_that_changed_under_a_study_is_noticed(tiny, small_text, tmp_path):
    text = tmp_path / "mine.txt"
    text.write_bytes(small_text.read_bytes())
    design = tiny.design(runner.Ask(source=str(text)))
    text.write_text(text.read_text() + "One more line.\n")
    with pytest.raises(SourceError, match="has changed since the study began"):
        run_trial(design.trial(design.arms[0], 1, 0, source=str(text), report=True), None)


def test_a_study_in_use_is_not_entered(tiny, whole, small_text):
    design = tiny.design(runner.Ask(source=str(small_text)))
    with StudyFolder.begin(design, whole.parent), pytest.raises(RunFolderError, match="in use"):
        tiny.answer(small_text, whole.parent)


@pytest.mark.parametrize(
    "line", [b'{"arm: 1}', b"17", b"[]", b"null", b""], ids=["torn", "number", "list", "null", "empty"]
)
def test_a_log_that_was_changed_is_not_trusted(line, tiny, small_text, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "runs" / whole.name)
    log = tmp_path / "runs" / whole.name / "runs.jsonl"
    first, _, *rest = log.read_bytes().split(b"\n")
    log.write_bytes(b"\n".join([first, line, *rest]))
    with pytest.raises(RunFolderError, match="line 2 of .* is damaged"):
        tiny.answer(small_text, tmp_path / "runs", seeds=2)


def test_divergence_is_an_outcome_and_counts_as_a_blind_guess(tiny_study, small_text):
    design: Design = tiny_study.design(runner.Ask(source=str(small_text)))
    arm = dataclasses.replace(design.arms[0], optimizer="sgd", lr=1e30, probes=("drift", "bits", "told"))
    row = run_trial(design.trial(arm, 1, 0, source=str(small_text), report=True), None)
    corpus = runner.Ask(source=str(small_text)).corpus(design.texts[0][1], design.scale.val_tokens)
    assert row["diverged"] and row["loss"] == pytest.approx(np.log(corpus.tokenizer.d_vocab))
    assert row["measures"]["bits per byte"] == pytest.approx(corpus.bits_per_byte(row["loss"]))
    assert row["measures"]["told"] < 0 and "drift W_E" not in row["measures"]


def test_ctrl_c_keeps_what_was_trained_and_says_how_to_go_on(tiny, small_text, tmp_path):
    def interrupt(made):
        if made.done == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="2 trainings kept.*the same command goes on") as caught:
        tiny.answer(small_text, tmp_path / "runs", told=Told(progress=interrupt))
    assert caught.value.exit_status == 130
