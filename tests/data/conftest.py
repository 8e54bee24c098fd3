"""Texts of our own making for the data room."""

import random
from pathlib import Path

import pytest


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
