"""What other packages add: the example package of the documentation, installed in a folder, and broken ones."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import qkv

PACKAGE = Path(__file__).parents[1] / "docs" / "examples" / "package"
ENVIRONMENT = os.environ | {"QKV_THREADS": "1"}
TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "batch_size": 4}


def install(site: Path, code: Path, project: dict) -> None:
    """What a wheel of a package leaves in a site folder: its modules and its metadata."""
    folder = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module in code.rglob("*.py"):
        place = site / module.relative_to(code)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(module.read_bytes())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site folder with the example package in it, and a text."""
    place = tmp_path_factory.mktemp("site")
    install(place, PACKAGE, tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"])
    (place / "my.txt").write_text("the cat sat on the mat and a dog ran by. " * 400)
    return place


def python(site: Path, *words: str, status: int = 0) -> str:
    """What this Python prints with the packages of a site folder."""
    path = os.pathsep.join([str(site), str(Path(qkv.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, *words], env=ENVIRONMENT | {"PYTHONPATH": path}, cwd=site, capture_output=True, text=True
    )
    assert done.returncode == status, done.stderr[-2000:]
    return done.stdout + done.stderr


def commands(site: Path, *typed: list[str]) -> list[str]:
    """The status of each command and what it prints, one process for all."""
    script = f"""
import contextlib, io, json, logging
from qkv.cli import main
found = []
for words in {typed!r}:
    heard = io.StringIO()
    logging.lastResort = logging.StreamHandler(heard)
    with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
        status = main(words)
    found.append(str(status) + heard.getvalue())
print(json.dumps(found))
"""
    return json.loads(python(site, "-c", script).splitlines()[-1])


def test_all_six_of_the_example_package_are_found_and_work(site: Path) -> None:
    said = python(
        site,
        "-c",
        f"""
import math
import qkv
from qkv.instruments.registry import LIGHT, MEASURES
from qkv.interop.families import FAMILIES, families_of
from qkv.tasks import TASKS
from qkv.studies.designed import STUDIES
from qkv.training.own_optimizer import OPTIMIZERS
from qkv.views.own_sections import SECTIONS
assert all(name in known for name, known in [("digits", MEASURES), ("echo", TASKS), ("example", FAMILIES),
    ("width", STUDIES), ("lion", OPTIMIZERS), ("digits", SECTIONS)])
assert "digits" in LIGHT and [family.title for family in families_of("example")] == ["Example"]
run = qkv.train("my.txt", task="echo", steps=20, out="run", tokenizer="char", set={TINY} | {{"optimizer.kind": "lion"}})
assert run.config.task == "echo" and run.config.training.optimizer.kind == "qkv_example.optimizer:Lion"
assert set(run.folder.read_manifest()["code"]) == {{"qkv_example.optimizer:Lion", "qkv_example.task:Echo"}}
digits, norm = (run.history("L0.W_Q", name)["L0.W_Q"] for name in ("digits", "norm"))
assert all(math.isclose(d, math.log10(n), rel_tol=1e-5) for d, n in zip(digits.value, norm.value, strict=True))
from qkv.views.report.report import read_report
(section,) = read_report(run.path).own
print(section.heading, len(section.rows), qkv.api.verify("run").is_whole)
""",
    )
    assert "Digits 5 True" in said
    said = commands(site, ["study"], ["study", "--json"], ["study", "width", "no.txt"])
    assert "width" in said[0] and "Does width help?" in said[1]
    assert said[2].startswith("2") and "no file or folder" in said[2]


def test_a_broken_package_is_named_and_disturbs_nothing_else(tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "bad").mkdir(parents=True)
    (code / "bad" / "__init__.py").write_text("def fails(run):\n    raise ValueError('not today')\nNOTHING = 3\n")
    groups = ("measures", "tasks", "families", "studies", "optimizers")
    points: dict[str, dict] = {f"qkv.{group}": {"broken": "nowhere:X", "wrong": "bad:NOTHING"} for group in groups}
    points["qkv.sections"] = {"broken": "nowhere:X", "fails": "bad:fails"}
    install(tmp_path, code, {"name": "bad-package", "version": "2.0", "entry-points": points})
    (tmp_path / "my.txt").write_text("the cat sat on the mat and a dog ran by. " * 400)
    named = "of the package bad-package 2.0 cannot be used: "
    settings = [f"--set={name}={value}" for name, value in TINY.items()]
    made, predicted, listed, task, optimizer, study = commands(
        tmp_path,
        ["train", "my.txt", "--steps", "4", "--out", "run", "--tokenizer", "char", *settings],
        ["predict", "run", "the cat"],
        ["study"],
        ["train", "my.txt", "--task", "wrong"],
        ["train", "my.txt", "--set", "optimizer.kind=broken"],
        ["study", "wrong"],
    )
    assert f"'broken' (measures) {named}ModuleNotFoundError: No module named 'nowhere'; repair or uninstall it" in made
    assert f"'broken' (sections) {named}" in made and "4 steps" in made and made.startswith("0")
    assert f"'fails' (sections) {named}ValueError: not today" in (tmp_path / "run" / "report.html").read_text()
    assert predicted.startswith("0") and "bad-package" not in predicted
    assert listed.startswith("0") and listed.count("bad-package") == 2 and "which-matrix" in listed
    assert task.startswith("2") and f"'wrong' (tasks) {named}it is 3; expected a subclass of a task" in task
    assert optimizer.startswith("2") and f"'broken' (optimizers) {named}ModuleNotFoundError" in optimizer
    assert (
        study.startswith("2") and f"'wrong' (studies) {named}it is 3; expected a qkv.studies.designed.Design" in study
    )


def test_other_packages_are_not_asked_for_what_is_built_in(tmp_path: Path) -> None:
    said = python(
        tmp_path,
        "-c",
        """
import importlib.metadata, sys
import qkv.extensions
qkv.extensions.entry_points = lambda **group: sys.exit(f"asked for {group}")
from qkv.instruments.registry import measure
from qkv.interop.families import families_of
from qkv.tasks import find_task
measure("drift"), families_of("gpt2"), find_task("causal")
print("nobody was asked")
""",
    )
    assert "nobody was asked" in said
