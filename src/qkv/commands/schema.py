"""The JSON Schema of what a command prints with --json, for programs; without a command, of all of them by name.

Example:
  qkv schema trial
  qkv schema
"""

import argparse

from qkv.commands import COMMANDS
from qkv.commands.arguments import option, usually
from qkv.commands.printing import screen
from qkv.commands.printing.forms import FORMS, schema
from qkv.errors import ConfigError, unknown


def configure(parser: argparse.ArgumentParser) -> None:
    option(parser, "name COMMAND", "a command that takes --json", usually(*FORMS), nargs="?")


def run(args: argparse.Namespace) -> None:
    if args.name in COMMANDS and args.name not in FORMS:
        raise ConfigError(f"qkv {args.name} has no --json; commands with one: {', '.join(FORMS)}")
    if args.name and args.name not in FORMS:
        raise ConfigError(unknown("command", args.name, FORMS))
    return screen.print_json(schema(args.name) if args.name else {name: schema(name) for name in FORMS})
