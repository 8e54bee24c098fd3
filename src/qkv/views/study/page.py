"""A study as one HTML file, and as Markdown for docs/answers.

Both read `verdict.json` and `runs.jsonl` of a study's folder and nothing else: they can be written again at any time.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from qkv.folder.run_folder import write_atomically
from qkv.jsontypes import JsonMapping
from qkv.studies.counting import counting_words, gate, yardstick
from qkv.studies.engine.store import read_rows
from qkv.studies.verdict.wording import unit_words
from qkv.views.host import Host
from qkv.views.report.page import page_of
from qkv.views.study.section import (
    ANSWER_COLUMNS,
    StudyPayload,
    accounts_table,
    answer_cells,
    answering,
    as_shown,
    effort,
    expectations,
    expected_cell,
    number,
    study_section,
)


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

EFFECT_COLUMNS = ("effect", "estimate", "95% interval", "verdict", "n", "p (corrected)", "would see", "expected")
ARM_COLUMNS = (
    "arm", "what", "frozen (bit-identical)", "loss", "best n-gram, or what else is known", "sd", "learning rates",
    "best rate at the edge", "diverged",
)  # fmt: skip


def effect_cells(row: JsonMapping, verdict: JsonMapping) -> tuple[str, ...]:
    """One contrast of a verdict."""
    unit = row["unit"]
    bounds = "–" if row["low"] is None else f"{number(row['low'], unit)} to {number(row['high'], unit)}"
    alike = row["n"] > 1 and row["sd"] == 0  # and then there is no spread to judge by
    if alike:
        bounds = "all alike"
    return (
        f"{row['what']} ({unit_words(unit)})",
        number(row["effect"], unit),
        bounds,
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


# the same for docs/answers


_WRONG_IF = "Written down before training, as what would prove us wrong (see *expected* in the table of every effect):"


def answer_text(verdict: JsonMapping, picture: str = "", others: Sequence[str] = ()) -> str:
    """The answer of a verdict as Markdown: the answer, a `picture`, the math, how sure we are and what would change it.

    others: lines for the end of `how sure we are`.
    """
    verdict = as_shown(verdict)
    begun = gate(verdict["baseline"])
    answer = verdict["plain"].removeprefix(begun).strip() or verdict["sentence"]
    lines = [begun, ""] if begun else []
    lines += [f"**{answer}** {verdict.get('brief', '')}".rstrip(), ""]
    lines += [f"![The effects that the answer is about, with their 95% intervals]({picture})", ""] if picture else []
    lines += [verdict["more"], ""] if verdict.get("more") else []
    if math := verdict.get("math"):
        lines += ["## The math", "", *(f"- {line}" for line in math), ""]
    lines += ["## How sure we are, and for which models", "", kind_of_run(verdict), ""]
    lines += [*_markdown(ANSWER_COLUMNS, map(answer_cells, answering(verdict))), ""]
    lines += [verdict["condition"], "", counting_words(verdict), "", *others]
    lines += ["## What would change the answer", ""]
    changes = [f"- {words}" for heading, words in expectations(verdict) if "this answer" in heading]
    lines += [*changes, *([""] if changes else []), _WRONG_IF, ""]
    lines += [*(f"- {one.removesuffix('.')}." for one in verdict["falsified_by"].split("; ")), ""]
    return "\n".join(lines)


def folded_text(verdict: JsonMapping) -> str:
    """The rest of a verdict as Markdown, folded: effects, arms, and what else has to be known of the run."""
    verdict = as_shown(verdict)
    columns, *rows = accounts_table(verdict) or [()]
    lines = [*_folded("Measures side by side", _markdown(columns, rows)), ""] if rows else []
    effects = (effect_cells(row, verdict) for row in verdict["contrasts"])
    lines += [*_folded("Every effect, with its interval", _markdown(EFFECT_COLUMNS, effects)), ""]
    if verdict["arms"]:
        rows = (arm_cells(arm, verdict) for arm in verdict["arms"])
        lines += [*_folded("Every arm", _markdown(ARM_COLUMNS, rows)), ""]
    about = [
        verdict["sentence"],
        *verdict["notes"],
        *(f"Not reached in time: {what}" for what in verdict["not_reached"]),
    ]
    about += [f"{heading}: {words}" for heading, words in expectations(verdict) if heading.startswith("Expectations")]
    source = verdict["source"]
    about += [
        f"{effort(verdict)}; text {source['name']}, sha256 `{source['sha256'][:16]}`; {verdict['software']}; design"
        f" `{verdict['design'][:12]}`"
    ]
    lines += [*_folded("Notes on this run", [f"- {words.removesuffix('.')}." for words in about]), ""]
    return "\n".join(lines)


def kind_of_run(verdict: JsonMapping) -> str:
    """Whether a run is full or quick, and whether it was finished."""
    kind = "From a quick run, which is weak" if verdict["quick"] else "From a full run"
    made, planned = verdict["trainings"], verdict.get("planned_trainings", 0)
    if verdict["not_reached"]:
        kind += f", unfinished: {made:,} of about {planned:,} trainings" if made < planned else ", unfinished"
    return f"{kind}."


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    """Behind a line that opens them."""
    return [f'<details markdown="1"><summary>{title}</summary>', "", *lines, "", "</details>"]


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(columns), line(["---"] * len(columns)), *map(line, rows)]
