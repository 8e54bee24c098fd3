"""The child process that runs a student's file: `python -m qkv.lessons.student FILE FOLDER`.

FOLDER holds the cases (cases.npz, cases.json). What each function returned goes to returned.npz; what went wrong, to
returned.json; the function that runs now, to now.txt. The parent process sets the time limit.
"""

import json
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

from qkv.jsontypes import JsonObject

FUNCTIONS = {
    "attention": ("x", "W_Q", "W_K", "W_V", "W_O"),
    "attention_backward": ("out_bar", "x", "W_Q", "W_K", "W_V", "W_O"),
}
"""Function -> its arrays, in order; n_heads and causal follow."""


class _Counted:
    """Takes what is printed, and counts the lines."""

    encoding, errors, lines = "utf-8", "replace", 0

    def write(self, text: str) -> int:
        self.lines += text.count("\n")
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False


def source_of(path: Path) -> str:
    """The Python of a file, or of a notebook's code cells, without the lines that only IPython understands.

    Raises OSError, UnicodeDecodeError, ValueError where it is not that.
    """
    text, magic = path.read_text(encoding="utf-8-sig"), r"^get_ipython\(\)\..*$"
    if path.suffix == ".ipynb":
        try:
            cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        except (KeyError, TypeError):
            raise ValueError("it is no notebook of nbformat 4") from None
        text, magic = "\n".join(cells), r"^[%!].*$"
    return re.sub(magic, "", text, flags=re.MULTILINE)


def main(path: Path, folder: Path) -> None:
    """Run the file, then its functions on every case, and write down what came of it."""
    cases = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    arrays = dict(np.load(folder / "cases.npz"))
    counted, streams = _Counted(), (sys.stdout, sys.stderr)
    sys.stdout = sys.stderr = counted  # type: ignore[assignment]
    returned, notes = {}, {}
    sys.path[0] = str(path.parent)
    np.seterr(all="ignore")
    sys.modules["student"] = module = ModuleType("student")
    scope = vars(module)
    scope["__file__"] = str(path)
    error = _error(lambda: exec(compile(source_of(path), str(path), "exec"), scope), path)
    for name, given in FUNCTIONS.items() if error is None else ():
        (folder / "now.txt").write_text(name, encoding="utf-8")
        if not callable(function := scope.get(name)):
            notes[name] = None
            continue
        notes[name] = [
            _call(function, f"{name}.{i}", [arrays[f"{i}.{one}"] for one in given], case, returned, path)
            for i, case in enumerate(cases)
        ]
    sys.stdout, sys.stderr = streams
    np.savez(folder / "returned.npz", **returned)
    whole = {"error": error, "functions": notes, "lines": counted.lines}
    (folder / "returned.json").write_text(json.dumps(whole), encoding="utf-8")


def _call(
    function: Callable[..., object],
    key: str,
    given: list[np.ndarray],
    case: JsonObject,
    returned: dict[str, np.ndarray],
    path: Path,
) -> JsonObject:
    """Call it on one case; its arrays go into `returned` as KEY.0, KEY.1, ..."""
    own, name = [array.copy() for array in given], key.partition(".")[0]

    def call() -> None:
        found = function(*own, case["n_heads"], case["causal"])
        parts = [found] if name == "attention" else list(found)  # type: ignore[call-overload]
        for j, part in enumerate(parts):
            array = np.asarray(part)
            if array.dtype.kind not in "fiu":
                raise TypeError(f"{name} returned {type(part).__name__}; expected an array of numbers")
            returned[f"{key}.{j}"] = array.astype(float)

    error = _error(call, path)
    changed = [
        one for one, a, b in zip(FUNCTIONS[name], given, own, strict=True) if not np.array_equal(a, b, equal_nan=True)
    ]
    return {"error": error, "changed": changed}


def _error(run: Callable[[], object], path: Path) -> JsonObject | None:
    """What it raises, with the line of the file where that happened; None where it ends well."""
    try:
        run()
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: the file is somebody else's
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        return {"kind": type(error).__name__, "said": " ".join(said.split())[:200], "line": line}
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
