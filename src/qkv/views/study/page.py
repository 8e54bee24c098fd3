"""A study as one HTML file, and as Markdown for docs/answers.

Both read `verdict.json` and `runs.jsonl` of a study's folder and nothing else: they can be written again at any time.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from qkv.folder.run_folder import write_atomically
from qkv.jsontypes import JsonMapping
from qkv.studies.counting import counting_words, yardstick
from qkv.studies.engine.store import read_rows
from qkv.views.host import Host
from qkv.views.report.page import page_of
from qkv.views.study.section import (
    StudyPayload,
    accounts_table,
    as_shown,
    effort,
    expectations,
    expected_cell,
    number,
    study_section,
)

__all__ = ["answer_text", "as_shown", "effort", "expectations", "study_page", "write_study_page"]


def write_study_page(folder: Path) -> Path:
    """Write `page.html` into a study's folder; returns its path. Raises StorageError."""
    verdict = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
    path = folder / "page.html"
    write_atomically(path, study_page(verdict, read_rows(folder)).encode())
    return path


def study_page(verdict: JsonMapping, rows: Iterable[JsonMapping] = ()) -> str:
    """The page as HTML text: the section of a study, which asks the network for nothing."""
    payload = StudyPayload(host=Host(), study=study_section(verdict, rows))
    return page_of(payload, "study_alone.js", title=f"{verdict['study']} · qkv", description=verdict["sentence"])


# words and cells that the terminal and the Markdown share

EFFECT_COLUMNS = ("effect", "mean", "95 % interval", "verdict", "n", "p (corrected)", "would see", "expected")
ARM_COLUMNS = (
    "arm", "what", "frozen (bit-identical)", "loss", "best n-gram, or what else is known", "sd", "learning rates",
    "best rate at the edge", "diverged",
)  # fmt: skip


def effect_cells(row: JsonMapping) -> tuple[str, ...]:
    """One contrast of a verdict."""
    unit = row["unit"]
    bounds = "–" if row["low"] is None else f"{number(row['low'], unit)} to {number(row['high'], unit)}"
    alike = row["n"] > 1 and row["sd"] == 0  # and then there is no spread to judge by
    if alike:
        bounds = "all alike"
    return (
        f"{row['name']} ({unit})",
        number(row["effect"], unit),
        bounds,
        row["verdict"],
        str(row["n"]),
        "–" if alike else number(row["p_corrected"]),
        "–" if alike else number(row["detectable"], unit),
        expected_cell(row),
    )


def arm_cells(row: JsonMapping, verdict: JsonMapping) -> tuple[str, ...]:
    """One arm of a verdict, its loss next to what counting reaches."""
    rates = sorted(set(row["rates"]))
    spread = "–" if not rates else f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g} to {rates[-1]:g}"
    edge = f"{row['at_edge']} of {len(row['losses'])}"
    diverged = f"{row['diverged']} of {row['trainings']}"
    frozen = ", ".join(row["frozen"]) or "nothing"
    known = yardstick(verdict, row)
    return row["name"], row["what"], frozen, number(row["loss"]), known, number(row["sd"]), spread, edge, diverged


# the same for docs/answers


def answer_text(verdict: JsonMapping, picture: str = "") -> str:
    """The answer of a verdict as Markdown: counting, sentence, effects (and a `picture` of them), arms, expectations,
    literature."""
    verdict = as_shown(verdict)
    effects = (
        (f"{row['what']}: {cells[0]}", *cells[1:]) for row in verdict["contrasts"] for cells in [effect_cells(row)]
    )
    lines = [counting_words(verdict), "", f"**{verdict['sentence']}**", ""]
    columns, *rows = accounts_table(verdict) or [()]
    lines += [*_markdown(columns, rows), ""] if rows else []
    lines += [f"![Effects with their 95 % intervals]({picture})", ""] if picture else []
    lines += [*_folded("Every effect, with its interval", _markdown(EFFECT_COLUMNS, effects)), ""]
    lines += [f"- {note}." for note in verdict["notes"]]
    lines += [""] if verdict["notes"] else []
    if verdict["not_reached"]:
        lines += [f"Not reached in the time: {'; '.join(verdict['not_reached'])}.", ""]
    if verdict["arms"]:
        rows = (arm_cells(arm, verdict) for arm in verdict["arms"])
        lines += [*_folded("Every arm", _markdown(ARM_COLUMNS, rows)), ""]
    lines += [line for heading, words in expectations(verdict) for line in (f"{heading}: {words}", "")]
    lines += [
        f"{effort(verdict)}; text {verdict['source']['name']},"
        f" sha256 {verdict['source']['sha256'][:16]}; {verdict['software']}; design {verdict['design'][:12]}.",
        "",
    ]
    return "\n".join(lines)


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    """Behind a line that opens them."""
    return [f'<details markdown="1"><summary>{title}</summary>', "", *lines, "", "</details>"]


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(columns), line(["---"] * len(columns)), *map(line, rows)]
