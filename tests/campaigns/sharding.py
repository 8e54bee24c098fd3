"""What each process of a training holds at most, with whole weights and with weights that are shared out.

    python tests/campaigns/sharding.py TEXT --nproc 2 --parameters 30000000

Prints the peak resident memory of every process and tokens per second of the loop, `--watch off`, and what `qkv plan`
says of the first process, which holds most. Exit status 1 where that is more than 10 % away. Linux only.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from command import fresh, machine


def peaks(parent: int) -> dict[int, int]:
    """Rank -> peak resident bytes of each process that `parent` started."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"PPid:\t{parent}\n" in (status := (entry / "status").read_text()):
                rank = next(v[5:] for v in (entry / "environ").read_bytes().split(b"\0") if v.startswith(b"RANK="))
                found[int(rank)] = 1024 * int(status.partition("VmHWM:")[2].split()[0])
        except (OSError, StopIteration, ValueError, IndexError):
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--parameters", type=int, default=30_000_000)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--sizes", default="n_layers=8,n_ctx=64,batch_size=8")
    parser.add_argument("--kind", default="adamw")
    args = parser.parse_args()
    print(machine())
    place, furthest = fresh(), 0.0
    for name, how in (("whole", []), ("shared out", ["--shard"])):
        words = [str(args.text), "--tokenizer", "char", "--threads", "1"]
        words += ["--parameters", str(args.parameters), "--set", f"{args.sizes},optimizer.kind={args.kind}"]
        words += ["--steps", str(args.steps), "--watch", "off", "--precision", "fp32", "--json"]
        words += ["--nproc", str(args.nproc), *how]
        qkv = [sys.executable, "-m", "qkv"]
        asked = subprocess.run([*qkv, "plan", *words, "--tflops", "1"], capture_output=True, text=True)
        if asked.returncode:
            sys.exit(asked.stderr)
        train = [*qkv, "train", *words, "--no-report", "--out", str(place / name.replace(" ", "-"))]
        process = subprocess.Popen(train, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        most: dict[int, int] = {}
        while process.poll() is None:
            most |= peaks(process.pid)
            time.sleep(0.02)
        out, err = process.communicate()
        if process.returncode:
            sys.exit(err)
        each = ", ".join(f"{most[rank] / 1e6:,.0f}" for rank in sorted(most))
        speed = out.partition('"tokens_per_second": ')[2].partition(",")[0]
        planned = json.loads(asked.stdout)["peak_bytes"]
        error = planned / max(most.values()) - 1
        furthest = max(furthest, abs(error))
        print(f"{name}: {each} MB by rank, {speed} tokens/s; planned {planned / 1e6:,.0f} MB, {100 * error:+.1f} %")
    sys.exit(furthest > 0.1)


if __name__ == "__main__":
    main()
