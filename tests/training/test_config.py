"""Settings are checked where they are made."""

import pytest

from qkv.config import dump_toml, from_dict, load_toml, to_dict
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


def test_what_could_not_be_read_back_is_not_written(tmp_path) -> None:
    names, path = [f"a class of thirty characters {i:07}" for i in range(36_000)], tmp_path / "a.toml"
    for many in (names, ["." * 201]):
        with pytest.raises(ConfigError, match=r"(bytes|parts); expected fewer or shorter names of classes"):
            dump_toml({"model": {"classes": many}})
    path.write_text(dump_toml({"model": {"classes": names[:9000]}}), encoding="utf-8-sig")
    assert load_toml(path)["model"]["classes"] == names[:9000]
    path.write_text("a = 1\n" * 200_000)
    with pytest.raises(ConfigError, match="it has more than 1,048,576 bytes"):
        load_toml(path)


def test_reading_a_configuration_does_not_load_torch() -> None:
    import subprocess
    import sys

    script = (
        "import sys, qkv.training.config, qkv.training.record, qkv.folder.run_folder; print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"
