"""What a stranger meets outside the repository: the page of a package index, the citation, the workflows."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from qkv import __version__

pytest.importorskip("hatchling", reason="builds the package; it is in the extra dev")

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
README = (ROOT / "README.md").read_text("utf-8")
RELATIVE = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s]+)\)")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_an_address_the_readme_keeps_its_words_and_no_link_that_breaks(hook):
    made = hook.outside(README, "")
    assert RELATIVE.search(README) and not RELATIVE.search(made) and "![" not in made
    assert hook.urls("") == {}
    assert hook.outside("see [the *tour*](docs/tour.md), [a](https://b.c) and [d](#e)", "") == (
        "see the *tour*, [a](https://b.c) and [d](#e)"
    )


def test_with_an_address_every_link_leads_to_a_file_that_is_there(hook):
    at = "https://example.org/qkv"
    made = hook.outside(README, at)
    targets = re.findall(r"\]\(" + re.escape(at) + r"/(blob|raw)/main/([^)\s#]+)", made)
    assert not RELATIVE.search(made) and len(targets) == len(RELATIVE.findall(README))
    assert [target for _, target in targets if not (ROOT / target).exists()] == []
    assert len(hook.urls(at)) >= 2 and all(url.startswith(at) for url in hook.urls(at).values())


def test_no_page_or_message_names_an_address_that_does_not_exist():
    assert PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["address"] == ""
    pages = [ROOT / "README.md", ROOT / "CITATION.cff", *(ROOT / "docs").glob("*.md")]
    assert [
        page.name
        for page in pages
        if re.search(r"(?<!-e )pip install qkv|pypi\.org/project/qkv", page.read_text("utf-8"))
    ] == []


def test_the_citation_is_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {__version__}\n" in citation
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_license_names_what_is_vendored():
    vendored = [path.read_text("utf-8") for path in (ROOT / "src").rglob("vendor/*.LICENSE.txt")]
    assert len(vendored) == 2 and all("Permission to use, copy, modify, and/or distribute" in text for text in vendored)
    assert PROJECT["project"]["license"] == "Apache-2.0 AND ISC"
    assert "src/qkv/views/static/vendor/*.LICENSE.txt" in PROJECT["project"]["license-files"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_and_markers_that_there_are(path):
    text, makefile = path.read_text("utf-8"), (ROOT / "Makefile").read_text("utf-8")
    for called in re.findall(r"\bmake ((?:[a-z]+ ?)+)", text):
        assert [target for target in called.split() if f"\n{target}:" not in makefile] == []
    markers = {line.partition(":")[0] for line in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    for chosen in re.findall(r'-m "([^"]+)"', text):
        assert set(re.findall(r"\w+", chosen)) - {"not", "and", "or"} <= markers
