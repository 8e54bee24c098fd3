"""What is printed is what was given."""

from qkv.commands import screen


def test_brackets_and_colons_in_a_token_are_printed_as_they_are(capsys):
    screen.print_table(["token", "W_E[e]"], [("[/b]", "[o]"), (":smile:", "W_E[the]")])
    screen.console().print("[red]x[/red]")
    out = capsys.readouterr().out
    assert all(word in out for word in ("W_E[e]", "[/b]", "[o]", ":smile:", "W_E[the]", "[red]x[/red]"))
