"""Train a model on a text, and write a run folder: weights, telemetry, and a report of what training did.

SOURCE is a text file (.gz or .zst too), a folder of texts, or a JSONL, CSV, TSV or Parquet table (--text-column).
Without it the text is the manual topics and docstrings inside your own Python. In a folder, files or folders named
train, valid (val, dev) and test are used as their names say, and the test is left alone. With --task classify,
multilabel or regress SOURCE is a table with a label column, or lines of a label, a space and a text; with --task tag a
CoNLL-U file, or JSONL whose rows list spans of their text; with --task answer a table with a question, a text and an
answer from it; with --task image an IDX file of images, or a folder that holds a folder of images for each class; with
--task translate two files of equally many lines, LEFT:RIGHT.
Without a budget (--steps, --minutes, --until-loss) one is chosen from the data and this machine, at most 5 minutes.

Example:
  qkv train
  qkv train my.txt --minutes 3
  qkv train reviews.tsv --task classify --label-column stars --val more.tsv
  qkv train en.conllu --task tag --label-column xpos
  qkv train pairs.tsv --task classify --text-column premise --text-column hypothesis
  qkv train reviews.tsv --task classify --from runs/masked-1 --only head
  qkv train my.txt --preset textbook --freeze W_E --out runs/frozen
  qkv train train.de:train.en --task translate --val val.de:val.en
  qkv train my.txt --until-loss 1.9 --set d_model=128,n_layers=4
  qkv train fashion-mnist --task image --set flip=true
  qkv train --out runs/frozen --resume
  qkv train --from runs/my-1 --extend 2000 --out runs/longer
  qkv train my.txt --nproc 4 --threads 2
  qkv train my.txt --nproc 4 --shard --watch off
  torchrun --nproc-per-node 4 -m qkv train my.txt
"""

import argparse
import time
from pathlib import Path
from typing import Any

from qkv.commands import processes
from qkv.commands.arguments import (
    Joined,
    a_run,
    a_source,
    add_json,
    one_of,
    option,
    positive,
    split_changes,
    usually,
    whole,
)
from qkv.commands.arguments import settings as read_settings
from qkv.config import load_toml
from qkv.errors import QkvError
from qkv.training.distributed.started import is_first_process, is_started


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options; one that is not given stays None, so that the library's own default is the only one."""
    place = describe(parser)
    option(place, "--out RUN", "the run folder (runs/<source>-<n>); it must not exist yet")
    option(place, "--extend STEPS", "with --from: train that finished run so many updates longer", whole())
    option(place, "--resume", "continue the run in --out, exactly", default=None)
    option(
        place,
        "--on-spike WORD",
        "what to do if the loss jumps and stays up: stop (default), rollback or ignore; may differ with --resume",
        one_of("stop", "rollback", "ignore"),
    )
    option(
        place,
        "--log NAME",
        "also send telemetry to tensorboard, wandb or trackio",
        usually("tensorboard", "wandb", "trackio"),
    )
    place.add_argument(
        "--report",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="with --no-report, no report.html is written and no random-label control is trained to"
        " compare drifts with; may differ with --resume",
    )
    add_json(place)


def describe(parser: argparse.ArgumentParser) -> "argparse._ArgumentGroup":
    """Declare what describes a training, whether it is made or planned; returns the group of where and how."""
    option(parser, "source SOURCE", "the text to train on", a_source, nargs="?")
    _describe_model(parser)
    _describe_text(parser)
    budget = parser.add_argument_group("how long")
    option(budget, "--steps N", "updates of the weights", whole())
    option(budget, "--minutes M", "wall-clock time of the whole command", positive)
    option(budget, "--until-loss X", "stop at this validation loss, in nats per token", positive)
    return _describe_place(parser)


def _describe_model(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to train")
    option(
        what,
        "--task NAME",
        "causal (predict the next token, the default), masked (fill [MASK]), classify (label texts), multilabel"
        " (any number of labels), regress (numbers), tag (label words), answer (find the answer to a question in a"
        " text), image (classify images) or translate (SOURCE is LEFT:RIGHT)",
        usually("causal", "masked", "classify", "multilabel", "regress", "tag", "answer", "image", "translate"),
    )
    option(
        what,
        "--preset NAME",
        "modern (the default; image: fast, translate: shared), fast, shared, gpt2, bert, llama, vaswani, textbook"
        " or bloem; without attention: lstm or bag",
        usually("modern", "fast", "shared", "gpt2", "bert", "llama", "vaswani", "textbook", "bloem", "lstm", "bag"),
    )
    option(what, "--from RUN", "start from the weights of this run", a_run, dest="from_run")
    option(what, "--set PATH=VALUE", "a setting of config.toml, e.g. d_model=128", action="append")
    option(what, "--parameters N", "approximate number of parameters, set by the width of the model", whole())
    option(what, "--change SEL=OP", "what to do to matrices: 'L0.W_Q=identity@0..100'", action="append")
    option(what, "--freeze SEL", "matrices that keep their initial values, e.g. W_E or 'L*.W_[QK]'", action="append")
    option(what, "--only SEL", "train these matrices and freeze all others", action="append")
    option(what, "--seed N", "seed of every random draw: initialization, batches, dropout (1)", whole(0))


def _describe_text(parser: argparse.ArgumentParser) -> None:
    text = parser.add_argument_group("the text")
    option(text, "--val FILE", "validate on this text instead of a part of SOURCE", a_source)
    option(
        text,
        "--tokenizer KIND",
        "char, byte, word, bpe (the default; masked: wordpiece, classify: word, multilabel: word, regress: word,"
        " tag: word, answer: word), wordpiece, unigram, or a file or folder",
        usually("char", "byte", "word", "bpe", "wordpiece", "unigram"),
    )
    option(text, "--vocab N", "vocabulary size of a fitted tokenizer", whole(2))
    option(
        text,
        "--text-column NAME",
        "the column of a table that holds the text (classify: or several, A,B or the option again)",
        action=Joined,
    )
    option(text, "--label-column NAME", "the column that holds the label (classify, tag)")
    option(text, "--group-column NAME", "rows with the same value stay on one side of the split (classify)")


def _describe_place(parser: argparse.ArgumentParser) -> "argparse._ArgumentGroup":
    place = parser.add_argument_group("where and how")
    option(
        place,
        "--watch LEVEL",
        "what is measured: off, light (the default), full, or a share of the time, such as 2%%",
        usually("off", "light", "full"),
    )
    option(place, "--device NAME", "cpu, cuda or mps", usually("cpu", "cuda", "mps"))
    option(place, "--precision NAME", "auto, fp32 or bf16", usually("auto", "fp32", "bf16"))
    option(place, "--threads N", "processor threads of each process", whole())
    option(
        place,
        "--nproc N",
        "processes that share each batch (1); the result equals that of one process up to rounding;"
        " may differ with --resume",
        whole(),
    )
    place.add_argument(
        "--shard",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="with --nproc: also split weights, gradients and optimizer state among the processes (FSDP2);"
        " may differ with --resume",
    )
    return place


def options(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `qkv.train` that were typed."""
    apart = ("source", "json", "typed", "receipt")
    given = {name: value for name, value in vars(args).items() if value is not None and name not in apart}
    if args.set:
        given["set"] = read_settings(args.set)
    if args.change:
        given["change"] = split_changes(args.change)
    return given


def _n_processes(args: argparse.Namespace) -> int:
    """What was typed; of a run that is resumed without it, what its config.toml says."""
    if args.nproc is not None or not (args.resume and args.out):
        return args.nproc or 1
    try:
        return int(load_toml(Path(args.out) / "config.toml").get("machine", {}).get("ranks", 1))
    except (OSError, QkvError, AttributeError, TypeError, ValueError):
        return 1  # what is wrong with it is said where it is read


def run(args: argparse.Namespace) -> int:
    started = time.monotonic()
    given = options(args)
    n = _n_processes(args)
    if n > 1 and not is_started():
        return processes.launch(args.typed, n)
    processes.end_with_starter()
    from qkv import api
    from qkv.commands.printing import outcome, progress, screen

    if not is_first_process():
        api.train(args.source or "", started=started, **given)
        return 0
    with progress.display() as display:
        trained = api.train(args.source or "", progress=display, say=display.say, started=started, **given)
    if args.json:
        screen.print_json({**trained.summary, "receipt": trained.receipt})
    else:
        outcome.print_outcome(trained)
    return int(trained.summary.get("stopped_because") == "diverged")
