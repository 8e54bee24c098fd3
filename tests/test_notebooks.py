"""Every notebook runs from top to bottom, in a kernel of its own and without a network."""

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "notebooks"


@pytest.fixture(scope="module")
def make():
    spec = importlib.util.spec_from_file_location("make_notebooks", NOTEBOOKS / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_notebook_is_listed_begins_with_prose_and_is_python(make):
    listed = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
    assert len(make.names()) == 6
    for name in make.names():
        assert f"({name}.py)" in listed
        text = (NOTEBOOKS / f"{name}.py").read_text(encoding="utf-8")
        assert text.startswith("# %% [markdown]\n# # ")
        compile(text, name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in sorted(NOTEBOOKS.glob("*.py")) if path.stem != "make"])
def test_a_notebook_runs(name, make, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="needs the dev extra (nbconvert, ipykernel)")
    nbformat = pytest.importorskip("nbformat", reason="needs the dev extra (nbconvert, ipykernel)")
    notebook = make.notebook_of((NOTEBOOKS / f"{name}.py").read_text(encoding="utf-8"))
    if name == "run_a_study":  # a quick study takes three minutes: here a question of seconds answers in its place
        tiny = ROOT / "tests" / "studies"
        code = f"import sys; sys.path.insert(0, {str(tiny)!r})\nimport tiny_study as t"
        code += "\nt.runner.find = lambda name: t.QUESTION"
        notebook.cells.insert(0, nbformat.v4.new_code_cell(code))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
    nbclient.NotebookClient(notebook, timeout=170, kernel_name="python3").execute()
    printed = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert printed and not [out for out in printed if out.output_type == "error"]
