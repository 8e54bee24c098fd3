"""Compares a student's attention and its backward pass with torch, and names the mistake.

The file runs in a child process with a time limit (`student.py`). Its numbers are compared with torch's in float64 on
eight cases. What differs is compared with attention that has one typical mistake, or two (`mistakes.py`).
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch.nn import functional as F

from qkv.errors import UserError, missing_file, typed
from qkv.jsontypes import JsonObject
from qkv.lessons import mistakes
from qkv.lessons.mistakes import GRADIENTS, PATHS, Array, Case, case
from qkv.lessons.student import FUNCTIONS, source_of
from qkv.words import listed, many, number

State = Literal["right", "wrong", "broken"]
"""Broken: it is missing, raises, or returns no arrays, so that there is nothing to compare."""

SAYS: Mapping[str, Mapping[str, str]] = tomllib.loads((files("qkv.lessons") / "mistakes.toml").read_text("utf-8"))
"""Function -> mistake -> sentence."""
CASES = (
    case(1, 1, 5, 4, 1, 4, False),
    case(2, 1, 5, 8, 2, 4, True),
    case(3, 2, 4, 6, 2, 3, False),
    case(4, 2, 5, 6, 3, 4, True),
    case(5, 1, 3, 10, 2, 2, False),
    case(6, 1, 6, 5, 1, 3, True),
    case(7, 1, 1, 4, 2, 2, True),
    case(8, 1, 5, 8, 2, 4, True, size=15.0),
)
"""b, n, d_model, n_heads, d_head, causal. The last has scores that overflow exp."""
CLOSE, CLOSE_LARGE = 1e-5, 1e-3
"""How far from torch a number may be, relative to 1 + its size; the second where the scores are large."""
_ENOUGH = 8
"""How many wrong numbers a mistake must explain."""
_SPELLINGS = {
    "softmax-heads": (":filled", ":added"),
    "mask-diagonal": (":filled", ":added"),
    "interleaved": (":joined",),
    "split-without-transpose": (":joined",),
    "no-jacobian": (":open",),
}


@dataclass(frozen=True)
class Finding:
    """What came of one function."""

    function: str
    state: State
    mistakes: tuple[str, ...]
    """Keys of mistakes.toml; empty where it is right or broken."""
    sentence: str


def write_template(path: Path) -> None:
    """Write a file with the two functions to be filled in. Raises UserError where it exists."""
    text = (files("qkv.lessons") / "template.txt").read_text("utf-8").replace("FILE", typed(path), 1)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} exists and is not overwritten; give another name") from None


def check(path: Path, seconds: float = 20.0) -> tuple[list[Finding], int]:
    """What came of each function of a file, and how many lines it printed.

    Raises UserError for a file that is missing, does not run, or takes longer.
    """
    if not path.is_file():
        raise missing_file(path, "file", f"your own, or make one: qkv learn check {typed(path)} --template")
    try:
        source_of(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as Python: {error}") from None
    with tempfile.TemporaryDirectory(prefix="qkv-check-") as place:
        told, returned = _run(path, Path(place), seconds)
    if error := told["error"]:
        raise UserError(f"{path} does not run: {_raised(error)}")
    forward, backward = (_finding(name, path, told["functions"][name], returned) for name in FUNCTIONS)
    if forward.state == backward.state == "wrong":
        backward = replace(backward, mistakes=(), sentence=SAYS["any"]["later"])
    return [forward, backward], int(told["lines"])


def _run(path: Path, folder: Path, seconds: float) -> tuple[JsonObject, dict[str, Array]]:
    """What the child process wrote down. Raises UserError where it took too long or wrote nothing."""
    arrays = {
        f"{i}.{name}": getattr(one, name) for i, one in enumerate(CASES) for name in FUNCTIONS["attention_backward"]
    }
    np.savez(folder / "cases.npz", **arrays)
    settings = [{"n_heads": one.n_heads, "causal": one.causal} for one in CASES]
    (folder / "cases.json").write_text(json.dumps(settings), encoding="utf-8")
    child = subprocess.Popen(
        [sys.executable, "-m", "qkv.lessons.student", str(path.resolve()), str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "MPLBACKEND": "Agg"},  # a plot opens no window that waits to be closed
        start_new_session=True,
    )
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        now = folder / "now.txt"
        where = f"{now.read_text('utf-8')} in {path}" if now.is_file() else str(path)
        raise UserError(
            f"{where} was stopped after {seconds:g} s; look for a loop that never ends, or allow more time"
            " with --seconds"
        ) from None
    finally:
        if hasattr(os, "killpg") and child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.kill()
        child.wait()
    if not (folder / "returned.json").is_file():
        raise UserError(f"{path} ended the Python process (status {child.returncode}) before its functions returned")
    return json.loads((folder / "returned.json").read_text("utf-8")), dict(np.load(folder / "returned.npz"))


def _raised(error: JsonObject, where: str = "") -> str:
    line = f" in line {error['line']}" if error["line"] else ""
    said = f": {error['said']}" if error["said"] else ""
    return f"{error['kind']}{line}{where}{said}"


def expected(one: Case) -> tuple[Array, ...]:
    """By torch in float64: the output, then the `GRADIENTS`."""
    x, *W = (torch.tensor(array, requires_grad=True) for array in (one.x, one.W_Q, one.W_K, one.W_V, one.W_O))
    q, k, v = ((x @ matrix).unflatten(-1, (one.n_heads, -1)).transpose(1, 2) for matrix in W[:3])
    z = F.scaled_dot_product_attention(q, k, v, is_causal=one.causal)
    out = z.transpose(1, 2).flatten(2) @ W[3]
    gradients = torch.autograd.grad(out, (x, *W), torch.tensor(one.out_bar))
    return tuple(each.detach().numpy() for each in (out, *gradients))


def _finding(name: str, path: Path, notes: Sequence[JsonObject] | None, returned: Mapping[str, Array]) -> Finding:
    if notes is None:
        return Finding(name, "broken", (), f"{path} has no function {name}; qkv learn check --template shows it")
    raised = [(note["error"], one) for note, one in zip(notes, CASES, strict=True) if note["error"]]
    if len(raised) == len(CASES):
        unwritten = raised[0][0]["kind"] == "NotImplementedError"
        what = "is not written yet" if unwritten else f"raises {_raised(raised[0][0], f' for {_sizes(CASES[0])}')}"
        return Finding(name, "broken", (), f"{name} {what}")
    results = [
        _Result(name, i, [] if note["error"] else _arrays(returned, f"{name}.{i}")) for i, note in enumerate(notes)
    ]
    wrong = partial(Finding, name, "wrong")
    given = [len(result.found) for result, note in zip(results, notes, strict=True) if not note["error"]]
    if odd := [count for count in given if count != len(results[0].right)]:
        return wrong(("count",), SAYS["any"]["count"].format(found=many(odd[0], "array")))
    changed = sorted({one for note in notes for one in note["changed"]})
    small, large = [result for result in results[:-1] if result.found], results[-1]
    if len(small) == len(CASES) - 1 and all(result.is_right for result in small):
        if not large.is_right:
            q, k, _ = mistakes.projected(CASES[-1])
            largest = number(float(np.abs(q @ k.swapaxes(-1, -2)).max()))
            what = "large" if large.found and all(np.isfinite(array).all() for array in large.found) else "overflow"
            return wrong((what,), SAYS["any"][what].format(function=name, largest=largest))
        n = sum(array.size for result in results for array in result.right)
        right = f"{name} is right: {n:,} numbers in {len(results)} cases equal torch's."
        return _in_place(name, changed) if changed else Finding(name, "right", (), right)
    if found := _explanation(name, small):
        sentences = [_sentence(name, key) for key in found]
        first = "There are two mistakes. " if len(found) > 1 else ""
        return wrong(tuple(key.partition(" ")[0] for key in found), first + " ".join(sentences))
    if changed:
        return _in_place(name, changed)
    if sentence := next((result.odd_shape for result in small if result.odd_shape), ""):
        return wrong(("shape",), sentence)
    if raised:
        error, one = raised[0]
        return Finding(name, "broken", (), f"{name} raises {_raised(error, f' for {_sizes(one)}')}")
    return wrong(("unknown",), _unknown(name, small))


def _in_place(name: str, changed: Sequence[str]) -> Finding:
    return Finding(name, "wrong", ("changed",), SAYS["any"]["changed"].format(function=name, names=listed(changed)))


def _arrays(returned: Mapping[str, Array], key: str) -> list[Array]:
    """What one call returned, in order."""
    return [returned[f"{key}.{j}"] for j in range(sum(each.startswith(f"{key}.") for each in returned))]


class _Result:
    """The arrays that one call returned, beside torch's."""

    def __init__(self, name: str, index: int, found: Sequence[Array]) -> None:
        self.case, self.found = CASES[index], found
        every = expected(self.case)
        self.right = every[:1] if name == "attention" else every[1:]
        self.names = ("out",) if name == "attention" else GRADIENTS
        self.close = CLOSE_LARGE if index == len(CASES) - 1 else CLOSE
        self.function = name

    @property
    def pairs(self) -> Iterator[tuple[str, Array, Array]]:
        """(name, found, right) of the arrays that have the right shape."""
        for name, found, right in zip(self.names, self.found, self.right, strict=False):
            if found.shape == right.shape:
                yield name, found, right

    @property
    def is_right(self) -> bool:
        """Whether all of them equal torch's."""
        same = [not _far(found, right, self.close).any() for _, found, right in self.pairs]
        return len(same) == len(self.right) and all(same)

    @property
    def odd_shape(self) -> str:
        """A sentence about the first array of another shape; empty where there is none."""
        for name, found, right in zip(self.names, self.found, self.right, strict=True):
            if found.shape != right.shape:
                told = {"function": self.function, "what": name, "found": found.shape, "expected": right.shape}
                return SAYS["any"]["shape"].format(case=_sizes(self.case), **told)
        return ""

    def explained(self, wrong: frozenset[str]) -> int:
        """How many wrong numbers have the value that these mistakes give; -1 where a number has another one."""
        attention = self.function == "attention"
        made = (mistakes.attention(self.case, wrong),) if attention else mistakes.attention_backward(self.case, wrong)
        n = 0
        for found, right, value in zip(self.found, self.right, made, strict=True):
            defined = np.isfinite(value)
            if found.shape != right.shape:
                continue
            if _far(found, value, self.close)[defined].any():
                return -1
            n += int((_far(found, right, self.close) & defined).sum())
        return n


def _far(found: Array, right: Array, close: float) -> Array:
    """Where they differ; NaN and infinity differ from everything."""
    with np.errstate(invalid="ignore"):
        return ~(np.abs(found - right) <= close * (1 + np.abs(right)))


def _explanation(name: str, results: Sequence[_Result]) -> tuple[str, ...]:
    """The mistake, or the two, that give every number that was returned; empty where none do."""
    keys = [key for key in SAYS[name] if key != "only-through"]
    keys += [f"only-through {path}" for path in PATHS] if name == "attention_backward" else []
    single = [((key,), frozenset((key,))) for key in keys]
    single += [((key,), frozenset((key, how))) for key, ways in _SPELLINGS.items() if key in keys for how in ways]
    pairs = [(pair, frozenset(pair)) for pair in combinations(keys, 2)]
    for found, wrong in (*single, *pairs):
        n = 0
        for result in results:
            if (more := result.explained(wrong)) < 0:
                break
            n += more
        else:
            if n >= _ENOUGH:
                return found
    return ()


def _sentence(name: str, key: str) -> str:
    key, _, path = key.partition(" ")
    words = [{"q": "the queries", "k": "the keys", "v": "the values"}[one] for one in path.split()]
    return SAYS[name][key].format(paths=listed(words) if words else "")


def _sizes(one: Case) -> str:
    return f"x of shape {one.x.shape}, n_heads={one.n_heads}, causal={one.causal}"


def _unknown(name: str, results: Sequence[_Result]) -> str:
    """Size and place of the largest difference."""
    off = [result for result in results if not result.is_right]
    wrong = {what for result in off for what, found, right in result.pairs if _far(found, right, result.close).any()}
    which = f" ({listed([one for one in GRADIENTS if one in wrong])})" if name == "attention_backward" else ""
    rows = [(result, *pair) for result in off for pair in result.pairs]
    with np.errstate(invalid="ignore"):
        gaps = [np.nan_to_num(np.abs(found - right), nan=np.inf) for _, _, found, right in rows]
    top = max(range(len(rows)), key=lambda i: gaps[i].max())
    result, what, found, right = rows[top]
    at = np.unravel_index(int(gaps[top].argmax()), gaps[top].shape)
    size = number(float(gaps[top][at])) if np.isfinite(gaps[top][at]) else "not a finite number"
    place = f"{what}[{', '.join(str(int(i)) for i in at)}]"
    values = {"found": f"{found[at]:.3g}", "expected": f"{right[at]:.3g}"}
    told = {"function": name, "n": len(off), "of": len(results), "which": which, "size": size, "place": place}
    return SAYS["any"]["unknown"].format(case=_sizes(result.case), **told, **values)
