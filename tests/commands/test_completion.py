"""Completion: every command and option, the words that an option takes, without torch, in shells that are there."""

import shutil
import subprocess
import sys

import pytest

from qkv.cli import command_parser, main
from qkv.commands import COMMANDS
from qkv.commands.completion import SCRIPTS, options_of, script


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

    found = {option.names[-1]: option for option in options_of("train") if option.names}
    assert set(found) == {a.option_strings[-1] for a in command_parser("train")._actions if a.option_strings}
    assert set(found["--task"].words) == set(TASKS)
    assert set(found["--preset"].words) == set(PRESETS)
    assert set(found["--tokenizer"].words) == set(KINDS) and found["--tokenizer"].is_place
    for shell in SCRIPTS:
        text = script(shell)
        assert [name for name in COMMANDS if name not in text] == []
        names = [name for option in found.values() for name in option.names if name.startswith("--")]
        spelled = {"bash": "{}", "zsh": "'*--{}[", "fish": " -l {} "}[shell]
        assert "--shard" in names and "--no-shard" in names
        assert [name for name in names if spelled.format(name[2 * (shell != "bash") :]) not in text] == []


def bash(words, tmp_path):
    line = " ".join(f"'{word}'" for word in words)
    program = (
        f"source ./script; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _qkv; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    return [word for word in asked("bash", program, tmp_path) if word]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["qkv", "ver"], ["verify"]),
        (["qkv", "train", "--task", "m"], ["masked"]),
        (["qkv", "train", "--th"], ["--threads"]),
        (["qkv", "train", "--steps", ""], []),
        (["qkv", "show", "my"], ["my texts"]),
        (["qkv", "train", "--tokenizer", "w"], ["word", "wordpiece", "words.json"]),
        (["qkv", "completion", ""], ["bash", "zsh", "fish"]),
    ],
)
def test_bash_offers_commands_options_words_and_files(words, offered, tmp_path):
    (tmp_path / "my texts").mkdir()
    (tmp_path / "words.json").touch()
    assert bash(words, tmp_path) == offered


def test_fish_offers_the_same(tmp_path):
    program = 'source ./script; complete -C "qkv ver"; complete -C "qkv train --task m"; complete -C "qkv train --th"'
    offered = [line.split("\t")[0] for line in asked("fish", program, tmp_path) if line]
    assert offered == ["verify", "masked", "--threads"]


def test_zsh_takes_every_specification(tmp_path):
    # _arguments itself, called without a line editor, refuses a specification that it cannot read
    program = """
        fpath=(. $fpath); autoload -Uz compinit && compinit -u -D; compdef() { : }; source ./script
        _arguments() { for spec in "$@"; do print -r -- "$spec"; done }
        for command in train show completion; do words=(qkv $command ''); CURRENT=3; _qkv; done
    """
    specs = asked("zsh", program, tmp_path)
    assert "1:bash, zsh or fish:(bash zsh fish)" in specs and "*--json[print one JSON object on stdout]" in specs
    assert any(spec.startswith("*--change[") and r"matrices\: 'L0.W_Q=identity@0..100'" in spec for spec in specs)
    arguments = [spec.split(":")[0] for spec in specs if spec[:1] in "12*" and not spec.startswith("*--") and spec]
    assert arguments == ["1", "1", "2", "1"]  # train, show, completion


def test_the_script_is_printed_without_torch_and_other_shells_are_named(capsys):
    code = "import sys; from qkv.cli import main; main(['completion', 'bash']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == script("bash")
    assert main(["completion", "tcsh"]) == 2
    said = capsys.readouterr()
    assert "bash" in said.err and "tcsh" in said.err
    assert said.out == ""
