"""Does what others have found show here too?

A study engine that cannot see known effects would have nothing to say about unknown ones. Each row is a published
result with its direction, tested at this scale with every learning rate tuned: positions in masked and causal models,
frozen W_Q and W_K on text and in recall, W_V = W_O = I with and without skip connections, shared matrices, embeddings
alone on modular addition, and rare tokens under SGD. A row that is unresolved or reversed says which effect it could
have detected.
"""

import dataclasses

from qkv.studies.engine.design import Arm, Contrast, Design, Text
from qkv.studies.question import Ask, make_design, read_question
from qkv.studies.questions.only_embeddings import ADDED, addition
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
    difference_of_costs,
    of_learned,
    shared,
)

MARGIN = 0.03
"""Nats per token."""
_POINTS = 5.0
"""Of 100 answers."""
_SHORT = 8
"""Tokens of a window in which a masked model learns order within a study, as many a step as elsewhere."""
_SKIPS: Settings = {"layout": GLOROT, "probes": ("learned",)}
_SKIPLESS: Settings = {"layout": (("skip", False), *GLOROT), "probes": ("learned",)}
"""From N(0, 0.02) a model without skip connections learns the frequencies of characters and no more."""
_VO = ("L*.W_[VO]=identity",)
_QK = ("L*.W_[QK]=freeze",)
_Row = tuple[tuple[Arm, ...], tuple[Contrast, ...]]


def _positions(batch_size: int) -> _Row:
    arms = tuple(
        arm(
            f"{task}, {name}", f"{words}, {name}, windows of {_SHORT}", task=task,
            layout=(("positions", kind), *GLOROT), sizes=(("n_ctx", _SHORT), ("batch_size", batch_size)),
        )
        for task, words in (("causal", "predicts the next token"), ("masked", "predicts masked tokens"))
        for kind, name in (("learned", "positions"), ("none", "no positions"))
    )  # fmt: skip
    matter = difference_of_costs(
        "positions matter to masked models",
        "cost of having no positions when masked tokens are predicted, minus that when the next one is",
        ("masked, no positions", "masked, positions"), ("causal, no positions", "causal, positions"), MARGIN,
        expected=ABOVE,
    )  # fmt: skip
    return arms, (matter,)


def _rare() -> _Row:
    arms = tuple(
        arm(f"pieces, {kind}", f"word pieces, {words}", text="pieces", optimizer=kind, lr=lr, probes=("frequency",))
        for kind, words, lr in (("adamw", "AdamW", 0.01), ("sgd", "SGD without momentum", 0.5))
    )
    pair = ("pieces, sgd", "pieces, adamw")
    stalls = difference_of_costs(
        "SGD stalls on rare tokens",
        "gap of SGD to AdamW on the rarest third of targets, minus that on the commonest third",
        pair, pair, MARGIN, ("loss rare", "loss common"), expected=ABOVE,
    )  # fmt: skip
    return arms, (stalls,)


def _matrices() -> _Row:
    arms = (
        arm("causal", "predicts the next token"),
        arm("QK frozen", "W_Q and W_K frozen at N(0, 0.02)", changes=_QK),
        *(arm(f"{a} = {b}", f"one matrix serves as W_{a} and W_{b}", changes=shared(a + b)) for a, b in ("QK", "KV")),
        arm("with skips", "predicts the next token, from Glorot's start", _SKIPS),
        arm("with skips, VO identity", "the same with W_V = W_O = I", _SKIPS, changes=_VO),
        arm("skipless", "the same without skip connections", _SKIPLESS),
        arm("skipless, VO identity", "without skip connections, W_V = W_O = I", _SKIPLESS, changes=_VO),
    )
    cheaper = difference_of_costs(
        "W_V = W_O = I is cheaper without skips",
        "cost of W_V = W_O = I with skip connections minus that without, from Glorot's start",
        ("with skips, VO identity", "with skips"), ("skipless, VO identity", "skipless"), MARGIN, expected=ABOVE,
    )  # fmt: skip
    return arms, (
        cost(
            "QK frozen - causal", "cost of freezing W_Q and W_K at N(0, 0.02)", "QK frozen", "causal", MARGIN,
            expected=ABOVE,
        ),
        cost("sharing: Q = K - K = V", "cost of W_Q = W_K minus that of W_K = W_V", "Q = K", "K = V", MARGIN,
             expected=ABOVE),
        *of_learned((cheaper,), ("skipless",)),
    )  # fmt: skip


def _recall() -> _Row:
    recalled: Settings = {**LEARNS_RECALL, "probes": ("answers",)}
    arms = (
        arm("recall", "associative recall, everything trained", recalled),
        arm("recall, QK frozen", "the same, W_Q and W_K frozen", recalled, changes=_QK),
    )
    still = Contrast(
        name="frozen W_Q and W_K still recall",
        what="correct answers with W_Q and W_K frozen, minus 90% of those with everything trained",
        terms=((1.0, "recall, QK frozen", "answers"), (-0.9, "recall", "answers")),
        margin=_POINTS,
        unit="points of 100",
        expected=ABOVE,
    )
    return arms, (still,)


_TEXTS = {
    "text": Text(),
    "pieces": Text(tokenizer="bpe", vocab=512),
    "addition": ADDED,
    "recall": RECALLED,
}


def _design(ask: Ask) -> Design:
    scale = dataclasses.replace(QUICK, evaluations=4) if ask.quick else FULL
    rows = [_positions(scale.batch_size * scale.n_ctx // _SHORT), _rare()]
    if not ask.quick:
        rows += [addition("addition"), _matrices(), _recall()]
    used = {arm.text for arms, _ in rows for arm in arms}
    return make_design(
        ask,
        study="known-results",
        texts={name: text for name, text in _TEXTS.items() if name in used},
        scale=scale,
        arms=tuple(arm for arms, _ in rows for arm in arms),
        contrasts=tuple(contrast for _, contrasts in rows for contrast in contrasts),
    )


QUESTION = read_question("known-results", design=_design)
