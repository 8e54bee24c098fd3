"""Answer a question about what training does, by experiment, on your own text: a verdict with an interval.

Without a name it lists the questions. Every arm's learning rate is tuned in every replicate (not with --quick), arms
pair by seed and slice of the text, and the design is written down before the first training. A study that was stopped
goes on where it was, with the same command; more --seeds add to the trainings that are there. Results
lie in runs/study-NAME-...

Example:
  qkv study
  qkv study frozen-embeddings --quick
  qkv study which-matrix my.txt --seeds 8 --minutes 150
  qkv study what-is-trained my.txt --quick --json
  qkv study which-matrix my.txt --on ray
  qkv study my-question.toml --minutes 60
  qkv study frozen-embeddings my.txt --ladder --minutes 480
"""

import argparse
import json
import re
import sys
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.commands.arguments import add_json, at_least_zero, option, positive, usually, whole
from qkv.commands.printing import screen
from qkv.extensions import added
from qkv.jsontypes import JsonMapping
from qkv.words import many

if TYPE_CHECKING:
    from qkv.studies.engine.runner import Made

_QUESTIONS = Path(__file__).parent.parent / "studies" / "questions"
_SECONDS = 5.0
"""Between two lines of progress."""


def configure(parser: argparse.ArgumentParser) -> None:
    option(
        parser,
        "name NAME",
        "the question, or a FILE.toml of your own; without it they are listed",
        usually(*_names()),
        nargs="?",
    )
    option(
        parser,
        "source SOURCE",
        "the text; without it, the one inside your Python (words-or-pixels takes TEXT:IMAGES too, and"
        " static-or-contextual TEXT:VECTORS)",
        nargs="?",
    )
    option(parser, "--quick", "3 minutes, at known learning rates; says first what it can see")
    option(parser, "--ladder", "the main effect over sizes and lengths of training, with a trend")
    option(parser, "--sizes LIST", "sizes of --ladder, d_model x layers: 64x1,64x2,64x4 varies the depth alone", _sizes)
    option(parser, "--seeds N", "paired replicates, each tuned by itself", whole(1))
    option(
        parser,
        "--minutes M",
        "wall time (150, with --quick 3); refused where it is too little for the main question",
        positive,
    )
    option(parser, "--margin X", "largest effect that would not matter, in the study's unit", at_least_zero)
    option(parser, "--on PLACE", "local (one training a core), ray, or ray://HOST:PORT of a cluster", default="local")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    started = time.monotonic()
    if args.name is None:
        _list(args.json)
        return
    from qkv import api

    shown = _Line()
    verdict = api.study(
        args.name,
        args.source or "",
        seeds=args.seeds,
        minutes=args.minutes,
        quick=args.quick,
        margin=args.margin,
        on=args.on,
        ladder=args.ladder,
        sizes=args.sizes or (),
        progress=shown,
        say=shown.say,
        started=started,
    )
    if args.json:
        screen.print_json(verdict)
    elif args.ladder:
        _print_ladder(verdict)
    else:
        _print(verdict)


def _sizes(text: str) -> list[tuple[int, int]]:
    """`64x1,64x2`: d_model and layers of each."""
    found = [re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,2})", part.strip()) for part in text.split(",")]
    if None in found:
        raise argparse.ArgumentTypeError(f"{text!r}: expected sizes as d_model x layers, such as 64x1,64x2,64x4")
    return [(int(one[1]), int(one[2])) for one in found if one]


def _names() -> list[str]:
    """Every study, in order of priority: from the names of files alone, so that torch is not loaded."""
    order = json.loads((_QUESTIONS / "order.json").read_text(encoding="utf-8"))
    return [*order, *sorted({file.stem for file in _QUESTIONS.glob("*.toml")} - {*order})]


def _list(as_json: bool) -> None:
    """The questions, in order of priority."""
    asked = {name: tomllib.loads((_QUESTIONS / f"{name}.toml").read_text(encoding="utf-8")) for name in _names()}
    found = {name: {"asks": words["asks"], "answer": words["answer"]} for name, words in asked.items()}
    if added("studies"):
        from qkv.studies.designed import STUDIES

        for name, design in STUDIES.added().items():
            found[name] = {"asks": design.question, "answer": "; ".join(effect.name for effect in design.effects)}
    if as_json:
        screen.print_json({"studies": found})
        return
    screen.print_table(["study", "asks"], [(name, words["asks"]) for name, words in found.items()])
    print("Answer one with: qkv study NAME [SOURCE] --quick")


class _Line:
    """Progress on stderr, a line now and then."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def say(self, sentence: str) -> None:
        """One sentence."""
        print(sentence, file=sys.stderr, flush=True)

    def __call__(self, made: "Made") -> None:
        """A training ended."""
        if time.monotonic() - self._last < _SECONDS:
            return
        self._last = time.monotonic()
        self.say(f"training {made.done} of about {made.expected}: {made.arm}, {made.role}, loss {made.loss:.3f}")


def _print(verdict: JsonMapping) -> None:
    """The answer, its condition and how the models compare with counting, then what it rests on."""
    from qkv.studies.counting import counting_words
    from qkv.views.study.page import ARM_COLUMNS, EFFECT_COLUMNS, arm_cells, effect_cells
    from qkv.views.study.section import accounts_table, as_shown, expectations

    verdict = as_shown(verdict)
    for words in filter(None, (verdict["plain"], verdict["more"], verdict["condition"])):
        print(words)
    print(counting_words(verdict))
    print(verdict["sentence"] + "\n")
    if side_by_side := accounts_table(verdict):
        screen.print_table(side_by_side[0], side_by_side[1:])
        print()
    screen.print_table(EFFECT_COLUMNS, (effect_cells(row, verdict) for row in verdict["contrasts"]))
    print()
    screen.print_table(ARM_COLUMNS, (arm_cells(arm, verdict) for arm in verdict["arms"]))
    for note in verdict["notes"]:
        print(f"- {note}.")
    if verdict["full_answer"]:
        print(f"The full run on this text said: {verdict['full_answer']}")
    for missing in verdict["not_reached"]:
        print(f"Not reached in the time: {missing}. The same command goes on.")
    print()
    for heading, words in expectations(verdict):
        print(f"{heading}: {words}")
    print(f"Every one of {many(verdict['trainings'], 'training')} is logged in {verdict['run']}; open its page.html")


def _print_ladder(found: JsonMapping) -> None:
    """The trend, its condition, every size, and the rest."""
    from qkv.studies.ladder.result import cell_cells, cell_columns, further_sentences, published_sentences

    print(found["sentence"] + "\n")
    print(found["condition"] + "\n")
    screen.print_table(cell_columns(found), (cell_cells(row, found) for row in found["cells"]))
    print()
    for words in (*further_sentences(found), *published_sentences(found)):
        print(f"- {words}")
    print(f"\nEvery one of {many(found['trainings'], 'training')} is logged in {found['run']}; open its page.html")
