"""Accuracy of a classifier within a time budget, over seeds, beside TF-IDF with logistic regression on the same texts.

    python tests/campaigns/classify.py sst2/train.tsv sst2/dev.tsv --minutes 10 --seeds 3
    python tests/campaigns/classify.py sst2/train.tsv sst2/dev.tsv --pretrain sst2/train.tsv,wikitext-2/train.txt \
        --pretrain-minutes 40 --minutes 6

With --pretrain a masked model is trained first on the texts of those files (tables and JSON lines give their text,
without labels), and every seed starts from it, once fine-tuned and once with the body held. Lines that stand in the
validation table are left out of pretraining, and how many were is said. Accuracies are those of the best weights by
validation loss. Fine-tuned, the matrices that the labels moved furthest are named.
"""

import argparse
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

from command import fresh, machine, qkv, spread

WAYS = "from scratch", "fine-tuned", "body held"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("val", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pretrain", help="files, commas between")
    parser.add_argument("--pretrain-minutes", type=float, default=40)
    parser.add_argument("--pretrain-set", action="append", default=[], help="passed on to the pretraining as --set")
    parser.add_argument("--set", action="append", default=[], help="passed on to the classifiers")
    parser.add_argument("--only", action="append", choices=WAYS, help="this way alone; may be given more than once")
    args = parser.parse_args()
    if args.only and args.only != [WAYS[0]] and not args.pretrain:
        parser.error(f"--only {args.only[-1]!r} needs a body; add --pretrain FILE,FILE")
    print(machine())
    folder, ways = fresh(), {"from scratch": []}
    if args.pretrain:
        text = folder / "pretraining.txt"
        print(gather([Path(name) for name in args.pretrain.split(",")], args.val, text))
        words = ["--task", "masked", "--minutes", str(args.pretrain_minutes), "--out", str(folder / "masked")]
        taken, masked = qkv("train", str(text), *words, *_set(args.pretrain_set))
        print(
            f"masked pretraining: {masked['val_loss']:.4f} nats per hidden token, {masked['parameters']:,} parameters,"
            f" {masked['tokens']:,} tokens, {taken:.0f} s in all",
            flush=True,
        )
        start = ["--from", str(folder / "masked")]
        ways |= {
            "fine-tuned": start,
            "body held": [*start, "--only", "head", "--set", "lr=0.02", "--set", "dropout=0.1"],
        }
    for name, more in ways.items():
        if args.only and name not in args.only:
            continue
        figures, seconds = [], []
        for seed in range(1, args.seeds + 1):
            words = ["--task", "classify", "--val", str(args.val), "--minutes", str(args.minutes), "--seed", str(seed)]
            out = folder / f"{name.split()[0]}-{seed}"
            taken, found = qkv("train", str(args.train), *words, *more, *_set(args.set), "--out", str(out))
            figures.append(found["accuracy"])
            seconds.append(taken)
            low, high = found["accuracy_interval"]
            print(
                f"{name}, seed {seed}: accuracy {found['accuracy']:.4f} ({low:.4f} to {high:.4f}),"
                f" {found['val_loss']:.4f} nats at step {found['best_step']} of {found['steps']}, {taken:.0f} s in all",
                flush=True,
            )
        mean = sum(figures) / len(figures)
        print(f"{name}: mean {mean:.4f}, {spread(figures)}, seconds {spread(seconds)}; baselines {found['baselines']}")
        if name == "fine-tuned":
            print(moved(out))


def _set(values: list[str]) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def gather(sources: list[Path], val: Path, out: Path) -> str:
    """Write the texts of all sources into one file, one a line; a sentence that says what was left out."""
    held_out, n, left_out = {text.strip() for text in texts(val)}, 0, 0
    with out.open("w", encoding="utf-8") as file:
        for source in sources:
            for text in texts(source):
                for line in text.splitlines():
                    if line.strip() in held_out:
                        left_out += 1
                    elif line.strip():
                        file.write(line.strip() + "\n")
                        n += 1
    return f"pretraining text: {n:,} lines; {left_out} that stand in {val.name} left out"


def texts(path: Path) -> Iterator[str]:
    """The texts of a table (first column), of JSON lines ("text"), or of a plain text line by line."""
    kind = Path(path.name.removesuffix(".gz")).suffix
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            if kind == ".jsonl":
                yield json.loads(line)["text"]
            elif kind == ".tsv":
                if number:
                    yield line.split("\t")[0]
            else:
                yield line


def moved(run: Path) -> str:
    """How far each kind of matrix went from where pretraining left it, as a share of its size, furthest first."""
    from qkv import api

    ends = {
        address: float(series.value[-1])
        for address, series in api.load(run).history("**", "drift").items()
        if address.startswith("W_") or re.fullmatch(r"L\d+\.W_\w+", address)
    }
    order = sorted(ends.items(), key=lambda item: -item[1])
    return "the labels moved " + ", ".join(f"{address} {drift:.3f}" for address, drift in order[:12])


if __name__ == "__main__":
    main()
