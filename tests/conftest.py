"""What all tests share: real data where it lies, and a small text of our own making."""

import os
from pathlib import Path

import pytest


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
