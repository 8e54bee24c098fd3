"""The live page of a study: its section, read again whenever a training has ended."""

from dataclasses import dataclass
from pathlib import Path

from qkv.views.host import Host
from qkv.views.live.follow import Follower
from qkv.views.study.section import read_study


@dataclass(frozen=True, kw_only=True)
class StudyPulse:
    """How far a study is."""

    log_bytes: int
    """Of its log, which only grows."""
    verdict: int
    """When its verdict was last written, in nanoseconds; 0 before."""


def study_pulse(folder: Path) -> StudyPulse:
    """The pulse of a study's folder, whatever of it is there yet."""
    log, verdict = folder / "runs.jsonl", folder / "verdict.json"
    return StudyPulse(
        log_bytes=log.stat().st_size if log.is_file() else 0,
        verdict=verdict.stat().st_mtime_ns if verdict.is_file() else 0,
    )


class StudyPage(Follower[StudyPulse]):
    """One study as a live page. There is no one model to ask."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, study_pulse)

    def payload(self) -> object:
        """The section, as it is now."""
        return read_study(self.folder, Host(kind="page"))
