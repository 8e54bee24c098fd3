"""Do W_Q, W_K and W_V give each vector three different roles?

A vector asks by q, is found by k and hands on v. Whether that takes three matrices is asked by sharing: one matrix for
two of the roles, and for all three, beside an attention of as few parameters whose matrices are its own. Whether
trained matrices play different parts is read from them: the angles between what they read of x, the share of
W_Q W_K^T that is symmetric (so that a asks b as b asks a), and what it costs to let the two change places, each
beside the same model untrained.
"""

from typing import Any

from qkv.studies.engine.design import Arm, Contrast, Design, Grid, Scale, Text, cost
from qkv.studies.question import (
    ANSWERS,
    LEARNS_MASKED,
    LEARNS_RECALL,
    RECALLED,
    Ask,
    Plain,
    Question,
    make_design,
    of_learned,
    of_recalling,
)
from qkv.studies.verdict.judging import Findings

__all__ = ["QUESTION"]

MARGIN = 0.03
_DEGREES = 5.0
_LAYERS = 2
_SHARED = {
    "Q = K": ("one matrix serves as W_Q and W_K: scores are symmetric", ("Q", "K")),
    "K = V": ("one matrix serves as W_K and W_V", ("K", "V")),
    "Q = V": ("one matrix serves as W_Q and W_V", ("Q", "V")),
    "Q = K = V": ("one matrix serves as W_Q, W_K and W_V: q = k = v", ("Q", "K", "V")),
}


def _arm(name: str, prefix: str = "", changes: tuple[str, ...] = (), **more: Any) -> Arm:
    what, (first, *others) = _SHARED[name]
    shared = tuple(f"L{i}.W_{other}=share(L{i}.W_{first})" for i in range(_LAYERS) for other in others)
    return Arm(name=f"{prefix}{name}", what=what, changes=(*shared, *changes), **more)


def _trained(prefix: str = "", what: str = "three matrices of their own, all trained", **more: Any) -> Arm:
    return Arm(name=f"{prefix}three matrices", what=what, **more)


def _untrained(prefix: str = "", **more: Any) -> Arm:
    return Arm(
        name=f"{prefix}untrained", what="the same model at its start", trainer="none", tune="none", probes=("roles",),
        **more,
    )  # fmt: skip


def _narrow(d_head: int) -> Arm:
    return Arm(
        name="narrow", what="three matrices of their own, heads half as wide: as many parameters in attention as one"
        " matrix in all three roles", sizes=(("d_head", d_head // 2),),
    )  # fmt: skip


def _cost(name: str, prefix: str = "", expected: str = "", unit: str = "nats per token") -> Contrast:
    return cost(
        f"{prefix}{name} - three matrices", f"cost of {prefix}{name}", f"{prefix}{name}", f"{prefix}three matrices",
        MARGIN, unit=unit, expected=expected or "above 0",
    )  # fmt: skip


def _read(prefix: str = "") -> tuple[Contrast, ...]:
    """What the matrices themselves show, against the same model untrained."""

    def learned(quantity: str, what: str, margin: float, unit: str, expected: str = "") -> Contrast:
        arms = ((1.0, f"{prefix}three matrices", quantity), (-1.0, f"{prefix}untrained", quantity))
        return Contrast(
            name=f"{prefix}{quantity}", what=what, terms=arms, margin=margin, unit=unit, expected=expected
        )  # fmt: skip

    angles = tuple(
        learned(
            f"angle {a}{b}", f"angle between what W_{a} and W_{b} of a head read, less that untrained", _DEGREES,
            "degrees",
        )
        for a, b in ("QK", "QV", "KV")
    )  # fmt: skip
    nats = tuple(
        Contrast(
            name=f"{prefix}{quantity}", what=what, terms=((1.0, f"{prefix}three matrices", quantity),), margin=MARGIN,
            expected=expected,
        )
        for quantity, what, expected in (
            ("exchanged", "loss with W_Q and W_K in each other's place, less the loss", "above 0: they play two parts"),
            ("symmetric part", "loss with the symmetric part of W_Q W_K^T alone, less the loss", ""),
            ("antisymmetric part", "loss with its antisymmetric part alone, less the loss", ""),
        )
    )  # fmt: skip
    share = learned(
        "symmetric share", "share of |W_Q W_K^T|^2 that is symmetric, less that untrained", 0.05, "of the square"
    )
    return (*angles, share, *nats)


def _design(ask: Ask) -> Design:
    return _quick(ask) if ask.quick else _full(ask)


def _against_narrow() -> Contrast:
    return cost(
        "Q = K = V - narrow", "cost of one matrix in three roles against as few parameters in three matrices",
        "Q = K = V", "narrow", MARGIN, expected="above 0 if it is the roles, not the parameters",
    )  # fmt: skip


def _quick(ask: Ask) -> Design:
    names = ("Q = K = V", "Q = K", "K = V")
    return make_design(
        ask,
        study="three-roles",
        texts={"text": Text()},
        scale=Scale(
            d_model=32, n_layers=_LAYERS, n_heads=2, n_ctx=32, batch_size=16, steps=300, val_tokens=8_192,
            evaluations=2,
        ),
        grid=Grid(),
        arms=(_trained(probes=("roles",)), *(_arm(name) for name in names), _narrow(16), _untrained()),
        contrasts=(*(_cost(name) for name in names), _against_narrow(), *_read()),
        replicates=6,
    )  # fmt: skip


def _full(ask: Ask) -> Design:
    steps = 1000
    masked: dict[str, Any] = {"task": "masked", "lr": 0.003, **LEARNS_MASKED, "sizes": (("steps", ANSWERS * steps),)}
    names = ("Q = K = V", "Q = K", "K = V")
    sharing = cost(
        "Q = K - K = V", "cost of W_Q = W_K, less that of W_K = W_V", "Q = K", "K = V", MARGIN,
        expected="above 0 in causal models",
    )  # fmt: skip
    return make_design(
        ask,
        study="three-roles",
        texts={"text": Text(), "recall": RECALLED},
        scale=Scale(d_model=64, n_layers=_LAYERS, n_heads=2, n_ctx=64, batch_size=16, steps=steps, val_tokens=32_768),
        grid=Grid(),
        arms=(
            _trained(probes=("roles",)), *(_arm(name) for name in _SHARED), _narrow(32), _untrained(),
            _trained("masked ", "predicts masked tokens, three matrices", probes=("roles", "learned"), **masked),
            *(_arm(name, "masked ", **masked) for name in names), _untrained("masked ", **masked),
            _trained("recall ", "associative recall, three matrices", **LEARNS_RECALL, probes=("answers",)),
            *(_arm(name, "recall ", **LEARNS_RECALL) for name in names),
        ),
        contrasts=(
            *(_cost(name) for name in ("Q = K = V", "Q = K", "K = V", "Q = V")),
            _against_narrow(),
            sharing,
            *_read(),
            *of_learned(
                (
                    *(_cost(n, "masked ", "near 0 where both sides are seen" if n == "Q = K" else "") for n in names),
                    *_read("masked "),
                ),
                ("masked three matrices",),
            ),
            *of_recalling(
                tuple(_cost(name, "recall ", unit="nats per answer") for name in names), "recall three matrices"
            ),
        ),
        replicates=8,
    )  # fmt: skip


def _claim(findings: Findings) -> str:
    verdict, effect = findings.primary.result.verdict, findings.primary.result.effect or 0.0
    difference = "with one matrix as W_Q, W_K and W_V the loss changes by"
    if verdict == "unresolved":
        return f"Whether the three roles need three matrices is not settled by this run; {difference}"
    if verdict == "equivalent":
        return f"The three roles do not need three matrices here: {difference}"
    small = ", by less than would matter" if verdict == "differs but trivially" else ""
    if effect > 0:
        return f"The three roles are served better by three matrices{small}{_parameters(findings)}: {difference}"
    return f"One matrix serves in all three roles better than three do{small}{_parameters(findings)}: {difference}"


def _parameters(findings: Findings) -> str:
    """Whether that is a matter of roles or of parameters, as the arm with as few of them says."""
    result = findings.effect("Q = K = V - narrow").told
    if result.verdict == "unresolved":
        return " (whether that is a matter of parameters alone is open)"
    if result.verdict == "equivalent":
        return " (and three narrow ones with as few parameters do as well as the one)"
    little = "a little " if result.verdict == "differs but trivially" else ""
    way = "worse" if (result.effect or 0.0) > 0 else "better"
    return f" (the one does {little}{way} than three narrow ones with as few parameters)"


QUESTION = Question(
    name="three-roles",
    asks="Do W_Q, W_K, W_V give each vector three different roles?",
    answer=(
        "cost in nats of sharing them, against as few parameters; angles between what they read, the symmetric share of"
        " W_Q W_K^T and what exchanging the two costs, against the untrained model"
    ),
    falsified_by=(
        "One matrix in all three roles costs less than the margin, or no more than heads half as wide; exchanging W_Q"
        " and W_K of a trained model costs less than the margin."
    ),
    literature=(
        "In language models sharing W_K and W_V costs less than sharing W_Q and W_K, which makes scores symmetric"
        " (Kayyam 2026, arXiv 2606.04032, abstract). No paper was found that sets the cost of sharing beside what"
        " exchanging trained W_Q and W_K costs, on the same models."
    ),
    plain=Plain(
        above="Three matrices serve the three roles better than one in all of them.",
        below="One matrix in all three roles does better here than three.",
        slightly="One matrix in all three roles does almost exactly as well as three.",
        equivalent="One matrix in all three roles does as well as three.",
        unresolved="Whether one matrix can serve in all three roles, this run cannot tell.",
    ),
    also=(
        (
            "Q = K = V - narrow",
            Plain(
                above="Nor is that for its fewer parameters: three narrow ones with as few are {effect} nats better.",
                below="That is for its fewer parameters: three narrow ones with as few are {effect} nats worse.",
                slightly="Against three narrow ones with as few parameters it does almost exactly as well.",
                equivalent="Against three narrow ones with as few parameters it does as well.",
                unresolved="Whether that is for its fewer parameters, this run cannot tell.",
            ),
        ),
        (
            "exchanged",
            Plain(
                above=(
                    "The roles of a finished model are its own: with W_Q and W_K in each other's place it is {effect}"
                    " nats worse."
                ),
                below="With W_Q and W_K in each other's place a finished model is {effect} nats better.",
                slightly="With W_Q and W_K in each other's place a finished model is almost exactly as good.",
                equivalent="With W_Q and W_K in each other's place a finished model is as good.",
                unresolved="Whether W_Q and W_K of a finished model can change places, this run cannot tell.",
            ),
        ),
    ),
    heard=(
        "That query, key and value are three *roles* of a word, so there must be three matrices. With W_Q = W_K"
        " scores are symmetric: how much one token looks at another is how much that one looks at it, but for what"
        " the softmax and the mask make of it. Whether that costs anything is no matter of principle."
    ),
    design=_design,
    claim=_claim,
)
