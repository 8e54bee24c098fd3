"""What is learned in which order, and when do heads learn to copy?

On a repeated block of letters, training has one stage: the step at which the model begins to copy. On text, the loss
falls below that of unigram counts, then below that of bigram counts, then further. The step of each stage is read from
the same windows throughout. That a lower loss comes later is no finding, so the order is read from predictions: when
they are closest to unigram, bigram and trigram counts. Which matrix has to move *when* is tested by freezing it: for
the first third of the steps W_Q and W_K, or W_V and W_O, or W_V alone, or W_E, or the MLP keeps its initial values. The
learning rate is the one tuned with nothing frozen, so only the freezing can delay a stage. In full, copying begins
within that third, and may begin with a matrix still frozen; a tenth ends before it begins. Depth is the control for
copying: one layer was thought unable to find the letter behind an earlier one. In full it, too, gets below guessing
among unused letters (docs/decisions), so depths are compared by their final loss.
"""

import dataclasses

from qkv.studies.engine.design import OF_TRAININGS, Arm, Contrast, Design, Pairs, Text
from qkv.studies.expectation import Expected
from qkv.studies.question import Ask, make_design, quick_or_full, read_question
from qkv.studies.vocabulary import ABOVE, FULL, GLOROT, QUICK, Settings, arm, cost, difference, level
from qkv.words import plural

_MOST = Expected(above=0.5)
"""What is expected of a share of trainings: that most of them."""

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
    words = f"{_WORDS[what]} frozen for the first {until} steps, at the rate of {prefix}{_FREE}"
    change = f"{_HELD[what]}=freeze@0..{until}"
    return arm(f"{prefix}{what} {name}", words, _TIMED, on, changes=(change,), tune=f"{prefix}{_FREE}")


def _later(
    name: str,
    what: str,
    arm: str,
    other: str,
    stage: str,
    margin: float,
    expected: Expected | None = None,
    *,
    needs: str,
) -> Contrast:
    """Steps by which an arm reaches a stage later than another, where trainings get there at all.

    Two that do not have as many steps by how they are counted, which is no sign that they are equally late.
    """
    return difference(name, what, arm, other, f"step of {stage}", margin, unit="steps", expected=expected, needs=needs)


def _delay(what: str, stage: str, margin: float, prefix: str = "", part: str = "third") -> Contrast:
    arm, expected = (f"{prefix}{what} held", ABOVE) if part == "third" else (f"{prefix}{what} {_SHORT}", None)
    return _later(
        f"{arm}: {stage}", f"how much later `{stage}` is reached with {_WORDS[what]} frozen for the first {part}", arm,
        f"{prefix}{_FREE}", stage, margin, expected, needs=_reached(f"{prefix}{_FREE}", stage).name,
    )  # fmt: skip


def _first(stage: str, margin: float, prefix: str = "") -> Contrast:
    """Which of the two products has to move early."""
    return _later(
        f"{prefix}VO - QK held: {stage}",
        f"how much later `{stage}` is reached with W_V and W_O frozen at first than with W_Q and W_K",
        f"{prefix}VO held", f"{prefix}QK held", stage, margin,
        ABOVE, needs=_either_reached(stage, prefix).name,
    )  # fmt: skip


def _either_reached(stage: str, prefix: str = "") -> Contrast:
    """Whether there is anything to compare of the two: the share of replicates in which either got there.

    One try a replicate: the two share its seed, its batches and its rate.
    """
    return Contrast(
        name=f"{prefix}VO or QK held: {stage} reached", what="share of replicates in which one of the two reached it",
        terms=tuple((1.0, f"{prefix}{what} held", f"reached {stage}") for what in _PAIRS), margin=0.05,
        unit=OF_TRAININGS, expected=_MOST,
    )  # fmt: skip


def _depth(layers: int, stage: str, margin: float, prefix: str = "") -> Contrast:
    arm, free = f"{prefix}{_layers(layers)}", f"{prefix}{_FREE}"
    what = f"how much later `{stage}` is reached than with 2 layers, each at its own rate"
    return _later(f"{arm}: {stage}", what, arm, free, stage, margin, needs=_reached(free, stage).name)


def _short_of_copying() -> Contrast:
    """What one layer has left to learn of copying at the end of a training."""
    return cost(
        "1 layer: loss", "loss on repeated letters at the end, of 1 layer minus that of 2", _layers(1), _FREE, 0.05,
        unit="nats per letter", expected=ABOVE,
    )  # fmt: skip


def _when(stage: str, margin: float, prefix: str = "") -> Contrast:
    arm, what = f"{prefix}{_FREE}", f"the step at which `{stage}` is reached with nothing frozen"
    needs = _reached(arm, stage).name
    return level(f"{arm}: {stage}", what, arm, f"step of {stage}", margin, unit="steps", needs=needs)


def _order(first: str, second: str, margin: float) -> Contrast:
    """What a model is like first: by its predictions, which may be nearest to either before the other."""
    arm = f"{_ON_TEXT}{_FREE}"
    return Contrast(
        name=f"nearest to {first}s -> nearest to {second}s",
        what=f"steps from where predictions are nearest to those of {first}s to where they are to those of {second}s",
        terms=((1.0, arm, f"nearest {second}"), (-1.0, arm, f"nearest {first}")), margin=margin, unit="steps",
        expected=ABOVE,
    )  # fmt: skip


def _reached(arm: str, stage: str = "copying", expected: Expected = _MOST) -> Contrast:
    name, what = f"{arm}: {stage} reached", "share of trainings that reached it"
    return level(name, what, arm, f"reached {stage}", 0.05, unit=OF_TRAININGS, expected=expected)


def _of_copying(names: tuple[str, ...], margin: float) -> tuple[Contrast, ...]:
    return (
        _first("copying", margin),
        *(_delay(what, "copying", margin) for what in names),
        _when("copying", margin),
        *(_reached(f"{what} held") for what in names),
        _reached(_FREE),
        _either_reached("copying"),
        _reached("1 layer", expected=Expected(below=0.5)),
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


QUESTION = read_question("dynamics", design=quick_or_full(_quick, _full))
