"""Settings are checked where they are made."""

import pytest

from qkv.config import dump_toml, from_dict, to_dict
from qkv.errors import ConfigError
from qkv.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: OptimizerConfig(lr=0.0), "optimizer.lr"),
        (lambda: OptimizerConfig(beta2=1.0), "optimizer.beta2"),
        (lambda: OptimizerConfig(weight_decay=-0.1), "optimizer.weight_decay"),
        (lambda: OptimizerConfig(lr=float("nan")), "optimizer.lr"),
        (lambda: ScheduleConfig(decay_share=1.5), "schedule.decay_share"),
        (lambda: ScheduleConfig(steps=-1), "schedule.steps"),
        (lambda: TrainingConfig(batch_size=4, accumulate=5), "training.accumulate"),
        (lambda: TrainingConfig(until_loss=-1.0), "training.until_loss"),
    ],
)
def test_a_value_out_of_range_is_named(make: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()  # type: ignore[operator]


def test_the_configuration_survives_toml() -> None:
    import tomllib

    config = TrainingConfig(batch_size=7, optimizer=OptimizerConfig(kind="sgd", lr=1e-5), until_loss=1.88)
    assert from_dict(TrainingConfig, tomllib.loads(dump_toml(to_dict(config)))) == config


def test_reading_a_configuration_does_not_load_torch() -> None:
    import subprocess
    import sys

    script = (
        "import sys, qkv.training.config, qkv.training.record, qkv.folder.run_folder; print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"
