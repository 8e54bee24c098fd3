"""Data that a system cannot take: one sentence that names what is wrong, exit status 2, and nothing is made or lost."""

import struct

import numpy as np
import pytest

from qkv import cli

FILMS = "".join(f"a {'good' if i % 2 else 'bad'} film number {i}\t{'up' if i % 2 else 'down'}\n" for i in range(60))
LINES = "".join(f"{'up' if i % 2 else 'down'} a film with the number {i} in it\n" for i in range(60))


def idx(values: np.ndarray, kind: int = 8) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, kind, values.ndim, *values.shape) + values.tobytes()


@pytest.fixture
def here(tmp_path, monkeypatch, small_text):
    """A working folder with data that lack something."""
    draws = np.random.default_rng(0)
    texts = {
        "good.txt": small_text.read_text(encoding="utf-8"),
        "films.tsv": "text\tlabel\n" + FILMS,
        "unlabelled.tsv": "text\tlabel\n" + FILMS.replace("\tup\n", "\t\n", 1),
        "no-column.csv": "text,stars,mood\n" + "a film,1,x\na play,2,y\n" * 20,
        "one-class.tsv": "text\tlabel\n" + FILMS.replace("\tdown", "\tup"),
        "gap.txt": LINES[: len(LINES) // 2].rsplit("\n", 1)[0] + "\n\n" + LINES,
        "unseen.tsv": "text\tlabel\na film\tsideways\nthe film\tup\n",
        "left.de": "ein Satz\n" * 40,
        "right.en": "a sentence\n" * 39,
        "wide.txt": "the 1 2 3\ncat 4 5 6\n",
        "cut.txt": "the " + " ".join("1" * 32) + "\ncat 1 2\n",
        "strangers.txt": "qqq " + " ".join("1" * 32) + "\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for folder, kind, pixels in (("float", 13, np.zeros((20, 8, 8), np.uint8)), ("one", 8, None), ("new", 8, None)):
        (tmp_path / folder).mkdir()
        pixels = draws.integers(0, 256, (20, 8, 8), dtype=np.uint8) if pixels is None else pixels
        labels = np.arange(20, dtype=np.uint8) % 4 if folder != "one" else np.full(20, 3, np.uint8)
        (tmp_path / folder / "train-images-idx3-ubyte").write_bytes(idx(pixels, kind))
        (tmp_path / folder / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    (tmp_path / "new" / "t10k-images-idx3-ubyte").write_bytes(idx(draws.integers(0, 256, (4, 8, 8), dtype=np.uint8)))
    (tmp_path / "new" / "t10k-labels-idx1-ubyte").write_bytes(idx(np.full(4, 9, np.uint8)))
    (tmp_path / "films").mkdir()
    (tmp_path / "films" / "a.svg").write_text("<svg/>")
    monkeypatch.chdir(tmp_path)
    return tmp_path


WRONG = [
    ("train unlabelled.tsv --task classify", "line 3 has no label"),
    ("train no-column.csv --task classify", "which column holds the labels"),
    ("train one-class.tsv --task classify", "have the label 'up'; a classifier needs"),
    ("train gap.txt --task classify", "is empty, in the middle"),
    ("train films.tsv --task classify --val unseen.tsv", "'sideways', a class that training has not"),
    ("train left.de:right.en --task translate", "right.en' has 39; line i of one must be"),
    ("train left.de --task translate", "is not a pair of files"),
    ("train float --task image", "type 0x0d; expected unsigned bytes"),
    ("train one --task image", "one class only (3)"),
    ("train new --task image", "a class that training does not have: 9"),
    ("train films --task image", "holds no images that can be read"),
    ("train films/a.svg --task image", "a.svg"),
    ("train good.txt --tokenizer word --set d_model=32 --change W_E=load(wide.txt)", "give --set d_model=3"),
    ("train good.txt --tokenizer word --set d_model=32 --change W_E=load(cut.txt)", "line 2: expected a word and 32"),
    ("train good.txt --tokenizer word --set d_model=32 --change W_E=load(strangers.txt)", "none of the"),
    ("train good.txt --tokenizer word --set d_model=32 --change W_E=load(nowhere.txt)", "nowhere.txt"),
    ("train left.de:left.de --task translate --preset lstm", "preset 'lstm' is for --task"),
    ("train good.txt --preset lstm --set n_heads=2", "n_heads = 2 is a setting of attention"),
    ("train good.txt --preset bag --set qk_norm=true", "qk_norm = True is a setting of attention"),
    ("train good.txt --preset lstm --parameters 10", "10 parameters were asked for; a model of these 2 layers"),
]


@pytest.mark.parametrize(("typed", "words"), WRONG, ids=[typed for typed, _ in WRONG])
def test_it_is_told_in_one_sentence_and_nothing_is_made(typed, words, here, capsys):
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    status = cli.main([*typed.split(), "--steps", "1", "--json"])
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if line.startswith("qkv: ")]
    assert status == 2 and out == "" and len(said) == 1 and "Traceback" not in err, err
    assert words in said[0], said[0]
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before
