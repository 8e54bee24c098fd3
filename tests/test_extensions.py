"""What other packages add: the example package of the documentation, installed in a folder, and broken ones."""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv import extensions
from qkv.cli import main
from qkv.instruments.registry import LIGHT, MEASURES, measure
from qkv.interop.families import FAMILIES, families_of
from qkv.studies.designed import STUDIES
from qkv.tasks import TASKS, find_task
from qkv.training.optimizers import OPTIMIZERS
from qkv.views.own_sections import SECTIONS
from qkv.views.report.report import read_report

PACKAGE = Path(__file__).parents[1] / "docs" / "examples" / "package"
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


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A site folder on the path of this process, and the current folder, with a text in it."""
    registries = (MEASURES, TASKS, FAMILIES, STUDIES, OPTIMIZERS, SECTIONS)

    def forget() -> None:
        extensions._points.cache_clear()
        for registry in registries:
            registry._added.clear()
            registry._warned.clear()

    (tmp_path / "my.txt").write_text("the cat sat on the mat and a dog ran by. " * 400)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    forget()
    yield tmp_path
    forget()


def test_all_six_of_the_example_package_are_found_and_work(site: Path, capsys: pytest.CaptureFixture) -> None:
    install(site, PACKAGE, tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"])
    for name, known in (("digits", MEASURES), ("echo", TASKS), ("example", FAMILIES), ("width", STUDIES)):
        assert name in known and name in list(known)
    assert "lion" in OPTIMIZERS and "digits" in SECTIONS
    assert "digits" in LIGHT and [family.title for family in families_of("example")] == ["Example"]
    settings = TINY | {"optimizer.kind": "lion"}
    run = qkv.train("my.txt", task="echo", steps=20, out="run", tokenizer="char", set=settings, report=False)
    assert run.config.task == "echo" and run.config.training.optimizer.kind == "qkv_example.optimizer:Lion"
    assert set(run.folder.read_manifest()["code"]) == {"qkv_example.optimizer:Lion", "qkv_example.task:Echo"}
    digits, norm = (run.history("L0.W_Q", name)["L0.W_Q"] for name in ("digits", "norm"))
    assert np.allclose(digits.value, np.log10(norm.value), rtol=1e-5) and len(norm.value) > 2
    (section,) = read_report(run.path).own
    assert section.heading == "Digits" and len(section.rows) == 5
    assert qkv.api.verify("run").is_whole
    capsys.readouterr()
    assert main(["study"]) == 0 and "width" in (listed := capsys.readouterr().out) and "Does width help?" in listed
    assert main(["study", "width", "no.txt"]) == 2 and "no file or folder" in capsys.readouterr().err


def test_a_broken_package_is_named_and_disturbs_nothing_else(
    site: Path, capsys: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture
) -> None:
    code = site / "code"
    (code / "bad").mkdir(parents=True)
    fails = "raise ValueError('not today')"
    (code / "bad" / "__init__.py").write_text(f"def fails(run):\n    {fails}\nNOTHING = 3\n")
    groups = ("measures", "tasks", "families", "studies", "optimizers")
    points: dict[str, dict] = {f"qkv.{group}": {"broken": "nowhere:X", "wrong": "bad:NOTHING"} for group in groups}
    points["qkv.sections"] = {"broken": "nowhere:X", "fails": "bad:fails"}
    install(site, code, {"name": "bad-package", "version": "2.0", "entry-points": points})
    named = "of the package bad-package 2.0 cannot be used: "
    run = qkv.train("my.txt", steps=4, out="run", tokenizer="char", set=TINY, report=False)
    assert run.summary["steps"] == 4
    missing = f"'broken' (measures) {named}ModuleNotFoundError: No module named 'nowhere'; repair or uninstall it"
    assert [record.message for record in caplog.records].count(missing) == 1
    (section,) = read_report(run.path).own
    assert section.lead == f"'fails' (sections) {named}ValueError: not today; repair or uninstall it."
    caplog.clear()
    assert main(["predict", "run", "the cat"]) == 0 and not caplog.records
    assert main(["study"]) == 0 and len(caplog.records) == 2 and "which-matrix" in capsys.readouterr().out
    for words, said in (
        (["train", "my.txt", "--task", "wrong"], f"'wrong' (tasks) {named}it is 3; expected a subclass of a task"),
        (["train", "my.txt", "--set", "optimizer.kind=broken"], f"'broken' (optimizers) {named}ModuleNotFoundError"),
        (["study", "wrong"], f"'wrong' (studies) {named}it is 3; expected a qkv.studies.designed.Design"),
    ):
        assert main(words) == 2 and said in capsys.readouterr().err


def test_other_packages_are_not_asked_for_what_is_built_in(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "entry_points", lambda **group: pytest.fail(f"asked for {group}"))
    assert measure("drift").name == "drift" and families_of("gpt2") and find_task("causal").name == "causal"
