"""If the W matrices are trained, must the embeddings be?

Quick: two vocabularies, word pieces (many more tokens than d_model) and characters. Full: the cost by d_vocab /
d_model, by kind of frozen table, tied and untied, causal and masked, and by token frequency. Full, on a table of
labeled texts: next tokens, hidden tokens and classes. Classes are learned from scratch and from a body pretrained on
hidden tokens of the same texts, which is then frozen (feature-based), trained (fine-tuned), or trained except for W_E.

Both arms of a pair start from the same rows. The size of the rows matters more than whether they are trained: frozen
rows of N(0, 0.02) drown in what the blocks add to them. So the pair that answers the question starts from N(0, 1), and
small rows are a pair of their own.
"""

import dataclasses
import math

from qkv.studies.engine.design import Arm, Contrast, Design, Text
from qkv.studies.expectation import Expected
from qkv.studies.question import Ask, make_design, quick_or_full, read_question
from qkv.studies.verdict.judging import ON_THE_WAY
from qkv.studies.vocabulary import (
    ABOVE,
    ANSWERS,
    BELOW,
    FULL,
    MASKED_LAYOUT,
    QUICK,
    SMALL_ROWS,
    Settings,
    arm,
    cost,
    difference,
    difference_of_costs,
    near,
)

MARGIN = 0.03
"""Nats per token, of word pieces; half of the smallest published cost of freezing attention's W_Q and W_K."""
MARGIN_CHARACTERS = 0.02
_TOLD_SHARE = 0.01
"""Of validation texts that stand within training texts: more is told beside the figures."""
_TOLD_BYTES = 2.0
"""In a token of a text that is not read."""
_BANDS = ("common", "middling", "rare")
_LARGE = 1.0
"""Standard deviation of the rows of W_E at the start; that of the learned positions is 0.02."""
_BY_WIDTH, _NARROW, _WIDE = "narrower models pay more", 32, 128


def _arms(text: str, prefix: str = "", own: Settings | None = None, std: float = _LARGE) -> tuple[Arm, Arm]:
    """W_E trained from rows of N(0, std), and frozen at the same rows."""
    start = f"rows of N(0, {std:g})"
    same: Settings = {**(own or {}), "text": text}
    return (
        arm(f"{prefix}trained", f"W_E trained from {start} ({text})", same, changes=(f"W_E=random({std},train=true)",)),
        arm(f"{prefix}frozen", f"W_E frozen at {start} ({text})", same, changes=(f"W_E=random({std})",)),
    )


def _cost(prefix: str, what: str, expected: Expected | None, margin: float = MARGIN) -> Contrast:
    some, whole = f"{prefix}frozen", f"{prefix}trained"
    return cost(f"{some} - {whole}", what, some, whole, margin, expected=expected)


_SMALL = (
    arm("small trained", "W_E trained from rows of N(0, 0.02) (pieces)", text="pieces"),
    arm("small frozen", "W_E frozen at rows of N(0, 0.02) (pieces)", text="pieces", changes=("W_E=freeze",)),
)
"""The usual start of every matrix, so that the trained arm needs no change."""
_SMALL_COST = _cost("small ", "what freezing W_E at rows of N(0, 0.02) costs", ABOVE)
_PRIMARY = _cost("", "what freezing W_E at random costs", ABOVE)
_MASKED_COST = _cost("masked ", "what freezing costs when masked tokens are predicted", ABOVE)
_CHARACTERS_COST = _cost(
    "characters ", "what freezing costs with characters, d_vocab near d_model", near(0.0, MARGIN_CHARACTERS),
    MARGIN_CHARACTERS,
)  # fmt: skip
_PIECES = Text(tokenizer="bpe", vocab=512)


def _quick(ask: Ask) -> Design:
    what = "the same with characters, d_vocab near d_model"
    return make_design(
        ask,
        study="frozen-embeddings",
        texts={"pieces": _PIECES, "characters": Text()},
        scale=dataclasses.replace(QUICK, val_tokens=16_384),
        arms=(*_arms("pieces"), *_arms("characters", "characters "), *_SMALL),
        contrasts=(_PRIMARY, _cost("characters ", what, near(0.0, MARGIN_CHARACTERS), MARGIN_CHARACTERS), _SMALL_COST),
    )


_MASKED: Settings = {"task": "masked", "layout": MASKED_LAYOUT, "sizes": (("steps", ANSWERS * FULL.steps),)}
_CLASSIFY: Settings = {
    "task": "classify", "sizes": (("batch_size", 64), ("steps", 600)), "probes": ("accuracy",), "lr": 0.003,
}  # fmt: skip
_BEFORE = (
    ("task", "masked"),
    ("lr", 0.003),
    ("changes", SMALL_ROWS),
    ("batch_size", 16),
    ("steps", 2000),
)
"""What the body of a pretrained arm learns first: about three times all tokens of a table of 60,000 phrases."""


def _after_pretraining() -> tuple[Arm, ...]:
    """One body that learned to fill in hidden tokens, and what is trained of it for the labels."""
    same: Settings = {"layout": MASKED_LAYOUT, "text": "labelled", **_CLASSIFY}
    kept = (
        ("fine-tuned", "all of it trained", ()),
        ("fine-tuned, W_E frozen", "all of it but W_E trained", ("W_E=freeze",)),
        ("feature-based", "none of it trained, only the head", ("head=only",)),
    )
    return (
        arm("from scratch", "classifies texts, without pretraining", same, changes=SMALL_ROWS),
        *(
            arm(
                name, f"classifies texts after masked pretraining; {what}", same, changes=changes,
                trainer="pretrained", before=_BEFORE,
            )
            for name, what, changes in kept
        ),
    )  # fmt: skip


_DIFFERENCES = (
    ("classify frozen", "classify trained", "from scratch, rows of N(0, 1): W_E frozen minus W_E trained", BELOW),
    ("fine-tuned, W_E frozen", "fine-tuned", "after pretraining: all but W_E trained, minus all trained", None),
    ("feature-based", "fine-tuned", "after pretraining: only the head trained, minus all trained", BELOW),
    ("fine-tuned", "from scratch", "all trained after pretraining, minus all trained without it", ABOVE),
    ("feature-based", "from scratch", "only the head trained after pretraining, minus all trained without it", None),
)
"""Arm, baseline, what is compared, and what one would expect."""


def _points(arm: str, baseline: str, what: str, expected: Expected | None) -> Contrast:
    return difference(
        f"{arm} - {baseline}", f"accuracy {what}", arm, baseline, "accuracy", 0.5, unit="points of accuracy",
        expected=expected,
    )  # fmt: skip


def _labelled(ask: Ask) -> Design:
    """The three objectives on one table of labelled texts; classes in points of accuracy."""
    labelled = Text(stream="labelled", tokenizer="word", vocab=4000, settings=(("specials", True),))
    return make_design(
        ask,
        study="frozen-embeddings",
        texts={"pieces": _PIECES, "labelled": labelled},
        scale=FULL,
        arms=(
            *_arms("pieces"),
            *_arms("pieces", "masked ", _MASKED),
            *_arms("labelled", "classify ", _CLASSIFY),
            *_after_pretraining(),
        ),
        contrasts=(_PRIMARY, _MASKED_COST, *(_points(*difference) for difference in _DIFFERENCES)),
    )


_ARMS = (
    *_arms("pieces", own={"probes": ("frequency", "rows")}),
    *_arms("characters", "characters "),
    *_arms("many pieces", "many pieces "),
    *_arms("pieces", "wide ", {"sizes": (("d_model", _WIDE), ("n_heads", 4))}),
    *_arms("pieces", "narrow ", {"sizes": (("d_model", _NARROW), ("n_heads", 1))}),
    *_arms("pieces", "masked ", _MASKED),
    *_arms("pieces", "tied ", {"layout": (("tied", True),)}, 0.125),
    *_SMALL,
    arm(
        "orthogonal", "W_E frozen with orthogonal columns", text="pieces",
        changes=("W_E=orthogonal", "W_E=scale(22.627417)"),
    ),
    arm(
        "counts", "W_E frozen at count vectors (PPMI, what skip-gram factorizes)", text="pieces",
        changes=("W_E=random(1.0)",), tables=(("W_E", "counts"),),
    ),
    arm(
        "mapped", "W_E frozen at the same rows but for one trained d_model x d_model map", text="pieces",
        changes=(f"W_E=random({_LARGE},train=true)",), trainer="mapped rows",
    ),
    arm(
        "released", "W_E frozen for the first half", text="pieces",
        changes=("W_E=random(1.0,train=true)", "W_E=freeze@..500"),
    ),
)  # fmt: skip
_KINDS = {
    "orthogonal": "cost of W_E frozen with orthogonal columns",
    "counts": "cost of W_E frozen at count vectors",
    "mapped": "cost of W_E frozen except for one trained map of all rows",
    "released": "cost of W_E frozen for the first half only",
}


def _of_freezing(name: str, what: str, quantity: str, expected: Expected | None = None) -> Contrast:
    """The cost of the main effect in another quantity than the loss at the end."""
    return difference(name, f"what freezing costs {what}", "frozen", "trained", quantity, MARGIN, expected=expected)


_CONTRASTS = (
    _PRIMARY,
    _CHARACTERS_COST,
    _cost("many pieces ", "what freezing costs with 2,048 pieces", None),
    _cost("wide ", f"what freezing costs at d_model {_WIDE} instead of 64", Expected(less_than="frozen - trained")),
    _cost("narrow ", f"what freezing costs at d_model {_NARROW} instead of 64", Expected(more_than="frozen - trained")),
    _MASKED_COST,
    _cost("tied ", "what freezing costs with tied embeddings, where it freezes both", ABOVE),
    _SMALL_COST,
    *(cost(f"{name} - trained", what, name, "trained", MARGIN) for name, what in _KINDS.items()),
    *(
        _of_freezing(
            f"cost on {band} tokens", f"on the {band} third of target tokens", f"loss {band}",
            Expected(more_than="cost on middling tokens") if band == "rare" else None,
        )
        for band in _BANDS
    ),
    *(
        _of_freezing(f"cost {when}", f"{when} of the steps", f"loss {when}")
        for when in (quantity.removeprefix("loss ") for quantity in ON_THE_WAY)
    ),
    difference_of_costs(
        _BY_WIDTH, f"cost at d_model {_NARROW} minus cost at {_WIDE}, with the same 512 pieces",
        ("narrow frozen", "narrow trained"), ("wide frozen", "wide trained"), MARGIN, expected=ABOVE,
    ),
)  # fmt: skip


def _more_pieces(ask: Ask, texts: dict[str, Text]) -> Contrast:
    """In bits per byte: a token of one vocabulary is not one of the other."""
    many, few = (
        1 / math.log(2) / (_TOLD_BYTES if ask.named else ask.corpus(texts[text], FULL.val_tokens).bytes_per_token)
        for text in ("many pieces", "pieces")
    )
    return Contrast(
        name="more pieces cost more",
        what="cost with 2,048 pieces minus cost with 512, at the same d_model",
        terms=(
            (many, "many pieces frozen", "loss"),
            (-many, "many pieces trained", "loss"),
            (-few, "frozen", "loss"),
            (few, "trained", "loss"),
        ),
        margin=0.02,
        unit="bits per byte",
        expected=ABOVE,
    )


def _full(ask: Ask) -> Design:
    if ask.has_labels():
        return _labelled(ask)
    texts = {"pieces": _PIECES, "characters": Text(), "many pieces": Text(tokenizer="bpe", vocab=2048)}
    return make_design(
        ask,
        study="frozen-embeddings",
        texts=texts,
        scale=FULL,
        arms=_ARMS,
        contrasts=(*_CONTRASTS, _more_pieces(ask, texts)),
    )


def _stand_in_others(ask: Ask, design: Design) -> str:
    """Of labelled texts, how many of those that are measured on stand word for word in one that is trained on."""
    if not design.has_labels:
        return ""
    made = ask.corpus(dict(design.texts)["labelled"])
    asked = [tuple(text.split()) for text in made.val.texts]
    lengths = {len(words) for words in asked}
    wanted, found = set(asked), set()
    for words in (text.split() for text in made.train.texts):
        for n in lengths:
            found |= wanted.intersection(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    share = sum(words in found for words in asked) / len(asked)
    if share < _TOLD_SHARE:
        return ""
    return (
        f"{100 * share:.0f}% of the validation texts occur word for word within a training text, as phrases of one"
        " sentence do; so no figure here is about entirely unseen sentences, and memorized texts help"
    )


QUESTION = read_question("frozen-embeddings", design=quick_or_full(_quick, _full), counted=_stand_in_others)
