"""A tiny training, as a module and as a script (tests are not a package, so it is loaded by its path)."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TINY = Path(__file__).with_name("tiny.py")


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """The module of the smallest training."""
    specification = importlib.util.spec_from_file_location("tiny_training", TINY)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny_script() -> Path:
    """The same as a script."""
    return TINY
