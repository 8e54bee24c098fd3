"""Do the headlines of the default recipe hold for new default runs on texts that no study saw?

    python tests/campaigns/fresh_runs.py TEXT TEXT ... --out fresh.jsonl --steps 1000

One default `qkv train` for each text, with one thread, two at a time; then every headline that a run is compared with
(`qkv.inspection.answers.agreement.DEFAULT_CLAIMS`): its number here, the study's, and whether the run agrees. Every
line of --out is one training; what is there already is not trained again. The last lines are the share of agreeing
runs of each headline and of all, with a 95% Wilson interval over runs and headlines.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from qkv.api import load
from qkv.inspection.answers.agreement import checks
from qkv.inspection.answers.answer import Evidence
from qkv.inspection.stored_run import StoredRun
from qkv.tasks.evaluation import wilson
from qkv.telemetry import Telemetry

OF_THE_STUDY = ("n_layers=2", "d_model=128", "n_heads=4", "n_ctx=64", "batch_size=16")
"""Sizes of the models that the headlines were measured on."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="where results are kept, a line each")
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--steps", type=int, help="instead of --minutes; the study's size is the default then")
    parser.add_argument("--set", action="append", default=[], help="passed on to qkv train")
    args = parser.parse_args()
    lines = args.out.read_text("utf-8").splitlines() if args.out.exists() else []
    known = {row["text"]: row for row in map(json.loads, lines)}

    budget = ["--steps", str(args.steps)] if args.steps else ["--minutes", str(args.minutes)]
    sets = [*(OF_THE_STUDY if args.steps else ()), "threads=1", *args.set]

    def one(text: Path) -> None:
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(trained(text, budget, sets)) + "\n")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, [text for text in args.texts if text.name not in known]))
    print(table([json.loads(line) for line in args.out.read_text("utf-8").splitlines()]))


def trained(text: Path, budget: Sequence[str], settings: Sequence[str]) -> dict:
    """A default run on a text, and what it says of every headline."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        sets = [word for one in settings for word in ("--set", one)]
        command = [sys.executable, "-m", "qkv", "train", str(text), "--out", str(out), *budget, *sets]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
        run, stored = load(out, weights="last"), StoredRun.of(out)
        s, summary = run.config.model.sizes, run.summary
        with Telemetry(stored.folder.telemetry) as telemetry:
            found, counted = checks(Evidence(stored, telemetry)), telemetry.fact("baselines") or {}
        return {
            "text": text.name,
            "layers": s.n_layers, "d_model": s.d_model, "steps": summary["steps"],
            "loss": summary["val_loss"], "ngram": counted.get("ngram"),
            "headlines": {check.claim.words: [check.here, check.there, check.verdict] for check in found},
        }  # fmt: skip


def table(rows: list[dict]) -> str:
    """Runs, then headlines, as Markdown."""
    lines = ["| text | layers x d_model | steps | loss | best n-gram | agrees with |", "| --- " * 6 + "|"]
    for row in rows:
        compared = [verdict for _, _, verdict in row["headlines"].values() if verdict != "cannot be compared"]
        ngram = "–" if row["ngram"] is None else f"{row['ngram']:.2f}"
        size, agrees = f"{row['layers']} x {row['d_model']}", f"{compared.count('agrees')} of {len(compared)}"
        lines.append(f"| {row['text']} | {size} | {row['steps']} | {row['loss']:.2f} | {ngram} | {agrees} |")
    lines += ["", "| headline | in the study | median here | lowest | highest | agrees |", "| --- " * 6 + "|"]
    every: list[str] = []
    for words in rows[0]["headlines"]:
        read = [row["headlines"][words] for row in rows if row["headlines"][words][0] is not None]
        here, verdicts = sorted(number for number, _, _ in read), [verdict for _, _, verdict in read]
        every += verdicts
        median = f"{here[len(here) // 2]:.3g} | {here[0]:.3g} | {here[-1]:.3g}" if here else "– | – | –"
        there, agrees = rows[0]["headlines"][words][1], f"{verdicts.count('agrees')} of {len(verdicts)}"
        lines.append(f"| {words} | {there:.3g} | {median} | {agrees} |")
    agreeing, n = every.count("agrees"), len(every)
    low, high = wilson(agreeing / n, n)
    return "\n".join(
        [*lines, "", f"{agreeing} of {n} agree: {agreeing / n:.1%} (95% interval {low:.1%} to {high:.1%})"]
    )


if __name__ == "__main__":
    main()
