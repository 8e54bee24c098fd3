"""Checkpoints of transformers itself, as a module (tests are not a package, so it is loaded by its path)."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="session")
def beside() -> Callable[[str], ModuleType]:
    """A file of this folder by its name, as a module."""

    def load(name: str) -> ModuleType:
        path = Path(__file__).with_name(f"{name}.py")
        specification = importlib.util.spec_from_file_location(f"their_{name}", path)
        assert specification is not None and specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def theirs(beside: Callable[[str], ModuleType]) -> ModuleType:
    """The module that makes small random checkpoints."""
    pytest.importorskip("transformers", reason="needs the dev extra (transformers)")
    return beside("theirs")
