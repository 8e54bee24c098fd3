"""What does the model know of order without positions?

Attention weighs a set; order comes in by positions. A causal model has another way: the first token sees one, the
second two, so the mask itself tells how far along a vector is. Positions are left out, added as rows (sinusoidal or
learned) or turned into q and k (rotary), in models that predict the next token and in models that see both sides.
Beside the loss: how well a linear probe reads the position from vectors, on windows held out, and what it costs to
shuffle the tokens around. Each kind of positions is compared with having none, all asked at once. The first is
rotary, the kind of today's models: no kind is the baseline of the others, so none looks good, or having none harmless,
by the weakness of another. All arms start by Glorot: at N(0, 0.02) a model that sees both sides stays for long where
only the frequencies of tokens are known, whatever its positions, and in short trainings nothing would be told.
"""

from qkv.studies.engine.design import Arm, Contrast, Design, Pairs, Text
from qkv.studies.question import Accounts, Ask, Claim, Plain, Question, by_verdict, make_design, quick_or_full
from qkv.studies.verdict.judging import Findings
from qkv.studies.vocabulary import AT_START, FULL, GLOROT, QUICK, Settings, arm, cost, difference_of_costs, level
from qkv.words import amount

__all__ = ["QUESTION"]

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
    "causal, none, untrained", "the causal model without positions at its start", _of("none"), AT_START
)  # fmt: skip


def _cost(task: str, positions: str, prefix: str = "", expected: str = "") -> Contrast:
    """What having none costs, against one kind of positions."""
    none, with_them = (f"{prefix}{task}, {p}" for p in ("none", positions))
    what = f"loss of {none}, less that of the same with {positions} positions"
    return cost(f"{none} - {with_them}", what, none, with_them, MARGIN, expected=expected)


def _read_at(arm: str, layer: int = _LAYERS, expected: str = "") -> Contrast:
    """How well the position is read from the vectors after so many layers; the last is told without its number."""
    place, where = ("", "the last layer's") if layer == _LAYERS else (f", layer {layer}", f"layer {layer}'s")
    return level(
        f"position read{place}: {arm}",
        f"how far a linear probe of {where} vectors gets from guessing the position (0) to reading it (1)", arm,
        f"position {layer}", _KNOWN, unit="of the way", expected=expected,
    )  # fmt: skip


def _order(arm: str, expected: str = "", constant: bool = False) -> Contrast:
    what = "loss with the other tokens of a window shuffled, less the loss"
    return level(f"order used: {arm}", what, arm, "order", MARGIN, expected=expected, constant=constant)


_COSTS = (
    *(_cost("causal", kind, expected="above 0, and small") for kind in _KINDS),
    _cost("masked", "rotary", expected="above 0, and large"),
)
_READ = (
    _read_at("causal, none", expected="above 0: the mask tells how many tokens are seen"),
    _read_at("causal, none, untrained"),
    _read_at("causal, learned", expected="near 1"),
    _read_at("masked, none", expected="0: nothing there tells one place from another"),
    _order("causal, none", "above 0"),
    _order("causal, rotary", "above 0"),
    _order("masked, none", "0 by construction", constant=True),
    _order("masked, rotary", "above 0"),
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
            _cost("masked", "rotary", "short ", expected="above 0, and large"),
            difference_of_costs(
                "masked - causal",
                "cost of having no positions, against rotary ones, to a masked model less that to a causal one",
                ("masked, none", "masked, rotary"), ("causal, none", "causal, rotary"), MARGIN, expected="above 0",
            ),
            _cost("causal", "rotary", "chain ", expected="above 0: one place back is all there is to look at"),
            _cost("masked", "rotary", "chain ", expected="above 0, and large"),
            *_READ,
            *_by_layer(),
        ),
    )  # fmt: skip


def _of_kind(findings: Findings, kind: str) -> str:
    """How a causal model with positions of another kind does beside one without."""
    result = findings.effect(f"causal, none - causal, {kind}").told
    return by_verdict(
        result,
        unresolved="whether {kind} ones help is open",
        equivalent="with {kind} ones as well as without",
        above="with {kind} ones {small}better than without, by {size} nats",
        below="with {kind} ones {small}worse than without, by {size} nats",
        small="a little ",
        kind=kind,
        size=amount(abs(result.effect or 0.0), False),
    )


def _of_masked(findings: Findings) -> str:
    """What having none costs a model that sees both sides."""
    name = "masked, none - masked, "
    result = next(e for e in findings.effects if e.contrast.name.startswith(name)).told
    return by_verdict(
        result,
        unresolved="what having none does to one that sees both sides is open",
        equivalent="one that sees both sides loses nothing by having none",
        above="having none sets one that sees both sides back by {small}{size} nats",
        below="one that sees both sides gains {small}by having none",
        small="a little ",
        size=amount(result.effect, False),
    )


def _of_others(findings: Findings) -> str:
    return f" ({'; '.join([*(_of_kind(findings, kind) for kind in _KINDS[1:]), _of_masked(findings)])})"


QUESTION = Question(
    name="positions",
    asks="What does the model know of order without positions?",
    answer=(
        "cost in nats of having no positions, against rotary, learned and sinusoidal ones, causal and masked; how well"
        " a linear probe reads the position by layer; what shuffling the tokens around costs"
    ),
    falsified_by=(
        "A causal model without positions tells a linear probe nothing of where a vector stands; a masked one tells it"
        " anything, or loses no more by having none than a causal one does."
    ),
    literature=(
        "Causal language models without positions are competitive with those that have them, since the mask lets them"
        " learn where they are (Haviv et al. 2022, arXiv 2203.16634, abstract), which was found with far larger models"
        " in far longer trainings: what small ones lose by having none is another matter, and told above. Models that"
        " see both sides cannot tell orders apart without positions, which is a theorem (tests hold it). Their figures"
        " are known to us from notes only, so none is printed. That rotary positions come first here was chosen after a"
        " quick run had been seen in which learned ones did; a new quick run has its seeds again, so a full run is the"
        " test of it."
    ),
    plain=Plain.of(
        above="A causal model does worse without positions than with rotary ones.",
        below="A causal model does better here without positions than with rotary ones.",
        same="A causal model does {almost exactly }as well without positions as with rotary ones.",
        unresolved="Whether a causal model needs positions, this run cannot tell.",
    ),
    also={
        "order used: causal, none": Plain(
            above=(
                "It knows something of order even so, for its mask shows how much it sees: with the other tokens of"
                " its window shuffled it is {effect} nats worse."
            ),
            below="With the other tokens of its window shuffled it is even better, by {effect} nats.",
            slightly="With the other tokens of its window shuffled it is almost exactly as good.",
            equivalent="It makes nothing of order: with the other tokens of its window shuffled it is as good.",
            unresolved="Whether it makes anything of order even so, this run cannot tell.",
        ),
        "masked - causal": Plain.of(
            above="One that sees both sides misses them more, by {effect} nats a token.",
            below="One that sees both sides misses them less, by {effect} nats a token.",
            same="One that sees both sides misses them {almost exactly }as much.",
            unresolved="Whether one that sees both sides misses them more, this run cannot tell.",
        ),
    },
    accounts=Accounts(
        columns=tuple(f"position read, layer {layer}" for layer in range(_LAYERS + 1)),
        rows=tuple((arm, tuple(_read_at(arm, layer).name for layer in range(_LAYERS + 1))) for arm in _PROBED),
    ),
    heard=(
        "That without positions a Transformer sees a bag of words. Of models that see both sides it is a theorem:"
        " order of the input in, order of the output out, nothing else changed. A causal mask breaks it, for the"
        " third token sees three and the fourth sees four."
    ),
    design=quick_or_full(_quick, _full),
    claim=Claim(
        unresolved=(
            "Whether a causal model is the better for rotary positions is not settled by this run{beside}; {ends}"
        ),
        equivalent="A causal model does as well without positions as with rotary ones{beside}: {ends}",
        above="A causal model is better with rotary positions than without{small}{beside}: {ends}",
        below="A causal model is better without positions than with rotary ones{small}{beside}: {ends}",
        ends="without them the loss of a causal model changes by",
        beside=_of_others,
    ),
)
