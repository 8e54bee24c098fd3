"""The command at the end of a report makes the same configuration again."""

import argparse
import shlex

import pytest

from qkv.changes import freeze_changes
from qkv.commands import train as command
from qkv.recipe.request import Request, resolve
from qkv.views.command import command_of


def configuration(words):
    """What the command line resolves to."""
    parser = argparse.ArgumentParser()
    command.configure(parser)
    given = command.options(parser.parse_args(words))
    changes = (*given.pop("change", ()), *map(str, freeze_changes(given.pop("freeze", []), given.pop("only", []))))
    source = parser.parse_args(words).source or ""
    return resolve(Request(source=source, changes=changes, **given), None)[0]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "a text.txt"
    path.write_text(
        "".join(f"{i} the quick brown fox jumps over the lazy dog.\n" for i in range(2000)), encoding="utf-8"
    )
    return str(path)


@pytest.mark.parametrize(
    "options",
    [
        "--steps 30 --seed 4",
        "--steps 30 --tokenizer char --set d_model=48,n_layers=2,training.optimizer.lr=0.002,dropout=0.1",
        "--steps 50 --preset gpt2 --tokenizer bpe --vocab 300 --freeze W_E --change 'L0.W_Q=identity(train=true)'",
        "--task masked --steps 20 --preset bert --until-loss 3.5 --watch off --threads 1",
        "--steps 20 --preset bloem --tokenizer char",
        "--steps 20 --tokenizer char --nproc 2 --threads 1",
    ],
)
def test_command_resolves_to_the_same_configuration(text, options):
    made = configuration([text, *shlex.split(options), "--precision", "fp32"])
    again = command_of(made, None)
    assert again.startswith("qkv train ")
    assert configuration(shlex.split(again)[2:]) == made


def test_a_budget_of_minutes_becomes_the_steps_that_were_made(text):
    made = configuration([text, "--minutes", "1", "--tokenizer", "char", "--precision", "fp32"])
    again = configuration(shlex.split(command_of(made, 77))[2:])
    assert again.training.schedule.steps == 77 and again.training.minutes == 0
    assert again.model == made.model and again.training.batch_size == made.training.batch_size
