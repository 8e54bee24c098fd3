"""What is printed is what was given."""

import io

import pytest

from qkv.commands.printing import screen
from qkv.errors import typed
from qkv.words import figure


def test_brackets_and_colons_in_a_token_are_printed_as_they_are(capsys):
    screen.print_table(["token", "W_E[e]"], [("[/b]", "[o]"), (":smile:", "W_E[the]")])
    screen.console().print("[red]x[/red]")
    out = capsys.readouterr().out
    assert all(word in out for word in ("W_E[e]", "[/b]", "[o]", ":smile:", "W_E[the]", "[red]x[/red]"))


def test_in_a_pipe_no_figure_of_a_wide_table_is_cut(capsys):
    rows = [(f"token {i}", *(figure(0.01 * i + 0.001 * j) for j in range(64))) for i in range(3)]
    screen.print_table(["query", *(f"key{j}" for j in range(64))], rows)
    header, *lines = capsys.readouterr().out.splitlines()
    assert len(header.split()) == 65
    assert [line.split()[2:] for line in lines] == [list(row[1:]) for row in rows]


def test_joiners_are_printed_and_what_steers_a_terminal_is_spelled_out():
    family, persian = "\U0001f469\u200d\U0001f467", "می\u200cخواهم"
    assert screen.shown(family) == family and screen.shown(persian) == persian
    assert screen.shown("\x1b[2J\u202e\r") == "\\x1b[2J\\u202e\\r"


def test_a_reader_who_leaves_ends_it_well(monkeypatch):
    """As in `qkv show RUN | head -1`: rich's own answer is an exit status of 1."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Gone())
    with pytest.raises(BrokenPipeError):
        screen.console().print("a row")


def test_a_path_is_told_as_it_can_be_typed():
    assert [typed(p) for p in ("runs/a", "-x", "my runs/b")] == ["runs/a", "./-x", "'my runs/b'"]
