"""When matrices are looked at: dense at first, never rare, and a pure function of the step."""

import pytest

from qkv.errors import ConfigError
from qkv.instruments.schedule import KINDS, LEVELS, WatchConfig, interval


def looks(config, n, kind="matrices"):
    return [step for step in range(n + 1) if config.is_due(kind, step)]


def test_a_short_run_gets_sixty_looks_and_a_long_one_not_many_more():
    light = LEVELS["light"]
    counts = {n: len(looks(light, n)) for n in (320, 1_000, 5_000, 100_000)}
    assert counts == {320: 61, 1_000: 88, 5_000: 124, 100_000: 193}  # the figures of the module's head


@pytest.mark.parametrize("level", ["light", "full"])
def test_the_first_steps_and_every_power_of_two_are_looked_at_by_all(level):
    config = LEVELS[level]
    assert all(config.is_due("matrices", step) for step in range(17))
    for power in (0, *(1 << i for i in range(20))):
        assert all(config.is_due(kind, power) for kind in ("matrices", "rows"))


def test_a_dear_look_begins_later_and_one_without_an_interval_is_never_taken():
    config = WatchConfig(matrices=64, circuits=32, attention=256, head_spectra=0)
    assert looks(config, 130, "circuits") == [0, 8, 16, 32, 64, 96, 128]
    assert looks(config, 800, "attention") == [0, 16, 64, 256, 512, 768]
    assert looks(config, 5000, "head_spectra") == looks(config, 5000, "matrix_spectra") == []
    assert [step for step in range(70) if config.wants(step)] == [0, 1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("level", ["light", "full"])
def test_a_dearer_look_is_only_taken_with_a_cheaper_one(level):
    config = LEVELS[level]
    for step in range(5000):
        assert config.is_due("matrices", step) == config.wants(step)


def test_looks_come_at_least_every_eight_updates_up_to_256_and_every_sixteen_up_to_512():
    steps = looks(LEVELS["light"], 1024)
    assert max(b - a for a, b in zip(steps, steps[1:], strict=False) if b <= 256) == 8
    assert max(b - a for a, b in zip(steps, steps[1:], strict=False) if b <= 512) == 16
    full = LEVELS["full"]
    assert looks(full, 1000, "head_spectra")[-56:] == list(range(112, 1000, 16)), "the full set, every sixteen"
    assert sum(len(looks(LEVELS["light"], 300, kind)) for kind in KINDS[1:]) < 30
    assert interval(1 << 20) == 1 << 16


def test_an_interval_that_is_no_power_of_two_is_refused():
    with pytest.raises(ConfigError, match="watching.attention is 12; expected 0 or a power of two"):
        WatchConfig(attention=12)
    with pytest.raises(ConfigError, match="watching.per_doubling is 0; expected a power of two"):
        WatchConfig(per_doubling=0)
