"""The embedded corpus: found by scanning, equal to what syntax trees give, without repetitions."""

import ast
import sysconfig
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from qkv.data.sources.default_corpus import default_documents, docstrings


def names_and_docstrings(tree: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            name = (*inside, node.name)
            text = (ast.get_docstring(node) or "").strip()
            if text:
                yield ".".join(name), text
        yield from names_and_docstrings(node, name)


LIBRARY = Path(sysconfig.get_path("stdlib"))
MODULES = sorted(LIBRARY.glob("*.py"))[::3] + sorted(LIBRARY.glob("email/*.py"))


def test_the_scan_finds_the_docstrings_and_names_of_the_syntax_tree() -> None:
    compared = 0
    for path in MODULES:
        source = path.read_text(encoding="utf-8", errors="replace")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        expected = Counter(names_and_docstrings(tree))
        own = (ast.get_docstring(tree) or "").strip()
        if own:
            expected["", own] += 1
        assert Counter(docstrings(source)) == expected, path.name
        compared += expected.total()
    assert compared > 500


def test_strings_that_are_no_docstrings_are_not_taken() -> None:
    source = '''x = """not one"""
def f(a="b", *, c={"d": ":"}):  # "neither
    r"""Yes."""
    if a:
        """no, a block of its own"""
    return """no"""
class C:
    # comment
    'Also.'
    def g(self): "On one line."
    async def h(self) -> "t":
        b"""bytes"""
def i():
    f"""no"""
'''
    assert list(docstrings(source)) == [("f", "Yes."), ("C", "Also."), ("C.g", "On one line.")]


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return default_documents()


def test_it_is_about_two_megabytes_of_text(documents: list[str]) -> None:
    size = sum(len(text.encode()) for text in documents)
    assert 1_000_000 < size < 4_000_000
    assert len(documents) > 1000
    assert sum(c.isalpha() or c.isspace() for text in documents[:300] for c in text) > 0.8 * sum(
        map(len, documents[:300])
    )


def test_no_paragraph_is_told_twice(documents: list[str]) -> None:
    paragraphs = Counter(
        " ".join(paragraph.lower().split())
        for text in documents
        for paragraph in text.split("\n\n")
        if len(paragraph) > 40
    )
    assert [paragraph for paragraph, count in paragraphs.items() if count > 1 and len(paragraph) > 40] == []


def test_manual_and_modules_are_interleaved(documents: list[str]) -> None:
    quarter = len(documents) // 4
    for start in range(0, 4 * quarter, quarter):
        part = documents[start : start + quarter]
        assert any("statement\n****" in text for text in part)
        assert any(text.startswith("tkinter.") for text in part) or any(text.startswith("email.") for text in part)


def test_it_is_the_same_again_and_quickly_from_the_cache(documents: list[str], tmp_path: Path) -> None:
    assert default_documents(tmp_path) == documents
    started = time.perf_counter()
    assert default_documents(tmp_path) == documents
    assert time.perf_counter() - started < 1.0
    kept = next((tmp_path / "default-corpus").iterdir())
    assert kept.stat().st_size < 2_000_000
