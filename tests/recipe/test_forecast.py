"""A plan counts what a training holds: storages as they live, states by their shapes, time by its updates."""

import dataclasses
import os
import sys
from pathlib import Path

import pytest
import torch

from qkv import api
from qkv.errors import ConfigError
from qkv.recipe import assemble, resolve
from qkv.recipe.forecast import Forecast, Place, _Count, _Living, _timed, forecast, resident_bytes
from qkv.recipe.request import Request
from qkv.recipe.teaching import STUDENT_COST

SIZES = {"d_model": 32, "n_layers": 2, "n_heads": 2, "n_ctx": 32, "batch_size": 8}


def planned(text: Path, *, nproc: int = 1, steps: int = 100, preset: str = "modern", shard: bool = False, **sizes):
    request = Request(
        preset=preset,
        source=str(text),
        tokenizer="char",
        steps=steps,
        precision="fp32",
        threads=1,
        nproc=nproc,
        shard=shard,
        set={**SIZES, **sizes},
    )
    config, corpus, _ = resolve(request, None)
    return config, corpus


def test_storages_are_counted_as_long_as_they_live() -> None:
    with _Living() as living:
        first = torch.zeros(1000)  # 4,000 bytes
        second = first.view(10, 100) * 2  # 4,000 more; the view takes none
        del first
        third = torch.zeros(100, dtype=torch.float64)  # 800, after 4,000 were let go
        assert living.most == 8000
        fourth = torch.zeros(1000)
        assert living.most == 8800
        del second, third, fourth
    assert living._now == 0


def test_states_are_those_of_the_training(small_text: Path) -> None:
    config, corpus = planned(small_text)
    parts, count = assemble(config, corpus), _Count.of(config, corpus)
    assert count.parameters == sum(4 * entry.parameter.numel() for entry in parts.catalogue) == count.gradients
    assert count.optimizer == sum(t.numel() * t.element_size() for t in parts.optimizer.state().values())


def test_what_is_kept_for_the_way_back_grows_with_examples_and_layers(small_text: Path) -> None:
    def passing(**sizes: int) -> int:
        count = _Count.of(*planned(small_text, **sizes))
        return count.passing - count.gradients

    one, two, four = (passing(batch_size=n) for n in (64, 128, 256))
    assert (four - two) == pytest.approx(2 * (two - one), rel=0.02)
    assert passing(batch_size=256, accumulate=4) == pytest.approx(one, rel=0.02)
    assert passing(n_layers=8, batch_size=256) > 1.5 * four
    half = _Count.of(*planned(small_text, nproc=2, batch_size=128))
    assert half.passing - half.gradients == pytest.approx(one, rel=0.02)


@pytest.mark.parametrize(
    ("n_ctx", "preset", "products"), [(32, "modern", 6), (512, "gpt2", 7)]
)  # with its pattern kept; fused, which makes the scores once more on the way back
def test_products_are_six_for_each_weight_and_position_and_those_of_attention(
    small_text: Path, n_ctx: int, preset: str, products: int
) -> None:
    config, corpus = planned(small_text, preset=preset, n_ctx=n_ctx)
    count, sizes = _Count.of(config, corpus), config.model.sizes
    matrices = [e for e in assemble(config, corpus).catalogue if e.parameter.ndim == 2]
    used = sum(e.parameter.numel() for e in matrices if e.kind not in ("W_E", "W_pos"))
    if config.model.layout.tied:
        used += sizes.d_vocab * sizes.d_model  # W_E is looked up, and is the output matrix too
    positions = 8 * n_ctx
    attention = 2 * products * sizes.n_layers * sizes.d_model * n_ctx * positions
    assert count.flop == pytest.approx(6 * used * positions + attention, rel=0.03)


def test_elsewhere_time_follows_from_what_is_given(small_text: Path) -> None:
    config, corpus = planned(small_text, nproc=4, steps=1000)
    place = Place(tflops=2.0, gigabytes_per_second=1.0)
    found = forecast(config, corpus, place=place)
    sums = 2 * 3 / 4 * 4 * found.parameters / 1e9
    assert found.sum_seconds == pytest.approx(sums)
    assert found.update_seconds == pytest.approx(found.flop / 4 / 2e12 + sums)
    assert found.updates == 1000 and found.seconds == pytest.approx(1000 * found.update_seconds)
    assert found.tokens == 1000 * 8 * 32 and found.rate == "given"


def test_teachers_are_counted_with_their_updates_their_memory_and_what_asking_them_costs(tmp_path: Path) -> None:
    table = tmp_path / "table.tsv"
    table.write_text("text\tlabel\n" + "".join(f"the cat {i} sat\t{i % 2}\n" for i in range(200)), encoding="utf-8")

    def found(**given: object) -> Forecast:
        request = Request(source=str(table), task="classify", threads=1, **given)  # type: ignore[arg-type]
        return forecast(*resolve(request, None)[:2], place=Place(tflops=1e-4))

    plain, taught = (found(steps=60, set={"teachers": n}) for n in (0, 3))
    assert plain.updates == 60 and taught.updates == 4 * 60 and taught.tokens == 4 * plain.tokens
    assert taught.seconds == pytest.approx((3 + STUDENT_COST) * plain.seconds) and not plain.note
    each = sum(plain.memory[name] for name in ("weights", "optimizer state"))
    assert taught.memory["teachers"] == 3 * each and "teachers" not in plain.memory
    assert "This includes 3 teachers, trained first with 60 updates each" in taught.note
    assert "takes about 3.5 times as long" in taught.note
    by_clock = found(minutes=0.05, set={"teachers": 3, "most_steps": 0})
    assert by_clock.seconds == pytest.approx(3, abs=4 * by_clock.update_seconds) and by_clock.updates % 4 == 0


def test_a_large_model_without_layers_can_be_timed(small_text: Path) -> None:
    config, _ = planned(small_text, n_layers=0, batch_size=64)
    timed, how = _timed(config, 1e12)
    assert timed.training.batch_size == 25 and how == "measured on 0 layers and 25 windows"


def test_memory_of_this_process_is_read_in_pages_of_this_machine_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    pages = iter(["1 1000 1", "1 1000 1"])
    monkeypatch.setattr(Path, "read_text", lambda self: next(pages))
    assert resident_bytes() == 1000 * page
    monkeypatch.setattr(os, "sysconf", lambda name: 4 * page)
    assert resident_bytes() == 4000 * page

    def missing(self: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert resident_bytes() > 1e7
    monkeypatch.setitem(sys.modules, "resource", None)
    assert resident_bytes() == 0


def test_a_plan_of_a_model_that_would_not_fit_here_takes_no_memory(small_text: Path) -> None:
    sizes = {"d_model": 8192, "n_layers": 80, "n_heads": 64, "n_ctx": 2048, "batch_size": 8}
    found = forecast(*planned(small_text, **sizes), place=Place(tflops=100.0))
    assert found.parameters > 40e9 and found.peak > 800e9
    assert found.memory["weights"] == 4 * found.parameters


@pytest.mark.parametrize(
    ("task", "preset", "precision"),
    [
        ("causal", "gpt2", "bf16"),
        ("causal", "textbook", "fp32"),
        ("masked", "bert", "bf16"),
        ("translate", "vaswani", "fp32"),
        ("classify", "modern", "bf16"),
    ],
)
def test_every_task_can_be_counted(
    task: str, preset: str, precision: str, small_text: Path, small_pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    source = str(small_text)
    if task == "translate":
        source = ":".join(map(str, small_pairs))
    elif task == "classify":
        lines = small_text.read_text(encoding="utf-8").splitlines()[:200]
        source = str(tmp_path / "labelled.tsv")
        Path(source).write_text("text\tlabel\n" + "".join(f"{x}\t{'king' in x}\n" for x in lines), encoding="utf-8")
    sizes = {name: value for name, value in SIZES.items() if name != "n_layers"}
    request = Request(source=source, task=task, preset=preset, steps=10, precision=precision, threads=1, set=sizes)
    found = forecast(*resolve(request, None)[:2], place=Place(tflops=1.0))
    assert found.flop > 6 * found.parameters and found.memory["activations and work"] > 0


def test_the_python_face_measures_here(small_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "cache_folder", lambda: tmp_path)
    found = api.plan(small_text, tokenizer="char", steps=10, precision="fp32", threads=1, set=SIZES)
    assert found.rate == "measured" and 0 < found.update_seconds < 5
    assert found.as_json()["peak_bytes"] == sum(found.memory.values())


def test_what_cannot_be_timed_here_for_lack_of_memory_is_told(small_text: Path) -> None:
    """Some 10^12 parameters, of which two layers are no machine's."""
    config, corpus = planned(small_text, n_layers=24, d_model=65536, n_heads=64)
    with pytest.raises(ConfigError, match=r"holds [\d,]{6,} GB in each process.*--tflops X"):
        forecast(config, corpus)


def test_a_sharded_plan_counts_shares_and_what_is_whole_meanwhile(small_text: Path) -> None:
    sizes = {"n_layers": 8, "d_model": 1024, "n_heads": 8, "optimizer.kind": "adamw"}  # where sharding pays
    place = Place(tflops=1.0, gigabytes_per_second=1.0)

    def found(nproc: int, shard: bool, watch: str = "off") -> Forecast:
        config, corpus = planned(small_text, nproc=nproc, shard=shard, **sizes)
        return forecast(dataclasses.replace(config, watch=watch), corpus, place=place)

    whole, two, four = found(4, False), found(2, True), found(4, True)
    weights = whole.memory["weights"]
    for shared, world in ((two, 2), (four, 4)):
        assert shared.memory["weights, its share"] == -(-weights // world)
        assert shared.memory["optimizer state, its share"] == -(-whole.memory["optimizer state"] // world)
    assert four.peak < two.peak < whole.peak
    assert found(4, True, "light").peak > four.peak + 5 * weights
    assert four.sum_seconds == pytest.approx(3 / 4 * 3 * weights / 1e9)  # gathered twice, scattered once
    assert whole.sum_seconds == pytest.approx(3 / 4 * 2 * weights / 1e9)


def test_blocks_of_a_sharded_plan_are_those_that_are_gathered(small_text: Path) -> None:
    config, corpus = planned(small_text, nproc=2, shard=True)
    count, catalogue = _Count.of(config, corpus), assemble(config, corpus).catalogue
    block = sum(4 * e.parameter.numel() for e in catalogue if e.layer == 0)
    assert count.block == block and count.outside == count.parameters - 2 * block
    hidden = [e for e in catalogue if e.site in ("attn", "mlp") and e.parameter.ndim == 2]
    assert count.muon == sum(4 * e.parameter.numel() for e in hidden)
    assert count.sent_shared(3) == 3 * (2 * count.parameters + count.gradients) + 2 * count.muon


def test_a_plan_of_one_process_that_shares_is_refused(small_text: Path) -> None:
    with pytest.raises(ConfigError, match="--shard shares weights out among processes, and this is one"):
        api.plan(small_text, tokenizer="char", steps=10, shard=True, set=SIZES)
    with pytest.raises(ConfigError, match="does not take --extend; plan as many updates: --steps 500"):
        api.plan(from_run="runs/a", extend=500)
