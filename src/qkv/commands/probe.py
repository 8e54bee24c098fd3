"""Linear probes: how much of some labels can be read off a run's vectors, layer by layer, next to a control task.

FILE holds labels of words (.conllu, .conll: a word and its label on each line, an empty line between sentences) or of
texts (a table, or lines of a label, a space and a text). A probe learns from four fifths of the texts and is judged on
the rest. The control gives each word a random label: a probe that does as well there has memorized words.

Example:
  qkv probe runs/my-1 en-ud-dev.conllu
  qkv probe runs/my-1 en-ud-dev.conllu --label-column deprel
  qkv probe runs/my-1 reviews.tsv --json
  qkv probe runs/my-1 reviews.tsv --at 0
"""

import argparse
from typing import TYPE_CHECKING

from qkv.commands.arguments import Joined, a_source, add_json, add_run, add_weights, option, whole
from qkv.commands.printing import screen
from qkv.words import percent

if TYPE_CHECKING:
    from qkv.inspection.probes.linear import Probes


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    option(parser, "source FILE", "labeled words or labeled texts", a_source)
    option(parser, "--label-column NAME", "the column that holds the labels (CoNLL-U: upos)")
    option(parser, "--text-column NAME", "the column of a table that holds the texts", action=Joined)
    option(parser, "--at STEP", "the weights of this step, if they were kept", whole(0))
    add_weights(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    from qkv import api

    loaded = api.load(args.run, weights=args.weights)
    columns = {"text_column": args.text_column, "label_column": args.label_column}
    found = loaded.probe(args.source, at=args.at, **columns)
    of_words = found.by_word is not None
    if args.json:
        about = {"run": str(loaded.path), "file": str(args.source), "labels": "tokens" if of_words else "texts"}
        rest = {name: value for name, value in vars(found).items() if name != "layers"}
        return screen.print_json(about | rest | {"layers": [layer._asdict() for layer in found.layers]})
    rows = [
        (one.layer, percent(one.accuracy), f"{percent(one.low)} to {percent(one.high)}", percent(one.control),
         percent(one.selectivity))
        for one in found.layers
    ]  # fmt: skip
    screen.print_table(["layer", "accuracy", "95% interval", "control", "selectivity"], rows)
    print(_compared(found))


def _compared(found: "Probes") -> str:
    """What needs no vectors, and how many labels there were."""
    usual = "" if found.by_word is None else f", the most frequent label of each word {percent(found.by_word)}"
    return (
        f"\nThe most frequent label has {percent(found.majority)}{usual}. {len(found.classes)} labels; the probes"
        f" learned from {found.n_train:,} and were judged on {found.n_test:,}, in other texts."
    )
