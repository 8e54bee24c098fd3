"""Completion: every command and option, the words that an option takes, without torch, in shells that are there."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from qkv.cli import command_parser, main
from qkv.commands import COMMANDS
from qkv.commands.completion import SCRIPTS, script


def asked(shell, program, tmp_path):
    """The lines that a shell prints of a program in a folder that holds the script."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script(shell), encoding="utf-8")
    done = subprocess.run([path, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.split("\n")


def test_every_option_is_there_and_words_are_those_of_the_library():
    from qkv.presets import PRESETS
    from qkv.tasks import TASKS
    from qkv.tokenizers.tokenizer import KINDS

    options = {name for action in command_parser("train")._actions for name in action.option_strings}
    assert {"--shard", "--no-shard", "--tokenizer"} <= options
    for shell in SCRIPTS:
        text = script(shell)
        assert [name for name in COMMANDS if name not in text] == []
        spelled = {"bash": "{}", "zsh": "{}", "fish": " -l {} "}[shell]
        dashes = 2 * (shell == "fish")
        assert [n for n in options if n.startswith("--") and spelled.format(n[dashes:]) not in text] == []
        assert [word for words in (TASKS, PRESETS, KINDS) for word in words if word not in text] == []


def bash(words, tmp_path):
    line = " ".join(f"'{word}'" for word in words)
    program = (
        f"source ./script; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1};"
        f" _shtab_qkv; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    return [word for word in asked("bash", program, tmp_path) if word]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["qkv", "ver"], ["verify"]),
        (["qkv", "train", "--task", "m"], ["masked", "multilabel"]),
        (["qkv", "train", "--th"], ["--threads"]),
        (["qkv", "train", "--steps", ""], []),
        (["qkv", "show", "my"], ["my texts"]),
        (["qkv", "train", "--tokenizer", "w"], ["word", "wordpiece", "words.json"]),
        (["qkv", "completion", ""], ["bash", "zsh", "fish"]),
        (["qkv", "show", "ru"], ["runs/one", "runs"]),
        (["qkv", "show", "runs/"], ["runs/one", "runs/one"]),
        (["qkv", "train", "--from", "ru"], ["runs/one", "runs"]),
        (["qkv", "show", "runs/one", "L0.W_"], ["L0.W_K", "L0.W_Q"]),
        (["qkv", "show", "my texts", "L0.W_"], []),
    ],
)
def test_bash_offers_commands_options_words_files_runs_and_addresses(words, offered, tmp_path):
    make_run(tmp_path)
    assert bash(words, tmp_path) == offered


def make_run(place):
    """A folder of texts, a file of words, and a run with two matrices."""
    (place / "my texts").mkdir()
    (place / "words.json").touch()
    (place / "runs" / "one").mkdir(parents=True)
    (place / "runs" / "one" / "config.toml").touch()
    save_file({name: np.ones((2, 3)) for name in ("L0.W_Q", "L0.W_K", "W_E")}, place / "runs/one/best.safetensors")


def test_fish_offers_the_same(tmp_path):
    program = 'source ./script; complete -C "qkv ver"; complete -C "qkv train --task m"; complete -C "qkv train --th"'
    offered = [line.split("\t")[0] for line in asked("fish", program, tmp_path) if line]
    assert offered == ["verify", "masked", "multilabel", "--threads"]
    make_run(tmp_path)
    program = 'source ./script; complete -C "qkv show runs/one L0."; complete -C "qkv show ru"'
    offered = [line.split("\t")[0] for line in asked("fish", program, tmp_path) if line]
    assert offered == ["L0.W_K", "L0.W_Q", "runs/one", "runs/"]


def test_zsh_offers_runs_and_addresses(tmp_path):
    make_run(tmp_path)
    program = """
        fpath=(. $fpath); autoload -Uz compinit && compinit -u -D; compdef() { : }; eval "$(cat script)"
        compadd() { if [[ $1 = -a ]]; then print -l -- ${(P)2}; else print -l -- "${@:2}"; fi }; _files() { : }
        words=(qkv show runs/one); _qkv_run; _qkv_address
    """
    assert asked("zsh", program, tmp_path) == ["runs/one", "L0.W_K", "L0.W_Q", "W_E", ""]


def test_zsh_takes_every_specification(tmp_path):
    # _arguments itself, called without a line editor, refuses a specification that it cannot read
    program = """
        fpath=(. $fpath); autoload -Uz compinit && compinit -u -D; compdef() { : }; eval "$(cat script)"
        for command in train show completion; do
          for kind in options positionals; do
            name=_shtab_qkv_${command}_$kind; print -rl -- "${(@P)name}"
          done
        done
    """
    specs = asked("zsh", program, tmp_path)
    assert any(spec.endswith(":bash, zsh or fish:(bash zsh fish)") for spec in specs)
    assert any(spec.startswith("--json[print one JSON object on stdout]") for spec in specs)
    assert any("--change[" in spec and r"matrices\: " in spec for spec in specs)


def test_the_script_is_printed_without_torch_and_other_shells_are_named(capsys):
    code = "import sys; from qkv.cli import main; main(['completion', 'bash']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == script("bash")
    assert main(["completion", "tcsh"]) == 2
    said = capsys.readouterr()
    assert "bash" in said.err and "tcsh" in said.err
    assert said.out == ""
