"""How does the error at the output reach each matrix and each token's embedding? Does it pass through all layers?

The gradient at a block's input is a sum over the paths by which it arrives: skip, V, Q, K, MLP; their shares sum to 1.
Measured on trained and untrained models, with and without skip connections, with the norm before and after each
sublayer, and with small and large rows of W_E.

A norm precedes every sublayer and divides by the size of its input. So the gradient through the first sublayers is
divided by the size of the rows, and the gradient around them only by the size of what the last norm reads. From that we
expected more to come around where rows are large; an arm tests it. Bypassing a single layer and bypassing all of them
are two things: what passes three layers of four by their skip connections still has to enter the first.

Shares say where gradient passes, not whether learning needs it there. So paths are also cut while a model trains
(`stop_gradient`), and the cost is given in nats against the model that cuts nothing:

    cut V          none passes v: nothing reaches what is below along it, and W_V keeps its initial values too
    cut QK         the same for q and k, with W_Q and W_K
    cut attention  none passes what an attention reads: its matrices learn (the gain of the norm before it does not),
                   and what is below gets gradient only through skip connections and MLPs
    cut layers     none passes from the second layer to the first: W_E, W_pos and the first layer stay fixed

What is frozen with a path has an arm of its own (`held V`, `held QK`), so the cost of the path alone is the difference.
What a cut takes from the gradient of everything else is a property of the function: another basis inside a head does
not change it. A cost is that of a training, from this initialization with this optimizer. The baseline is the model
that cuts nothing, and nothing is said about a cut where that model learned no more than answer frequencies. Without
skip connections, a model from N(0, 0.02) learns no more than that; in full there is one from Glorot initialization,
which learns. --quick has `cut V` and `cut QK` only, one depth and one initialization.
"""

import dataclasses
from collections.abc import Sequence

from qkv.studies.engine.design import Arm, Contrast, Design
from qkv.studies.expectation import Expected
from qkv.studies.question import Ask, make_design, read_question
from qkv.studies.vocabulary import (
    ABOVE,
    AT_START,
    BELOW,
    FULL,
    GLOROT,
    QUICK,
    arm,
    cost,
    difference,
    learned,
    level,
    near,
    of_learned,
)

MARGIN = 0.1
_STEPS = 20.0
"""Of as many steps as a training of such a study has, hundreds."""
_COST_MARGIN = 0.03
_PROBES = ("gradient path",)
_LEARNING = (*_PROBES, "learned")
_MOVING = "order of movement"
_UNIT = "of the gradient"


def _share(arm: str, quantity: str, what: str, expected: Expected | None = None) -> Contrast:
    return level(f"{quantity} ({arm})", what, arm, quantity, MARGIN, unit=_UNIT, expected=expected)


def _paths(arm: str, layer: int) -> tuple[Contrast, ...]:
    return tuple(
        _share(arm, f"L{layer}.resid_pre {path}", f"share that reaches the input of layer {layer} through {path}")
        for path in ("skip", "V", "Q", "K", "MLP")
    )


def _upper(arm: str, n_layers: int) -> Contrast:
    """What passes a layer by, of the layers above the first."""
    layers = range(1, n_layers)
    return Contrast(
        name=f"upper layers passed by ({arm})",
        what="share that reaches the input of a layer above the first by its skip connection, mean of those layers",
        terms=tuple((1 / len(layers), arm, f"L{layer}.resid_pre skip") for layer in layers),
        margin=MARGIN,
        unit=_UNIT,
    )


def _value_over_scores(arm: str, expected: Expected | None = None) -> Contrast:
    return Contrast(
        name=f"V - (Q + K) ({arm})",
        what="share through v, minus that through q and k, at the first layer",
        terms=tuple((sign, arm, f"L0.resid_pre {path}") for sign, path in ((1.0, "V"), (-1.0, "Q"), (-1.0, "K"))),
        margin=MARGIN,
        unit=_UNIT,
        expected=expected,
    )


_CUTS = (
    arm("cut V", "no gradient passes v, so W_V keeps its initial values", changes=("L*.v=stop_gradient",)),
    arm(
        "cut QK", "no gradient passes q and k, so W_Q and W_K keep their initial values",
        changes=("L*.[qk]=stop_gradient",),
    ),
    arm(
        "cut attention", "no gradient passes what an attention reads; its matrices are trained",
        changes=("L*.x=stop_gradient",),
    ),
    arm(
        "cut layers", "no gradient passes into the first layer, so that and the embeddings keep their initial values",
        changes=("L1.resid_pre=stop_gradient",),
    ),
)  # fmt: skip
_QUICK_CUTS = _CUTS[:2]
_HELD = (
    arm("held V", "W_V keeps its initial values; gradient passes v", changes=("L*.W_V=freeze",)),
    arm("held QK", "W_Q and W_K keep their initial values; gradient passes q and k", changes=("L*.W_[QK]=freeze",)),
)


def _costs(cuts: Sequence[Arm], held: Sequence[Arm]) -> tuple[Contrast, ...]:
    """Of each cut against cutting nothing, and against holding the same matrices; and whether there was anything to
    lose."""
    gate = learned("trained")
    price = (
        cost(f"{one.name} - trained", f"cost when {one.what}", one.name, "trained", _COST_MARGIN,
             needs=gate.name)
        for one in (*cuts, *held)
    )  # fmt: skip
    of_path = (
        cost(
            f"{one.name.replace('held', 'cut')} - {one.name}",
            f"value of the path alone: cut, minus its matrices frozen ({one.name.removeprefix('held ')})",
            one.name.replace("held", "cut"), one.name, _COST_MARGIN, needs=gate.name,
        )
        for one in held
    )  # fmt: skip
    return (*price, *of_path, gate)


_LARGE = arm(
    "large rows", "rows of W_E from N(0, 1) instead of N(0, 0.02)", changes=("W_E=random(1.0,train=true)",),
    probes=_PROBES,
)  # fmt: skip
_TRAINED = arm("trained", "norm before each sublayer, skip connections", probes=(*_LEARNING, _MOVING))
_UNTRAINED = arm("untrained", "the same model, untrained", AT_START, probes=_PROBES)
_SKIPLESS = arm("skipless", "no skip connections", layout=(("skip", False),), probes=_LEARNING)
_AFTER = arm("norm after", "norm after each sum", layout=(("norm_place", "post"),), probes=_PROBES)
_SGD = arm("sgd", "trained by SGD", optimizer="sgd", lr=0.5, probes=(*_PROBES, _MOVING))
_DEPTHS = tuple(arm(f"{n} layers", f"of {n} layers", sizes=(("n_layers", n),), probes=_PROBES) for n in (2, 6))
_GLOROT = (
    arm("Glorot", "from Glorot initialization", layout=GLOROT, probes=_LEARNING),
    arm(
        "skipless Glorot", "no skip connections, from Glorot initialization", layout=(("skip", False), *GLOROT),
        probes=_LEARNING,
    ),
)  # fmt: skip
"""With and without skip connections where both learn."""


def _around(arm: str, other: str, what: str, expected: Expected | None) -> Contrast:
    return difference(f"around: {arm} - {other}", what, arm, other, "around", MARGIN, unit=_UNIT, expected=expected)


_SIZE = _around(
    "large rows", "trained", "share around all sublayers with large rows, minus that with small ones",
    ABOVE,
)  # fmt: skip
_DEPTH = _around(
    "6 layers", "2 layers", "share around all sublayers with 6 layers, minus that with 2",
    BELOW,
)  # fmt: skip


def _design(ask: Ask) -> Design:
    common = (_TRAINED, _LARGE, _UNTRAINED, _SKIPLESS)
    followed = common if ask.quick else (*common, _AFTER, _SGD, *_DEPTHS, *_GLOROT)
    cuts, held = (_QUICK_CUTS, ()) if ask.quick else (_CUTS, _HELD)
    # Trained in this order: prices of cuts, then what asks whether the start or the optimizer is behind the shares.
    in_full = (_TRAINED, _UNTRAINED, *cuts, *held, _SGD, *_GLOROT, _AFTER, _LARGE, *_DEPTHS, _SKIPLESS)
    scale = (
        dataclasses.replace(QUICK, n_layers=3, evaluations=4) if ask.quick else dataclasses.replace(FULL, n_layers=4)
    )
    return make_design(
        ask,
        study="gradient-path",
        scale=scale,
        arms=(*followed, *cuts) if ask.quick else in_full,
        contrasts=(
            *_of_shares([one.name for one in followed], scale.n_layers),
            *_costs(cuts, held),
            *_order("trained", scale.n_layers),
            *(() if ask.quick else _order("sgd", scale.n_layers)),
        ),
    )


def _of_shares(names: Sequence[str], n_layers: int) -> tuple[Contrast, ...]:
    """Where gradient comes along, and what there is without skip connections."""
    skipless = [name for name in names if name.startswith("skipless")]
    others = [name for name in names if name not in skipless]
    return (
        _share("trained", "around", "share of gradient that reaches the embeddings past all layers", near(0.0, MARGIN)),
        _SIZE,
        *_paths("trained", 0),
        *(_upper(name, n_layers) for name in ("trained", "untrained")),
        *(
            _share(name, "around", f"share of gradient that reaches the embeddings past all layers: {name}")
            for name in others
            if name != "trained"
        ),
        *([_DEPTH] if "6 layers" in names else []),
        *(_value_over_scores(name, ABOVE if name == "large rows" else None) for name in others),
        cost(
            "skipless - trained",
            "cost of removing the skip connections (from N(0, 0.02) such models hardly learn)",
            "skipless", "trained", _COST_MARGIN,
        ),
        *of_learned([_value_over_scores(name) for name in skipless], skipless),
        *(_from_glorot() if "Glorot" in names else ()),
    )  # fmt: skip


def _order(arm: str, n_layers: int) -> tuple[Contrast, ...]:
    """When matrices move, each against its own way."""
    first = {("VO", "W_U"): ABOVE, ("QK", "VO"): ABOVE, ("L0", f"L{n_layers - 1}"): None}
    when = (
        level(
            f"half way {name} ({arm})", f"step at which {name} is halfway to where it ends", arm,
            f"half way {name}", _STEPS, unit="steps",
        )
        for name in ("W_U", "W_E", "VO", "QK", "MLP")
    )  # fmt: skip
    later = (
        Contrast(
            name=f"half way {a} - {b} ({arm})", what=f"how many steps later {a} is halfway than {b}",
            terms=((1.0, arm, f"half way {a}"), (-1.0, arm, f"half way {b}")), margin=_STEPS, unit="steps",
            expected=expected,
        )
        for (a, b), expected in first.items()
    )  # fmt: skip
    return (*when, *later)


def _from_glorot() -> tuple[Contrast, ...]:
    """What skip connections are worth where a model without them learns."""
    plain, skipless = (one.name for one in _GLOROT)
    what = "cost of removing the skip connections, from Glorot initialization"
    gate = learned(plain)
    return cost(f"{skipless} - {plain}", what, skipless, plain, _COST_MARGIN, needs=gate.name), gate


QUESTION = read_question("gradient-path", design=_design)
