"""What all tests share: real data where it lies, and a small text of our own making."""

import os
import shutil
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
