"""The report of a run: everything that its folder tells, as one HTML file that works offline.

`read_report` makes the payload, `write_report` the file.
"""

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from qkv.errors import DamagedFileError, UserError
from qkv.folder.kept_answers import keep
from qkv.folder.run_folder import RunFolder, check_place, write_atomically
from qkv.inspection.answers.answer import Answer
from qkv.telemetry import Telemetry
from qkv.views.host import Host
from qkv.views.report.page import render_page
from qkv.views.report.page_sections import Report, Sections
from qkv.views.sections.answers import note


def write_report(
    run: str | Path, out: str | Path | None = None, texts: Sequence[str] = (), research: Sequence[Answer] = ()
) -> Path:
    """Write the report of the run folder `run` to `out` (in the folder, as report.html) and give its path.

    `texts` are shown with every head's attention; without any, the run's last sample is. `research` stands after the
    run's own answers. In a finished folder the manifest learns the new file's hash. Raises RunFolderError for a folder
    that is no run, StorageError where the file cannot be written, UserError for a place that is none or a text that
    cannot be shown; nothing is written then.
    """
    if out is not None:
        check_page(out)
    folder = RunFolder.open(run)
    told = folder.steadily(lambda: read_report(folder.path, texts))
    shown = dataclasses.replace(told, answers=(*told.answers, *map(note, research)))
    page = render_page(shown).encode()
    path = folder.report if out is None else Path(out)
    digest = folder.write(path.name, page) if out is None else write_atomically(path, page)
    if folder.is_finished and os.path.realpath(path) == os.path.realpath(folder.report):
        folder.note_hash(folder.report.name, digest)
        keep(folder, [(answer.question, answer.brief or answer.sentence) for answer in told.answers])
    return path


def check_page(out: str | Path) -> None:
    """Make sure that a page may be written to `out`. Raises UserError for a place that is none, or another file's."""
    check_place(out)
    if os.path.isfile(out) and Path(out).suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{out} is there already and is no page; choose another place, such as report.html")


def read_report(folder: Path, texts: Sequence[str] = ()) -> Report:
    """The payload of a run folder; sections without data are None, and `missing` says why; `damaged` names the files
    that are not what was written.

    Raises RunFolderError where a finished run's telemetry is whole and cannot be read: a page without it would look
    like that of a run that was never watched.
    """
    run = RunFolder(folder)
    if run.is_finished and run.telemetry.is_file():
        with contextlib.suppress(DamagedFileError):  # which the page says
            Telemetry(run.telemetry).close()
    with Sections(folder, texts) as sections:
        return sections.report(Host())
