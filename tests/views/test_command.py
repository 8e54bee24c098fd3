"""The command at the end of a report makes the same configuration again."""

import argparse
import dataclasses
import pathlib
import shlex
import subprocess

import numpy as np
import pytest

from qkv.changes import freeze_changes
from qkv.cli import main
from qkv.commands import train as command
from qkv.config import flat, override
from qkv.presets import PRESETS
from qkv.recipe.request import Request, resolve
from qkv.recipe.unused_settings import unused_settings
from qkv.views.report.command import command_of


def configuration(words):
    """What the command line resolves to."""
    parser = argparse.ArgumentParser()
    command.configure(parser)
    given = command.options(parser.parse_args(words))
    changes = (*given.pop("change", ()), *map(str, freeze_changes(given.pop("freeze", []), given.pop("only", []))))
    source = parser.parse_args(words).source or ""
    return resolve(Request(source=source, changes=changes, **given), None)[0]


def counting(config):
    """Every setting that counts, by its path."""
    idle = unused_settings(config)
    return {path: value for path, value in flat(config).items() if path not in idle}


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
        "--steps 20 --tokenizer char --set machine.kernels.product=4096,machine.kernels.keys=0",
        "--steps 20 --tokenizer char --nproc 2 --threads 1 --shard",
        "--steps 20 --tokenizer char --set train_bytes=50000",
        "--steps 40 --tokenizer char --set dropout=0,batch_size=8,accumulate=1,ledger.every=4,compile=true",
    ],
)
def test_command_resolves_to_the_same_configuration(text, options):
    made = configuration([text, *shlex.split(options), "--precision", "fp32"])
    again = command_of(made, None)
    assert again.startswith("qkv train ")
    assert configuration(shlex.split(again)[2:]) == made


@pytest.mark.parametrize("kind", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("preset", [*PRESETS])
def test_the_command_of_every_preset_and_optimizer_can_be_typed_again(text, preset, kind):
    """What changes nothing there is left out, since it would be refused; all that counts is the same."""
    words = ["--preset", preset, "--steps", "9", "--tokenizer", "char", "--precision", "fp32", "--watch", "full"]
    task = ["--task", "masked"] if preset == "bert" else []
    made = configuration([text, *task, *words, "--set", f"optimizer.kind={kind}"])
    again = configuration(shlex.split(command_of(made, None))[2:])
    assert counting(again) == counting(made)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("image", "--preset bag --set flip=true"),
        ("image", "--set positions=learned,smoothing=0,pixels=1,12,12"),
        ("classify", "--set optimizer.kind=adamw,data.classes=1,0"),
        ("classify", "--preset lstm --set teachers=1,joined=0.2"),
        ("translate", "--preset vaswani --set optimizer.kind=sgd"),
    ],
)
def test_the_command_of_other_tasks_can_be_typed_again(tmp_path, task, options):
    source = str(tmp_path / "labels.tsv")
    if task == "translate":
        source = f"{tmp_path / 'a.de'}:{tmp_path / 'b.en'}"
        for name in ("a.de", "b.en"):
            (tmp_path / name).write_text("".join(f"one of {i}\n" for i in range(60)), encoding="utf-8")
    if task == "classify":
        rows = "".join(f"the {'good' if i % 2 else 'bad'} one of {i}\t{i % 2}\n" for i in range(200))
        (tmp_path / "labels.tsv").write_text("text\tlabel\n" + rows, encoding="utf-8")
    if task == "image":
        source = str(tmp_path)
        for kind, shape in (("images-idx3", (60, 12, 12)), ("labels-idx1", (60,))):
            values = (np.arange(np.prod(shape)) % 3).astype(np.uint8)
            head = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
            noise = np.arange(len(values)) // 100 % 7 if kind.startswith("images") else 0
            (tmp_path / f"train-{kind}-ubyte").write_bytes(head + (values + noise).astype(np.uint8).tobytes())
    words = [source, "--task", task, "--steps", "9", "--precision", "fp32"]
    made = configuration([*words, *shlex.split(options)])
    assert counting(configuration(shlex.split(command_of(made, None))[2:])) == counting(made)


def test_what_an_earlier_version_took_and_changes_nothing_is_not_in_the_command(text):
    made = configuration([text, "--preset", "textbook", "--steps", "9", "--tokenizer", "char", "--precision", "fp32"])
    old = override(made, {"muon_lr": 0.5, "momentum": 0.1, "rope_base": 50.0, "ledger.windows": 2, "tolerance": 1.0})
    assert command_of(old, None) == command_of(made, None)
    assert configuration(shlex.split(command_of(old, None))[2:]) == made


@pytest.mark.parametrize(
    "options", ["--minutes 1", "--minutes 0.2", "", "--minutes 1 --until-loss 1.6", "--minutes 5 --preset gpt2"]
)
def test_a_budget_of_minutes_becomes_the_steps_that_its_schedule_was_made_for(text, options):
    made = configuration([text, *options.split(), "--tokenizer", "char", "--precision", "fp32"])
    again = configuration(shlex.split(command_of(made, 77))[2:])
    assert again.training.schedule.steps == 77 and again.training.minutes == 0 and again.model == made.model
    assert again.data == made.data
    schedule = dataclasses.replace(again.training.schedule, steps=0, most_steps=made.training.schedule.most_steps)
    assert dataclasses.replace(again.training, minutes=made.training.minutes, schedule=schedule) == made.training


def test_a_run_that_starts_from_another_leaves_to_that_what_is_its_own(text, tmp_path):
    first = tmp_path / "first"
    words = [text, "--steps", "4", "--tokenizer", "bpe", "--vocab", "300", "--no-report", "--watch", "off"]
    assert main(["train", *words, "--set", "d_model=32,n_layers=1,n_ctx=64", "--out", str(first)]) == 0
    labelled = tmp_path / "labels.csv"
    labelled.write_text("text,label\n" + "".join(f"the fox {i},{'ab'[i % 2]}\n" for i in range(300)), "utf-8")
    for words in (
        [text, "--from", str(first), "--steps", "9", "--set", "n_ctx=32"],
        [text, "--from", str(first), "--steps", "9", "--set", "dropout=0.2"],
        [str(labelled), "--task", "classify", "--from", str(first), "--steps", "9", "--freeze", "W_E"],
    ):
        made = configuration([*words, "--precision", "fp32"])
        assert configuration(shlex.split(command_of(made, None))[2:]) == made


def test_the_home_folder_is_not_told_and_found_again_by_a_shell(tmp_path):
    config = dataclasses.replace(
        configuration([str(pathlib.Path(__file__)), "--steps", "9", "--tokenizer", "char"]),
        changes=(f"W_E=load({tmp_path}/my v.txt)",),
    )
    data = dataclasses.replace(config.data, source=f"{tmp_path}/a text.de:{tmp_path}/b.en", val=f"{tmp_path}/c.txt")
    line = command_of(dataclasses.replace(config, data=data), None, str(tmp_path))
    assert str(tmp_path) not in line
    said = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {line}"], env={"HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert said.stdout.splitlines() == shlex.split(command_of(dataclasses.replace(config, data=data), None))
