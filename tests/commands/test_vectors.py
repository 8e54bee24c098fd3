"""`qkv vectors`: train static vectors on a text, ask a file or a run, use them as W_E."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import qkv
from qkv.cli import main
from qkv.data.vectors import read_vectors

ANALOGIES = ": all\nking cat queen dog\ncat king dog queen\n"
PAIRS = "cat\tdog\t9\nking\tqueen\t8\nsea\ttree\t3\ncat\tsea\t1\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tests")
    (folder / "analogies.txt").write_text(ANALOGIES)
    (folder / "pairs.txt").write_text(PAIRS)
    return folder


def test_vectors_are_trained_the_same_twice_asked_and_loaded_into_a_frozen_table(small_text, files, tmp_path, capsys):
    pytest.importorskip("gensim", reason="needs the extra `static` (gensim)")
    out = tmp_path / "vectors.txt"
    words = ["vectors", str(small_text), "--out", str(out), "--width", "16", "--epochs", "2"]
    assert main([*words, "--similarity", str(files / "pairs.txt"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trained_words"] == found["words"] > 10 and found["similarity"]["n_scored"] == 4
    again = tmp_path / "again.txt"
    assert main([*words[:3], str(again), *words[4:]]) == 0
    assert out.read_bytes() == again.read_bytes()
    binary = tmp_path / "vectors.bin.gz"
    assert main([*words[:3], str(binary), *words[4:]]) == 0
    one, two = read_vectors(out), read_vectors(binary)
    assert one.words == two.words and two.values == pytest.approx(one.values, rel=1e-5)
    run = qkv.train(
        small_text, tokenizer="word", steps=4, out=tmp_path / "run", report=False, freeze=["W_E"],
        set={"d_model": 16, "n_layers": 1, "n_heads": 1}, change=[f"W_E=load({out})"],
    )  # fmt: skip
    line = next(line for line in out.read_text().splitlines() if line.startswith("king "))
    assert run.matrix("W_E[king]").tolist() == pytest.approx([float(x) for x in line.split()[1:]], rel=1e-5)
    capsys.readouterr()
    assert main(["vectors", str(run.path), "--analogies", str(files / "analogies.txt")]) == 0
    assert "2 of 2" in capsys.readouterr().out
    few = tmp_path / "few.txt"
    few.write_text("cat 1 2\nking 2 1\ndog 1 1\nQueen 3 1\ntree 5 1\n")
    asked = ["--similarity", str(files / "pairs.txt"), "--analogies", str(files / "analogies.txt"), "--json"]
    for one, other in ((run.path, few), (few, run.path)):
        assert main(["vectors", str(one), *asked, "--among", str(other)]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["words"] == 5 and found["similarity"]["n_scored"] == 2
        assert found["analogies"][-1]["chance"] == 0.5


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_word_of_a_run_whose_tokens_hold_the_space_is_asked_about_once(kind, small_text, files, tmp_path, capsys):
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1}
    run = qkv.train(small_text, tokenizer=kind, steps=1, out=tmp_path / "run", report=False, set=sizes)
    table = np.zeros((run.tokenizer.d_vocab, 16), np.float32)
    table[:, 0] = -1
    planted = {"king": (1, 0, 0), "queen": (1, 0.1, 0), "cat": (0, 0, 1), "dog": (0, 0.6, 1)}  # cat - king + queen: cat
    for word, values in planted.items():
        table[run.tokenizer.readable[word], :3] = values
    save_file({"W_E": torch.from_numpy(table)}, tmp_path / "planted.safetensors")
    held = [f"W_E=load({tmp_path / 'planted.safetensors'})"]
    run = qkv.train(
        small_text, tokenizer=kind, steps=1, out=tmp_path / "held", report=False, set=sizes, change=held, freeze=["W_E"]
    )
    (tmp_path / "one.txt").write_text("king cat queen dog\n")
    assert main(["vectors", str(run.path), "--analogies", str(tmp_path / "one.txt"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(planted) < found["words"] <= run.tokenizer.d_vocab
    assert found["analogies"][-1]["n_asked"] == found["analogies"][-1]["add"] == 1  # and no other name of "cat"


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["none.txt"], "nothing was asked"),
        (["none.txt", "--similarity", "x"], "does not exist; expected a file of word vectors"),
        (["none.txt", "--similarity", "x", "--width", "4"], "--width is for training vectors; give --out"),
        (["none.txt", "--out", "new.txt"], "none.txt"),
        (["none.txt", "--out", "new.txt", "--among", "x"], "--among says which words are asked about"),
        (["none.txt", "--out", "new.txt", "--similarity", "x"], "'x' does not exist"),
        (["none.txt", "--out", "new.txt", "--analogies", "x"], "'x' does not exist"),
        (["none.txt", "--out", "new.txt", "--analogies", "a.txt", "--among", "x"], "'x' does not exist"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(ANALOGIES)
    assert main(["vectors", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error and "Traceback" not in error and not (tmp_path / "new.txt").exists()


def test_a_file_that_is_there_is_never_overwritten_and_a_text_without_frequent_words_is_told(
    small_text, tmp_path, capsys
):
    pytest.importorskip("gensim", reason="needs the extra `static` (gensim)")
    (tmp_path / "kept.txt").write_text("mine")
    assert main(["vectors", str(small_text), "--out", str(tmp_path / "kept.txt")]) == 2
    assert "is there already" in capsys.readouterr().err and (tmp_path / "kept.txt").read_text() == "mine"
    out = tmp_path / "new.txt"
    assert main(["vectors", str(small_text), "--out", str(out), "--least-count", "99999"]) == 2
    assert "occur 99999 times" in capsys.readouterr().err and not out.exists()


def test_of_a_folder_with_a_published_split_the_part_for_training_alone_is_read(tmp_path, capsys):
    pytest.importorskip("gensim", reason="needs the extra `static` (gensim)")
    (tmp_path / "texts").mkdir()
    for name, words in (("train.txt", "cat dog sun moon "), ("valid.txt", "red blue "), ("test.txt", "yak gnu ")):
        (tmp_path / "texts" / name).write_text((words * 8 + "\n") * 40)
    out = tmp_path / "vectors.txt"
    assert main(["vectors", str(tmp_path / "texts"), "--out", str(out), "--width", "4", "--epochs", "1"]) == 0
    assert set(read_vectors(out).words) == {"cat", "dog", "sun", "moon"}
    assert capsys.readouterr().out == f"4 words have a vector in {out}, trained on train.txt\n"
