"""The mirror: can embeddings alone be trained over a random frozen body?

Only the tables are trained (W_E; W_E and W_U; with positions; with the norms). Attention and MLP of every layer keep
their random initial values, from Glorot here, so that the body does something. Measured on the user's text, on
associative recall, which no table alone can do, and on addition modulo 97, of which a tenth of all pairs is never
shown.
"""

import dataclasses

from qkv.studies.engine.design import Arm, Contrast, Design, Pairs, Text
from qkv.studies.expectation import Expected
from qkv.studies.question import Ask, make_design, quick_or_full, read_question
from qkv.studies.vocabulary import (
    ABOVE,
    FULL,
    GLOROT,
    LEARNS_RECALL,
    QUICK,
    RECALLED,
    Settings,
    arm,
    cost,
    difference,
    difference_of_costs,
    level,
)

MARGIN = 0.03
_POINTS = 5.0
"""Of 100 answers."""
ADDED = Text(stream="modular", settings=(("modulus", 97),))
"""Some 8,500 pairs are shown. Of the 865 that modulus 31 shows a model has all by heart before it finds the rule."""
_SETS = {
    "W_E": "W_E",
    "W_E and W_U": "W_E,W_U",
    "tables": "W_E,W_U,W_pos",
    "tables and norms": "W_E,W_U,W_pos,norms",
}


def _arm(name: str, prefix: str = "", *common: Settings) -> Arm:
    selector = _SETS.get(name)
    what = "everything trained" if selector is None else f"only {selector} trained over a random body"
    changes = () if selector is None else (f"{selector}=only",)
    return arm(f"{prefix}{name}", what, {"layout": GLOROT}, *common, changes=changes)


def _cost(name: str, prefix: str = "", unit: str = "nats per token", expected: Expected = ABOVE) -> Contrast:
    some, whole = f"{prefix}{name}", f"{prefix}everything"
    return cost(f"{some} - {whole}", f"cost of training only {name}", some, whole, MARGIN, unit=unit, expected=expected)


_ADDS, _BY_WIDTH = "a wide random body adds", "embeddings alone add when wide"
_WIDTHS = (256, 16)


def addition(text: str) -> tuple[tuple[Arm, ...], tuple[Contrast, ...]]:
    """Tables trained over random bodies of two widths on the text of that name, which is `ADDED`, and what is asked."""
    tables = _SETS["tables"]

    def adding(name: str, width: int) -> Arm:
        sizes = (("d_model", width), ("n_heads", max(1, width // 32)), ("n_ctx", 2), ("batch_size", 256))
        return arm(
            name, f"addition; only {tables} trained over a random body of width {width}", text=text, task="modular",
            lr=0.02, layout=GLOROT, changes=(f"{tables}=only",), sizes=sizes, probes=("answers",),
        )  # fmt: skip

    names = ("wide tables", "narrow tables")
    return tuple(map(adding, names, _WIDTHS)), (
        difference(
            _BY_WIDTH, "held-out sums answered correctly over a wide random body, minus those over a narrow one",
            *names, "answers", _POINTS, unit="points of 100", expected=ABOVE, needs=_ADDS,
        ),
        level(
            _ADDS, "held-out sums answered correctly over a wide random body (1.0 of 100 by chance)", names[0],
            "answers", _POINTS, unit="points of 100", expected=ABOVE,
        ),
    )  # fmt: skip


def _quick(ask: Ask) -> Design:
    names = ("tables and norms", "W_E and W_U", "W_E")
    return make_design(
        ask,
        study="only-embeddings",
        scale=dataclasses.replace(QUICK, val_tokens=16_384, evaluations=4),
        arms=tuple(map(_arm, ("everything", *names))),
        contrasts=tuple(map(_cost, names)),
    )


def _full(ask: Ask) -> Design:
    wide: Pairs = (("d_model", 128), ("n_heads", 4))
    pair = ("everything", "tables and norms")
    adding, sums = addition("addition")
    return make_design(
        ask,
        study="only-embeddings",
        texts={"text": Text(), "recall": RECALLED, "addition": ADDED},
        scale=FULL,
        arms=(
            *map(_arm, ("everything", *_SETS)),
            *(_arm(name, "wide ", {"sizes": wide}) for name in pair),
            *(_arm(name, "recall ", LEARNS_RECALL) for name in pair),
            *adding,
        ),
        contrasts=(
            _cost("tables and norms"),
            *map(_cost, ("W_E", "W_E and W_U", "tables")),
            _cost("tables and norms", "wide ", expected=Expected(less_than="tables and norms - everything")),
            _cost("tables and norms", "recall ", unit="nats per answer"),
            difference_of_costs(
                "cost at d_model 64, less that at 128",
                "cost of training only tables and norms at d_model 64, minus that at 128",
                ("tables and norms", "everything"), ("wide tables and norms", "wide everything"), MARGIN,
                expected=ABOVE,
            ),
            *sums,
        ),
    )  # fmt: skip


QUESTION = read_question("only-embeddings", design=quick_or_full(_quick, _full))
