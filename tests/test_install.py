"""Commands that install something work from the project folder; no package or address is named that does not exist."""

import importlib.metadata
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from qkv import installing
from qkv.installing import PUBLIC_ADDRESS, install, project_folder, update

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
WRITTEN = [
    *ROOT.glob("*.md"),
    *(p for folder, endings in (("src", (".py", ".js", ".html", ".sql")), ("docs", (".md", ".py")),
                                ("notebooks", (".py", ".md")), ("benchmarks", (".py",)))
      for p in (ROOT / folder).rglob("*") if p.suffix in endings),
]  # fmt: skip
HISTORY = {"CHANGELOG.md", "LOG.md"}
INDEX = re.compile(r"pip install (?:-\S+ )*['\"]?qkv\b|\bqkv\[")
ADDRESS = re.compile(r"https?://[^\s)\"'>]*\bqkv\b")


def test_no_page_and_no_message_installs_qkv_from_an_index_or_names_an_address_that_is_not_there():
    found = []
    for path in WRITTEN:
        if path.name in HISTORY:
            continue
        text = path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(ROOT)}: {m[0]}" for m in INDEX.finditer(text)]
        for address in ADDRESS.findall(text):
            if not (PUBLIC_ADDRESS and address.startswith(PUBLIC_ADDRESS.removesuffix(".git"))):
                found.append(f"{path.relative_to(ROOT)}: {address}")
    assert len(WRITTEN) > 400 and found == []


def test_what_the_search_looks_for_is_found():
    for wrong in ("pip install qkv", "pip install 'qkv[study]'", "pip install -U qkv", "type: 'qkv[hub]'"):
        assert INDEX.search(wrong), wrong
    for right in ("pip install -e '.[study]'", "pip install -c constraints.txt -e .", "pip install wandb"):
        assert not INDEX.search(right), right
    assert ADDRESS.search("see https://example.org/someone/qkv")


def test_every_message_that_asks_for_an_extra_takes_its_command_from_one_place():
    asked = {
        extra
        for path in (ROOT / "src").rglob("*.py")
        for extra in re.findall(r"""\binstall\(['"](\w+)['"]\)""", path.read_text("utf-8"))
    }
    assert asked == {"cluster", "exits", "hub", "image", "static", "study", "table", "translate"} and asked <= set(
        EXTRAS
    )


@pytest.mark.parametrize("extra", EXTRAS)
def test_from_a_project_folder_the_command_names_it_and_the_python_that_runs(extra):
    assert project_folder() == ROOT
    words = shlex.split(install(extra))
    assert words == [sys.executable, "-m", "pip", "install", "-e", f"{ROOT}[{extra}]"]
    assert shlex.split(update()) == ["git", "-C", str(ROOT), "pull"]


def test_a_folder_with_spaces_is_quoted(monkeypatch, tmp_path):
    monkeypatch.setattr(installing, "project_folder", lambda: tmp_path / "my qkv")
    assert shlex.split(install("study"))[-1] == f"{tmp_path}/my qkv[study]"


def test_a_wheel_asks_for_the_libraries_of_the_extra(monkeypatch):
    listed = ["torch>=2.9", 'scipy>=1.12; extra == "study"', "scikit-learn>=1.4; extra == 'study'",
              'ray>=2.40; extra == "cluster"', 'scipy>=1.12; extra == "dev"']  # fmt: skip
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: listed)
    monkeypatch.setattr(installing, "project_folder", lambda: None)
    assert shlex.split(install("study"))[1:] == ["-m", "pip", "install", "scipy>=1.12", "scikit-learn>=1.4"]
    assert "git" not in update()


def test_the_page_on_installing_lists_every_extra_and_the_address_once_there_is_one():
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    assert [f"| `{extra}` |" in page for extra in EXTRAS] == [True] * len(EXTRAS)
    assert ("git clone" in page) == bool(PUBLIC_ADDRESS)
    pages = [
        ROOT / "README.md",
        *(ROOT / "docs" / f"{name}.md" for name in ("index", "getting-started", "images", "translate")),
    ]
    assert [page.name for page in pages if "install.md" not in page.read_text("utf-8")] == []
