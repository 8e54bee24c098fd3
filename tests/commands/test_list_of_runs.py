"""`qkv runs`: what each run of a folder was, in which settings they differ, and how good it is."""

import json
import os
import shutil
import time
import tomllib

import pytest

import qkv
from qkv import cli
from qkv.config import flat
from qkv.errors import ConfigError
from qkv.folder.run_folder import RunFolder
from qkv.tasks import TASKS
from qkv.telemetry.runs import TARGETS, _settings, differing, listed, where


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two finished runs that differ in seed and a change, one cut short, one damaged."""
    place = tmp_path_factory.mktemp("many")
    text = place / "a text.txt"
    text.write_text("the cat sat on the mat and the dog sat on the log. " * 60)
    same = {"d_model": 16, "n_layers": 1, "n_heads": 1, "n_ctx": 16, "batch_size": 4}
    how = {"steps": 6, "tokenizer": "char", "set": same, "watch": "off", "report": False, "threads": 1}
    qkv.train(text, out=place / "one", **how)
    qkv.train(text, out=place / "two", seed=2, freeze=["W_E"], **how)
    shutil.copytree(place / "one", place / "cut")
    os.remove(place / "cut" / "manifest.json")
    shutil.copytree(place / "one", place / "bad")
    (place / "bad" / "manifest.json").write_text("{")
    return place


def by_name(folder):
    return {run.path.name: run for run in listed(folder)}


def test_a_finished_run_has_what_its_manifest_says(folder):
    run, summary = by_name(folder)["one"], json.loads((folder / "one" / "manifest.json").read_text())["summary"]
    assert (run.state, run.task, run.steps) == ("finished", "causal", 6)
    assert (run.loss, run.ngram) == (summary["val_loss"], summary["baselines_nats"]["ngram"])


def test_a_run_that_was_cut_short_has_what_its_telemetry_says(folder):
    runs = by_name(folder)
    assert (runs["cut"].state, runs["cut"].loss, runs["cut"].steps) == ("unfinished", runs["one"].loss, 6)
    assert runs["bad"].state == "damaged" and runs["bad"].loss is None
    with RunFolder.open(folder / "cut", writing=True):
        assert by_name(folder)["cut"].state == "training"


@pytest.mark.parametrize(
    "manifest", ['{"summary": {"steps": 1e999}}', f'{{"summary": {{"val_loss": {"9" * 400}}}}}', "[" * 200_000]
)
def test_one_manifest_of_nonsense_stops_no_list(folder, tmp_path, manifest):
    for name in ("one", "bad"):
        shutil.copytree(folder / name, tmp_path / name)
    (tmp_path / "bad" / "manifest.json").write_text(manifest)
    runs = by_name(tmp_path)
    assert (runs["one"].state, runs["bad"].state) == ("finished", "damaged")


def test_settings_are_those_of_a_toml_parser(folder):
    for name in ("one", "two"):
        text = (folder / name / "config.toml").read_text()
        parsed = tomllib.loads(text)
        read = _settings(text)
        plain = flat_of(parsed)
        assert set(read) == set(plain)
        for path, value in plain.items():
            again = read[path] if isinstance(value, str) else tomllib.loads(f"x = {read[path]}")["x"]
            assert again == value, path


def flat_of(table, before=""):
    found = {}
    for name, value in table.items():
        found |= flat_of(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return found


def test_only_settings_that_differ_are_listed(folder):
    runs = [run for run in listed(folder) if run.path.name in ("one", "two")]
    assert differing(runs) == ["seed", "changes"]
    assert differing(runs[:1]) == []
    a, b = (flat(qkv.load(run.path).config) for run in runs)
    assert set(differing(runs)) == {path for path in a if a[path] != b[path]}


def test_runs_are_chosen_by_a_setting(folder):
    runs = listed(folder)
    assert [run.path.name for run in where(runs, ["seed=2"])] == ["two"]
    assert where(runs, ["d_model=16", "seed=9"]) == []
    with pytest.raises(ConfigError, match="unknown setting 'sead'.*seed"):
        where(runs, ["sead=2"])
    for text in ("minutes=0", "until_loss=0", "dropout=0", "seed=1.0", "d_model=1.6e1", "report=False"):
        assert {"one", "bad"} <= {run.path.name for run in where(runs, [text])}, text
    assert not where(runs, ["minutes=x"]) and not where(runs, ["source="])
    assert not where(runs, ["seed=9007199254740993", "seed=9007199254740992"])
    with pytest.raises(ConfigError, match="SETTING=VALUE"):
        where(runs, ["seed"])


def test_what_is_printed(folder, capsys):
    assert cli.main(["runs", str(folder), "--sort", "name"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "task", "loss", "n-gram", "steps", "written", "state", "what", "differs"]
    assert [line.split()[0] for line in lines[1:5]] == ["bad", "cut", "one", "two"]
    assert "seed=2" in lines[4]
    assert lines[-1] == "4 runs; losses are the lowest on validation data, in nats per token."
    assert cli.main(["runs", str(folder), "--json", "--where", "seed=2"]) == 0
    assert [run["name"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["two"]
    assert cli.main(["runs", str(folder / "nothing")]) == 2
    assert "no folder" in capsys.readouterr().err


def test_the_unit_of_losses_is_that_of_the_tasks_and_what_cannot_be_compared_is_told(folder, tmp_path, capsys):
    assert {name: TASKS[name].target for name in TARGETS} == TARGETS
    assert {task.name for task in vars(qkv.tasks)["_OWN"]} == set(TARGETS)
    for name, task in (("a", "classify"), ("b", "classify"), ("c", "causal")):
        shutil.copytree(folder / "one", tmp_path / name)
        config = tmp_path / name / "config.toml"
        config.write_text(config.read_text().replace('task = "causal"', f'task = "{task}"'))
    manifest = tmp_path / "b" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"tokenizer.json": "', '"tokenizer.json": "ff'))
    assert cli.main(["runs", str(tmp_path), "--sort", "name"]) == 0
    told = capsys.readouterr().out.splitlines()[-2:]
    assert told[0].endswith("in nats per text or token.") and "different tasks and tokenizers" in told[1]
    assert cli.main(["runs", str(tmp_path), "--where", "task=classify"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("in nats per text.")


def test_a_thousand_runs_take_less_than_a_second(folder, tmp_path):
    for i in range(1000):
        place = tmp_path / f"run-{i}"
        place.mkdir()
        for name in ("config.toml", "manifest.json"):
            os.link(folder / "one" / name, place / name)
    began = time.process_time()
    assert len(listed(tmp_path)) == 1000
    assert time.process_time() - began < 1.0
