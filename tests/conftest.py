"""What all tests share: shapes that are checked, real data where it lies, and a small text of our own making."""

import dataclasses
import functools
import importlib.machinery
import os
import random
import shutil
import sys
import typing
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import FunctionType, ModuleType

import jaxtyping
import numpy as np
import pytest
import torch
from beartype import beartype

from qkv import shapes

for name in shapes.__all__:
    setattr(shapes, name, getattr(jaxtyping, name))

CHECKED = ("qkv.kernels", "qkv.models", "qkv.instruments", "qkv.inspection")
"""Rooms whose functions are checked for the shapes and dtypes that their signatures name."""
_checks = {"on": True}


class CheckedModules(MetaPathFinder):
    """Finds the modules of these rooms, and has their functions checked as soon as each is loaded."""

    def find_spec(self, fullname, path=None, target=None):
        if not fullname.startswith(CHECKED):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), check_module(module))
        return spec


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes name no test: compressed ones hold the time, and two processes would then collect different tests."""
    return argname if isinstance(val, bytes) else None


def check_module(module: ModuleType) -> None:
    """Check every function and method of a module that names a shape in its signature."""
    own = [thing for thing in vars(module).values() if getattr(thing, "__module__", "") == module.__name__]
    for holder in (module, *(thing for thing in own if isinstance(thing, type))):
        for name, thing in list(vars(holder).items()):
            function = getattr(thing, "fget", None) or getattr(thing, "__func__", thing)
            if not isinstance(function, FunctionType) or function.__module__ != module.__name__:
                continue
            if any(map(names_a_shape, function.__annotations__.values())):
                new = checked(function)
                setattr(holder, name, new if function is thing else type(thing)(new))


def names_a_shape(annotation: object) -> bool:
    """Whether jaxtyping has something to say of an annotation, or of a part of it."""
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(names_a_shape, typing.get_args(annotation)))


def checked(function: FunctionType) -> FunctionType:
    """The same function, checked whenever it is given shapes or dtypes that it has not been given before."""
    seen = set()

    @functools.cache
    def strict() -> FunctionType:
        return jaxtyping.jaxtyped(function, typechecker=beartype)

    @functools.wraps(function)
    def call(*args, **kwargs):
        if torch.compiler.is_compiling() or not _checks["on"]:
            return function(*args, **kwargs)
        given = kinds((*args, *kwargs.items()))
        if given in seen:
            return function(*args, **kwargs)
        out = strict()(*args, **kwargs)
        seen.add(given)
        return out

    return call


def kinds(given: tuple) -> tuple:
    """Shapes and dtypes of arrays, wherever they are in some arguments; sizes and words; of anything else its type."""
    found = []
    for each in given:
        kind = type(each)
        if kind in (torch.Tensor, torch.nn.Parameter, np.ndarray):
            found += (each.shape, each.dtype)
        elif kind in (tuple, list):
            found.append(kinds(each))
        else:
            found.append(each if kind in (int, bool, str) else kind)
    return tuple(found)


sys.meta_path.insert(0, CheckedModules())


@pytest.fixture(scope="session", autouse=True)
def compiled_passes() -> None:
    """Tests take compiled passes wherever they can be had, also where a measurement found torch's faster."""
    from qkv.training import calibration

    measured = calibration.choice

    @functools.cache
    def choice(dtype: torch.dtype) -> calibration.Choice | None:
        return (found := measured(dtype)) and dataclasses.replace(found, native=True)

    choice.__wrapped__ = measured.__wrapped__
    calibration.choice = choice


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a test hand over shapes that do not fit, to see what a user is told."""
    monkeypatch.setitem(_checks, "on", False)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data that QKV_DATA names."""
    if "QKV_DATA" not in os.environ:
        pytest.skip("QKV_DATA names no folder of real data")
    return Path(os.environ["QKV_DATA"])


@pytest.fixture(scope="session")
def tinyshakespeare(real_data: Path) -> Path:
    """Tiny Shakespeare, one file of 1.1 MB."""
    path = real_data / "tinyshakespeare" / "input.txt"
    if not path.exists():
        pytest.skip("QKV_DATA holds no tinyshakespeare/input.txt")
    return path


@pytest.fixture(scope="session")
def small_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 30 kB of English-like sentences with structure to learn, the same every time."""
    from qkv.randomness import generator

    draws = generator("tests", "small_text")
    nouns, verbs, places = (
        ("the cat", "a dog", "the king", "a queen"),
        ("sees", "likes", "meets"),
        ("home", "the sea", "a tree"),
    )
    sentences = [
        f"{draws.choice(nouns)} {draws.choice(verbs)} {draws.choice(nouns)} at {draws.choice(places)}."
        for _ in range(800)
    ]
    path = tmp_path_factory.mktemp("text") / "small.txt"
    path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def small_pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """600 pairs of a little language whose words come in another order than their translations, in two files."""
    from qkv.randomness import generator

    draws = generator("tests", "small_pairs")
    nouns = {"der Hund": "the dog", "die Katze": "the cat", "der König": "the king", "eine Frau": "a woman"}
    verbs = {"sieht": "sees", "mag": "likes", "ruft": "calls"}
    places = {"zu Hause": "at home", "am Meer": "by the sea", "im Wald": "in the forest", "hier": "here"}
    left, right = [], []
    for _ in range(600):
        a, b = (str(draws.choice(list(nouns))) for _ in range(2))
        verb, place = str(draws.choice(list(verbs))), str(draws.choice(list(places)))
        left.append(f"{place} {verb} {a} {b}.")
        right.append(f"{nouns[a]} {verbs[verb]} {nouns[b]} {places[place]}.")
    folder = tmp_path_factory.mktemp("pairs")
    files = folder / "small.de", folder / "small.en"
    for file, lines in zip(files, (left, right), strict=True):
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return files


@pytest.fixture(scope="session")
def prose() -> str:
    """About 60 kB of sentences with words, marks, digits, line ends and some characters beyond ASCII."""
    draws = random.Random(7)
    syllables = ["ka", "to", "mi", "ren", "sul", "é", "ba", "lor", "the", "in", "ß", "qu"]
    words = ["".join(draws.choices(syllables, k=draws.randint(1, 4))) for _ in range(400)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    lines = []
    for _ in range(900):
        chosen = draws.choices(words, weights, k=draws.randint(3, 14))
        lines.append(" ".join(chosen).capitalize() + draws.choice([".", "!", "?", ", 1984;", " -- 7's", "...  "]))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def prose_file(prose: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prose as a file."""
    path = tmp_path_factory.mktemp("prose") / "prose.txt"
    path.write_text(prose, encoding="utf-8", newline="")
    return path


@pytest.fixture(scope="session")
def chromium():
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None and os.environ.get("QKV_CI"):
        pytest.fail("no Chromium on this machine; .ci/run needs one")
    if path is None:
        pytest.skip("no Chromium on this machine; browser tests are left out")
    return path


@pytest.fixture(scope="session")
def browser(chromium):
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed; browser tests are left out"
    )
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
