"""Attention as a picture file: an SVG with one raster per head, drawn without a browser.

Colours are those of the page's light theme, read from its style sheet.
"""

import base64
import html
import re
import struct
import zlib

import numpy as np

from qkv.views.report.bundle import static_text
from qkv.views.sections.heads import AttentionText

SIDE, GAP, LEFT, TOP = 120, 14, 34, 46
NARROWEST = 560
"""Pixels that the longest title takes, and the colour bar."""
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Control characters, which XML cannot hold."""


def attention_svg(text: AttentionText) -> str:
    """Layers down, heads across, each head's pattern at the text's last step, with a colour bar."""
    width = max(LEFT + text.n_heads * (SIDE + GAP), NARROWEST)
    height = TOP + text.n_layers * (SIDE + GAP) + 44
    origin = _NOT_XML.sub("\ufffd", text.origin)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#4d4f57">',
        f'<rect width="{width}" height="{height}" fill="#fcfbf8"/>',
        f'<text x="0" y="16" font-size="14" font-weight="600" fill="#1d1e22">{html.escape(origin)}</text>',
        f'<text x="0" y="34">step {text.steps[-1]:,}; down: the token that looks, across: the one looked at</text>',
    ]
    values = patterns_of(text)
    for layer in range(text.n_layers):
        y = TOP + layer * (SIDE + GAP)
        parts.append(f'<text x="{LEFT - 8}" y="{y + SIDE / 2}" text-anchor="end">L{layer}</text>')
        for head in range(text.n_heads):
            x = LEFT + head * (SIDE + GAP)
            data = base64.b64encode(png(_coloured(values[layer, head]))).decode()
            parts.append(
                f'<image x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" style="image-rendering:pixelated" '
                f'href="data:image/png;base64,{data}"><title>L{layer}.H{head}</title></image>'
            )
    parts += _bar(LEFT, height - 34)
    return "\n".join([*parts, "</svg>\n"])


def patterns_of(text: AttentionText) -> np.ndarray:
    """[layer, head, row, column] at the last step; what the mask hides is NaN."""
    packed = text.patterns
    stored = np.frombuffer(base64.b64decode(packed.data), packed.dtype).reshape(packed.shape)[-1].astype(np.float64)
    stored *= packed.scale
    if not text.causal or text.tile:
        return stored
    n = len(text.tokens)
    full = np.full((*stored.shape[:2], n, n), np.nan)
    full[:, :, *np.tril_indices(n)] = stored
    return full


def _ramp() -> np.ndarray:
    """The sequential map of the light theme as RGB, uint8 [256, 3]."""
    found = re.search(r"--sequential: ([^;]+);", static_text("report.css"))
    assert found is not None
    stops = np.array([[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in found[1].split()], dtype=np.float64)
    at = np.linspace(0, len(stops) - 1, 256)
    return np.stack([np.interp(at, np.arange(len(stops)), stops[:, c]) for c in range(3)], axis=1).round().astype("u1")


def _coloured(values: np.ndarray) -> np.ndarray:
    """RGBA uint8 [rows, columns, 4] on a square-root scale from 0 to 1; NaN is transparent."""
    hidden = np.isnan(values)
    index = (np.sqrt(np.where(hidden, 0, values).clip(0, 1)) * 255).round().astype(int)
    return np.dstack([_ramp()[index], np.where(hidden, 0, 255).astype("u1")])


def _bar(x: int, y: int) -> list[str]:
    data = base64.b64encode(png(np.dstack([_ramp()[None], np.full((1, 256, 1), 255, "u1")]))).decode()
    ticks = [
        f'<text x="{x + 180 * at**0.5}" y="{y + 24}" text-anchor="{anchor}">{at:g}</text>'
        for at, anchor in ((0, "start"), (0.05, "middle"), (0.25, "middle"), (1, "end"))
    ]
    place = f'x="{x}" y="{y}" width="180" height="9" preserveAspectRatio="none"'
    strip = f'<image {place} href="data:image/png;base64,{data}"/>'
    return [strip, *ticks, f'<text x="{x + 192}" y="{y + 9}">attention</text>']


def png(pixels: np.ndarray) -> bytes:
    """RGBA uint8 [rows, columns, 4] as a PNG file (ISO/IEC 15948), without a library."""
    rows, columns, _ = pixels.shape
    lines = np.concatenate([np.zeros((rows, 1), "u1"), pixels.reshape(rows, -1)], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
