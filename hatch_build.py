"""What a package index shows (the project's addresses, a README whose links lead somewhere), and compiled libraries.

`address` in pyproject.toml, under `tool.hatch.metadata.hooks.custom`, is the project's public address. While it is
empty, the metadata name none, and links to files of the repository become plain text.

A wheel that is built on Linux on x86-64 with a C++ compiler ($CXX, g++, clang++ or c++) holds the native code compiled
for every instruction set of `src/qkv/native/levels.py`. It calls no Python and no torch, so one wheel serves every
version of both; GNU's OpenMP library is the one that torch brings. Elsewhere the wheel holds the sources alone, which
are compiled at the first use.
"""

import hashlib
import json
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")


class Hook(MetadataHookInterface):
    """Fills in `readme` and `urls`."""

    def update(self, metadata: dict) -> None:
        """Called by hatchling for every wheel and sdist."""
        address = self.config.get("address", "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": outside(text, address)}
        metadata["urls"] = urls(address)


class Libraries(BuildHookInterface):
    """Compiles the native code into a wheel, and names the platform that it is for."""

    def initialize(self, version: str, build_data: dict) -> None:
        """Called by hatchling before a wheel is written; an editable install compiles at its first use."""
        named = (os.environ.get("CXX", ""), "g++", "clang++", "c++")
        compiler = next((found for word in named if word and (found := shutil.which(word))), None)
        is_linux = sys.platform == "linux" and platform.machine() == "x86_64"
        if version == "editable" or not is_linux or compiler is None:
            return
        self.made = Path(tempfile.mkdtemp())
        libraries = make_libraries(compiler, Path(self.root) / "src" / "qkv" / "native", self.made)
        if not libraries:
            self.app.display_warning(f"{compiler} compiled none of the native code: the wheel holds its sources")
            return
        for path in [*libraries, self.made / "build.json"]:
            build_data["force_include"][str(path)] = f"qkv/native/libraries/{path.relative_to(self.made)}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{max(map(needed_glibc, libraries))}_x86_64"

    def finalize(self, version: str, build_data: dict, artifact_path: str) -> None:
        """Called by hatchling when the wheel is written."""
        shutil.rmtree(getattr(self, "made", ""), ignore_errors=True)


def make_libraries(compiler: str, sources: Path, out: Path) -> list[Path]:
    """Compile every source for every instruction set into `out`/SET/NAME.so, and say by what in `out`/build.json.

    A set that this compiler does not know is left out whole.
    """
    levels = runpy.run_path(str(sources / "levels.py"))

    def compiled(job: tuple[str, str]) -> bool:
        level, name = job
        path = out / level / f"{name}.so"
        path.parent.mkdir(exist_ok=True)
        options = [flag for flag in levels["options"](level) if flag != "-shared"]
        # linked without -fopenmp: torch brings that library under a name of its own
        commands = [
            [compiler, *options, "-c", f"{name}.cpp", "-o", path.with_suffix(".o")],
            [compiler, "-shared", "-s", "-Wl,--as-needed", path.with_suffix(".o"), "-o", path, "-lm"],
        ]
        done = all(subprocess.run(words, cwd=sources, capture_output=True).returncode == 0 for words in commands)
        path.with_suffix(".o").unlink(missing_ok=True)
        return done

    jobs = [(level, name) for level in levels["LEVELS"] for name in levels["SOURCES"]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = {level for (level, _), done in zip(jobs, pool.map(compiled, jobs), strict=True) if not done}
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, errors="replace").stdout
    paths = [out / level / f"{name}.so" for level, name in jobs if level not in failed]
    hashes = {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    made = {"compiler": next(iter(said.splitlines()), "")[:200], "sha256": hashes}
    (out / "build.json").write_text(json.dumps(made), "utf-8")
    return paths


def needed_glibc(library: Path) -> int:
    """The newest version 2.N of the C library that a library asks for, at least 17."""
    return max([17, *map(int, re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes()))])


def outside(text: str, address: str) -> str:
    """The README with links that hold anywhere; without an address, their text alone, and no pictures."""

    def replaced(link: re.Match) -> str:
        picture, words, target = link.groups()
        if address:
            return f"{picture}[{words}]({address}/{'raw' if picture else 'blob'}/main/{target})"
        return "" if picture else words

    return _LINK.sub(replaced, text)


def urls(address: str) -> dict[str, str]:
    """Label -> address, for the side bar of an index; empty where the project has none yet."""
    paths = {
        "Source": "",
        "Issues": "/issues",
        "Changelog": "/blob/main/CHANGELOG.md",
        "Documentation": "/tree/main/docs",
    }
    return {label: address + path for label, path in paths.items()} if address else {}
