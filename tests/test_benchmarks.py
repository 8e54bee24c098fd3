"""Benchmarks are commands that nobody runs in CI: at least what they import is there, and the page lists them."""

import ast
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
COMMANDS = sorted(path for path in FOLDER.glob("*.py") if path.name != "command.py")


@pytest.mark.parametrize("path", [*COMMANDS, FOLDER / "command.py"], ids=lambda path: path.stem)
def test_everything_that_a_benchmark_imports_of_ours_is_there(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "qkv":
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


def test_the_page_lists_every_benchmark():
    page = (FOLDER / "README.md").read_text("utf-8")
    assert [path.name for path in COMMANDS if f"benchmarks/{path.name}" not in page] == []


def benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules.pop("command", None)
    return module


def test_watching_pairs_are_whole_and_its_interval_is_students(monkeypatch, capsys):
    watching = benchmark("watching", monkeypatch)
    runs = [
        {"level": level, "seconds": seconds, "weights": "w", "parameters": 7, "share": 0.01, "steps": 60,
         "measures": 9, "defined": 7.0, "numbers": 100}
        for level, seconds in (("off", 40), ("light", 41), ("light", 41), ("off", 40)) * 2 + (("off", 40),)
    ]  # fmt: skip
    runs[5]["seconds"] = 43
    assert watching.pairs(runs, "light") == pytest.approx([82 / 80, 84 / 80])
    assert watching.tell(runs, "light", 10)
    out = capsys.readouterr().out
    mean, reach = (82 / 80 + 84 / 80) / 2, 12.71 * (2 / 80) / 2
    assert f"{mean:.4f}, 95 % interval {mean - reach:.4f} to {mean + reach:.4f}" in out
    assert not watching.tell([*runs, runs[0] | {"weights": "other"}], "light", 10)


def test_watching_goes_on_where_it_was_and_never_mixes_settings(tmp_path, monkeypatch, capsys):
    watching = benchmark("watching", monkeypatch)
    made = []

    def train(words, level):
        made.append(level)
        more = {} if level == "off" else {"share": 0.01, "steps": 60, "measures": 9, "defined": 7.0, "numbers": 1}
        return {"level": level, "seconds": 30.0, "weights": "w", "parameters": 7} | more

    monkeypatch.setattr(watching, "one", train)
    text, results = tmp_path / "t.txt", tmp_path / "r.jsonl"

    def run(*more: str) -> int:
        monkeypatch.setattr(sys, "argv", ["watching.py", str(text), "--pairs", "2", "--results", str(results), *more])
        with pytest.raises(SystemExit) as ended:
            watching.main()
        return int(ended.value.code or 0)

    assert run("--minutes", "0.4") == 0 and made == ["off"]
    assert run() == 0 and made == ["off", "light", "light", "off"] * 2
    assert run() == 0 and len(made) == 8
    assert run("--steps", "7", "--minutes", "0.1") == 0 and made[8:] == ["off"]
    assert len(results.read_text().splitlines()) == 9
