"""What SECURITY.md says of our own code: nothing is unpickled, evaluated or handed to a shell."""

import ast
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parent.parent / "src" / "qkv").rglob("*.py"))
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "torch.save", "os.system", "os.popen", "yaml.load"}
OPTIONS = {"shell", "allow_pickle", "trust_remote_code"}


def dotted(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def dangers(text: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            if dotted(node.func) in CALLS:
                found.append(dotted(node.func))
            wanted = [k for k in node.keywords if k.arg in OPTIONS]
            found += [f"{k.arg}=" for k in wanted if not (isinstance(k.value, ast.Constant) and k.value.value is False)]
    return found


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from marshal import loads", "eval('1')", "torch.load(path)", "run(x, shell=True)",
     "np.load(path, allow_pickle=True)", "AutoModel.from_pretrained(x, trust_remote_code=True)"],
)  # fmt: skip
def test_the_search_finds_what_it_looks_for(text: str) -> None:
    assert dangers(text)


ASKED_FOR = {
    "student.py": ["exec", "compile"],
    "run.py": ["trust_remote_code="],
}
"""`learn check` runs the file that its user names, in a process of its own; `to_transformers` loads the code that it
exported a moment before."""


def test_our_code_unpickles_evaluates_and_shells_out_nothing() -> None:
    assert len(SOURCES) > 100
    found = {path.name: words for path in SOURCES if (words := dangers(path.read_text(encoding="utf-8")))}
    assert found == ASKED_FOR
