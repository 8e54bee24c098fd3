"""The tiny study as a fixture."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("scipy.stats", reason="SciPy is in the extra study")


@pytest.fixture(scope="session")
def tiny_study() -> ModuleType:
    """The module tiny_study.py."""
    spec = importlib.util.spec_from_file_location("tiny_study", Path(__file__).with_name("tiny_study.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def long_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 330 kB of made words by Zipf's law, with some structure, the same every time."""
    from qkv.randomness import generator
    from qkv.studies.streams import word

    draws = generator("tests", "long_text")
    ranks = draws.zipf(1.3, size=110_000) % 3000
    ranks[1::2] = (7 * ranks[::2] + 1) % 3000
    path = tmp_path_factory.mktemp("text") / "long.txt"
    path.write_text(" ".join(word(int(rank)) for rank in ranks), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of tokens and vocabularies for all tests."""
    return tmp_path_factory.mktemp("cache")
