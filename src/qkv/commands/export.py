"""Write a run as a Hugging Face folder: config.json, safetensors, tokenizer files, a model card.

Where a class of transformers has the run's layout (GPT-2, Llama, BERT, ViT, Marian, ...), it loads it as it is; else a
small modelling file of ours lies beside the weights, and the command says so. Models without attention (an LSTM, a bag
of words) cannot be exported.

Example:
  qkv export runs/my-1 --out my-model
  qkv export runs/my-1 --out my-model --weights last
"""

import argparse

from qkv.commands.arguments import add_json, add_run, add_weights
from qkv.commands.printing import screen


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to make")
    add_weights(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Do it, print, and return the exit status."""
    from pathlib import Path

    from qkv import api

    loaded = api.load(args.run, weights=args.weights)
    fit = loaded.export(args.out)
    files = sorted(path.name for path in Path(args.out).iterdir())
    if args.json:
        about = {"run": str(loaded.path), "folder": args.out, "family": fit.family.name if fit.family else None}
        screen.print_json(about | {"why_not": fit.why_not, "files": files})
        return 0
    if fit.family is not None:
        print(f"{args.out} is a {fit.family.title}: {fit.auto}.from_pretrained({str(args.out)!r})")
    else:
        print(f"No class of transformers has this layout: {fit.why_not}.")
        print(f"modeling_qkv.py is next to the weights; {fit.auto} loads it with trust_remote_code=True.")
    print("Files: " + ", ".join(files))
    return 0
