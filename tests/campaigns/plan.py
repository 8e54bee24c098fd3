"""What `qkv plan` says beside what `qkv train` takes: peak memory and time of an update, over several configurations.

    python tests/campaigns/plan.py TEXT --page benchmarks/results.md

Each configuration is planned, then trained for some updates as a command of its own, instruments included; the peak is
the kernel's own count of resident memory. An update's time is the slope between two lengths of training without
instruments, so that starting and ending do not count. Baselines are made once before, for their counting takes memory
of its own. Exit status 1 where a peak is more than 10 % away.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from command import machine

CONFIGURATIONS = (
    ("d_model=768,n_layers=6,n_heads=12,n_ctx=128,batch_size=4", "bf16", "llama"),
    ("d_model=1024,n_layers=8,n_heads=16,n_ctx=128,batch_size=2", "fp32", "gpt2"),
    ("d_model=128,n_layers=4,n_heads=4,n_ctx=128,batch_size=64", "fp32", "modern"),
    ("d_model=256,n_layers=4,n_heads=4,n_ctx=256,batch_size=16", "fp32", "modern"),
    ("d_model=256,n_layers=4,n_heads=4,n_ctx=256,batch_size=16", "bf16", "modern"),
    ("d_model=256,n_layers=8,n_heads=4,n_ctx=256,batch_size=16,accumulate=4", "fp32", "modern"),
    ("d_model=512,n_layers=6,n_heads=8,n_ctx=256,batch_size=8", "fp32", "gpt2"),
)
SHORT, LONG = 2, 7
"""Updates; no checkpoint lies between them."""


def taken(words: list[str]) -> tuple[dict[str, Any], int]:
    """(what the command printed, its peak of resident memory in bytes)."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([sys.executable, "-m", "qkv", *words, "--json"], stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            sys.exit(f"qkv {' '.join(words)}: {err.read().decode()[-500:]}")
        return json.loads(out.read()), usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--page", type=Path, help="write the result there as well")
    parser.add_argument("--only", type=int, default=len(CONFIGURATIONS), help="the first so many configurations")
    args = parser.parse_args()
    rows, furthest, place = [], 0.0, Path(tempfile.mkdtemp(prefix="qkv-plan-"))
    try:
        for number, (sizes, precision, preset) in enumerate(CONFIGURATIONS[: args.only]):
            words = [str(args.text), "--tokenizer", "char", "--preset", preset, "--precision", precision]
            words += ["--threads", "1", "--set", f"{sizes},eval_every=1000"]
            if not number:
                taken(["train", *words, "--steps", "1", "--no-report", "--out", str(place / "warm")])
            planned, _ = taken(["plan", *words, "--steps", str(LONG)])
            train = ["train", *words, "--no-report"]
            _, peak = taken([*train, "--steps", str(LONG), "--out", str(place / f"{number}")])
            seconds = []
            for steps in (SHORT, LONG):
                out = str(place / f"{number}-{steps}")
                made, _ = taken([*train, "--watch", "off", "--steps", str(steps), "--out", out])
                seconds.append(made["train_seconds"])
            update = (seconds[1] - seconds[0]) / (LONG - SHORT)
            error = planned["peak_bytes"] / peak - 1
            furthest = max(furthest, abs(error))
            rows.append(
                f"| {preset} {precision} `{sizes}` | {planned['parameters'] / 1e6:.1f} M |"
                f" {planned['peak_bytes'] / 1e6:,.0f} | {peak / 1e6:,.0f} | {100 * error:+.1f} % |"
                f" {planned['update_seconds']:.3g} | {update:.3g} |"
            )
            print(rows[-1], flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    head = [f"# `qkv plan` against training, {datetime.date.today().isoformat()}", ""]
    head += [f"`python tests/campaigns/plan.py {args.text.name}` on {machine()}, one thread.", ""]
    head += ["| configuration | parameters | planned MB | measured MB | error | planned s | measured s |"]
    text = "\n".join([*head, "|---|---|---|---|---|---|---|", *rows, ""])
    print(f"the furthest peak is {100 * furthest:.1f} % away")
    if args.page:
        args.page.write_text(text)
    sys.exit(furthest > 0.1)


if __name__ == "__main__":
    main()
