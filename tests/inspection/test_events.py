"""What happened is found and dated where it was planted, and is not found in noise."""

import math
import tracemalloc

import numpy as np
import pytest

from qkv.inspection.answers.answer import Evidence
from qkv.inspection.answers.events import events
from qkv.inspection.changepoints import FALSE_ALARM, change
from qkv.inspection.events import happenings
from qkv.telemetry import NULL_ARM, AddressRow, Store, Telemetry

STEPS = [0, 8, 16, 32, *range(64, 2001, 64), 2000]
HEADS = [(layer, head) for layer in range(3) for head in range(4)]
USUAL = {"entropy": 2.5, "own_mass": 0.1, "previous_mass": 0.1, "first_mass": 0.1, "induction": 0.01,
         "dominant_rows": 0.02, "largest_score": 3.0}  # fmt: skip


def logistic(steps, at, width=30.0):
    return 1 / (1 + np.exp(-(np.asarray(steps, float) - at) / width))


class Synthetic:
    """Telemetry of a run in which nothing happens but what is planted."""

    def __init__(self, path, seed=0):
        self.path, self.draw = path / "telemetry.sqlite", np.random.default_rng(seed)
        self.planted, self.facts, self.evaluations = {}, {}, []
        self.loss = 1.5 + 2.5 * np.exp(-np.arange(1, 2001) / 150)
        self.grad = np.exp(0.2 * self.draw.standard_normal(2000))

    def plant(self, address, measure, values):
        self.planted[address, measure] = values
        return self

    def written(self, arm=0):
        patterns = [f"L{layer}.H{head}.pattern" for layer, head in HEADS]
        circuits = [f"L{layer}.H{head}.OV" for layer, head in HEADS]
        with Store(self.path) as store:
            store.register_addresses([AddressRow(address=a) for a in (*patterns, *circuits)])
            for i, step in enumerate(STEPS):
                for measure, usual in USUAL.items():
                    noise = usual * (1 + 0.1 * self.draw.standard_normal(len(HEADS)))
                    store.add_values(step, measure, patterns, self._with(patterns, measure, noise, i), arm=arm)
                norms = 3 + 0.1 * self.draw.standard_normal(len(HEADS))
                store.add_values(step, "norm", circuits, self._with(circuits, "norm", norms, i), arm=arm)
            for step in range(1, 2001):
                loss = self.loss[step - 1] * (1 + 0.01 * self.draw.standard_normal())
                store.add_step(step, tokens=step, loss=loss, lr=0.1, grad_norm=self.grad[step - 1], arm=arm)
            for step, loss in self.evaluations:
                store.add_evaluation(step, loss, is_best=False, arm=arm)
            for key, value in self.facts.items():
                store.set_fact(key, value)
        return self.path

    def _with(self, addresses, measure, values, i):
        return [
            float(self.planted[a, measure][i]) if (a, measure) in self.planted else float(value)
            for a, value in zip(addresses, values, strict=True)
        ]


def found_in(path, arm=0):
    with Telemetry(path) as telemetry:
        return happenings(telemetry, arm)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_found_where_nothing_happens(tmp_path, seed):
    assert found_in(Synthetic(tmp_path, seed).written()) == []


@pytest.mark.parametrize("at", [200, 700, 1500])
@pytest.mark.parametrize("measure", ["induction", "previous_mass", "own_mass", "first_mass"])
def test_a_head_that_specialises_is_named_and_dated(tmp_path, measure, at):
    rise = 0.02 + 0.8 * logistic(STEPS, at) + 0.01 * np.random.default_rng(at).standard_normal(len(STEPS))
    (event,) = found_in(Synthetic(tmp_path).plant("L2.H1.pattern", measure, rise).written())
    assert (event.kind, event.address, event.measure) == ("specialised", "L2.H1.pattern", measure)
    assert abs(event.step - at) <= 64, "within one look of the step at which half of the rise was made"
    assert "L2.H1" in event.sentence and event.evidence[f"{measure} after"] > 0.7


def test_a_rise_that_does_not_last_is_no_specialist(tmp_path):
    bump = 0.02 + 0.8 * (logistic(STEPS, 500) - logistic(STEPS, 900))
    assert found_in(Synthetic(tmp_path).plant("L2.H1.pattern", "induction", bump).written()) == []


def test_an_entropy_collapse_and_the_saturation_with_it_are_found(tmp_path):
    fall = 2.5 * (1 - 0.98 * logistic(STEPS, 600)) + 1e-3 * np.random.default_rng(0).standard_normal(len(STEPS))
    run = Synthetic(tmp_path).plant("L0.H3.pattern", "entropy", fall)
    run.plant("L0.H3.pattern", "dominant_rows", 0.97 * logistic(STEPS, 600))
    run.plant("L0.H3.pattern", "largest_score", 3 + 200 * logistic(STEPS, 600))
    events = {event.kind: event for event in found_in(run.written())}
    assert set(events) == {"collapse", "saturated"}
    assert abs(events["collapse"].step - 600) <= 64 and 600 <= events["saturated"].step <= 760
    assert "largest score 203" in events["saturated"].sentence


def test_a_plateau_at_the_unigram_entropy_is_found_and_dated(tmp_path):
    run = Synthetic(tmp_path)
    run.loss = np.where(np.arange(2000) < 100, 4.5, np.where(np.arange(2000) < 500, 3.0, 1.6))
    run.facts["baselines"] = {"unigram": 3.0, "bigram": 2.4}
    (event,) = found_in(run.written())
    assert event.kind == "plateau" and abs(event.step - 100) <= 50
    assert abs(event.evidence["last step"] - 500) <= 50
    run.facts["baselines"] = {"unigram": 2.4}
    (tmp_path / "other").mkdir()
    run.path = tmp_path / "other" / "telemetry.sqlite"
    assert found_in(run.written()) == [], "a level that is not the unigram entropy is not called it"


def test_a_dead_head_an_explosion_and_over_fitting_are_found(tmp_path):
    run = Synthetic(tmp_path).plant("L1.H2.OV", "norm", 3 * np.exp(-np.array(STEPS) / 300))
    run.grad[1199] = 40.0
    run.evaluations = [(0, 4.0), (500, 2.0), (1000, 1.8), (1500, 1.9), (2000, 2.1)]
    events = {event.kind: event for event in found_in(run.written())}
    assert set(events) == {"dead", "explosion", "over-fitting"}
    assert events["dead"].address == "L1.H2.OV" and events["explosion"].step == 1200
    assert events["over-fitting"].step == 1000


@pytest.mark.parametrize("rows", [1, 7, 33, 64, 1000, 1999])
def test_a_long_run_is_read_in_blocks_with_the_same_findings(tmp_path, monkeypatch, rows):
    run = Synthetic(tmp_path)
    run.loss = np.where(np.arange(2000) < 100, 4.5, np.where(np.arange(2000) < 500, 3.0, 1.6))
    run.loss[[5, 700]] = math.nan
    run.grad[[31, 32, 40, 1199, 1999]] = math.nan, 60.0, 50.0, 40.0, 45.0
    run.facts["baselines"] = {"unigram": 3.0}
    path = run.written()
    whole = found_in(path)
    assert {event.kind for event in whole} == {"plateau", "explosion"}
    norms = np.array(run.grad)
    usual = np.array([np.nanmedian(norms[i - 32 : i]) for i in range(32, 2000)])
    times = np.nan_to_num(norms[32:] / usual)
    explosion = next(event for event in whole if event.kind == "explosion")
    assert explosion.step == 33 + int(np.argmax(times))
    assert f"the largest of {(times >= 10).sum()}" in explosion.sentence
    monkeypatch.setattr("qkv.telemetry.reader.MANY", rows)
    assert found_in(path) == whole


def test_reading_ten_times_the_updates_takes_no_more_room(tmp_path):
    peaks = []
    for n in (20_000, 200_000):
        (tmp_path / str(n)).mkdir()
        with Store(tmp_path / str(n) / "telemetry.sqlite") as store:
            for step in range(1, n + 1):
                store.add_step(step, tokens=step, loss=3.0, lr=0.1, grad_norm=1.0)
            store.set_fact("baselines", {"unigram": 3.0})
        with Telemetry(tmp_path / str(n) / "telemetry.sqlite") as telemetry:
            tracemalloc.start()
            (event,) = happenings(telemetry)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert event.kind == "plateau" and event.evidence["last step"] == n
    assert peaks[1] < 1.2 * peaks[0]


def test_noise_is_called_changed_no_more_often_than_is_stated():
    draw = np.random.default_rng(1)
    for n in (20, 60, 200):
        alarms = sum(change(draw.standard_normal(n)) is not None for _ in range(2000))
        assert alarms <= 2000 * FALSE_ALARM + 4 * math.sqrt(2000 * FALSE_ALARM), (n, alarms)


@pytest.mark.parametrize("n", [20, 60, 200])
def test_a_step_of_four_sigmas_is_found_within_two_places(n):
    draw, near = np.random.default_rng(2), 0
    for _ in range(200):
        at = int(draw.integers(n // 4, 3 * n // 4))
        values = draw.standard_normal(n) + 4 * (np.arange(n) >= at)
        found = change(values)
        near += found is not None and abs(found.index - at) <= 2
    assert near >= 190


def test_undefined_numbers_are_passed_over_and_constants_never_change():
    values = np.r_[np.zeros(20), np.ones(20)] + 0.01 * np.random.default_rng(0).standard_normal(40)
    values[[3, 20, 30]] = np.nan
    found = change(values)
    assert found is not None and found.index == 21 and found.size == pytest.approx(1, abs=0.02)
    assert change(np.ones(50)) is None and change(np.r_[np.zeros(3), np.ones(4)]) is None
    assert change(values, least=2) is None


def test_the_answer_says_the_weightiest_first_and_what_the_random_label_control_gives(tmp_path):
    run = Synthetic(tmp_path)
    for head, height in ((0, 0.5), (1, 0.9), (2, 0.7), (3, 0.6)):
        run.plant(f"L1.H{head}.pattern", "induction", height * logistic(STEPS, 800))
    run.written()
    run.planted.clear()
    with Telemetry(run.written(arm=NULL_ARM)) as telemetry:
        answer = events(Evidence(tmp_path, telemetry))
    assert answer is not None and answer.sentence.startswith("L1.H1 copies") and "step" in answer.sentence
    assert answer.address == "L1.H1.pattern" and "also 2 heads that specialized" in answer.more[-1]
    control = "the random-label control (labels shuffled, frequencies kept)"
    assert answer.null == f"In the 2,000 updates of {control}, the same search finds nothing."


def test_a_run_without_telemetry_of_heads_has_no_events(tmp_path):
    with Store(tmp_path / "telemetry.sqlite") as store:
        store.add_step(1, tokens=1, loss=1.0, lr=0.1, grad_norm=1.0)
    assert found_in(tmp_path / "telemetry.sqlite") == []
