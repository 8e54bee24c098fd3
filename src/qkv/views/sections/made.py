"""Where a run came from: its configuration, machine, files and hashes, in words for people.

Paths under the reader's home folder are shown from `~`: a report is made to be sent on.
"""

import dataclasses
from pathlib import Path

from qkv.data.sources.receipt import Receipt
from qkv.errors import QkvError
from qkv.folder.hashes import sha256_remembered
from qkv.folder.run_folder import FINAL_FILES
from qkv.jsontypes import JsonMapping
from qkv.telemetry import RUN_ARM, Telemetry


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fact:
    """One line of a facts list, already words."""

    label: str
    value: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileNote:
    """A file of the run folder and its sha256."""

    name: str
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """How the run was made, and how to make it again."""

    command: str
    config: str
    files: tuple[FileNote, ...]
    facts: tuple[Fact, ...]
    events: tuple[Fact, ...] = ()
    written_by: str = ""


def made_section(folder: Path, manifest: JsonMapping, telemetry: Telemetry | None, steps: int | None) -> Made:
    """The command, the configuration, versions, hashes, and what happened on the way."""
    from qkv import __version__

    path = folder / "config.toml"
    summary = manifest.get("summary", {})
    data = manifest.get("data") or {}
    facts = {
        "data": f"{data.get('name', '')}, sha256 {data.get('sha256', '')}" if data else "",
        "split": data.get("split"),
        "read": Receipt.of(receipt).summed() if (receipt := manifest.get("receipt")) else "",
        "started from": manifest.get("parent"),
        "stopped because": summary.get("stopped_because"),
        "resumed from step": summary.get("resumed_from_step"),
        "whole command": f"{summary['total_seconds']:.0f} s" if summary.get("total_seconds") else "",
        "processor": manifest.get("cpu"),
        "platform": manifest.get("platform"),
        "threads, precision": ", ".join(str(manifest[k]) for k in ("threads", "precision") if k in manifest),
        "versions": ", ".join(f"{name} {number}" for name, number in manifest.get("versions", {}).items()),
    }
    events = telemetry.events(RUN_ARM) if telemetry else []
    # the report itself is left out: it cannot hold its own hash
    names = [name for name in FINAL_FILES if name != "report.html" and (folder / name).is_file()]
    return Made(
        command=_command(path, _planned(summary, steps)),
        config=_home(path.read_text(encoding="utf-8")) if path.is_file() else "",
        files=tuple(FileNote(name=name, sha256=sha256_remembered(folder / name)) for name in names),
        facts=tuple(Fact(label=k, value=_home(str(value))) for k, value in facts.items() if value not in (None, "")),
        events=tuple(Fact(label=f"step {event.step:,}", value=event.sentence) for event in events),
        written_by=f"Written by qkv {__version__}.",
    )


def _planned(summary: JsonMapping, steps: int | None) -> int | None:
    """The steps to plan for the same updates; None where the run went beyond its plan, which no number of steps says.

    `steps` is what there is of a run without a summary.
    """
    horizon, made = summary.get("horizon") or 0, summary.get("steps") or 0
    return None if 0 < horizon < made else horizon or made or steps


def _command(config: Path, steps: int | None) -> str:
    """The line that makes the run again; empty where its configuration is not one that this version reads."""
    from qkv.recipe import RunConfig
    from qkv.views.report.command import command_of

    try:
        return command_of(RunConfig.read(config), steps, str(Path.home()))
    except (QkvError, OSError):
        return ""


def _home(text: str) -> str:
    """The reader's home folder as `~`."""
    home = str(Path.home())
    return text.replace(home + "/", "~/").replace(home + "\\", "~\\") if len(home) > 1 else text
