"""One of each kind, added to a copy of the package in the places that CONTRIBUTING names and no others, works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import qkv
from qkv import native

PACKAGE = Path(qkv.__file__).parent
TABLE = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")


class Copy:
    """The package in another folder, where a stranger adds to it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "qkv"
        self.folder = folder
        self.touched: list[str] = []
        """What was written, as CONTRIBUTING names it."""
        shutil.copytree(PACKAGE, self.root, ignore=shutil.ignore_patterns("__pycache__"))

    def new(self, path: str, text: str) -> None:
        """A file that is not there yet."""
        assert not (self.root / path).exists()
        (self.root / path).write_text(text, encoding="utf-8")
        self.touched.append(path)

    def line(self, path: str, behind: str, line: str) -> None:
        """A line behind the one place of a file where the pattern `behind` ends."""
        text = (self.root / path).read_text(encoding="utf-8")
        (found,) = re.finditer(behind, text, re.MULTILINE)
        (self.root / path).write_text(text[: found.end()] + line + text[found.end() :], encoding="utf-8")
        self.touched.append(path)

    def python(self, *words: str, status: int = 0) -> str:
        """What this Python prints, to stdout and then to stderr, with the copy in the place of the package."""
        environment = os.environ | {"PYTHONPATH": str(self.folder)}
        done = subprocess.run(
            [sys.executable, *words], env=environment, cwd=self.folder, capture_output=True, text=True, timeout=170
        )
        assert done.returncode == status, done.stderr[-2000:]
        return done.stdout + done.stderr

    def qkv(self, *words: str, status: int = 0) -> str:
        """What the command prints."""
        return self.python("-m", "qkv", *words, status=status)


def row(kind: str) -> list[str]:
    """The paths that the row of the table "to add" names."""
    found = re.search(rf"^\| {re.escape(kind)} \| (.*) \|$", TABLE, re.MULTILINE)
    assert found is not None, f"CONTRIBUTING does not say how to add {kind}"
    return re.findall(r"`([\w./]+)`", found[1])


def assert_said(kind: str, copy: Copy) -> None:
    """Everything that was touched is named by its path, or by its folder."""
    said = row(kind)
    for path in copy.touched:
        assert any(path == place or place.endswith("/") and path.startswith(place) for place in said), (path, said)


@pytest.fixture
def copy(tmp_path):
    """A copy of the package."""
    return Copy(tmp_path)


def test_a_measure_is_one_file_and_one_line(copy):
    copy.new(
        "instruments/measures/logarithm.py",
        '''"""How large a matrix is, in digits."""

import numpy as np

from qkv.instruments.measures.measure import Measure
from qkv.instruments.readings import Reading


def _digits(reading: Reading) -> np.ndarray:
    return np.log10(reading.norm)


MEASURES = (
    Measure(
        name="digits",
        meaning="How large the matrix is, in digits.",
        formula="log10 |W|_F",
        range="any number",
        source="elementary",
        property_of="parametrisation",
        null="Its value at step 0.",
        decision="None.",
        of_matrix=_digits,
        at_rest=True,
        of_circuit=_digits,
        of_spectrum=lambda values: np.log10((values**2).sum(-1)) / 2,
        of_attention=lambda rows: rows.top - rows.found.score,
    ),
)
''',
    )
    copy.line("instruments/registry.py", r'"rows", "attention"(?=\)$)', ', "logarithm"')
    assert_said("a measure", copy)
    (copy.folder / "text.txt").write_text("the cat sat on the mat and a dog ran by. " * 60)
    said = copy.python(
        "-c",
        """
import math
from qkv import train
sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "batch_size": 2, "warmup_steps": 1}
run = train("text.txt", steps=2, out="run", tokenizer="char", watch="full", set=sizes, report=False)
with run.telemetry() as telemetry:
    digits, norm = (telemetry.series("L0.W_Q", name)["L0.W_Q"] for name in ("digits", "norm"))
    assert all(math.isclose(d, math.log10(n), rel_tol=1e-5) for d, n in zip(digits.value, norm.value, strict=True))
    for address in ("L0.H1.W_Q", "L0.H1.QK", "L0.H1.pattern"):
        print(address, len(telemetry.series(address, "digits")[address].value))
    print([row.formula for row in telemetry.measures() if row.name == "digits"])
""",
    )
    assert re.search(r"H1.W_Q [1-9]", said) and re.search(r"QK [1-9]", said) and re.search(r"pattern [1-9]", said)
    assert "log10 |W|_F" in said


def test_a_command_is_one_file_and_one_line(copy):
    copy.new(
        "commands/greet.py",
        '''"""Greet somebody.

Example:
  qkv greet you
"""

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("name", metavar="NAME", help="whom")


def run(args: argparse.Namespace) -> int:
    """Do it, print, and return the exit status."""
    print(f"hello, {args.name}")
    return 0
''',
    )
    copy.line("commands/__init__.py", r"^COMMANDS.*= \{\n", '    "greet": "greet somebody",\n')
    assert_said("a command", copy)
    assert re.search(r"^ +greet +greet somebody$", copy.qkv("--help"), re.MULTILINE)
    assert copy.qkv("greet", "you") == "hello, you\n"


def test_a_study_is_one_file(copy):
    words = (copy.root / "studies/questions/positions.toml").read_text(encoding="utf-8")
    copy.new("studies/questions/whatever.toml", words)
    assert_said("a study", copy)
    assert re.search(r"^ *whatever\b", copy.qkv("study"), re.MULTILINE)


def test_a_task_is_one_file_and_one_line(copy):
    copy.new(
        "tasks/echo.py",
        '''"""The task `echo`: as `causal`."""

from dataclasses import dataclass

from qkv.tasks.causal import Causal


@dataclass(frozen=True, kw_only=True)
class Echo(Causal):
    """As `causal`."""

    name: str = "echo"
''',
    )
    copy.line("tasks/__init__.py", r"^from qkv.tasks.classify import Classify\n", "from qkv.tasks.echo import Echo\n")
    copy.line("tasks/__init__.py", r"^_OWN.*\(Causal\(\), ", "Echo(), ")
    (copy.folder / "text.txt").write_text("the cat sat on the mat and a dog ran by. " * 60)
    assert "memory of each process" in copy.qkv("plan", "text.txt", "--task", "echo", "--steps", "2")
    assert "echo" in copy.qkv("plan", "text.txt", "--task", "ehco", "--steps", "2", status=2)


def test_a_family_of_checkpoints_is_one_entry(copy):
    entry = 'TOY = Family(**{**vars(GPT2), "name": "toy", "title": "Toy"})\n\n'
    copy.line("interop/families.py", r"\n(?=^_OURS = )", entry)
    copy.line("interop/families.py", r"^_OURS = \(GPT2, ", "TOY, ")
    assert_said("a family of checkpoints", copy)
    model = copy.folder / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "unknown"}')
    assert "unknown is not read" in copy.qkv("import", "model", "--out", "run", status=2)
    (model / "config.json").write_text('{"model_type": "toy", "architectures": ["ToyModel"]}')
    assert "of this family qkv reads GPT2LMHeadModel" in copy.qkv("import", "model", "--out", "run", status=2)


@pytest.mark.skipif(bool(native.why_not("vectors")), reason=f"no compiled kernels: {native.why_not('vectors')}")
def test_a_kernel_is_its_formula_its_call_and_its_source(copy):
    copy.line("kernels/reference.py", r"\Z", "\n\ndef doubled(x: Tensor) -> Tensor:\n    return 2 * x\n")
    copy.new(
        "kernels/doubled.py",
        '''"""Twice a tensor."""

import ctypes

import torch
from torch import Tensor

from qkv import native
from qkv.kernels import reference
from qkv.kernels.dispatch import call


def doubled(x: Tensor) -> Tensor:
    """2 x; by its formula where nothing is compiled."""
    library = native.load("doubled")
    if library is None:
        return reference.doubled(x)
    function, out = library.doubled, torch.empty_like(x)
    function.argtypes, function.restype = (ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p), None
    call(function, x.numel(), x, out)
    return out
''',
    )
    copy.new(
        "native/doubled.cpp",
        """extern "C" void doubled(long n, const float* x, float* out) {
    for (long i = 0; i < n; i++) out[i] = 2 * x[i];
}
""",
    )
    assert_said("a kernel", copy)
    said = copy.python(
        "-c",
        """
import torch
from qkv.kernels import dispatch, reference
from qkv.kernels.doubled import doubled
x, heard = torch.randn(7), []
with dispatch.heard_by(lambda function, given, found: heard.append(function.__name__)):
    assert doubled(x).equal(reference.doubled(x))
print(heard)
""",
    )
    assert "['doubled']" in said


def test_a_section_of_the_page_is_two_files_and_its_lines_in_two_lists(copy):
    copy.new(
        "views/sections/weather.py",
        '''"""The weather while it trained."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weather:
    """In words."""

    words: str


def weather_section() -> Weather:
    """It was fine."""
    return Weather(words="fine")
''',
    )
    copy.new(
        "views/static/weather.js",
        """// The weather.

import { h } from "./dom.js";
import { view } from "./view.js";

const build = ({ el }, weather) => el.append(h("p", null, weather.words));

export default view(build, { needs: (model) => model.get("weather") });
""",
    )
    listed = '  ["weather", "The weather", "Weather", "weather", "While it trained.", [weather]],\n'
    copy.line("views/static/sections.js", r"^const SECTIONS = \[\n", listed)
    imported = 'import weather from "./weather.js";\n'
    copy.line("views/static/sections.js", r'^import vocabulary from "./vocabulary.js";\n', imported)
    page = "views/report/page_sections.py"
    imported = "from qkv.views.sections.weather import Weather, weather_section\n"
    copy.line(page, r"^from qkv.views.sections.vocabulary import .*\n", imported)
    copy.line(page, r"^    other: OtherRun . None = None\n", "    weather: Weather | None = None\n")
    copy.line(page, r"^            play=self.play\(\),\n", "            weather=weather_section(),\n")
    assert_said("a section of the page", copy)
    said = copy.python(
        "-c",
        """
from pathlib import Path
from qkv.views.host import Host
from qkv.views.report.bundle import bundle
from qkv.views.report.page_sections import Sections
Path("run").mkdir()
Path("run/config.toml").write_text("")
with Sections(Path("run")) as sections:
    print(sections.report(Host()).weather)
script = bundle("sections.js")
print("modules['weather.js'] = " in script, '["weather", "The weather"' in script)
""",
    )
    assert "Weather(words='fine')" in said and "True True" in said
