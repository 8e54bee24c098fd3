"""The ledger closes against the loss, falls apart into heads and rows exactly, and never touches the training."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from qkv.errors import ConfigError, Interrupted
from qkv.instruments.ledger import EARNED, Account, Ledger, LedgerConfig
from qkv.models.matrices import Catalogue
from qkv.randomness import generator
from qkv.tasks import Batch
from qkv.tasks.causal import Causal
from qkv.telemetry import LEDGER_ARM, Store, Telemetry
from qkv.training.record import Observer

EVERY = LedgerConfig(every=1)
CHECKPOINTS = (8, 16, 17, 32, 34, 40)
"""Of a training of 40 steps: its snapshots, its validations and its end."""
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5], [5, 3, 5, 8, 9, 7, 9, 3, 1]])
BATCH = Batch(IDS[:, :-1], IDS[:, 1:].flatten())


def moved(model, size: float = 0.05):
    """Weights some way off the model's, generic."""
    return [
        e.parameter.detach()
        + size * torch.from_numpy(generator("ledger", e.address).normal(size=e.parameter.shape)).to(e.parameter)
        for e in Catalogue(model)
    ]


def ledger_of(path):
    with Telemetry(path / "telemetry.sqlite") as telemetry:
        losses = telemetry.evaluations(arm=LEDGER_ARM)
        grid = telemetry.grid("earned", "**,**.H*.**")
        rows = {address: telemetry.vectors(address, "earned_rows") for address in ("W_E", "W_U")}
        rows |= {f"{a} gradient": telemetry.vectors(a, "row_gradient") for a in ("W_E", "W_U")}
        return losses, dict(zip(grid.addresses, grid.value, strict=True)), rows


@pytest.mark.parametrize("changes", [{}, {"tied": True, "norm_place": "post", "n_kv_heads": 2}])
def test_a_straight_move_earns_what_gauss_legendre_says(model, changes):
    """An oracle of another kind: 12-point Gauss-Legendre over plain autograd, in float64."""
    model = model(**changes).double()
    to, catalogue = moved(model), Catalogue(model)
    start = [e.parameter.detach().clone() for e in catalogue]
    account = Account(model, Causal().loss, BATCH, LedgerConfig(panels=24, most_panels=24))
    account.begin(start)
    first = account.loss
    earned = account.move(to)
    expected = [torch.zeros_like(s) for s in start]
    for node, weight in zip(*np.polynomial.legendre.leggauss(12), strict=True):
        with torch.no_grad():
            for e, a, b in zip(catalogue, start, to, strict=True):
                e.parameter.copy_(a + (b - a) * (1 + node) / 2)
        nats, n = Causal().loss(model, BATCH)
        grads = torch.autograd.grad(nats / n, [e.parameter for e in catalogue])
        for total, g, a, b in zip(expected, grads, start, to, strict=True):
            total += g * (b - a) * weight / 2
    for mine, other in zip(earned, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-8)
    assert sum(float(part.sum()) for part in earned) == pytest.approx(account.loss - first, rel=1e-6)


def test_simpson_s_error_falls_with_the_fourth_power_of_a_panel(model):
    model = model().double()
    errors = []
    for panels in (2, 4, 8):
        account = Account(model, Causal().loss, BATCH, LedgerConfig(panels=panels, most_panels=panels))
        account.begin([e.parameter for e in Catalogue(model)])
        first, earned = account.loss, account.move(moved(model, 0.1))
        errors.append(abs(sum(float(part.sum()) for part in earned) - (account.loss - first)))
    assert errors[1] < errors[0] / 8 and errors[2] < errors[1] / 8


def test_panels_are_doubled_until_an_entry_closes_and_no_node_is_computed_twice(model):
    model = model().double()
    to, catalogue = moved(model, 0.1), Catalogue(model)
    found = {}
    for name, config in (
        ("grown", LedgerConfig(panels=1, most_panels=8)),
        ("fixed", LedgerConfig(panels=8, most_panels=8)),
        ("one", LedgerConfig(panels=1, most_panels=1)),
    ):
        account = Account(model, Causal().loss, BATCH, config)
        account.begin([e.parameter for e in catalogue])
        found[name] = account.move(to, 0.0), account.n_passes
    assert found["grown"][1] == found["fixed"][1] == 17 and found["one"][1] == 3
    for grown, fixed in zip(found["grown"][0], found["fixed"][0], strict=True):
        torch.testing.assert_close(grown, fixed, rtol=1e-12, atol=1e-15)
    account = Account(model, Causal().loss, BATCH, LedgerConfig(most_panels=64))
    account.begin([e.parameter for e in catalogue])
    first, earned = account.loss, account.move(to, 1e-4)
    assert abs(sum(float(part.sum()) for part in earned) - (account.loss - first)) <= 1e-4
    assert 3 <= account.n_passes < 129


def test_on_every_step_it_closes_to_a_thousandth_of_the_loss_change(training):
    run = training(clip=0.0)
    run(40, ledger=EVERY)
    losses, earned, rows = ledger_of(run.path)
    assert [e.step for e in losses] == list(range(41))
    fall = losses[-1].loss - losses[0].loss
    matrices = {a: v for a, v in earned.items() if ".H" not in a}
    assert set(matrices) == set(run.catalogue.addresses)
    closed = sum(values.sum() for values in matrices.values())
    assert fall < -0.3
    assert abs(closed - fall) <= 1e-3 * abs(fall)
    for address in ("L0.W_Q", "L1.W_O", "L0.b_K"):
        heads = sum(v for a, v in earned.items() if a.endswith(address[2:]) and a.startswith(f"{address[:2]}.H"))
        np.testing.assert_allclose(heads, earned[address], rtol=1e-9, atol=1e-12)
    for table in ("W_E", "W_U"):
        assert list(rows[table]) == [1, 2, 4, 8, 16, 32, 40]
        for step, values in rows[table].items():
            assert values.sum() == pytest.approx(earned[table][:step].sum(), rel=1e-9, abs=1e-12)
    assert not rows["W_E"][40][12:].any()  # the last two tokens are never seen
    seen = rows["W_E gradient"][40]
    assert (seen[:12] > 0).all() and not seen[12:].any() and (rows["W_U gradient"][40] > 0).all()
    with Telemetry(run.path / "telemetry.sqlite") as telemetry:
        first = telemetry.series("W_E", "grad_norm")["W_E"].value[0]
    total = np.linalg.norm(rows["W_E gradient"][1])
    assert total == pytest.approx(first, rel=1e-5)


def test_the_ledger_changes_nothing(training):
    states = []
    for config in (None, EVERY, LedgerConfig(every=3, panels=2)):
        run = training()
        states.append({a: t.clone() for a, t in run(20, ledger=config).state().items()})
    assert all(states[0][a].equal(other[a]) for other in states[1:] for a in states[0])


class StopAt(Observer):
    """Interrupts a training as Ctrl-C would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def wants(self, step: int) -> bool:
        return step == self.step

    def after_update(self, record) -> None:
        import signal

        signal.raise_signal(signal.SIGINT)


def test_after_an_interrupt_and_a_resume_its_rows_are_those_of_an_undisturbed_run(training):
    whole, broken = training(), training()
    whole(30, ledger=EVERY)
    with pytest.raises(Interrupted):
        broken(30, ledger=EVERY, observers=(StopAt(13),))
    broken(30, ledger=EVERY, resume=True)
    (losses, earned, rows), (losses_2, earned_2, rows_2) = ledger_of(whole.path), ledger_of(broken.path)
    assert losses == losses_2
    assert all(np.array_equal(earned[a], earned_2[a]) for a in earned) and earned.keys() == earned_2.keys()
    for table in rows:
        assert list(rows[table]) == list(rows_2[table])
        assert all(np.array_equal(rows[table][s], rows_2[table][s]) for s in rows[table])


class DieAt(StopAt):
    """Ends a training as kill would: nothing is saved."""

    def after_update(self, record) -> None:
        raise RuntimeError("killed")


def test_after_a_kill_a_longer_interval_is_whole_again(training):
    whole, broken = training(), training()
    config = LedgerConfig(every=12, panels=4)
    whole(40, ledger=config)
    with pytest.raises(RuntimeError, match="killed"):
        broken(40, ledger=config, observers=(DieAt(20),))
    broken(40, ledger=config, resume=True)  # from step 17, within an interval
    assert broken.outcome.resumed_from_step == 17
    (losses, earned, rows), (losses_2, earned_2, rows_2) = ledger_of(whole.path), ledger_of(broken.path)
    assert losses == losses_2 and earned.keys() == earned_2.keys()
    assert all(np.array_equal(earned[a], earned_2[a]) for a in earned)
    for table in rows:
        assert all(np.array_equal(rows[table][s], rows_2[table][s]) for s in rows[table])
    fall = losses[-1].loss - losses[0].loss
    assert sum(v.sum() for a, v in earned_2.items() if ".H" not in a) == pytest.approx(fall, rel=1e-3)


class Context(Observer):
    """Keeps what `on_start` was told."""

    def on_start(self, context) -> None:
        self.context = context


def test_after_a_rollback_to_the_start_it_still_says_what_its_numbers_are(training):
    run, kept = training(), Context()
    run(1, observers=(kept,))
    with Store(run.path / "telemetry.sqlite") as store:
        ledger = Ledger(store, EVERY)
        for _ in range(2):
            ledger.on_start(kept.context)
            store.drop_after(-1)  # as the recorder does
            ledger.after_update(SimpleNamespace(step=1, catalogue=kept.context.catalogue))
    with Telemetry(run.path / "telemetry.sqlite") as telemetry:
        assert {m.name: m for m in telemetry.measures()}["earned"] == EARNED


def test_a_longer_interval_with_more_panels_closes_too(training):
    errors = {}
    for panels in (1, 8):
        run = training()
        run(40, ledger=LedgerConfig(every=20, panels=panels, most_panels=panels))
        losses, earned, _ = ledger_of(run.path)
        assert [e.step for e in losses] == sorted({0, 20, *CHECKPOINTS})
        fall = losses[-1].loss - losses[0].loss
        errors[panels] = abs(sum(v.sum() for a, v in earned.items() if ".H" not in a) - fall) / abs(fall)
    assert errors[8] < 1e-3 and errors[8] < errors[1]


@pytest.mark.parametrize("every", [25, 64])
def test_the_last_entry_is_the_last_updates_wherever_it_falls(training, every):
    run = training()
    run(40, ledger=LedgerConfig(every=every, panels=8))
    losses, earned, rows = ledger_of(run.path)
    assert [e.step for e in losses] == sorted({0, *range(every, 40, every), *CHECKPOINTS})
    fall = losses[-1].loss - losses[0].loss
    assert sum(v.sum() for a, v in earned.items() if ".H" not in a) == pytest.approx(fall, rel=1e-3)
    assert max(rows["W_E"]) == 40


def test_what_it_is_and_what_it_cost_are_written_down(training):
    run = training()
    run(8, ledger=EVERY)
    with Telemetry(run.path / "telemetry.sqlite") as telemetry:
        assert telemetry.fact("ledger.probe") == {"every": 1, "windows": 8, "targets": 8 * 16}
        assert telemetry.fact("ledger")["seconds"] > 0 and telemetry.fact("ledger")["passes"] >= 2 * 8 + 1
        assert {m.name: m for m in telemetry.measures()}["earned"] == EARNED
        assert LEDGER_ARM not in [arm.arm for arm in telemetry.arms()]  # it is no training of its own


@pytest.mark.parametrize(
    "wrong", [{"every": -1}, {"panels": 0}, {"most_panels": 0}, {"windows": 0}, {"tolerance": -1.0}]
)
def test_a_setting_out_of_range_is_refused(wrong):
    with pytest.raises(ConfigError, match=f"ledger.{next(iter(wrong))} is"):
        LedgerConfig(**wrong)


def test_a_ledger_that_is_off_is_not_made():
    with pytest.raises(AssertionError):
        Ledger(None, LedgerConfig())
