"""The measures of one address as a table: the random-label control is compared at an equal step, what is
undefined is a dash."""

import pytest

from qkv.commands.printing.measures import measured
from qkv.tasks import find_task
from qkv.telemetry import NULL_ARM, RUN_ARM, AddressRow, Store, Telemetry

AT = ["L0.W_Q", "L0.H1.QK"]
TASK = find_task("causal")


@pytest.fixture
def telemetry(tmp_path):
    with Store(tmp_path / "t.sqlite") as store:
        for step, drift in ((0, 0.0), (1, 0.1), (8, 0.2), (16, 0.4)):
            store.add_values(step, "drift", AT, [drift, 2 * drift])
            store.add_values(step, "alignment", AT, [None if step == 0 else 0.5, None])
            if step <= 8:
                store.add_values(step, "drift", AT, [3 * drift, 4 * drift], arm=NULL_ARM)
    with Telemetry(tmp_path / "t.sqlite") as opened:
        yield opened


def test_run_and_null_are_compared_at_the_last_step_that_both_have(telemetry):
    found = measured(telemetry, "L0.W_Q").as_json()
    assert found["null"]["drift"] == {"step": 8, "run": 0.2, "null": pytest.approx(0.6)}
    assert found["measures"]["drift"]["value"].tolist() == [0, 0.1, 0.2, 0.4]
    assert set(found["null"]) == {"drift"} and set(found["measures"]) == {"drift", "alignment"}


def test_what_is_undefined_is_a_dash_and_circuits_belong_to_the_function(telemetry, capsys):
    measured(telemetry, "L0.H1.QK").print()
    out = capsys.readouterr().out
    assert "function" in out and "parametrisation" not in out and "at step 8" in out
    control = "Compared at step 8 with the random-label control (labels shuffled, frequencies kept)."
    assert out.splitlines()[-1] == control
    measured(telemetry, "L0.W_Q").print()
    line = next(line for line in capsys.readouterr().out.splitlines() if "alignment" in line)
    assert line.split()[1:5] == ["\u2014", "0.5000", "\u2014", "\u2014"]


def test_what_both_have_at_the_start_alone_is_no_comparison(tmp_path):
    with Store(tmp_path / "t.sqlite") as store:
        for arm, steps in ((RUN_ARM, (0, 64)), (NULL_ARM, (0,))):
            for step in steps:
                store.add_values(step, "spectral_norm", ["L0.H1.OV"], [1.0 + step], arm=arm)
    with Telemetry(tmp_path / "t.sqlite") as telemetry:
        found = measured(telemetry, "L0.H1.OV")
    assert [s.measure for s in found.series] == ["spectral_norm"] and not found.null and not found.compared


def test_a_step_in_between_shows_what_was_known_then(telemetry):
    found = measured(telemetry, "L0.W_Q", at=1)
    assert [s.step.tolist() for s in found.series if s.measure == "drift"] == [[0, 1]]
    assert found.null["drift"].step == 1
    assert measured(telemetry, "L9.W_Q").series == []


def test_a_pair_of_another_step_than_the_heading_s_says_so(tmp_path, capsys):
    with Store(tmp_path / "t.sqlite") as store:
        store.register_addresses([AddressRow(address="W_E", tied_to="W_U")])
        for arm in (RUN_ARM, NULL_ARM):
            store.add_values(8, "drift", ["W_E"], [0.25], arm=arm)
            store.add_values(4, "rotation", ["W_E"], [30.0], arm=arm)
    with Telemetry(tmp_path / "t.sqlite") as telemetry:
        for name in ("W_E", "W_U"):  # the two names of one matrix
            measured(telemetry, name).print()
            lines = capsys.readouterr().out.splitlines()
            assert "at step 8" in lines[0]
            drift, rotation = (next(line for line in lines if word in line) for word in ("drift", "rotation"))
            assert "(step 4)" in rotation and "step" not in drift
