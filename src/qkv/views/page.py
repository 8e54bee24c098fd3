"""The page: one HTML file that holds payload, modules, libraries and style, and asks the network for nothing.

A content security policy inside the file makes that a rule of the browser's, not only a promise: no connection, no
outside script, style, font or image.
"""

import html

from qkv.views.bundle import bundle, script_safe, static_text
from qkv.views.packed import embed
from qkv.views.payloads import Report

__all__ = ["LIBRARIES", "render_page"]

LIBRARIES = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
"""Vendored scripts, in the order in which they are loaded; versions and licences are in `static/vendor/README.md`."""

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="qkv">
<meta name="description" content="{description}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#report">to the report</a>
<main id="report" tabindex="-1"><noscript><h1>{title}</h1><p>{description}</p><p>The pictures of this report need JavaScript; it is all in this file, and nothing is fetched.</p></noscript></main>
<footer>Written by qkv, which trains self-attention models and shows what training does to every matrix. This file is complete: it works offline and sends nothing anywhere. Charts: Observable Plot and D3, ISC licence.</footer>
<script type="application/json" id="qkv-payload">{payload}</script>
{libraries}
<script>
{script}</script>
</body>
</html>
"""  # noqa: E501


def render_page(report: Report) -> str:
    """The whole report as HTML text. Nothing of `report` reaches markup but through escaping."""
    libraries = "\n".join(f"<script>\n{script_safe(static_text(name))}</script>" for name in LIBRARIES)
    return _PAGE.format(
        policy=html.escape(_POLICY, quote=False),
        title=html.escape(f"{report.run.name} · qkv"),
        description=html.escape(report.run.verdict),
        style=static_text("report.css"),
        payload=embed(report),
        libraries=libraries,
        script=script_safe(bundle("report.js")),
    )
