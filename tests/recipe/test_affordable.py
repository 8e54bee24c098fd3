"""A share of the time buys looks: decided once, written down, and never decided again."""

import dataclasses
from pathlib import Path

import pytest

from qkv.config import load_toml
from qkv.errors import ConfigError
from qkv.instruments.schedule import KINDS, LEVELS, WatchConfig, share_of, watch_word
from qkv.recipe import Listening, Request, RunConfig, train
from qkv.recipe.affordable import LADDER, Costs, afford, with_affordable_watching
from qkv.recipe.build import assemble
from qkv.recipe.request import resolve
from qkv.telemetry import Telemetry


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A little language of repeated lines."""
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {i % 7} says {'abc'[i % 3] * (i % 5)}.\n" for i in range(1500)), encoding="utf-8")
    return path


SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 16, "batch_size": 4, "d_mlp": 32}
COSTS = Costs(update=0.1, looks=dict.fromkeys(KINDS, 0.004) | {"attention": 0.02, "matrix_spectra": 0.08})


def test_more_time_buys_a_denser_schedule_and_never_more_than_was_asked_for():
    shares = []
    for percent in (0.1, 0.5, 1, 2, 5, 10, 50, 100):
        watching, share = afford(percent, 1000, COSTS)
        assert share <= percent / 100 or watching == LADDER[0]
        shares.append(share)
    assert shares == sorted(shares) and len(set(shares)) >= 5


def test_each_rung_looks_at_least_as_often_as_the_one_below():
    for low, high in zip(LADDER, LADDER[1:], strict=False):
        for kind in KINDS:
            counts = [sum(rung.is_due(kind, step) for step in range(3000)) for rung in (low, high)]
            assert counts[0] <= counts[1], (kind, low, high)


def test_the_share_is_the_time_of_all_looks_over_that_of_all_updates():
    watching = WatchConfig(matrices=8, circuits=0, attention=64, head_spectra=0)
    looks = sum(watching.wants(step) for step in range(301))
    attention = sum(watching.is_due("attention", step) for step in range(301)) + 1  # and at the end
    assert COSTS.share(watching, 300) == pytest.approx((0.004 * looks + 0.02 * attention) / (300 * 0.1))


@pytest.mark.parametrize(("typed", "word"), [("2", "2%"), ("2%", "2%"), ("0.50%", "0.5%"), ("light", "light")])
def test_a_share_has_one_spelling(typed, word):
    assert watch_word(typed) == word


@pytest.mark.parametrize("typed", ["lite", "0", "-1%", "101%", "nan", ""])
def test_what_is_no_share_is_refused(typed):
    assert share_of(typed) is None
    with pytest.raises(ConfigError, match=r"expected off, light, full, or a share of the time such as 2%"):
        watch_word(typed)


def test_a_share_and_its_own_intervals_are_a_contradiction():
    for name in ("watching.attention", "per_doubling", "watching.per_doubling"):
        with pytest.raises(ConfigError, match="--watch 2% chooses the intervals"):
            Request(watch="2%", set={name: "8"})


def test_a_run_with_a_share_writes_its_schedule_down_and_trains_the_same_weights(text: Path, tmp_path: Path):
    said: list[str] = []
    weights = []
    for watch in ("off", "3%"):
        request = Request(source=str(text), steps=12, watch=watch, tokenizer="char", threads=1, set=SMALL, report=False)
        listening = Listening(say=said.append)
        out = train(request, out=tmp_path / watch.strip("%"), listening=listening, cache=tmp_path / "cache")
        weights.append((out / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    config = RunConfig.read(out / "config.toml")
    assert config.watch == "3%" and config.watching in LADDER
    assert set(load_toml(out / "config.toml")["watching"]) == {*KINDS, "per_doubling"}
    assert any(sentence.startswith("Watching for 3% of the time") for sentence in said)
    with Telemetry(out / "telemetry.sqlite") as telemetry:
        assert telemetry.fact("watch")["level"] == "3%"
        due = [step for step in range(13) if config.watching.wants(step)]
        assert set(due) <= set(telemetry.recorded_steps("norm").tolist())


def test_a_run_of_one_update_has_a_share_too(text: Path, tmp_path: Path):
    request = Request(source=str(text), steps=1, watch="3%", tokenizer="char", threads=1, set=SMALL, report=False)
    out = train(request, out=tmp_path / "one", listening=Listening(), cache=tmp_path / "cache")
    assert RunConfig.read(out / "config.toml").watching in LADDER


def test_levels_are_written_down_too(text: Path, tmp_path: Path):
    request = Request(source=str(text), steps=2, watch="full", tokenizer="char", threads=1, set=SMALL, report=False)
    out = train(request, out=tmp_path / "full", listening=Listening(), cache=tmp_path / "cache")
    assert RunConfig.read(out / "config.toml").watching == LEVELS["full"]


def test_what_is_afforded_is_planned_for_the_updates_that_will_be_made(text: Path, monkeypatch):
    config, corpus, _ = resolve(Request(source=str(text), tokenizer="char", minutes=5.0, watch="2%", set=SMALL), None)
    most = config.training.schedule.most_steps
    costs = dataclasses.replace(COSTS, update=0.01)
    monkeypatch.setattr("qkv.recipe.affordable.measure_costs", lambda *_, **__: costs)
    assert 0 < most < 60 * 5 / costs.update
    assert f"{most:,} updates" in with_affordable_watching(assemble(config, corpus))[1]
