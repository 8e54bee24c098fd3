"""The ES modules of `static/` and `play/` as one classic script, since a page from file:// may load no modules.

Each module becomes a function that runs once, after those it imports. It understands the few forms that our modules
use (named and default imports from "./name.js" or "../folder/name.js", exported functions and constants, one default
export) and refuses any other, so that what runs in the report is what runs as native modules on a live page. Installing
needs no build tool.
"""

import html
import re
from collections.abc import Sequence
from importlib.resources import files

LIBRARIES = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
"""Vendored scripts, in the order in which they are loaded; versions and licences are in `static/vendor/README.md`."""

FOLDERS = ("static", "play", "play/engine", "play/panels", "learn", "report", "study")
"""Where modules, styles and pages lie; a name occurs once in all of them."""

_FROM = r'from\s+"\.{1,2}/(?:[\w./-]+/)?([\w-]+\.js)"'
_IMPORT = re.compile(r"^import\s+(?:(\w+)|\{([^}]*)\})\s+" + _FROM + r";[ \t]*$", re.MULTILINE)
_EXPORT = re.compile(r"^export\s+(async\s+function\*?|function\*?|const|class)\s+(\w+)", re.MULTILINE)
_DEFAULT = re.compile(r"^export\s+default\s+", re.MULTILINE)
_LEFT = re.compile(r"^\s*(?:import\b[^(]|export\b)", re.MULTILINE)


def static_text(name: str) -> str:
    """The text of a file in one of `FOLDERS`; no two of them have the same name."""
    places = (files("qkv.views") / folder / name for folder in FOLDERS)
    return next(place for place in places if place.is_file()).read_text(encoding="utf-8")


def bundle(entry: str, gives: str = "") -> str:
    """The module `entry` (a file name in `FOLDERS`) and all that it imports, as one script in strict mode.

    With `gives`, the script leaves the entry's default export in a constant of that name.
    """
    parts = ['"use strict";', "const modules = {};", *(_wrapped(name, static_text(name)) for name in modules_of(entry))]
    if gives:
        return f"const {gives} = (() => {{\n" + "\n".join([*parts, f"return modules[{entry!r}].default;"]) + "\n})();\n"
    return "(() => {\n" + "\n".join(parts) + "\n})();\n"


def modules_of(entry: str) -> list[str]:
    """The module `entry` and all that it imports, each after those that it needs."""
    order: list[str] = []
    _visit(entry, order, [])
    return order


def _visit(name: str, order: list[str], above: list[str]) -> None:
    assert name not in above, f"modules import each other in a ring: {' -> '.join([*above, name])}"
    if name in order:
        return
    for match in _IMPORT.finditer(static_text(name)):
        _visit(match[3], order, [*above, name])
    order.append(name)


def _wrapped(name: str, source: str) -> str:
    names = [match[2] for match in _EXPORT.finditer(source)]
    has_default = _DEFAULT.search(source) is not None
    body = _IMPORT.sub(_required, source)
    body = _EXPORT.sub(r"\1 \2", body)
    body = _DEFAULT.sub("const defaultExport = ", body)
    left = _LEFT.search(body)
    assert left is None, f"{name}: the bundler does not know this form: {left[0] if left else ''!r}"
    given = [*names, *(["default: defaultExport"] if has_default else [])]
    return f"modules[{name!r}] = (() => {{\n{body}\nreturn {{ {', '.join(given)} }};\n}})();"


def _required(match: re.Match[str]) -> str:
    default, named, name = match.groups()
    if default:
        return f"const {default} = modules[{name!r}].default;"
    names = re.sub(r"\s+as\s+", ": ", named).strip()
    return f"const {{ {names} }} = modules[{name!r}];"


def script_safe(source: str) -> str:
    """Script source that cannot end the `<script>` element that holds it (HTML standard, section 4.12.1.3)."""
    return re.sub(r"<(/script|!--)", r"\\x3c\1", source, flags=re.IGNORECASE)


def filled(template: str, styles: Sequence[str], entry: str, *, policy: str, title: str, **more: object) -> str:
    """A page in one file: a template in `FOLDERS` with its styles and the module `entry`; `more` is put in as it is."""
    style, script = "".join(map(static_text, styles)), script_safe(bundle(entry))
    said = {"policy": html.escape(policy, quote=False), "title": html.escape(title)}
    return static_text(template).format(**said, style=style, script=script, **more)


def libraries() -> str:
    """The vendored libraries as script elements."""
    return "\n".join(f"<script data-library>\n{script_safe(static_text(name))}</script>" for name in LIBRARIES)
