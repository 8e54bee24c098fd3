"""The recorder in a real training: it changes nothing, forgets nothing, and writes the same rows after a resume."""

import signal
import sqlite3

import numpy as np
import pytest
import torch

from qkv.errors import AddressError, ConfigError, Interrupted
from qkv.instruments import CIRCUIT, LEVELS, LIGHT, MEASURES, SPECTRAL, Recorder, WatchConfig, measures
from qkv.instruments.attention_stats import STATISTICS
from qkv.instruments.probe import TOKENS
from qkv.instruments.registry import AT_REST
from qkv.models.layout import RopeScaling
from qkv.tasks.causal import Causal
from qkv.telemetry import NULL_ARM, Store, Telemetry
from qkv.training.record import Observer

N_SEEN, D_VOCAB = 12, 14
ALL = "**,**.H*.**,**.KV*.**"


def due(kind, steps, level="light"):
    return [step for step in range(steps + 1) if LEVELS[level].is_due(kind, step)]


def looked_at(steps, level="light"):
    return [step for step in range(1, steps + 1) if LEVELS[level].wants(step)]


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


EVERY_STEP = WatchConfig(matrices=1, circuits=1, attention=1, head_spectra=1, matrix_spectra=1)


@pytest.mark.parametrize(
    "watching",
    [LEVELS["light"], LEVELS["full"], WatchConfig(matrices=64, circuits=0, attention=0, head_spectra=0), EVERY_STEP],
)
def test_watching_changes_no_bit_of_the_weights(training, watching):
    plain, watched = training()(level="off"), training()(watching=watching)
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
        updates = looked_at(40)
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
        assert set(values) == set(AT_REST), address
        assert values["drift"] == 0 and values["turn"] in (0, None)


def test_a_zero_started_output_gives_q_k_and_v_no_gradient_in_the_first_update(training):
    run = training(bias=False)
    run(2)
    with opened(run.path) as telemetry:
        for address in ("L0.W_Q", "L0.W_K", "L0.W_V"):
            series = telemetry.series(address, "grad_norm")[address]
            assert series.value[0] == 0 and series.step[0] == 1


@pytest.mark.parametrize("model", [{}, dict(d_model=32, n_heads=2, start="gpt2")], ids=["small", "followed"])
def test_a_killed_and_resumed_run_ends_with_the_rows_of_an_undisturbed_one(training, model):
    whole, broken = training(**model), training(**model)  # directions are followed from d_head 9 and W_O not 0 on
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


def test_a_finished_run_that_is_resumed_keeps_every_number(training):
    run = training()
    run(32, watching=EVERY_STEP)  # what follows it may be stopped: then it is resumed
    before = content(run.path)
    run(32, watching=EVERY_STEP, resume=True)
    after = content(run.path)
    for table in STEPPED:
        assert after[table] == before[table], table
    with opened(run.path) as telemetry:
        assert telemetry.series("L0.H0.QK", "update_ratio")["L0.H0.QK"].step[-1] == 32


def test_a_validation_that_was_stopped_and_made_after_a_resume_erases_no_number_of_its_step(training):
    whole, broken = training(), training()
    whole(20, watching=EVERY_STEP)
    with pytest.raises(Interrupted):
        broken(20, watching=EVERY_STEP, observers=(StopAt(17),))  # where a validation is due
    with opened(broken.path) as telemetry:
        assert 17 not in [evaluation.step for evaluation in telemetry.evaluations()]
    broken(20, watching=EVERY_STEP, resume=True)
    expected, got = content(whole.path), content(broken.path)
    for table in STEPPED:
        assert got[table] == expected[table], table


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
        patterns = {row.address for row in telemetry.addresses() if row.kind == "pattern"}
        measured = {row.address for row in telemetry.addresses()} - patterns
        everything = {pair.address for pair in telemetry.against_null("drift", "**,**.H*.**")}
        assert everything == measured and len(patterns) == 8
        assert {pair.address for pair in telemetry.against_null("entropy", "**.H*.*")} == patterns
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
        assert set(telemetry.vectors("W_E", "row_drift")) == {*due("rows", 40), 40}
        assert (telemetry.vector("W_U", "row_drift") > 0).all()


def test_rows_never_seen_move_where_the_table_is_tied_and_it_says_so(training):
    run = training(tied=True)
    run(16)
    with opened(run.path) as telemetry:
        assert (telemetry.vector("W_E", "row_drift")[N_SEEN:] > 0).all()
        assert next(row for row in telemetry.addresses() if row.address == "W_E").tied_to == "W_U"
        assert "W_U" not in telemetry.grid("drift").addresses


def test_recorded_circuits_are_those_of_the_catalogue_where_positions_stretch_q_and_k(training):
    scaling = RopeScaling(kind="yarn", factor=4.0, slow=0.5, fast=2.0, original_ctx=6, stretch=1.2)
    run = training(rope_scaling=scaling)
    catalogue = run(8, level="full")
    with opened(run.path) as telemetry:
        for address in ("L0.H1.QK", "L1.H0.OV"):
            spectrum = catalogue.circuit(address).singular_values()
            for measure, expected in (("norm", spectrum.square().sum().sqrt()), ("spectral_norm", spectrum[0])):
                found = telemetry.grid(measure, address)
                assert found.step[-1] == 8 and found.value[0, -1] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("level", ["light", "full"])
def test_heads_and_circuits_are_recorded_at_their_steps(training, level):
    run = training(n_kv_heads=2, d_model=48, n_heads=4)
    run(40, level=level)
    with opened(run.path) as telemetry:
        heads = telemetry.grid("drift", "L0.H*.W_Q")
        assert heads.addresses == tuple(f"L0.H{h}.W_Q" for h in range(4))
        assert heads.step.tolist() == telemetry.recorded_steps("drift").tolist()
        assert telemetry.grid("norm", "L1.KV*.W_K").addresses == ("L1.KV0.W_K", "L1.KV1.W_K")
        assert telemetry.recorded_steps("symmetric_share").tolist() == sorted({*due("circuits", 40, level), 40})
        assert "participation_rank" in telemetry.latest("**.H*.W_Q")[0].values
        assert telemetry.recorded_steps("angle_to_k").tolist() == sorted({*due("head_spectra", 40, level), 40})
        assert telemetry.recorded_steps("entropy").tolist() == sorted({*due("attention", 40, level), 40})
        tops = telemetry.vectors("L1.W_in", "singular_values")
        assert set(tops) == ({*due("matrix_spectra", 40, level), 40} if level == "full" else set())
        for values in tops.values():
            assert values.shape == (8,) and (np.diff(values) <= 0).all()
        final = {row.about.address: row for row in telemetry.latest(ALL)}
        assert set(final["L0.H3.QK"].values) == {*CIRCUIT, *SPECTRAL, "rotation"}
        assert final["L0.H3.OV"].values["symmetric_share"] is None
        assert set(final["L1.H2.pattern"].values) == {*STATISTICS, "induction"}
        spectral = {*SPECTRAL, "participation_rank", "rotation"}
        assert set(final["L0.H1.W_Q"].values) == {*LIGHT, *spectral, "angle_to_k"}
        assert set(final["L0.W_Q"].values) == {*LIGHT, *(spectral if level == "full" else ())}


def test_numbers_of_heads_are_those_of_the_weights_gradients_and_optimizer_of_their_step(training):
    run, keeper = training(clip=0.05, d_model=48, n_heads=4, qk_norm=False), Keeper()
    run(32, level="full", observers=(keeper,))
    now, before, start, grads = keeper.weights[32], keeper.weights[31], keeper.weights[0], keeper.grads[32]
    seen = np.sqrt(sum(measures.norm(g) ** 2 for g in grads.values()))
    unclipped = keeper.total[32] / seen if keeper.total[32] > 0.05 else 1.0
    part = {
        "L0.H1.W_Q": ("L0.W_Q", (slice(None), slice(12, 24))),
        "L1.H2.W_O": ("L1.W_O", (slice(24, 36),)),
        "L1.H3.b_V": ("L1.b_V", (slice(36, 48),)),
        "L1.W_in": ("L1.W_in", (...,)),
        "W_E": ("W_E", (...,)),
    }
    with opened(run.path) as telemetry:
        table = {row.about.address: row.values for row in telemetry.latest("**,**.H*.**", at=32)}
    assert all(len(LIGHT) >= 8 and set(LIGHT) <= set(table[address]) for address in part)
    for address, (whole, at) in part.items():
        w, b, s, g = (kept[whole][at] for kept in (now, before, start, grads))
        v = run.optimizer_state[f"{whole}.exp_avg_sq"][at]
        expected = {
            "norm": measures.norm(w),
            "grad_norm": measures.norm(g) * unclipped,
            "update_ratio": measures.update_ratio(b, w),
            "drift": measures.drift(w, s, n_in=len(now[whole]) if w.ndim == 2 else 0),
            "turn": measures.turn(w, s),
            "alignment": measures.alignment(b, w, g),
            "onward": measures.onward(w, s, g),
            "descent": measures.descent(b, w, g) * unclipped,
            "second_moment": measures.second_moment(v, 32, 0.95),
        }
        if w.ndim == 2:
            expected |= {name: MEASURE[name](w) for name in SPECTRAL}
            expected["participation_rank"] = measures.participation_rank(w)
            if address != "W_E" or min(w.shape) > 8:
                expected["rotation"] = measures.rotation(w, s, 8)
        for name, value in expected.items():
            exactness = {
                "turn": {"abs": 1e-3},
                "alignment": {"abs": 1e-5},
                "onward": {"abs": 1e-5},
                "rotation": {"abs": 1e-3},
                "descent": {"rel": 1e-4},
            }
            got = table[address][name]
            assert got == (value if value is None else pytest.approx(value, **exactness.get(name, {"rel": 2e-6}))), (
                address,
                name,
            )


def test_numbers_of_circuits_are_those_of_the_whole_product(training):
    run, keeper = training(n_kv_heads=2, d_model=48, n_heads=4, qk_norm=False), Keeper()
    run(32, level="full", observers=(keeper,))
    with opened(run.path) as telemetry:
        table = {row.about.address: row.values for row in telemetry.latest(ALL, at=32)}

    def product(step, kind):
        w = keeper.weights[step]
        if kind == "QK":
            return w["L1.W_Q"][:, 36:48].double() @ w["L1.W_K"][:, 12:24].double().T
        return w["L1.W_V"][:, 12:24].double() @ w["L1.W_O"][36:48].double()

    for kind in ("QK", "OV"):
        now, before, start = (product(step, kind) for step in (32, 31, 0))
        expected = {
            "norm": measures.norm(now),
            "update_ratio": measures.update_ratio(before, now),
            "drift": measures.drift(now, start) if kind == "QK" else measures.norm(now - start) / np.sqrt(12),
            "turn": measures.turn(now, start),
            "participation_rank": measures.participation_rank(now),
            "symmetric_share": measures.symmetric_share(now) if kind == "QK" else None,
            "rotation": measures.rotation(now, start, 8) if kind == "QK" else None,  # W_O starts at zero
        }
        s = np.linalg.svd(now.numpy(), compute_uv=False)[:12]
        expected |= {"spectral_norm": s[0], "stable_rank": (s**2).sum() / s[0] ** 2}
        for name, value in expected.items():
            got = table[f"L1.H3.{kind}"][name]
            assert got == (value if value is None else pytest.approx(value, rel=1e-6, abs=1e-6)), (kind, name)
    w = keeper.weights[32]
    q, k, v = (w[f"L1.W_{m}"][:, at : at + 12] for m, at in (("Q", 36), ("K", 12), ("V", 12)))
    assert table["L1.H3.W_Q"]["angle_to_k"] == pytest.approx(measures.subspace_angle(q, k), abs=1e-6)
    assert table["L1.KV1.W_V"]["angle_to_k"] == pytest.approx(measures.subspace_angle(v, k), abs=1e-6)
    cosines = [np.cos(np.radians(measures.subspace_angle(v, w["L1.W_Q"][:, at : at + 12]))) for at in (24, 36)]
    both = np.degrees(np.arccos(np.sqrt(np.mean(np.square(cosines)))))
    assert table["L1.KV1.W_V"]["angle_to_q"] == pytest.approx(both, abs=1e-6)


def test_attention_recorded_is_that_of_the_weights_on_the_probe(training):
    run = training(n_kv_heads=2)
    run(24)
    model, corpus = run.catalogue.model, run.corpus
    batch = next(Causal().val_batches(corpus, model.sizes, TOKENS // model.sizes.n_ctx))
    _, record = model.forward_recorded(batch.inputs)
    with opened(run.path) as telemetry:
        table = {row.about.address: row.values for row in telemetry.latest("**.H*.*", at=24)}
    for layer in range(2):
        p = record[f"L{layer}.pattern"].detach().double().numpy()[:, :, 1:]
        entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1).mean((0, 2))
        scores = record[f"L{layer}.scores"].detach().amax((0, 2, 3)).numpy()
        for head in range(4):
            values = table[f"L{layer}.H{head}.pattern"]
            assert values["entropy"] == pytest.approx(entropy[head], abs=1e-4)
            assert values["first_mass"] == pytest.approx(p[:, head, :, 0].mean(), abs=1e-5)
            assert values["largest_score"] == pytest.approx(scores[head], abs=1e-4)
            assert 0 <= values["induction"] <= 1


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
        assert sum(cost["by_kind"].values()) == pytest.approx(cost["seconds"], abs=1e-3)
        assert cost["level"] == "light" and cost["looks"] == looks and 0 < cost["seconds"] < run.outcome.train_seconds
        rounded = 1e-4 / run.outcome.train_seconds  # seconds are kept to a tenth of a millisecond
        assert cost["share"] == pytest.approx(cost["seconds"] / run.outcome.train_seconds, abs=rounded)
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
