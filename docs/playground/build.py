"""The playground as one file: its modules, the report's modules that it draws with, the libraries, the style.

`python docs/generate.py` writes `docs/playground/index.html` with it, and `--check` says when that file is stale.
"""

import html
from pathlib import Path

from qkv.views.bundle import bundle, script_safe, static_text
from qkv.views.page import LIBRARIES

SOURCE = Path(__file__).parent / "src"
TITLE = "Train self-attention, change it, watch · qkv"
DESCRIPTION = "Two small Transformers train side by side in this page; turn a switch on one and watch every matrix."
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'wasm-unsafe-eval' blob:; worker-src blob:; "
    "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="qkv docs/playground/build.py">
<meta name="description" content="{description}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#play">to the playground</a>
<main id="play" tabindex="-1"><noscript><h1>{title}</h1><p>{description} It needs JavaScript; all of it is in this file, and nothing is fetched.</p></noscript></main>
<footer>Part of qkv, which trains self-attention models and shows what training does to every matrix. This file is complete: it works offline and sends nothing anywhere. Text: the opening of Alice's Adventures in Wonderland, Lewis Carroll 1865. Charts: Observable Plot and D3, ISC licence.</footer>
<script type="text/plain" id="worker">{worker}</script>
{libraries}
<script>
{script}</script>
</body>
</html>
"""  # noqa: E501


def read(name: str) -> str:
    """A module of the playground, or else of the report."""
    own = SOURCE / name
    return own.read_text(encoding="utf-8") if own.exists() else static_text(name)


def page() -> str:
    """The whole page as HTML text."""
    libraries = "\n".join(f"<script>\n{script_safe(static_text(name))}</script>" for name in LIBRARIES)
    return _PAGE.format(
        policy=html.escape(POLICY, quote=False),
        title=html.escape(TITLE),
        description=html.escape(DESCRIPTION),
        style=static_text("report.css") + (SOURCE / "play.css").read_text(encoding="utf-8"),
        worker=script_safe(bundle("worker.js", read=read)),
        libraries=libraries,
        script=script_safe(bundle("play.js", read=read)),
    )
