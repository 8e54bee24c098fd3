"""A ladder as one picture and as one HTML page: the effect against the number of weights, a line for each length.

The picture is an SVG that needs no script; the page holds it twice, for wide and for narrow windows.
"""

import html
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

from qkv.folder.run_folder import write_atomically
from qkv.jsontypes import JsonMapping
from qkv.studies.ladder.result import (
    cell_cells,
    cell_columns,
    counting_sentence,
    further_sentences,
    predicted_sentence,
    published_sentences,
    trend_sentence,
)
from qkv.studies.ladder.trend import NO_TREND
from qkv.studies.verdict.sentences import two_digits
from qkv.studies.verdict.wording import unit_words
from qkv.views.report.bundle import static_text
from qkv.views.report.page import still_page

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, _LEGEND = 330, 56, 16, 12, 46, 20
_TICKS = 6
_DASHES = ("", "7 4", "2 3")
STYLE = f"<style>\n{static_text('forest.css')}</style>"
"""Of pictures of intervals: colors are those of the page, light or dark as the reader's system is."""
_MORE = f"<style>\n{static_text('ladder.css')}</style>"

Place = Callable[[float], float]


def ladder_svg(found: JsonMapping, width: int = 720) -> str:
    """The effect at every size with its 95% interval, a line for each length of training, and what others saw.

    Beyond the largest size lines are pale. Hollow points: sizes whose models predict worse than counting. Diamonds:
    published figures in the same unit. Empty where no size is complete.
    """
    cells = [row for row in found["cells"] if row["effect"] is not None]
    if not cells:
        return ""
    unit = found["effect_unit"]
    theirs = [row for row in found["published"] if row["unit"] == unit]
    lengths = list(dict.fromkeys(row["tokens_per_weight"] for row in cells))
    far = found["far"]
    right = max([row["weights"] for row in (*cells, *theirs)] + [far["weights"]] * bool(far))
    least, most = math.log10(cells[0]["weights"]) - 0.15, math.log10(right) + 0.2
    ends = [row[end] for row in cells for end in ("low", "high")] + [row["effect"] for row in theirs]
    low, high = min(*ends, -found["margin"], 0.0), max(*ends, found["margin"], 0.0)
    pad = 0.06 * (high - low)
    low, high = low - pad, high + pad

    def x(weights: float) -> float:
        return _LEFT + (math.log10(weights) - least) / (most - least) * (width - _LEFT - _RIGHT)

    def y(effect: float) -> float:
        return _TOP + (high - effect) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    legend = [*(f"{n:g} tokens per weight" for n in lengths)]
    notes = ["hollow: models worse than counting"] * any(row["below_ngram"] for row in cells)
    notes += ["diamonds: published figures"] * bool(theirs)
    height = _HEIGHT + _LEGEND * (len(legend) + len(notes)) + 8
    about = html.escape(f"The effect of {found['study']} against the number of weights: {found['verdict']}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{about}" font-family="system-ui, sans-serif" font-size="12">',
        STYLE, _MORE, f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<clipPath id="inside{width}"><rect x="{_LEFT}" y="{_TOP}" width="{width - _LEFT - _RIGHT}"'
        f' height="{_HEIGHT - _TOP - _BOTTOM}"/></clipPath>',
        *_axes(found, width, x, y, (least, most), (low, high)),
        f'<g clip-path="url(#inside{width})">',
        *(part for i, n in enumerate(lengths) for part in _line(found, n, i, x, y)),
        *(part for row in cells for part in _point(row, lengths.index(row["tokens_per_weight"]), unit, x, y)),
        *(_published(row, x, y) for row in theirs), "</g>", *_legend(legend, notes), "</svg>\n",
    ]  # fmt: skip
    return "\n".join(parts)


def _axes(
    found: JsonMapping, width: int, x: Place, y: Place, across: tuple[float, float], up: tuple[float, float]
) -> Iterator[str]:
    margin, end = found["margin"], width - _RIGHT
    yield (
        f'<rect class="band" x="{_LEFT}" y="{y(margin):.1f}" width="{end - _LEFT}"'
        f' height="{y(-margin) - y(margin):.1f}"><title>margin {margin:g}</title></rect>'
    )
    for tick in round_ticks(*up):
        kind, up_to = "grid" if tick else "zero", f'y1="{y(tick):.1f}" y2="{y(tick):.1f}"'
        yield f'<line class="{kind}" x1="{_LEFT}" x2="{end}" {up_to}/>'
        at = f'x="{_LEFT - 6}" y="{y(tick) + 4:.1f}"'
        yield f'<text class="tick" {at} style="text-anchor: end">{tick_words(tick)}</text>'
    for power in range(math.ceil(across[0]), math.floor(across[1]) + 1):
        place = f"{x(10**power):.1f}"
        yield f'<line class="grid" x1="{place}" x2="{place}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        name = f"{10**power // 10 ** (power // 3 * 3)}{('', 'k', 'M', 'B', 'T')[power // 3]}"
        yield f'<text class="tick" x="{place}" y="{_HEIGHT - _BOTTOM + 16}">{name}</text>'
    unit = html.escape(unit_words(found["effect_unit"]))
    yield f'<text class="head" x="8" y="{_HEIGHT - 10}">effect ({unit}) by number of weights</text>'


def _line(found: JsonMapping, length: float, i: int, x: Place, y: Place) -> Iterator[str]:
    """Over the sizes of the ladder, and paler on to the size far outside, with the interval there."""
    row = next((row for row in found["lines"] if row["tokens_per_weight"] == length), None)
    if row is None:
        return
    places = [(x(found["first"]["weights"]), row["first"]), (x(found["last"]["weights"]), row["last"])]
    far = (x(found["far"]["weights"]), row["far"])
    known = found["verdict"] != NO_TREND  # else nothing is drawn beyond the sizes
    for (x1, one), (x2, other), beyond in [(*places, ""), (places[1], far, " beyond")][: 1 + known]:
        yield (
            f'<line class="line l{i}{beyond}" stroke-dasharray="{_DASHES[i % 3]}" x1="{x1:.1f}" x2="{x2:.1f}"'
            f' y1="{y(one["value"]):.1f}" y2="{y(other["value"]):.1f}"/>'
        )
    shown = known and y(row["far"]["low"]) > _TOP and y(row["far"]["high"]) < _HEIGHT - _BOTTOM
    if shown and length == found["far"]["tokens_per_weight"]:
        words = f"extrapolated to {found['far']['weights'] / 1e6:.0f} million weights"
        ends = f'y1="{y(row["far"]["low"]):.1f}" y2="{y(row["far"]["high"]):.1f}"'
        yield f'<g><title>{words}</title><line class="line l{i} beyond" x1="{far[0]:.1f}" x2="{far[0]:.1f}" {ends}/>'
        yield f'<text x="{far[0] - 5:.1f}" y="{_TOP + 12}" text-anchor="end">extrapolated</text></g>'


def _point(row: JsonMapping, i: int, unit: str, x: Place, y: Place) -> Iterator[str]:
    place = f"{x(row['weights']) + 3 * (i - 1) * (i > 0):.1f}"
    figures = " to ".join(two_digits(row[end], unit) for end in ("low", "high"))
    title = html.escape(f"{row['name']}: {two_digits(row['effect'], unit)} ({figures})")
    yield f"<g><title>{title}</title>"
    yield f'<line class="line l{i}" x1="{place}" x2="{place}" y1="{y(row["low"]):.1f}" y2="{y(row["high"]):.1f}"/>'
    hollow = " hollow" * row["below_ngram"]
    yield f'<circle class="l{i}{hollow}" cx="{place}" cy="{y(row["effect"]):.1f}" r="4.5"/></g>'


def _published(row: JsonMapping, x: Place, y: Place) -> str:
    at, up = x(row["weights"]), y(row["effect"])
    title = html.escape(f"{row['source']}; differs: {row['differs']}")
    return f'<g><title>{title}</title><path class="theirs" d="M{at:.1f} {up - 6:.1f}l6 6l-6 6l-6 -6z"/></g>'


def _legend(lengths: list[str], notes: list[str]) -> Iterator[str]:
    for i, words in enumerate(lengths):
        up = _HEIGHT + _LEGEND * i + 8
        dashes = f'stroke-dasharray="{_DASHES[i % 3]}"'
        yield f'<line class="line l{i}" {dashes} x1="8" x2="40" y1="{up - 4}" y2="{up - 4}"/>'
        yield f'<text x="48" y="{up}">{words}</text>'
    for i, words in enumerate(notes, start=len(lengths)):
        yield f'<text x="8" y="{_HEIGHT + _LEGEND * i + 8}">{words}</text>'


def round_ticks(low: float, high: float) -> list[float]:
    """At most `_TICKS` + 1 round numbers in low..high, evenly spaced: 1, 2 or 5 times a power of ten apart."""
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough)
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def tick_words(tick: float) -> str:
    """A tick as written on the axis, without what binary fractions add."""
    return f"{round(tick, 10):g}"


def ladder_page(found: JsonMapping) -> str:
    """The page as HTML text: the answer, the picture, the condition, every size, and the rest; nothing is fetched."""

    def paragraph(words: str, kind: str = "") -> str:
        return f"<p{kind}>{html.escape(words)}</p>" if words else ""

    rows = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cell_cells(row, found))}</tr>"
        for row in found["cells"]
    )
    head = "".join(f"<th>{html.escape(name)}</th>" for name in cell_columns(found))
    published = published_sentences(found)
    body = "\n".join(
        [
            f"<h1>{html.escape(found['asks'])}</h1>",
            paragraph(counting_sentence(found)),
            paragraph(trend_sentence(found), ' class="verdict"'),
            f'<div class="wide-picture">{ladder_svg(found)}</div>',
            f'<div class="narrow-picture">{ladder_svg(found, 340)}</div>',
            paragraph(predicted_sentence(found)),
            paragraph(f"The effect is the {found['of']}. {found['condition']}"),
            f'<h2>Every size</h2><div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>',
            f'<tbody style="white-space: nowrap">{rows}</tbody></table></div>',
            "<h2>Other sizes, rates and cost</h2>", *map(paragraph, further_sentences(found)),
            "<h2>Published figures</h2>" * bool(published), *map(paragraph, published),
        ]
    )  # fmt: skip
    return still_page(body, title=f"{found['study']} over sizes · qkv", description=trend_sentence(found))


def write_ladder_page(folder: Path) -> Path:
    """Write `page.html` into a ladder's folder; returns its path. Raises StorageError."""
    found = json.loads((folder / "ladder.json").read_text(encoding="utf-8"))
    path = folder / "page.html"
    write_atomically(path, ladder_page(found).encode())
    return path
