"""The ledger of tries: one line of JSON for each try, training and decision, appended and never rewritten.

Every line holds the hash of the line before it. Whenever a ledger is read, these hashes, the error that each try was
given and every decision are computed again from the losses in it; one that differs is refused. A line is whole or it is
not there: what a killed process left of one is cut off. One process at a time; the lock dies with it.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import BinaryIO

from qkv.errors import DamagedFileError, RunFolderError
from qkv.folder.run_folder import lock_file, storage_errors
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.studies.engine.design import canonical
from qkv.studies.gate.sequential import alpha, decide

ARMS = ("new", "best")


class Tries:
    """A ledger of tries, locked while it is open; use it as a context manager. It is made by its first line.

    Raises RunFolderError where another process is at it, DamagedFileError where somebody changed it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tries: list[JsonObject] = []
        self.trained: dict[int, dict[tuple[int, str], JsonObject]] = {}
        """Number of a try -> (seed, arm) -> its training."""
        self.decided: dict[int, JsonObject] = {}
        """Number of a try -> its latest decision."""
        self._lines, self._last = 0, ""
        self._file: BinaryIO | None = None
        if path.exists():
            try:
                self._open()
            except BaseException:
                self.close()
                raise

    def _open(self) -> BinaryIO:
        """The file, locked, what is in it checked, and half a line at its end cut off."""
        with storage_errors(self.path):
            self._file = file = open(self.path, "ab+")
        if not lock_file(file.fileno()):
            raise RunFolderError(f"another qkv trial is at {self.path}; wait for it, or name another --ledger")
        file.seek(0)
        data = file.read()
        whole = data.rfind(b"\n") + 1
        for line in data[:whole].splitlines():
            self._take(line)
        with storage_errors(self.path):
            file.truncate(whole)
        return file

    def _take(self, line: bytes) -> None:
        self._lines += 1
        try:
            record = json.loads(line)
            right = record["before"] == self._last and self._follows(record)
        except (ValueError, TypeError, KeyError, IndexError):
            right, record = False, {}
        if not right:
            raise DamagedFileError(
                f"line {self._lines} of {self.path} is not what was written, so its error rate no longer holds; restore"
                " the file, or begin another one with --ledger FILE"
            )
        if record["record"] == "try":
            self.tries.append(record)
            self.trained[record["try"]] = {}
        elif record["record"] == "training":
            self.trained[record["try"]][record["seed"], record["arm"]] = record
        else:
            self.decided[record["try"]] = record
        self._last = hashlib.sha256(line).hexdigest()

    def _follows(self, record: JsonObject) -> bool:
        """Whether a record is what the ones before it lead to."""
        number = record["try"]
        if record["record"] == "try":
            return number == len(self.tries) + 1 and record["alpha"] == alpha(number)
        if record["record"] == "training":
            return record["arm"] in ARMS and (record["seed"], record["arm"]) not in self.trained[number]
        made = self.pairs(number)[: record["seeds"]]
        decision = decide([new - best for _, new, best in made], self.tries[number - 1]["gain"], alpha(number))
        return len(made) == record["seeds"] and decision == record["decision"]

    def append(self, record: JsonMapping) -> None:
        """Write one record to the end and make it durable; it counts from then on."""
        file = self._file or self._open()
        line = canonical({**record, "before": self._last}).encode()
        with storage_errors(self.path):
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._take(line)

    def __enter__(self) -> "Tries":
        return self

    def __exit__(self, *about: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and release its lock."""
        if self._file is not None:
            self._file.close()

    def find(self, key: str) -> JsonObject | None:
        """The try of this key."""
        return next((tried for tried in self.tries if tried["key"] == key), None)

    def pairs(self, number: int) -> list[tuple[int, float, float]]:
        """(seed, loss of NEW, loss of BEST) of every whole pair of a try, by seed."""
        rows = self.trained[number]
        seeds = sorted(seed for seed, arm in rows if arm == "new" and (seed, "best") in rows)
        return [(seed, rows[seed, "new"]["loss"], rows[seed, "best"]["loss"]) for seed in seeds]
