"""What a fresh machine meets first: make's targets."""

import os
import shutil
import subprocess
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
