"""A study from Python, and code of one's own in studies: the same as a file, found by every worker, mistakes."""

import dataclasses
import sys
from pathlib import Path

import pytest

import qkv
from qkv import Arm, Design, Effect, Expected
from qkv.errors import ConfigError, RunFolderError
from qkv.extensions import load, look_in
from qkv.studies.engine import runner
from qkv.studies.engine.training import run_trial
from qkv.studies.own import of_design, read
from qkv.studies.question import Ask
from qkv.training.optimizers import own_class

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
FILE = """
question = "Is Lion better?"
source = "words.txt"
budget = { minutes = 600 }
steps = 10
seeds = 2
tokenizer = "char"
[base]
n_layers = 1
n_ctx = 16
batch_size = 4
d_model = 8
[arms.lion]
set = { "optimizer.kind" = "lion:Lion" }
[arms.cubic]
set = { "optimizer.kind" = "adamw", "model.kind" = "cubic:CubicLM" }
changes = ["W_E=freeze"]
what = "a cubic MLP"
[[effects]]
name = "gain"
of = "loss"
between = ["cubic", "lion"]
margin = 0.02
expected = { above = 0.0 }
[[effects]]
name = "wider rows"
of = "metrics:spread"
between = ["lion", "cubic"]
margin = 0.05
unit = "standard deviations"
"""


@pytest.fixture
def beside(tmp_path: Path, long_text: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, not the current one, with a study's file, its text and its modules."""
    folder = tmp_path / "studies"
    folder.mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", sys.path[:])
    (folder / "words.txt").write_bytes(long_text.read_bytes()[:100_000])
    (folder / "mine.toml").write_text(FILE)
    for module in EXAMPLES.glob("*.py"):
        (folder / module.name).write_text(module.read_text())
        monkeypatch.delitem(sys.modules, module.stem, raising=False)
    own_class.cache_clear()
    return folder


def design(folder: Path, **more) -> Design:
    look_in(folder)
    return Design(
        question="Is Lion better?",
        source=folder / "words.txt",
        minutes=600,
        steps=10,
        seeds=2,
        tokenizer="char",
        base={"n_layers": 1, "n_ctx": 16, "batch_size": 4, "d_model": 8},
        arms={
            "lion": Arm(set={"optimizer.kind": load("lion:Lion", "kind")}),  # type: ignore[dict-item]
            "cubic": Arm(
                set={"optimizer.kind": "adamw", "model.kind": "cubic:CubicLM"},
                changes=["W_E=freeze"], what="a cubic MLP",
            ),
        },
        effects=[
            Effect(name="gain", of="loss", between=("cubic", "lion"), margin=0.02, expected=Expected(above=0.0)),
            Effect(
                name="wider rows", of=load("metrics:spread", "of"), between=("lion", "cubic"), margin=0.05,  # type: ignore[arg-type]
                unit="standard deviations",
            ),
        ],
        **more,
    )  # fmt: skip


def test_a_design_is_what_its_file_says(beside: Path) -> None:
    by_file = read(beside / "mine.toml")
    by_python = of_design(design(beside, name="mine"))
    assert dataclasses.replace(by_python, path=by_file.path) == by_file and by_python.name == "mine"
    ask = Ask(source=by_file.source)
    assert by_python.design(ask, 10) == by_file.design(ask, 10)
    code = {arm.name: dict(arm.code) for arm in by_file.design(ask, 10).arms}
    assert set(code["lion"]) == {"lion:Lion", "metrics:spread"} and set(code["cubic"]) == {
        "cubic:CubicLM",
        "metrics:spread",
    }
    assert [arm.what for arm in by_file.arms] == ["optimizer lion:Lion", "a cubic MLP"]


def test_every_worker_finds_code_beside_the_file_and_measures_with_it(beside: Path) -> None:
    (beside / "mine.toml").write_text(FILE.replace("[base]", "[base]\noptimizer.lr = 0.01"))
    verdict = runner.run_study(str(beside / "mine.toml"), workers=2)
    assert verdict["seeds"] == 2 and verdict["trainings"] == 4
    assert [row["unit"] for row in verdict["contrasts"]] == ["nats per token", "standard deviations"]
    own = read(beside / "mine.toml")
    made = own.design(Ask(source=own.source), 10)
    trial = made.trial(made.arm("lion"), 1, 0, source=own.source, report=True)
    row = run_trial(trial, None)
    assert row["measures"]["metrics:spread"] > 0
    (beside / "lion.py").write_text((beside / "lion.py").read_text() + "\n# changed\n")
    with pytest.raises(RunFolderError, match="the arm 'lion' was trained with lion:Lion as of sha256"):
        run_trial(trial, None)
    assert read(beside / "mine.toml").design(Ask(source=own.source), 10).protocol != made.protocol


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("metrics:spread", "metrics:spreed", r"effects\[2\]: of is 'metrics:spreed', but unknown name in metrics"),
        ("metrics:spread", "nowhere:f", r"of is 'nowhere:f', but there is no nowhere.py"),
        ("metrics:spread", "lion:Lion", "of is 'lion:Lion', a type; expected a function of a finished training"),
        ("metrics:spread", "os.path:relpath2", "unknown name in os.path 'relpath2'"),
        ("metrics:spread", "os:getpid", r"os:getpid fails on a finished training: TypeError"),
        ("metrics:spread", "drift W_Q", "unit is for a function of your own; drift W_Q has its own"),
        ("lion:Lion", "lion:Lyon", r"mine.toml: .*unknown name in lion 'Lyon'; did you mean 'Lion'\?"),
    ],
)  # fmt: skip
def test_mistakes_are_said_before_anything_is_trained(beside: Path, old: str, new: str, said: str) -> None:
    (beside / "mine.toml").write_text(FILE.replace(old, new))
    with pytest.raises(ConfigError, match=said):
        runner.run_study(str(beside / "mine.toml"))
    assert not Path("runs").exists()


def test_a_design_without_a_budget_or_with_a_local_function_says_what_to_give(beside: Path) -> None:
    with pytest.raises(ConfigError, match="is-lion-better: budget is missing; give minutes=60"):
        qkv.study(dataclasses.replace(design(beside), minutes=0.0))
    local = Effect(name="x", of=lambda finished: 1.0, between=("lion", "cubic"), margin=1.0)
    with pytest.raises(ConfigError, match="other processes could not find"):
        qkv.study(dataclasses.replace(design(beside), effects=[local]))


def test_a_metric_that_fails_is_said_in_a_sentence(beside: Path) -> None:
    (beside / "metrics.py").write_text("def spread(finished):\n    return finished.nothing\n")
    with pytest.raises(ConfigError, match="metrics:spread fails on a finished training: AttributeError"):
        runner.run_study(str(beside / "mine.toml"))
