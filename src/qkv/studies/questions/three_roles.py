"""Do W_Q, W_K and W_V give each vector three different roles?

A vector asks by q, is found by k and passes on v. Whether that takes three matrices is tested by sharing: one matrix
for two of the roles, and for all three, next to an attention with as few parameters whose matrices are its own. Whether
trained matrices play different parts is read from them: the angles between what they read of x, the share of W_Q W_K^T
that is symmetric (so that a scores b as b scores a), and the cost of swapping the two, each compared with the untrained
model.
"""

from qkv.studies.engine.design import Arm, Contrast, Design, Text
from qkv.studies.expectation import Expected
from qkv.studies.question import Ask, make_design, quick_or_full, read_question
from qkv.studies.vocabulary import (
    ABOVE,
    ANSWERS,
    AT_START,
    FULL,
    LEARNS_MASKED,
    LEARNS_RECALL,
    QUICK,
    RECALLED,
    SMALL_ROWS,
    Settings,
    arm,
    cost,
    difference,
    level,
    near,
    of_learned,
    of_recalling,
    shared,
)

MARGIN = 0.03
_DEGREES = 5.0
_SHARED = {
    "Q = K": "one matrix serves as W_Q and W_K: scores are symmetric",
    "K = V": "one matrix serves as W_K and W_V",
    "Q = V": "one matrix serves as W_Q and W_V",
    "Q = K = V": "one matrix serves as W_Q, W_K and W_V: q = k = v",
}
_ASKED = ("Q = K = V", "Q = K", "K = V")


def _arm(name: str, prefix: str = "", changes: tuple[str, ...] = (), *common: Settings) -> Arm:
    own = (*shared(name.replace(" = ", "")), *changes)
    return arm(f"{prefix}{name}", _SHARED[name], *common, changes=own)


_OWN = arm("three matrices", "three separate matrices, all trained", probes=("roles",))


def _untrained(prefix: str = "", *common: Settings) -> Arm:
    return arm(f"{prefix}untrained", "the same model, untrained", *common, AT_START, probes=("roles",))


def _narrow(d_head: int) -> Arm:
    return arm(
        "narrow", "three separate matrices, heads half as wide: as many parameters in attention as one matrix in"
        " all three roles", sizes=(("d_head", d_head // 2),),
    )  # fmt: skip


def _cost(name: str, prefix: str = "", expected: Expected = ABOVE, unit: str = "nats per token") -> Contrast:
    some, base = f"{prefix}{name}", f"{prefix}three matrices"
    return cost(f"{some} - three matrices", f"cost of {some}", some, base, MARGIN, unit=unit, expected=expected)


def _read(prefix: str = "") -> tuple[Contrast, ...]:
    """What the matrices themselves show, against the same model untrained."""
    pair = (f"{prefix}three matrices", f"{prefix}untrained")
    angles = (
        difference(
            f"{prefix}angle {a}{b}", f"angle between what W_{a} and W_{b} of a head read, minus that untrained", *pair,
            f"angle {a}{b}", _DEGREES, unit="degrees",
        )
        for a, b in ("QK", "QV", "KV")
    )  # fmt: skip
    share = difference(
        f"{prefix}symmetric share", "share of |W_Q W_K^T|^2 that is symmetric, minus that untrained", *pair,
        "symmetric share", 0.05, unit="of the square",
    )  # fmt: skip
    nats = (
        level(f"{prefix}{quantity}", what, pair[0], quantity, MARGIN, expected=expected)
        for quantity, what, expected in (
            ("exchanged", "increase in loss when W_Q and W_K are swapped", ABOVE),
            ("symmetric part", "increase in loss with only the symmetric part of W_Q W_K^T", None),
            ("antisymmetric part", "increase in loss with only its antisymmetric part", None),
        )
    )
    return (*angles, share, *nats)


_AGAINST_NARROW = cost(
    "Q = K = V - narrow", "cost of one matrix in three roles against as few parameters in three matrices",
    "Q = K = V", "narrow", MARGIN, expected=ABOVE,
)  # fmt: skip


def _quick(ask: Ask) -> Design:
    return make_design(
        ask,
        study="three-roles",
        scale=QUICK,
        arms=(_OWN, *map(_arm, _ASKED), _narrow(16), _untrained()),
        contrasts=(*map(_cost, _ASKED), _AGAINST_NARROW, *_read()),
    )


def _masked_cost(name: str) -> Contrast:
    return _cost(name, "masked ", near(0.0, MARGIN) if name == "Q = K" else ABOVE)


def _full(ask: Ask) -> Design:
    masked: Settings = {"task": "masked", "lr": 0.003, **LEARNS_MASKED, "sizes": (("steps", ANSWERS * FULL.steps),)}
    sharing = cost(
        "Q = K - K = V", "cost of W_Q = W_K minus that of W_K = W_V", "Q = K", "K = V", MARGIN,
        expected=ABOVE,
    )  # fmt: skip
    return make_design(
        ask,
        study="three-roles",
        texts={"text": Text(), "recall": RECALLED},
        scale=FULL,
        arms=(
            _OWN, *map(_arm, _SHARED), _narrow(32), _untrained(),
            arm("masked three matrices", "predicts masked tokens, three matrices", masked, probes=("roles", "learned")),
            *(_arm(name, "masked ", SMALL_ROWS, masked) for name in _ASKED), _untrained("masked ", masked),
            arm("recall three matrices", "associative recall, three matrices", LEARNS_RECALL, probes=("answers",)),
            *(_arm(name, "recall ", (), LEARNS_RECALL) for name in _ASKED),
        ),
        contrasts=(
            *map(_cost, (*_ASKED, "Q = V")),
            _AGAINST_NARROW,
            sharing,
            *_read(),
            *of_learned((*map(_masked_cost, _ASKED), *_read("masked ")), ("masked three matrices",)),
            *of_recalling([_cost(name, "recall ", unit="nats per answer") for name in _ASKED], "recall three matrices"),
        ),
    )  # fmt: skip


QUESTION = read_question("three-roles", design=quick_or_full(_quick, _full))
