"""What other programs call what a training is told, and its name here: for the sentence about a name that is not ours.

The names are in othernames.toml. Nothing is read under them.
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from qkv.errors import nearest, unknown


@cache
def theirs() -> dict[str, dict[str, str]]:
    """The tables of othernames.toml: kind of name -> name here -> what others call it, parted by spaces."""
    import tomllib  # where a name is wrong; every command starts without it

    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@cache
def _meanings(*kinds: str) -> dict[str, str]:
    """What others call it -> name here, or what is said of it."""
    return {word: name for kind in kinds for name, words in theirs()[kind].items() for word in words.split()}


def ours(given: str) -> str:
    """The name here of what others call so; `given` itself, as a setting is written, where nobody is known to."""
    name = given.lstrip("-").lower().replace("-", "_")
    return _meanings("settings", "options").get(name, name)


def unknown_setting(what: str, given: str, options: Iterable[str], n: int = 3) -> str:
    """As `qkv.errors.unknown`, of an option or a setting, which may have been typed as another program calls it."""
    options = list(options)
    name = ours(given)
    if said := _meanings("absent").get(name):
        return f"unknown {what} {given!r}; {said}"
    if name == "source":
        return f"unknown {what} {given!r}; what to train on is named first, without an option"
    for option in options:
        if option != given and f".{option.lstrip('-').replace('-', '_')}".endswith(f".{name}"):
            return f"unknown {what} {given!r}; here it is {option!r}"
    alike = nearest(given, options, n, alike=0.6)
    share_a_word = sorted((o for o in options if _words(o) & _words(given)), key=len)
    return unknown(what, given, alike or share_a_word[:n] or options, n)


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]{2,}", name.lower()))


def unknown_command(given: str, commands: Iterable[str]) -> str:
    """The same of a command."""
    name = _meanings("commands").get(given.lower().replace("_", "-"), "")
    return f"unknown command {given!r}; here it is {name!r}" if name else unknown("command", given, commands)
