"""The page of a study: its sentence, effects with intervals, curves, arms and log, as one HTML file without scripts.

It reads `verdict.json` and `runs.jsonl` of a study's folder and nothing else, so it can be written again at any time.
`answer_text` gives the same answer as Markdown, for docs/answers.
"""

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.folder import write_atomically
from qkv.studies.statistics import how_exact
from qkv.studies.store import read_rows

__all__ = ["answer_text", "effort", "study_page", "write_study_page"]

_WIDTH, _HEIGHT = 640, 260
_COLOURS = ("#4269d0", "#c45a00", "#3ca951", "#a463f2", "#e0447c", "#6b7280", "#0e9aa7", "#9c6b4e")
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: 0.9rem; display: block; overflow-x: auto; }
th, td { padding: 0.25rem 0.75rem 0.25rem 0; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
.answer { font-size: 1.15rem; border-left: 4px solid #4269d0; padding-left: 1rem; }
.quiet { opacity: 0.75; font-size: 0.9rem; }
svg { max-width: 100%; height: auto; } svg text { fill: currentColor; font: 12px system-ui, sans-serif; }
"""


def write_study_page(folder: Path) -> Path:
    """Write `page.html` into a study's folder; returns its path. Raises StorageError."""
    verdict = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
    path = folder / "page.html"
    write_atomically(path, study_page(verdict, read_rows(folder)).encode())
    return path


def study_page(verdict: Mapping[str, Any], rows: Iterable[Mapping[str, Any]] = ()) -> str:
    """The page as HTML text. Everything of the verdict reaches markup through escaping."""
    say = html.escape
    parts = [
        f"<h1>{say(verdict['asks'])}</h1>",
        f'<p class="answer">{say(verdict["sentence"])}</p>',
        f"<p>The full run on this text said: {say(verdict['full_answer'])}</p>" if verdict.get("full_answer") else "",
        "<h2>Effects</h2>",
        _forest(verdict["contrasts"]),
        _table(EFFECT_COLUMNS, map(effect_cells, verdict["contrasts"])),
        *(f"<p>Not reached in the time: {say(missing)}.</p>" for missing in verdict["not_reached"]),
        "<h2>Loss while training</h2>" if verdict["arms"] else "",
        _curves(verdict["arms"]),
        "<h2>Arms</h2>" if verdict["arms"] else "",
        _table(ARM_COLUMNS, map(arm_cells, verdict["arms"])) if verdict["arms"] else "",
        f"<h2>What would show it to be wrong</h2><p>{say(verdict['falsified_by'])}</p>",
        f"<h2>What has been published</h2><p>{say(verdict['literature'])}</p>",
        f'<p class="quiet">{say(effort(verdict))}.</p>',
        _log(verdict, [row for row in rows if "arm" in row]),
    ]
    title = f"{verdict['study']} · qkv"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{say(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(part for part in parts if part) + "\n</body></html>\n"
    )


# words and cells that the page and the Markdown share

EFFECT_COLUMNS = ("effect", "mean", "95 % interval", "verdict", "n", "p (Holm)", "would see", "expected")
ARM_COLUMNS = ("arm", "what", "frozen, to the bit", "loss", "sd", "learning rates", "best rate at the edge", "diverged")


def number(value: float | None) -> str:
    """Three significant digits or three decimals; a dash for what is undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.01 else f"{value:.1e}"


def effect_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One contrast of a verdict."""
    bounds = "–" if row["low"] is None else f"{number(row['low'])} to {number(row['high'])}"
    return (
        f"{row['name']} ({row['unit']})",
        number(row["effect"]),
        bounds,
        row["verdict"],
        str(row["n"]),
        number(row["p_holm"]),
        number(row["detectable"]),
        row["expected"],
    )


def arm_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One arm of a verdict."""
    rates = sorted(set(row["rates"]))
    spread = "–" if not rates else f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g} to {rates[-1]:g}"
    edge = f"{row['at_edge']} of {len(row['losses'])}"
    diverged = f"{row['diverged']} of {row['trainings']}"
    frozen = ", ".join(row["frozen"]) or "nothing"
    return row["name"], row["what"], frozen, number(row["loss"]), number(row["sd"]), spread, edge, diverged


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


# pictures


def _forest(contrasts: Sequence[Mapping[str, Any]]) -> str:
    """Every interval of the primary's unit on one axis, with its margin as a band."""
    unit = contrasts[0]["unit"]
    shown = [row for row in contrasts if row["low"] is not None and row["unit"] == unit]
    if not shown:
        return ""
    low, high = min(min(r["low"] for r in shown), 0.0), max(max(r["high"] for r in shown), 0.0)
    span, left = (high - low) or 1.0, 250

    def x(value: float) -> float:
        return left + (value - low) / span * (_WIDTH - left - 20)

    height, margin = 24 * len(shown) + 30, contrasts[0]["margin"]
    band = max(left, x(-margin)), min(_WIDTH - 20.0, x(margin))
    lines = [
        f'<rect x="{band[0]:.1f}" y="0" width="{max(0.0, band[1] - band[0]):.1f}" height="{height - 24}" '
        'fill="currentColor" opacity="0.08"/>',
        f'<line x1="{x(0):.1f}" x2="{x(0):.1f}" y1="0" y2="{height - 24}" stroke="currentColor" opacity="0.4"/>',
    ]
    for i, row in enumerate(shown):
        y, colour = 14 + 24 * i, _COLOURS[0] if i == 0 else "currentColor"
        lines += [
            f'<text x="0" y="{y + 4}">{html.escape(row["name"][:38])}</text>',
            f'<line x1="{x(row["low"]):.1f}" x2="{x(row["high"]):.1f}" y1="{y}" y2="{y}" stroke="{colour}" '
            'stroke-width="2"/>',
            f'<circle cx="{x(row["effect"]):.1f}" cy="{y}" r="4" fill="{colour}"/>',
        ]
    lines += [
        f'<text x="{x(v):.1f}" y="{height - 6}" text-anchor="middle">{number(v)}</text>' for v in (low, 0.0, high)
    ]
    title = f"95 % intervals in {html.escape(unit)}; the band is the margin of the first"
    return _svg(title, height, lines)


def _curves(arms: Sequence[Mapping[str, Any]]) -> str:
    """Mean validation loss by step, one line for each arm that was trained."""
    shown = [arm for arm in arms if len(arm["curve"]) > 1]
    if not shown:
        return ""
    points = [point for arm in shown for point in arm["curve"]]
    low, high = min(p[1] for p in points), max(p[1] for p in points)
    last, span = max(p[0] for p in points), (high - low) or 1.0

    def place(step: float, loss: float) -> str:
        return f"{50 + step / last * 400:.1f},{20 + (high - loss) / span * (_HEIGHT - 60):.1f}"

    lines = []
    for i, arm in enumerate(shown):
        colour = _COLOURS[i % len(_COLOURS)]
        path = " ".join(place(*point) for point in arm["curve"])
        dash = "" if i < len(_COLOURS) else ' stroke-dasharray="4 3"'
        y = 20 + 16 * i
        lines += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>',
            f'<line x1="465" x2="480" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"{dash}/>',
            f'<text x="485" y="{y + 4}">{html.escape(arm["name"])}</text>',
        ]
    lines += [
        f'<text x="0" y="{20 + (high - v) / span * (_HEIGHT - 60) + 4:.0f}">{number(v)}</text>' for v in (low, high)
    ]
    lines += [f'<text x="{50 + s / last * 400:.0f}" y="{_HEIGHT - 15}">{s:,}</text>' for s in (0, last)]
    height = max(_HEIGHT, 30 + 16 * len(shown))
    return _svg("Mean validation loss over replicates, in nats, by step", height, lines)


def _svg(title: str, height: int, lines: Sequence[str]) -> str:
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{title}">' + "".join(lines) + "</svg>"
        f'<figcaption class="quiet">{title}.</figcaption></figure>'
    )


def _log(verdict: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Every training that was ever made for this protocol."""
    if not rows:
        return ""
    cells = [
        (
            row["arm"],
            row["role"],
            str(row["replicate"]),
            f"{row['lr']:g}",
            "diverged" if row["diverged"] else number(row["loss"]),
        )
        for row in rows
    ]
    earlier = ", ".join(map(str, verdict["earlier_designs"]))
    before = f" Designs with {html.escape(earlier)} replicates were written down before this one." if earlier else ""
    return (
        f"<details><summary>Every training of this study, {len(rows)} in all.{before}</summary>"
        + _table(("arm", "for", "replicate", "learning rate", "loss"), cells)
        + "</details>"
    )


# the same for docs/answers


def answer_text(verdict: Mapping[str, Any]) -> str:
    """The answer of a verdict as Markdown: sentence, effects, arms, falsifier, literature."""
    effects = (
        (f"{row['what']}: {cells[0]}", *cells[1:]) for row in verdict["contrasts"] for cells in [effect_cells(row)]
    )
    lines = [f"**{verdict['sentence']}**", "", *_markdown(EFFECT_COLUMNS, effects), ""]
    if verdict["not_reached"]:
        lines += [f"Not reached in the time: {'; '.join(verdict['not_reached'])}.", ""]
    if verdict["arms"]:
        lines += [*_markdown(ARM_COLUMNS, map(arm_cells, verdict["arms"])), ""]
    lines += [f"What would show it to be wrong: {verdict['falsified_by']}", ""]
    lines += [f"What has been published: {verdict['literature']}", ""]
    lines += [
        f"{effort(verdict)}; text {verdict['source']['name']},"
        f" sha256 {verdict['source']['sha256'][:16]}; {verdict['software']}; design {verdict['design'][:12]}.",
        "",
    ]
    return "\n".join(lines)


def effort(verdict: Mapping[str, Any]) -> str:
    """Trainings made and planned, the budget, and what the intervals are; files of an older form lack some of it."""
    made = f"{verdict['trainings']:,} trainings"
    if "budget_minutes" in verdict:
        made += f" (about {verdict['planned_trainings']:,} planned; budget {verdict['budget_minutes']:g} minutes)"
    return f"{made}; intervals: {verdict.get('intervals', how_exact(2))}"


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(columns), line(["---"] * len(columns)), *map(line, rows)]
