"""A history as arrays, tables and files: every number comes back bit for bit."""

import csv
import gzip

import numpy as np
import pytest

from qkv.errors import ConfigError
from qkv.telemetry import History, Series, write_table


@pytest.fixture
def history():
    steps = np.array([0, 1, 8])
    return History(
        {
            "L0.W_Q": Series("L0.W_Q", "drift", 0, steps, np.array([0.0, 1 / 3, 2e-300])),
            "L0.W_K": Series("L0.W_K", "drift", 0, steps[1:], np.array([np.pi, 4.0])),
        }
    )


def test_arrays_put_every_address_on_the_same_steps(history):
    addresses, step, value = history.arrays()
    assert addresses == ["L0.W_Q", "L0.W_K"] and step.tolist() == [0, 1, 8]
    np.testing.assert_array_equal(value, [[0, 1 / 3, 2e-300], [np.nan, np.pi, 4]])
    assert History().arrays().value.shape == (0, 0)


@pytest.mark.parametrize("name", ["h.csv", "h.csv.gz"])
def test_a_csv_holds_every_number_to_the_last_bit(history, tmp_path, name):
    path = history.save(tmp_path / name)
    with (gzip.open if name.endswith("gz") else open)(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["address"], r["measure"], int(r["step"]), float(r["value"])) for r in rows] == [
        ("L0.W_Q", "drift", 0, 0.0),
        ("L0.W_Q", "drift", 1, 1 / 3),
        ("L0.W_Q", "drift", 8, 2e-300),
        ("L0.W_K", "drift", 1, np.pi),
        ("L0.W_K", "drift", 8, 4.0),
    ]


def test_a_parquet_file_and_a_pandas_table_hold_the_same(history, tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame = history.frame()
    assert frame.index.name == "step" and frame.loc[8, "L0.W_K"] == 4 and np.isnan(frame.loc[0, "L0.W_K"])
    table = pandas.read_parquet(write_table(tmp_path / "h.parquet", [history, history]))
    assert list(table.columns) == ["address", "measure", "step", "value"] and len(table) == 10
    assert table["value"][1] == 1 / 3 and table["step"].dtype == np.int64


def test_another_ending_is_refused_and_nothing_is_written(history, tmp_path):
    with pytest.raises(ConfigError, match=r"h.xlsx is no table.*\.csv, \.csv\.gz or \.parquet"):
        history.save(tmp_path / "h.xlsx")
    assert list(tmp_path.iterdir()) == []
