"""What was imported is a run: every command opens it, and it can be trained further, parts of it frozen."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import qkv
from qkv import api
from qkv.cli import main
from qkv.commands.show import moved as show_moved
from qkv.errors import RunFolderError
from qkv.folder.run_folder import RunFolder
from qkv.tasks import PredictOptions
from qkv.tasks.generation import Sampling, generate


@pytest.fixture(scope="module")
def runs(theirs, tmp_path_factory):
    """Run folders of a causal model, and of a masked one whose tokenizer frames a text."""
    place = tmp_path_factory.mktemp("imported")
    for name, kind in (("qwen2", "word"), ("bert", "wordpiece"), ("neox", "")):
        theirs.save_theirs(place / f"{name}-hf", name)
        if kind:
            theirs.save_tokenizer(place / f"{name}-hf", kind, 57, specials=name == "bert")
        assert main(["import", str(place / f"{name}-hf"), "--out", str(place / name)]) == 0
    return place


def json_of(capsys, *words):
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("name", "text"), [("qwen2", "the cat sat on"), ("bert", "the [MASK] sat on a mat")])
def test_commands_that_ask_the_model_answer(runs, name, text, capsys, tmp_path):
    run = runs / name
    assert len(json_of(capsys, "predict", run, text, "--temperature", 0)["outputs"]) == 1
    plain = text.replace("[MASK]", "dog")
    embedded = json_of(capsys, "embed", run, plain, "--layer", "all")["outputs"][0]
    assert len(embedded["vectors"]["embed"]) == 24
    shown = json_of(capsys, "show", run, "--text", plain)
    assert shown["tokens"][0] == ("[CLS]" if name == "bert" else "the")
    source = tmp_path / "text.txt"
    source.write_text("the cat sat on a mat and the dog saw it.\n" * 40)
    assert json_of(capsys, "eval", run, source)["loss"] > 0
    zero = json_of(capsys, "eval", run, source, "--change", "L0.H1.W_V=zero")
    assert zero["loss"] != json_of(capsys, "eval", run, source)["loss"]


@pytest.mark.parametrize("name", ["qwen2", "bert", "neox"])
def test_commands_that_show_the_matrices_answer(runs, name, capsys):
    run = runs / name
    shown = json_of(capsys, "show", run)
    assert shown["matrices"]["L0.W_Q"]["norm"] > 0
    norm = torch.linalg.matrix_norm(qkv.load(run).catalogue().entry("L0.W_Q").parameter).item()
    assert shown["matrices"]["L0.W_Q"]["norm"] == pytest.approx(norm, rel=1e-5)
    json_of(capsys, "show", run, "L1.H2.OV")
    assert main(["show", str(run)]) == 0
    assert main(["compare", str(run), str(run)]) == 0
    assert "identical" in capsys.readouterr().out
    assert main(["report", str(run), "--out", str(run.parent / f"{name}.html")]) == 0
    assert "L0.W_Q" in (run.parent / f"{name}.html").read_text()


def test_what_an_imported_run_does_not_have_is_said(runs, capsys):
    for words, said in (
        (["eval", runs / "qwen2"], "has no text of its own"),
        (["embed", runs / "qwen2", "--measures"], "no plain validation text of its own; give texts"),
        (["predict", runs / "neox", "a"], "has no tokenizer"),
        (["embed", runs / "neox", "a"], "has no tokenizer"),
        (["show", runs / "neox", "--text", "a"], "has no tokenizer"),
        (["step", runs / "neox", "a b"], "has no tokenizer"),
        (["train", "--from", runs / "neox", "--steps", 1], "came without a tokenizer"),
    ):
        capsys.readouterr()
        assert main([*map(str, words)]) == 2
        assert said in capsys.readouterr().err


def test_a_run_without_tokenizer_takes_ids(runs):
    run = qkv.load(runs / "neox")
    assert run.tokenizer is None
    for ask in (run.gradient_path, run.logit_lens, run.step):
        with pytest.raises(RunFolderError, match="has no tokenizer"):
            ask("a b")
    assert run.model(torch.tensor([[1, 2, 3]])).shape == (1, 3, 61)


def test_a_hugging_face_folder_loads_as_a_run(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(api, "cache_folder", lambda: tmp_path / "cache")
    run = qkv.load(runs / "bert-hf")
    other = qkv.load(runs / "bert")
    assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), other.model.parameters(), strict=True))
    assert qkv.load(runs / "bert-hf").path == run.path and len(list((tmp_path / "cache" / "imported").iterdir())) == 1


@pytest.mark.parametrize("name", ["model.safetensors", "source.spm", "vocab.bpe"])
def test_a_folder_with_a_replaced_file_is_read_again(tmp_path, monkeypatch, name):
    monkeypatch.setattr(api, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(api, "import_checkpoint", lambda folder, place: None)
    (tmp_path / "hf").mkdir()
    places = set()
    for content in ("a", "ab"):
        (tmp_path / "hf" / name).write_text(content)
        places |= {api._cached_import(tmp_path / "hf") for _ in range(2)}
    assert len(places) == 2


def test_a_folder_is_read_again_by_another_version(tmp_path, monkeypatch):
    monkeypatch.setattr(api, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(api, "import_checkpoint", lambda folder, place: None)
    code = tmp_path / "code" / "formats" / "importer.py"
    code.parent.mkdir(parents=True)
    code.write_text("1")
    (tmp_path / "hf").mkdir()
    places = {api._cached_import(tmp_path / "hf")}
    monkeypatch.setattr(api, "__version__", "0.0.0")
    places.add(api._cached_import(tmp_path / "hf"))
    monkeypatch.setattr(api.interop, "__file__", str(tmp_path / "code" / "__init__.py"))
    places.add(api._cached_import(tmp_path / "hf"))
    code.write_text("12")
    assert len({*places, api._cached_import(tmp_path / "hf")}) == 4


def test_a_row_of_an_imported_table_is_shown_as_it_is(runs, capsys):
    shown = json_of(capsys, "show", runs / "qwen2", "W_E[the]")
    row = qkv.load(runs / "qwen2").matrix("W_E[the]")
    assert shown["after"] == pytest.approx(row.tolist()) and shown["before"] is None and shown["drift"] is None
    assert len(shown["neighbours"]["after"]) == 8 and shown["neighbours"]["before"] == []
    assert main(["show", str(runs / "qwen2"), "W_E[the]"]) == 0
    out = capsys.readouterr().out
    assert "24 components; its start was not kept" in out and "drift" not in out and "before" not in out


def test_what_moved_on_a_text_has_the_frame_around_it(runs, monkeypatch):
    run = qkv.load(runs / "bert")
    monkeypatch.setattr(run, "model_at", lambda at: run.model)
    tokens = show_moved.look(run, "the cat", None, 0, 1).tokens
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
    assert run.what_moved("the cat", 0, 1)[0].before.shape[1] == len(tokens)


def test_a_folder_that_another_process_reads_in_is_left_to_it(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(api, "cache_folder", lambda: tmp_path / "cache")
    place = qkv.load(runs / "bert-hf").path
    (place / "manifest.json").unlink()
    with RunFolder.open(place, writing=True), pytest.raises(RunFolderError, match="another qkv is reading"):
        qkv.load(runs / "bert-hf")
    assert (place / "model.safetensors").is_file()
    assert qkv.load(runs / "bert-hf").path == place


def test_a_damaged_copy_in_the_cache_is_made_again(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(api, "cache_folder", lambda: tmp_path / "cache")
    place = qkv.load(runs / "bert-hf").path
    whole = (place / "best.safetensors").read_bytes()
    (place / "best.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 0x40]))
    assert qkv.load(runs / "bert-hf").path == place and (place / "best.safetensors").read_bytes() == whole


def everything(folder):
    """Every file with its bytes, its date and its number: what a command changed shows."""
    return {p: (p.stat().st_mtime_ns, p.stat().st_ino, p.is_file() and p.read_bytes()) for p in folder.rglob("*")}


def test_an_import_is_not_gone_on_with_and_nothing_of_it_is_touched(runs, capsys):
    before = everything(runs / "qwen2")
    for more in ([], ["--seed", "9"], ["--shard"]):
        assert main(["train", "--out", str(runs / "qwen2"), "--resume", *more]) == 2
        said = capsys.readouterr().err
        assert f"has no training to go on with; to train it further: qkv train SOURCE --from {runs / 'qwen2'}" in said
    assert everything(runs / "qwen2") == before
    for words in (["import", runs / "qwen2-hf", "--out", runs / "qwen2"], ["train", runs / "qwen2"]):
        assert main([*map(str, words)]) == 2
        assert "--resume" not in capsys.readouterr().err


@pytest.mark.parametrize("there", [["config.toml"], ["config.toml", "tokenizer.json", "model.safetensors"]])
def test_half_an_import_of_an_older_qkv_is_damaged_and_stays_as_it_is(runs, tmp_path, capsys, there):
    half = tmp_path / "half"
    half.mkdir()
    for name in there:
        (half / name).write_bytes((runs / "qwen2" / name).read_bytes())
    before = everything(half)
    assert main(["train", "--out", str(half), "--resume"]) == 2
    assert f"its import was cut short; remove {half} and import the model again" in capsys.readouterr().err
    assert everything(half) == before
    assert main(["verify", str(half), "--updates", "0"]) == 1
    assert "the import was cut short; import it again" in capsys.readouterr().out
    assert main(["predict", str(half), "the"]) == 2
    assert "--resume" not in capsys.readouterr().err


KILLED = """
import os, sys
from qkv import cli
from qkv.folder import run_folder as folder
at, write, link = int(sys.argv[1]), folder.write_atomically, folder.link
n = 0
def die():
    global n
    n += 1
    if n == at:
        os._exit(9)
def dying(path, *given, **more):
    die()
    digest = write(path, *given, **more)
    die()
    return digest
folder.write_atomically = dying
import qkv.recipe.imported
qkv.recipe.imported.write_atomically = dying
sys.exit(cli.main(["import", sys.argv[2], "--out", sys.argv[3]]))
"""


@pytest.mark.parametrize("at", [1, 2, 5, 7, 8])
def test_an_import_that_is_killed_leaves_nothing_under_its_name_and_is_typed_again(runs, tmp_path, at):
    out = tmp_path / "new"
    words = [sys.executable, "-c", KILLED, str(at), str(runs / "qwen2-hf"), str(out)]
    assert subprocess.run(words, capture_output=True).returncode == 9
    assert not out.exists() and len(list(tmp_path.glob(".part-new-*"))) == 1
    assert main(["import", str(runs / "qwen2-hf"), "--out", str(out)]) == 0
    assert list(tmp_path.iterdir()) == [out]
    for name in ("config.toml", "tokenizer.json", "model.safetensors", "best.safetensors"):
        assert (out / name).read_bytes() == (runs / "qwen2" / name).read_bytes()
    assert RunFolder(out).read_manifest()["summary"]["run"] == str(out)
    assert main(["verify", str(out), "--updates", "0"]) == 0


def test_an_import_takes_an_empty_folder_and_what_a_dead_process_left_and_no_other(runs, tmp_path, capsys, monkeypatch):
    out = tmp_path / "new"
    RunFolder.create(out).close()  # its lock and an empty folder of checkpoints
    assert main(["import", str(runs / "bert-hf"), "--out", str(out)]) == 0
    assert list(tmp_path.iterdir()) == [out] and RunFolder(out).is_finished
    held = tmp_path / "held"
    with RunFolder.create(held):
        assert main(["import", str(runs / "bert-hf"), "--out", str(held)]) == 2
        assert "is in use by another qkv" in capsys.readouterr().err
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["import", str(runs / "bert-hf"), "--out", "."]) == 2
    assert "is the folder that you are in" in capsys.readouterr().err


def test_an_imported_model_trains_further_and_what_is_frozen_stays(runs, tmp_path, small_text, capsys):
    out = tmp_path / "tuned"
    asked = [
        "train",
        small_text,
        "--from",
        runs / "qwen2",
        "--steps",
        4,
        "--set",
        "n_ctx=16",
        "--freeze",
        "W_E,L0.H1.W_Q",
    ]
    assert main([*map(str, asked), "--out", str(out), "--no-report"]) == 0
    before, after = qkv.load(runs / "qwen2"), qkv.load(out, weights="last")
    for address, stays in (("W_E", True), ("L0.H1.W_Q", True), ("L0.H0.W_Q", False), ("L1.b_K", False)):
        assert torch.equal(before.matrix(address), after.matrix(address)) is stays
    assert after.config.model.sizes.n_ctx == 16 and not after.config.imported


def test_a_framed_tokenizer_puts_its_marks_around_a_text_of_an_imported_model_only(runs):
    run = qkv.load(runs / "bert")
    ids = run.tokenizer.encode("the cat")
    special = run.tokenizer.special
    np.testing.assert_array_equal(run.tokenizer.encode_whole("the cat"), [special["[CLS]"], *ids, special["[SEP]"]])
    run.tokenizer.framed = False
    np.testing.assert_array_equal(run.tokenizer.encode_whole("the cat"), ids)


@pytest.mark.parametrize("name", ["gpt2 odd", "llama biased", "qwen3", "neox", "bert", "roberta"])
def test_instruments_that_run_the_model_open_it(name, theirs, tmp_path):
    theirs.save_theirs(tmp_path / "hf", name)
    masked = name in ("bert", "roberta")
    theirs.save_tokenizer(tmp_path / "hf", "wordpiece" if masked else "word", specials=masked)
    run = api.import_checkpoint(tmp_path / "hf", tmp_path / "run")
    text = "the cat sat on a mat"
    found = run.gradient_path(text)
    for block in found.blocks:
        parts = sum(block.parts.values())
        torch.testing.assert_close(parts, block.total, rtol=1e-9, atol=1e-12)
    assert sum(found.crossed.values()) == pytest.approx(1, abs=1e-9)
    assert run.logit_lens(text)[-1].agreement == 1
    moved = run.step(text, on="L0.attn")
    assert moved is not None
    assert len(run.layer_measures([text, "a dog saw it"])) > 0


def test_the_ends_that_an_imported_models_files_name_end_its_text(theirs, tmp_path):
    """config.json names one, generation_config.json two: the second counts, and no special token has to be spelled."""
    theirs.save_theirs(tmp_path / "hf", "llama")
    theirs.save_tokenizer(tmp_path / "hf", "word", 57)
    (tmp_path / "hf" / "generation_config.json").unlink(missing_ok=True)
    free = api.import_checkpoint(tmp_path / "hf", tmp_path / "free")
    how = PredictOptions(tokens=12, temperature=0)
    assert free.tokenizer.ends == (2,)  # the default of their configuration
    free.tokenizer.ends = ()
    prompt = free.tokenizer.encode("the cat sat")
    (whole,) = generate(free.model, [prompt], tokens=12, how=Sampling(temperature=0), seed=0)
    place = next(i for i in range(1, 12) if whole[i] not in whole[:i])
    for name, said in (("config.json", int(whole[0])), ("generation_config.json", [60, int(whole[place])])):
        path = tmp_path / "hf" / name
        given = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(given | {"eos_token_id": said}))
    ended = api.import_checkpoint(tmp_path / "hf", tmp_path / "ended")
    assert ended.tokenizer.ends == (60, int(whole[place]))
    (text,) = ended.predict(["the cat sat"], how)
    assert text == ended.tokenizer.decode(np.concatenate([prompt, whole[:place]]))[len("the cat sat") :]
    ended.export(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == [60, int(whole[place])]
