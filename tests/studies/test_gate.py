"""The sequential test behind `qkv trial`: its evidence against oracles, its error rates, and its ledger of tries."""

import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest

from qkv.errors import DamagedFileError, RunFolderError
from qkv.studies.gate.sequential import ERROR, alpha, decide, evidence, fewest, interval, needed, spent
from qkv.studies.gate.tries import Tries


def test_evidence_is_fair_at_even_odds():
    for n in range(40):
        for below in range(n + 1):
            mean = (evidence(below + 1, n + 1) + evidence(below, n + 1)) / 2
            assert mean == pytest.approx(evidence(below, n), rel=1e-12)
    assert evidence(0, 0) == 1


@pytest.mark.parametrize(("below", "n"), [(0, 3), (3, 3), (9, 12), (20, 40), (33, 40)])
def test_evidence_is_the_integral_that_its_docstring_names(below, n):
    p = 0.5 + (np.arange(200_000) + 0.5) / 400_000
    alike = np.mean((2 * p) ** below * (2 * (1 - p)) ** (n - below))
    assert evidence(below, n) == pytest.approx(0.5 * alike + 0.5 * (2**n if below == n else 0), rel=1e-6)


@pytest.mark.parametrize("error", [0.025, alpha(1), alpha(50), alpha(100)])
def test_chance_of_ever_reaching_the_evidence_is_below_the_error_and_not_far_below(error):
    alive, crossed = np.array([1.0]), 0.0  # chance of each count of differences below 0 that has not yet crossed
    for n in range(1, 301):
        grown = np.zeros(n + 1)
        grown[:n] += alive / 2
        grown[1:] += alive / 2
        least = needed(n, error)
        if least is not None:
            crossed += grown[least:].sum()
            grown[least:] = 0
        alive = grown
    assert error / 10 < crossed <= error


def test_all_tries_together_spend_less_than_the_error():
    assert spent(100) == pytest.approx(sum(alpha(k) for k in range(1, 101)))
    assert 0.04 < spent(100) < ERROR and spent(10**9) < ERROR
    assert [fewest(alpha(k)) for k in (1, 10, 100)] == [9, 11, 16] and fewest() == 6


LAWS = {
    "normal": lambda draw, n: draw.normal(size=n),
    "heavy tails": lambda draw, n: draw.standard_t(1.5, size=n),
    "skewed": lambda draw, n: draw.exponential(size=n) - math.log(2),
    "skewed the other way": lambda draw, n: math.log(2) - draw.exponential(size=n),
    "a tight lump and a wide one": lambda draw, n: np.where(
        draw.random(n) < 0.5, -1 - 1e-3 * draw.random(n), 10 * draw.random(n)
    ),
}
"""Name -> differences whose median is 0, or that are below it with a chance of 1/2."""


@pytest.mark.parametrize("law", LAWS)
def test_interval_holds_the_median_at_all_times_whatever_the_distribution(law):
    draw = np.random.default_rng(3)
    missed = 0
    for _ in range(300):
        x = LAWS[law](draw, 60)
        bounds = [interval(list(x[:n])) for n in range(1, 61)]
        missed += any(low > 0 or high < 0 for low, high in bounds)
    assert missed / 300 <= 0.05


def test_it_keeps_and_discards_as_soon_as_it_may_and_not_before():
    assert decide([-0.1] * 8, 0.01, alpha(1)) == "undecided"
    assert decide([-0.1] * 9, 0.01, alpha(1)) == "keep"
    assert decide([0.1] * 5, 0.01, alpha(1)) == "undecided"
    assert decide([0.1] * 6, 0.01, alpha(1)) == "discard"
    assert decide([-0.005] * 6, 0.01, alpha(1)) == "discard", "shown to be smaller than what is useful"
    assert decide([-0.1, 0.1] * 20, 0.01, alpha(1)) == "undecided"
    assert decide([-0.1, 0.1] * 20, 1.0, alpha(1)) == "discard"
    assert decide([-1e-7] * 30, 0.01, alpha(1)) == "discard", "rounding is no improvement"


def campaign():
    """The module tests/campaigns/gate.py."""
    path = Path(__file__).parents[1] / "campaigns" / "gate.py"
    spec = importlib.util.spec_from_file_location("gate_campaign", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_night_of_tries_keeps_noise_if_greedy_and_not_by_the_gate_which_finds_true_gains():
    module = campaign()
    law = module.LAWS["normal"]
    none = module.nights(law, 1.0, 0.0, 1000, 1, ("greedy", "gate"))
    assert none["greedy"]["kept_in_a_night"] > 40 and none["gate"]["nights_with_a_keep"] <= 0.2  # of 10 nights
    for gain, least, most in ((2.0, 0.98, 20), (4.0, 1.0, 15)):
        found = module.nights(law, 1.0, gain, 200, 1, ("gate",))["gate"]
        assert found["kept"] >= least and found["seeds"] <= most


def test_a_t_test_in_its_place_would_keep_differences_in_two_lumps():
    module = campaign()
    found = module.nights(module.LAWS["two lumps"], 0.07, 0.0, 400, 1, ("gate", "t-test"))
    assert found["t-test"]["nights_with_a_keep"] >= 0.5 > found["gate"]["nights_with_a_keep"]


def add_try(tries: Tries, differences: list[float], decision: str = "") -> None:
    n = len(tries.tries) + 1
    tries.append({"record": "try", "try": n, "alpha": alpha(n), "key": f"k{n}", "gain": 0.01, "unit": "bits per byte"})
    for i, difference in enumerate(differences, start=1):
        for arm, loss in (("new", 1 + difference), ("best", 1.0)):
            made = {"record": "training", "try": n, "seed": 1000 * n + i, "arm": arm, "loss": loss}
            tries.append({**made, "seconds": 0.1, "diverged": False})
    if decision:
        tries.append({"record": "decision", "try": n, "seeds": len(differences), "decision": decision})


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "best.trials.jsonl"
    with Tries(path) as tries:
        assert not path.exists()
        add_try(tries, [0.1] * 6, "discard")
        add_try(tries, [-0.1] * 9, "keep")
    return path


def test_a_ledger_is_read_as_it_was_written_and_half_a_line_is_cut_off(ledger):
    whole = ledger.read_bytes()
    ledger.write_bytes(whole + b'{"record":"try","tr')
    with Tries(ledger) as tries:
        assert [tries.decided[n]["decision"] for n in (1, 2)] == ["discard", "keep"]
        assert tries.pairs(1)[0] == (1001, 1.1, 1.0) and tries.find("k2")["try"] == 2 and tries.find("k3") is None
        add_try(tries, [0.1])
    assert ledger.read_bytes().startswith(whole) and ledger.read_bytes().endswith(b"\n")
    with Tries(ledger) as tries:
        assert len(tries.tries) == 3 and len(tries.pairs(3)) == 1


@pytest.mark.parametrize("change", ["loss", "left out", "again", "order", "alpha", "decision", "not JSON"])
def test_a_ledger_that_somebody_changed_is_refused(ledger, change):
    lines = ledger.read_text().splitlines(keepends=True)
    changed = {
        "loss": [lines[0], lines[1].replace("1.1", "0.9"), *lines[2:]],
        "left out": lines[:3] + lines[4:],
        "again": [*lines, lines[-1]],
        "order": [lines[0], lines[2], lines[1], *lines[3:]],
        "alpha": [lines[0].replace("0.0045", "0.0450"), *lines[1:]],
        "decision": [*lines[:-1], lines[-1].replace('"keep"', '"discard"')],
        "not JSON": [lines[0], "[]\n", *lines[1:]],
    }[change]
    assert changed != lines
    ledger.write_text("".join(changed))
    with pytest.raises(DamagedFileError, match=r"line \d+ of .* is not what was written"):
        Tries(ledger)


@pytest.mark.parametrize(("made", "decision"), [([0.1] * 6, "keep"), ([0.1] * 5, "discard"), ([-0.1] * 9, "undecided")])
def test_a_decision_that_the_losses_do_not_lead_to_is_refused_even_with_the_right_hashes(tmp_path, made, decision):
    with Tries(tmp_path / "t.jsonl") as tries, pytest.raises(DamagedFileError):
        add_try(tries, made, decision)


def test_one_process_at_a_time(ledger):
    with Tries(ledger), pytest.raises(RunFolderError, match="another qkv trial"):
        Tries(ledger)


def test_every_line_is_json_with_the_hash_of_the_line_before(ledger):
    rows = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert rows[0]["before"] == "" and len({row["before"] for row in rows}) == len(rows)
