"""Say what this machine offers a training: versions, threads, precision, devices, and what is missing for what.

Example:
  qkv doctor
  qkv doctor --json
"""

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import tempfile
import timeit
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.commands.arguments import add_json
from qkv.commands.printing import screen
from qkv.installing import install
from qkv.jsontypes import JsonObject
from qkv.words import number

if TYPE_CHECKING:
    import torch

CORE = ("torch", "numpy", "tokenizers", "safetensors", "rich")
FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")
EXTRAS = {
    "study": (("scipy", "sklearn"), "run studies and see the baselines of classifiers"),
    "image": (("PIL",), "read image files"),
    "static": (("gensim",), "train skip-gram vectors"),
    "translate": (("sacrebleu",), "measure BLEU"),
    "table": (("pandas", "pyarrow"), "have a run's numbers as a table or a Parquet file"),
    "hub": (("datasets", "huggingface_hub"), "read texts and models named hf:NAME"),
    "cluster": (("ray",), "run studies on the machines of a Ray cluster"),
    "exits": (("onnx", "onnxscript", "onnxruntime"), "export models as ONNX and run them"),
    "notebook": (("anywidget",), "see the views live in a notebook"),
    "docs": (("zensical", "latex2mathml"), "build the documentation site"),
    "dev": (("pytest", "transformers", "playwright"), "run the tests"),
}
"""Extra -> what it brings, and what that is for."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    from qkv import __version__

    found: JsonObject = {
        "versions": {"qkv": __version__, "python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in CORE},
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": _processor(),
        **_computing(),
        "cache": _cache(),
        "extras": {
            extra: [name for name in names if importlib.util.find_spec(name) is None]
            for extra, (names, _) in EXTRAS.items()
        },
    }
    if args.json:
        return screen.print_json(found)
    speeds = ", ".join(f"{name} {number(speed)} GFLOP/s" for name, speed in found["product_gflops"].items())
    cache, processor = found["cache"], found["processor"]
    units = " ".join(processor["flags"]) or "no vector units reported"
    place = f"{cache['path']}: {'writable' if cache['writable'] else 'NOT writable'}, {cache['free_gb']:.0f} GB free"
    rows = [
        ("versions", ", ".join(f"{name} {version}" for name, version in found["versions"].items())),
        ("system", found["system"]),
        ("processor", f"{processor['name']}; {units}"),
        ("threads", f"{found['threads']} of {found['cores']} cores"),
        ("kernels", found["passes"]),
        ("precision", f"--precision auto chooses {found['precision']}; a 512 x 512 product: {speeds}"),
        ("devices", ", ".join(found["devices"])),
        ("cache", place),
    ]
    for name, missing in found["extras"].items():
        line = "complete" if not missing else f"missing {', '.join(missing)}; to {EXTRAS[name][1]}: {install(name)}"
        rows.append((f"extra {name}", line))
    for label, value in rows:
        print(f"{label:<10} {value}")


def _native(precision: str) -> str:
    """What compiled passes there are, and where products and attention are ours in a precision."""
    import torch

    from qkv.kernels import elementwise
    from qkv.training.precision import is_slower_natively, resolve

    machine = resolve("cpu", precision)
    if is_slower_natively(machine):
        return f"torch's own, which are as fast here in {precision} as the compiled ones"
    with elementwise.using(True):
        tiles = elementwise.tiles_for(torch.zeros(1, dtype=torch.bfloat16)) is not None
    kernels = dataclasses.asdict(machine.kernels) if machine.kernels else {}
    ours = [
        name if limit == elementwise.ANY_SIZE else f"{name} up to {limit:,}" for name, limit in kernels.items() if limit
    ]
    tiled = ", with tiles for bfloat16" if tiles else ""
    if not ours:
        return f"compiled on first use{tiled}; torch's products and attention are faster here in {precision}"
    return (
        f"compiled on first use{tiled}; faster than torch's in {precision}, by numbers in a matrix: {', '.join(ours)}"
    )


def _computing() -> JsonObject:
    """What torch sees here, and how fast it multiplies."""
    import torch

    from qkv import native
    from qkv.training.precision import resolve

    machine = resolve("auto", "auto", 0)
    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    with machine.active():
        speeds = {name: _gflops(getattr(torch, dtype)) for name, dtype in (("fp32", "float32"), ("bf16", "bfloat16"))}
    return {
        "threads": machine.threads,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "passes": f"torch's own ({why})" if (why := native.why_not("passes")) else _native(machine.precision),
        "precision": machine.precision,
        "product_gflops": speeds,
        "devices": [
            "cpu",
            *(f"cuda: {name}" for name in cuda),
            *(["mps"] if torch.backends.mps.is_available() else []),
        ],
    }


def _gflops(dtype: "torch.dtype") -> float:
    """Speed of a 512 x 512 product on the CPU: the best of five, after one that does not count."""
    import torch

    matrix = torch.ones(512, 512, dtype=dtype)
    seconds = timeit.repeat(lambda: torch.mm(matrix, matrix), repeat=6, number=1)
    return 2 * 512**3 / min(seconds[1:]) / 1e9


def _processor() -> JsonObject:
    """Its name, and which wide units the system reports."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {"name": platform.processor() or platform.machine(), "flags": []}
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = fields.get("flags", fields.get("Features", "")).split()
    return {"name": fields.get("model name", platform.machine()), "flags": [f for f in FLAGS if f in flags]}


def _cache() -> JsonObject:
    """Where fitted tokenizers, token files and baselines are kept, and whether they can be."""
    from qkv.api import cache_folder

    path = cache_folder()
    nearest = next(p for p in (path, *path.parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            writable = True
    except OSError:
        writable = False
    return {"path": str(path), "writable": writable, "free_gb": shutil.disk_usage(nearest).free / 1e9}
