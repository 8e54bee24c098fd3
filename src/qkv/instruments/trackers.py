"""Telemetry sent on, while a model trains, to the place where somebody keeps their other experiments.

`Tracker` is the one protocol: named numbers at a step. A destination is one class and one line in `TRACKERS`. The
SQLite file stays the source: what is sent are its own rows, read back after each look, so a destination that fails can
lose its copy and nothing else. Names are `loss`, `lr`, `grad_norm`, `val_loss`, and measure and address of every
matrix as a path: `drift/L0.W_Q`.
"""

import contextlib
import importlib
import math
import os
import struct
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from qkv.errors import ConfigError, MissingExtra, first_line, unknown
from qkv.instruments.recorder import Recorder
from qkv.jsontypes import JsonMapping
from qkv.telemetry import Telemetry
from qkv.training.record import EvaluationRecord, Listener, Outcome, StepRecord


class Tracker(Protocol):
    """A destination of scalars."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take finite numbers by name at a step; steps do not fall."""
        ...

    def close(self) -> None:
        """Nothing more will come."""
        ...


class EventFile:
    """A TensorBoard event file, written without TensorBoard: protocol-buffer events, each with its checksums.

    Format: tensorflow/core/util/event.proto and lib/io/record_writer.h: length, masked CRC-32C of it, data, masked
    CRC-32C of those.
    """

    def __init__(self, folder: Path, name: str, config: JsonMapping) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"events.out.tfevents.{int(time.time())}.qkv.{os.getpid()}"
        self._file = open(self.path, "ab")  # noqa: SIM115 - closed by `close`
        self._write(_key(1, 1) + struct.pack("<d", time.time()) + _bytes(3, b"brain.Event:2"))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One event with a value for each name."""
        summary = b"".join(
            _bytes(1, _bytes(1, name.encode()) + _key(2, 5) + struct.pack("<f", value))
            for name, value in values.items()
        )
        self._write(_key(1, 1) + struct.pack("<d", time.time()) + _key(2, 0) + _varint(step) + _bytes(5, summary))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked(length) + event + _masked(event))


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def _key(field: int, kind: int) -> bytes:
    """The key of a field; kinds: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes."""
    return _varint(field << 3 | kind)


def _bytes(field: int, data: bytes) -> bytes:
    return _key(field, 2) + _varint(len(data)) + data


def _table() -> list[int]:
    rows = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ 0x82F63B78 * (n & 1)
        rows.append(n)
    return rows


_CRC = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of some bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


class _Module:
    """A library with the functions `init`, `log` and `finish` of wandb."""

    def __init__(self, library: str, folder: Path, name: str, config: JsonMapping) -> None:
        self._module = importlib.import_module(library)
        try:
            self._module.init(project="qkv", name=name, config=dict(config))
        except Exception as error:  # noqa: BLE001 - no login, no network: other people's libraries raise anything
            raise ConfigError(f"--log {library} could not begin: {first_line(error)}; leave --log out") from None

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._module.log(dict(values), step=step)

    def close(self) -> None:
        self._module.finish()


_LIBRARIES = ("wandb", "trackio")
TRACKERS: Mapping[str, Callable[[Path, str, JsonMapping], Tracker]] = {
    "tensorboard": EventFile,
    **{library: partial(_Module, library) for library in _LIBRARIES},
}
"""Name after --log -> destination; each is made with (folder, name of the run, its settings)."""


def check_tracker(name: str) -> None:
    """Make sure that it can be reached. Raises ConfigError for an unknown name, MissingExtra for a missing library."""
    if name not in TRACKERS:
        raise ConfigError(unknown("place to --log to", name, TRACKERS))
    if name in _LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            raise MissingExtra(f"--log {name} needs that library; type: pip install {name}") from None


def open_tracker(name: str, run: Path, config: JsonMapping) -> Tracker:
    """The destination of that name for a run; TensorBoard's files lie in `RUN/tensorboard`.

    Raises as `check_tracker`, and ConfigError for a library that does not begin.
    """
    check_tracker(name)
    return TRACKERS[name](run / "tensorboard", run.name, config)


class Sender(Listener):
    """Sends a training's telemetry on to a tracker; it stands behind `recorder`, whose rows it reads back."""

    def __init__(self, tracker: Tracker, telemetry: Path, recorder: Recorder, say: Callable[[str], None]) -> None:
        self._tracker, self._telemetry, self._recorder, self._say = tracker, telemetry, recorder, say
        self._broken = False

    def after_update(self, record: StepRecord) -> None:
        """Loss, rate and gradient norm; and what the recorder wrote at this step, if it looked."""
        values = {"loss": record.loss, "lr": record.lr, "grad_norm": record.grad_norm}
        self._send(record.step, values | (self._looked(record.step) if self._recorder.reads(record.step) else {}))

    def on_evaluation(self, evaluation: EvaluationRecord) -> None:
        self._send(evaluation.step, {"val_loss": evaluation.loss})

    def on_end(self, outcome: Outcome) -> None:
        """Send what the recorder looked at last, then close the destination."""
        self._send(outcome.steps, self._looked(outcome.steps) if self._recorder.watching else {})
        if self._broken:
            with contextlib.suppress(Exception):  # it was said already
                self._tracker.close()
        self._do(self._tracker.close)

    def _send(self, step: int, values: Mapping[str, float]) -> None:
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        if finite:
            self._do(lambda: self._tracker.scalars(step, finite))

    def _do(self, what: Callable[[], None]) -> None:
        """Do it, unless the destination broke: a training does not end because its copy cannot be sent."""
        if self._broken:
            return
        try:
            what()
        except Exception as error:  # noqa: BLE001 - other people's libraries raise anything
            self._broken = True
            self._say(f"--log has stopped ({first_line(error)}); the run folder keeps everything, and training goes on")

    def _looked(self, step: int) -> dict[str, float]:
        """Every number that the recorder wrote at exactly this step."""
        with Telemetry(self._telemetry) as telemetry:
            return {
                f"{measure.name}/{address}": value
                for measure in telemetry.measures()
                for address, value in telemetry.at(step, measure.name).items()
                if value is not None
            }
