"""A run folder made by hand, so that every number in a sentence is known."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from qkv.instruments import MEASURES
from qkv.telemetry import NULL_ARM, RUN_ARM, AddressRow, Store, Telemetry
from qkv.tokenizers.tokenizer import fit_tokenizer

MATRICES = ("W_E", "L0.W_Q", "L0.W_O", "L1.W_Q", "L1.W_O", "W_U")
STEPS = (0, 1, 2, 4, 8, 16, 32, 64)


class MadeRun:
    """A run of 64 steps; each `with_*` adds one kind of content."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "checkpoints" / "step-00000000").mkdir(parents=True)
        (path / "config.toml").write_text("[training.optimizer]\nweight_decay = 0.0\n")
        text = ["the cat sees the dog and the king"] * 3 + ["a king sees a cat"] * 2
        self.tokenizer = fit_tokenizer("word", text, 0)
        self.tokenizer.save(path / "tokenizer.json")
        self.n = self.tokenizer.d_vocab

    def store(self) -> Store:
        store = Store(self.path / "telemetry.sqlite")
        store.register_measures([measure.row() for measure in MEASURES.values()])
        store.register_addresses(
            [AddressRow(address=a, site="attn" if "." in a else "embed", kind=a[-3:], shape=(4, 4)) for a in MATRICES]
        )
        return store

    def with_rows(self, scale: Any = 1.0, counts: np.ndarray | None = None, tied: bool = False) -> "MadeRun":
        """W_E at the start is e_0 in every row; row t moves by scale * (t + 1) / 10 along e_1."""
        start = np.zeros((self.n, 4), dtype=np.float32)
        start[:, 0] = 1
        last = start.copy()
        last[:, 1] = scale * (np.arange(self.n) + 1) / 10
        save_file({"W_E": start}, self.path / "checkpoints" / "step-00000000" / "model.safetensors")
        (self.path / "checkpoints" / "step-00000064").mkdir(exist_ok=True)
        for place in (self.path, self.path / "checkpoints" / "step-00000064"):
            save_file({"W_E": last}, place / "model.safetensors")
        self.drift, self.counts = last[:, 1].copy(), counts
        with self.store() as store:
            for step in STEPS:
                store.add_vector(step, "row_drift", "W_E", (self.drift * step / 64).astype(np.float32))
                if step <= 4:
                    store.add_vector(
                        step, "row_drift", "W_E", (self.drift * step / 32).astype(np.float32), arm=NULL_ARM
                    )
            if counts is not None:
                store.add_vector(0, "row_count", "W_E", counts)
            if tied:
                store._write("UPDATE addresses SET tied_to = ? WHERE address = ?", [("W_U", "W_E")])
        return self

    def with_drifts(self, last: dict[str, float], null_factor: float = 0.5) -> "MadeRun":
        """Drift grows in proportion to the step; the null, up to step 8, in proportion too, times `null_factor`."""
        addresses, values = list(last), np.array(list(last.values()))
        with self.store() as store:
            for step in STEPS:
                zero = [0.0 if a.endswith(("W_O", "W_U")) and step == 0 else 1.0 for a in addresses]
                store.add_values(step, "norm", addresses, zero)
                store.add_values(step, "drift", addresses, list(values * step / 64))
                if step:
                    first = [0.0 if step == 1 and not a.endswith(("W_U",)) else 1.0 for a in addresses]
                    store.add_values(step, "grad_norm", addresses, first)
                if step <= 8:
                    factors = null_factor * (1 + np.arange(len(values)) / 10)
                    store.add_values(step, "drift", addresses, list(values * step / 64 * factors), arm=NULL_ARM)
        return self

    def with_losses(self, losses: list[tuple[int, float, float]], **baselines: Any) -> "MadeRun":
        with self.store() as store:
            best = np.inf
            for step, loss, train_loss in losses:
                store.add_evaluation(step, loss, is_best=loss < best, train_loss=train_loss, bits_per_byte=loss * 2)
                best = min(best, loss)
            if baselines:
                store.set_fact("baselines", baselines)
        return self

    def telemetry(self) -> Telemetry:
        return Telemetry(self.path / "telemetry.sqlite")


@pytest.fixture
def made(tmp_path):
    """A new run folder."""
    return MadeRun(tmp_path / "run")


@pytest.fixture
def arms():
    """Numbers of the arms."""
    return SimpleNamespace(run=RUN_ARM, null=NULL_ARM)
