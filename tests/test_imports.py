"""The import plan, and what is loaded when."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import qkv

ROOT = Path(__file__).parent.parent
MODULES = sorted(m.name for m in pkgutil.walk_packages(qkv.__path__, "qkv.") if m.name != "qkv.__main__")
LIGHT = ("qkv", "qkv.cli", "qkv.commands", "qkv.config", "qkv.errors", "qkv.randomness")


def test_imports_point_down_the_plan_only():
    pytest.importorskip("importlinter", reason="import-linter is in the extra dev")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", LIGHT)
def test_light_modules_do_not_load_torch(name):
    code = f"import {name}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("name", MODULES)
def test_each_module_says_what_it_is_and_exports_what_it_has(name):
    module = __import__(name, fromlist=["_"])
    assert module.__doc__, f"{name} has no docstring"
    missing = [word for word in getattr(module, "__all__", ()) if not hasattr(module, word)]
    assert not missing, f"{name}.__all__ names {missing}"


def test_the_face_is_lazy_and_complete():
    names = "Arm Design Effect Expected Run attention load study train trial watch"
    assert set(qkv.__all__) == {*names.split()} <= set(dir(qkv))
    assert qkv.train is sys.modules["qkv.api"].train
    with pytest.raises(AttributeError, match="Expected, Run, attention, load, study, train, trial, watch"):
        qkv.nonsense  # noqa: B018


REGISTRIES = ("commands", "questions", "tasks")
"""Folders with a module for each entry."""


def test_no_folder_has_more_than_eighteen_modules_side_by_side():
    folders = {path.parent for path in (ROOT / "src").glob("**/*.py") if path.parent.name not in REGISTRIES}
    assert not {str(f.relative_to(ROOT)): n for f in folders if (n := len(list(f.glob("*.py")))) > 18}


def test_there_is_no_drawer_for_everything():
    drawers = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert not [p for p in ROOT.glob("src/**/*") if p.stem in drawers]
