"""Print a script that lets the shell complete commands, options and their words with the Tab key.

The script holds everything itself: completing asks neither Python nor the network. For bash write
eval "$(qkv completion bash)" into ~/.bashrc; for zsh keep what is printed in a file called _qkv in a folder of $fpath;
for fish in ~/.config/fish/completions/qkv.fish.

Example:
  qkv completion bash
  qkv completion zsh
  qkv completion fish
"""

import argparse
import importlib

from qkv.commands.arguments import Words, one_of

SCRIPTS = ("bash", "zsh", "fish")
"""Shells that a script can be had for."""

_PLACES = ("RUN", "DIR", "FILE", "SOURCE", "KIND", "PATH")
"""Values that may be the name of a file or folder, by how a help text calls them."""
_WORDS_OR_FILE = {
    "bash": """_qkv_words_or_file() { compgen -W "WORDS" -- "$1"; compgen -f -- "$1"; }""",
    "zsh": "_qkv_words_or_file() { compadd -- WORDS; _files }",
    "fish": "function _qkv_words_or_file; printf '%s\\n' WORDS; __fish_complete_path (commandline -ct); end",
}
"""For a value that may be one of a few words or a file: what bash, zsh and fish offer."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("shell", metavar="SHELL", type=one_of(*SCRIPTS), help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    """Do it, print, and return the exit status."""
    print(script(args.shell), end="")
    return 0


def script(shell: str) -> str:
    """The script for one of `SCRIPTS`, by shtab from the parsers of the commands."""
    import shtab

    from qkv.commands import COMMANDS

    parser = argparse.ArgumentParser("qkv")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers()
    preamble = ""
    for name, line in COMMANDS.items():
        command = commands.add_parser(name, help=line)
        importlib.import_module(f"qkv.commands.{name}").configure(command)
        command.description, command.epilog = line, None
        for action in command._actions:
            is_place = action.nargs != 0 and str(action.metavar or action.dest.upper()) in _PLACES
            words = action.type.words if isinstance(action.type, Words) else ()
            if words and is_place:
                call = "(_qkv_words_or_file)" if shell == "fish" else "_qkv_words_or_file"
                setattr(action, "complete", {shell: call})  # noqa: B010 - shtab's own attribute
                preamble = _WORDS_OR_FILE[shell].replace("WORDS", " ".join(words))
            elif words:
                action.choices = words
            elif is_place:
                setattr(action, "complete", shtab.FILE)  # noqa: B010
    return shtab.complete(parser, shell, preamble=preamble) + "\n"
