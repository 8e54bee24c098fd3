"""BLEU of an encoder-decoder within a time budget, over seeds, beside the source copied and words one by one.

    python tests/campaigns/translate.py train.de:train.en val.de:val.en --minutes 29 --seeds 3

Default settings; the whole command takes so many minutes. BLEU is sacrebleu's (13a, cased) on all validation pairs with
the beams of `qkv eval`, on the best weights by validation loss (chosen on the same pairs) and on the last.
"""

import argparse

from command import fresh, machine, qkv, spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("val")
    parser.add_argument("--minutes", type=float, default=29.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="passed on")
    args = parser.parse_args()
    print(machine(), flush=True)
    best, last = [], []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        out = str(fresh() / "run")
        words = ["train", args.train, "--task", "translate", "--val", args.val, "--minutes", str(args.minutes)]
        more = [word for value in args.set for word in ("--set", value)]
        seconds, found = qkv(*words, "--seed", str(seed), *more, "--out", out)
        for weights, kept in (("best", best), ("last", last)):
            kept.append(qkv("eval", out, "--weights", weights)[1]["bleu"])
        low, high = found["bleu_interval"]
        print(
            f"seed {seed}: BLEU {best[-1]:.2f} ({low:.2f} to {high:.2f}), last {last[-1]:.2f};"
            f" {found['val_loss']:.4f} nats a target token at step {found['best_step']} of {found['steps']};"
            f" {seconds:.0f} s in all",
            flush=True,
        )
    print(f"{found['parameters']:,} parameters; BLEU of the best weights: {spread(best)}; of the last: {spread(last)}")
    print(f"baselines {found['baselines']}")


if __name__ == "__main__":
    main()
