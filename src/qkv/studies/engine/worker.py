"""One worker of a study: `python -m qkv.studies CACHE`, a trial a line on its stdin, a row a line on its stdout.

It ends with its stdin, so it never outlives the process that started it.
"""

import json
import os
import signal
import sys
from pathlib import Path

from qkv import errors
from qkv.errors import QkvError
from qkv.jsontypes import JsonObject
from qkv.studies.engine.design import Trial
from qkv.studies.engine.training import run_trial


def answer(trial: str, cache: Path | None) -> JsonObject:
    """The row of a trial that was given as JSON, or the kind and the words of an error of ours."""
    try:
        return run_trial(Trial.from_json(trial), cache)
    except QkvError as error:
        return {"error": type(error).__name__, "message": str(error)}


def row_of(answer: JsonObject) -> JsonObject:
    """The row that was answered. Raises the error of ours that was."""
    if "error" in answer:
        kind = getattr(errors, answer["error"], errors.RunError)
        raise kind(answer["message"])
    return answer


def serve() -> None:
    """Be a worker: answer trials until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us decides
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever prints goes to stderr
    cache = Path(sys.argv[1]) if sys.argv[1] else None
    for line in sys.stdin:
        out.write(json.dumps(answer(line, cache)) + "\n")
