"""What `qkv show RUN` prints first: every question with its answer in a line or two, on one screen.

The answers of a finished run are kept outside it when they are read (at the end of its training, with the report), so
that this screen needs neither torch nor NumPy. They are kept by the run's own hashes and by the code that words them.
"""

import contextlib
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from qkv.commands.printing.screen import shown
from qkv.config import load_toml
from qkv.errors import QkvError
from qkv.folder.kept_answers import kept
from qkv.folder.run_folder import RunFolder
from qkv.folder.verified import check_file, damage
from qkv.words import clock, many, short

MOST = 8
"""Answers on the screen; the others are counted."""
LINES = 4
"""Of one answer, at most so many are printed."""


def print_kept(path: str) -> bool:
    """Print the screen of a finished run from what was kept of it; False where it has to be read.

    Raises RunFolderError where there is no run.
    """
    if (Path(path) / "config.json").is_file() and not (Path(path) / "config.toml").is_file():
        return False  # a Hugging Face folder
    folder = RunFolder.open(path)
    answers = kept(folder) if folder.is_finished and not damage(folder) else None
    if answers is not None:
        print_screen(path, folder, answers)
    return answers is not None


def print_screen(path: str, folder: RunFolder, answers: Sequence[tuple[str, str]]) -> None:
    """The run in a line, its first answers ((question, answer) pairs), and what else to type."""
    width = max(20, min(shutil.get_terminal_size((80, 24)).columns, 110))
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ("", "")
    print("\n".join(textwrap.wrap(_about(folder), width)), end="\n\n")
    for rank, (question, answer) in enumerate(answers[:MOST], 1):
        print(f"{bold}{rank}. {question}{plain}")
        lines = textwrap.wrap(shown(answer), width - 3, max_lines=LINES if width > 60 else None)
        print(textwrap.indent("\n".join(lines), "   "))
    run, left = shlex.quote(path), len(answers) - MOST
    more = {
        f"qkv show {run} --all": "the answers in full" + (f", and {left} more" if left > 0 else ""),
        f"qkv show {run} --measure drift": "every matrix, layer by layer",
        f"qkv show {run} ADDR": "a matrix (L0.W_Q), head (L0.H1.QK) or row",
        f'qkv show {run} --text "..."': "attention on a text or image",
        f"qkv view {run}": "all of it in a browser",
    }
    longest = max(map(len, more))
    print()
    for command, about in more.items():
        both = f"{command:<{longest}}  {about}"
        print(both if len(both) <= width else f"{command}\n{textwrap.indent(textwrap.fill(about, width - 4), '    ')}")


def _about(folder: RunFolder) -> str:
    """Which run it is: its task, preset, size, length and changes, as far as these are known."""
    settings, summary = {}, {}
    with contextlib.suppress(QkvError, OSError):
        check_file(folder.config)
        settings = load_toml(folder.config)
        summary = folder.read_manifest().get("summary") or {}
    parts = [f"{name} {settings[name]}" for name in ("task", "preset") if settings.get(name)]
    parts += [f"{short(summary['parameters'])} parameters"] if summary.get("parameters") else []
    if settings.get("history"):
        parts.append(f"imported history up to step {summary.get('steps', 0):,}")
    elif summary.get("steps"):
        parts.append(f"{many(summary['steps'], 'step')} in {clock(summary['train_seconds'])}")
    changes = f"; changed in training: {', '.join(settings['changes'])}" if settings.get("changes") else ""
    return f"{folder.path.resolve().name}: {', '.join(parts) or 'a run'}{changes}"
