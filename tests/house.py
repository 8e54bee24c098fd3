"""Measures the house: size, long functions, crowded folders, types, import cycles, and what lies beside the code.

`make check` prints the table. A figure above its limit fails. A limit above the goal is where we are: lower it whenever
the figure falls. Only a new capability may raise it, in a commit that says by how much.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).parent.parent
LONG = 60
"""Lines from which a function counts as long."""
REGISTRIES = ("commands", "questions", "tasks", "families", "static")
"""Folders with one module for each entry, which may be many."""
CODE = (".py", ".js", ".cpp", ".h")
SDIST = ("src/", "tests/", "docs/", "notebooks/")
LOGS = ROOT / "docs/answers/runs"
PLAYGROUND = ROOT / "docs/playground/index.html"
"""Generated, and left out of the source package like the logs of studies."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Figure(NamedTuple):
    """One row of the table."""

    what: str
    value: float
    limit: float
    goal: float

    @property
    def holds(self) -> bool:
        return self.value <= self.limit


def main() -> int:
    """Print the table; 1 if a figure is above its limit."""
    files = [path for path in tracked() if path.is_file()]
    code = [path for path in files if is_ours(path)]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in code if path.suffix == ".py"}
    long = sorted(long_functions(trees), reverse=True)
    packed = [f for f in files if LOGS not in f.parents and f != PLAYGROUND]
    figures = (
        Figure("lines of src (Python, JavaScript, C++)", sum(map(n_lines, code)), 89_810, 64_000),
        Figure(f"functions of {LONG} lines or more", len(long), 1, 3),
        Figure("folders with more than 18 modules", len(crowded(code)), 0, 2),
        Figure("Any in annotations", sum(map(n_any, trees.values())), 95, 400),
        Figure("public functions of tensors without shapes", sum(unshaped(trees)), 0, 0),
        Figure("import cycles", int(has_cycle()), 0, 0),
        Figure("CHANGELOG.md, kB", size(ROOT / "CHANGELOG.md") / 1e3, 20, 20),
        Figure("docs/answers, MB", megabytes(files, "docs/answers/"), 6, 6),
        Figure("source package, unpacked, MB", megabytes(packed, *SDIST), 12, 12),
    )
    for figure in figures:
        mark = "" if figure.holds else "  <- above its limit"
        print(f"{figure.what:<45}{figure.value:>10,.6g}   limit {figure.limit:<8,.6g} goal {figure.goal:,.6g}{mark}")
    for length, where in long:
        print(f"    {length} lines: {where}")
    return int(not all(figure.holds for figure in figures))


def tracked() -> list[Path]:
    """The files that git knows; where there is no git, all files but hidden ones."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        return [path for path in ROOT.rglob("*") if not any(part.startswith(".") for part in path.parts)]
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def is_ours(path: Path) -> bool:
    """Whether a file is code of src that we wrote."""
    name = path.relative_to(ROOT).as_posix()
    return name.startswith("src/") and path.suffix in CODE and "vendor" not in name and ".min." not in name


def n_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def size(path: Path) -> int:
    return path.stat().st_size


def megabytes(files: Iterable[Path], *folders: str) -> float:
    return sum(size(f) for f in files if f.relative_to(ROOT).as_posix().startswith(folders)) / 1e6


def long_functions(trees: dict[Path, ast.Module]) -> Iterator[tuple[int, str]]:
    """(lines, where) of each function that is long."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, Function) and (length := node.end_lineno - node.lineno + 1) >= LONG:
                yield length, f"{path.relative_to(ROOT / 'src')}: {node.name}"


def crowded(code: Iterable[Path]) -> list[Path]:
    """Folders with more than 18 modules, registries apart."""
    count = Counter(path.parent for path in code)
    return [folder for folder, n in count.items() if n > 18 and folder.name not in REGISTRIES]


def n_any(tree: ast.Module) -> int:
    """How often a module's annotations say Any."""
    return sum(node_name(node) == "Any" for annotation in annotations(tree) for node in ast.walk(annotation))


def annotations(tree: ast.Module) -> Iterator[ast.expr]:
    """Annotations of parameters, results and variables; what is in quotes is read."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            found = [parameter.annotation for parameter in parameters(node)] + [node.returns]
        elif isinstance(node, ast.AnnAssign):
            found = [node.annotation]
        else:
            continue
        yield from (unquoted(each) for each in found if each is not None)


def parameters(function: Function) -> list[ast.arg]:
    given = function.args
    return [x for x in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if x]


def unquoted(annotation: ast.expr) -> ast.expr:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            return ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return annotation
    return annotation


def node_name(node: ast.AST) -> str:
    return getattr(node, "id", "") or getattr(node, "attr", "")


def unshaped(trees: dict[Path, ast.Module]) -> Iterator[bool]:
    """Of each public function of models, instruments and inspection: whether it takes a tensor without its shape."""
    for path, tree in trees.items():
        if path.relative_to(ROOT / "src/qkv").parts[0] not in ("models", "instruments", "inspection"):
            continue
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        for body in (tree.body, *(node.body for node in classes)):
            for node in body:
                if isinstance(node, Function) and not node.name.startswith("_"):
                    given = (unquoted(x.annotation) for x in parameters(node) if x.annotation is not None)
                    yield any(re.fullmatch(r"(torch\.)?Tensor( \| None)?", ast.unparse(each)) for each in given)


def has_cycle() -> bool:
    """Whether modules import each other in a circle when they are loaded."""
    graph = grimp.build_graph("qkv", cache_dir=None, exclude_type_checking_imports=False)
    uses = {
        module: {other for other in graph.find_modules_directly_imported_by(module) if other != "qkv"}
        for module in graph.modules
        if module != "qkv"
    }
    try:
        TopologicalSorter(uses).prepare()
    except CycleError:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
