"""A training history that another program saved becomes one run: the measures that qkv.watch took, and what is odd."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import qkv
from qkv import api
from qkv.errors import ConfigError, RunFolderError, SourceError
from qkv.inspection.answers.succession import found_in
from qkv.instruments.sketch import sketch
from qkv.recipe.history.steps import step_of
from qkv.telemetry import Telemetry

STEPS = 12
TEXT = "the quick brown fox jumps over the lazy dog and the cat sat on the mat again. " * 40


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A GPT-NeoX that a plain loop trains for 12 steps: a folder of each step, and the run that qkv.watch wrote."""
    transformers = pytest.importorskip("transformers", reason="needs the dev extra (transformers)")
    tokenizers = pytest.importorskip("tokenizers")
    home = tmp_path_factory.mktemp("made")
    letters = {letter: i for i, letter in enumerate(sorted(set(TEXT)))}
    spelled = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[]))
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=spelled)
    ids = torch.tensor(spelled.encode(TEXT).ids)
    torch.manual_seed(0)
    config = transformers.GPTNeoXConfig(
        vocab_size=len(letters), hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPTNeoXForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with qkv.watch(model, optimizer, home / "watched", level="full", tokenizer=wrapped):
        for step in range(STEPS + 1):
            model.save_pretrained(home / "series" / f"step{step}")
            wrapped.save_pretrained(home / "series" / f"step{step}")
            if step < STEPS:
                windows = torch.stack([ids[at : at + 32] for at in torch.randint(len(ids) - 32, (4,))])
                model(input_ids=windows, labels=windows).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    (home / "text.txt").write_text(TEXT)
    return home


@pytest.fixture(scope="module")
def whole(made) -> "qkv.Run":
    """All steps as they were saved, with a text."""
    return api.import_history(made / "series", made / "whole", text=made / "text.txt")


def altered(made: Path, out: Path, *, copied=(), swapped=()) -> Path:
    """The series with weights of other steps: `copied` are (step, from), `swapped` are pairs."""
    shutil.copytree(made / "series", out)
    file = "step{}/model.safetensors".format
    for step, source in copied:
        shutil.copy(made / "series" / file(source), out / file(step))
    for a, b in swapped:
        shutil.copy(made / "series" / file(a), out / file(b))
        shutil.copy(made / "series" / file(b), out / file(a))
    return out


def test_every_measure_is_the_one_that_watching_took(made, whole):
    compared = set()
    with Telemetry(made / "watched" / "telemetry.sqlite") as watched, whole.telemetry() as ours:
        for row in (
            row for row in watched.measures() if row.name != "update_ratio"
        ):  # between two updates there is none
            for step in watched.recorded_steps(row.name).tolist():
                theirs, mine = watched.at(step, row.name), ours.at(step, row.name)
                for address in theirs.keys() & mine.keys():
                    if mine[address] is None or theirs[address] is None:
                        assert mine[address] is theirs[address], (row.name, step, address)
                    elif row.name in ("turn", "rotation"):  # an arc cosine near 1 has half the digits
                        assert theirs[address] == pytest.approx(mine[address], abs=0.03), (row.name, step, address)
                    else:
                        assert theirs[address] == pytest.approx(mine[address], rel=1e-6, abs=1e-9), (row.name, step)
                    compared.add((row.name, step))
        for name in ("row_drift", "singular_values"):
            for address in ("W_E", "W_U"):
                theirs, mine = watched.vectors(address, name), ours.vectors(address, name)
                for step in theirs.keys() & mine.keys():
                    np.testing.assert_allclose(theirs[step], mine[step], rtol=1e-6, atol=1e-9)
                    compared.add((name, step))
        of_weights = (
            "norm drift turn spectral_norm stable_rank effective_rank participation_rank rotation symmetric_share"
            " angle_to_k angle_to_q row_drift singular_values"
        )
        assert set(of_weights.split()) <= {name for name, _ in compared}
        assert {step for name, step in compared if name == "drift"} == set(range(STEPS + 1))


def test_a_history_opens_like_any_run(made, whole):
    assert list(whole.snapshots()) == list(range(STEPS + 1))
    start, then = (load_file(made / "series" / f"step{step}" / "model.safetensors") for step in (0, 7))
    table = "gpt_neox.embed_in.weight"
    assert torch.equal(whole.matrix("W_E", at=7), then[table])
    drift = whole.history("W_E", "drift")["W_E"]
    moved = (then[table].double() - start[table].double()).norm() / start[table].double().norm()
    assert drift.step.tolist() == list(range(STEPS + 1))
    assert drift.value[7] == pytest.approx(float(moved), rel=1e-6)
    entropy = whole.history("L0.H0.pattern", "entropy")["L0.H0.pattern"]
    assert entropy.step.tolist() == list(range(STEPS + 1))  # on the text that was given
    assert len(whole.logit_lens("the quick brown", at=3)) == 3
    verdict = api.verify(whole.path)
    assert verdict.is_whole and {check.name for check in verdict.checks} == {
        "files", "checkpoints", "succession", "telemetry"
    }  # fmt: skip


def test_a_repeated_and_a_swapped_step_are_named(made, tmp_path):
    notes: list[str] = []
    series = altered(made, tmp_path / "series", copied=[(3, 10)], swapped=[(5, 8)])
    run = api.import_history(series, tmp_path / "run", say=notes.append)
    verdict = api.verify(run.path)
    found = [fault.sentence for fault in verdict.faults]
    assert len(found) == 2 and verdict.state == "damaged"
    assert found[0] == "step 3 holds the weights of step 10: they are equal, and fit in there"
    assert found[1].startswith("steps 5 and 8 look swapped")
    assert all(sentence in notes for sentence in found)


def test_single_matrices_of_another_step_are_named(made, tmp_path):
    """As where one shard of a checkpoint is another step's."""
    series = altered(made, tmp_path / "series")
    mine, other = (series / f"step{step}" / "model.safetensors" for step in (4, 9))
    tables = load_file(mine) | {"gpt_neox.embed_in.weight": load_file(other)["gpt_neox.embed_in.weight"]}
    save_file(tables, mine, metadata={"format": "pt"})
    run = api.import_history(series, tmp_path / "run")
    assert [fault.sentence for fault in api.verify(run.path).faults] == [
        "W_E is the same at steps 4 and 9, not between"
    ]


def test_a_gap_in_a_regular_spacing_is_a_hint_and_no_fault(made, tmp_path):
    shutil.rmtree(altered(made, tmp_path / "series") / "step6")
    run = api.import_history(tmp_path / "series", tmp_path / "run")
    verdict = api.verify(run.path)
    assert verdict.is_whole
    (check,) = (check for check in verdict.checks if check.name == "succession")
    assert check.unchecked == ("steps come every 1, but step 6 is missing",)


def walk(seed: int, pull: float) -> np.ndarray:
    """20 steps of a walk in 4,096 dimensions, `pull` of each increment in one direction."""
    draws = np.random.default_rng(seed)
    return np.cumsum(draws.standard_normal((20, 4096)) + pull * draws.standard_normal(4096), axis=0)


def said_of(rows: np.ndarray, steps=range(20)) -> list[str]:
    halves = np.split(rows.astype(np.float32), 2, axis=1)
    sketches = {f"L{i}.W_Q": np.stack([sketch(f"L{i}.W_Q", torch.from_numpy(row)) for row in half])
                for i, half in enumerate(halves)}  # fmt: skip
    return [one.sentence for one in found_in(list(steps), sketches)]


@pytest.mark.parametrize("pull", [0.0, 1.0])
def test_what_is_out_of_order_is_found_and_nothing_else(pull):
    for seed in range(3):
        rows = walk(seed, pull)
        assert said_of(rows) == []
        assert said_of(rows[[*range(8), 9, 8, *range(10, 20)]])[0].startswith("steps 8 and 9 look swapped")
        moved = [*range(4), *range(5, 15), 4, *range(15, 20)]
        assert said_of(rows[moved]) == [
            "the weights of step 14 belong between steps 3 and 4, judged by their distances"
        ]
        strange = rows.copy()
        strange[6] = np.random.default_rng(99).standard_normal(4096) * 20
        assert said_of(strange) == [
            "the weights of step 6 are far from those of every other step, as another model's are"
        ]
        other = rows.copy()
        other[0] += 500 * np.random.default_rng(98).standard_normal(4096)
        assert said_of(other) == ["the weights jump between steps 0 and 1, as if another training began there"]


def test_noise_around_one_place_is_no_disorder():
    draws = np.random.default_rng(0)
    noise = draws.standard_normal((20, 4096))
    assert said_of(noise) == []
    falling = np.linspace(1, 0, 20)[:, None]  # a learning rate that falls to 0
    assert said_of(noise * falling + np.cumsum(0.1 * draws.standard_normal((20, 4096)), axis=0)) == []


def test_a_sketch_keeps_distances_and_equality():
    draws = np.random.default_rng(0)
    a, b = (torch.from_numpy(draws.standard_normal(3_000_000).astype(np.float32)) for _ in range(2))
    far = np.linalg.norm(sketch("W_E", a) - sketch("W_E", b))
    assert far == pytest.approx(float((a - b).norm()), rel=0.15)  # 3 standard errors of 4.4%
    assert np.array_equal(sketch("W_E", a), sketch("W_E", a.clone()))
    last = a.clone()
    last[-1] = torch.nextafter(last[-1], torch.tensor(9.0))
    assert not np.array_equal(sketch("W_E", a), sketch("W_E", last))


@pytest.mark.parametrize(
    ("name", "step"),
    [("step0", 0), ("checkpoint-500", 500), ("global_step20", 20), ("00300", 300), ("step1000-tokens2B", 1000),
     ("stage1-step7-tokens4B", 7), ("iter_0001000", 1000), ("step10k", None), ("final", None), ("1-2", None),
     ("run-2024-01-01", None)],
)  # fmt: skip
def test_the_step_in_a_name(name, step):
    assert step_of(name) == step


# what can go wrong


def small(folder: Path, made: Path, *steps: int) -> Path:
    for step in steps:
        shutil.copytree(made / "series" / f"step{step}", folder / f"step{step}")
    return folder


def spoiled(series: Path, what: str) -> str:
    """Spoil a series of the steps 0, 1, 2; returns what the message has to say."""
    last = series / "step2"
    if what == "shape":
        tables = load_file(last / "model.safetensors")
        config = json.loads((last / "config.json").read_text()) | {"intermediate_size": 48}
        (last / "config.json").write_text(json.dumps(config))
        narrow = {n: t[:48] if "h_to_4h.w" in n or "h_to_4h.b" in n else t for n, t in tables.items()}
        narrow = {n: t[:, :48].contiguous() if "4h_to_h.weight" in n else t for n, t in narrow.items()}
        save_file(narrow, last / "model.safetensors", metadata={"format": "pt"})
        return "step2 is not a step of the training of"
    if what == "tensor":
        tables = load_file(last / "model.safetensors")
        tables["gpt_neox.embed_in.weight"] = tables["gpt_neox.embed_in.weight"][:-1]
        save_file(tables, last / "model.safetensors", metadata={"format": "pt"})
        return "gpt_neox.embed_in.weight is ["
    if what == "tokenizer":
        path = last / "tokenizer.json"
        content = json.loads(path.read_text())
        vocab = content["model"]["vocab"]
        vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
        path.write_text(json.dumps(content))
        return "its tokenizer is another one"
    if what == "torn":
        path = last / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        return "step 2 is not complete"
    if what == "empty":
        (series / "step3").mkdir()
        return "step 3 is not complete"
    if what == "no number":
        last.rename(series / "final")
        return "final holds a model, but its name does not tell its step"
    if what == "twice":
        shutil.copytree(last, series / "checkpoint-2")
        return "are both step 2"
    if what == "one":
        shutil.rmtree(series / "step1")
        shutil.rmtree(last)
        return "holds one step"
    if what == "nan":
        tables = load_file(last / "model.safetensors")
        tables["gpt_neox.embed_in.weight"][0, 0] = float("nan")
        save_file(tables, last / "model.safetensors", metadata={"format": "pt"})
        return "NaN or infinity"
    raise AssertionError(what)


@pytest.mark.parametrize("what", ["shape", "tensor", "tokenizer", "torn", "empty", "no number", "twice", "one", "nan"])
def test_a_series_that_is_none_is_refused_and_leaves_nothing(made, tmp_path, what):
    series = small(tmp_path / "in" / "series", made, 0, 1, 2)
    said = spoiled(series, what)
    with pytest.raises(SourceError) as error:
        api.import_history(series, tmp_path / "out" / "run")
    assert said in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_other_mistakes(made, tmp_path, capsys):
    from qkv.cli import main

    series = small(tmp_path / "series", made, 0, 1)
    for given, said in (
        ([str(series / "step0"), "--history"], "it is a single model: leave out --history"),
        ([str(tmp_path / "nowhere"), "--history"], "is not there"),
        ([str(series), "--keep", "measures"], "add --history"),
        ([str(series), "--history", "--keep", "all"], "--keep"),
        ([str(series), "--history", "--text", str(tmp_path / "no.txt")], "no.txt"),
        (["hf:org/none", "--history"], "names no pattern of steps"),
    ):
        assert main(["import", *given, "--out", str(tmp_path / "run")]) == 2
        assert said in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["series"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("x")
    with pytest.raises(RunFolderError, match="already exists"):
        api.import_history(series, tmp_path / "run")
    for step in (0, 1):
        (series / f"step{step}" / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        api.import_history(series, tmp_path / "other", text=made / "text.txt")


# the ways that steps come


def test_measures_alone(made, whole, tmp_path):
    run = api.import_history(small(tmp_path / "series", made, 2, 4, 5), tmp_path / "run", keep="measures")
    assert list(run.snapshots()) == [5] and not list(run.folder.checkpoints.iterdir())
    assert run.history("W_E", "norm")["W_E"].step.tolist() == [2, 4, 5]
    norms = whole.history("W_E", "norm")["W_E"].value[[2, 4, 5]]
    np.testing.assert_array_equal(run.history("W_E", "norm")["W_E"].value, norms)
    assert run.history("W_E", "drift")["W_E"].value[0] == 0  # from the first step that there is
    assert api.verify(run.path).is_whole


def test_shards_are_read_as_one_file(made, whole, tmp_path):
    transformers = pytest.importorskip("transformers")
    for step in (0, 3):
        model = transformers.GPTNeoXForCausalLM.from_pretrained(made / "series" / f"step{step}")
        model.save_pretrained(tmp_path / "series" / f"checkpoint-{step}", max_shard_size="40KB")
    assert len(list((tmp_path / "series" / "checkpoint-3").glob("*.safetensors"))) > 2
    run = api.import_history(tmp_path / "series", tmp_path / "run")
    for address in ("W_E", "L1.W_K", "W_U"):
        assert torch.equal(run.matrix(address, at=3), whole.matrix(address, at=3))


def test_revisions_of_the_hub_in_its_cache(made, whole, tmp_path, monkeypatch):
    """As the hub's library lays out what it has fetched: refs name snapshots, whose files are links to blobs."""
    constants = pytest.importorskip("huggingface_hub", reason="needs the hub extra").constants
    place = tmp_path / "hub" / "models--org--small"
    (place / "blobs").mkdir(parents=True)
    for step in (0, 2, 11):
        commit = f"{step:040x}"
        (place / "refs").mkdir(exist_ok=True)
        (place / "refs" / f"step{step}").write_text(commit)
        (place / "snapshots" / commit).mkdir(parents=True)
        for file in (made / "series" / f"step{step}").iterdir():
            blob = place / "blobs" / f"{step}-{file.name}"
            shutil.copy(file, blob)
            (place / "snapshots" / commit / file.name).symlink_to(os.path.relpath(blob, place / "snapshots" / commit))
    (place / "refs" / "main").write_text(f"{11:040x}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    run = api.import_history("hf:org/small@step*", tmp_path / "run")
    assert list(run.snapshots()) == [0, 2, 11]
    assert torch.equal(run.matrix("W_E", at=2), whole.matrix("W_E", at=2))
    assert run.folder.read_manifest()["imported"]["places"][1] == "hf:org/small@step2"


def test_a_killed_import_goes_on(made, whole, tmp_path):
    """Killed between two steps, the same command goes on there, and the run is that of an undisturbed import."""
    code = (
        "import os, signal, sys\nfrom qkv import api\nfrom qkv.recipe.history import importing\n"
        "step = importing._Taking._step\n"
        "def dying(self, store, looks, at):\n"
        "    step(self, store, looks, at)\n"
        "    if at == 5: os.kill(os.getpid(), signal.SIGKILL)\n"
        "importing._Taking._step = dying\n"
        "api.import_history(sys.argv[1], sys.argv[2], text=sys.argv[3])\n"
    )
    given = [str(made / "series"), str(tmp_path / "run"), str(made / "text.txt")]
    died = subprocess.run([sys.executable, "-c", code, *given], capture_output=True)
    assert died.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [".history-run"]
    kept = tmp_path / ".history-run" / "checkpoints" / "step-00000003" / "model.safetensors"
    before = kept.stat().st_mtime_ns
    time.sleep(0.01)
    notes: list[str] = []
    run = api.import_history(*given[:2], text=given[2], say=notes.append)
    assert "steps up to 4 were imported before; it goes on from there" in notes
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (run.path / "checkpoints" / "step-00000003" / "model.safetensors").stat().st_mtime_ns == before
    with run.telemetry() as mine, whole.telemetry() as theirs:
        assert [m.name for m in mine.measures()] == [m.name for m in theirs.measures()]
        for one, other in zip(mine.everything(), theirs.everything(), strict=True):
            assert one.keys() == other.keys()
            for address in one:
                np.testing.assert_array_equal(one[address].step, other[address].step)
                np.testing.assert_array_equal(one[address].value, other[address].value)
    assert api.verify(run.path).is_whole
