"""What docs/answers says of a study: its answer, and folded what it rests on, as Markdown; its effects as an SVG.

Reads a verdict and nothing else. Only `generate.py` writes these; the page and the terminal say the same in their ways
(`qkv.views.study`).
"""

import html
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from qkv.jsontypes import JsonMapping, JsonObject
from qkv.studies.counting import counting_words, gate
from qkv.studies.verdict.sentences import two_digits
from qkv.studies.verdict.wording import unit_words
from qkv.views.study.ladder import STYLE, round_ticks, tick_words
from qkv.views.study.page import ARM_COLUMNS, EFFECT_COLUMNS, arm_cells, effect_cells
from qkv.views.study.section import (
    ANSWER_COLUMNS,
    accounts_table,
    answer_cells,
    answering,
    as_shown,
    axes,
    effort,
    expectations,
    values_of,
)
from qkv.words import COUNTED

_WRONG_IF = "Written down before training, as what would prove us wrong (see *expected* in the table of every effect):"


def answer_text(verdict: JsonMapping, picture: str = "", others: Sequence[str] = (), sizes: Sequence[str] = ()) -> str:
    """The answer of a verdict as Markdown: the answer, a `picture`, the math, how sure we are and what would change it.

    others: lines for the end of `how sure we are`; sizes: lines about other sizes, after the picture.
    """
    verdict = as_shown(verdict)
    begun = gate(verdict["baseline"])
    answer = verdict["plain"].removeprefix(begun).strip() or verdict["sentence"]
    lines = [begun, ""] if begun else []
    lines += [f"**{answer}** {verdict.get('brief', '')}".rstrip(), ""]
    lines += [f"![The effects that the answer is about, with their 95% intervals]({picture})", ""] if picture else []
    lines += [verdict["more"], ""] if verdict.get("more") else []
    lines += sizes
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


_WIDTH, _ROW, _EDGE, _TOP, _BOTTOM = 720, 40, 12, 30, 34
_LETTER = 6.4
"""Pixels that a letter takes, about."""
_DOT = 4
"""Radius of an estimate, which may be the highest value of all."""


def answer_svg(verdict: JsonMapping) -> str:
    """The effects that the answer is about; before them, where the first is one of losses, the losses it compares."""
    rows = answering(verdict)
    read = {name for row in rows for _, name, quantity in row["terms"] if quantity == "loss"}
    main = {name for _, name, quantity in rows[0]["terms"] if quantity == "loss"}
    alike = {(arm["task"], arm["text"]) for arm in verdict["arms"] if arm["name"] in main}
    arms = [arm for arm in verdict["arms"] if arm["name"] in read and (arm["task"], arm["text"]) in alike]
    arms = [arm for arm in arms if len(arm["losses"]) > 1]
    unit = f"loss at the end, {rows[0]['unit']}"
    losses = [
        {"what": arm["what"], "unit": unit, "effect": arm["loss"], "low": min(arm["losses"]), "nominal": None,
         "high": max(arm["losses"]), "values": arm["losses"], "margin": 0.0, "verdict": ""}
        for arm in arms
    ]  # fmt: skip
    counting = verdict["baseline"]["ngram"] if verdict["baseline"].get("arm") in {arm["name"] for arm in arms} else None
    return forest_svg({**verdict, "contrasts": rows}, losses if len(losses) > 1 else (), counting)


def forest_svg(verdict: JsonMapping, losses: Sequence[JsonObject] = (), counting: float | None = None) -> str:
    """Every effect of a verdict that has an interval: its estimate, its 95% interval, its replicates, and its margin.

    Effects that `axes` puts together share one; the first effect, which is the study's own question, stands out. Empty
    where there is none. losses: of arms, for an axis before all others; counting: a loss to be marked there.
    """
    rows = [row for row in verdict["contrasts"] if row["low"] is not None]
    placed = sorted(zip(axes(rows), rows, strict=True), key=itemgetter(0))
    panels = [[row for _, row in group] for _, group in groupby(placed, key=itemgetter(0))]
    parts, y = [], 0.0
    for panel in [losses, *panels] if losses and panels else panels:
        parts += _panel(panel, y, verdict["contrasts"][0], counting if panel is losses else 0.0)
        y += _TOP + _ROW * len(panel) + _BOTTOM
    if not parts:
        return ""
    about = html.escape(f"Effects of the study {verdict['study']} with their 95% intervals")
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y:g}" width="{_WIDTH}" height="{y:g}"'
        f' role="img" aria-label="{about}" font-family="system-ui, sans-serif" font-size="12">'
    )
    return "\n".join([opening, STYLE, f'<rect class="paper" width="{_WIDTH}" height="{y:g}"/>', *parts, "</svg>\n"])


def _panel(rows: Sequence[JsonMapping], top: float, first: JsonMapping, mark: float | None) -> list[str]:
    """The effects of one axis, from `top` down, with a line at `mark`: 0 of effects, the best n-gram of losses."""
    margins = sorted({row["margin"] for row in rows})
    ends = [bound for row in rows for bound in (row["low"], row["high"], *values_of(row))]
    ends += [-margins[-1], margins[-1]] if margins[-1] else []
    low, high = min([*ends, mark or ends[0]]), max([*ends, mark or ends[0]])
    scale = (_WIDTH - 2 * _EDGE) / (high - low or 1.0)

    def x(value: float) -> str:
        return f"{_EDGE + (value - low) * scale:.1f}"

    under = top + _TOP + _ROW * len(rows)
    said = f" (band: too small to matter, {' or '.join(f'{margin:g}' for margin in margins)})" * bool(margins[-1])
    said = said or " (line: the best n-gram)" * bool(mark)
    parts = [f'<text class="head" x="8" y="{top + 19:g}">{html.escape(unit_words(rows[0]["unit"]))}{said}</text>']
    parts += [
        f'<rect class="band" x="{x(-row["margin"])}" y="{top + _TOP + _ROW * number:g}"'
        f' width="{2 * row["margin"] * scale:.1f}" height="{_ROW}"/>'
        for number, row in enumerate(rows)
        if row["margin"]
    ]
    if mark is not None:
        parts.append(f'<line class="zero" x1="{x(mark)}" x2="{x(mark)}" y1="{top + _TOP:g}" y2="{under:g}"/>')
    parts += [
        f'<text class="tick" x="{x(tick)}" y="{under + 16:g}">{tick_words(tick)}</text>'
        for tick in round_ticks(low, high)
    ]
    for number, row in enumerate(rows):
        parts += _effect(row, top + _TOP + _ROW * number, x, "main" if row is first else "other")
    return parts


def _effect(row: JsonMapping, top: float, x: Callable[[float], str], role: str) -> Iterable[str]:
    """Two lines: the name and what the effect comes to; below them its replicates, interval and estimate."""
    unit, is_loss = row["unit"] if row["unit"] in COUNTED else "", not row["margin"]
    effect, low, high = (
        f"{row[name]:.2f}" if is_loss else two_digits(row[name], unit) for name in ("effect", "low", "high")
    )
    said = f"{effect} {row['verdict']}".rstrip()
    most = int((_WIDTH - 24) / _LETTER) - len(said)
    shown = row["what"] if len(row["what"]) <= most else row["what"][: most - 1] + "…"
    middle = f"{top + 28:g}"
    title = html.escape(f"{row['what']}: {effect}, {low} to {high}")
    yield f"<g><title>{title}</title>"
    yield f'<text x="8" y="{top + 15:g}">{html.escape(shown)}</text>'
    places = dict.fromkeys(x(value) for value in values_of(row))  # replicates at one place are one dot
    yield from (f'<circle class="one" cx="{place}" cy="{middle}" r="2"/>' for place in places)
    interval = f'x1="{x(row["low"])}" x2="{x(row["high"])}" y1="{middle}" y2="{middle}"'
    yield f'<line class="{role}" {interval} stroke-width="2"/>'
    yield f'<circle class="{role}" cx="{x(row["effect"])}" cy="{middle}" r="{_DOT}"/>'
    yield f'<text class="said" x="{_WIDTH - 8}" y="{top + 15:g}" text-anchor="end">{html.escape(said)}</text></g>'
