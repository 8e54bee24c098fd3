"""`qkv study` as it is typed: the list, mistakes in words, one JSON object."""

import json
from pathlib import Path

import pytest

from qkv.cli import main


def typed(capsys, *words: object) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return status, out, err


def test_without_a_name_the_questions_are_listed(capsys):
    status, out, _ = typed(capsys, "study")
    assert status == 0 and "frozen-embeddings" in out and "must the embeddings be?" in out
    status, out, _ = typed(capsys, "study", "--json")
    assert status == 0 and "calibrate" in json.loads(out)["studies"]


@pytest.mark.parametrize(
    "words, said",
    [
        (["frozen-embedding"], "did you mean 'frozen-embeddings'"),
        (["which-matrix", "TEXT", "--quick", "--seeds", "1"], "--seeds 2"),
        (["which-matrix", "TEXT", "--quick", "--margin", "0"], "expected a number above 0"),
        (["which-matrix", "TEXT", "--quick", "--minutes", "0.01"], "minutes are too few"),
        (["which-matrix", "nowhere.txt", "--quick"], "nowhere.txt"),
        (["frozen-embeddings", "SMALL", "--quick"], "too small for this study"),
        (["which-matrix", "TEXT", "--seeds", "many"], "'many' is not a whole number"),
    ],
)
def test_a_mistake_is_one_sentence_with_exit_status_2_and_makes_nothing(
    capsys, monkeypatch, tmp_path, small_text, long_text, words, said
):
    monkeypatch.chdir(tmp_path)
    places = {"TEXT": long_text, "SMALL": small_text}
    status, out, err = typed(capsys, "study", *[places.get(word, word) for word in words])
    assert status == 2 and said in err and out == "" and "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_a_study_prints_its_sentence_or_one_json_object(capsys, monkeypatch, tmp_path, small_text, tiny_study):
    from qkv.studies.engine import runner

    monkeypatch.setattr(runner, "find", lambda name: tiny_study.QUESTION)
    monkeypatch.chdir(tmp_path)
    status, out, err = typed(capsys, "study", "tiny", small_text, "--quick", "--seeds", "2", "--json")
    verdict = json.loads(out)
    wanted = "study verdict sentence effect low high unit margin seeds p run condition baseline expected otherwise"
    assert status == 0 and [name for name in wanted.split() if name not in verdict] == []
    assert (Path(verdict["run"]) / "page.html").read_text().startswith("<!doctype html>")
    assert "2 arms x 2 replicates" in err
    counted = verdict["baseline"]
    (trained,) = [arm for arm in verdict["arms"] if arm["name"] == counted["arm"] == "trained"]
    assert counted["trained"] == trained["loss"] > 0 and verdict["baselines"][0]["nats"] == counted["ngram"] > 0
    full = json.loads((Path(verdict["run"]) / "verdict.json").read_text()) | {"quick": False, "sentence": "It is so."}
    place = Path(verdict["run"]).with_name(f"study-tiny-{verdict['source']['name']}-full")
    place.mkdir()
    (place / "verdict.json").write_text(json.dumps(full))
    status, out, _ = typed(capsys, "study", "tiny", small_text, "--quick", "--seeds", "2")

    lines = out.splitlines()
    beaten = counted["trained"] >= counted["ngram"]
    assert lines[0].startswith("These models predict worse than counting (") == beaten and lines[0] == verdict["plain"]
    assert beaten and f"against {counted['ngram']:.2f} for the best n-gram" in lines[0]
    assert verdict["condition"] in lines and "1 layer, d_model 8, 1 head, context 8. " in verdict["condition"]
    assert verdict["sizes"]["steps"] in (8, 16, 24, 32), "what the time allows"
    assert status == 0 and verdict["sentence"] in out and "The full run on this text said: It is so." in out
    assert "Every one of" in out and "cost of freezing" in out and "frozen - trained" not in out
