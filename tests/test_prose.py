"""Pages are plain technical English: sentences of a readable length, none of the phrases below; answers are short."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ELSEWHERE = ("cli",)
"""Written by a program from the help of every command."""
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "notebooks/README.md")),
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem not in ELSEWHERE),
    *(ROOT / "docs" / folder / "README.md" for folder in ("playground", "benchmarks", "decisions")),
]
ANSWERS = sorted(page for page in (ROOT / "docs" / "answers").glob("*.md") if page.stem != "proofs")
MEAN, LONG, LONG_SHARE, LONGEST = 18, 30, 0.06, 40
"""At most so many words per sentence on average; at most that share of the sentences over LONG; none over LONGEST."""
NOT_SAID = (
    "not to be told from", "that nothing could tell", "less the same of", "less that of", "as it began",
    "as they began", "anew", "stands in", "stands beside", "of a hundred", "needs both to have", "is missed more",
    "of which the", "whoever", "let go of", "gone on with", "had here", "to the bit", "by so many", "is told",
    "what is made of", "what is asked of", "whatever else", "earned", "a look at", "came out otherwise",
    "holds for itself",
)  # fmt: skip
"""Phrases that plain technical English does without. `earned` is the name of a measure, so code marks may hold it."""
NOTEBOOKS = [path for path in sorted((ROOT / "notebooks").glob("*.py")) if path.stem != "make"]
NO_SENTENCE_ENDS = re.compile(r"\b(al|e\.g|i\.e|vs|Fig|No)\.")


def prose(text: str) -> str:
    """The text of a page without code blocks, tables, headings, pictures, formulas, comments and link targets."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"^\$\$.*?\$\$$", "", text, flags=re.M | re.S)
    text = re.sub(r"^(\||#).*$", "", text, flags=re.M)
    text = re.sub(r"((?:^|\n)[ ]*\n)((?: {4}.*(?:\n|$)|[ ]*\n)+)", r"\1", text)  # a block that is indented
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text))


def sentences(text: str) -> list[str]:
    """The sentences of a page. A blank line, a list item and a line that ends with a colon end one too."""
    whole = re.sub(r"`[^`]*`", lambda code: re.sub(r"[.!?:](?=\s|`|$)", ",", code[0]), prose(text))
    whole = NO_SENTENCE_ENDS.sub(r"\1", whole)
    parts = re.split(r"(?<=[.!?])[)\"'*`_]*\s+|\n[ ]*\n|\n(?=[ ]*(?:[-*]|\d+\.) )|(?<=:)\n", whole)
    return [" ".join(part.split()) for part in parts if re.search(r"\w", part)]


def n_words(sentence: str) -> int:
    """How many words a sentence has; a mark between spaces is none, a code span has as many as are in it."""
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def faults(text: str) -> list[str]:
    """What in a page is against the rules, in words."""
    found = sentences(text)
    lengths = [n_words(sentence) for sentence in found]
    low = " ".join(re.sub(r"`[^`]*`", "", prose(text)).lower().split())
    wrong = [f"{length} words: {s}" for length, s in zip(lengths, found, strict=True) if length > LONGEST]
    wrong += [f"'{phrase}' is said" for phrase in NOT_SAID if re.search(rf"\b{phrase}\b", low)]
    wrong += [f"'{percent}' has a space" for percent in re.findall(r"\d %", low)]
    if lengths and (mean := sum(lengths) / len(lengths)) > MEAN:
        wrong.append(f"{mean:.1f} words per sentence, at most {MEAN} are allowed")
    long = [f"{length}: {s}" for length, s in zip(lengths, found, strict=True) if length > LONG]
    if len(long) > LONG_SHARE * len(found):
        wrong.append(f"{len(long)} of {len(found)} sentences have over {LONG} words: {' // '.join(long)}")
    return wrong


MOST_ROWS, MOST_COLUMNS, LONGEST_ANSWER = 10, 7, 60
"""Of a table that is not folded; words of an answer."""
PARTS = ("The math", "How sure we are, and for which models", "What would change the answer", "Everything else")
RAW = (
    r"\b(?:enc\.|dec\.)?L\d+\.\w+", r"\*\*?\.\w", r"\b[\w-]+-[0-9a-f]{8}\b", r"\b(?!W_|d_)[a-z]\w*_\w+\b",
    r"\de-\d", r"\d %", r"\b\w+ - \w+, less\b",
)  # fmt: skip
"""Addresses, globs, folders, names of settings, powers of ten and spaces before a percent sign, in prose."""


def unfolded(text: str) -> str:
    """What a reader sees without opening anything."""
    return re.sub(r"<details.*?</details>", "", text, flags=re.S)


def tables(text: str) -> list[tuple[int, int]]:
    """Rows, without the head, and columns of every table."""
    found = re.findall(r"((?:^\|.*\n)+)", text, flags=re.M)
    return [(len(rows) - 2, rows[0].count(" | ") + 1) for rows in (block.splitlines() for block in found)]


def n_digits(number: str) -> int:
    """Significant digits."""
    return len(re.sub(r"\D", "", number).lstrip("0"))


def figure_faults(text: str) -> list[str]:
    """Numbers with a decimal point and more than three digits, and what else is not written for a reader."""
    low = re.sub(r"`[^`]*`|<[^>]*>|arXiv:? \d+\.\d+|torch \S+", "", prose(text))
    numbers = re.findall(r"(?<![\w.])[+-]?\d[\d,]*\.\d+(?![\w.]*\d)", low)
    wrong = [f"{number} has too many digits" for number in numbers if n_digits(number) > 3]
    return wrong + [f"'{found}' is raw" for pattern in RAW for found in re.findall(pattern, low)]


@pytest.mark.parametrize("page", ANSWERS, ids=lambda page: page.stem)
def test_an_answer_page_is_in_plain_sentences(page):
    text = re.sub(r"</?(?:details|summary)[^>]*>", "\n\n", page.read_text("utf-8"))
    assert faults(text) + figure_faults(text) == []


@pytest.mark.parametrize("page", [page for page in ANSWERS if page.stem != "README"], ids=lambda page: page.stem)
def test_an_answer_page_has_its_parts_in_order_and_the_rest_folded(page):
    text = page.read_text("utf-8")
    seen = unfolded(text)
    title, *_ = re.findall(r"^# (.+)$", text, flags=re.M)
    places = [seen.index(f"\n## {part}\n") for part in PARTS]
    assert places == sorted(places) and title.endswith(("?", ".")), "the question first, in the asker's words"
    start = seen[: places[0]]
    pictures = 1 + sum(f"\n## {ladder}?\n" in start for ladder in ("Only at this size", "Is it the depth"))
    assert start.count("![") == pictures == seen.count("!["), "one picture, and one for each ladder, above the math"
    (answer,) = re.findall(r"^\*\*(.+)$", start, flags=re.M)
    assert start.index(answer) < start.index("![") and n_words(answer) <= LONGEST_ANSWER, n_words(answer)
    assert "\nThese models predict worse than counting" not in start.partition(answer)[2], (
        "what limits an answer is first"
    )
    math = seen[places[0] : places[1]].partition("\n\n")[2].strip().splitlines()
    assert 1 <= len(math) <= 3 and all(line.startswith("- ") and len(line) < 140 for line in math)
    wide = [table for table in tables(seen) if table[0] > MOST_ROWS or table[1] > MOST_COLUMNS]
    assert tables(seen[places[1] : places[2]]) and wide == []


@pytest.mark.parametrize(
    "words, wrong",
    [
        ("It costs 4.214 nats.", "4.214 has too many digits"),
        ("It costs 74 % of it.", "'4 %' is raw"),
        ("The share of L0.q is lower.", "'L0.q' is raw"),
        ("All of enc.**.W_O moves.", "'**.W' is raw"),
        ("Below -3.3e-16 it is 0.", "'3e-1' is raw"),
        ("See study-which-matrix-a-a402dde8.", "'study-which-matrix-a-a402dde8' is raw"),
    ],
)
def test_what_is_not_written_for_a_reader_is_found(words, wrong):
    assert wrong in figure_faults(words)
    assert figure_faults("W_E costs 97.1% of 32,767 tokens, +0.00072 to 3.61 (arXiv 2605.09751), `L0.q` too.") == []


def test_a_table_is_counted_where_it_is_seen():
    table = "| a | b |\n| --- | --- |\n" + "| 1 | 2 |\n" * 11
    assert tables(f"x\n\n{table}") == [(11, 2)] and tables(unfolded(f"<details>\n{table}</details>")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_in_plain_sentences(page):
    assert faults(page.read_text("utf-8")) == []


def cells(notebook: Path) -> str:
    """The prose of a notebook in the percent format: its Markdown cells, without their comment marks."""
    found = re.split(r"^# %%", notebook.read_text("utf-8"), flags=re.M)
    prose = [cell.partition("\n")[2] for cell in found if cell.startswith(" [markdown]")]
    return "\n\n".join(re.sub(r"^# ?", "", cell, flags=re.M) for cell in prose)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_in_plain_sentences(notebook):
    text = cells(notebook)
    assert len(sentences(text)) > 3 and faults(text) == []


def test_every_page_is_read():
    names = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert {"README.md", "CHANGELOG.md", "docs/tour.md", "docs/measures.md", "docs/playground/README.md"} <= names
    assert len(NOTEBOOKS) >= 5 and all(page.is_file() for page in PAGES)


def test_what_is_no_prose_is_not_counted():
    page = """<!-- a comment of some words -->
# A heading of some words

One sentence with [a link](to/somewhere.md#else) in it. A second, by Vig et al. 2020, names `W_E. W_U` (see
there). This line ends with a colon:

| a | table. with a sentence |
|---|---|

    qkv train my.txt    # a comment. Two.

- an item without a full stop
- another
  of two lines

```sh
qkv show. Not this.
```

![a picture. With words](x.png)
"""
    assert sentences(page) == [
        "One sentence with a link in it.", "A second, by Vig et al 2020, names `W_E, W_U` (see there).",
        "This line ends with a colon:", "- an item without a full stop", "- another of two lines",
    ]  # fmt: skip
    assert [n_words(sentence) for sentence in sentences(page)] == [7, 12, 6, 6, 4]


@pytest.mark.parametrize(
    "page, wrong",
    [
        (" ".join(["word"] * 41) + ".", "41 words: word"),
        (f"{' '.join(['word'] * 19)}. " * 4, "19.0 words per sentence"),
        (f"{' '.join(['word'] * 31)}. " + "One two. " * 14, "1 of 15 sentences have over 30"),
        ("A broken\nline stands\nin the way.", "'stands in' is said"),
        ("What W_E earned.", "'earned' is said"),
        ("It is 5 % more.", "'5 %' has a space"),
    ],
)
def test_a_page_that_breaks_a_rule_is_found(page, wrong):
    assert any(fault.startswith(wrong) for fault in faults(page)), faults(page)


def test_a_page_within_the_limits_passes():
    page = f"{' '.join(['word'] * 40)}. " + f"{' '.join(['word'] * 16)}. " * 19 + "\n\nThe measure `earned`."
    assert faults(page) == []
