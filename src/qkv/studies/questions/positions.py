"""What does the model know of order without positions?

Attention weighs a set; positions bring in order. A causal model has another way: the first token sees one token, the
second two, so the mask itself tells how far along a vector is. Positions are left out, added as rows (sinusoidal or
learned) or applied to q and k (rotary), in models that predict the next token and in models that see both sides.
Besides the loss: how well a linear probe reads the position from vectors of held-out windows, and what shuffling the
other tokens costs. Each kind of positions is compared with having none. The first is rotary, the kind of today's
models. No kind is the baseline of the others, so none looks good because another is weak. All arms use Glorot
initialization: at N(0, 0.02), a model that sees both sides long learns token frequencies only, whatever its positions,
and short trainings would show nothing.
"""

from qkv.studies.engine.design import Arm, Contrast, Design, Pairs, Text
from qkv.studies.expectation import Expected
from qkv.studies.question import Ask, make_design, quick_or_full, read_question
from qkv.studies.vocabulary import (
    ABOVE,
    AT_START,
    FULL,
    GLOROT,
    QUICK,
    Settings,
    arm,
    cost,
    difference_of_costs,
    level,
    near,
)

MARGIN = 0.03
_KNOWN = 0.05
"""Of the way from guessing a position to reading it exactly."""
_WORDS = {
    "none": "no positions",
    "learned": "learned rows added to the embeddings",
    "sinusoidal": "sines and cosines added to the embeddings",
    "rotary": "q and k turned by their position",
}
_TASKS = {"causal": "predicts the next token", "masked": "predicts masked tokens"}
_KINDS = ("rotary", "learned", "sinusoidal")
"""What having none is compared with; the first is primary."""
_TWO = ("rotary", "none")
_LAYERS = QUICK.n_layers
"""Of all its models, quick and full."""
_WHERE = {"short ": "; in windows of 8", "chain ": "; of a made chain, in windows of 8"}


def _of(positions: str) -> Settings:
    return {"layout": (("positions", positions), *GLOROT), "probes": ("position", "order")}


def _short(batch_size: int) -> Pairs:
    """Windows in which order is learned soon, as many tokens a step as at the scale of the study."""
    return (("n_ctx", 8), ("batch_size", batch_size))


def _arm(task: str, positions: str, prefix: str = "", text: str = "text", sizes: Pairs = ()) -> Arm:
    what = f"{_TASKS[task]}; {_WORDS[positions]}{_WHERE.get(prefix, '')}"
    return arm(f"{prefix}{task}, {positions}", what, _of(positions), task=task, text=text, sizes=sizes)


_UNTRAINED = arm(
    "causal, none, untrained", "the causal model without positions, untrained", _of("none"), AT_START
)  # fmt: skip


def _cost(task: str, positions: str, prefix: str = "", expected: Expected | None = None) -> Contrast:
    """What having none costs, against one kind of positions."""
    none, with_them = (f"{prefix}{task}, {p}" for p in ("none", positions))
    what = f"loss of {none}, minus that of the same with {positions} positions"
    return cost(f"{none} - {with_them}", what, none, with_them, MARGIN, expected=expected)


def _read_at(arm: str, layer: int = _LAYERS, expected: Expected | None = None) -> Contrast:
    """How well the position is read from the vectors after so many layers; the last is told without its number."""
    place, where = ("", "the last layer's") if layer == _LAYERS else (f", layer {layer}", f"layer {layer}'s")
    return level(
        f"position read{place}: {arm}",
        f"how far a linear probe of {where} vectors gets from guessing the position (0) to reading it (1)", arm,
        f"position {layer}", _KNOWN, unit="of the way", expected=expected,
    )  # fmt: skip


def _order(arm: str, expected: Expected | None = None, constant: bool = False) -> Contrast:
    what = "loss with the other tokens of a window shuffled, minus the loss"
    return level(f"order used: {arm}", what, arm, "order", MARGIN, expected=expected, constant=constant)


_COSTS = (
    *(_cost("causal", kind, expected=ABOVE) for kind in _KINDS),
    _cost("masked", "rotary", expected=ABOVE),
)
_READ = (
    _read_at("causal, none", expected=ABOVE),
    _read_at("causal, none, untrained"),
    _read_at("causal, learned", expected=near(1.0, 0.1)),
    _read_at("masked, none", expected=near(0.0, _KNOWN)),
    _order("causal, none", ABOVE),
    _order("causal, rotary", ABOVE),
    _order("masked, none", near(0.0, MARGIN), constant=True),
    _order("masked, rotary", ABOVE),
)
_PROBED = ("causal, none, untrained", *(f"{task}, {kind}" for task in _TASKS for kind in ("none", *_KINDS)))
"""Arms of a full run whose vectors are read after every layer."""


def _by_layer() -> tuple[Contrast, ...]:
    """What `_READ` leaves out of reading positions after every layer."""
    told = {contrast.name for contrast in _READ}
    each = (_read_at(arm, layer) for arm in _PROBED for layer in range(_LAYERS + 1))
    return tuple(contrast for contrast in each if contrast.name not in told)


def _quick(ask: Ask) -> Design:
    return make_design(
        ask,
        study="positions",
        scale=QUICK,
        arms=(
            *(_arm("causal", positions) for positions in _WORDS),
            *(_arm("masked", positions, sizes=_short(64)) for positions in _TWO),
            _UNTRAINED,
        ),
        contrasts=(*_COSTS, *_READ),
    )


def _full(ask: Ask) -> Design:
    short = _short(128)
    rule = (("states", 12), ("sharpness", 2.0), ("noise", 0.1), ("tokens", 400_000), ("val_tokens", 16_384))
    return make_design(
        ask,
        study="positions",
        texts={"text": Text(), "chain": Text(stream="markov", settings=rule)},
        scale=FULL,
        arms=(
            *(_arm(task, positions) for task in _TASKS for positions in _WORDS),
            _UNTRAINED,
            *(_arm("masked", positions, "short ", sizes=short) for positions in _TWO),
            *(_arm(task, positions, "chain ", "chain", short) for task in _TASKS for positions in _TWO),
        ),
        contrasts=(
            *_COSTS,
            _cost("masked", "learned"),
            _cost("masked", "sinusoidal"),
            _cost("masked", "rotary", "short ", expected=ABOVE),
            difference_of_costs(
                "masked - causal",
                "cost of having no positions, against rotary ones, to a masked model minus that to a causal one",
                ("masked, none", "masked, rotary"), ("causal, none", "causal, rotary"), MARGIN, expected=ABOVE,
            ),
            _cost("causal", "rotary", "chain ", expected=ABOVE),
            _cost("masked", "rotary", "chain ", expected=ABOVE),
            *_READ,
            *_by_layer(),
        ),
    )  # fmt: skip


QUESTION = read_question("positions", design=quick_or_full(_quick, _full))
