"""A study as one HTML file.

It reads `verdict.json` and `runs.jsonl` of a study's folder and nothing else: it can be written again at any time.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from qkv.folder.run_folder import write_atomically
from qkv.jsontypes import JsonMapping
from qkv.studies.counting import yardstick
from qkv.studies.engine.store import read_rows
from qkv.studies.verdict.wording import unit_words
from qkv.views.host import Host
from qkv.views.report.page import page_of
from qkv.views.study.section import StudyPayload, expected_cell, number, study_section


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


# cells that the terminal shows, and docs/answers

EFFECT_COLUMNS = ("effect", "estimate", "95% interval", "verdict", "n", "p (corrected)", "would see", "expected")
ARM_COLUMNS = (
    "arm", "what", "frozen (bit-identical)", "loss", "best n-gram, or what else is known", "sd", "learning rates",
    "best rate at the edge", "diverged",
)  # fmt: skip


def effect_cells(row: JsonMapping, verdict: JsonMapping) -> tuple[str, ...]:
    """One contrast of a verdict."""
    unit = row["unit"]
    alike = row["n"] > 1 and row["sd"] == 0  # and then there is no spread to judge by
    said = "–" if row["low"] is None else f"{number(row['low'], unit)} to {number(row['high'], unit)}"
    return (
        f"{row['what']} ({unit_words(unit)})",
        number(row["effect"], unit),
        "all alike" if alike else said,
        row["verdict"],
        str(row["n"]),
        "–" if alike else number(row["p_corrected"]),
        "–" if alike else number(row["detectable"], unit),
        expected_cell(row, verdict),
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
