"""Read a Hugging Face folder (config.json, safetensors, tokenizer files) into a run folder that every command opens.

docs/families.md lists the types of models that are read. What a config asks for and cannot be had here is refused by
name; nothing is executed or unpickled, and nothing fetched unless you name hf:ORG/NAME. A LoRA adapter is merged into
the model that it names, or into --base.

--history reads a folder of step folders (step0, step1000, checkpoint-500, ...), or all revisions hf:ORG/NAME@step*, as
one run: a snapshot and the measures of every step. The same command continues an import that was killed.

Example:
  qkv import models/gpt2 --out runs/gpt2
  qkv import hf:openai-community/gpt2 --out runs/gpt2
  qkv import ~/.cache/huggingface/hub/models--gpt2/snapshots/607a30d --out runs/gpt2
  qkv import out/adapter --base models/llama --out runs/tuned
  qkv import out/checkpoints --history --out runs/history
  qkv import hf:EleutherAI/pythia-70m@step* --history --keep measures --text my.txt --out runs/pythia
"""

import argparse
import unicodedata
from typing import TYPE_CHECKING

from qkv.commands.arguments import add_json, one_of, option
from qkv.commands.printing import screen
from qkv.errors import UserError, typed
from qkv.words import many

if TYPE_CHECKING:
    from qkv.tokenizers.tokenizer import Tokenizer

_COMMON = 1000
"""Words at the beginning of a vocabulary among which an example is chosen."""


def configure(parser: argparse.ArgumentParser) -> None:
    option(parser, "folder DIR", "a folder with config.json and model.safetensors, or hf:ORG/NAME")
    option(parser, "--base DIR", "the model that a LoRA adapter in DIR is merged into")
    option(parser, "--out RUN", "the run folder to make", required=True)
    option(parser, "--history", "DIR holds one folder for each step of a training")
    parser.add_argument(
        "--keep", type=one_of("weights", "measures"), help="of each step: weights (default), or the measures alone"
    )
    option(parser, "--text FILE", "measure attention on this text at each step (--history)")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    import shlex
    from pathlib import Path

    from qkv import api
    from qkv.interop.card import what_it_reads

    notes: list[str] = []
    source = args.folder if args.folder.startswith("hf:") else Path(args.folder).expanduser()
    if args.history and args.base:
        raise UserError("--base is for one adapter, and --history reads whole models; leave one of them out")
    if args.history:
        given = {"keep": args.keep or "weights", "text": args.text or ""}
        made = api.import_history(source, args.out, say=notes.append, **given)
    elif args.keep or args.text:
        raise UserError(f"--{'keep' if args.keep else 'text'} is for a history of many steps; add --history")
    else:
        made = api.import_checkpoint(source, args.out, base=args.base or "", say=notes.append)
    sizes, n = made.config.model.sizes, made.summary["parameters"]
    if args.json:
        about = {"run": str(made.path), "task": made.task.name, "parameters": n, "notes": notes}
        return screen.print_json(about | {"family": made.folder.read_manifest()["imported"]["family"]})
    print(
        f"{args.folder}: {made.config.model.kind} with {n / 1e6:.2f}M parameters, {many(sizes.n_layers, 'layer')},"
        f" d_model {sizes.d_model}, {many(sizes.n_heads, 'head')}, {what_it_reads(made.config.model)}."
    )
    for note in notes:
        print(f"Note: {screen.shown(note)}.")
    folder = typed(made.path)
    print(f"The run is in {made.path}\n\nNext:  qkv show {folder}")
    if made.tokenizer is not None and (example := _example(made.task.prompt, made.tokenizer.of_source)):
        print(f"       qkv predict {folder} {shlex.quote(example)}")


def _example(prompt: str, tokenizer: "Tokenizer") -> str:
    """The task's example where its words are tokens of the model, else the longest of its commonest words.

    Ids go by how common a token is, more or less. A model of letters has no words: the example where it can spell that.
    Empty where there is nothing.
    """
    words = prompt.replace("[MASK]", "").split()
    if all(word in tokenizer.readable for word in words):
        return prompt
    tokens = [tokenizer.token(i) for i in range(tokenizer.d_vocab) if i not in tokenizer.special_ids]
    own = [t for t in tokens if _is_word(t.strip())]
    if tokenizer.kind not in ("word", "wordpiece", "char"):  # a piece that begins a word, and that none goes on with
        ordered = sorted(t for t in own if t[0] == " ")
        whole = {t for t, after in zip(ordered, [*ordered[1:], ""], strict=False) if not after.startswith(t)}
        own = [t for t in own if t in whole]
    if own:
        word = max(own[:_COMMON], key=len).strip()
        return f"{word} [MASK]" if "[MASK]" in prompt else word
    return prompt if tokenizer.is_lossless(prompt) else ""


def _is_word(text: str) -> bool:
    """Two letters or more, or one of a script without capitals, where it may be a word."""
    return text.isalpha() and (len(text) > 1 or unicodedata.category(text) == "Lo")
