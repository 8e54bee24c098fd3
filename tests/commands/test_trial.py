"""`qkv trial` over small trainings: decisions, resume, duplicates, replay, and every mistake in words."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import qkv
from qkv.cli import main
from qkv.config import dump_toml, from_dict, override, to_dict
from qkv.errors import Interrupted, NonFiniteError
from qkv.recipe import Parts, Request, RunConfig, assemble, resolve
from qkv.studies.gate import trial as module
from qkv.studies.gate.sequential import alpha, spent
from qkv.tasks import find_task

SIZES = {"d_model": 8, "n_layers": 1, "n_heads": 1, "n_ctx": 16, "batch_size": 4}


@pytest.fixture
def write(tmp_path, small_text, monkeypatch):
    """write(name, task=, **settings) -> the path of a configuration, beside the others."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, task: str = "causal", tokenizer: str = "char", **settings: object) -> Path:
        request = Request(
            source=str(small_text), task=task, steps=6, set=SIZES, tokenizer=tokenizer, vocab=None, threads=1,
            precision="fp32", watch="off",
        )  # fmt: skip
        config = override(resolve(request, None)[0], {k.replace("__", "."): v for k, v in settings.items()})
        (tmp_path / name).write_text(dump_toml(to_dict(config)))
        return tmp_path / name

    return write


@pytest.fixture
def counted(monkeypatch):
    """The seeds of the trainings that are made, in order."""
    seeds = []
    real = Parts.train
    monkeypatch.setattr(Parts, "train", lambda parts, **k: seeds.append(parts.config.seed) or real(parts, **k))
    return seeds


def said(capsys, *words: object, status: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main(["trial", *map(str, words)]) == status, capsys.readouterr().err
    return capsys.readouterr()


def answer(capsys, *words: object) -> dict:
    return json.loads(said(capsys, *words, "--json")[0])


def test_a_better_training_is_kept_and_a_worse_one_discarded_by_what_is_in_the_contract(write, capsys, counted):
    slow, fast = write("slow.toml", lr=1e-6, muon_lr=1e-6), write("fast.toml")
    found = answer(capsys, fast, "--against", slow)
    contract = {"decision", "effect", "low", "high", "unit", "seeds", "seconds", "history"}
    assert found.keys() >= contract and found["decision"] == "keep" and found["unit"] == "bits per byte"
    assert found["effect"] < found["high"] + 1e-12 < 0 and found["low"] <= found["effect"]
    assert found["seeds"] == len(found["history"]) == 9 and len(counted) == 18 and found["seconds"] > 0
    assert [row["seed"] for row in found["history"]] == list(range(1001, 1010)) and found["try"] == 1
    assert found["alpha"] == alpha(1) and found["alpha_spent"] == spent(1) and found["error_rate"] == 0.05
    out, err = said(capsys, slow, "--against", fast)
    assert out.startswith("Discard: NEW is worse; its median loss minus that of BEST is ") and "6 seeds)" in out
    assert "is at most 5%; this was try 1, 0.45% is spent" in out
    assert "try 1, seed 1006: NEW " in err and "NEW is lower on 0 of 6 seeds" in err


def test_losses_are_those_of_train_and_a_try_can_be_replayed_from_its_ledger(write, capsys, tmp_path):
    new, best = write("new.toml", lr=0.02), write("best.toml")
    found = answer(capsys, new, "--against", best, "--max-seeds", 6, "--ledger", "tries.jsonl")
    tried, *rows = map(json.loads, (tmp_path / "tries.jsonl").read_text().splitlines())
    config = from_dict(RunConfig, tried["new"]["config"])
    row = next(row for row in rows if row["record"] == "training" and row["arm"] == "new")
    corpus = find_task("causal").load(config.data, cache=None)
    again = assemble(dataclasses.replace(config, seed=row["seed"]), corpus).train()
    assert corpus.sha256 == tried["data"]
    assert module.bits_per_byte(assemble(config, corpus), again.best_loss) == row["loss"] == found["history"][0]["new"]
    run = qkv.train(
        config.data.source, steps=6, seed=row["seed"], tokenizer="char", set={**SIZES, "lr": 0.02}, threads=1,
        precision="fp32", watch="off", report=False, out=tmp_path / "run",
    )  # fmt: skip
    assert run.summary["bits_per_byte"] == pytest.approx(row["loss"], abs=1e-12)


def test_what_was_stopped_goes_on_and_trains_nothing_twice(write, capsys, counted, tmp_path, monkeypatch):
    slow, fast = write("slow.toml", lr=1e-6, muon_lr=1e-6), write("fast.toml")
    answer(capsys, fast, "--against", slow, "--ledger", "whole.jsonl")
    whole, real = list(counted), module._train
    counted.clear()

    def stops(*given):
        if len(counted) == 7:
            raise Interrupted("stopped", exit_status=143)
        return real(*given)

    monkeypatch.setattr(module, "_train", stops)
    said(capsys, fast, "--against", slow, "--ledger", "cut.jsonl", status=143)
    monkeypatch.setattr(module, "_train", real)
    found = answer(capsys, fast, "--against", slow, "--ledger", "cut.jsonl")
    assert counted == whole and found["decision"] == "keep"
    a, b = (
        [{k: v for k, v in json.loads(line).items() if k not in ("seconds", "before")} for line in file]
        for file in ((tmp_path / name).read_text().splitlines() for name in ("whole.jsonl", "cut.jsonl"))
    )
    assert a == b


def test_an_undecided_try_goes_on_with_more_seeds_and_spends_no_more(write, capsys, counted):
    slow, fast = write("slow.toml", lr=1e-6, muon_lr=1e-6), write("fast.toml")
    found = answer(capsys, fast, "--against", slow, "--max-seeds", 8)
    assert found["decision"] == "undecided" and found["seeds"] == 8 and found["seeds_to_keep"] == 9
    out, err = said(capsys, fast, "--against", slow, "--max-seeds", 8)
    assert "Undecided" in out and "a keep takes at least 9 seeds" in out and "can only discard" in err
    assert len(counted) == 16
    found = answer(capsys, fast, "--against", slow)
    assert found["decision"] == "keep" and found["try"] == 1 and len(counted) == 18
    assert found["alpha_spent"] == spent(1)


def test_duplicates_are_recognized_by_what_counts_and_nothing_is_trained(write, capsys, counted):
    best, slow = write("best.toml"), write("slow.toml", lr=1e-6, muon_lr=1e-6)
    same = write("same.toml", seed=9, watch="light", preset="gpt2", most_steps=77, ledger__panels=3)
    found = answer(capsys, same, "--against", best)
    assert found["decision"] == "discard" and found["duplicate"] and not counted and found["alpha_spent"] == 0
    assert (found["effect"], found["low"], found["high"], found["seeds"]) == (0, 0, 0, 0)
    assert not Path("best.trials.jsonl").exists()
    first = answer(capsys, slow, "--against", best)
    made = len(counted)
    assert first["decision"] == "discard" and not first["duplicate"] and made == 12
    again = answer(capsys, write("copy.toml", lr=1e-6, muon_lr=1e-6, seed=4), "--against", best)
    assert again == first and len(counted) == made
    assert "The same pair was try 1; nothing is trained again." in said(capsys, slow, "--against", best)[1]
    other = answer(capsys, write("other.toml", lr=1e-5, muon_lr=1e-6), "--against", best)
    assert other["try"] == 2 and other["history"][0]["seed"] == 2001 and other["alpha"] == alpha(2)


def test_a_training_that_diverges_counts_as_guessing(write, capsys, monkeypatch):
    best, new = write("best.toml"), write("new.toml", lr=0.02)
    real = Parts.train

    def breaks(parts, **k):
        if parts.config.training.optimizer.lr == 0.02:
            raise NonFiniteError("the loss is NaN")
        return real(parts, **k)

    monkeypatch.setattr(Parts, "train", breaks)
    found = answer(capsys, new, "--against", best)
    assert found["decision"] == "discard" and found["diverged"] == {"new": 6, "best": 0}
    assert found["history"][0]["new"] > found["history"][0]["best"]


def test_losses_without_bytes_name_their_unit_and_are_not_compared_between_tokenizers(write, capsys):
    best, new = write("best.toml", "masked"), write("new.toml", "masked", lr=1e-6, muon_lr=1e-6)
    found = answer(capsys, new, "--against", best, "--max-seeds", 6)
    assert found["unit"] == "nats per token"
    pieces = write("pieces.toml", "masked", "wordpiece")
    assert "nats per token differ between tokenizers" in said(capsys, pieces, "--against", best, status=2)[1]
    found = answer(capsys, write("b.toml", tokenizer="byte"), "--against", write("c.toml"), "--max-seeds", 6)
    assert found["unit"] == "bits per byte"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 7}, "unequal budgets: new.toml trains 7 steps on 448 tokens, best.toml 6 steps on 384 tokens"),
        ({"batch_size": 8}, "6 steps on 768 tokens"),
        ({"steps": 0, "minutes": 1}, "new.toml trains for 1 minute, best.toml 6 steps"),
        ({"steps": 0}, "new.toml has no budget; set training.schedule.steps"),
        ({"until_loss": 2.0}, "new.toml stops at a loss (training.until_loss)"),
        ({"machine__ranks": 2}, "set machine.ranks to 1"),
        (
            {"document_end": "."},
            "data.document_end is '.' in new.toml and '' in best.toml; both must be scored on the same data",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(write, capsys, counted, settings, words):
    write("best.toml")
    write("new.toml", **settings)
    assert words in said(capsys, "new.toml", "--against", "best.toml", status=2)[1]
    assert not counted and not Path("best.trials.jsonl").exists()


def test_equal_tokens_in_other_batches_are_an_equal_budget(write, capsys):
    write("best.toml")
    write("new.toml", batch_size=8, steps=3)
    assert answer(capsys, "new.toml", "--against", "best.toml", "--max-seeds", 6)["seeds"] == 6


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("new.toml", "--against", "bets.toml"), "no file 'bets.toml'; did you mean 'best.toml'"),
        (("new.toml",), "missing: --against"),
        (("new.toml", "--against", "best.toml", "--max-seeds", "5"), "fewer than 6 pairs can never decide"),
        (("new.toml", "--against", "best.toml", "--max-seeds", "1000"), "expected 6 to 999"),
        (("typo.toml", "--against", "best.toml"), "unknown setting 'training.optimizer.lrr'; did you mean"),
        (("empty.toml", "--against", "best.toml"), "empty.toml is not the configuration of a run: task is missing"),
    ],
)
def test_mistakes_are_one_sentence(write, capsys, counted, words, expected):
    new = write("new.toml", lr=0.02)
    write("best.toml")
    Path("typo.toml").write_text(new.read_text().replace("\nlr = ", "\nlrr = "))
    Path("empty.toml").write_text("")
    assert expected in said(capsys, *words, status=2)[1]
    assert not counted


def test_the_ledger_of_a_finished_run_lies_beside_the_run(small_text, write, capsys, tmp_path):
    run = qkv.train(
        str(small_text), steps=6, tokenizer="char", set=SIZES, threads=1, precision="fp32", watch="off", report=False,
        out=tmp_path / "runs" / "a",
    )  # fmt: skip
    answer(capsys, write("new.toml", lr=1e-6), "--against", run.folder.config, "--max-seeds", 6)
    assert (tmp_path / "runs" / "a.trials.jsonl").is_file()
    assert main(["verify", str(run.folder.path)]) == 0


def test_a_file_that_is_loaded_is_part_of_the_pair(write, capsys, counted, tmp_path):
    new, best = write("new.toml", changes=["L0.W_Q=load(w.safetensors)"]), write("best.toml")
    for value, n in ((0.0, 1), (0.1, 2)):
        save_file({"L0.W_Q": torch.full((8, 8), value)}, tmp_path / "w.safetensors")
        assert answer(capsys, new, "--against", best, "--max-seeds", 6)["try"] == n
