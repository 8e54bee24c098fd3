"""A measure over the steps, of several addresses: as series, NumPy arrays, a pandas table, a CSV or Parquet file.

Holds what `Telemetry.series` read; reads nothing itself. Undefined numbers are NaN in arrays on common steps, and
left out of files.
"""

import csv
import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from qkv.errors import ConfigError
from qkv.folder.run_folder import check_place
from qkv.installing import install
from qkv.telemetry.schema import Series

COLUMNS = ("address", "measure", "step", "value")
"""Of an exported file: one line for each number."""


class Arrays(NamedTuple):
    """A measure as arrays: `value[i, j]` is address i at `step[j]`, NaN where it is undefined there."""

    addresses: list[str]
    step: np.ndarray
    value: np.ndarray


class History(dict[str, Series]):
    """Address -> series with arrays `.step` and `.value`, in canonical order."""

    def arrays(self) -> Arrays:
        """Every address on the same steps."""
        steps = np.unique(np.concatenate([series.step for series in self.values()] or [np.zeros(0, dtype=np.int64)]))
        value = np.full((len(self), len(steps)), np.nan)
        for i, series in enumerate(self.values()):
            value[i, np.searchsorted(steps, series.step)] = series.value
        return Arrays(list(self), steps, value)

    def frame(self) -> Any:
        """A pandas DataFrame: one row for each step, one column for each address.

        Raises ConfigError where pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ConfigError(f"a table needs pandas, which is not installed; type: {install('table')}") from None
        addresses, steps, value = self.arrays()
        return pandas.DataFrame(value.T, index=pandas.Index(steps, name="step"), columns=addresses)

    def save(self, path: str | Path) -> Path:
        """Write `path`, by its ending: .csv, .csv.gz or .parquet; see `write_table`."""
        return write_table(path, [self])


def write_table(path: str | Path, histories: Iterable[Mapping[str, Series]]) -> Path:
    """Every number as a line of address, measure, step and value; returns the path.

    Raises ConfigError for an ending other than .csv, .csv.gz and .parquet, or where Parquet needs pyarrow, UserError
    where the folder that it goes into is not there.
    """
    path = Path(path)
    check_place(path)
    if path.name.endswith((".csv", ".csv.gz")):
        opened: Callable[..., IO[str]] = gzip.open if path.suffix == ".gz" else open
        with opened(path, "wt", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(_lines(histories))
    elif path.suffix == ".parquet":
        _write_parquet(path, histories)
    else:
        raise ConfigError(f"{path.name} is no table that can be written; expected a name in .csv, .csv.gz or .parquet")
    return path


def _lines(histories: Iterable[Mapping[str, Series]]) -> Iterator[tuple[str, str, int, float]]:
    for history in histories:
        for series in history.values():
            yield from (
                (series.address, series.measure, step, value)
                for step, value in zip(series.step.tolist(), series.value.tolist(), strict=True)
            )


def _write_parquet(path: Path, histories: Iterable[Mapping[str, Series]]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(f"Parquet needs pyarrow, which is not installed; type: {install('table')}") from None
    lines = list(_lines(histories))
    columns = {name: [line[i] for line in lines] for i, name in enumerate(COLUMNS)}
    parquet.write_table(pyarrow.table(columns), path, compression="zstd")
