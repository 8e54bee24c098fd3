"""The command line: finds the command, reads its options, and turns every outcome into words and an exit status.

    0 done    2 the user's mistake    1 ours (NaN and a full disk included)    130 Ctrl-C    143 SIGTERM

Nothing here loads torch: only the one command that runs imports the library. It never shows a traceback; that of a bug
of ours is written to a file which is named.
"""

import argparse
import atexit
import errno
import gc
import importlib
import io
import itertools
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from qkv import __version__
from qkv.commands import COMMANDS
from qkv.commands.printing.screen import Plain
from qkv.errors import QkvError, UserError, is_out_of_memory, too_long, typed, unknown
from qkv.othernames import unknown_command, unknown_setting

_SPINS = 12_000
"""How often a thread looks whether the others are done before it sleeps (GNU's OpenMP; its own 300,000). Alone on a
machine this costs nothing that was measured; beside a busy process a step takes a fifth of the time or less, since a
thread that spins uses up the share of the core that the work needs (tests/campaigns/spinning.py)."""

_LOOKS_FOR_CYCLES = (100_000, 20, 20)
"""After how many new objects Python looks for unreachable ones that refer to each other (its own: 700, 10, 10). What
torch makes on its way in is looked through three times otherwise, for nothing: a training of 6 s takes 0.16 s less."""

_NO_ROOM = (
    "out of memory; of a training, qkv plan with the same options tells what it takes: a smaller model (--set"
    " d_model=...) or batch (--set batch_size=...), or the batch in several parts (--set accumulate=...), takes less"
)

T = TypeVar("T")

_PLAIN = "\0"
"""Before a word that is no option, whatever it begins with; no argument of a program can hold it."""


def _as_typed(value: T) -> T | str:
    return value.removeprefix(_PLAIN) if isinstance(value, str) else value


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are `UserError`s of one sentence, with the nearest option and no usage dump."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.places: list = []
        """Runs and data among the values that were read, to be looked for before the command begins."""

    def error(self, message: str) -> None:  # type: ignore[override]
        message = re.sub(r"^argument ", "", message)
        message = message.replace("the following arguments are required", "missing")
        if re.search(r"^missing: .*\bRUN\b", message):
            message += _newest_run()
        message = message.replace("expected one argument", "a value is missing after it")
        end = "" if message.endswith(("?", ".")) else "."
        raise UserError(f"{message}{end} Type '{self.prog} --help' for what it takes.")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> object:
        """`read` keeps a bare `--` to itself: one here is a value, `--text=--`, that argparse would take away."""
        return self._get_value(action, "--") if arg_strings == ["--"] else super()._get_values(action, arg_strings)

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """The options of `argv`; options and texts may come in any order, and after `--` everything is a text.

        Raises UserError for anything that is not one of this command's options.
        """
        end = argv.index("--") if "--" in argv else len(argv)
        args, rest = self.parse_known_intermixed_args([*argv[:end], *(_PLAIN + word for word in argv[end + 1 :])])
        self.places = [value for value in vars(args).values() if hasattr(value, "check") and value[:1] != _PLAIN]
        for name, value in vars(args).items():
            if isinstance(value, str | list):
                setattr(args, name, _as_typed(value) if isinstance(value, str) else [*map(_as_typed, value)])
        for i, word in enumerate(rest):
            if word.startswith("-"):
                from qkv import recipe

                file = f" (a file of that name is ./{word})" if os.path.exists(word) else ""
                option, _, value = word.partition("=")
                if "--set" in self._option_string_actions and (setting := recipe.setting_named(option)):
                    value = value or next((v for v in rest[i + 1 : i + 2] if not v.startswith("-")), "VALUE")
                    self.error(f"{option} is a setting; give it as --set {setting}={_as_typed(value)}{file}")
                self.error(unknown_setting("option", option, self._option_string_actions, 2) + file)
        if rest:
            self.error(f"{_as_typed(rest[0])!r} is one argument too many")
        return args


def _newest_run() -> str:
    """What is told where the run is missing: the newest of those that training makes here."""
    from qkv.folder.run_folder import runs_in

    found = runs_in(Path("runs"))
    return f" (the newest here is {typed(found[0])})" if found else ""


def command_parser(name: str) -> Parser:
    """The parser of one command, with its options and example."""
    module = importlib.import_module(f"qkv.commands.{name}")
    description, _, example = (module.__doc__ or "").partition("\nExample:")
    parser = Parser(f"qkv {name}", description.strip())
    parser.epilog = f"Example:{example.rstrip()}"
    module.configure(parser)
    return parser


def help_text() -> str:
    """What `qkv --help` prints."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {line}" for name, line in COMMANDS.items())
    return (
        "qkv trains self-attention models and shows what training does to every matrix in them.\n\n"
        f"usage: qkv COMMAND ...\n\n{rows}\n\n"
        "Type 'qkv COMMAND --help' for the options of a command.\n"
        "Example: qkv train            (no file: it trains on the manuals inside your own Python)\n"
        "         qkv train my.txt --minutes 3\n"
    )


def program() -> int:
    """`main` as a process of its own, at whose end what was loaded is not taken down piece by piece."""
    statuses: list[int] = []
    atexit.register(_leave, statuses)  # the first to be registered is called last, when threads have ended
    gc.set_threshold(*_LOOKS_FOR_CYCLES)
    # NumPy's products here are small: two threads take a third longer than one, also while a training has the cores
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in ("stdout", "stderr"):  # None where the process was started with that stream closed
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    statuses.append(main())
    return statuses[0]


def _leave(statuses: list[int]) -> None:
    """End the process, unless it ends otherwise than by `main`'s status, or somebody counts what is run in it."""
    if not statuses or sys.gettrace() is not None or sys.getprofile() is not None:
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    os._exit(statuses[0])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit status."""
    streams = sys.stdout, sys.stderr
    for name, stream in zip(("stdout", "stderr"), streams, strict=True):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console that lacks a character shows ? and goes on
            setattr(sys, name, Plain(stream))
    try:
        return _ended(argv)
    finally:
        sys.stdout, sys.stderr = streams


def _ended(argv: Sequence[str] | None) -> int:
    """The exit status of one command line, every outcome told in words."""
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():  # read when torch is imported, further on
        os.environ["GOMP_SPINCOUNT"] = str(_SPINS)
    try:
        status = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of our output left, as in `qkv show RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except QkvError as error:
        return _say(str(error), error.exit_status)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except OSError as error:
        if error.errno is None:
            return _bug(error)
        if error.errno == errno.ENAMETOOLONG:
            return _say(str(too_long(str(error.filename))), UserError.exit_status)
        what = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
        return _say(f"the system refused: {what}", 1)
    except Exception as error:
        if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # Path.resolve, until Python 3.12
            return _say(f"{str(error)[0].lower()}{str(error)[1:]}; remove the link", UserError.exit_status)
        return _say(_NO_ROOM, 1) if is_out_of_memory(error) else _bug(error)


def _dispatch(argv: list[str]) -> int:
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(help_text())
        return 0
    if argv[0] in ("-V", "--version", "version"):
        print(f"qkv {__version__}")
        return 0
    if argv[0] not in COMMANDS:
        problem = (
            unknown("option", argv[0], ("--help", "--version"))
            if argv[0].startswith("-")
            else unknown_command(argv[0], COMMANDS)
        )
        raise UserError(f"{problem}\nType 'qkv --help' for the list.")
    parser = command_parser(argv[0])
    if {"-h", "--help"} & set(itertools.takewhile(lambda word: word != "--", argv)):
        parser.print_help()
        return 0
    args = parser.read(argv[1:])
    for place in parser.places:
        place.check()
    args.typed = tuple(argv)
    return importlib.import_module(f"qkv.commands.{argv[0]}").run(args) or 0


def _say(message: str, status: int) -> int:
    print(f"qkv: {message}", file=sys.stderr)
    return status


def _bug(error: Exception) -> int:
    with tempfile.NamedTemporaryFile("w", prefix="qkv-", suffix=".log", delete=False, encoding="utf-8") as log:
        traceback.print_exception(error, file=log)
    return _say(f"something went wrong inside qkv ({type(error).__name__}: {error}); details are in {log.name}", 1)
