"""Small matrices side by side as an SVG, which a notebook shows without any other library."""

import html
from collections.abc import Mapping

import numpy as np

CELL, GAP, TOP = 12, 24, 20


class Picture:
    """Matrices by their titles; blue is negative, orange positive, each on its own scale. NaN is left out."""

    def __init__(self, matrices: Mapping[str, np.ndarray]) -> None:
        self.matrices = {title: np.atleast_2d(matrix) for title, matrix in matrices.items()}

    def __repr__(self) -> str:
        return f"<Picture of {', '.join(self.matrices)}>"

    def _repr_svg_(self) -> str:
        parts, left = [], 0
        for title, matrix in self.matrices.items():
            top = float(np.nanmax(np.abs(matrix))) or 1.0
            parts.append(f'<text x="{left}" y="13">{html.escape(title)}</text>')
            for (i, j), value in np.ndenumerate(matrix):
                color = "#c2591c" if value > 0 else "#175290"
                place = f'x="{left + j * CELL}" y="{TOP + i * CELL}" width="{CELL}" height="{CELL}"'
                if abs(value) > 0.01 * top:
                    parts.append(f'<rect {place} fill="{color}" fill-opacity="{abs(value) / top:.2f}"/>')
            left += max(matrix.shape[1] * CELL, 8 * len(title)) + GAP
        height = TOP + CELL * max(len(matrix) for matrix in self.matrices.values())
        size = f'width="{left}" height="{height}" viewBox="0 0 {left} {height}"'
        style = 'font-family="system-ui, sans-serif" font-size="12" fill="#4d4f57"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>'
