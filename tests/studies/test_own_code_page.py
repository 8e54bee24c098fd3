"""The page about code of one's own: what it shows is what lies in `docs/examples`, and its studies run."""

import re
import sys
from pathlib import Path

import pytest

import qkv

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "own-code.md").read_text(encoding="utf-8")
STUDIES = re.findall(r"^    qkv study (\S+)$", PAGE, flags=re.M)
TINY = "[base]\nn_layers = 1\nd_model = 16\nn_heads = 2\nn_ctx = 16\nbatch_size = 4\noptimizer.lr = 0.01\n"


def test_the_page_shows_the_examples() -> None:
    shown = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)
    for name in ("lion", "cubic", "metrics"):
        code = (DOCS / "examples" / f"{name}.py").read_text(encoding="utf-8").split('"""', 2)[2].strip()
        assert code in [block.strip() for block in shown], name
    optimizer = DOCS / "examples" / "package" / "qkv_example" / "optimizer.py"
    assert optimizer.read_text(encoding="utf-8") == (DOCS / "examples" / "lion.py").read_text(encoding="utf-8")
    assert len(STUDIES) == 3 and len(re.findall(r"qkv train my.txt --set \S+=\w+:\w+", PAGE)) == 2


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_of_the_page_runs_at_a_tiny_size(
    name: str, tmp_path: Path, long_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    for module in (DOCS / "examples").glob("*.py"):
        (tmp_path / module.name).write_text(module.read_text(encoding="utf-8"))
        monkeypatch.delitem(sys.modules, module.stem, raising=False)
    (tmp_path / "my.txt").write_bytes(long_text.read_bytes()[:60_000])
    text = (DOCS / "examples" / name).read_text(encoding="utf-8")
    head, rest = re.split(r"^\[base\].*\n" if "[base]" in text else r"\n\n", text, maxsplit=1, flags=re.M)
    (tmp_path / "mine.toml").write_text(f'steps = 6\nseeds = 2\ntokenizer = "char"\n{head}\n{TINY}{rest}')
    verdict = qkv.study(tmp_path / "mine.toml", minutes=600)
    page = (Path(verdict["run"]) / "page.html").read_text(encoding="utf-8")
    assert verdict["seeds"] == 2 and verdict["trainings"] == 4
    assert re.search(r'^question = "(.*)"$', text, flags=re.M)[1] in page  # type: ignore[index]
    assert all(effect["effect"] is not None for effect in verdict["contrasts"])
