"""The one writer of words: numbers, percentages, counts with their noun, lists, sizes and times, as people read them.

What a person reads (answers, reports, verdicts, tables, progress, messages) is written by these functions, so that a
rule of spelling is changed in one place. JSON holds numbers whole and does not come here. Any module may use this one,
which imports none of ours.
"""

import math
from collections.abc import Sequence

EN_DASH, EM_DASH = "\u2013", "\u2014"

SMALL = 1e-4
"""What is closer to 0 than this is called about 0, or under 0.01%."""

COUNTED = ("steps",)
"""Units that come in whole numbers, and are told in whole numbers (`static/study.js` too)."""


# numbers


def number(value: float | None, digits: int = 2) -> str:
    """In a sentence: so many significant digits, never an exponent; a dash where undefined. Losses are given with 3."""
    if value is None or not math.isfinite(value):
        return EN_DASH
    if value == 0:
        return "0"
    if abs(value) < SMALL:
        return "about 0"
    places = digits - 1 - math.floor(math.log10(abs(float(f"{value:.{digits}g}"))))
    return f"{value:,.{max(0, places)}f}"


def signed(value: float) -> str:
    """A difference in a sentence: `+0.14`, `-59`."""
    return ("+" if value > 0 and abs(value) >= SMALL else "") + number(value)


def between(low: float, high: float) -> str:
    """A 95% interval of a difference, to be put in parentheses."""
    return f"95% interval {signed(low)} to {signed(high)}"


def relative(value: float, to: str = "") -> str:
    """A size relative to another: `38% of its initial norm`, `4.4 times its initial norm`; the number alone without."""
    if abs(value) < 0.995:
        return percent(value) + (f" of {to}" if to else "")
    return f"{number(value)} times" + (f" {to}" if to else "")


def figure(value: float | None) -> str:
    """In a table of the terminal: at most four significant digits; an em dash for what is undefined."""
    if value is None or math.isnan(value):
        return EM_DASH
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        digits = max(0, 3 - math.floor(math.log10(abs(value))))
        return f"{value:.{min(digits, 4)}f}"
    return f"{value:.2e}"


def decimals(
    value: float | None,
    places: int = 3,
    *,
    signed: bool = False,
    least: float = 0.0,
    undefined: str = EM_DASH,
    infinite: str = "",
) -> str:
    """`0.250`, `+0.250`: so many decimals, but `2.5e-04` where it is closer to zero than `least`.

    None and NaN are `undefined`; infinity is `infinite` where that is given.
    """
    if value is None or math.isnan(value):
        return undefined
    if infinite and math.isinf(value):
        return infinite
    sign = "+" if signed else ""
    return f"{value:{sign}.{places}f}" if value == 0 or abs(value) >= least else f"{value:{sign}.1e}"


def amount(value: float | None, signed: bool = True, unit: str = "") -> str:
    """An effect: three decimals (none of a `COUNTED` unit), or as many as show two digits; with its sign."""
    if value is None:
        return "?"
    if math.isinf(value):
        return "beyond any number"
    digits, least = (0, 1) if unit in COUNTED else (3, 0.01)
    if value != 0 and abs(value) < least:
        digits = min(6, 1 - math.floor(math.log10(abs(value))))
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def percent(share: float) -> str:
    """A share as a percentage, of two significant digits where it is below ten; 100 is a whole alone, to rounding."""
    if 0 < abs(share) < SMALL:
        return "under 0.01%"
    if abs(share) < 0.0995:
        return f"{100 * share:.2g}%"
    places = 0
    while abs(round(100 * share, places)) == 100 and abs(abs(share) - 1) > 1e-6:
        places += 1
    return f"{100 * share:,.{places}f}%"


def short(value: float) -> str:
    """`1.2M`, `34k`, `910`."""
    return f"{value / 1e6:.1f}M" if value >= 1e6 else f"{value / 1e3:.0f}k" if value >= 1e4 else f"{value:.0f}"


# comparisons


def metric_name(name: str) -> str:
    """A task's metric as people write it."""
    known = {"bleu": "BLEU", "micro_f1": "micro F1", "entity_f1": "entity F1", "answer_f1": "F1", "rmse": "RMSE"}
    return known.get(name, name.replace("_", " "))


_UNDECIDED = "neither clearly better nor worse than "


def as_good_as(name: str, size: str, low: float, high: float, *, close: float, unit: str) -> str:
    """What is said of `name`, whose figure is `size`, where the 95% interval of the difference, [low, high], holds 0.

    Equivalent where the interval lies within `close` of 0, else undecided; all three are in `unit`.
    """
    within = max(abs(low), abs(high))
    if within <= close:
        return f"about as good as {name} ({size}), within \u00b1{number(within)} {unit}"
    return f"{_UNDECIDED}{name} ({size}; {signed(low)} to {signed(high)} {unit})"


def stands(better: Sequence[str], level: Sequence[str], worse: Sequence[str]) -> str:
    """`better than a and b, but worse than c`; `level` holds what `as_good_as` says. Empty where all are."""
    parts = [f"better than {listed(better)}"] if better else []
    undecided = [words.removeprefix(_UNDECIDED) for words in level if words.startswith(_UNDECIDED)]
    level = [words for words in level if not words.startswith(_UNDECIDED)]
    level += [_UNDECIDED + listed(undecided)] if undecided else []
    parts += [f"{'and ' if parts else ''}{words}" for words in level]
    parts += [f"{'but ' if parts else ''}worse than {listed(worse)}"] if worse else []
    return ", ".join(parts)


# counts and lists


def plural(n: float, noun: str, several: str = "") -> str:
    """`row` of one, `rows` of any other number."""
    return noun if n == 1 else several or noun + "s"


def many(n: int, noun: str, several: str = "") -> str:
    """`1 row`, `2,000 rows`."""
    return f"{n:,} {plural(n, noun, several)}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    *others, end = words
    return f"{', '.join(others)} {last} {end}" if others else end


def some(words: Sequence[str], most: int = 12) -> str:
    """`a, b, c`, or the first `most` of them and dots."""
    return ", ".join(words[:most]) + (", ..." if len(words) > most else "")


# sizes and times


def in_words(n: float, digits: int = 2) -> str:
    """A large number in two digits, or more: 60 thousand, 1.2 million."""
    power, unit = next(
        pair for pair in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand"), (1, "")) if n >= pair[0]
    )
    return f"{float(f'{n / power:.{digits}g}'):g} {unit}".strip()


def megabytes(n_bytes: float) -> str:
    """`1.5 MB`, of a million bytes each."""
    return f"{n_bytes / 1e6:.1f} MB"


def clock(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 07 min`, `3 d 04 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, hours = whole // 60, whole // 3600
    if hours >= 48:
        return f"{hours // 24} d {hours % 24:02d} h"
    return f"{minutes} min {whole % 60:02d} s" if not hours else f"{hours} h {whole % 3600 // 60:02d} min"
