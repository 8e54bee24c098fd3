"""Does what others have found show here too?

A study engine that cannot see known effects would have nothing to say about unknown ones. Each row is a result from the
literature with the direction that it leads one to expect, asked again at this scale, with every learning rate tuned:
positions in masked and causal models, frozen W_Q and W_K on text and on recall, W_V = W_O = I with and without skip
connections, shared matrices, embeddings alone on modular addition, and rare tokens under SGD. Where a row is unresolved
or turns the other way, it says so with what it could have seen.
"""

import dataclasses

from qkv.studies.engine.design import Arm, Contrast, Design, Text
from qkv.studies.question import Ask, Plain, Question, by_verdict, make_design
from qkv.studies.questions.only_embeddings import ADDED, addition
from qkv.studies.verdict.comparison import Comparison
from qkv.studies.verdict.judging import Findings
from qkv.studies.vocabulary import (
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

__all__ = ["QUESTION"]

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
        "cost of having no positions when masked tokens are predicted, less that when the next one is",
        ("masked, no positions", "masked, positions"), ("causal, no positions", "causal, positions"), MARGIN,
        expected="above 0: without positions attention that sees both sides cannot tell orders apart",
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
        "by how much SGD lies behind AdamW on the rarest third of targets, less that on the commonest third",
        pair, pair, MARGIN, ("loss rare", "loss common"), expected="above 0",
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
        "cost of W_V = W_O = I with skip connections, less that without, from Glorot's start",
        ("with skips, VO identity", "with skips"), ("skipless, VO identity", "skipless"), MARGIN, expected="above 0",
    )  # fmt: skip
    return arms, (
        cost(
            "QK frozen - causal", "cost of freezing W_Q and W_K at N(0, 0.02)", "QK frozen", "causal", MARGIN,
            expected="above 0",
        ),
        cost("sharing: Q = K - K = V", "cost of W_Q = W_K, less that of W_K = W_V", "Q = K", "K = V", MARGIN,
             expected="above 0"),
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
        what="answers told rightly with W_Q and W_K frozen, less nine tenths of those with everything trained",
        terms=((1.0, "recall, QK frozen", "answers"), (-0.9, "recall", "answers")),
        margin=_POINTS,
        unit="points of 100",
        expected="above 0",
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


def _claim(findings: Findings) -> str:
    """By how many rows went as expected; the primary one is about positions."""
    needed = {gate for effect in findings.effects for gate in effect.contrast.gates}
    asked = [effect.told for effect in findings.effects if effect.contrast.name not in needed]
    results = [result for result in asked if result.n or result.verdict == "left out"]
    told = [result for result in results if result.verdict == "differs"]
    as_expected = sum((result.effect or 0.0) > 0 for result in told)
    unresolved, left = (sum(result.verdict == what for result in results) for what in ("unresolved", "left out"))
    small = len(results) - len(told) - unresolved - left
    is_open = any(e.result.verdict == "unresolved" for e in findings.effects if e.contrast.name in needed)
    not_learned = f", {left} would need what {'is not shown to be' if is_open else 'was not'} learned here"
    not_learned *= left > 0
    return (
        f"Of {len(results)} known results {as_expected} {'shows' if as_expected == 1 else 'show'} here as published,"
        f" {len(told) - as_expected} the other way round, {small} {'is' if small == 1 else 'are'} too small to matter,"
        f" {unresolved} cannot be told at this scale{not_learned}; {_of_positions(findings.primary.result)}; the"
        f" difference of the two costs is"
    )


def _of_positions(result: Comparison) -> str:
    """What the primary row says."""
    return by_verdict(
        result,
        unresolved=(
            "whether having no positions costs a masked model more than a causal one is not settled by this run"
        ),
        equivalent="having no positions costs a masked model as much as a causal one",
        above="having no positions costs a masked model more than a causal one{small}",
        below="having no positions costs a masked model less than a causal one{small}",
        small=", though by less than would matter",
    )


QUESTION = Question(
    name="known-results",
    asks="Does what others have found show here too?",
    answer="each known result as an effect with its direction, or what could have been seen at this scale",
    falsified_by="A row differs in the other direction than the one in its last column.",
    literature=(
        "Without positions a causal language model loses little (Haviv et al. 2022, arXiv 2203.16634), while attention"
        " that sees both sides cannot tell orders apart at all; the row is of the difference alone, and a causal model"
        " loses here too (`positions` has the cost of each). Embeddings alone over random bodies learned modular"
        " addition in wide models (Zhong and Andreas 2024, arXiv 2410.04368, abstract); that row needs a model that"
        " tells sums it was not shown, asked for after a full run with numbers below 31, where it had the 865 sums of"
        " training by heart and hardly any other; since then numbers are below 97. Without the skip connection around"
        " attention W_V = W_O = I matched a standard block, with it it was slightly worse (He and Hofmann 2023, arXiv"
        " 2311.01906; their attention is shaped and their MLPs keep their skip connections, ours do neither). Sharing"
        " W_K and W_V costs less than sharing W_Q and W_K (Kayyam 2026, arXiv 2606.04032, abstract). That Adam's lead"
        " on SGD comes from rare tokens, that freezing W_Q and W_K costs a language model something, and that models"
        " with random frozen W_Q and W_K still recall, we know only from notes on papers that we have not read; none of"
        " their figures is printed. Of what freezing W_Q and W_K costs the direction alone is asked: here it is more"
        " than in those notes, and `which-matrix` asks it from another start too."
    ),
    plain=Plain(
        above="As published, having no positions sets a model that sees both sides back further than a causal one.",
        below="Having no positions sets a model that sees both sides back less than a causal one, not more.",
        slightly="Having no positions sets a model that sees both sides back almost exactly as far as a causal one.",
        equivalent="Having no positions sets a model that sees both sides back as far as a causal one, not further.",
        unresolved="Whether having no positions sets a model that sees both sides back further, this run cannot tell.",
    ),
    also={
        "embeddings alone add when wide": Plain(
            above="As published, embeddings alone over a random body add better in a wide model.",
            below="Embeddings alone over a random body add worse in a wide model, not better.",
            slightly="Embeddings alone over a random body add almost exactly as well in a wide and a narrow model.",
            equivalent="Embeddings alone over a random body add no better in a wide model.",
            unresolved="Whether embeddings alone over a random body add better in a wide model cannot be told.",
        ),
        "QK frozen - causal": Plain(
            above="As published, freezing W_Q and W_K costs something: {effect} nats a token.",
            below="Freezing W_Q and W_K does good, not harm: {effect} nats a token.",
            slightly="Freezing W_Q and W_K costs next to nothing.",
            equivalent="Freezing W_Q and W_K costs nothing that matters.",
            unresolved="Whether freezing W_Q and W_K costs something cannot be told.",
        ),
        "sharing: Q = K - K = V": Plain(
            above="As published, one matrix for W_Q and W_K costs more than one for W_K and W_V.",
            below="One matrix for W_Q and W_K costs less than one for W_K and W_V, not more.",
            slightly="One matrix for W_Q and W_K costs almost exactly as much as one for W_K and W_V.",
            equivalent="One matrix for W_Q and W_K costs as much as one for W_K and W_V, not more.",
            unresolved="Whether one matrix for W_Q and W_K costs more than one for W_K and W_V cannot be told.",
        ),
        "SGD stalls on rare tokens": Plain(
            above="As published, SGD lies further behind AdamW on rare tokens than on common ones.",
            below="SGD lies less far behind AdamW on rare tokens than on common ones, not further.",
            slightly="SGD lies almost exactly as far behind AdamW on rare tokens as on common ones.",
            equivalent="SGD lies as far behind AdamW on rare tokens as on common ones, not further.",
            unresolved="Whether SGD lies further behind AdamW on rare tokens than on common ones cannot be told.",
        ),
        "W_V = W_O = I is cheaper without skips": Plain(
            above="As published, W_V = W_O = I is cheaper without skip connections than with them.",
            below="W_V = W_O = I is dearer without skip connections than with them, not cheaper.",
            slightly="W_V = W_O = I costs almost exactly as much without skip connections as with them.",
            equivalent="W_V = W_O = I costs as much without skip connections as with them, not less.",
            unresolved="Whether W_V = W_O = I is cheaper without skip connections cannot be told.",
        ),
        "frozen W_Q and W_K still recall": Plain.of(
            above="As published, with W_Q and W_K frozen a model recalls over nine tenths of what it else would.",
            below="With W_Q and W_K frozen a model recalls less than nine tenths of what it else would.",
            same="With W_Q and W_K frozen a model recalls {almost exactly }nine tenths of what it else would.",
            unresolved="Whether a model with frozen W_Q and W_K still recalls cannot be told.",
        ),
    },
    design=_design,
    claim=_claim,
)
