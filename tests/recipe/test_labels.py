"""Whole trainings on sets of labels and on numbers: what is kept, printed, evaluated, predicted and refused."""

import json
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv import cli
from qkv.errors import ConfigError, UserError
from qkv.views.report.report import read_report

SMALL = {"d_model": 16, "n_layers": 1, "n_heads": 1, "d_mlp": 32, "batch_size": 16}
METRICS = {"multilabel": "micro_f1", "regress": "rmse"}


@pytest.fixture(scope="module", params=METRICS)
def run(request, sources_by_task: dict, tmp_path_factory) -> qkv.Run:
    out = tmp_path_factory.mktemp("labels") / request.param
    return qkv.train(
        sources_by_task[request.param], out=out, task=request.param, steps=4, set=SMALL, threads=1, precision="fp32",
        report=False, watch="off",
    )  # fmt: skip


def test_a_run_keeps_its_figures_and_eval_repeats_them(run, capsys: pytest.CaptureFixture) -> None:
    metric, summary = METRICS[run.task.name], run.summary
    assert {*summary["baselines"]} == {*run.task.yardsticks} and summary[metric] is not None
    parts = {f"linear_{metric}", f"attention_{metric}", f"{metric}_interval", "attention_share"}
    assert parts <= {*summary}
    assert cli.main(["eval", str(run.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [found[metric], *found[f"{metric}_interval"]] == pytest.approx(
        [summary[metric], *summary[f"{metric}_interval"]]
    )
    assert cli.main(["show", str(run.path)]) == 0
    said = capsys.readouterr().out
    assert ("micro F1" if metric == "micro_f1" else "RMSE") in said and "ridge" in said or "logistic" in said


def test_the_last_sample_is_what_predict_answers(run, capsys: pytest.CaptureFixture) -> None:
    with run.telemetry() as telemetry:
        samples = telemetry.samples()
    assert {one.step for one in samples} == {run.summary["best_step"]}
    assert [one.text for one in samples] == run.predict([one.prompt for one in samples])
    assert cli.main(["compare", str(run.path), str(run.path)]) == 0
    said = capsys.readouterr().out
    assert "`val_loss` and `last_val_loss` are of attention alone" in said
    assert ("`stored_loss` is of the answers" in said) == ("stored_loss" in run.summary)
    assert cli.main(["runs", str(run.path.parent)]) == 0
    assert ("of attention alone" in capsys.readouterr().out) == (run.task.name == "regress")


def test_it_answers_and_is_evaluated_on_another_table(run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (answer,) = run.predict(["the cat sees a dog"])
    if run.task.name == "regress":
        assert float(answer) == pytest.approx(
            float(run.answering.said(run.model, run.tokenizer, ["the cat sees a dog"])[0, 0]), rel=1e-3
        )
        rows = "score,text\n12,the cat sat\n14,a dog ran\n30,the cat sees a dog at home\n"
        with pytest.raises(ConfigError, match="--scores has no meaning for the task regress"):
            run.scores(["a"], 1)
    else:
        assert answer == "cat, dog"
        rows = 'labels,text\ncat,the cat sat\n"cat,dog",a dog saw the cat\n,at home\n'
        assert {one["output"] for one in run.scores(["the cat sat"], 2)[0]} == {"cat", "dog"}
    (tmp_path / "other.csv").write_text(rows)
    found = run.evaluate(tmp_path / "other.csv")
    assert found.n_targets == 3 and found.figures[METRICS[run.task.name]].value is not None
    with pytest.raises(ConfigError, match="whose answers no other format holds"):
        run.export(tmp_path / "out")
    with pytest.raises(UserError, match="answers with no single class"):
        run.patch("the cat", "the dog")
    assert cli.main(["predict", str(run.path), "the cat", "--at-least", "0.5"]) == 2
    assert "--at-least is for a run that answers with one class" in capsys.readouterr().err
    unknown = (
        "text,labels\na,cat;bird\nb,dog\nc,cat\n" if run.task.name == "multilabel" else "text,score\na,1\nb,x\nc,2\n"
    )
    (tmp_path / "bad.csv").write_text(unknown)
    assert cli.main(["eval", str(run.path), str(tmp_path / "bad.csv")]) == 2
    assert ("'bird', a class that training has not seen" if "bird" in unknown else "'x'") in capsys.readouterr().err


def test_a_classifiers_decisions_are_in_its_report(sources_by_task: dict, tmp_path: Path) -> None:
    run = qkv.train(
        sources_by_task["classify"], out=tmp_path / "run", task="classify", steps=2, set=SMALL,
        threads=1, precision="fp32", report=False, watch="off",
    )  # fmt: skip
    with run.telemetry() as telemetry:
        found = telemetry.facts()["decisions"]
    assert np.trace(found["confusion"]) == round(run.summary["accuracy"] * found["n"]) == found["n"] - found["n_wrong"]
    assert read_report(run.path).decisions == found and found["classes"] == ["cat", "other"]
