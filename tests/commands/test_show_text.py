"""`qkv show RUN ADDR --text TEXT`: a head's address shows that head's part of the activation, or says whose it is."""

import json
import re

import numpy as np
import pytest
import torch

import qkv
from qkv import cli
from qkv.commands.show.text import activation_values
from qkv.errors import AddressError
from qkv.models import Sizes

SIZES = Sizes(d_vocab=5, d_model=8, n_layers=1, n_heads=4, n_kv_heads=2, n_ctx=6).resolved()


@pytest.mark.parametrize(
    ("address", "head"), [("L0.H3.q", 3), ("L0.KV1.k", 1), ("dec.L0.cross.KV0.v", 0), ("dec.L0.cross.H2.pattern", 2)]
)
def test_a_head_is_shown_by_its_own_number(address, head):
    value = torch.arange(4.0)[:, None, None].expand(4, 3, 2)
    name = address.replace(f"KV{head}.", "").replace(f"H{head}.", "")
    found = activation_values(value, name, address, SIZES)
    assert found.shape == (3, 2) and (found == head).all()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("L0.H1.k", "L0.H1.k is L0.KV0.k"),
        ("L0.H2.k", "L0.H2.k is L0.KV1.k"),
        ("dec.L0.cross.H3.v", "is dec.L0.cross.KV1.v"),
        ("L0.KV1.q", "L0.H1.q"),
        ("L0.H4.k", "L0.k has heads 0 to 1"),
        ("L0.H4.q", "L0.q has heads 0 to 3"),
        ("L0.pattern", "has 4 heads; name one: L0.H0.pattern"),
    ],
)
def test_a_head_that_there_is_not_is_refused_with_those_there_are(address, said):
    name = address.replace(next((part for part in address.split(".") if part[-1].isdigit() and part[0] != "L"), ""), "")
    with pytest.raises(AddressError, match=said):
        activation_values(torch.zeros(2 if address[-1] in "kv" else 4, 3, 2), name.replace("..", "."), address, SIZES)


def test_patching_shows_where_the_answer_goes_over_and_says_what_is_missing(small_text, tmp_path, capsys, monkeypatch):
    sets = {"d_model": 32, "n_layers": 2, "n_heads": 2, "n_ctx": 16}
    path = str(tmp_path / "run")
    qkv.train(small_text, out=path, tokenizer="char", steps=6, set=sets, threads=1, report=False, watch="off")
    words = ["show", path, "--text", "the cat", "--patch", "the rat"]
    capsys.readouterr()
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == list("the cat") and found["others"] == list("the rat") and found["position"] == 6
    apart = found["difference"]
    assert apart == pytest.approx(found["log_odds"][0] - found["log_odds"][1])
    stream = found["nats"]["stream"]
    assert stream[0][4] == pytest.approx(apart) and stream[0][:4] == pytest.approx([0] * 4, abs=1e-9)
    assert abs(apart) < 0.5 and found["shares"] is None and found["heads"] is None, "no share of nothing"
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "'c' < 'r'" in out and "nats for the first text" in out and "L1" in out
    assert found["caution"] in out and "--answers A B" in out, "six updates tell the two hardly apart"
    table = out.partition("shows the change of the answer in nats")[2]
    assert f"{apart:+.2f}" in table and f"({apart:+.2f})" not in table
    assert cli.main([*words[:2], "L1.H0.z", *words[2:], "--answers", "a", "e"]) == 0
    out = capsys.readouterr().out
    assert "L1.H0.z at all tokens at once:" in out and "'a' or 'e'?" in out
    monkeypatch.setattr("qkv.inspection.patching.LITTLE", abs(apart) / 2)
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shares"]["stream"][0][4] == pytest.approx(1) and len(found["heads"]) == 2
    assert np.multiply(found["heads"], apart) == pytest.approx(np.array(found["nats"]["heads"]))
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert f"1.00 ({apart:+.2f})" in out, "the share of the token that differs, and the same in nats"
    assert "nothing to carry" not in out
    for more, said in (
        (["show", path, "--patch", "the rat"], "give both texts"),
        ([*words[:4], "--answers", "a", "e"], "add --patch OTHER"),
        ([*words, "--answers", "a", "abc"], "unknown token 'abc'"),
        ([*words[:4], "--patch", "the"], "expected as many"),
        ([*words, "--measure", "drift"], "leave it out"),
    ):
        assert cli.main(more) == 2
        assert said in capsys.readouterr().err


def test_uniform_attention_is_of_each_kind_of_layer_and_the_answer_a_sum_or_not_for_a_reason(tmp_path, capsys):
    (tmp_path / "t.txt").write_text("the cat sat on the mat and the dog ran to the king\n" * 200)
    sets = {
        "d_model": 16,
        "n_layers": 2,
        "n_heads": 2,
        "n_ctx": 16,
        "window": 4,
        "window_layers": "wf",
        "sinks": "true",
    }
    how = {"tokenizer": "char", "steps": 2, "threads": 1, "report": False, "watch": "off"}

    def shown(**more):
        run = qkv.train(tmp_path / "t.txt", out=tmp_path / f"run{len(more)}", set=sets | more, **how)
        capsys.readouterr()
        assert cli.main(["show", str(run.path), "--text", "the king sat on"]) == 0
        return capsys.readouterr().out

    out = shown()
    (windowed,), (full,) = (re.findall(rf"uniform attention, as in {layer} +(.*)", out) for layer in ("L0", "L1"))
    seen = np.minimum(np.arange(15) + 1, 4) + 1
    even = [(1 / seen).mean(), (1 / seen[1:]).mean(), (np.arange(2, 15) < 4) @ (1 / seen[2:]) / 13, np.log(seen).mean()]
    assert [float(x) for x in windowed.split()] == pytest.approx(even, abs=0.006)
    assert float(full.split()[-1]) == pytest.approx(np.log(np.arange(15) + 2).mean(), abs=0.006)
    assert re.search(r"\n *embedding +[+-]0\.", out) and "rows of W_E " not in out.partition("Each part contributes")[2]
    assert "Each part contributes" not in shown(logit_cap=30)


def test_heads_that_are_not_measured_are_said_to_be(tmp_path, capsys):
    (tmp_path / "t.txt").write_text("the cat sat on the mat and the dog ran to the king\n" * 200)
    words = "d_model=16,n_layers=1,n_heads=2,n_ctx=16,positions=alibi"
    train = ["train", str(tmp_path / "t.txt"), "--steps", "2", "--tokenizer", "char", "--set", words, "--no-report"]
    why = "What heads attend to is not measured: this model has a window, sinks, capped scores, or alibi or relative"
    assert cli.main([*train, "--out", str(tmp_path / "run")]) == 0
    assert why in " ".join(capsys.readouterr().err.split())
    assert cli.main(["show", str(tmp_path / "run"), "--json"]) == 0
    answers = {answer["key"]: answer for answer in json.loads(capsys.readouterr().out)["answers"]}
    assert answers["heads"]["sentence"].startswith(why)
    assert cli.main([*train, "--set", "watching.attention=0", "--out", str(tmp_path / "none")]) == 0
    assert why not in " ".join(capsys.readouterr().err.split())


def test_a_mark_that_is_typed_is_that_token_in_everything_that_is_shown(tmp_path, capsys):
    text = tmp_path / "t.txt"
    text.write_text("the cat sat on the mat and the dog ran to the king\n" * 200)
    sets = {"d_model": 32, "n_layers": 2, "n_heads": 2, "n_ctx": 16}
    how = {"tokenizer": "word", "steps": 3, "set": sets, "threads": 1, "report": False, "watch": "off"}
    qkv.train(text, task="masked", out=tmp_path / "run", **how)
    capsys.readouterr()
    assert cli.main(["show", str(tmp_path / "run"), "--text", "the cat [MASK] on the mat", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"].count("[MASK]") == 1
    wrote = found["direct_attribution"]
    assert found["tokens"][wrote["position"]] == "[MASK]"
    assert len(found["heads"][0]["pattern"]) == len(found["tokens"])
    assert cli.main(["show", str(tmp_path / "run"), "--text", "the cat [MASK] on the mat"]) == 0
    assert f"At '[MASK]', token {wrote['position'] + 1} of {len(found['tokens'])}" in capsys.readouterr().out
