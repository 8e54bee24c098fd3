"""The machine: words that mean something here, and what is set inside is put back."""

import pytest
import torch

from qkv.errors import ConfigError
from qkv.training import precision
from qkv.training.precision import Machine, bf16_is_faster, resolve


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"device": "tpu"}, "device"),
        ({"precision": "fp8"}, "precision"),
        ({"threads": -1}, "threads"),
    ],
)
def test_an_unknown_word_is_named(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(**given)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="no cuda device"):
        resolve(device="cuda")


def test_automatic_threads_are_torchs() -> None:
    assert resolve(device="cpu", precision="fp32").threads == torch.get_num_threads()


def test_a_processor_without_bf16_units_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False, raising=False)
    assert not bf16_is_faster(1)
    assert resolve(device="cpu").precision == "fp32"


@pytest.mark.parametrize(("fp32", "expected"), [(2.0, True), (1.1, False)])
def test_with_units_the_timing_decides(monkeypatch: pytest.MonkeyPatch, fp32: float, expected: bool) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    monkeypatch.setattr(precision, "_seconds", lambda dtype: fp32 if dtype is torch.float32 else 1.0)
    assert bf16_is_faster(1) is expected


def test_settings_hold_inside_and_are_put_back() -> None:
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with pytest.raises(KeyError), Machine(threads=before[0] + 1).active():
        assert torch.get_num_threads() == before[0] + 1
        assert torch.are_deterministic_algorithms_enabled()
        raise KeyError
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before


def test_bf16_products_are_bf16_and_fp32_ones_are_not() -> None:
    a = torch.ones(2, 2)
    for words in ("fp32", "bf16"):
        with Machine(precision=words).autocast():  # type: ignore[arg-type]
            assert (a @ a).dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[words]
