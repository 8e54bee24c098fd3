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

from qkv.commands.arguments import Words, one_of

SCRIPTS = ("bash", "zsh", "fish")
"""Shells that a script can be had for."""

_PLACES = ("DIR", "FILE", "SOURCE", "KIND", "PATH", "RUN")
"""Values that may be the name of a file or folder, by how a help text calls them."""
_WORDS_OR_FILE = {
    "bash": """_qkv_words_or_file() { compgen -W "WORDS" -- "$1"; compgen -f -- "$1"; }""",
    "zsh": "_qkv_words_or_file() { compadd -- WORDS; _files }",
    "fish": "function _qkv_words_or_file; printf '%s\\n' WORDS; __fish_complete_path (commandline -ct); end",
}
"""For a value that may be one of a few words or a file: what bash, zsh and fish offer."""
_RUN = {
    "bash": """_qkv_run() {
  local folder
  for folder in "$1"*/ "$1"*/*/; do [ -e "${folder}config.toml" ] && printf '%s\\n' "${folder%/}"; done
  compgen -d -- "$1"
}""",
    "zsh": """_qkv_run() {
  local -a runs; runs=(*/config.toml(N:h) */*/config.toml(N:h)); compadd -a runs; _files -/
}""",
    "fish": """function _qkv_run
  for file in */config.toml */*/config.toml; string replace /config.toml "" $file; end
  __fish_complete_directories (commandline -ct)
end""",
}
"""For a run: the folders of runs, here and one level down, then every folder."""
_NAMES = r"""head -c 200000 -- FILE | tr ',{' '\n\n' | sed -nE 's/^"([A-Za-z][A-Za-z0-9_.]*)":$/\1/p'"""
"""The names of matrices in a file of weights: its head is JSON."""
_ADDRESS = {
    "bash": """_qkv_address() {
  local word file
  for word in "${COMP_WORDS[@]}"; do
    for file in "$word/best.safetensors" "$word/model.safetensors"; do
      [ -f "$file" ] && compgen -W "$(NAMES)" -- "$1" && return
    done
  done
}""".replace("NAMES", _NAMES.replace("FILE", '"$file"')),
    "zsh": """_qkv_address() {
  local word file
  for word in $words; do
    for file in $word/best.safetensors $word/model.safetensors; do
      [[ -f $file ]] && compadd -- ${(f)"$(NAMES)"} && return
    done
  done
}""".replace("NAMES", _NAMES.replace("FILE", "$file")),
    "fish": """function _qkv_address
  for word in (commandline -opc)
    for file in $word/best.safetensors $word/model.safetensors
      test -f $file && NAMES && return
    end
  end
end""".replace("NAMES", _NAMES.replace("FILE", "$file")),
}
"""For an address: the matrices of the run that the line names."""


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
    functions = {name: each[shell] for name, each in (("_qkv_run", _RUN), ("_qkv_address", _ADDRESS))}
    for name, line in COMMANDS.items():
        command = commands.add_parser(name, help=line)
        importlib.import_module(f"qkv.commands.{name}").configure(command)
        command.description, command.epilog = line, None
        for action in command._actions:
            place = str(action.metavar or action.dest.upper()) if action.nargs != 0 else ""
            words = action.type.words if isinstance(action.type, Words) else ()
            if words and place in _PLACES:
                functions["_qkv_words_or_file"] = _WORDS_OR_FILE[shell].replace("WORDS", " ".join(words))
                _offer(action, shell, "_qkv_words_or_file")
            elif words:
                action.choices = words
            elif place == "ADDR":
                _offer(action, shell, "_qkv_address")
            elif place == "RUN" and action.dest != "out":
                _offer(action, shell, "_qkv_run")
            elif place in _PLACES:
                setattr(action, "complete", shtab.FILE)  # noqa: B010 - shtab's own attribute
    return shtab.complete(parser, shell, preamble="\n".join(functions.values())) + "\n"


def _offer(action: argparse.Action, shell: str, function: str) -> None:
    """Let a function of the shell say what an argument may be."""
    setattr(action, "complete", {shell: f"({function})" if shell == "fish" else function})  # noqa: B010
