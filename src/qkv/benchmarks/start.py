"""How soon something happens after a command is typed: the help, and the first training step on two texts.

Whole processes of this Python. The first step is there when `qkv train` says so on stderr; the training is then
stopped. The default text is measured twice: with an empty cache, when it is gathered from the user's own Python, and
after that.
"""

import os
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from qkv.benchmarks.processes import fresh
from qkv.benchmarks.session import Session
from qkv.errors import RunError

FIRST = "step 1/"
"""What a training says at its first step."""
_COLD = "first step on the default text, nothing cached"


def measure(session: Session) -> None:
    """The help, then first steps."""
    help_seconds = [_help_seconds() for _ in range(session.rounds + 1)][1:]
    session.record("qkv --help", {"qkv": help_seconds}, "s")
    home = str(fresh())  # where the cache lies
    environment = {"HOME": home, "USERPROFILE": home, "PYTHONUSERBASE": site.getuserbase()}
    cases: dict[str, list[str]] = {_COLD: [], "first step on the default text": []}
    text = session.path("tinyshakespeare")
    if text is not None:
        cases["first step on tinyshakespeare's characters"] = [str(text), "--tokenizer", "char"]
    for case, words in cases.items():
        found = []
        for _ in range(session.rounds):
            if case == _COLD:
                shutil.rmtree(home, ignore_errors=True)
            found.append(first_step([*words, "--minutes", "4"], fresh() / "run", environment))
        session.record(case, {"qkv": found}, "s")


def _help_seconds() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "qkv", "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def first_step(words: list[str], out: Path, environment: Mapping[str, str]) -> float:
    """Seconds from the start of `qkv train WORDS` until its first step is done.

    Raises RunError where the training ends without one.
    """
    command = [sys.executable, "-m", "qkv", "train", *words, "--no-report", "--out", str(out)]
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    assert process.stderr is not None
    said = ""
    try:
        for line in process.stderr:
            if line.startswith((FIRST, "step 1 ")):
                return time.perf_counter() - began
            said = line.strip() or said
    finally:
        process.kill()
        process.communicate()
    raise RunError(f"{' '.join(command)} ended without a step: {said}")
