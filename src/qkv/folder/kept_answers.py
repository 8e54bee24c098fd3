"""The answers of a finished run, kept outside it, so that the first screen of `qkv show` is there at once.

They are kept under the hashes of the run's files and the state of the code that words them: of an altered run, or by
another version, nothing is found, and they are read again. What cannot be kept is read again too.
"""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from qkv.errors import QkvError
from qkv.folder.hashes import cache_folder
from qkv.folder.run_folder import RunFolder, write_atomically

FEWEST = 3
"""With fewer answers, as of an imported model, the tables are shown at once."""
MOST = 200
"""Runs of which answers are kept; the oldest give way."""
_PACKAGE = Path(__file__).parent.parent


def keep(folder: RunFolder, answers: Sequence[tuple[str, str]]) -> None:
    """Keep the (question, answer) pairs of a finished run."""
    if len(answers) < FEWEST:
        return
    with contextlib.suppress(OSError, QkvError):
        path = _place(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(answers).encode())
        for old in sorted(path.parent.iterdir(), key=lambda file: -file.stat().st_mtime_ns)[MOST:]:
            old.unlink(missing_ok=True)


def kept(folder: RunFolder) -> list[tuple[str, str]] | None:
    """What was kept of a finished run; None where nothing was."""
    try:
        return [(str(question), str(answer)) for question, answer in json.loads(_place(folder).read_text("utf-8"))]
    except (OSError, QkvError, ValueError, TypeError):
        return None


def _place(folder: RunFolder) -> Path:
    """By the hashes of its files, its report left out, and by the size and time of each module that words answers."""
    files = dict(folder.read_manifest().get("files", {}))
    files.pop(folder.report.name, None)
    code = sorted(file for file in (_PACKAGE / "inspection").rglob("*") if file.suffix in (".py", ".toml"))
    stamps = [(file.name, (about := file.stat()).st_size, about.st_mtime_ns) for file in (*code, _PACKAGE / "words.py")]
    key = json.dumps([sorted(files.items()), stamps])
    return cache_folder() / "answers" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
