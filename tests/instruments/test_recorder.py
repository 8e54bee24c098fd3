"""The recorder in a real training: it changes nothing, forgets nothing, and writes the same rows after a resume."""

import signal
import sqlite3

import numpy as np
import pytest
import torch

from qkv.errors import AddressError, ConfigError, Interrupted
from qkv.instruments import LIGHT, MEASURES, SPECTRAL, Recorder, measures
from qkv.instruments.schedule import is_by_head, is_by_row, is_recorded, is_spectral
from qkv.telemetry import NULL_ARM, Store, Telemetry
from qkv.training.record import Observer

N_SEEN, D_VOCAB = 12, 14
STEPPED = (
    "arms",
    "addresses",
    "measures",
    "steps",
    "evaluations",
    "measurements",
    "recorded",
    "vectors",
    "facts",
    "events",
)


def content(path):
    connection = sqlite3.connect(path / "telemetry.sqlite")
    try:
        return {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in STEPPED}
    finally:
        connection.close()


def opened(path):
    return Telemetry(path / "telemetry.sqlite")


class Keeper(Observer):
    """Keeps copies of weights, gradients and norms at every update: the oracle."""

    def __init__(self):
        self.weights, self.grads, self.total = {}, {}, {}

    def on_start(self, context):
        self.weights[context.start_step] = {a: t.clone() for a, t in context.catalogue.state().items()}

    def wants(self, step):
        return True

    def before_update(self, record):
        grads = {entry.address: entry.parameter.grad for entry in record.catalogue}
        self.grads[record.step] = {a: None if g is None else g.clone() for a, g in grads.items()}
        self.total[record.step] = record.grad_norm

    def after_update(self, record):
        self.weights[record.step] = {a: t.clone() for a, t in record.catalogue.state().items()}


class StopAt(Observer):
    """Ctrl-C at a step."""

    def __init__(self, step):
        self.step = step

    def wants(self, step):
        return step == self.step

    def after_update(self, record):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("level", ["light", "full"])
def test_watching_changes_no_bit_of_the_weights(training, level):
    plain, watched = training()(level="off"), training()(level=level)
    for address, values in plain.state().items():
        assert torch.equal(values, watched.state()[address]), address


def test_every_number_is_that_of_the_weights_and_gradients_of_its_step(training):
    run, keeper = training(clip=0.05), Keeper()
    run(32, observers=(keeper,))
    assert any(total > 0.05 for total in keeper.total.values()), "nothing was clipped, so this test shows too little"
    start = keeper.weights[0]
    with opened(run.path) as telemetry:
        for address in ("W_E", "L0.W_Q", "L1.W_O", "L0.b_K", "norm_f.gain", "W_U"):
            got = {m: telemetry.series(address, m)[address] for m in LIGHT}
            for step in (1, 2, 16, 24, 32):
                at = {m: series.value[series.step == step] for m, series in got.items()}
                now, before = keeper.weights[step][address], keeper.weights[step - 1][address]
                seen = np.sqrt(sum(measures.norm(g) ** 2 for g in keeper.grads[step].values()))
                unclipped = keeper.total[step] / seen if keeper.total[step] > 0.05 else 1.0
                expected = {
                    "norm": measures.norm(now),
                    "grad_norm": measures.norm(keeper.grads[step][address]) * unclipped,
                    "update_ratio": measures.update_ratio(before, now),
                    "drift": measures.drift(now, start[address]),
                    "turn": measures.turn(now, start[address]),
                }
                for name, value in expected.items():
                    if value is None:
                        assert not len(at[name])
                        continue
                    exactness = {"rel": 1e-4, "abs": 1e-3} if name == "turn" else {"rel": 2e-6}
                    assert at[name] == pytest.approx([value], **exactness), (address, step, name)


def test_gradient_norms_of_all_matrices_make_the_whole_gradient_norm_before_clipping(training):
    run = training(clip=0.05)
    run(16)
    with opened(run.path) as telemetry:
        grid, steps = telemetry.grid("grad_norm"), telemetry.steps()
        total = np.sqrt((grid.value**2).sum(axis=0))
        assert grid.step.tolist() == list(range(1, 17))
        np.testing.assert_allclose(total, steps.grad_norm, rtol=1e-5)
        assert (steps.grad_norm > 0.05).any()


def test_every_entry_is_measured_at_every_step_of_the_schedule_and_at_evaluations(training):
    run = training()
    catalogue = run(40)
    with opened(run.path) as telemetry:
        for name in LIGHT:
            assert telemetry.grid(name).addresses == tuple(catalogue.addresses)
        updates = [step for step in range(1, 41) if is_recorded(step)]
        assert telemetry.recorded_steps("grad_norm").tolist() == updates
        evaluated = [evaluation.step for evaluation in telemetry.evaluations()]
        assert set(evaluated) - set(updates), "no evaluation off the schedule, so this test shows too little"
        assert telemetry.recorded_steps("drift").tolist() == sorted({0, *updates, *evaluated})
        assert telemetry.steps().step.tolist() == list(range(1, 41))


def test_step_zero_has_the_start_and_no_update(training):
    run = training()
    run(4)
    with opened(run.path) as telemetry:
        start = {row.about.address: row.values for row in telemetry.latest(at=0)}
    for address, values in start.items():
        assert set(values) == {"norm", "drift", "turn"}, address
        assert values["drift"] == 0 and values["turn"] in (0, None)


def test_a_zero_started_output_gives_q_k_and_v_no_gradient_in_the_first_update(training):
    run = training(bias=False)
    run(2)
    with opened(run.path) as telemetry:
        for address in ("L0.W_Q", "L0.W_K", "L0.W_V"):
            series = telemetry.series(address, "grad_norm")[address]
            assert series.value[0] == 0 and series.step[0] == 1


def test_a_killed_and_resumed_run_ends_with_the_rows_of_an_undisturbed_one(training):
    whole, broken = training(), training()
    whole(40, level="full")
    with pytest.raises(Interrupted):
        broken(40, level="full", observers=(StopAt(22),))
    assert len(content(broken.path)["steps"]) == 22
    with Store(broken.path / "telemetry.sqlite") as store:  # what a kill after the checkpoint would have left behind
        for step in (23, 24):
            store.add_step(step, tokens=0, loss=9.0, lr=9.0, grad_norm=9.0)
            store.add_values(step, "drift", ["W_E", "L9.W_Q"], [9.0, 9.0])
            store.add_event(step, "spike", "never happened")
    broken(40, level="full", resume=True)
    expected, got = content(whole.path), content(broken.path)
    for table in STEPPED:
        assert got[table] == expected[table], table
    for address, values in whole.catalogue.state().items():
        assert torch.equal(values, broken.catalogue.state()[address]), address


def test_a_resume_without_the_weights_of_step_zero_goes_on_without_drift(training):
    run = training()
    with pytest.raises(Interrupted):
        run(40, observers=(StopAt(22),))
    (run.path / "checkpoints" / "step-00000000" / "model.safetensors").unlink()
    run(40, resume=True)
    with opened(run.path) as telemetry:
        assert telemetry.series("L0.W_Q", "drift")["L0.W_Q"].step.max() <= 22
        assert telemetry.series("L0.W_Q", "norm")["L0.W_Q"].step.max() == 40
        assert any("step 0 are gone" in session.sentence for session in telemetry.sessions())


def test_a_second_start_from_step_zero_leaves_nothing_of_the_first(training):
    run = training()
    run(24, arm=NULL_ARM)
    first = content(run.path)
    run(24, arm=NULL_ARM)
    assert content(run.path) == first


def test_the_null_is_written_beside_the_run_at_equal_steps(training):
    run = training()
    run(24)
    run(8, arm=NULL_ARM)
    with opened(run.path) as telemetry:
        pairs = telemetry.against_null("drift")
        assert {pair.step for pair in pairs} == {8}
        assert {pair.address for pair in pairs} == {row.address for row in telemetry.addresses()}
        assert telemetry.evaluations(NULL_ARM) == []
        assert telemetry.steps(NULL_ARM).step.tolist() == list(range(1, 9))
        assert set(telemetry.vectors("W_E", "row_drift", arm=NULL_ARM)) == {0, 1, 2, 4, 8}


def test_rows_never_seen_moved_exactly_zero_and_all_others_moved(training):
    run = training()
    run(40)
    with opened(run.path) as telemetry:
        counts, drifts = telemetry.vector("W_E", "row_count"), telemetry.vector("W_E", "row_drift")
        assert counts.tolist()[N_SEEN:] == [0, 0] and (counts[:N_SEEN] > 0).all()
        assert counts.sum() == telemetry.fact("tokens_counted")["counted"] == 3600
        assert drifts.tolist()[N_SEEN:] == [0, 0] and (drifts[:N_SEEN] > 0).all()
        assert set(telemetry.vectors("W_E", "row_drift")) == {s for s in range(41) if is_by_row(s)} | {40}
        assert (telemetry.vector("W_U", "row_drift") > 0).all()


def test_rows_never_seen_move_where_the_table_is_tied_and_it_says_so(training):
    run = training(tied=True)
    run(16)
    with opened(run.path) as telemetry:
        assert (telemetry.vector("W_E", "row_drift")[N_SEEN:] > 0).all()
        assert next(row for row in telemetry.addresses() if row.address == "W_E").tied_to == "W_U"
        assert "W_U" not in telemetry.grid("drift").addresses


def test_full_records_heads_circuits_and_spectra(training):
    run = training(n_kv_heads=2)
    catalogue = run(40, level="full")
    with opened(run.path) as telemetry:
        heads = telemetry.grid("drift", "L0.H*.W_Q")
        assert heads.addresses == tuple(f"L0.H{h}.W_Q" for h in range(4))
        assert heads.step.tolist() == telemetry.recorded_steps("drift").tolist()
        assert telemetry.grid("norm", "L1.KV*.W_K").addresses == ("L1.KV0.W_K", "L1.KV1.W_K")
        assert telemetry.recorded_steps("effective_rank").tolist() == [s for s in range(41) if is_by_head(s)]
        final = {row.about.address: row for row in telemetry.latest("**,**.H*.**,**.KV*.**")}
        for address in ("L0.H3.QK", "L1.H0.OV"):
            circuit, values = catalogue.circuit(address), final[address].values
            at = telemetry.recorded_steps("spectral_norm")[-1]
            assert at == 32 and final[address].about.shape == (16, 16)
            assert set(values) == {"norm", *SPECTRAL}, values
        top = telemetry.vector("L1.W_in", "singular_values", at=32)
        assert set(telemetry.vectors("L1.W_in", "singular_values")) == {s for s in range(41) if is_spectral(s)}
        assert top.shape == (8,) and (np.diff(top) <= 0).all()
        assert circuit.singular_values().shape == (4,)


def test_spectra_recorded_are_those_of_the_weights(training):
    run, keeper = training(), Keeper()
    run(32, level="full", observers=(keeper,))
    now = keeper.weights[32]
    with opened(run.path) as telemetry:
        table = {row.about.address: row.values for row in telemetry.latest("**,**.H*.**", at=32)}
    for name in SPECTRAL:
        assert table["L0.W_in"][name] == pytest.approx(MEASURE[name](now["L0.W_in"]), rel=1e-6)
        assert table["L1.H2.W_V"][name] == pytest.approx(MEASURE[name](now["L1.W_V"][:, 8:12]), rel=1e-6)
        product = now["L1.W_V"][:, 8:12].double() @ now["L1.W_O"][8:12].double()
        assert table["L1.H2.OV"][name] == pytest.approx(MEASURE[name](product), rel=1e-5)
    assert table["L1.H2.OV"]["norm"] == pytest.approx(measures.norm(product), rel=1e-6)


MEASURE = {name: getattr(measures, name) for name in SPECTRAL}


def test_off_keeps_losses_and_measures_nothing(training):
    run = training()
    run(8, level="off")
    with opened(run.path) as telemetry:
        assert len(telemetry.steps().step) == 8 and telemetry.evaluations()
        assert telemetry.addresses() == telemetry.measures() == telemetry.latest() == []
        with pytest.raises(AddressError, match="no measure"):
            telemetry.series("W_E", "drift")


def test_an_unknown_level_is_refused_with_the_nearest(tmp_path):
    with Store(tmp_path / "t.sqlite") as store, pytest.raises(ConfigError, match="'light'"):
        Recorder(store, "lite")


def test_what_watching_cost_is_written_down_and_kept_apart_from_the_steps(training):
    run = training()
    run(24)
    with opened(run.path) as telemetry:
        cost = telemetry.fact("watch")
        looks = len(telemetry.recorded_steps("drift"))
        assert cost["level"] == "light" and cost["looks"] == looks and 0 < cost["seconds"] < run.outcome.train_seconds
        assert cost["share"] == pytest.approx(cost["seconds"] / run.outcome.train_seconds, abs=1e-4)
        assert telemetry.clock().watch_seconds[-1] == pytest.approx(cost["seconds"], abs=1e-3)
        assert telemetry.sessions()[-1].sentence == "stopped because: steps"


def test_evaluations_hold_the_mean_training_loss_since_the_last(training):
    run = training()
    run(40)
    with opened(run.path) as telemetry:
        evaluations, steps = telemetry.evaluations(), telemetry.steps()
        assert len(evaluations) >= 3
        for before, after in zip(evaluations, evaluations[1:], strict=False):
            span = (steps.step > before.step) & (steps.step <= after.step)
            assert after.train_loss == pytest.approx(steps.loss[span].mean(), rel=1e-12)
            assert after.bits_per_byte == pytest.approx(after.loss / np.log(2), rel=1e-9)


def test_measures_in_the_file_are_those_of_the_registry(training):
    run = training()
    run(2)
    with opened(run.path) as telemetry:
        assert [row.name for row in telemetry.measures()] == list(MEASURES)
