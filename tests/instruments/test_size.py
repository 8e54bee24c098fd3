"""What a long run of a deep model leaves on disk, and how soon a series of it is read."""

import time

import numpy as np
import pytest

from qkv.instruments.measurements import Measurements
from qkv.instruments.registry import AT_REST, LIGHT
from qkv.instruments.schedule import LEVELS
from qkv.models.matrices import Catalogue
from qkv.telemetry import Store, Telemetry

STEPS = 5000


@pytest.mark.slow
def test_a_run_of_5000_steps_and_6_layers_is_below_50_mb_and_any_series_below_50_ms(model, tmp_path):
    """Real looks at a narrow model at every step of the default schedule: rows depend on layers and heads only."""
    catalogue = Catalogue(model(d_vocab=4096, d_model=48, n_layers=6, n_heads=6, n_ctx=16, bias=False, mlp="swiglu"))
    watching, path = LEVELS["light"], tmp_path / "telemetry.sqlite"
    with Store(path) as store:
        looks = Measurements(store, catalogue, catalogue.state())
        for step in range(STEPS + 1):
            store.add_step(step, tokens=step, loss=1.0 / 3, lr=1.0 / 7, grad_norm=2.0 / 3)
            if not watching.wants(step):
                continue
            looks.passes.before_update()
            for entry in looks.entries:
                entry.parameter.data.mul_(1.001)
            reading = looks.passes.after_update() if step else looks.passes.at_rest()
            looks.matrices(step, LIGHT if step else AT_REST, reading)
            if watching.is_due("circuits", step):
                looks.circuits(step, updated=step > 0)
            if watching.is_due("head_spectra", step):
                looks.head_spectra(step)
            if watching.is_due("attention", step):
                patterns = [f"L{layer}.H{head}.pattern" for layer in range(6) for head in range(6)]
                for name in ("entropy", "largest_score", "own_mass", "previous_mass", "first_mass", "distance"):
                    store.add_values(step, name, patterns, np.full(36, 1 / 3).tolist())
            if watching.is_due("rows", step):
                looks.rows(step)
    size = path.stat().st_size
    print(f"{size / 1e6:.1f} MB, {looks.n_numbers:,} numbers")
    assert size < 50e6
    with Telemetry(path) as telemetry:
        slowest = 0.0
        for address, measure in (("L0.W_Q", "drift"), ("L5.H5.W_V", "turn"), ("L3.H2.QK", "norm"), ("W_E", "norm")):
            times = []
            for _ in range(5):
                began = time.process_time()
                series = telemetry.series(address, measure)[address]
                times.append(time.process_time() - began)
            assert len(series.step) >= (40 if address.endswith("QK") else 60), "circuits are looked at less often"
            slowest = max(slowest, min(times))
        print(f"slowest series {1e3 * slowest:.1f} ms of processor time")
        assert slowest < 0.05
