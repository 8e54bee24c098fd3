"""What is learned in which order, and when do heads learn to copy?

Where a block of letters comes again and again, a training has one stage, at which it begins to copy; on text its loss
falls below what the frequencies of tokens give, then below what counting pairs gives, then beyond. The step at which
each is reached is read from the same windows all along. That a lower loss comes after a higher one is no finding; the
order is asked of the predictions: when they are nearest to those of frequencies, of pairs and of threes. Which matrix
has to move *when* is asked by holding it: for the first third of the steps W_Q and W_K, or W_V and W_O, or W_V alone,
or W_E, or the MLP, keeps its start and is then released, at the learning rate that is best where nothing is held, so
that nothing but the holding delays a stage. In full copying begins within that third, and may with a matrix still held:
then it did without that one's learning, and is told so; a tenth ends before it begins. Depth is the control for
copying: one layer was thought unable to find the letter behind an earlier one. In full it gets below what striking
letters out gives too (docs/decisions), so what tells one from two is how far it ends from them.
"""

import dataclasses

from qkv.studies.engine.design import OF_TRAININGS, Arm, Contrast, Design, Pairs, Text
from qkv.studies.question import Ask, Plain, Question, make_design, quick_or_full
from qkv.studies.verdict.comparison import Comparison
from qkv.studies.verdict.judging import Findings
from qkv.studies.vocabulary import FULL, GLOROT, QUICK, Settings, arm, cost, difference, level
from qkv.words import amount, plural

__all__ = ["QUESTION"]

_HELD = {"QK": "L*.W_[QK]", "VO": "L*.W_[VO]", "W_E": "W_E", "MLP": "L*.W_in,L*.W_out", "V": "L*.W_V"}
_WORDS = {"QK": "W_Q and W_K", "VO": "W_V and W_O", "W_E": "W_E", "MLP": "W_in and W_out", "V": "W_V"}
_TIMED: Settings = {"layout": GLOROT, "trainer": "timed"}
"""Glorot's: a matrix that is held at it does something, and copying is found in fewer steps than from N(0, 0.02)."""
_COPYING: Settings = {"text": "repeat", "task": "repeat"}
_TEXTS = {"repeat": Text(stream="repeat", settings=(("letters", 20),)), "text": Text()}
_FREE, _SHORT, _ON_TEXT = "nothing held", "held for a tenth", "text, "
_PAIRS = ("VO", "QK")


def _layers(n: int) -> str:
    return f"{n} {plural(n, 'layer')}"


def _free(on: Settings, prefix: str = "", layers: int = 2) -> Arm:
    """Everything trained throughout, at its own rate."""
    sizes: Pairs = (*on.get("sizes", ()), *((("n_layers", layers),) if layers != 2 else ()))
    name = prefix + (_FREE if layers == 2 else _layers(layers))
    return arm(name, f"everything trained throughout, {_layers(layers)}", _TIMED, on, sizes=sizes)


def _held(what: str, until: int, on: Settings, prefix: str = "", name: str = "held") -> Arm:
    """Some matrices kept at their start for the first steps, at the rate of the free training."""
    words = f"{_WORDS[what]} held at the start for the first {until} steps, at the rate of {prefix}{_FREE}"
    change = f"{_HELD[what]}=freeze@0..{until}"
    return arm(f"{prefix}{what} {name}", words, _TIMED, on, changes=(change,), tune=f"{prefix}{_FREE}")


def _later(
    name: str, what: str, arm: str, other: str, stage: str, margin: float, expected: str = "", *, needs: str
) -> Contrast:
    """Steps by which an arm reaches a stage later than another, where trainings get there at all.

    Two that do not have as many steps by how they are counted, which is no sign that they are equally late.
    """
    return difference(name, what, arm, other, f"step of {stage}", margin, unit="steps", expected=expected, needs=needs)


def _delay(what: str, stage: str, margin: float, prefix: str = "", part: str = "third") -> Contrast:
    arm, expected = (f"{prefix}{what} held", "above 0") if part == "third" else (f"{prefix}{what} {_SHORT}", "")
    return _later(
        f"{arm}: {stage}", f"how much later `{stage}` is reached with {_WORDS[what]} held for the first {part}", arm,
        f"{prefix}{_FREE}", stage, margin, expected, needs=_reached(f"{prefix}{_FREE}", stage).name,
    )  # fmt: skip


def _first(stage: str, margin: float, prefix: str = "") -> Contrast:
    """Which of the two products has to move early."""
    return _later(
        f"{prefix}VO - QK held: {stage}",
        f"how much later `{stage}` is reached with W_V and W_O held, less the same of W_Q and W_K",
        f"{prefix}VO held", f"{prefix}QK held", stage, margin,
        "above 0 if what is handed on is learned before where to look", needs=_either_reached(stage, prefix).name,
    )  # fmt: skip


def _either_reached(stage: str, prefix: str = "") -> Contrast:
    """Whether there is anything to compare of the two: the share of replicates in which either got there.

    One try a replicate: the two share its seed, its batches and its rate.
    """
    return Contrast(
        name=f"{prefix}VO or QK held: {stage} reached", what="share of replicates in which one of the two reached it",
        terms=tuple((1.0, f"{prefix}{what} held", f"reached {stage}") for what in _PAIRS), margin=0.05,
        unit=OF_TRAININGS, expected="1",
    )  # fmt: skip


def _depth(layers: int, stage: str, margin: float, prefix: str = "") -> Contrast:
    arm, free = f"{prefix}{_layers(layers)}", f"{prefix}{_FREE}"
    what = f"how much later `{stage}` is reached than with 2 layers, each at its own rate"
    return _later(f"{arm}: {stage}", what, arm, free, stage, margin, needs=_reached(free, stage).name)


def _short_of_copying() -> Contrast:
    """What one layer has left to learn of copying at the end of a training."""
    return cost(
        "1 layer: loss", "loss on repeated letters at the end, of 1 layer less that of 2", _layers(1), _FREE, 0.05,
        unit="nats per letter", expected="above 0",
    )  # fmt: skip


def _when(stage: str, margin: float, prefix: str = "") -> Contrast:
    arm, what = f"{prefix}{_FREE}", f"the step at which `{stage}` is reached, nothing held"
    needs = _reached(arm, stage).name
    return level(f"{arm}: {stage}", what, arm, f"step of {stage}", margin, unit="steps", needs=needs)


def _order(first: str, second: str, margin: float) -> Contrast:
    """What a model is like first: by its predictions, which may be nearest to either before the other."""
    arm = f"{_ON_TEXT}{_FREE}"
    return Contrast(
        name=f"nearest to {first}s -> nearest to {second}s",
        what=f"steps from where predictions are nearest to those of {first}s to where they are to those of {second}s",
        terms=((1.0, arm, f"nearest {second}"), (-1.0, arm, f"nearest {first}")), margin=margin, unit="steps",
        expected="above 0",
    )  # fmt: skip


def _reached(arm: str, stage: str = "copying", expected: str = "1") -> Contrast:
    name, what = f"{arm}: {stage} reached", "share of trainings that reached it at all"
    return level(name, what, arm, f"reached {stage}", 0.05, unit=OF_TRAININGS, expected=expected)


def _of_copying(names: tuple[str, ...], margin: float) -> tuple[Contrast, ...]:
    return (
        _first("copying", margin),
        *(_delay(what, "copying", margin) for what in names),
        _when("copying", margin),
        *(_reached(f"{what} held") for what in names),
        _reached(_FREE),
        _either_reached("copying"),
        _reached("1 layer", expected="0: one layer cannot look behind an earlier letter"),
    )


def _quick(ask: Ask) -> Design:
    steps, on_text_steps, names = 400, 450, ("QK", "VO", "W_E")
    on_text: Settings = {"sizes": (("batch_size", 16), ("steps", on_text_steps))}
    return make_design(
        ask,
        study="dynamics",
        texts=_TEXTS,
        scale=dataclasses.replace(QUICK, batch_size=32, steps=steps, evaluations=1),
        arms=(
            _free(_COPYING),
            *(_held(what, steps // 3, _COPYING) for what in names),
            _free(_COPYING, layers=1),
            _free(on_text, _ON_TEXT),
            *(_held(what, on_text_steps // 3, on_text, _ON_TEXT) for what in names),
        ),
        contrasts=(
            *_of_copying(names, 20.0),
            *(_when(stage, 15.0, _ON_TEXT) for stage in ("unigram", "bigram")),
            _order("unigram", "bigram", 15.0),
            *(_delay(what, "bigram", 15.0, _ON_TEXT) for what in names),
            _reached(f"{_ON_TEXT}{_FREE}", "unigram"),
            *(_reached(f"{_ON_TEXT}{who}", "bigram") for who in (_FREE, *(f"{what} held" for what in names))),
        ),
        replicates=5,
    )


def _full(ask: Ask) -> Design:
    steps, late, names, stages = FULL.steps, 50.0, tuple(_HELD), ("bigram", "beyond pairs")
    return make_design(
        ask,
        study="dynamics",
        texts=_TEXTS,
        scale=FULL,
        arms=(
            _free(_COPYING),
            *(_held(what, steps // 3, _COPYING) for what in names),
            *(_held(what, steps // 10, _COPYING, name=_SHORT) for what in _PAIRS),
            *(_free(_COPYING, layers=n) for n in (1, 3)),
            _free({}, _ON_TEXT),
            *(_held(what, steps // 3, {}, _ON_TEXT) for what in names),
            *(_free({}, _ON_TEXT, n) for n in (1, 3)),
        ),
        contrasts=(
            *_of_copying(names, late),
            *(_delay(what, "copying", late, part="tenth") for what in _PAIRS),
            _depth(3, "copying", late),
            _short_of_copying(),
            *(_when(stage, late, _ON_TEXT) for stage in ("unigram", *stages)),
            _order("unigram", "bigram", late),
            _order("bigram", "trigram", late),
            *(_first(stage, late, _ON_TEXT) for stage in stages),
            *(_delay(what, stage, late, _ON_TEXT) for what in names for stage in stages),
            *(_depth(n, "beyond pairs", late, _ON_TEXT) for n in (1, 3)),
            _reached(f"{_ON_TEXT}{_FREE}", "unigram"),
            *(_reached(f"{_ON_TEXT}{who}", s) for s in stages for who in (_FREE, *(f"{what} held" for what in names))),
            *(_either_reached(stage, _ON_TEXT) for stage in stages),
        ),
    )


def _claim(findings: Findings) -> str:
    verdict, effect = findings.primary.result.verdict, findings.primary.result.effect or 0.0
    rest = _of_reaching(findings)
    former = "the step of copying with the former held, less that with the latter, is"
    held = "held for the first third of a training, from Glorot's start, at the learning rate tuned with nothing held,"
    either = f"copying begins later with W_V and W_O {held} than with W_Q and W_K"
    if verdict == "left out":
        return f"Whether {either} cannot be told{rest}"
    if verdict == "unresolved":
        return f"Whether {either} is not settled by this run{rest}; {former}"
    if verdict == "equivalent":
        return f"With W_V and W_O {held} copying begins as late as with W_Q and W_K{rest}: {former}"
    small = ", by less than would matter" if verdict == "differs but trivially" else ""
    if effect > 0:
        return f"With W_V and W_O {held} copying begins later than with W_Q and W_K{small}{rest}: {former}"
    latter = "the step of copying with the latter held, less that with the former, is"
    return f"With W_Q and W_K {held} copying begins later than with W_V and W_O{small}{rest}: {latter}"


def _of_reaching(findings: Findings) -> str:
    """Where a stage was not reached within a training, in brackets; empty where all were."""
    copied = [findings.effect(f"{what} held: copying reached").result for what in ("QK", "VO")]
    steps = findings.design.scale.steps
    if max(result.effect or 0.0 for result in copied) <= 0:
        return f" (no training of the two copied within {steps} steps, so the steps say nothing)"
    words = []
    if missed := sum(map(_missed, copied)):
        tried = sum(result.n for result in copied)
        words.append(f"{missed} of {tried} trainings did not copy within {steps} steps: their end counts")
    pairs = findings.effect(f"text, {_FREE}: bigram reached").result
    if missed := _missed(pairs):
        within = dict(findings.design.arm(f"text, {_FREE}").sizes).get("steps", steps)
        words.append(f"on text {missed} of {pairs.n} did not get to what counting pairs gives within {within} steps")
    words += _while_held(findings)
    shorter, below = findings.there("1 layer: loss"), findings.effect("1 layer: copying reached").result.effect
    if shorter and below == 1:
        words.append(f"one layer reaches `copying` too, and ends {amount(shorter, False)} nats a letter above two")
    return f" ({'; '.join(words)})" if words else ""


def _while_held(findings: Findings) -> list[str]:
    """Of which pairs copying begins, in the mean, before they are let go: then it did without their learning."""
    means = {effect.contrast.name: effect.result.effect for effect in findings.effects}
    free, until = means.get(f"{_FREE}: copying"), findings.design.scale.steps // 3
    if free is None:
        return []
    later = {what: means[f"{what} held: copying"] for what in _PAIRS}
    return [
        f"with {_WORDS[what]} held it begins at step {free + delay:.0f}, before they are let go at {until}"
        for what, delay in later.items()
        if delay is not None and free + delay < until
    ]


def _missed(result: Comparison) -> int:
    """How many trainings of a share did not reach it."""
    return round((1 - (result.effect or 0.0)) * result.n)


def _put_off(what: str) -> tuple[str, Plain]:
    """What holding a pair does to copying, beside nothing held."""
    pair = _WORDS[what]
    return f"{what} held: copying", Plain(
        above=f"Holding {pair} puts it off by {{effect}} steps.",
        below=f"Holding {pair} brings it forward by {{effect}} steps.",
        slightly=f"Holding {pair} hardly moves that step.",
        equivalent=f"Holding {pair} does not move that step by anything that matters.",
        unresolved=f"Whether holding {pair} puts it off or brings it forward, this run cannot tell.",
    )


_AT_ONCE = "With nothing held it begins at once."
_ALSO = {
    f"{_FREE}: copying": Plain(
        above="With nothing held it begins at step {effect}.",
        below=_AT_ONCE,
        slightly=_AT_ONCE,
        equivalent=_AT_ONCE,
        unresolved="When it begins with nothing held, this run cannot tell.",
    ),
    **dict(map(_put_off, ("QK", "VO"))),
    "nearest to unigrams -> nearest to bigrams": Plain.of(
        above=(
            "On text predictions are nearest to those of counting single tokens first, and {effect} steps later to"
            " those of counting pairs."
        ),
        below="On text predictions are nearest to those of counting pairs before those of counting single tokens.",
        same=("On text predictions are nearest to those of single tokens and of pairs at {almost }the same step."),
        unresolved="Whether a model is like counting single tokens before it is like pairs, this run cannot tell.",
    ),
    "nearest to bigrams -> nearest to trigrams": Plain.of(
        above="From there they come nearer to those of counting threes for {effect} steps at the least.",
        below="They are nearest to those of counting threes before those of counting pairs.",
        same="They are nearest to those of counting threes at {almost }the same step as to those of pairs.",
        unresolved="Whether they come nearer to those of counting threes after that, this run cannot tell.",
    ),
}


QUESTION = Question(
    name="dynamics",
    asks="What is learned in which order, and when do heads learn to copy?",
    answer=(
        "the step at which copying begins (`copying`: on a block of letters that comes again and again the loss is half"
        " of what is left to whoever knows its letters and strikes out each that has come), and at which the loss on"
        " text passes what counting tokens and pairs gives; when predictions are nearest to those of either; by how"
        " much holding a matrix for the first third, at the learning rate that is best with nothing held, delays each"
        " stage; one and three layers beside two"
    ),
    falsified_by=(
        "One layer copies; holding W_Q and W_K, or W_V and W_O, delays copying by less than the margin; predictions are"
        " nearest to those of pairs before they are to those of frequencies."
    ),
    literature=(
        "That frequencies come before pairs and pairs before longer contexts, that heads which copy form late and at"
        " once and need two layers, and that output matrices move first, values next and queries and keys last is known"
        " to us from notes on papers that we have not read; none of their figures is printed. No paper was found that"
        " holds single matrices for a window and measures what that delays. How many steps trainings on text have was"
        " chosen after some on the same seeds had been seen to get to pairs near their end. Matrices are held at"
        " Glorot's start, where scores and values are of order one; what is missed of those held at N(0, 0.02) is"
        " another thing (`qkv study which-matrix`). How far one layer ends from two is asked since three of its"
        " trainings in a full run had got below what striking letters out gives, which was not expected."
    ),
    plain=Plain(
        above=(
            "Copying of letters that come again begins later with W_V and W_O held at a large random start for a while"
            " than with W_Q and W_K held so."
        ),
        below=(
            "Copying of letters that come again begins later with W_Q and W_K held at a large random start for a while"
            " than with W_V and W_O held so."
        ),
        slightly=(
            "Copying of letters that come again begins at almost exactly the same step with W_Q and W_K held at a large"
            " random start for a while as with W_V and W_O held so."
        ),
        equivalent=(
            "Copying of letters that come again begins as late with W_Q and W_K held at a large random start for a"
            " while as with W_V and W_O held so."
        ),
        unresolved=(
            "Whether copying of letters that come again begins later with W_V and W_O held at a large random start for"
            " a while or with W_Q and W_K held so, this run cannot tell."
        ),
    ),
    also=_ALSO,
    design=quick_or_full(_quick, _full),
    claim=_claim,
)
