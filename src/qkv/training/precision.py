"""Where and how numbers are computed: device, precision, threads, compiled or not; chosen once and then written down.

`resolve` alone chooses; the recipe stores the result in `config.toml`, and a resumed run reads it from there. Within
`Machine.active` results are bit-reproducible: the same build of torch, processor type, threads, precision, compile
mode, native passes and kernels give the same bits.
"""

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeVar

import torch

from qkv import native
from qkv.errors import ConfigError
from qkv.kernels import elementwise
from qkv.kernels.elementwise import Kernels
from qkv.training import calibration
from qkv.training.memory import hand_back_freed_memory, keep_freed_memory

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a training runs on. Raises ConfigError for a value out of range."""

    device: Literal["cpu", "cuda", "mps"] = "cpu"
    """Where tensors live."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of products; weights, optimizer state and log-softmax are float32 either way."""
    threads: int = 1
    """Threads inside one operation on the CPU."""
    native: bool = False
    """Whether passes between products are our compiled C++, where a compiler is (`kernels.elementwise`; on a CPU)."""
    kernels: Kernels | None = None
    """The largest sizes for which native products and attention are used, measured once on each machine
    (`training.calibration`). None, in older runs: fixed limits."""
    compile: bool = False
    """Whether the loss is compiled by `torch.compile`."""
    capture: bool = True
    """Whether an update is recorded once and played again: on a CUDA device, and where passes are native."""
    ranks: int = 1
    """Processes that share each batch; `threads` are those of each."""
    shard: bool = False
    """Whether these processes share out weights, gradients and optimizer state as well, each holding its rows."""

    def __post_init__(self) -> None:
        for name in ("threads", "ranks"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected 1 or more")

    @property
    def dtype(self) -> torch.dtype:
        """Of products."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    @property
    def captures(self) -> bool:
        """Whether updates can be recorded here."""
        return self.capture and self.ranks == 1 and (self.device == "cuda" or self.passes_natively)

    @property
    def passes_natively(self) -> bool:
        """Whether passes are to be native: a loss that torch compiles, and another device, have their own."""
        return self.native and self.device == "cpu" and not self.compile

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """This many threads and deterministic algorithms inside; what was set before, after.

        On a CPU, freed memory is kept for the next step from here on, or handed back under `shard` (see `memory`).
        """
        if self.device == "cpu":
            hand_back_freed_memory() if self.shard and self.ranks > 1 else keep_freed_memory()
        threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
        fills: Any = torch.utils.deterministic
        fill = fills.fill_uninitialized_memory
        if self.device == "cuda":  # read by cuBLAS at its first use; without it its results may vary
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if self.compile:  # tells the compiler as well, and costs seconds to import it
            torch.use_deterministic_algorithms(True)
        try:
            torch.set_num_threads(self.threads)
            torch.set_deterministic_debug_mode("error")
            fills.fill_uninitialized_memory = False  # costs time, and nothing here reads it
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_deterministic_debug_mode(mode)
            fills.fill_uninitialized_memory = fill

    def natively(self) -> contextlib.AbstractContextManager[None]:
        """What an update is made in, and anything else that is to be native where passes are."""
        return elementwise.using(self.passes_natively, self.kernels, self.dtype)

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """What the model passes forward in: its products in bfloat16 or not, the rest natively or not."""
        with contextlib.ExitStack() as held:
            if self.precision == "bf16":
                held.enter_context(torch.autocast(self.device, dtype=torch.bfloat16))
            held.enter_context(self.natively())
            yield

    def compiled(self, function: Callable[P, T]) -> Callable[P, T]:
        """`function`, compiled where this machine compiles; without autotuning, so that results can be repeated.

        Only where a gradient follows: a graph without one takes its own half minute to compile, and scores little.
        """
        if not self.compile:
            return function
        fast = torch.compile(function)
        return lambda *given, **named: (fast if torch.is_grad_enabled() else function)(*given, **named)


def resolve(
    device: str = "auto", precision: str = "auto", threads: int = 0, compile: bool = False, ranks: int = 1
) -> Machine:
    """The machine that these words mean here.

    device: auto (cuda where there is one, else cpu), cpu, cuda or mps. precision: auto (bf16 on CUDA, and on a CPU with
    units for it; else fp32), fp32 or bf16. threads: 0 is what torch would use, shared out among `ranks` processes.
    Passes are native on a CPU if they can be compiled and are faster, which is measured once on each machine.

    Raises ConfigError for a word that is none of these, or a device that is not there.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    check_device(device, "--device cpu always works")
    if precision not in ("auto", "fp32", "bf16"):
        raise ConfigError(f"precision is {precision!r}; expected auto, fp32 or bf16")
    if threads < 0:
        raise ConfigError(f"threads is {threads}; expected 0 (automatic) or more")
    threads = threads or max(1, torch.get_num_threads() // ranks)
    if precision == "auto":
        fast = device == "cuda" and torch.cuda.is_bf16_supported()
        precision = "bf16" if fast or (device == "cpu" and has_bf16_units()) else "fp32"
    chosen = {"device": device, "precision": precision, "threads": threads, "compile": compile, "ranks": ranks}
    machine = Machine(**chosen)  # type: ignore[arg-type]
    return dataclasses.replace(machine, native=native_here(machine), kernels=kernels_here(machine))


def native_here(machine: Machine) -> bool:
    """Whether such a training uses native passes on this machine by default."""
    found = _measured(machine)
    return found is not None and found.native


def kernels_here(machine: Machine) -> Kernels | None:
    """The limits of native kernels for such a training on this machine; None if it cannot use native passes at all."""
    found = _measured(machine)
    if found is None:
        return Kernels() if machine.device == "cpu" and not machine.compile else None
    return found.kernels


def is_slower_natively(machine: Machine) -> bool:
    """Whether native passes could be compiled for such a training on this machine, but would make it slower."""
    found = _measured(machine)
    return found is not None and not found.native


def _measured(machine: Machine) -> calibration.Choice | None:
    """What was measured on this machine; None if native passes cannot be used."""
    if machine.device != "cpu" or machine.compile:
        return None
    return calibration.choice(machine.dtype)


def check_device(device: str, instead: str) -> None:
    """Make sure that a device is here. Raises ConfigError, which ends with what can be done `instead`."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device not in there:
        raise ConfigError(f"device is {device!r}; expected auto, {', '.join(there)}")
    if not there[device]:
        raise ConfigError(f"there is no {device} device here; {instead}")


def check_compiler(machine: Machine) -> None:
    """Make sure that what shall be compiled can be. Raises ConfigError with what the compiler said."""
    if not machine.compile:
        return
    try:
        with warnings.catch_warnings(action="ignore"):
            machine.compiled(lambda x: x.exp() + 1)(torch.ones(2, device=machine.device))
    except Exception as error:  # of torch, of the compiler that it starts, or of the files that this one needs
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"machine.compile is true, but nothing can be compiled here ({said}); leave it out") from None


def check_native(machine: Machine) -> None:
    """Make sure that native passes can be had where they are asked for. Raises ConfigError with the reason."""
    if machine.passes_natively and (why := native.why_not("passes")):
        raise ConfigError(f"machine.native is true, but passes cannot be native here: {why}; leave it out")


def has_bf16_units() -> bool:
    """Whether this CPU multiplies bfloat16 faster than float32: it has AMX units, or AVX-512-BF16 and is not Intel's.

    Without units bfloat16 is emulated and slower. Intel's AVX-512-BF16 alone (a virtual machine that hides AMX, say) is
    no faster either: one thread multiplies at about half of its float32 speed there, where AMD's reaches twice that
    (benchmarks/2026-11-25-xeon-2.md). A timing would decide otherwise on a busy moment, and the same command would then
    give other numbers.
    """
    has = getattr(torch.cpu, "get_capabilities", dict)()
    intel = str(has.get("cpu_name", "")).startswith("Intel")
    return bool(has.get("amx_bf16") or (has.get("avx512_bf16") and not intel))
