"""Benchmarks are commands that nobody runs in CI: at least what they import is there, and the page lists them."""

import ast
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parent / "campaigns"
SHARED = ("attempt", "command", "turns")
COMMANDS = sorted(path for path in FOLDER.glob("*.py") if path.stem not in SHARED)


@pytest.mark.parametrize("path", [*COMMANDS, *(FOLDER / f"{name}.py" for name in SHARED)], ids=lambda path: path.stem)
def test_everything_that_a_benchmark_imports_of_ours_is_there(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "qkv":
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


def test_the_page_lists_every_benchmark():
    page = (FOLDER.parents[1] / "docs" / "benchmarks" / "README.md").read_text("utf-8")
    assert [path.name for path in COMMANDS if f"tests/campaigns/{path.name}" not in page] == []


def benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for shared in SHARED:
        sys.modules.pop(shared, None)
    return module


def watched(level, seconds, weights="w"):
    """What a training of `tests/campaigns/watching.py` came to."""
    more = {} if level == "off" else {"share": 0.01, "steps": 60, "measures": 9, "defined": 7.0, "numbers": 100}
    return {"level": level, "seconds": seconds, "weights": weights, "parameters": 7} | more


def test_the_interval_of_watching_is_students_and_other_weights_are_told(monkeypatch, capsys):
    watching = benchmark("watching", monkeypatch)
    pairs = [[watched("off", 40.0), watched("light", on)] for on in (41.0, 42.0)]
    assert watching.tell(pairs, 10)
    out = capsys.readouterr().out
    mean, reach = (41 / 40 + 42 / 40) / 2, 12.71 * (1 / 40) / 2
    assert f"{mean:.4f}, 95 % interval {mean - reach:.4f} to {mean + reach:.4f}" in out
    assert not watching.tell([*pairs, [watched("off", 40.0), watched("light", 41.0, "other")]], 10)


def test_watching_goes_on_where_it_was_and_never_mixes_settings(tmp_path, monkeypatch, capsys):
    watching = benchmark("watching", monkeypatch)
    made = []

    def train(words, level, turn, number):
        made.append((number, words[words.index("--steps") + 1]))
        return [watched("off", 30.0), watched(level, 30.0)]

    monkeypatch.setattr(watching, "pair", train)
    text, results = tmp_path / "t.txt", tmp_path / "r.jsonl"

    def run(*more: str) -> int:
        monkeypatch.setattr(sys, "argv", ["watching.py", str(text), "--pairs", "2", "--results", str(results), *more])
        with pytest.raises(SystemExit) as ended:
            watching.main()
        return int(ended.value.code or 0)

    assert run("--pairs", "1") == 0 and made == [(0, "1500")]
    assert run("--minutes", "0.4") == 0 and len(made) == 1, "a pair of 60 s does not fit"
    assert run() == 0 and made == [(0, "1500"), (1, "1500")]
    assert run() == 0 and len(made) == 2
    assert run("--steps", "7") == 0 and made[2:] == [(0, "7"), (1, "7")]
    assert len(results.read_text().splitlines()) == 4
