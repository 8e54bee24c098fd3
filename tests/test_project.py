"""What a newcomer meets first: make's targets, and the changelog."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import qkv
from qkv.cli import command_parser
from qkv.commands import COMMANDS

ROOT = Path(__file__).parent.parent
MAKE = shutil.which("make")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
UNWANTED = re.compile(
    r"\b(?:not to be told from|cannot tell|that nothing could tell|less the same of|less that of|as (?:it|they) began"
    r"|anew|stands? (?:in|beside)|of a hundred|needs both to have|is missed more|of which the|whoever|let go of"
    r"|gone on with|had here|to the bit|by so many|is told|what is made of|what is asked of|whatever else|in turn"
    r"|earned|a look at|c[ao]me out otherwise|holds for itself)\b",
    re.IGNORECASE,
)
"""Phrases that a reader has to read twice."""


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


def current_changes() -> str:
    """The section of the changelog about the version that the code has."""
    heading = rf"^## .*\b{re.escape(qkv.__version__)}\b.*$"
    found = re.search(rf"{heading}\n(?P<section>(?:(?!^## ).*\n?)*)", CHANGELOG, re.MULTILINE)
    assert found, f"CHANGELOG.md has no heading with {qkv.__version__}"
    return found["section"]


def test_the_changelog_is_for_users():
    assert len(CHANGELOG.encode()) <= 20_000
    changes = [line for line in current_changes().splitlines() if line.startswith("- ")]
    assert len(changes) > 20 and len(changes) == len(set(changes))
    assert [line for line in CHANGELOG.splitlines() if len(line) > 300] == []
    assert UNWANTED.findall(" ".join(CHANGELOG.split())) == []


def test_the_changelog_names_commands_and_options_that_exist():
    options = {
        option for name in COMMANDS for action in command_parser(name)._actions for option in action.option_strings
    }
    elsewhere = {"--lr", "--max_iters"}  # told as options of other programs
    marked = " ".join(re.findall(r"`[^`]+`", current_changes()))
    assert set(re.findall(r"(?<!\S)`?(--[a-z][\w-]*)", marked)) <= options | elsewhere
    assert set(re.findall(r"`qkv ([a-z]+)", marked)) <= set(COMMANDS) | {"generate"}
