"""Arrays as blocks of colour in the terminal, two rows to a line; shades of grey letters where there is no colour.

0 is the background and the largest value is brightest; negative and positive values have two hues of their own. Nothing
is interpolated: where a matrix has more cells than the screen, each block is the root mean square of its cells.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from qkv.commands.printing import screen

if TYPE_CHECKING:
    from rich.text import Text

_SHADES = " ░▒▓█"
_COLD, _WARM, _GROUND = np.array([70, 130, 230]), np.array([240, 130, 50]), np.array([24, 24, 28])


def blocks(matrix: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """`matrix` [m, n] as at most [rows, columns] blocks, each the root mean square of its cells."""
    for axis, most in ((0, rows), (1, columns)):
        size = matrix.shape[axis]
        if size > most:
            parts = np.array_split(np.arange(size), most)
            means = [np.mean(np.square(np.take(matrix, part, axis=axis)), axis=axis) for part in parts]
            matrix = np.sqrt(np.stack(means, axis=axis))
    return matrix


def heat(values: np.ndarray, *, colour: bool, largest: float | None = None) -> "list[Text]":
    """`values` [m, n] as ceil(m / 2) lines of n characters in colour, else m lines of shades."""
    from rich.text import Text

    top = largest if largest is not None else float(np.nanmax(np.abs(values), initial=0.0))
    scaled = np.nan_to_num(values / (top or 1.0))
    if not colour:
        index = np.minimum(4, np.ceil(np.abs(scaled) * 4)).astype(int)
        return [Text("".join(_SHADES[i] for i in row)) for row in index]
    if len(scaled) % 2:
        scaled = np.vstack([scaled, np.zeros((1, scaled.shape[1]))])
    lines = []
    for upper, lower in zip(scaled[::2], scaled[1::2], strict=True):
        line = Text()
        for above, below in zip(upper, lower, strict=True):
            line.append("▀", style=f"{hue(above)} on {hue(below)}")
        lines.append(line)
    return lines


def draw(values: np.ndarray) -> None:
    """Print `values` [m, n] as a map."""
    console = screen.console()
    for line in heat(values, colour=console.is_terminal):
        console.print(line)


def draw_patterns(patterns: "Iterable[tuple[str, np.ndarray]]") -> None:
    """Print small maps of attention side by side, each under its name; bright is 1."""
    from rich.columns import Columns
    from rich.text import Text

    console, maps = screen.console(), []
    for name, pattern in patterns:
        picture = heat(pattern, colour=console.is_terminal, largest=1.0)
        maps.append(Text("\n").join([Text(name), *picture, Text()]))
    console.print(Columns(maps, padding=(0, 3)))


def cells(shape: tuple[int, ...], picture: np.ndarray) -> str:
    """How many rows and columns of what has that shape a cell of its picture is: `4 x 2`; empty where it is one."""
    each = [-(-n // of) for n, of in zip(shape, picture.shape, strict=True)]
    return " x ".join(map(str, each)) if max(each) > 1 else ""


def strip(values: np.ndarray, *, colour: bool, largest: float) -> "Text":
    """One row of values [n] as one line."""
    from rich.text import Text

    if not colour:
        return heat(values[None], colour=False, largest=largest)[0]
    line = Text()
    for value in values:
        line.append("█", style=hue(float(np.nan_to_num(value / (largest or 1.0)))))
    return line


def hue(value: float) -> str:
    """The colour of a value, -1 to 1, as rich spells it."""
    end = _WARM if value >= 0 else _COLD
    red, green, blue = (_GROUND + (end - _GROUND) * min(1.0, abs(value)) ** 0.7).astype(int)
    return f"rgb({red},{green},{blue})"
