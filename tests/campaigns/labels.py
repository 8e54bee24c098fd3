"""Accuracy of classifiers on texts that nobody tuned on, minus that of scikit-learn's TF-IDF and logistic regression.

    QKV_DATA=/data python tests/campaigns/labels.py --out labels.jsonl --minutes 2 --seeds 5
    QKV_DATA=/data python tests/campaigns/labels.py --out labels.jsonl --sets sst2-sentences --sizes 500,2000 --seeds 1

Every line of --out is one training with which test texts it and the linear model got right; what is there already is
not trained again, so the same command goes on where it was stopped. The table has a row for each set and size: mean
accuracies over seeds, their difference with a 95% interval over test texts (each text's mean over the seeds, paired),
its range over seeds, and the calibration error, with what chance alone gives on so few texts. A seed draws
the training rows too, so sets of one size differ.

Sets, made of the files of $QKV_DATA: SST-2 sentences and phrases (test: its dev set); the speaker of a passage of
tinyshakespeare, among the six who speak most; whether two neighboring words of a sentence of WikiText-2 were swapped;
whether a Wikinews article is of the older half.
"""

import argparse
import gzip
import json
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from command import fresh, machine, qkv

Rows = list[tuple[str, str]]
"""(text, label)."""
_TEST = 2000
MISSES = ("calibration", "chance")
"""The calibration error, and what chance alone gives on as many texts of exact probabilities."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where results are kept, a line each")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--sizes", default="500,2000,8000,all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--set", action="append", default=[], help="passed on to qkv train")
    args = parser.parse_args()
    print(machine())
    for name in args.sets.split(","):
        train, test = SETS[name](Path(os.environ["QKV_DATA"]))
        for size in args.sizes.split(","):
            n = len(train) if size == "all" else int(size)
            if n > len(train):
                continue
            for seed in range(1, args.seeds + 1):
                key = {"set": name, "n": n, "seed": seed, "minutes": args.minutes, "options": args.set}
                if not any(done.items() >= key.items() for done in results(args.out)):
                    order = np.random.default_rng(seed).permutation(len(train))[:n]
                    found = key | measured([train[i] for i in order], test, key)
                    with args.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(found) + "\n")
    print(table(results(args.out)))


def results(path: Path) -> list[dict]:
    """The trainings that were made."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measured(train: Rows, test: Rows, key: dict) -> dict:
    """Which test texts a training and the linear model get right, as strings of 0 and 1."""
    folder = fresh()
    paths = {"train": train, "test": test}
    for name, rows in paths.items():
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["--task", "classify", "--seed", str(key["seed"]), "--minutes", str(key["minutes"]), "--no-report"]
    words += [word for value in key["options"] for word in ("--set", value)]
    run = str(folder / "run")
    seconds, made = qkv("train", str(folder / "train.jsonl"), *words, "--out", run)
    _, judged = qkv("eval", run, str(folder / "test.jsonl"))
    from qkv import api

    answers = api.load(run).predict([text for text, _ in test])
    return {
        "seconds": seconds,
        "stated": made["accuracy"],
        "share": made.get("attention_share"),
        "calibration": judged.get("calibration_error"),
        "chance": judged.get("calibration_by_chance"),
        "ours": "".join(str(int(a == label)) for a, (_, label) in zip(answers, test, strict=True)),
        "linear": "".join(str(int(right)) for right in counted(train, test)),
    }


def counted(train: Rows, test: Rows) -> list[bool]:
    """What scikit-learn gets right: words and pairs of words, its own defaults otherwise."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(max_iter=1000))
    model.fit([text for text, _ in train], [label for _, label in train])
    answers = model.predict([text for text, _ in test])
    return [bool(answer == label) for answer, (_, label) in zip(answers, test, strict=True)]


def table(found: list[dict]) -> str:
    """A row for each set, size and way of training."""
    rows = [
        "set                     n  seeds   ours  linear  difference (95%)            over seeds        "
        "calibration error (by chance)"
    ]
    keys = dict.fromkeys((f["set"], f["n"], f["minutes"], tuple(f["options"])) for f in found)
    for key in keys:
        mine = [f for f in found if (f["set"], f["n"], f["minutes"], tuple(f["options"])) == key]
        ours, linear = (np.array([list(map(int, f[who])) for f in mine]) for who in ("ours", "linear"))
        each = (ours - linear).mean(0)
        reach = 1.96 * each.std(ddof=1) / np.sqrt(len(each))
        seeds = (ours - linear).mean(1)
        off, chance = (np.mean([f[name] for f in mine if f[name] is not None] or [np.nan]) for name in MISSES)
        rows.append(
            f"{key[0]:18} {key[1]:6,} {len(mine):6} {ours.mean():6.1%} {linear.mean():7.1%}  {each.mean():+.3f}"
            f" ({each.mean() - reach:+.3f} to {each.mean() + reach:+.3f})  {seeds.min():+.3f} to {seeds.max():+.3f}"
            f"  {off:.3f} ({chance:.3f})  {' '.join(key[3])}"
        )
    return "\n".join(rows)


def sst2(train: str) -> Callable[[Path], tuple[Rows, Rows]]:
    """SST-2 by the file that is trained on; the test is its dev set."""

    def rows(folder: Path) -> tuple[Rows, Rows]:
        return _labelled(folder / "sst2" / train), _labelled(folder / "sst2" / "dev.tsv")

    return rows


def _labelled(path: Path) -> Rows:
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".tsv":
        return [tuple(line.rsplit("\t", 1)) for line in lines[1:]]  # type: ignore[misc]
    return [(text, label) for label, text in (line.split(" ", 1) for line in lines)]


def speakers(folder: Path) -> tuple[Rows, Rows]:
    """Passages of the six who speak most."""
    found = re.findall(r"(?m)^([A-Z][A-Za-z ]+):\n((?:.+\n?)+)", (folder / "tinyshakespeare/input.txt").read_text())
    who = {name for name, _ in Counter(name for name, _ in found).most_common(6)}
    return _split([(" ".join(text.split()), name) for name, text in found if name in who])


def swapped(folder: Path) -> tuple[Rows, Rows]:
    """Sentences of 6 to 25 words, in half of which two neighboring words were swapped."""
    draws, rows = np.random.default_rng(0), []
    for line in (folder / "wikitext-2/train.txt").read_text(encoding="utf-8").splitlines():
        for sentence in line.split(" . "):
            words = sentence.split()
            if not 6 <= len(words) <= 25 or "=" in words:
                continue
            if swap := bool(draws.integers(2)):
                at = int(draws.integers(len(words) - 1))
                words[at], words[at + 1] = words[at + 1], words[at]
            rows.append((" ".join(words), "swapped" if swap else "plain"))
    return _split(rows)


def older(folder: Path) -> tuple[Rows, Rows]:
    """Wikinews articles, cut at 60 words, by the half of the numbers that theirs is in."""
    with gzip.open(folder / "enwikinews/articles.jsonl.gz", "rt", encoding="utf-8") as file:
        read = [json.loads(line) for line in file]
    articles = [(int(one["id"]), " ".join(one["text"].split()[:60])) for one in read if one["text"].strip()]
    middle = np.median([number for number, _ in articles])
    return _split([(text, "older" if number < middle else "newer") for number, text in articles])


def _split(rows: Rows) -> tuple[Rows, Rows]:
    """Training rows, and a fifth of all rows, at most 2,000, as test rows that none of them equals."""
    order = np.random.default_rng(1).permutation(len(rows))
    n = min(_TEST, len(rows) // 5)
    test = [rows[i] for i in order[-n:]]
    known = {text for text, _ in test}
    return [rows[i] for i in order[:-n] if rows[i][0] not in known], test


SETS: dict[str, Callable[[Path], tuple[Rows, Rows]]] = {
    "sst2-sentences": sst2("sentences.train.txt"),
    "sst2-phrases": sst2("train.tsv"),
    "speakers": speakers,
    "swapped-words": swapped,
    "older-news": older,
}

if __name__ == "__main__":
    main()
