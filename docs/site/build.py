"""Build the documentation site: python docs/site/build.py [--out FOLDER]

Zensical builds a site from Markdown and runs no code of ours. So this program first writes what it builds from into a
temporary folder: the pages of docs/ with formulas as MathML, the API from docstrings, the colors of the report. Nothing
here asks a network, and nothing it makes is kept in the repository.
"""

import argparse
import importlib
import inspect
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from latex2mathml.converter import convert

from qkv.views.learn.page import page as learn_page

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent
NOT_ON_THE_SITE = ("*.py", "*.pyc", "*.template", "pictures.json", "site", "src", "results", "__pycache__")
"""Names in docs/ that no page shows or links to."""
MODULES = {
    "qkv": "The front: train, load, watch, study.",
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
"""Modules of the Python API -> what each is, in a line."""


def stage(place: Path) -> None:
    """Write what Zensical builds from into an empty folder: `zensical.toml` and `docs/`."""
    shutil.copy(HERE / "zensical.toml", place)
    pages = place / "docs"
    shutil.copytree(DOCS, pages, ignore=shutil.ignore_patterns(*NOT_ON_THE_SITE))
    (pages / "playground" / "README.md").unlink()  # about its code; the playground itself is index.html
    for page in pages.rglob("*.md"):
        page.write_text(page_markdown(page.read_text("utf-8"), DOCS / page.relative_to(pages)), "utf-8")
    (pages / "learn" / "README.md").unlink()
    (pages / "learn" / "index.html").write_text(learn_page(answers="../answers"), "utf-8")
    playground = pages / "playground" / "index.html"
    text = playground.read_text("utf-8")  # its lessons lead to answers that are pages here, not Markdown
    playground.write_text(text.replace("../answers/${name}.md", "../answers/${name}.html"), "utf-8")
    shutil.copy(HERE / "site.css", pages)
    (pages / "assets").mkdir()
    (pages / "assets" / "iframe-worker.js").write_text(shim(), "utf-8")
    write_api(pages / "api")


def write_api(folder: Path) -> None:
    """The pages of the Python API, from the docstrings."""
    folder.mkdir()
    rows = [f"| [`{name}`]({name}.md) | {line} |" for name, line in MODULES.items()]
    index = ["# Python API", "", "Written from the docstrings.", "", "| module | |", "|---|---|", *rows, ""]
    (folder / "index.md").write_text("\n".join(index), "utf-8")
    for name in MODULES:
        (folder / f"{name}.md").write_text(page_of(importlib.import_module(name)), "utf-8")


def shim() -> str:
    """What lets the search work in pages that were opened as files (iframe-worker 1.0.4), with its license."""
    vendored = HERE / "iframe-worker"
    license = (vendored / "LICENSE").read_text(encoding="utf-8")
    return f"/*\n{license}*/\n{(vendored / 'shim.js').read_text(encoding='utf-8')}"


def page_markdown(markdown: str, page: Path = DOCS / "index.md") -> str:
    """A page for the site: formulas between dollar signs become MathML, a link that leaves docs/ becomes its text."""

    def link(found: re.Match[str]) -> str:
        target = (page.parent / found[2].partition("#")[0]).resolve()
        return found[0] if target.is_relative_to(DOCS) else found[1]

    markdown = re.sub(r"\]\((learn|playground)/README\.md\)", r"](\1/index.html)", markdown)
    markdown = re.sub(r"\[([^\]]+)\]\((\.\./[^)]*)\)", link, markdown)
    if "$$" not in markdown:
        return markdown
    parts = re.split(r"(```.*?```|`[^`\n]*`)", markdown, flags=re.S)  # code keeps its dollars
    return "".join(part if i % 2 else _with_formulas(part) for i, part in enumerate(parts))


def _with_formulas(text: str) -> str:
    text = re.sub(r"\$\$(.+?)\$\$", lambda m: "\n" + convert(m[1].strip(), display="block") + "\n", text, flags=re.S)
    return re.sub(r"(?<![\\$\w])\$([^$\n]+)\$", lambda m: convert(m[1]), text)


def page_of(module: ModuleType) -> str:
    """A module with everything that it exports: what `__all__` lists, or else all public names that it defines."""
    lines = [f"# {module.__name__}", "", _prose(module.__doc__ or ""), ""]
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
    for name in getattr(module, "__all__", [name for name in own if not name.startswith("_")]):
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


def build(out: Path) -> None:
    """Build the site into a folder, which is replaced. Raises SystemExit with the warning that stopped Zensical."""
    with tempfile.TemporaryDirectory() as place:
        stage(Path(place).resolve())
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", "zensical.toml"]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True)
        if done.returncode:
            said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
            raise SystemExit(said.partition("\nTraceback")[0])
        shutil.rmtree(out, ignore_errors=True)
        shutil.move(Path(place) / "site", out)


def main() -> None:
    parser = argparse.ArgumentParser(description="build the documentation site")
    parser.add_argument("--out", type=Path, default=DOCS.parent / "site", help="the folder it is built into (site)")
    args = parser.parse_args()
    build(args.out)
    print(f"Open in a browser: {args.out.resolve() / 'index.html'}")


if __name__ == "__main__":
    main()
