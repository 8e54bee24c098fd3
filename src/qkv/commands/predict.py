"""Continue texts (a causal run), fill each [MASK] typed in them (masked), label them (a classifier), or translate them.

Texts come from the arguments, or one a line from stdin; then outputs stand alone, one behind another.

Example:
  qkv predict runs/my-1 "the cat sat"
  qkv predict runs/my-1 "the cat sat" --tokens 100 --temperature 0
  qkv predict runs/masked-1 "the [MASK] sat on the mat"
  qkv predict runs/reviews-1 "not a good film" "a fine one"
  qkv predict runs/de-en "Ein Mann schläft." --beams 8
  qkv predict runs/de-en < lines.de > lines.en
  qkv predict runs/reviews-1 "not a good film" --scores 3 --json
  qkv predict runs/reviews-1 "not a good film" --at-least 0.8
  qkv predict runs/names-1 "Ada Lovelace met Charles Babbage." --json
  qkv predict runs/facts-1 "Who met Babbage? [SEP] Ada Lovelace met Charles Babbage." --json
  qkv predict runs/qwen --chat "Who wrote Faust?"
"""

import argparse
import shlex
import sys
from typing import TYPE_CHECKING, cast

from qkv.commands.arguments import add_json, add_run, add_weights, at_least_zero, option, share, whole
from qkv.commands.printing import screen
from qkv.commands.texts import read_texts
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.run import Run
    from qkv.tasks import PredictOptions
    from qkv.tasks.task import Ranked


UNSURE = "(not sure)"
"""What is printed in the place of an answer that is not probable enough; with --json it is null."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    option(parser, "texts TEXT", "what to continue, fill, label or translate", nargs="*")
    option(parser, "--tokens N", "how many tokens to add (200)", whole())
    option(
        parser,
        "--temperature T",
        "0 always takes the most probable token (0.8 for continuations, else 0)",
        at_least_zero,
    )
    option(parser, "--top-k K", "sample among the K most probable tokens only", whole(0))
    option(parser, "--top-p P", "sample among the fewest tokens with this total probability", share)
    option(parser, "--beams N", "beam width of a translation (5); 1 is greedy", whole())
    option(parser, "--length-penalty A", "0 prefers short translations (1)", at_least_zero)
    option(
        parser,
        "--special",
        "special tokens spelled out in a text are read as special tokens; else they are letters",
        default=None,
    )
    option(
        parser,
        "--chat",
        "each text is what a person says to an imported chat model, in that model's own chat format; or a JSON"
        ' list of {"role", "content"}',
        default=None,
    )
    option(parser, "--scores K", "the K most probable answers, or next tokens, as well", whole())
    option(parser, "--at-least P", "no answer where the best one is less probable (classes)", share)
    option(parser, "--seed N", "the same seed gives the same outputs (0)", whole(0))
    add_weights(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    from qkv import api
    from qkv.tasks import PredictOptions

    loaded = api.load(args.run, weights=args.weights)
    names = ("tokens", "temperature", "top_k", "top_p", "seed", "beams", "length_penalty", "special", "chat")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    for name in (name for name in given if name not in loaded.task.predict_options):
        known = " or ".join(map(_option, loaded.task.predict_options)) or "no option"
        raise UserError(
            f"{_option(name)} has no meaning for a run of the task {loaded.task.name}, whose predictions go by {known};"
            " leave it out"
        )
    marks = screen.STANDS_OUT if loaded.task.marks and sys.stdout.isatty() and not args.json else ("", "")
    options = PredictOptions(**given, marks=marks)
    inputs = read_texts(args.texts, f"qkv predict {shlex.quote(args.run)}")
    texts = loaded.chat(inputs) if options.chat else inputs
    for sentence in loaded.too_long(texts, options):
        print(f"Note: {sentence}.", file=sys.stderr)
    outputs: list[str | None] = list(loaded.predict(texts, options))
    scores = loaded.scores(texts, args.scores, options) if args.scores else []
    if args.at_least:
        outputs = _sure(loaded, texts, options, args.at_least)
    if args.json:
        about = {"run": str(loaded.path), "task": loaded.task.name, "inputs": inputs, "outputs": outputs}
        spans = loaded.spans(texts)
        about |= {} if spans is None else {"spans": spans}
        return screen.print_json(about | ({"scores": scores} if args.scores else {}))
    alone = options.chat or not (args.texts or loaded.task.continues)
    for i, (text, output) in enumerate(zip(texts, outputs, strict=True)):
        output = UNSURE if output is None else output
        said = output if alone else loaded.task.shown(text, output)
        if marks[0]:
            print(screen.standing_out(said), file=screen.terminal(sys.stdout))
        else:
            print(screen.shown(said))
        _print_scores(scores[i] if scores else [])


def _sure(run: "Run", texts: list[str], options: "PredictOptions", at_least: float) -> list[str | None]:
    """The most probable class of each input, None where it is less probable. Raises UserError without classes."""
    if not (run.config.model.classes and run.task.picks):
        raise UserError(f"--at-least is for a run that answers with one class; the task {run.task.name} does not")
    best = [cast("Ranked", found)[0] for found in run.scores(texts, 1, options)]
    return [str(one["output"]) if float(one["probability"]) >= at_least else None for one in best]


def _print_scores(found: "Ranked | list[Ranked]", indent: str = "  ") -> None:
    """Answers and their probabilities under an output; of several [MASK] one list behind another."""
    for one in found:
        if isinstance(one, list):
            print(f"{indent}[MASK]")
            _print_scores(one, indent * 2)
        else:
            print(f"{indent}{one['probability']:6.1%}  {screen.token(str(one['output']))}")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
