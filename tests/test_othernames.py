"""Names of other programs lead to ours, wherever they are typed."""

from pathlib import Path

import pytest

from qkv import api, cli
from qkv.commands import COMMANDS as ours_to_type
from qkv.config import field_paths, override
from qkv.errors import ConfigError
from qkv.models.layout import Sizes
from qkv.othernames import ours, theirs
from qkv.recipe.config import RunConfig
from qkv.recipe.request import setting_named

OPTIONS = {
    option.lstrip("-").replace("-", "_")
    for command in ("train", "predict")
    for option in cli.command_parser(command)._option_string_actions
}
THEIRS, COMMANDS = theirs()["settings"] | theirs()["options"], theirs()["commands"]
LEAVES = {path.rpartition(".")[2] for path in field_paths(RunConfig)}


def test_commands_of_others_lead_to_ours(capsys) -> None:
    words = [word for row in COMMANDS.values() for word in row.split()]
    assert len(words) == len(set(words)) and not set(words) & ours_to_type.keys()
    assert ours_to_type.keys() >= COMMANDS.keys()
    for typed, said in (("generate", "'predict'"), ("Fine-Tune", "'train'"), ("from_hf", "'import'")):
        assert cli.main([typed, "x"]) == 2
        assert f"unknown command {typed!r}; here it is {said}\n" in capsys.readouterr().err
    assert cli.main(["tarin"]) == 2
    assert "unknown command 'tarin'; did you mean 'train'" in capsys.readouterr().err


@pytest.mark.parametrize("name", THEIRS)
def test_each_name_here_is_a_setting_an_option_or_the_source(name: str) -> None:
    assert setting_named(name) or name in OPTIONS or name == "source"


def test_no_other_name_is_one_of_ours_or_has_two_meanings() -> None:
    words = [word for row in THEIRS.values() for word in row.split()]
    assert len(words) == len(set(words)) and not set(words) & (LEAVES | OPTIONS | THEIRS.keys())


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--lr 3", "--lr is a setting; give it as --set lr=3. Type"),
        ("--d-model=64", "--d-model is a setting; give it as --set d_model=64. Type"),
        ("--n_embd 64", "--n_embd is a setting; give it as --set d_model=64. Type"),
        ("--learning-rate", "--learning-rate is a setting; give it as --set lr=VALUE. Type"),
        ("--block_size --json", "--block_size is a setting; give it as --set n_ctx=VALUE. Type"),
        ("--optimizer sgd", "--optimizer is a setting; give it as --set optimizer.kind=sgd. Type"),
        ("--max_iters 5", "unknown option '--max_iters'; here it is '--steps'. Type"),
        ("--vocab_size=5", "unknown option '--vocab_size'; here it is '--vocab'. Type"),
        ("--dtype x", "unknown option '--dtype'; here it is '--precision'. Type"),
        ("--gpu", "unknown option '--gpu'; here it is '--device'. Type"),
        ("--epochs 3", "unknown option '--epochs'; there are no epochs here; give a number of updates (steps) or of"),
        ("--data x", "unknown option '--data'; what to train on is named first, without an option. Type"),
        ("--kind x", "unknown option '--kind'; did you mean"),
        ("--stepz 3", "unknown option '--stepz'; did you mean '--steps'"),
        ("--set n_embd=64", "unknown setting 'n_embd'; here it is 'd_model'"),
        ("--set optimizer=sgd", "unknown setting 'optimizer'; here it is 'training.optimizer.kind'"),
        ("--set lr_rate=3", "unknown setting 'lr_rate'; did you mean 'lr'?"),
        ("--set num_train_epochs=3", "unknown setting 'num_train_epochs'; there are no epochs here"),
    ],
)
def test_what_is_said_of_an_option_of_a_training(typed: str, said: str, small_text: Path, capsys) -> None:
    for command in ("train", "plan"):
        assert cli.main([command, str(small_text), *typed.split()]) == 2
        assert capsys.readouterr().err.startswith(f"qkv: {said}")


def test_what_is_said_of_an_option_of_a_prediction(capsys) -> None:
    for typed, said in (
        ("--max_new_tokens 5", "'--max_new_tokens'; here it is '--tokens'"),
        ("--topk=5", "'--topk'; here it is '--top-k'"),
        ("--prompt hello", "'--prompt'; a text is given as it is, without an option"),
    ):
        assert cli.main(["predict", "run", *typed.split()]) == 2
        assert f"qkv: unknown option {said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lr": 0.1}, r"lr is a setting; give it as set=\{'lr': 0.1\}"),
        ({"n_embd": 64}, r"n_embd is a setting; give it as set=\{'d_model': 64\}"),
        ({"max_iters": 5}, "unknown option of qkv.train 'max_iters'; here it is 'steps'"),
        ({"dataset": "x"}, "unknown option of qkv.train 'dataset'; what to train on is named first"),
        ({"precison": "fp32"}, "unknown option of qkv.train 'precison'; did you mean 'precision'"),
    ],
)
def test_what_is_said_in_python(given: dict, said: str, small_text: Path) -> None:
    for call in (api.train, api.plan):
        with pytest.raises(ConfigError, match=said):
            call(small_text, **given)


def test_a_name_that_nobody_uses_is_told_the_nearest() -> None:
    assert ours("--N-Head") == "n_heads" and ours("d_model") == "d_model" and ours("nonsense") == "nonsense"
    with pytest.raises(ConfigError, match="unknown setting 'n_ctxt'; did you mean 'n_ctx'"):
        override(Sizes(d_vocab=5, d_model=4, n_layers=1, n_heads=1, n_ctx=8), {"n_ctxt": 3})
