"""Print a script that lets the shell complete commands, options, runs and addresses with the Tab key.

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
from importlib.resources import files

from qkv.commands.arguments import Words, one_of

SCRIPTS = ("bash", "zsh", "fish")
"""Shells that a script can be had for."""

_PLACES = ("DIR", "FILE", "SOURCE", "KIND", "PATH", "RUN")
"""Values that may be the name of a file or folder, by how a help text calls them."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", type=one_of(*SCRIPTS), help="bash, zsh or fish")


def run(args: argparse.Namespace) -> None:
    print(script(args.shell), end="")


def script(shell: str) -> str:
    """The script for one of `SCRIPTS`, by shtab from the parsers of the commands.

    completion.bash, .zsh and .fish hold what completes a run (the folders of runs, here and one level down, then every
    folder), an address (the matrices of the run that the line names: the head of a file of weights is JSON), and what
    may be one of a few words or a file.
    """
    import shtab

    from qkv.commands import COMMANDS

    parser = argparse.ArgumentParser("qkv")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers()
    functions = (files("qkv.commands") / f"completion.{shell}").read_text("utf-8")
    for name, line in COMMANDS.items():
        command = commands.add_parser(name, help=line)
        importlib.import_module(f"qkv.commands.{name}").configure(command)
        command.description, command.epilog = line, None
        for action in command._actions:
            place = str(action.metavar or action.dest.upper()) if action.nargs != 0 else ""
            words = action.type.words if isinstance(action.type, Words) else ()
            if words and place in _PLACES:
                functions = functions.replace("@WORDS@", " ".join(words))
                _offer(action, shell, "_qkv_words_or_file")
            elif words:
                action.choices = words
            elif place == "ADDR":
                _offer(action, shell, "_qkv_address")
            elif place == "RUN" and action.dest != "out":
                _offer(action, shell, "_qkv_run")
            elif place in _PLACES:
                setattr(action, "complete", shtab.FILE)  # noqa: B010 - shtab's own attribute
    return shtab.complete(parser, shell, preamble=functions.rstrip()) + "\n"


def _offer(action: argparse.Action, shell: str, function: str) -> None:
    """Let a function of the shell say what an argument may be."""
    setattr(action, "complete", {shell: f"({function})" if shell == "fish" else function})  # noqa: B010
