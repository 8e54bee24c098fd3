"""What is typed wrongly is answered in one clear message, exit status 2, and nothing is made."""

import os

import pytest

from qkv import cli


@pytest.fixture
def here(tmp_path, monkeypatch, small_text):
    """A working folder with one good text and several bad ones."""
    (tmp_path / "good.txt").write_bytes(small_text.read_bytes())
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)) * 16)
    (tmp_path / "latin.txt").write_bytes("un café noir. ".encode("latin-1") * 50)
    (tmp_path / "tiny.txt").write_text("hi\n")
    (tmp_path / "line.csv").write_text("text,label\n")
    (tmp_path / "table.csv").write_text("text,label\n" + "a few words,1\n" * 50)
    (tmp_path / "folder").mkdir()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.toml").write_text("x")
    monkeypatch.chdir(tmp_path)
    return tmp_path


WRONG = [
    "train nothere.txt --steps 1",
    "train empty.txt --steps 1",
    "train binary.txt --steps 1",
    "train latin.txt --steps 1",
    "train tiny.txt --steps 1",
    "train line.csv --steps 1",
    "train table.csv --text-column txet --steps 1",
    "train folder --steps 1",
    "train good.txt --val nothere.txt --steps 1",
    "train good.txt --task nonsense --steps 1",
    "train good.txt --task masked --preset gpt2 --steps 1",
    "train good.txt --preset nonsense --steps 1",
    "train good.txt --tokenizer nonsense --steps 1",
    "train good.txt --tokenizer char --steps 1 --out taken",
    "train good.txt --tokenizer char --steps 1 --out good.txt",
    "train good.txt --tokenizer char --steps 1 --set nonsense.key=1",
    "train good.txt --tokenizer char --steps 1 --set d_model=minus",
    "train good.txt --tokenizer char --steps 1 --set d_model=-8",
    "train good.txt --tokenizer char --steps 1 --set d_model=10,n_heads=3",
    "train good.txt --tokenizer char --steps 1 --minutes 1",
    "train good.txt --tokenizer char --steps 1 --watch nonsense",
    "train good.txt --tokenizer char --steps 1 --precision fp8",
    "train good.txt --tokenizer char --steps 1 --device toaster",
    "train good.txt --tokenizer char --steps 1 --freeze W_NOPE",
    "train good.txt --tokenizer char --steps 1 --freeze L99.W_Q",
    "train good.txt --tokenizer char --steps 1 --only W_NOPE",
    "train good.txt --tokenizer char --steps 1 --change W_E=nonsense",
    "train good.txt --tokenizer char --steps 1 --change L0.W_in=identity",
    "train good.txt --tokenizer char --steps 1 --change W_E",
    "train good.txt --tokenizer char --steps 1 --from nowhere",
    "train --resume",
    "train --resume --out nowhere",
    "predict nowhere hello",
    "eval nowhere",
    "embed nowhere hello",
    "show nowhere",
    "show folder W_E",
    "report folder",
    "train good.txt --tokenizer char --steps 1 --out good.txt/run",
    "import folder --out good.txt/run",
    "compare folder folder",
    "view nowhere",
    "import folder --out x",
    "export nowhere --out x",
]


@pytest.mark.parametrize("typed", WRONG)
def test_a_wrong_command_is_one_clear_message_and_makes_nothing(typed, here, capsys):
    before = sorted(here.rglob("*"))
    status = cli.main(typed.split())
    out, err = capsys.readouterr()
    assert status == 2, err
    assert out == ""
    assert "Traceback" not in err
    last = err.strip().splitlines()[-1]
    assert "qkv: " in err and len(last) > 20 and len(err) < 1500
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("train nothere.txt --steps 1", "nothere.txt"),
        ("train good.txt --preset modrn --steps 1", "did you mean 'modern'"),
        ("train good.txt --task maskd --steps 1", "did you mean 'masked'"),
        ("train good.txt --tokenizer char --steps 1 --set d_modle=8", "d_model"),
        ("train good.txt --tokenizer char --steps 1 --freeze L0.W_X", "L0.W_"),
        ("train good.txt --tokenizer char --steps 1 --out taken", "--resume"),
        ("train good.txt --task masked --preset gpt2 --steps 1", "bert"),
        ("train table.csv --text-column txet --steps 1", "'text'"),
    ],
)
def test_the_message_says_what_to_type_instead(typed, said, here, capsys):
    assert cli.main(typed.split()) == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(
    os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_folder_without_write_permission_is_said(here, capsys):
    (here / "folder").chmod(0o500)
    assert cli.main("train good.txt --tokenizer char --steps 1 --out folder/run".split()) in (1, 2)
    assert "permission" in capsys.readouterr().err.lower()


def test_what_comes_in_on_stdin_and_is_no_text_is_said(monkeypatch):
    import io
    import sys

    from qkv.commands.texts import read_texts
    from qkv.errors import UserError

    for stdin in ({"encoding": "utf-8"}, {"encoding": "ascii", "errors": "surrogateescape"}):  # as LC_ALL=C opens it
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), **stdin))
        with pytest.raises(UserError, match="not UTF-8 .byte 0xe9.; convert it first"):
            read_texts([], "qkv predict RUN")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("café\n".encode()), encoding="ascii"))
    assert read_texts([], "qkv predict RUN") == ["café"]
