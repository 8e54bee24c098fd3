"""The command line itself: help, mistakes in one sentence, exit statuses."""

import os
import subprocess
import sys
import time

import pytest
import torch

from qkv import __version__, cli
from qkv.commands import COMMANDS
from qkv.errors import Interrupted, NonFiniteError, UserError


def command(*argv: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "qkv", *argv], capture_output=True, text=True, timeout=120, **options)


def stub(monkeypatch, run):
    """`qkv doctor` does `run` instead."""
    import qkv.commands.doctor

    monkeypatch.setattr(qkv.commands.doctor, "run", run)


def raising(error):
    def run(args):
        raise error

    return run


def test_help_lists_every_command_at_once():
    began = time.perf_counter()
    done = command("--help")
    assert time.perf_counter() - began < 1.0  # measured: 0.06 s; the figure is in benchmarks/
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


def test_help_and_version_do_not_load_torch():
    code = "import sys; from qkv.cli import main; main([]); main(['train', '--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0


@pytest.mark.parametrize("chosen", ["", "2"])
def test_numpys_products_have_one_thread_unless_a_number_was_chosen(chosen):
    code = "import os, sys; sys.argv = ['qkv', '--version']; from qkv.cli import program; program()"
    code += "; print(os.environ['OPENBLAS_NUM_THREADS'])"
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    environment |= {"OPENBLAS_NUM_THREADS": chosen} if chosen else {}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout.split()[-1] == (chosen or "1")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_an_example(name, capsys):
    assert cli.main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"\nExample:\n  qkv {name}" in out
    assert cli.main(["help", name]) == 0
    assert capsys.readouterr().out == out


def test_no_command_shows_the_help(capsys):
    assert cli.main([]) == 0
    assert "qkv train" in capsys.readouterr().out


def test_version(capsys):
    assert cli.main(["--version"]) == cli.main(["version"]) == 0
    assert capsys.readouterr().out == 2 * f"qkv {__version__}\n"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("nonsense", "unknown command 'nonsense'"),
        ("tarin", "did you mean 'train'"),
        ("--verbose", "did you mean '--version'"),
        ("train --nonsense", "unknown option '--nonsense'"),
        ("train --step 3", "did you mean '--steps'"),
        ("train --steps minus", "--steps: 'minus' is not a whole number of at least 1"),
        ("train --steps -4", "--steps: '-4' is not a whole number"),
        ("train --steps", "--steps: a value is missing after it"),
        ("train --until-loss abc", "--until-loss: 'abc' is not a number above 0"),
        ("train --minutes nan", "--minutes: 'nan' is not a number above 0"),
        ("train a.txt b.txt", "'b.txt' is one argument too many"),
        ("train --set d_model", "--set takes path=value"),
        ("predict", "missing: RUN"),
        ("compare one", "missing: RUN"),
        ("predict r --weights wrong", "unknown value 'wrong'"),
        ("eval r --json=yes", "ignored explicit argument 'yes'"),
    ],
)
def test_a_mistake_is_one_clear_message_and_exit_2(typed, said, capsys):
    assert cli.main(typed.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.startswith("qkv: ") and len(err) < 400 and len(err.splitlines()) <= 2
    assert "--help" in err or "--set" in err


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("no such thing"), 2, "qkv: no such thing\n"),
        (NonFiniteError("loss is NaN at step 7"), 1, "qkv: loss is NaN at step 7\n"),
        (Interrupted("saved at step 7"), 130, "qkv: saved at step 7\n"),
        (Interrupted("saved at step 7", exit_status=143), 143, "qkv: saved at step 7\n"),
        (KeyboardInterrupt(), 130, "qkv: interrupted\n"),
        (RuntimeError("Symlink loop from '/a'"), 2, "qkv: symlink loop from '/a'; remove the link\n"),
        (
            OSError(28, "No space left on device", "runs/a"),
            1,
            "qkv: the system refused: No space left on device: runs/a\n",
        ),
        (
            OSError(36, "File name too long", "a" * 300),
            2,
            f"qkv: {'a' * 40}... is too long for the name of a file or folder here; give a shorter one\n",
        ),
    ],
)
def test_every_outcome_has_its_exit_status(error, status, said, monkeypatch, capsys):
    stub(monkeypatch, raising(error))
    assert cli.main(["doctor"]) == status
    assert capsys.readouterr().err == said


def test_a_run_that_nobody_named_is_proposed(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["show"]) == 2 and capsys.readouterr().err.startswith("qkv: missing: RUN. Type")
    (tmp_path / "runs" / "my 1").mkdir(parents=True)
    (tmp_path / "runs" / "my 1" / "config.toml").touch()
    assert cli.main(["predict"]) == 2
    assert capsys.readouterr().err.startswith("qkv: missing: RUN, TEXT (the newest here is 'runs/my 1'). Type")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    ],
)
def test_a_lack_of_memory_is_no_bug(error, monkeypatch, capsys):
    stub(monkeypatch, raising(error))
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err.startswith("qkv: out of memory; of a training, qkv plan with the same options")


def test_a_bug_of_ours_is_a_sentence_and_a_file_with_the_traceback(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stub(monkeypatch, raising(ZeroDivisionError("oops")))
    assert cli.main(["doctor"]) == 1
    err = capsys.readouterr().err
    assert "ZeroDivisionError: oops" in err and "Traceback" not in err
    (log,) = tmp_path.iterdir()
    assert str(log) in err and "Traceback" in log.read_text()


def test_a_reader_that_leaves_is_no_error():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "qkv", "--help"], stdout=closed, stderr=subprocess.PIPE, timeout=60
        )
    assert done.returncode == 0
    assert done.stderr == b""


def test_options_and_texts_come_in_any_order():
    args = cli.command_parser("predict").read(["run", "--tokens", "5", "some text", "--json", "more"])
    assert (args.run, args.texts, args.tokens, args.json) == ("run", ["some text", "more"], 5, True)


def test_two_dashes_can_be_the_value_of_an_option():
    assert cli.command_parser("show").read(["run", "--text=--"]).text == "--"
    assert cli.command_parser("report").read(["--text=--", "run", "--text=a"]).text == ["--", "a"]
    with pytest.raises(UserError, match="'--' is not a whole number"):
        cli.command_parser("predict").read(["run", "--tokens=--"])


def test_after_two_dashes_everything_is_a_text_or_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = cli.command_parser("predict").read(["run", "--json", "--", "-x", "--seed", "--"])
    assert (args.run, args.texts, args.json, args.seed) == ("run", ["-x", "--seed", "--"], True, None)
    assert cli.command_parser("train").read(["--steps", "1", "--", "-mine.txt"]).source == "-mine.txt"
    with pytest.raises(UserError, match="'-b' is one argument too many"):
        cli.command_parser("train").read(["--", "-a", "-b"])
    (tmp_path / "-mine.txt").touch()
    with pytest.raises(UserError, match=r"unknown option '-mine.txt'.*\(a file of that name is ./-mine.txt\)"):
        cli.command_parser("train").read(["-mine.txt"])


@pytest.mark.parametrize("given", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "passive"}])
def test_threads_sleep_soon_where_the_environment_does_not_say(given, monkeypatch, capsys):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["--version"]) == 0
    capsys.readouterr()
    assert os.environ.get("GOMP_SPINCOUNT") == (given.get("GOMP_SPINCOUNT") if given else "12000")


def test_nothing_loads_torch_before_the_environment_is_set():
    """GNU's OpenMP reads it once, when torch is imported."""
    words = "import sys, qkv.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words]).returncode == 0


def _ending(words: list[str], before: str = "") -> subprocess.CompletedProcess[str]:
    """A process of the command, in which something is registered for its end and something would tell of a teardown."""
    code = (
        "import atexit, os, sys\nfrom qkv.cli import program\n"
        "class Loud:\n    def __del__(self): print('torn down')\n"
        f"kept = Loud()\nsys.argv = ['qkv', *{words!r}]\n{before}\n"
        "status = program()\natexit.register(print, 'registered later')\nsys.exit(status)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_a_program_ends_with_its_status_after_what_was_registered_and_without_a_teardown() -> None:
    done = _ending(["--version"])
    assert done.returncode == 0 and done.stdout.splitlines() == [f"qkv {__version__}", "registered later"]
    refused = _ending(["nosuch"])
    assert refused.returncode == 2 and "unknown command 'nosuch'" in refused.stderr
    assert refused.stdout.splitlines() == ["registered later"]


@pytest.mark.parametrize("watched", ["sys.setprofile(lambda *_: None)", "sys.settrace(lambda *_: None)", "pass"])
def test_a_program_that_is_watched_ends_as_any_other(watched: str) -> None:
    """A profiler or a measure of coverage may be told of the end later than our own function."""
    done = _ending(["--version"], f"os._exit = lambda status: print('left at once')\n{watched}")
    assert done.returncode == 0 and ("left at once" in done.stdout) == (watched == "pass")


@pytest.mark.parametrize("closed", ["1", "2"])
def test_a_program_that_was_started_with_a_stream_closed_says_nothing_of_it(closed: str) -> None:
    words = f'exec "$0" -m qkv --version {closed}>&-'
    done = subprocess.run(["/bin/sh", "-c", words, sys.executable], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "" and (closed == "1") == (done.stdout == "")
