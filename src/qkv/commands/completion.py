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
import re
from dataclasses import dataclass

from qkv.commands.arguments import Words, one_of

__all__ = ["SCRIPTS", "Option", "configure", "options_of", "run", "script"]

SCRIPTS = ("bash", "zsh", "fish")
"""Shells that a script can be had for."""

_PLACES = ("RUN", "DIR", "FILE", "SOURCE", "KIND", "PATH")
"""Values that may be the name of a file or folder, by how a help text calls them."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """What a shell needs to know of an option, or of an argument without a name."""

    names: tuple[str, ...]
    """`--task`; empty for an argument."""
    value: str
    """What its value is called; empty for an option that takes none."""
    words: tuple[str, ...]
    """Words that its value may be, in the order of the help."""
    is_place: bool
    """Whether its value may be a file or folder."""
    repeats: bool
    """Whether it is an argument that stands for any number of them."""
    help: str
    """One line, as `--help` has it."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("shell", metavar="SHELL", type=one_of(*SCRIPTS), help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    """Do it, print, and return the exit status."""
    print(script(args.shell), end="")
    return 0


def options_of(name: str) -> list[Option]:
    """The options and arguments of one command, from its parser."""
    parser = argparse.ArgumentParser(name)
    importlib.import_module(f"qkv.commands.{name}").configure(parser)
    found = []
    for action in parser._actions:
        value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
        found.append(
            Option(
                names=tuple(action.option_strings),
                value=value,
                words=action.type.words if isinstance(action.type, Words) else (),
                is_place=value in _PLACES,
                repeats=action.nargs == "*",
                help=" ".join((action.help or "").replace("%%", "%").split()),
            )
        )
    return found


def script(shell: str) -> str:
    """The script for one of `SCRIPTS`."""
    from qkv.commands import COMMANDS

    options = {name: options_of(name) for name in COMMANDS}
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](COMMANDS, options)


def _bash(commands: dict[str, str], options: dict[str, list[Option]]) -> str:
    values, names, words = [], [], []
    for name, found in options.items():
        every = [option for option in found for _ in option.names]
        names.append(f'    {name}) names="{" ".join(n for option in found for n in option.names)}" ;;')
        free = [option for option in every if option.value and not option.words and not option.is_place]
        if free:
            values.append(f"    {_either(name, free)}) return ;;")
        values += [
            f'    {_either(name, [option])}) words="{" ".join(option.words)}"; places={"1" * option.is_place} ;;'
            for option in found
            if option.names and option.value and (option.words or option.is_place)
        ]
        for option in found:
            if not option.names and option.words:
                words.append(f'    {name}) words="{" ".join(option.words)}"; places= ;;')
    return "\n".join(
        [
            "# bash completion of qkv, written by `qkv completion bash`",
            "_qkv() {",
            '  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"',
            '  local command="${COMP_WORDS[1]}" names="" words="" places=1',
            "  COMPREPLY=()",
            "  if (( COMP_CWORD == 1 )); then",
            f'    COMPREPLY=($(compgen -W "{" ".join(commands)} help --help --version" -- "$current"))',
            "    return",
            "  fi",
            '  case "$command" in',
            *names,
            "  esac",
            '  if [[ "$current" == -* ]]; then',
            '    COMPREPLY=($(compgen -W "$names" -- "$current"))',
            "    return",
            "  fi",
            '  case "$command" in',
            *words,
            "  esac",
            '  case "$command $previous" in',
            *values,
            "  esac",
            '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
            '  if [[ -n "$places" ]]; then',
            "    compopt -o filenames 2>/dev/null",
            "    local IFS=$'\\n'",
            '    COMPREPLY+=($(compgen -f -- "$current"))',
            "  fi",
            "}",
            "complete -F _qkv qkv",
            "",
        ]
    )


def _either(name: str, options: list[Option]) -> str:
    """A pattern of bash: the command, and one of the names of these options."""
    names = dict.fromkeys(f'"{name} {option_name}"' for option in options for option_name in option.names)
    return "|".join(names)


def _zsh(commands: dict[str, str], options: dict[str, list[Option]]) -> str:
    listed = [f"    {_quoted(f'{name}:{line}')}" for name, line in commands.items()]
    cases = []
    for name, found in options.items():
        places = [option for option in found if not option.names]
        specs = [
            spec for option in found for spec in _zsh_specs(option, places.index(option) + 1 if option in places else 0)
        ]
        cases += [
            f"    {name})",
            "      _arguments \\",
            *(f"        {spec} \\" for spec in specs),
            "        && return 0;;",
        ]
    return "\n".join(
        [
            "#compdef qkv",
            "# zsh completion of qkv, written by `qkv completion zsh`",
            "_qkv() {",
            "  local -a commands",
            "  commands=(",
            *listed,
            "  )",
            "  if (( CURRENT == 2 )); then",
            "    _describe command commands",
            "    return",
            "  fi",
            "  local command=$words[2]",
            "  shift words",
            "  (( CURRENT-- ))",
            "  case $command in",
            *cases,
            "  esac",
            "}",
            'if [[ "$funcstack[1]" == _qkv ]]; then _qkv "$@"; else compdef _qkv qkv; fi',
            "",
        ]
    )


def _zsh_specs(option: Option, place: int) -> list[str]:
    """Specifications of `_arguments`, where brackets and colons have a meaning, one for each long name; `place` counts
    arguments from 1.
    """

    def plain(text: str) -> str:
        return re.sub(r"([\[\]:\\])", r"\\\1", text)

    words = " ".join(option.words)
    action = f"({words})" if option.words else "_files" if option.is_place else " "
    if option.words and option.is_place:
        action = f"{{compadd -- {words}; _files}}"
    if place:
        return [_quoted(f"{'*' if option.repeats else place}:{plain(option.help)}:{action}")]
    value = f":{plain(option.value)}:{action}" if option.value else ""
    return [_quoted(f"*{name}[{plain(option.help)}]{value}") for name in option.names if name.startswith("--")]


def _fish(commands: dict[str, str], options: dict[str, list[Option]]) -> str:
    lines = ["# fish completion of qkv, written by `qkv completion fish`", "complete -c qkv -f"]
    for name, line in commands.items():
        lines.append(f"complete -c qkv -n __fish_use_subcommand -a {name} -d {_quoted(line, fish=True)}")
    for name, found in options.items():
        here = f"complete -c qkv -n '__fish_seen_subcommand_from {name}'"
        for option in found:
            if not option.names:
                words = f" -a {_quoted(' '.join(option.words), fish=True)}" if option.words else ""
                lines += [here + (" -F" if option.is_place else words)] if option.is_place or words else []
                continue
            names = "".join(f" -l {n[2:]}" if n.startswith("--") else f" -s {n[1:]}" for n in option.names)
            takes = "" if not option.value else " -r -F" if option.is_place else " -x"
            words = f" -a {_quoted(' '.join(option.words), fish=True)}" if option.words else ""
            lines.append(f"{here}{names}{takes}{words} -d {_quoted(option.help, fish=True)}")
    return "\n".join([*lines, ""])


def _quoted(text: str, *, fish: bool = False) -> str:
    """In single quotes, so that a shell takes it as it is."""
    return "'" + (text.replace("\\", "\\\\").replace("'", "\\'") if fish else text.replace("'", "'\\''")) + "'"
