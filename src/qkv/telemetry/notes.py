"""Notes and stars of the runs in a folder: `notes.json` beside them, so that no run's sealed content changes."""

import json
import os
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from qkv.errors import UserError
from qkv.folder.run_folder import read_json, write_atomically
from qkv.jsontypes import is_like

FILE = "notes.json"
LONGEST = 2000
_FORM = {"qkv_notes": int, "runs": {str: {"note": str, "starred": bool}}}
_turn = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Note:
    """What a person says of a run."""

    note: str = ""
    starred: bool = False


def read_notes(folder: Path) -> dict[str, Note]:
    """Name of a run -> its note; empty where a file of that name is not ours."""
    try:
        found = read_json(folder / FILE)
    except (OSError, ValueError, RecursionError):
        return {}
    if not is_like(found, _FORM):
        return {}
    return {name: Note(note=one["note"][:LONGEST], starred=one["starred"]) for name, one in found["runs"].items()}


def write_note(folder: Path, name: str, *, note: str | None = None, starred: bool | None = None) -> Note:
    """Change the note or the star of a run; None leaves it as it is. Raises UserError, StorageError."""
    if note is not None and len(note) > LONGEST:
        raise UserError(f"the note has {len(note):,} characters; expected at most {LONGEST:,}")
    with _turn:
        notes, path = read_notes(folder), folder / FILE
        if not notes and os.path.lexists(path) and path.read_bytes() != _written(notes):  # it would be lost
            raise UserError(
                f"{path} does not hold notes that qkv wrote, or not whole; rename it, and notes can be kept here"
            )
        given = {"note": note, "starred": starred}
        changed = replace(notes.pop(name, Note()), **{key: v for key, v in given.items() if v is not None})
        if changed != Note():
            notes[name] = changed
        write_atomically(path, _written(notes))
    return changed


def _written(notes: dict[str, Note]) -> bytes:
    """The file that holds these notes."""
    told = {"qkv_notes": 1, "runs": {run: asdict(one) for run, one in sorted(notes.items())}}
    return json.dumps(told, indent=1, ensure_ascii=False).encode()
