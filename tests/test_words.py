"""What people read about the random-label control says what it is, and claims no more."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ANSWERS = re.compile(r"<!-- answers: .*<!-- end of answers -->", re.S)
"""What studies found; they have words and tests of their own."""
READ = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(path for folder in ("inspection", "commands", "instruments", "recipe", "views")
      for path in sorted((ROOT / "src" / "qkv" / folder).rglob("*")) if path.suffix in (".py", ".js")),
    *sorted((ROOT / "notebooks").glob("*.py")),
]  # fmt: skip
STUDIES = re.compile(r"study|studied|forest|margins|studies\.md")
CLAIMS = re.compile(
    r"nothing (?:could|can) (?:be learned|tell)|nothing to learn(?!:)|no sign of learning|learned nothing but"
    r"|only what differs|that is learning|without learning|when nothing (?:is|was) learned"
    r"|trained? on random labels|training on random labels|on random labels|random labels (?:do|would)|\bthe null\b",
    re.IGNORECASE,
)


def test_no_page_and_no_message_says_that_the_control_cannot_learn_or_calls_it_a_null():
    """It learns to guess evenly; that of an earlier version's run, whose report may be made again, frequencies."""
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in READ
        if not STUDIES.search(path.name) and "vendor" not in path.parts
        for match in CLAIMS.finditer(ANSWERS.sub("", path.read_text(encoding="utf-8")))
    ]
    assert len(READ) > 150 and found == []


def test_the_search_finds_what_was_said():
    for wrong in (
        "only what differs from random labels was learned",
        "what movement looks like with nothing to learn; it is",
        "the same training on random labels",
        "where nothing can be learned",
        "on labels that nothing could tell",
    ):
        assert CLAIMS.search(wrong), wrong
    assert not CLAIMS.search("the random-label control (labels drawn uniformly at every step)")


def test_pages_that_speak_of_the_control_say_what_it_is():
    speaks = [path for path in READ if path.suffix == ".md" and "random-label" in path.read_text(encoding="utf-8")]
    assert {"README.md", "report.md", "views.md", "measures.md"} <= {path.name for path in speaks}
    for name in ("README.md", "docs/report.md", "docs/views.md", "docs/measures.md", "docs/classify.md"):
        text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        assert "labels drawn uniformly" in text, name
