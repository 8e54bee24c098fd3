"""What commands print on: one JSON object, or tables and sentences on a terminal (plain text in a pipe).

Numbers are shown with three or four significant digits, as people read them; `--json` gives them whole.
"""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text


STANDS_OUT = ("\ue000", "\ue001")
"""Characters, for private use, around what a terminal should let stand out."""
_BARS = "▁▂▃▄▅▆▇█"


def print_json(value: object) -> None:
    """One JSON object on stdout; NaN and infinity, which JSON lacks, become null."""
    json.dump(_plain(value), sys.stdout, indent=2)
    sys.stdout.write("\n")


def _plain(value: Any) -> object:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if hasattr(value, "tolist"):  # a NumPy scalar or array, a tensor
        return _plain(value.tolist())
    return str(value)


class Plain:
    """A text stream on which control characters are spelled out, so that no name in a folder drives a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        """What it writes to, for code that moves the cursor or sets colors."""

    def write(self, text: str) -> int:
        """Write the text as `shown` has it."""
        return self.stream.write(shown(text))

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


def terminal(stream: TextIO) -> TextIO:
    """The stream under a `Plain` one. Code that writes to it must escape control characters in foreign text itself."""
    return getattr(stream, "stream", stream)


def console() -> "Console":
    """Stdout; in a pipe wide enough that no row is folded. Text is text: brackets in a token are no markup, and its
    control characters are spelled out.
    """
    from rich.console import Console

    class Stdout(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # `qkv.cli` ends well then; the default is an exit status of 1

        def render(self, renderable: "RenderableType", options: "ConsoleOptions | None" = None) -> "Iterable[Segment]":
            for part in super().render(renderable, options):
                yield part if part.control else part._replace(text=shown(part.text))

    wide = {} if sys.stdout.isatty() else {"width": 160}
    plain = {"highlight": False, "markup": False, "emoji": False, "file": terminal(sys.stdout)}
    return Stdout(soft_wrap=not sys.stdout.isatty(), **plain, **wide)  # type: ignore[arg-type]


def print_table(columns: Sequence[str], rows: Iterable["Sequence[str | Text]"]) -> None:
    """A table whose first column is names (left), whose others are words (left; sentences fold) or figures (right)."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    rows = list(rows)
    for index, column in enumerate(columns):
        cells = [str(row[index]) for row in rows]
        is_words = index > 0 and sum(cell[:1].isalpha() for cell in cells) > len(cells) / 2
        justify: Literal["left", "right"] = "left" if not index or is_words else "right"
        table.add_column(column, justify=justify, no_wrap=not (is_words and any(" " in cell for cell in cells)))
    for row in rows:
        table.add_row(*row)
    page = console()
    if not sys.stdout.isatty():
        page.width = max(page.width, page.measure(table, options=page.options.update(width=1 << 20)).maximum)
    page.print(table)


def shown(text: str) -> str:
    """Text as a terminal may print it: new lines, tabs and joiners (of emoji, of Persian) are kept, control characters
    are spelled out."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t\u200c\u200d" or (c.isspace() and ord(c) > 127) else repr(c)[1:-1]
        for c in text
    )


def standing_out(text: str) -> str:
    """`shown`, with what lies between the two characters `STANDS_OUT` in bold and underlined."""
    first, last = STANDS_OUT
    parts = (shown(part).replace(repr(last)[1:-1], "\x1b[0m") for part in text.split(first))
    return "\x1b[1;4m".join(parts)


def quoted(text: str) -> str:
    """A token or an answer in quotes, as a terminal may print it: spaces at its ends are seen."""
    return shown(repr(text))


def token(text: str) -> str:
    """The same without the quotes."""
    return shown(repr(text)[1:-1])


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Values as bars from their least to their greatest, thinned to `width`; a gap where one is undefined."""
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return ""
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    return "".join(_BARS[min(7, int(8 * (v - low) / span))] if math.isfinite(v) else " " for v in values)
