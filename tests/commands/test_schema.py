"""`qkv schema`: what each command prints has the form that its schema is derived from, and the schema says the same."""

import json
from pathlib import Path

import pytest

from qkv.cli import command_parser, main
from qkv.commands import COMMANDS
from qkv.commands.printing.forms import FORMS, schema, schema_of
from qkv.jsontypes import WhereThere, is_like
from qkv.studies.questions import questions
from qkv.studies.verdict.sentences import judged_again

ROOT = Path(__file__).parents[2]
SIZES = ["--tokenizer", "char", "--set", "d_model=16,n_layers=2,n_heads=2,n_ctx=16,batch_size=4", "--threads", "1"]


def fits(value: object, form: dict) -> bool:
    """Whether a value fits a JSON Schema of the kinds that are used here: the standard's words, read plainly."""
    if "anyOf" in form:
        return any(fits(value, one) for one in form["anyOf"])
    if "enum" in form:
        return value in form["enum"]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    kinds = {
        "string": isinstance(value, str), "boolean": isinstance(value, bool), "null": value is None,
        "number": is_number, "integer": is_number and value == int(value), "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }  # fmt: skip
    if "type" in form and not kinds[form["type"]]:
        return False
    if isinstance(value, list):
        return all(fits(item, form.get("items", {})) for item in value)
    if isinstance(value, dict):
        named, others = form.get("properties", {}), form.get("additionalProperties", {})
        has_all = set(form.get("required", ())) <= value.keys()
        return has_all and all(fits(item, named.get(name, others)) for name, item in value.items())
    return True


def check(command: str, value: object) -> None:
    """Make sure that what a command printed has one of its forms, and fits its schema."""
    assert any(is_like(value, form) for form in FORMS[command]), sorted(value)
    assert fits(value, schema(command))
    try:
        import jsonschema
    except ImportError:
        return
    jsonschema.validate(value, schema(command))


@pytest.fixture(scope="module")
def place(tmp_path_factory, small_text):
    """A folder with a run `a`, and a text."""
    folder = tmp_path_factory.mktemp("schema")
    words = ["train", str(small_text), *SIZES, "--steps", "6", "--out", str(folder / "a"), "--json"]
    with pytest.MonkeyPatch.context() as patch, open(folder / "a.json", "w", encoding="utf-8") as out:
        patch.setattr("sys.stdout", out)
        assert main(words) == 0
    (folder / "text.txt").write_bytes(small_text.read_bytes())
    return folder


ASKED = [
    "predict a hello --tokens 3", "predict a hello --tokens 3 --scores 2", "eval a", "embed a hello",
    "embed a hello --per-token", "embed a --measures", "step a hello", "show a", "show a L0.W_Q", "show a L0.H0.QK",
    "show a --text hello", "runs .", "compare a a", "study", "verify a", "report a --out r.html",
    "export a --out theirs", "import theirs --out again", "plan text.txt --steps 5", "plan text.txt --receipt",
    "doctor", "bench step", "learn", "learn induction",
    "trial new.toml --against a/config.toml --max-seeds 6 --ledger t.jsonl",
    "trial a/config.toml --against a/config.toml",
]  # fmt: skip
"""One of every kind of answer; exports come before imports."""


@pytest.mark.parametrize("words", ASKED)
def test_what_is_printed_has_the_declared_form(place, capsys, monkeypatch, words):
    monkeypatch.chdir(place)
    monkeypatch.setattr("qkv.benchmarks.session.Session.run", lambda session, name: [])
    text = Path("a/config.toml").read_text()
    Path("new.toml").write_text(text.replace("\nlr = ", "\nlr = 1e-9 # "))
    command, *rest = words.split()
    assert main([command, *rest, "--json"]) == 0
    check(command, json.loads(capsys.readouterr().out))


def test_a_checked_file_has_the_declared_form(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["learn", "check", "mine.py", "--template"]) == 0
    capsys.readouterr()
    assert main(["learn", "check", "mine.py", "--json"]) == 2
    check("learn", json.loads(capsys.readouterr().out))


def test_train_and_kept_studies_have_the_declared_form(place):
    check("train", json.loads((place / "a.json").read_text()))
    kept = sorted((ROOT / "docs" / "answers" / "results").glob("*.json"))
    for path in kept[:: max(1, len(kept) // 8)]:
        value = json.loads(path.read_text())
        check("study", judged_again(questions()[value["study"]], value))


def test_every_command_with_json_has_a_schema_and_no_other():
    with_json = {name for name in COMMANDS if "--json" in command_parser(name)._option_string_actions}
    assert with_json == FORMS.keys()


def test_schema_prints_one_or_all_and_says_what_has_none(capsys):
    assert main(["schema", "trial"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["properties"]["decision"] == {"enum": ["discard", "keep", "undecided"]} and one == schema("trial")
    assert {"effect", "low", "high", "unit", "seeds", "seconds", "history"} <= set(one["required"])
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == FORMS.keys()
    assert main(["schema", "view"]) == 2 and "qkv view has no --json" in capsys.readouterr().err
    assert main(["schema", "trail"]) == 2 and "did you mean 'trial'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ({"a": int}, {"a": 1, "b": "more"}, {"b": 1}),
        ({"a": (float, type(None))}, {"a": None}, {"a": "x"}),
        ([{"a": bool}], [{"a": True}], [{"a": 1}]),
        ({str: [int]}, {"x": [1], "y": []}, {"x": [1.5]}),
        (WhereThere(a=str), {}, {"a": 1}),
        (frozenset({"keep"}), "keep", "kept"),
    ],
)
def test_a_form_and_its_schema_agree(form, good, bad):
    assert is_like(good, form) and fits(good, schema_of(form))
    assert not is_like(bad, form) and not fits(bad, schema_of(form))
