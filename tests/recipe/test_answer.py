"""Whole trainings on answers in texts: what is kept and printed, answers with places, bad input, kill and resume."""

import json
from pathlib import Path

import pytest

import qkv
from qkv import cli
from qkv.errors import ConfigError, UserError

SMALL = {"d_model": 16, "n_layers": 1, "n_heads": 1, "d_mlp": 32, "batch_size": 16}


@pytest.fixture(scope="module")
def run(sources_by_task: dict, tmp_path_factory) -> qkv.Run:
    return qkv.train(
        sources_by_task["answer"], out=tmp_path_factory.mktemp("answer") / "run", task="answer", steps=3, set=SMALL,
        threads=1, precision="fp32",
    )  # fmt: skip


def test_a_run_keeps_its_figures_and_eval_repeats_them(run, capsys: pytest.CaptureFixture) -> None:
    summary = run.summary
    assert {*summary["baselines"]} == {"linear"} and 0 <= summary["baselines"]["linear"] <= 1
    assert summary["exact_match"] <= summary["answer_f1"] and {"answer_f1_interval", "exact_match_interval"} <= {
        *summary
    }
    assert cli.main(["eval", str(run.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["answer_f1"] == summary["answer_f1"] and found["exact_match"] == summary["exact_match"]
    assert found["loss"] == pytest.approx(summary["val_loss"], rel=1e-5)
    assert cli.main(["show", str(run.path)]) == 0
    assert "logistic regression on words, overlaps and distances" in " ".join(capsys.readouterr().out.split())
    assert (run.path / "report.html").exists() and run.config.model.sizes.n_types == 3


def test_it_answers_with_places_in_the_text(run, capsys: pytest.CaptureFixture) -> None:
    text = "e\u0301te\u0301 \U0001f600 the dog sees cafe\u0301s."
    asked = [f"What sees? [SEP] {text}", json.dumps({"question": "What sees?", "text": text})]
    assert cli.main(["predict", str(run.path), *asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ((one,), (other,)) = found["spans"]
    assert other.pop("probability") == pytest.approx(one["probability"]) and 0 < one["probability"] <= 1
    assert other.items() <= one.items() and text[one["start"] : one["end"]] == one["text"] == found["outputs"][0]
    assert run.spans(asked[:1])[0][0]["start"] == one["start"]
    for bad in ("the dog", "[SEP] the dog", '{"question": 3, "text": "a"}', '{"question": "a"}'):
        assert cli.main(["predict", str(run.path), bad]) == 2
        assert "is no question and text; expected" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"'' is no question and text \(text 2 of 2\); expected"):
        run.predict([asked[0], ""])
    for command in (["embed", str(run.path), asked[0]], ["show", str(run.path), "L0.resid_post", "--text", asked[0]]):
        assert cli.main(command) == 2
        assert "a run of the task answer reads its question and text with a mark" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="whose answers no other format holds"):
        run.export(run.path / "out")
    assert cli.main(["predict", str(run.path), asked[0], "--scores", "2"]) == 2
    assert "--scores has no meaning for the task answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    "row, said",
    [
        ({"answer": "zebra"}, "line 2: the text does not have the answer 'zebra'"),
        ({"answer": {"text": "cat", "start": 1}}, "line 2: the text does not have the answer 'cat' at 1"),
        ({"answer": ""}, "line 2 has the answer ''; expected a piece of the text"),
        ({"answer": None}, "line 2 has the answer 'None'; expected a piece of the text"),
        ({"answer": []}, "line 2 has the answer '[]'; expected"),
        ({"answer": {"text": "cat", "start": "0"}}, "line 2 has the answer 'cat'; expected a piece"),
        ({"answer": 3}, "line 2 has the answer '3'; expected a piece of the text"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_its_line(tmp_path: Path, capsys, row: dict, said: str) -> None:
    good = {"question": "Who?", "context": "the cat sat", "answer": "cat"}
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps(one) + "\n" for one in (good, good | row, good)))
    assert cli.main(["train", str(source), "--task", "answer", "--steps", "1", "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert said in err and len(err.strip().splitlines()) == 1 and not (tmp_path / "run").exists()


@pytest.mark.parametrize("name, content", [("a.txt", "x y\n" * 9), ("a.jsonl", '{"q": "a", "text": "b c"}\n' * 9)])
def test_another_file_is_refused(tmp_path: Path, capsys, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert cli.main(["train", str(tmp_path / name), "--task", "answer", "--out", str(tmp_path / "run")]) == 2
    assert "question" in capsys.readouterr().err


@pytest.mark.slow
def test_kill_and_resume_gives_the_same_bytes(sources_by_task: dict, killed_and_resumed) -> None:
    options = ["--task", "answer", "--steps", "240", "--no-report", "--precision", "fp32", "--threads", "1"]
    options += ["--set", ",".join(f"{name}={value}" for name, value in SMALL.items())]
    whole, killed = killed_and_resumed(str(sources_by_task["answer"]), *options)
    for name in ("model.safetensors", "best.safetensors"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes()


def test_it_goes_on_from_a_masked_run_without_rows_for_what_a_token_is_in(
    sources_by_task: dict, tmp_path: Path
) -> None:
    small = {name: value for name, value in SMALL.items() if name != "batch_size"}
    qkv.train(
        sources_by_task["masked"], out=tmp_path / "m", task="masked", steps=2, set=small, report=False, watch="off"
    )
    run = qkv.train(
        sources_by_task["answer"], out=tmp_path / "a", task="answer", from_run=tmp_path / "m", steps=2, report=False,
        watch="off",
    )  # fmt: skip
    assert run.config.model.sizes.n_types == 0 and run.predict(["Who? [SEP] the dog"])
