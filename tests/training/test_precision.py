"""The machine: words that mean something here, and what is set inside is put back."""

import dataclasses

import pytest
import torch

from qkv import native
from qkv.errors import ConfigError
from qkv.kernels import elementwise
from qkv.kernels.elementwise import Kernels
from qkv.training import calibration
from qkv.training.calibration import Choice
from qkv.training.precision import (
    Machine,
    check_compiler,
    check_native,
    has_bf16_units,
    is_slower_natively,
    resolve,
)


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


def test_a_compiler_that_does_not_work_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: object) -> object:
        def call(x: object) -> None:
            raise RuntimeError("No working C++ compiler found: (None, 'g++')\n\nSet TORCH_LOGS")

        return call

    check_compiler(Machine())
    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(ConfigError, match=r"No working C\+\+ compiler found: \(None, 'g\+\+'\)\); leave it out"):
        check_compiler(Machine(compile=True))


def test_native_passes_that_cannot_be_had_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "why_not", lambda name: "there is no C++ compiler here (g++, clang++)")
    check_native(Machine())
    check_native(Machine(native=True, compile=True))
    with pytest.raises(ConfigError, match=r"cannot be native here: there is no C\+\+ compiler here .*; leave it out"):
        check_native(Machine(native=True))


@pytest.mark.skipif(native.load("passes") is None, reason=native.why_not("passes"))
def test_passes_are_native_while_a_model_passes_and_not_where_torch_compiles() -> None:
    for machine, expected in (
        (Machine(), False),
        (Machine(native=True), True),
        (Machine(native=True, compile=True), False),
    ):
        with machine.passing():
            assert elementwise.is_compiled() is expected
        assert not elementwise.is_compiled()


@pytest.mark.skipif(native.load("vectors") is None, reason=native.why_not("vectors"))
def test_a_training_takes_the_kernels_that_were_measured_for_its_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {torch.float32: Choice(True, Kernels(keys=64)), torch.bfloat16: Choice(False, Kernels(product=32))}
    monkeypatch.setattr(calibration, "choice", found.get)
    machine = resolve(precision="fp32", threads=1)
    assert machine.native and machine.kernels == Kernels(keys=64)
    with machine.natively():
        assert elementwise.chosen(torch.zeros(1), torch.float32).limits == Kernels(keys=64)
    with dataclasses.replace(machine, kernels=None).natively():
        assert elementwise.chosen(torch.zeros(1), torch.float32).limits == elementwise.UNMEASURED[torch.float32]
    other = resolve(precision="bf16", threads=1)
    assert not other.native and other.kernels == Kernels(product=32)
    assert is_slower_natively(other) and not is_slower_natively(machine)
    compiled = resolve(precision="fp32", threads=1, compile=True)
    assert not compiled.native and compiled.kernels is None and not is_slower_natively(compiled)


def test_automatic_threads_are_torchs() -> None:
    assert resolve(device="cpu", precision="fp32").threads == torch.get_num_threads()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({}, "fp32"),
        ({"avx512_bf16": True, "cpu_name": "AMD EPYC"}, "bf16"),
        ({"avx512_bf16": True, "amx_bf16": False, "cpu_name": "Intel Xeon"}, "fp32"),
        ({"avx512_bf16": True, "amx_bf16": True, "cpu_name": "Intel Xeon"}, "bf16"),
        ({"avx512_bf16": False, "amx_bf16": False, "cpu_name": "AMD EPYC"}, "fp32"),
    ],
)
def test_the_processors_units_decide(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, object], expected: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert has_bf16_units() == (expected == "bf16")
    assert resolve(device="cpu").precision == expected


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
        with Machine(precision=words).passing():  # type: ignore[arg-type]
            assert (a @ a).dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[words]
