"""Attention on one text as an object to look at: a widget in a notebook, a page or a picture as a file.

    view = run.attention("the cat sat on the mat")
    view                      # in a notebook; with the extra `notebook` it also answers: other texts, other steps
    view.save("a.html"); view.save("a.svg")

What a notebook keeps of it is self-contained HTML, so an exported notebook shows it without a network.
"""

import dataclasses
import html
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qkv.errors import ConfigError, QkvError
from qkv.folder.run_folder import check_place, write_atomically
from qkv.jsontypes import JsonObject
from qkv.views.attention_svg import attention_svg
from qkv.views.host import VERSION, Host
from qkv.views.live.asking import Desk
from qkv.views.report.bundle import LIBRARIES, bundle, static_text
from qkv.views.report.packed import to_json, wire
from qkv.views.report.page import page_of
from qkv.views.sections.heads import AttentionText
from qkv.views.viewer import Viewer
from qkv.words import many

SUFFIXES = {".html": "a page", ".svg": "a picture"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alone:
    """The payload of one view alone."""

    host: Host
    name: str
    """Of the run."""
    attention: tuple[AttentionText, ...]
    kept: tuple[int, ...]
    """Steps whose weights were kept."""
    version: int = VERSION


class AttentionView:
    """Every head's attention on one text. Show it in a notebook, or `save` it."""

    def __init__(self, viewer: Viewer, text: str, step: int | None = None) -> None:
        self._desk = Desk(viewer)
        self.texts: tuple[AttentionText, ...] = self._desk.answer("attention", {"text": text, "step": step})["texts"]
        """The numbers: tokens, and every head's pattern; of a pair its three attentions, the alignment first."""
        self._source, self._name = text, viewer.folder.resolve().name

    @property
    def text(self) -> AttentionText:
        """The first of `texts`."""
        return self.texts[0]

    def __repr__(self) -> str:
        return (
            f"AttentionView({self._source!r}, {many(self.text.n_layers, 'layer')} x {many(self.text.n_heads, 'head')})"
        )

    def payload(self, can: tuple[str, ...] = ()) -> Alone:
        """What the page or widget is given; `can` names what it may ask."""
        host = Host(kind="notebook" if can else "report", can=can)
        kept = tuple(self._desk.viewer.steps()) if can else ()
        return Alone(host=host, name=self._name, attention=self.texts, kept=kept)

    def html(self) -> str:
        """A self-contained page; it asks the network for nothing.

        Raises ConfigError for a text longer than a page can hold every number of.
        """
        if self.text.tile:
            raise ConfigError(
                f"the text has {len(self.text.tokens):,} tokens; a file holds up to 256: shorten it, or use qkv view"
            )
        title = f"attention of {self._name} · qkv"
        return page_of(self.payload(), "alone.js", title=title, description=self.text.origin)

    def save(self, path: str | Path) -> Path:
        """Write a page (.html) or a picture of all heads (.svg) and give its path.

        Raises ConfigError for another suffix, UserError where there is no such folder, StorageError where the file
        cannot be written.
        """
        path = Path(path)
        check_place(path)
        if path.suffix not in SUFFIXES:
            raise ConfigError(f"{path.name} is neither a page nor a picture; expected a name ending in .html or .svg")
        text = self.html() if path.suffix == ".html" else attention_svg(self.text)
        write_atomically(path, text.encode())
        return path

    @cached_property
    def widget(self) -> Any:
        """The live widget (extra `notebook`), or None where anywidget is not installed."""
        return _widget(self) if find_spec("anywidget") else None

    def answer(self, message: object) -> tuple[JsonObject, list[bytes]]:
        """(reply, buffers) to a question of the widget's."""
        number = message.get("number") if isinstance(message, dict) else None
        try:
            asked = message if isinstance(message, dict) else {}
            answer = self._desk.answer(str(asked.get("ask", "")), asked.get("question"))
        except QkvError as error:
            return {"number": number, "error": str(error)}, []
        return {"number": number}, [wire(answer)]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> JsonObject:
        """What a notebook shows and keeps: the widget where there is one, and HTML that needs no kernel."""
        bundle_: JsonObject = {"text/plain": repr(self)}
        if not self.text.tile:
            bundle_["text/html"] = _framed(self.html(), self.text.n_layers)
        if self.widget is not None:
            shown = self.widget._repr_mimebundle_(include=include, exclude=exclude) or {}
            data = shown[0] if isinstance(shown, tuple) else shown
            bundle_ |= {kind: value for kind, value in data.items() if kind not in bundle_}
        return bundle_


def _framed(page: str, n_layers: int) -> str:
    """A page inside another one, apart from it: no script of it reaches what is around."""
    height = min(2000, 1130 + 190 * n_layers)  # of a dozen tokens; what is longer is scrolled to
    return (
        '<iframe title="attention" sandbox="allow-scripts allow-downloads" '
        f'style="width:100%;height:{height}px;border:0" srcdoc="{html.escape(page, quote=True)}"></iframe>'
    )


def _widget(view: AttentionView) -> Any:
    import anywidget
    import traitlets

    class AttentionWidget(anywidget.AnyWidget):
        """One view in a notebook; its module is the page's."""

        _esm = esm("widget.js")
        payload = traitlets.Dict().tag(sync=True)
        style = traitlets.Unicode().tag(sync=True)

    widget = AttentionWidget(payload=to_json(view.payload(view._desk.can)), style=scoped_style())

    def hear(_: object, message: object, buffers: object) -> None:
        reply, found = view.answer(message)
        widget.send(reply, found)

    widget.on_msg(hear)
    return widget


def esm(entry: str) -> str:
    """A view as one ES module with a default export, the libraries in it: what anywidget loads."""
    libraries = (f"(function (define, exports, module) {{\n{static_text(n)}\n}}).call(globalThis);" for n in LIBRARIES)
    return "\n".join([*libraries, bundle(entry, gives="found"), "export default found;\n"])


def scoped_style() -> str:
    """The style sheet for a shadow root: what is said of the page's root holds for the host."""
    return static_text("report.css").replace(":root", ":host")
