"""What a fresh machine meets first: make's targets, and the wheel in a place of its own."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAKE = shutil.which("make")


@pytest.mark.skipif(MAKE is None, reason="make is not installed")
def test_make_alone_lists_its_targets():
    done = subprocess.run([MAKE], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert all(f"make {target} " in done.stdout for target in ("demo", "test", "check", "more", "bench", "docs"))


@pytest.mark.skipif(MAKE is None or os.name == "nt", reason="make is not installed, or this is Windows")
@pytest.mark.parametrize("old", [None, "import sys; sys.exit(1)"])
def test_without_a_new_enough_python_make_says_so_in_one_sentence(old, tmp_path):
    (tmp_path / "bin").mkdir()
    for tool in ("sh", "touch"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    if old:  # a Python that says that it is too old
        script = tmp_path / "bin" / "python3"
        script.write_text("#!/bin/sh\nexit 1\n")
        script.chmod(0o755)
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").touch()
    environment = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    done = subprocess.run([MAKE, "demo"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert done.stderr.count("qkv needs Python 3.11 or newer") == 1
    assert not (tmp_path / ".venv").exists()


@pytest.mark.slow
def test_the_wheel_holds_everything_and_trains_without_the_sources(tmp_path, small_text):
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", tmp_path, ROOT], check=True, timeout=300)
    (wheel,) = tmp_path.glob("qkv-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packed = {name.removeprefix("qkv/") for name in names if name.startswith("qkv/")}
    sources = {
        str(path.relative_to(ROOT / "src" / "qkv").as_posix())
        for path in (ROOT / "src" / "qkv").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == sources
    assert any(name.endswith("LICENSE") for name in names)
    subprocess.run([*pip, "install", "--no-deps", "--target", tmp_path / "site", wheel], check=True, timeout=300)

    code = "import qkv, sys; from qkv.cli import main; print(qkv.__file__, file=sys.stderr); sys.exit(main())"
    words = ["train", small_text, "--tokenizer", "char", "--steps", "3", "--set", "d_model=16,n_layers=1,n_heads=1"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--out", tmp_path / "run", "--json"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "site") in done.stderr  # the installed copy ran, not the sources
    assert json.loads(done.stdout)["steps"] == 3
    assert "<html" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")[:2000].lower()
