"""Whole trainings on labels of words: what is kept and printed, answers with places, the report, kill and resume."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv import cli
from qkv.errors import ConfigError, UserError
from qkv.inspection.answers.loss import _combined
from qkv.views.report.report import read_report

SMALL = {"d_model": 16, "n_layers": 1, "n_heads": 1, "d_mlp": 32, "batch_size": 16}


@pytest.fixture(scope="module", params=["tags", "entities"])
def run(request, sources_by_task: dict, tmp_path_factory) -> qkv.Run:
    folder = tmp_path_factory.mktemp("tag")
    source = sources_by_task["tag"]
    if request.param == "entities":
        lines = source.read_text("utf-8").split("\n\n")
        texts = [" ".join(row.split()[0] for row in line.splitlines()) for line in lines if line.strip()]
        found = [[[*match.span(), "DOG"] for match in re.finditer(r"\bdog\b", text)] for text in texts]
        rows = [{"text": text, "entities": spans} for text, spans in zip(texts, found, strict=True)]
        source = folder / "names.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return qkv.train(
        source, out=folder / "run", task="tag", steps=3, set=SMALL, threads=1, precision="fp32", report=False,
        watch="off",
    )  # fmt: skip


def test_a_run_keeps_its_figures_and_eval_repeats_them(run, capsys: pytest.CaptureFixture) -> None:
    metric = run.task.metric
    summary = run.summary
    assert metric == ("entity_f1" if "O" in run.config.model.classes else "accuracy")
    assert {*summary["baselines"]} == {"majority", "by_word", "linear"}
    assert summary["baselines"]["linear"] == summary[metric] == 1.0
    with run.telemetry() as telemetry:
        assert telemetry.facts()["baselines"]["majority"] > telemetry.facts()["baselines"]["linear"]
    assert {f"linear_{metric}", f"attention_{metric}", f"{metric}_interval", "attention_share"} <= {*summary}
    assert cli.main(["eval", str(run.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found[metric] == summary[metric] and found["loss"] == pytest.approx(summary["stored_loss"])
    assert cli.main(["show", str(run.path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ("entity F1 100%" if metric == "entity_f1" else "accuracy 100%") in said and "words, neighbors" in said
    assert "chosen together" not in said  # nothing is gained where every label is right already


def test_it_answers_with_places(run, capsys: pytest.CaptureFixture) -> None:
    text = "the dog sees a cat."
    assert cli.main(["predict", str(run.path), text, "", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    first, none = found["spans"]
    assert none == [] and all(text[one["start"] : one["end"]] == one["text"] for one in first)
    if run.task.metric == "entity_f1":
        assert found["outputs"] == ["the [dog](DOG) sees a cat.", ""]
        assert [(one["start"], one["end"], one["label"]) for one in first] == [(4, 7, "DOG")]
    else:
        assert found["outputs"][0].split()[:4] == ["the/t", "dog/d", "sees/s", "a/a"]
    assert cli.main(["predict", str(run.path), text]) == 0
    assert capsys.readouterr().out == found["outputs"][0] + "\n"
    assert run.spans([text]) == [first]
    with pytest.raises(ConfigError, match="whose answers no other format holds"):
        run.export(run.path / "out")
    with pytest.raises(UserError, match="answers with no single class"):
        run.patch("the cat", "the dog")
    assert cli.main(["predict", str(run.path), text, "--at-least", "0.5"]) == 2
    assert cli.main(["predict", str(run.path), text, "--special"]) == 2
    assert "--special has no meaning for a run of the task tag" in capsys.readouterr().err


def test_the_report_has_a_row_for_each_label(run) -> None:
    with run.telemetry() as telemetry:
        found = telemetry.facts()["decisions"]
    assert read_report(run.path).decisions == found and found["unit"] == "word"
    assert np.trace(found["confusion"]) == found["n"] - found["n_wrong"]
    kinds = {name.rpartition("-")[2] for name in run.config.model.classes} - {"O"}
    assert {row["label"] for row in found["labels"]} == kinds
    assert all(row["f1"] == 1.0 for row in found["labels"] if row["n"])


@pytest.mark.parametrize(
    "name, line", [("a.conll", "cat zzz\n"), ("a.jsonl", '{"text": "cat", "spans": [[0, 3, "zzz"]]}\n')]
)
def test_another_file_is_evaluated_and_an_unknown_label_named(
    run, tmp_path: Path, capsys, name: str, line: str
) -> None:
    (tmp_path / name).write_text(line * 2)
    assert cli.main(["eval", str(run.path), str(tmp_path / name)]) == 2
    assert "zzz', a class that training has not seen" in capsys.readouterr().err
    own = "dog B-DOG\ncat O\n" if run.task.metric == "entity_f1" else "dog d\ncat c\n"
    (tmp_path / "own.conll").write_text(own)
    found = run.evaluate(tmp_path / "own.conll")
    assert found.n_targets == 2 and found.figures["accuracy"].value == 1.0


@pytest.mark.slow
def test_kill_and_resume_gives_the_same_bytes(sources_by_task: dict, killed_and_resumed) -> None:
    options = ["--task", "tag", "--steps", "240", "--no-report", "--precision", "fp32", "--threads", "1"]
    options += ["--set", ",".join(f"{name}={value}" for name, value in SMALL.items())]
    whole, killed = killed_and_resumed(str(sources_by_task["tag"]), *options)
    for name in ("model.safetensors", "best.safetensors", "linear.safetensors"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes()


def test_what_was_chosen_for_entities_is_said() -> None:
    (said,) = _combined({"transition_weight": 0.5, "outside_penalty": 1.5}, "entity_f1")
    assert "transitions between labels weigh 0.50, and O costs 1.5 nats more" in said
    assert _combined({"transition_weight": 0.0, "outside_penalty": 0.0}, "entity_f1") == ()
