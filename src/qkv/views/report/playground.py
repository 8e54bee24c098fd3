"""The playground as one page: its modules (`play/`), the report's that it draws with, the libraries, the style.

`python docs/generate.py` writes `docs/playground/index.html` with it. A live page serves it with the weights of its run
in it, and a report carries it, without the libraries that the report has already, as a text that its section opens.
"""

import html
from typing import TYPE_CHECKING

from qkv.views.report.bundle import bundle, filled, libraries, script_safe
from qkv.views.report.packed import embed

if TYPE_CHECKING:
    from qkv.views.sections.training_in_page import PlaySection

TITLE = "Train self-attention, change it, watch · qkv"
DESCRIPTION = "Two small Transformers train side by side in this page; turn a switch on one and watch every matrix."
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'wasm-unsafe-eval' blob:; worker-src blob:; "
    "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
)
"""What the page may load, and a report that carries it: nothing from anywhere, and workers made of its own text."""


def playground(given: "PlaySection | None" = None) -> str:
    """The whole page as HTML text; with `given`, both arms go on from that run."""
    element = "" if given is None else f'<script type="application/json" id="qkv-given">{embed(given)}</script>'
    return _filled(libraries(), element)


def playground_template() -> str:
    """The same with `<!--given-->` and `<!--libraries-->` for what the page around it has already."""
    return _filled("<!--libraries-->", "<!--given-->")


def _filled(scripts: str, given: str) -> str:
    more = {"worker": script_safe(bundle("worker.js")), "given": given, "libraries": scripts}
    about = html.escape(DESCRIPTION)
    styles = ["report.css", "play.css"]
    return filled("playground.html", styles, "play.js", policy=POLICY, title=TITLE, description=about, **more)
