"""One worker of a study: `python -m qkv.studies CACHE`, a trial a line on its stdin, a row a line on its stdout.

It ends with its stdin, so it never outlives the process that started it.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from qkv.errors import QkvError
from qkv.jsontypes import JsonObject
from qkv.studies.engine.design import Trial
from qkv.studies.engine.training import run_trial

__all__ = ["answer", "serve"]


def answer(trial: str, cache: Path | None) -> JsonObject:
    """The row of a trial that was given as JSON, or the kind and the words of an error of ours."""
    try:
        return run_trial(Trial.from_json(trial), cache)
    except QkvError as error:
        return {"error": type(error).__name__, "message": str(error)}


def _work(cache: Path | None, write: Callable[[str], object]) -> None:
    """Answer every trial on stdin."""
    for line in sys.stdin:
        write(json.dumps(answer(line, cache)) + "\n")


def serve() -> None:
    """Be a worker: answer trials until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us decides
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever prints goes to stderr
    _work(Path(sys.argv[1]) if sys.argv[1] else None, out.write)
