"""The folder of a study: the designs as they were written before their first run, every run ever made, the verdict.

    runs/study-NAME-SOURCE-xxxxxxxx/     x: hash of the protocol (the design without its number of replicates)
      design-xxxxxxxx.json               written before the design's first run, never changed after
      runs.jsonl                         one line per training, appended when it ends, never rewritten
      archive.json.bz2                   the same rows packed (`archive.py`), where a study is kept for others
      verdict.json                       the answer; no clock in it, so the same bytes after any number of kills
      page.html                          for people

A line is whole or it is not there: what a killed process left of one is cut off before the next is written. One process
at a time; the lock dies with it.
"""

import glob
import json
import math
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from qkv.errors import RunFolderError
from qkv.folder.run_folder import RunFolder, storage_errors, sync_folder, write_atomically
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.studies.engine import archive
from qkv.studies.engine.design import Design, canonical

_RUNS, _VERDICT = "runs.jsonl", "verdict.json"
_FROM = "from "
"""Before the name of a folder, in the key of the row that says what was taken over from it."""


def folder_of(design: Design, within: Path) -> Path:
    """Where the runs of a design's protocol lie."""
    kind = "-quick" if design.quick else ""
    return within / f"study-{design.study}{kind}-{design.source_name}-{design.protocol[:8]}"


def read_rows(folder: Path) -> Iterator[JsonObject]:
    """Every whole line of the log, oldest first.

    Raises RunFolderError for a line that is no object of JSON: somebody changed the log.
    """
    path = folder / _RUNS
    if not path.is_file():
        yield from archive.rows(folder) if (folder / archive.ARCHIVE).is_file() else ()
        return
    for number, line in enumerate(_whole(path.read_bytes()).split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise RunFolderError(
                f"line {number} of {path} is damaged; delete that line and the training that it held is made again"
            )
        yield row


def _whole(log: bytes) -> bytes:
    """A log without the last line, if a kill left half of it or a power cut left zeros where its bytes should be."""
    lines = log[: log.rfind(b"\n") + 1]
    last = lines.rfind(b"\n", 0, len(lines) - 1) + 1
    return lines[:last] if b"\0" in lines[last:] else lines


def full_answer(design: Design, within: Path) -> str:
    """The sentence of the latest full run of a design's question on the same text, empty where there is none."""
    found = []
    for path in within.glob(f"study-{design.study}-{glob.escape(design.source_name)}-*/{_VERDICT}"):
        try:
            verdict = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if not verdict["quick"] and verdict["source"]["sha256"] == design.source_sha256 and verdict["seeds"]:
            found.append((path.stat().st_mtime_ns, verdict["sentence"]))
    return max(found)[1] if found else ""


def folders_beside(design: Design, within: Path) -> list[Path]:
    """Folders of the same question and kind of run on a text of that name, by name, without the design's own."""
    own = folder_of(design, within)
    name = glob.escape(own.name.removesuffix(design.protocol[:8]))
    return sorted(path for path in within.glob(f"{name}{'[0-9a-f]' * 8}") if path != own)


def designs_in(folder: Path) -> Iterator[JsonObject]:
    """The designs that were written down in a folder, by hash."""
    for path in sorted(folder.glob("design-*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


def unlike(design: Design, folder: Path) -> str:
    """Why no training in a folder beside can be one of a design: another text or version; empty where neither is."""
    for made in designs_in(folder):
        if made["source_sha256"] != design.source_sha256:
            return f"its text has the sha256 {made['source_sha256'][:16]}, yours {design.source_sha256[:16]}"
        if made["software"] != design.software:
            return f"it was made by {made['software']}, and this is {design.software}"
    return ""


def loss_of(row: JsonMapping | None) -> float | None:
    """The loss of a row by which rates are chosen: inf where it diverged, None where it is missing."""
    return None if row is None else math.inf if row["diverged"] else float(row["loss"])


class StudyFolder(RunFolder):
    """One study's folder, locked while it is open; use it as a context manager.

    Made when the first design is written.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.rows: dict[str, JsonObject] = {}

    @classmethod
    def begin(cls, design: Design, within: Path) -> "StudyFolder":
        """Open or make the folder of a design, lock it, read what is there, and write the design down.

        Raises RunFolderError where another process is at it, or the log was changed.
        """
        folder = cls.hold(folder_of(design, within))
        try:
            name = f"design-{design.hash[:8]}.json"
            if not (folder.path / name).is_file():
                text = {**design.as_dict(), "hash": design.hash, "protocol": design.protocol}
                folder.write(name, json.dumps(text, indent=1, sort_keys=True) + "\n")
            key = f"design {design.hash}"
            if key not in folder.rows:  # also where whoever wrote the file died before the row
                folder.append({"key": key, "design": design.hash, "replicates": design.replicates})
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def hold(cls, path: Path) -> "StudyFolder":
        """Open or make the folder, lock it, and read its log. Raises RunFolderError as `begin` does."""
        folder = cls(path)
        with storage_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        folder._acquire()
        try:
            folder._mend()
            if (path / archive.ARCHIVE).is_file() and not (path / _RUNS).exists():  # so that trainings can be added
                folder.write(_RUNS, "".join(canonical(row) + "\n" for row in archive.rows(path)))
            folder.rows = {row["key"]: row for row in read_rows(path)}
        except BaseException:
            folder.close()
            raise
        return folder

    def adopt(self, design: Design, keys: Collection[str]) -> None:
        """Take over the trainings of those keys from the folders of the same question and text beside this one.

        A design with another margin, or of another day, asks for the same trainings. The log says where they come from,
        and by which margins of the same first contrast they were judged.
        """
        for folder in folders_beside(design, self.path.parent):
            rows, name = list(read_rows(folder)), f"{_FROM}{folder.name}"
            shared = [row for row in rows if row["key"] in keys]
            if shared and name not in self.rows:  # before they are taken over: a kill on the way does not hide it
                firsts = [made["contrasts"][0] for made in designs_in(folder)]
                margins = sorted({first["margin"] for first in firsts if first["name"] == design.primary.name})
                self.append({"key": name, "margins": margins})
            others = [row for row in rows if shared and row["key"].startswith(_FROM)]
            for row in (*others, *shared):
                if row["key"] not in self.rows and row["key"] != f"{_FROM}{self.path.name}":
                    self.append(row)

    @property
    def margins(self) -> tuple[float, ...]:
        """Margins of the first contrast that trainings which were taken over had been judged by."""
        taken = [row["margins"] for key, row in self.rows.items() if key.startswith(_FROM)]
        return tuple(sorted({margin for margins in taken for margin in margins}))

    @property
    def taken_over(self) -> tuple[str, ...]:
        """Names of the folders of other designs whose trainings were taken over, at first hand or later."""
        return tuple(key.removeprefix(_FROM) for key in self.rows if key.startswith(_FROM))

    def _mend(self) -> None:
        """Cut off half a line that a killed process or a power cut left."""
        self._sweep()
        path = self.path / _RUNS
        if not path.is_file():
            return
        data = path.read_bytes()
        whole = _whole(data)
        if len(whole) < len(data):
            with open(path, "rb+") as file:
                file.truncate(len(whole))
                os.fsync(file.fileno())

    def append(self, row: JsonMapping) -> None:
        """Write one line to the end of the log and make it durable; it is in `rows` from then on."""
        path, fresh = self.path / _RUNS, not (self.path / _RUNS).exists()
        with storage_errors(path), open(path, "ab") as file:
            file.write((canonical(dict(row)) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        if fresh:
            sync_folder(self.path)
        self.rows[row["key"]] = dict(row)

    def loss(self, key: str) -> float | None:
        """The loss of a run at its last step, inf where it diverged, None where it was not made."""
        return loss_of(self.rows.get(key))

    @property
    def trainings(self) -> list[JsonObject]:
        """Every training of every design of this protocol, in the order they ended."""
        return [row for row in self.rows.values() if "arm" in row]

    @property
    def designs(self) -> list[JsonObject]:
        """The designs in the order they were written down."""
        return [row for row in self.rows.values() if "design" in row]

    def conclude(self, found: JsonMapping, name: str = _VERDICT) -> None:
        """Write what was found."""
        text = json.dumps(found, indent=1, sort_keys=True, allow_nan=False) + "\n"
        write_atomically(self.path / name, text.encode())
