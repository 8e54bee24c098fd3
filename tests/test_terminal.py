"""No name in a folder, and nothing in its files, drives the terminal on which it is shown."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.cli import main
from qkv.commands.printing.screen import Plain, console, print_table, shown
from qkv.errors import typed

ESC = "\x1b]0;x\x07\x1b[31m"


def test_control_characters_are_spelled_out_on_both_streams(capsys, tmp_path):
    assert main(["predict", str(tmp_path / f"no{ESC}where"), "a"]) == 2
    assert main(["--version"]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err and "\\x1b]0;x\\x07\\x1b[31mwhere is not there" in err
    assert not isinstance(sys.stdout, Plain) and not isinstance(sys.stderr, Plain)


def test_tables_and_pages_hold_no_control_characters(capsys):
    print_table([f"a{ESC}", "b"], [[f"x{ESC}", "1"]])
    console().print(f"words{ESC} \u202e")
    said = capsys.readouterr().out
    assert "\x1b" not in said and "\u202e" not in said and "x\\x1b]0;" in said


def test_what_people_read_stays_as_it_is():
    kept = "a\tb\nüé漢 \u200d\u200c\u00a0"
    stream = io.StringIO()
    Plain(stream).write(kept)
    assert stream.getvalue() == kept == shown(kept)


@pytest.mark.skipif(os.name == "nt", reason="it is bash that reads it")
@pytest.mark.parametrize("name", ["a b", "ü", "esc\x1b[31m'é\\", "new\nline"])
def test_a_path_to_type_is_the_path_in_a_shell(name: str):
    typed_there = subprocess.run(["bash", "-c", f"printf %s {typed(Path(name))}"], capture_output=True, check=True)
    assert typed_there.stdout.decode() == name and typed(name).isprintable()
