"""What was typed becomes the training that it says, or a sentence; nothing is trained here."""

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv import api
from qkv.errors import ChangeError, ConfigError, RunFolderError
from qkv.folder.run_folder import RunFolder
from qkv.kernels.elementwise import Kernels
from qkv.presets import OTHER_OPTIMIZERS, PRESETS
from qkv.recipe import training
from qkv.recipe.build import assemble, check_reached
from qkv.recipe.config import RunConfig
from qkv.recipe.request import OPTIONS, Request, compiling_advice, resolve, same_run
from qkv.recipe.training import Listening, _Session
from qkv.training import calibration, loop
from qkv.training.checkpoint import Checkpoint, TrainingState
from qkv.training.distributed.ranks import ALONE

SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 16, "batch_size": 4}


def resolved(text: Path, **given):
    """(configuration, data) of a request on a text."""
    asked = {"source": str(text), "tokenizer": "char", "steps": 24, **given}
    return resolve(Request(**asked), None)[:2]


@pytest.mark.parametrize("given", [{"precision": "bf16"}, {"set": {"machine.precision": "bf16"}}])
def test_kernels_are_those_of_the_precision_however_it_was_said(small_text: Path, monkeypatch, given) -> None:
    monkeypatch.setattr(calibration, "choice", {torch.bfloat16: calibration.Choice(True, Kernels(product=7))}.get)
    machine = resolved(small_text, **given)[0].machine
    assert machine.precision == "bf16" and machine.kernels == Kernels(product=7)


def test_limits_of_kernels_that_are_not_taken_are_refused(small_text: Path, monkeypatch) -> None:
    monkeypatch.setattr(calibration, "choice", lambda dtype: calibration.Choice(True, Kernels(product=7)))
    assert resolved(small_text, set={"machine.kernels.product": 9})[0].machine.kernels == Kernels(product=9)
    with pytest.raises(ConfigError, match=r"machine\.kernels\.product=9 has no effect with .*machine\.native=false"):
        resolved(small_text, set={"machine.kernels.product": 9, "machine.native": False})
    monkeypatch.setattr(calibration, "choice", lambda dtype: None)  # where there is no compiler
    with pytest.raises(ConfigError, match=r"machine\.kernels\.product=9 has no effect with .*machine\.native=false"):
        resolved(small_text, set={"machine.kernels.product": 9})


@pytest.mark.parametrize(
    ("preset", "kind"), [("modern", "adamw"), ("modern", "sgd"), ("gpt2", "muon"), ("gpt2", "sgd")]
)
def test_another_optimizer_comes_with_rates_of_its_own(small_text: Path, preset: str, kind: str) -> None:
    usual = resolved(small_text, preset=preset)[0].training.optimizer
    found = resolved(small_text, preset=preset, set={"optimizer.kind": kind})[0].training.optimizer
    expected = OTHER_OPTIMIZERS[kind]
    assert found.kind == kind != usual.kind and found.clip == expected.clip
    assert found.lr == (0.03 if kind == "muon" else expected.lr) != usual.lr  # the law of sizes knows Muon's
    chosen = resolved(small_text, preset=preset, set={"optimizer.kind": kind, "lr": 0.5})[0].training.optimizer
    assert chosen == dataclasses.replace(found, lr=0.5)


def test_a_preset_s_own_optimizer_keeps_the_preset_s_rates(small_text: Path) -> None:
    for name in ("modern", "gpt2"):
        usual = resolved(small_text, preset=name)[0]
        kind = PRESETS[name].optimizer.kind
        assert resolved(small_text, preset=name, set={"training.optimizer.kind": kind})[0] == usual


@pytest.mark.parametrize("name", [*OPTIONS, "schedule.steps", "until_loss", "device"])
def test_what_laws_read_first_is_given_by_its_option(name: str) -> None:
    option = next(option for path, option in OPTIONS.items() if path.endswith(name))
    with pytest.raises(ConfigError, match=f"{option} x" if option else "leave it out"):
        Request(set={name: "x"})


@pytest.mark.parametrize("there", ["manifest.json", "source.json"])
def test_a_run_folder_is_not_trained_on(tmp_path: Path, there: str) -> None:
    for name in ("config.toml", there):
        (tmp_path / name).write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"is a run folder.* --out .* --resume; .* --from"):
        resolve(Request(source=str(tmp_path)), None)


@pytest.mark.parametrize("changes", [("L1.**=only",), ("W_U=freeze",), ("W_E,W_U=freeze", "L0.W_Q=freeze@..5")])
def test_an_output_that_stays_at_zero_is_refused(small_text: Path, changes: tuple[str, ...]) -> None:
    with pytest.raises(ChangeError, match=r"W_U starts at zero .* --change 'W_U=random\(0.02\)'"):
        check_reached(assemble(*resolved(small_text, set=SMALL, changes=changes)))


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("modern", ("L1.**,W_U=only",)),
        ("modern", ("W_U=random(0.02)", "L1.**=only")),
        ("modern", ("W_U=freeze@..5",)),
        ("modern", ("W_U=freeze", "W_U=random(0.02)@5..")),
        ("llama", ("W_U=freeze",)),
        ("shared", ("W_E=freeze",)),
    ],
)
def test_an_output_that_is_something_or_moves_later_lets_gradients_through(small_text: Path, preset, changes) -> None:
    check_reached(assemble(*resolved(small_text, preset=preset, set=SMALL, changes=changes)))


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        (("norm_f=stop_gradient", "W_U=random(0.02)", "W_E=only"), 0),
        (("L1.resid_pre=stop_gradient@3..", "W_E,W_U=only"), None),
        (("L1.resid_pre=stop_gradient@3..", "W_U=random(0.02)", "L0.W_Q=only"), 3),
        (("L1.resid_pre=stop_gradient", "W_U=random(0.02)", "L1.W_Q=only"), None),
        (("L1.resid_pre=stop_gradient", "W_U=random(0.02)", "W_E,norm_f.gain=freeze", "L1.**=freeze@4..6"), 4),
        (("norm_f=stop_gradient",), None),
    ],
)
def test_something_that_trains_lies_after_what_is_stopped(small_text: Path, changes, step) -> None:
    parts = assemble(*resolved(small_text, set=SMALL, changes=changes))
    before = {address: values.clone() for address, values in parts.catalogue.state().items()}
    if step is None:
        check_reached(parts)
    else:
        with pytest.raises(ChangeError, match=f"lets no gradient reach anything that trains from step {step};"):
            check_reached(parts)
    assert all(torch.equal(values, before[address]) for address, values in parts.catalogue.state().items())
    assert not parts.model.stops and all(entry.parameter.requires_grad for entry in parts.catalogue)


def test_a_classifier_s_head_is_an_output_too(tmp_path: Path) -> None:
    table = tmp_path / "labels.tsv"
    rows = "".join(f"the {'good' if i % 2 else 'bad'} one of {i}\t{i % 2}\n" for i in range(200))
    table.write_text("text\tlabel\n" + rows, encoding="utf-8")
    found = resolved(table, task="classify", tokenizer="word", label_column="label", changes=("W_cls=freeze",))
    with pytest.raises(ChangeError, match="W_cls starts at zero"):
        check_reached(assemble(*found))


def test_a_warm_up_is_there_whatever_the_budget_and_known_before_the_first_update(small_text: Path) -> None:
    by_steps, by_clock, by_default = (
        resolved(small_text, preset="gpt2", **{"steps": None} | budget)[0].training
        for budget in ({"steps": 400}, {"minutes": 3.0}, {})
    )
    assert by_steps.schedule.warmup_steps == 20
    assert by_clock.schedule.most_steps == by_default.schedule.most_steps == 200  # more than the time is good for
    assert by_clock.schedule.warmup_steps == by_default.schedule.warmup_steps == 10
    short = resolved(small_text, preset="gpt2", steps=None, minutes=0.2)[0].training.schedule
    assert (short.steps, short.most_steps) == (0, 0) and 5 <= short.warmup_steps <= 20
    assert resolved(small_text, steps=None, minutes=3.0)[0].training.schedule.warmup_steps == 0


@pytest.mark.parametrize(("name", "value"), [("n_heads", 2), ("d_mlp", 100), ("n_kv_heads", 4)])
def test_a_width_that_is_set_is_not_laid_over_the_one_that_a_number_of_parameters_chose(small_text, name, value):
    """The model would have another number of parameters, and the run could not be resumed by its own command."""
    pinned = {name: value} if name != "n_kv_heads" else {"n_heads": 8, "d_head": 16, name: value}
    with pytest.raises(ConfigError, match=f"--parameters chooses .* it was set to {pinned.get('n_heads', value)};"):
        resolved(small_text, parameters=200_000, set=pinned)
    asked = {"parameters": 200_000, "set": {"d_head": 16, "n_layers": 2}}
    same_run(Request(**asked), resolved(small_text, **asked)[0])


def test_resuming_with_another_setting_names_both(small_text: Path) -> None:
    config: RunConfig = resolved(small_text, set=SMALL)[0]
    same_run(Request(set=SMALL), config)
    for asked, words in (
        ({"set": {"lr": 0.5}}, r"--set lr is 0.5, but the run was made with 0.03;"),
        ({"set": {"n_ctx": 16, "clip": 1}}, r"--set clip is 1, but the run was made with none;"),
        ({"changes": ("W_E=freeze",)}, r"--change is W_E=freeze, but the run was made with none;"),
        ({"parameters": 10**6}, r"--parameters is 1000000, but the run was made with \d+;"),
        ({"minutes": 2.0}, r"--minutes is 2.0, but the run was made with none;"),
    ):
        with pytest.raises(ConfigError, match=words):
            same_run(Request(**asked), config)


@pytest.mark.parametrize(
    ("spent", "slowed", "left"),
    [(0.0, 1.0, 54.0), (20.0, 1.0, 34.0), (70.0, 1.0, 1.0), (0.0, 2.5, 45.0), (20.0, 9.0, 10.0)],
)
def test_a_resumed_run_has_the_minutes_that_are_left(
    small_text: Path, monkeypatch, spent: float, slowed: float, left: float
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(loop, "run", lambda setup: given.update(vars(setup)))
    monkeypatch.setattr(training, "slowdown", lambda: slowed)
    parts = assemble(*resolved(small_text, set=SMALL, steps=None, minutes=1.0, report=False))
    found = Checkpoint(path=Path(), state=TrainingState(step=9, horizon=900, train_seconds=spent))
    whole = {"parts": parts, "folder": RunFolder("nowhere"), "cache": None, "ranks": ALONE}
    _Session(listening=Listening(), resume_from=found, **whole).loop([])
    assert given["deadline_seconds"] == pytest.approx(left, abs=0.5) and not given["scores_start"]


@pytest.mark.parametrize(("minutes", "kept"), [(1.0, 10.0), (2.0, 20.0), (5.0, 20.0)])
def test_what_judging_is_given_is_a_sixth_of_a_short_time(small_text: Path, monkeypatch, minutes, kept) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(loop, "run", lambda setup: given.update(vars(setup)))
    monkeypatch.setattr(training, "slowdown", lambda: 1.0)
    parts = assemble(*resolved(small_text, set=SMALL, steps=None, minutes=minutes, report=False))
    monkeypatch.setattr(type(parts.task), "judging_seconds", lambda *_: 20.0)
    monkeypatch.setattr(type(parts.task), "baselines_seconds", lambda *_: 0.0)
    _Session(parts=parts, folder=RunFolder("nowhere"), listening=Listening(), cache=None, ranks=ALONE).loop([])
    assert given["deadline_seconds"] == pytest.approx(60 * minutes - 6 - kept, abs=0.1)


@pytest.mark.parametrize(("minutes", "least"), [(0.1, 2.4), (1 / 6, 4.0), (1.0, 4.0)])
def test_a_budget_that_reading_used_up_leaves_time_to_train(small_text: Path, monkeypatch, minutes, least) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(loop, "run", lambda setup: given.update(vars(setup)))
    parts = assemble(*resolved(small_text, set=SMALL, steps=None, minutes=minutes, report=False))
    late = Listening(started=time.monotonic() - 60 * minutes)
    _Session(parts=parts, folder=RunFolder("nowhere"), listening=late, cache=None, ranks=ALONE).loop([])
    assert given["deadline_seconds"] == pytest.approx(least)


def test_a_short_time_reads_a_part_of_a_long_text_and_says_so_in_the_configuration(small_text: Path) -> None:
    def read(**given: Any) -> int:
        return resolved(small_text, **{"steps": None} | given)[0].data.train_bytes

    assert read(minutes=0.1) == read(minutes=0.2) == 2_100_000 and read(minutes=1.5) == 12_000_000
    assert read(minutes=2.0) == read() == read(steps=5) == read(minutes=0.1, until_loss=1.0) == 0
    assert read(minutes=0.1, set={"train_bytes": 7000}) == 7000


@pytest.mark.parametrize("name", ["n_layers", "d_model", "batch_size"])
def test_a_digit_that_is_no_number_is_refused(small_text: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is '²'; expected a whole number"):
        resolved(small_text, set={name: "²"})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"steps": 1.5}, "steps is 1.5; expected a whole number"), ({"seed": "a"}, "seed is 'a'; expected a whole"),
     ({"steps": 1, "set": {"d_model": math.inf}}, "d_model is inf; expected a whole"),
     ({"steps": 1, "vocab": [3]}, "vocab is .3.; expected a whole")],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused_and_nothing_is_made(
    small_text: Path, tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        qkv.train(small_text, out=tmp_path / "run", tokenizer="char", **wrong)
    assert not (tmp_path / "run").exists()


def test_values_of_a_kind_that_fits_are_taken() -> None:
    asked = api._request(
        Path("a.txt"), {"steps": 100.0, "seed": np.int64(3), "val": Path("b.txt"), "change": ["W_E=freeze"]}
    )
    assert (asked.source, asked.steps, asked.seed, asked.val) == ("a.txt", 100, 3, "b.txt")
    assert isinstance(asked.steps, int) and asked.changes == ("W_E=freeze",)
    with pytest.raises(ConfigError, match="unknown option of qkv.train 'changes'"):
        api._request("", {"changes": ["W_E=freeze"]})


def test_laws_read_a_batch_that_was_set(small_text: Path, tmp_path: Path) -> None:
    def training(batch: int | None, source: Path = small_text, **given):
        asked = {"steps": None, "minutes": 5.0, "set": {"batch_size": batch} if batch else {}} | given
        return resolved(source, **asked)[0].training

    usual, large, small = (training(batch, preset="gpt2") for batch in (None, 128, 4))
    assert training(usual.batch_size, preset="gpt2") == usual
    assert (usual.batch_size, usual.schedule.most_steps) == (16, 200)  # the least that a law allows
    assert large.schedule.most_steps == 200 and small.schedule.most_steps == 800
    by_clock = training(128, preset="gpt2", minutes=0.2).schedule
    assert by_clock.warmup_steps <= 1 < training(None, preset="gpt2", minutes=0.2).schedule.warmup_steps
    assert training(128, preset="gpt2", steps=400, minutes=None).schedule.warmup_steps == 20
    table = tmp_path / "labels.tsv"
    rows = "".join(f"the {'good' if i % 2 else 'bad'} one of {i}\t{i % 2}\n" for i in range(6000))
    table.write_text("text\tlabel\n" + rows, encoding="utf-8")
    told = {"task": "classify", "tokenizer": "word", "label_column": "label", "minutes": 20.0}
    fine = training(16, table, **told)
    assert fine.schedule.most_steps > 1500
    assert fine.optimizer.embed_factor == pytest.approx(500 / fine.schedule.most_steps)


def test_what_a_training_cannot_start_from_is_told_with_what_can_be_typed(small_text, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # the newest run of the folder where one stands would be proposed
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").touch()
    for name, said in (
        ("none", "--from .*none is not there; give the folder of a run"),
        ("theirs", r"--from .*theirs is a Hugging Face folder; make a run of it first: qkv import \S+theirs --out"),
    ):
        with pytest.raises(RunFolderError, match=said):
            resolved(small_text, from_run=str(tmp_path / name))


def test_a_card_gets_larger_batches_unless_updates_or_the_batch_were_named(tmp_path: Path, monkeypatch) -> None:
    text = tmp_path / "long.txt"
    text.write_text("\n".join(f"the {i * 7919 % 10007} cats see {i} dogs" for i in range(10_000)), encoding="utf-8")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)

    def training(device: str, **given: Any):
        asked: dict[str, Any] = {"steps": None, "minutes": 5.0, **given}
        config = resolved(text, device=device, **asked)[0]
        assert config.machine.device == device
        return config.training

    for more in ({}, {"set": {"n_ctx": 32}}):  # the text is short: as large as leaves 400 updates
        cpu, card = training("cpu", **more), training("cuda", **more)
        assert cpu.batch_size < card.batch_size < 8 * cpu.batch_size
        assert 392 <= card.schedule.most_steps <= 408 < cpu.schedule.most_steps
    assert training("cuda", set={"batch_size": 24}).batch_size == 24
    for given in ({"steps": 50, "minutes": None}, {"steps": 50, "minutes": None, "until_loss": 1.5}):
        assert training("cuda", **given) == training("cpu", **given)
    target = {"minutes": None, "until_loss": 2.0}
    assert training("cpu", **target).batch_size <= training("cuda", **target).batch_size
    assert 200 <= training("cuda", **target).schedule.steps <= training("cpu", **target).schedule.steps


def test_the_source_that_nobody_gave_is_not_the_run_folder_that_one_is_in(tmp_path: Path, monkeypatch) -> None:
    for name in ("config.toml", "manifest.json"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qkv.recipe.request._data_config", lambda *_: pytest.fail("it is read"))
    with pytest.raises(ConfigError, match="is a run folder"):
        resolve(Request(source="."), None)
    with pytest.raises(pytest.fail.Exception, match="it is read"):
        resolve(Request(), None)


def test_a_setting_means_the_same_under_each_of_its_names(small_text: Path, tmp_path: Path, monkeypatch) -> None:
    run = qkv.train(small_text, out=tmp_path / "run", tokenizer="char", steps=1, set=SMALL, report=False)
    goes_on = {"from_run": str(run.path), "tokenizer": None}
    for name in ("n_ctx", "sizes.n_ctx", "model.sizes.n_ctx"):
        assert resolved(small_text, set={name: "8"}, **goes_on)[0].model.sizes.n_ctx == 8
    for name, value in (("tokenizer", "char"), ("data.tokenizer", "char"), ("vocab", "300"), ("data.vocab", "300")):
        with pytest.raises(ConfigError, match=f"leave --{name.rpartition('.')[2]} out"):
            resolved(small_text, set={name: value}, **goes_on)
    (tmp_path / "val.txt").write_text("the cat sees the king at home.\n" * 40, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name in ("val", "data.val"):
        config = resolved(small_text, set={name: "val.txt"})[0]
        assert config == resolved(small_text, val="val.txt")[0] and config.data.val == str(tmp_path / "val.txt")
        same_run(Request(set={name: "val.txt"}), config)


def test_a_compiler_is_advised_for_long_trainings_of_a_text_on_a_gpu(small_text: Path) -> None:
    config, _ = resolved(small_text, steps=100_000, set={"d_model": 512, "n_layers": 6, "n_ctx": 256})
    card = dataclasses.replace(config, machine=dataclasses.replace(config.machine, device="cuda"))
    compiled = dataclasses.replace(card, machine=dataclasses.replace(card.machine, compile=True))
    assert "--set machine.compile=true" in compiling_advice(card, 256)
    assert compiling_advice(config, 256) == compiling_advice(compiled, 256) == ""
    short = dataclasses.replace(card.training.schedule, steps=20)
    brief = dataclasses.replace(card, training=dataclasses.replace(card.training, schedule=short))
    assert compiling_advice(brief, 256) == ""
