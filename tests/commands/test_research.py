"""`--research` of `qkv show` and `qkv report`: on runs, imports and histories, and what it is told without need."""

import json
import math
import re

import numpy as np
import pytest
import torch

import qkv
from qkv import api, cli
from qkv.commands.show import first_screen
from qkv.errors import UserError
from qkv.tasks.evaluation import ratio_interval

TEXT = "the cat sat on the mat and the dog ran to the king. " * 60


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of one small model, and its text."""
    home = tmp_path_factory.mktemp("research")
    (home / "text.txt").write_text(TEXT)
    sets = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 16}
    how = {"tokenizer": "char", "steps": 12, "set": sets, "threads": 1, "report": False}
    for seed in (0, 1):
        qkv.train(home / "text.txt", out=home / f"seed-{seed}", seed=seed, **how)
    (home / "pairs.tsv").write_text("the cat\tthe rat\nthe dog ran\tthe dog sat\ta\to\n")
    return home


def asked(capsys, *words):
    capsys.readouterr()
    assert cli.main([*map(str, words), "--json"]) == 0
    return {answer["key"]: answer for answer in json.loads(capsys.readouterr().out)["answers"]}


def test_every_measure_of_a_run_is_an_answer(runs, capsys):
    first, second = (qkv.load(runs / f"seed-{seed}", weights="last") for seed in (0, 1))
    words = ["show", first.path, "--research", "--pairs", runs / "pairs.tsv", "--exact", "--against", second.path]
    found = asked(capsys, *words)
    assert list(found) == ["composition", "noise scale", "pairs", "cka steps", "cka runs", "seeds"]
    score, kind, writer, reader = first.composition().strongest(1)[0]
    words_of = {"Q": "queries", "K": "keys", "V": "values"}
    assert found["composition"]["numbers"][f"{writer} to {reader}, {words_of[kind]}"] == pytest.approx(score)
    assert found["noise scale"]["numbers"]["noise scale (windows): low"] == pytest.approx(first.noise_scale().low)
    pairs = first.patch_pairs(runs / "pairs.tsv", exact=True)
    top = pairs.sites[int(pairs.share.argmax())]
    assert found["pairs"]["sentence"].startswith("There is nothing to carry: the texts of a pair differ by only")
    assert f"{top}, nats: exact" in found["pairs"]["numbers"]
    assert found["cka steps"]["numbers"]["embed, step 0"] == pytest.approx(first.cka(at=12, other_at=0).same[0])
    assert found["cka runs"]["numbers"]["embed, seed-1"] == pytest.approx(first.cka(second).same[0])
    spread = first.side_by_side([second], "L0.W_Q", "drift")
    both = [run.history("L0.W_Q", "drift")["L0.W_Q"] for run in (first, second)]
    assert spread.mean["L0.W_Q"].step.tolist() == both[0].step.tolist() and spread.n == 2
    mean, (low, high) = ratio_interval(np.array([one.value[-1] for one in both]), np.ones(2))
    ends = [part["L0.W_Q"].value[-1] for part in (spread.mean, spread.low, spread.high)]
    assert ends == pytest.approx([mean, low, high])
    assert found["seeds"]["numbers"]["L0.W_Q: high"] == pytest.approx(high)
    capsys.readouterr()
    assert cli.main(list(map(str, words))) == 0
    assert re.search(r"value +low +high +exact", capsys.readouterr().out)


def test_the_report_shows_what_was_measured(runs, tmp_path, capsys):
    run = qkv.load(runs / "seed-0")
    plain = run.report(tmp_path / "plain.html").read_text()
    assert cli.main(["report", str(run.path), "--research", "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    for question in ("Which heads read what earlier heads write?", "How large a batch is useful?"):
        assert question in page and question not in plain


def test_imports_and_histories_are_measured_too(runs, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    for step in (0, 1):
        model.save_pretrained(tmp_path / "series" / f"step{step}")
        torch.nn.init.normal_(model.transformer.h[0].attn.c_attn.weight)
    alone = api.import_checkpoint(tmp_path / "series" / "step1", tmp_path / "alone")
    assert list(asked(capsys, "show", alone.path, "--research")) == ["composition"]
    history = api.import_history(tmp_path / "series", tmp_path / "history")
    scores = [history.composition(at=step).scores["Q"][0, 2] for step in (0, 1)]
    assert scores[0] != scores[1] == alone.composition().scores["Q"][0, 2]
    assert asked(capsys, "show", history.path, "--research").keys() == {"composition"}
    ids = qkv.load(runs / "seed-0").tokenizer
    ids.save(tmp_path / "series" / "step0" / "tokenizer.json")
    ids.save(tmp_path / "series" / "step1" / "tokenizer.json")
    told = api.import_history(tmp_path / "series", tmp_path / "told", text=runs / "text.txt")
    found = asked(capsys, "show", told.path, "--research")
    assert list(found) == ["composition", "noise scale", "cka steps"]
    assert found["cka steps"]["numbers"]["embed, step 0"] == pytest.approx(1)  # only attention of layer 0 differs


def test_what_is_asked_in_vain_is_one_sentence(runs, capsys, monkeypatch):
    path, other = str(runs / "seed-0"), str(runs / "seed-1")
    monkeypatch.setattr(first_screen, "kept", lambda folder: [("Is the loss good?", "Yes.")])
    for words, said in (
        (["--against", other], "add --research"),
        (["--source", str(runs / "text.txt")], "add --research"),
        (["--pairs", str(runs / "pairs.tsv")], "add --research"),
        (["--exact"], "add --research"),
        (["--research", "--exact"], "add --pairs FILE"),
        (["--research", "--at", "3"], "--research measures a whole run"),
        (["--research", "--pairs", "none.tsv"], "none.tsv"),
        (["--estimate"], "add --patch OTHER"),
    ):
        assert cli.main(["show", path, *words]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1
    with pytest.raises(UserError, match="at least two"):
        qkv.load(path).side_by_side([], "W_E", "drift")
    found = qkv.load(path).patch("the cat", "the rat", estimate=True)
    assert found.is_estimate and math.isfinite(float(found.heads.sum()))
