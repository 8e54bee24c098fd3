"""The effects of a study as a picture file: an SVG of intervals on as few axes as can be read, without a browser.

What the section of a study draws on a page (`static/study.js`), for places where no script runs. Colors are those of
the page, light or dark as the reader's system is.
"""

import html
import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from qkv.jsontypes import JsonMapping
from qkv.views.study.section import axes, values_of
from qkv.words import COUNTED, amount, decimals

__all__ = ["forest_svg"]

_WIDTH, _ROW, _RIGHT, _TOP, _BOTTOM = 920, 26, 250, 30, 34
_LETTER, _SAID = 7.3, 6.1
"""Pixels that a letter of the names takes, and of what an effect comes to, about."""
_DOT = 4
"""Radius of an estimate, which may be the highest value of all."""
_TICKS = 6
_STYLE = """<style>
svg { --paper: #fcfbf8; --ink: #1d1e22; --soft: #4d4f57; --faint: #6f717a; --band: #1d1e22; --accent: #1a5796; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #15161b; --ink: #ececec; --soft: #b9bbc4; --faint: #8f919b; --band: #ececec; --accent: #7db8f0; }
}
.paper { fill: var(--paper) } text { fill: var(--soft) } .head { fill: var(--ink); font-weight: 600 }
.band { fill: var(--band); fill-opacity: .09 } .one { fill: var(--faint); fill-opacity: .6 }
.zero { stroke: var(--faint) }
.main { fill: var(--accent); stroke: var(--accent) } .other { fill: var(--soft); stroke: var(--soft) }
.tick { fill: var(--faint); text-anchor: middle } .said { font-weight: 600 }
</style>"""


def forest_svg(verdict: JsonMapping) -> str:
    """Every effect of a verdict that has an interval: its estimate, its 95 % interval, its replicates, and its margin.

    Effects that `axes` puts together share one; the first effect, which is the study's own question, stands out. Empty
    where there is none.
    """
    rows = [row for row in verdict["contrasts"] if row["low"] is not None]
    placed = sorted(zip(axes(rows), rows, strict=True), key=itemgetter(0))
    right = max(
        [
            _RIGHT,
            *(math.ceil(22 + _SAID * len(f"{_signed(row['effect'], row['unit'])} {row['verdict']}")) for row in rows),
        ]
    )
    parts, y = [], 0.0
    for _, group in groupby(placed, key=itemgetter(0)):
        panel = [row for _, row in group]
        parts += _panel(panel, y, right, first=verdict["contrasts"][0])
        y += _TOP + _ROW * len(panel) + _BOTTOM
    if not parts:
        return ""
    about = html.escape(f"Effects of the study {verdict['study']} with their 95 % intervals")
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y:g}" width="{_WIDTH}" height="{y:g}"'
        f' role="img" aria-label="{about}" font-family="system-ui, sans-serif" font-size="12">'
    )
    return "\n".join([opening, _STYLE, f'<rect class="paper" width="{_WIDTH}" height="{y:g}"/>', *parts, "</svg>\n"])


def _panel(rows: Sequence[JsonMapping], top: float, right: int, first: JsonMapping) -> list[str]:
    """The effects of one axis, from `top` down; what each comes to stands in the last `right` pixels."""
    margins = sorted({row["margin"] for row in rows})
    ends = [bound for row in rows for bound in (row["low"], row["high"], *values_of(row))]
    low, high = min(-margins[-1], *ends), max(margins[-1], *ends)
    left = min(0.42 * _WIDTH, 16 + _LETTER * max(len(row["name"]) for row in rows))
    scale = (_WIDTH - right - left - _DOT) / (high - low)

    def x(value: float) -> str:
        return f"{left + (value - low) * scale:.1f}"

    under = top + _TOP + _ROW * len(rows)
    said = " or ".join(f"{margin:g}" for margin in margins)
    parts = [
        f'<text class="head" x="8" y="{top + 19:g}">{html.escape(rows[0]["unit"])} (band: the margin, {said})</text>',
        *(
            f'<rect class="band" x="{x(-row["margin"])}" y="{top + _TOP + _ROW * number:g}"'
            f' width="{2 * row["margin"] * scale:.1f}" height="{_ROW}"/>'
            for number, row in enumerate(rows)
        ),
        f'<line class="zero" x1="{x(0)}" x2="{x(0)}" y1="{top + _TOP:g}" y2="{under:g}"/>',
        *(f'<text class="tick" x="{x(tick)}" y="{under + 16:g}">{_said(tick)}</text>' for tick in _ticks(low, high)),
    ]
    for number, row in enumerate(rows):
        role = "main" if row is first else "other"
        parts += _effect(row, top + _TOP + _ROW * (number + 0.5), x, (left, _WIDTH - right), role)
    return parts


def _effect(row: JsonMapping, y: float, x: Any, ends: tuple[float, float], role: str) -> Iterable[str]:
    """One line: name, replicates, interval, estimate, and what it comes to in words; `ends` are those of the axis."""
    left, right = ends
    name, most = row["name"], int((left - 16) / _LETTER)
    shown = name if len(name) <= most else name[: most - 1] + "…"
    effect, low, high = (
        amount(row[name], unit=row["unit"]) if row["unit"] in COUNTED else f"{row[name]:+.3g}"
        for name in ("effect", "low", "high")
    )
    told = html.escape(f"{row['what']}: {effect}, {low} to {high}")
    middle = f"{y:g}"
    yield f"<g><title>{told}</title>"
    yield f'<text x="{left - 8:.1f}" y="{y + 4:g}" text-anchor="end">{html.escape(shown)}</text>'
    places = dict.fromkeys(x(value) for value in values_of(row))  # replicates at one place are one dot
    yield from (f'<circle class="one" cx="{place}" cy="{middle}" r="2"/>' for place in places)
    interval = f'x1="{x(row["low"])}" x2="{x(row["high"])}" y1="{middle}" y2="{middle}"'
    yield f'<line class="{role}" {interval} stroke-width="2"/>'
    yield f'<circle class="{role}" cx="{x(row["effect"])}" cy="{middle}" r="{_DOT}"/>'
    said = f'<tspan class="said">{_signed(row["effect"], row["unit"])}</tspan> {html.escape(row["verdict"])}'
    yield f'<text x="{right + 14}" y="{y + 4:g}">{said}</text></g>'


def _signed(value: float, unit: str) -> str:
    return amount(value, unit=unit) if unit in COUNTED else decimals(value, signed=True, least=0.001)


def _ticks(low: float, high: float) -> list[float]:
    """At most `_TICKS` + 1 round numbers in low..high, evenly spaced: 1, 2 or 5 times a power of ten apart."""
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough)
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _said(tick: float) -> str:
    return f"{round(tick, 10):g}"
