"""The compiled kernels under AddressSanitizer and UndefinedBehaviorSanitizer: the tests of the kernels, and a training.

    python tests/campaigns/sanitize.py

`$CXX` names a script that adds the sanitizers to every compilation, the cache is an empty folder, and the libraries are
preloaded. The first report ends a process. Exit status 1 if there was one. Linux, g++.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from command import machine

ROOT = Path(__file__).parents[2]
WRAPPER = """#!/bin/sh
exec g++ "$@" -fsanitize={kinds} -fno-sanitize-recover=all -fno-omit-frame-pointer -g
"""
KINDS = {"address": ("address", "libasan.so"), "undefined": ("undefined", "libubsan.so")}
TRAIN = "import sys; from qkv import native; from qkv.cli import main; status = main(sys.argv[1:]); " \
        "assert native.load('passes') is not None and native.load('vectors') is not None; sys.exit(status)"  # fmt: skip


def environment(place: Path, kinds: str, library: str) -> dict[str, str]:
    """Of a process whose kernels are compiled with sanitizers."""
    wrapper = place / "g++-sanitized"
    wrapper.write_text(WRAPPER.format(kinds=kinds))
    wrapper.chmod(0o700)
    found = subprocess.run(["g++", f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    return {
        **os.environ,
        "CXX": str(wrapper),
        "XDG_CACHE_HOME": str(place / "cache"),
        "LD_PRELOAD": found.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0",  # Python keeps much until it ends
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "OMP_WAIT_POLICY": "passive",
    }


def main() -> None:
    """Run both sanitizers and print what came."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if not shutil.which("g++"):
        sys.exit("needs g++")
    failed = False
    for name, (kinds, library) in KINDS.items():
        with tempfile.TemporaryDirectory(prefix="qkv-sanitize-") as folder:
            place = Path(folder)
            text = place / "text.txt"
            text.write_text("the king and the queen sat on the mat again today\n" * 2000)
            sizes = "d_model=128,n_layers=2,n_heads=2,n_ctx=64,batch_size=8"
            words = ["train", str(text), "--steps", "6", "--set", sizes, "--out", str(place / "run"), "--threads", "2"]
            for what, command in (
                ("tests/kernels", ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", "tests/kernels"]),
                ("a training", ["-c", TRAIN, *words]),
            ):
                done = subprocess.run(
                    [sys.executable, *command], cwd=ROOT, env=environment(place, kinds, library),
                    capture_output=True, text=True, timeout=3000,
                )  # fmt: skip
                last = (done.stdout.strip().splitlines() or [""])[-1]
                print(f"{machine()}; {name}, {what}: exit status {done.returncode}; {last}", flush=True)
                if done.returncode:
                    failed = True
                    print(done.stdout[-1500:], done.stderr[-3000:], sep="\n", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
