"""The corpus that every Python brings along: its manual topics and the docstrings of its standard library.

About 2 MB of English, found in the user's own installation, so that a first run needs no download. Modules are never
imported: their source is scanned for docstrings by one regular expression that knows strings and comments (ten times as
fast as building syntax trees; a test compares the two). One document is a manual topic, a module's own docstring, a
function, or a class with its methods, under its dotted name. A paragraph that was seen before is dropped, so that
chapters and their sections, or classes and their mirror images, do not repeat each other. The documents then come in
an order given by the hash of their text: the same for everybody with the same Python, and topics and modules mixed.
"""

import ast
import gzip
import hashlib
import inspect
import json
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from qkv.data.caching import cache_key, read_cached, write_cached
from qkv.errors import SourceError

NOT_DOCUMENTATION = frozenset(
    "site-packages dist-packages test tests idle_test __pycache__ lib2to3 encodings pydoc_data turtledemo".split()
)
"""Folders of the standard library that hold no prose of its own, or code that belongs to somebody else."""

SMALLEST_CORPUS = 200_000
"""Fewer characters than this are not worth training on: the Python was installed without its sources."""

# Strings and comments in one alternation; what lies between two matches is code. Triple quotes come first.
_STRING_OR_COMMENT = re.compile(
    r"#[^\n]*"
    r'|"""(?:[^"\\]+|\\.|"(?!""))*"""'
    r"|'''(?:[^'\\]+|\\.|'(?!''))*'''"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)*'",
    re.DOTALL,
)
_HEADER = re.compile(
    r"^([ \t]*)(?:(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)|(?:if|elif|else|try|except|finally|for|while|with)\b)",
    re.MULTILINE,
)
"""A definition (group 2 is its name) or another statement that begins a block; both end blocks that lie deeper."""
_BRACKET_OR_COLON = re.compile(r"[()\[\]{}:]")


def default_documents(cache: Path | None = None) -> list[str]:
    """The documents of the embedded corpus, the same list for the same Python installation.

    `cache` is a folder that keeps the result; it is made again when any source file of the standard library changed.

    Raises SourceError where the installation holds too little text.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = list(_source_files(root))
    stamp = hashlib.sha256()
    for path in files:
        facts = path.stat()
        stamp.update(f"{path.relative_to(root).as_posix()} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    name = f"default-corpus/{cache_key(sys.version, stamp.hexdigest())}.json.gz"
    kept = read_cached(cache, name)
    if kept is not None:
        return json.loads(gzip.decompress(kept))
    documents = _gather(root, files)
    if sum(map(len, documents)) < SMALLEST_CORPUS:
        raise SourceError(
            f"the Python at {str(root)!r} came without the sources of its standard library, so there is no embedded"
            " corpus; give a text file: qkv train my.txt"
        )
    write_cached(cache, name, gzip.compress(json.dumps(documents).encode(), compresslevel=1, mtime=0))
    return documents


def _source_files(root: Path) -> Iterator[Path]:
    topics = root / "pydoc_data" / "topics.py"
    if topics.is_file():
        yield topics
    for where, folders, files in os.walk(root):
        folders[:] = sorted(
            name for name in folders if name not in NOT_DOCUMENTATION and not name.startswith("config-")
        )
        for name in sorted(files):
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):
                yield Path(where) / name


def _gather(root: Path, files: list[Path]) -> list[str]:
    """Documents without repeated paragraphs, ordered by their hash."""
    seen: set[bytes] = set()
    documents = []
    for path in files:
        source = path.read_text(encoding="utf-8", errors="replace")
        if path.parent.name == "pydoc_data":
            found = _topics(source)
        else:
            parts = path.relative_to(root).with_suffix("").parts
            found = _module_documents(source, ".".join(parts).removesuffix(".__init__"))
        for text in found:
            kept = _without_repeats(text, seen)
            if kept:
                documents.append(kept)
    return sorted(documents, key=lambda text: hashlib.sha256(text.encode()).digest())


def _topics(source: str) -> list[str]:
    """The manual topics, longest first: a chapter keeps the sections that are also topics of their own."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            return sorted(ast.literal_eval(statement.value).values(), key=lambda text: (-len(text), text))
    return []


def _module_documents(source: str, module: str) -> Iterator[str]:
    """One document for the module itself, each function, and each class with what it holds."""
    entries: list[str] = []
    group = ""
    for name, text in docstrings(source):
        if name.split(".")[0] != group and entries:
            yield "\n\n".join(entries)
            entries = []
        group = name.split(".")[0]
        entries.append(f"{module}.{name}\n\n{text}" if name else f"{module}\n\n{text}")
    if entries:
        yield "\n\n".join(entries)


def docstrings(source: str) -> Iterator[tuple[str, str]]:
    """(dotted name inside the module, cleaned docstring) of the module ("" for its name), classes and functions.

    A docstring is a string that stands alone as the first thing after a `def` or `class` header, or first in the file.
    """
    names: list[tuple[int, str]] = []  # indentation and name of what encloses the present line
    end, header, first = 0, "", True
    for match in _STRING_OR_COMMENT.finditer(source):
        code = header + source[end : match.start()]
        end = match.end()
        if source[match.start()] == "#":
            header = code
            continue
        bare = code.rstrip("rRuUbBfF") if code[-1:].isalpha() else code
        letters = code[len(bare) :].lower()
        header = ""
        last = None
        for block in _HEADER.finditer(bare):
            indent = len(block[1].expandtabs())
            while names and names[-1][0] >= indent:
                names.pop()
            if block[2]:
                names.append((indent, block[2]))
                last = block
        opens_file, first = first and not bare.strip(), False
        if opens_file:
            dotted = ""
        elif last is None:
            continue
        else:
            colon = _colon(bare, last.end())
            if colon < 0:
                header = bare[last.start() :] + '""'  # a string inside the signature
            if colon < 0 or bare[colon + 1 :].strip():
                continue
            dotted = ".".join(name for _, name in names)
        text = "" if "b" in letters or "f" in letters else _value(letters + match.group())
        if text:
            yield dotted, text


def _colon(code: str, start: int) -> int:
    """Where the signature that goes on at `start` has the colon that ends it, or -1 while it is open."""
    depth = 0
    for match in _BRACKET_OR_COLON.finditer(code, start):
        if match.group() == ":":
            if depth == 0:
                return match.start()
        else:
            depth += 1 if match.group() in "([{" else -1
    return -1


def _value(literal: str) -> str:
    """The string that a literal stands for, with its indentation taken out; empty where it is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes of old modules
        try:
            return inspect.cleandoc(ast.literal_eval(literal)).strip()
        except (SyntaxError, ValueError):
            return ""


def _without_repeats(text: str, seen: set[bytes]) -> str:
    """The text without paragraphs seen before (spacing and case aside) and without names left alone by that."""
    kept: list[str] = []
    prose = 0
    for paragraph in re.split(r"\n[ \t]*\n", text.expandtabs().strip("\n")):
        plain = " ".join(paragraph.lower().split())
        if len(plain) >= 24:
            key = hashlib.blake2b(plain.encode(), digest_size=12).digest()
            if key in seen:
                continue
            seen.add(key)
        if " " not in plain and kept and " " not in kept[-1].strip() and "." in plain and "." in kept[-1]:
            kept.pop()  # a name whose text was dropped
        kept.append(paragraph.rstrip())
        prose += len(plain) if " " in plain else 0
    return "\n\n".join(kept) if prose >= 60 else ""
