"""What the documentation site adds to the pages of docs/: the API from docstrings, and formulas as MathML.

MkDocs calls these functions. Nothing here asks a network, and nothing it makes is kept in the repository.
"""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOMS = {
    "qkv": "The face: train, load, watch, study.",
    "qkv.models": "Attention, blocks and whole models, usable alone in any torch code.",
    "qkv.models.matrices": "The catalogue: every parameter by its address.",
    "qkv.models.factored": "Circuits, kept as two factors.",
    "qkv.changes": "The change language.",
    "qkv.data": "Texts, splits, tokenizers, windows, baselines.",
    "qkv.tasks": "What a model is trained for.",
    "qkv.training": "The loop, optimizers, schedules, checkpoints, precision.",
    "qkv.instruments": "Measures, and the recorder that takes them.",
    "qkv.inspection": "Reading a finished run.",
    "qkv.interop": "Hugging Face folders, read and written.",
    "qkv.telemetry": "What a run recorded: one writer, typed reads.",
    "qkv.studies": "Questions answered by experiment.",
    "qkv.views": "The report and the live page.",
    "qkv.errors": "What can go wrong, as one tree.",
}
"""Modules of the reference -> what each is, in a line."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the API."""
    rows = [f"| [`{name}`]({name}.md) | {line} |" for name, line in ROOMS.items()]
    index = ["# The Python API", "", "Written from the docstrings.", "", "| module | |", "|---|---|", *rows, ""]
    files.append(File.generated(config, "api/index.md", content="\n".join(index)))
    for name in ROOMS:
        files.append(File.generated(config, f"api/{name}.md", content=page_of(importlib.import_module(name))))
    files.append(File.generated(config, "assets/iframe-worker.js", content=shim()))
    return files


def on_post_build(config: Any) -> None:
    """In the site the playground's lessons lead to answers that are pages, not Markdown."""
    page = Path(config["site_dir"]) / "playground" / "index.html"
    page.write_text(
        page.read_text(encoding="utf-8").replace("../answers/${name}.md", "../answers/${name}.html"), "utf-8"
    )


def shim() -> str:
    """What lets the search work in pages that were opened as files (iframe-worker 1.0.4), with its licence."""
    vendored = Path(__file__).parent / "iframe-worker"
    licence = (vendored / "LICENSE").read_text(encoding="utf-8")
    return f"/*\n{licence}*/\n{(vendored / 'shim.js').read_text(encoding='utf-8')}"


def on_page_markdown(markdown: str, **more: Any) -> str:
    """Formulas between dollar signs become MathML, which browsers draw; links out of docs/ become words."""
    markdown = markdown.replace("](playground/README.md)", "](playground/index.html)")
    markdown = re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", markdown)
    if "$$" not in markdown:
        return markdown
    parts = re.split(r"(```.*?```|`[^`\n]*`)", markdown, flags=re.S)  # code keeps its dollars
    return "".join(part if i % 2 else _with_formulas(part) for i, part in enumerate(parts))


def _with_formulas(text: str) -> str:
    text = re.sub(r"\$\$(.+?)\$\$", lambda m: "\n" + convert(m[1].strip(), display="block") + "\n", text, flags=re.S)
    return re.sub(r"(?<![\\$\w])\$([^$\n]+)\$", lambda m: convert(m[1]), text)


def page_of(module: ModuleType) -> str:
    """A module with everything that it exports."""
    lines = [f"# {module.__name__}", "", _prose(module.__doc__ or ""), ""]
    for name in getattr(module, "__all__", ()):
        thing = getattr(module, name)
        if inspect.isclass(thing):
            lines += _of_class(name, thing)
        elif inspect.isfunction(thing):
            lines += _of_function(name, thing, "##")
    return "\n".join(lines) + "\n"


def _of_class(name: str, cls: type) -> list[str]:
    lines = [f"## {name}", "", "```python", f"class {name}{_signature(cls)}", "```", "", _prose(cls.__doc__ or ""), ""]
    for member, value in vars(cls).items():
        if member.startswith("_") or not _doc(value):
            continue
        if inspect.isfunction(value):
            lines += _of_function(f"{name}.{member}", value, "###")
        elif isinstance(value, property) or hasattr(value, "func"):
            lines += [f"### {name}.{member}", "", _prose(_doc(value)), ""]
        elif isinstance(value, classmethod | staticmethod):
            lines += _of_function(f"{name}.{member}", value.__func__, "###")
    return lines


def _of_function(name: str, function: Any, mark: str) -> list[str]:
    code = f"def {name.rpartition('.')[2]}{_signature(function)}"
    return [f"{mark} {name}", "", "```python", code, "```", "", _prose(function.__doc__ or ""), ""]


def _doc(value: Any) -> str:
    return (value.func.__doc__ if hasattr(value, "func") else getattr(value, "__doc__", "")) or ""


def _signature(thing: Any) -> str:
    try:
        return re.sub(r"<[^<>]*>", "...", str(inspect.signature(thing)))
    except (TypeError, ValueError):
        return "(...)"


def _prose(doc: str) -> str:
    """A docstring as Markdown: indented blocks stay code, backticks stay, everything else is plain text."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(doc))
    return "\n\n".join(block if block.startswith("    ") else _escaped(block) for block in blocks)


def _escaped(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if i % 2 else re.sub(r"([*_<\[\]#|\\])", r"\\\1", part) for i, part in enumerate(parts))
