"""`qkv show RUN ADDR --at STEP`: of a step whose weights were not kept, the nearest, and that is said."""

import json

import numpy as np
import pytest

import qkv
from qkv import cli
from qkv.commands.show.matrix import SIDE, look

SET = {"d_model": 72, "n_layers": 1, "n_heads": 2, "n_ctx": 16, "batch_size": 2}


@pytest.fixture(scope="module")
def run(small_text, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return qkv.train(
        small_text, out=out, tokenizer="char", steps=20, set=SET, threads=1, precision="fp32", report=False
    )


def shown(capsys, *words) -> dict:
    capsys.readouterr()
    assert cli.main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("address", ["L0.H1.QK", "L0.W_Q", "L0.H0.W_V", "W_E[e]"])
def test_of_a_step_that_was_not_kept_the_nearest_is_shown_and_named(run, address, capsys):
    kept = list(run.snapshots())
    assert kept == [0, 8, 16, 20]
    near, exact = (
        shown(capsys, "show", run.path, address, "--at", 11),
        shown(capsys, "show", run.path, address, "--at", 8),
    )
    assert near["asked"] == 11 and near["step"] == 8 and "The weights of step 11 were not kept" in near["note"]
    assert "0, 8, 16, 20" in near["note"] and "note" not in exact
    for name in ("norm", "singular_values", "after"):
        assert near.get(name) == exact.get(name)
    if "measures" in near:
        taken = 8 if address.endswith("QK") else 11
        assert max(near["measures"]["drift"]["step"]) == taken, "measures are those up to the step that was asked for"
    assert cli.main(["show", str(run.path), address, "--at", "11"]) == 0
    assert capsys.readouterr().out.startswith("The weights of step 11 were not kept; those of step 8 are shown instead")


def test_of_a_text_too_the_nearest_is_shown_and_named(run, capsys):
    words = ("show", run.path, "--text", "the cat")
    for address in ((), ("L0.H1.pattern",), ("L0.x",)):
        near, exact = (shown(capsys, *words, *address, "--at", at) for at in (11, 8))
        assert (
            "The weights of step 11 were not kept; those of step 8 are shown instead" in near["note"]
            and "note" not in exact
        )
        assert {name: near[name] for name in exact} == exact and (near["asked"], near["step"]) == (11, 8)
    near, exact = (shown(capsys, *words, "--at", at) for at in ("0..19", "0..20"))
    assert near["products"] == exact["products"] and (near["asked"], near["step"]) == ([0, 19], [0, 20])
    assert "of step 19 were not kept; those of step 20 are" in near["note"] and "step 0" not in near["note"]
    assert cli.main(["show", str(run.path), "--text", "the cat", "--at", "7..9"]) == 2
    assert "kept one set of weights near steps 7 and 9; kept: 0, 8, 16, 20" in capsys.readouterr().err
    assert cli.main(["show", str(run.path), "--text", "the cat", "--at", "0..21"]) == 2
    assert "kept no weights of step 21" in capsys.readouterr().err


def test_answers_of_the_whole_run_are_not_those_of_a_step(run, capsys):
    whole, then = shown(capsys, "show", run.path), shown(capsys, "show", run.path, "--at", 8)
    assert whole["answers"] and then["answers"] == [] and then["asked"] == 8
    assert {row["step"] for row in then["matrices"].values()} == {8}
    assert cli.main(["show", str(run.path), "--at", "8"]) == 0
    assert capsys.readouterr().out.startswith("Last measured up to step 8. The answers cover the whole run")


def test_a_step_beyond_the_last_is_a_mistake(run, capsys):
    assert cli.main(["show", str(run.path), "L0.H1.QK", "--at", "21"]) == 2
    assert "kept no weights of step 21; steps with weights: 0, 8, 16, 20" in capsys.readouterr().err
    assert cli.main(["show", str(run.path), "--at", "21"]) == 2
    assert "has no step 21: its last recorded step is 20" in capsys.readouterr().err


def test_the_picture_of_a_circuit_is_that_of_its_product(run):
    found = look(run, "L0.H1.OV", 16)
    product = run.matrix("L0.H1.OV", at=16).product().double().numpy()
    parts = np.array_split(np.arange(72), SIDE)
    expected = [[np.sqrt(np.square(product[np.ix_(a, b)]).mean()) for b in parts] for a in parts]
    np.testing.assert_allclose(found.picture, expected, rtol=1e-4, atol=1e-12)
    assert found.step == 16 and found.norm == pytest.approx(np.linalg.norm(product), rel=1e-5)


def test_rows_of_other_tables_than_tokens_are_shown_by_number(small_text, tmp_path, capsys):
    out = tmp_path / "bert"
    qkv.train(small_text, task="masked", preset="bert", tokenizer="word", steps=1, out=out, set=SET, report=False)
    capsys.readouterr()
    assert cli.main(["show", str(out), "b_U[the]"]) == 2
    assert "is one number and no row of a table" in capsys.readouterr().err
    for address, numbered in (("W_pos[3]", True), ("W_E[the]", False)):
        told = shown(capsys, "show", out, address)
        assert (told["count"] is None) == numbered
        assert all((near["token"] == str(near["id"])) == numbered for near in told["neighbours"]["after"])
