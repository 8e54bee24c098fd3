"""Analogies and similarity: skip-gram on a text beside W_E of a causal and of a masked model of it, and GloVe.

    python tests/campaigns/analogies.py enwikinews/articles.jsonl.gz --questions google-analogies/questions-words.txt \
        --pairs wordsim353/EN-WS-353-ALL.txt --control glove-4k/glove50_4k.txt.gz --minutes 15

Each is asked twice: about the words that it has, and about the words that all of them have, where candidates are the
same for all. Coverage and chance stand beside every score. Tokens are words; the two models train for --minutes each,
the skip-gram for its usual five passes.
"""

import argparse
from pathlib import Path
from typing import Any

from command import fresh, machine, qkv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--control", type=Path)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=20_000)
    args = parser.parse_args()
    print(machine())
    folder = fresh()
    asked = {"skip-gram": folder / "skipgram.txt"}
    seconds, found = qkv("vectors", str(args.text), "--out", str(asked["skip-gram"]), "--epochs", str(args.epochs))
    print(f"skip-gram: {found['trained_words']:,} words in {seconds:.0f} s", flush=True)
    for task in ("causal", "masked"):
        asked[f"W_E, {task}"] = folder / task
        words = ["train", str(args.text), "--task", task, "--tokenizer", "word", "--vocab", str(args.vocab)]
        words += ["--minutes", str(args.minutes), "--no-report", "--out", str(folder / task)]
        seconds, found = qkv(*words)
        print(f"{task}: {found['val_loss']:.4f} nats after {found['tokens']:,} tokens, {seconds:.0f} s", flush=True)
    if args.control:
        asked["GloVe"] = args.control
    tests = ["--analogies", str(args.questions), "--similarity", str(args.pairs)]
    for name, what in asked.items():
        report(f"{name}, its own words", qkv("vectors", str(what), *tests)[1])
        others = [word for other in asked.values() if other != what for word in ("--among", str(other))]
        report(f"{name}, words of all", qkv("vectors", str(what), *tests, *others)[1])


def report(name: str, found: dict[str, Any]) -> None:
    """One line for each kind of question."""
    by = {section["name"]: section for section in found["analogies"]}
    whole, alike = by["all"], found["similarity"]
    scores = "none asked"
    if whole["n_asked"]:
        low, high = whole["add_interval"]
        scores = f"3CosAdd {whole['add']:.3f} ({low:.3f} to {high:.3f}), 3CosMul {whole['mul']:.3f}"
    print(
        f"{name}: {found['words']:,} words; {whole['n_asked']:,} of {whole['n_questions']:,} analogies, {scores},"
        f" chance {whole['chance']:.5f}; {alike['n_scored']} of {alike['n_pairs']} pairs, rank correlation"
        f" {_correlation(alike)}",
        flush=True,
    )


def _correlation(found: dict[str, Any]) -> str:
    if found["spearman"] is None:
        return "none"
    low, high = found["interval"]
    return f"{found['spearman']:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
