"""The page: one HTML file that holds payload, modules, libraries and style, and asks the network for nothing.

A content security policy inside the file makes that a rule of the browser's, not only a promise: no connection, no
outside script, style, font or image.
"""

import functools
import html
from typing import TYPE_CHECKING

from qkv.views.report.bundle import LIBRARIES, filled, libraries, modules_of, static_text
from qkv.views.report.packed import carried, embed
from qkv.views.report.playground import POLICY as PLAYGROUND_POLICY
from qkv.views.report.playground import playground_template

if TYPE_CHECKING:
    from qkv.views.report.page_sections import Report

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


LIVE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a live page may load, as an HTTP header: nothing but what its own server gives."""


@functools.cache
def live_page(name: str, entry: str = "live.js") -> str:
    """The page that a server gives: the same modules, loaded as they are, all at once; the payload comes afterwards."""
    modules = "\n".join(f'<link rel="modulepreload" href="static/{module}">' for module in modules_of(entry))
    scripts = "\n".join(f'<script src="static/{library}"></script>' for library in LIBRARIES)
    return static_text("live.html").format(
        title=html.escape(f"{name} · qkv"), libraries=scripts, modules=modules, entry=entry
    )


def render_page(report: "Report") -> str:
    """The whole report as HTML text; with the playground in it where its run is small enough to go on in the page."""
    title, more, policy = f"{report.run.name} · qkv", "", _POLICY
    if report.play is not None and report.play.weights is not None:
        more = f'<script type="application/json" id="qkv-playground">{embed(playground_template())}</script>'
        policy = PLAYGROUND_POLICY
    return page_of(report, "report.js", title=title, description=report.run.verdict, more=more, policy=policy)


def still_page(body: str, *, title: str, description: str) -> str:
    """A page without scripts: `body` is markup, in which everything is escaped already."""
    return static_text("still.html").format(
        body=body, title=html.escape(title), description=html.escape(description), style=static_text("report.css")
    )


def page_of(payload: object, entry: str, *, title: str, description: str, more: str = "", policy: str = _POLICY) -> str:
    """A payload with the module `entry` as one file. Nothing of it reaches markup but through escaping.

    `more` is a further script element, `policy` what the browser lets the page load.
    """
    said = {"description": html.escape(description), "payload": carried(payload), "libraries": libraries()}
    return filled("page.html", ["report.css"], entry, policy=policy, title=title, more=more, **said)
