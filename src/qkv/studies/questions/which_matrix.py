"""Which of W_Q, W_K, W_V, W_O matters, and what does W = I (so that q = k = v = x) cost?

Each matrix and the pairs QK and VO are frozen at their initial values, set to the identity, or shared, with the MLP for
comparison; with and without skip connections; on text and in associative recall. Scores depend only on W_Q W_K^T and
outputs only on W_V W_O, so the other factor can compensate for a frozen one: the interactions Q x K and V x O are the
finding. On the models where everything is trained, the cost of resetting each matrix and the ledger are compared with
the cost of freezing.
"""

from qkv.presets import find as find_preset
from qkv.studies.engine.design import Arm, Contrast, Design, Text
from qkv.studies.expectation import Expected
from qkv.studies.question import Ask, make_design, quick_or_full, read_question
from qkv.studies.vocabulary import (
    ABOVE,
    BELOW,
    FULL,
    GLOROT,
    LEARNS_RECALL,
    QUICK,
    RECALLED,
    Settings,
    arm,
    cost,
    difference_of_costs,
    level,
    near,
    of_learned,
    shared,
)

MARGIN = 0.03
_FROZEN = {
    "Q": ("L*.W_Q=freeze",),
    "K": ("L*.W_K=freeze",),
    "QK": ("L*.W_[QK]=freeze",),
    "V": ("L*.W_V=freeze",),
    "O": ("L*.W_O=freeze",),
    "VO": ("L*.W_[VO]=freeze",),
}
_ACCOUNTS = {"Q": "W_Q", "K": "W_K", "V": "W_V", "O": "W_O", "QK": "QK", "VO": "VO", "MLP": "MLP"}
"""What is frozen -> the same in the names of probes."""
_PAIRS = ("QK", "VO")


def _name(what: str) -> str:
    return f"{what} frozen"


def _matrices(letters: str) -> str:
    return " and ".join(f"W_{letter}" for letter in letters)


def _frozen(what: str, prefix: str = "", *common: Settings) -> Arm:
    words = f"{_matrices(what)} frozen at random initial values"
    return arm(f"{prefix}{_name(what)}", words, *common, changes=_FROZEN[what])


def _interaction(pair: str) -> Contrast:
    a, b = pair
    return difference_of_costs(
        f"{a} x {b}", f"cost of freezing both W_{a} and W_{b}, minus the two costs of freezing one",
        (_name(pair), _name(a)), (_name(b), "trained"), MARGIN,
        expected=ABOVE,
    )  # fmt: skip


def _order(prefix: str = "", expected: Expected = ABOVE, unit: str = "nats per token") -> Contrast:
    return cost(
        f"{prefix}VO - QK", "cost of freezing W_V and W_O, minus cost of freezing W_Q and W_K",
        f"{prefix}{_name('VO')}", f"{prefix}{_name('QK')}", MARGIN, unit=unit, expected=expected,
    )  # fmt: skip


def _cost(name: str, prefix: str = "", unit: str = "nats per token") -> Contrast:
    some, whole = f"{prefix}{name}", f"{prefix}trained"
    return cost(f"{some} - trained", f"cost of {some}", some, whole, MARGIN, unit=unit)


def _pair_costs(prefix: str, unit: str = "nats per token") -> tuple[Contrast, ...]:
    return tuple(_cost(_name(pair), prefix, unit) for pair in _PAIRS)


_OTHERS = {
    "set back": ("increase in loss when reset to initial values:", "reset"),
    "earned": ("drop in loss due to the change:", "earned"),
}
"""Accounts of the model in which everything was trained -> in words, and the name of their probe."""


def _accounts() -> tuple[Contrast, ...]:
    """Reset-time cost and ledger of the model in which everything was trained, and whose order each of them is."""
    each = (
        level(f"{name} {word}", f"{words} {name}, everything trained", "trained", f"{probe} {place}", MARGIN)
        for name, place in _ACCOUNTS.items()
        for word, (words, probe) in _OTHERS.items()
    )
    order = (
        Contrast(
            name=f"VO - QK, {word}",
            what=f"{words} VO minus QK",
            terms=((1.0, "trained", f"{probe} VO"), (-1.0, "trained", f"{probe} QK")),
            margin=MARGIN,
        )
        for word, (words, probe) in _OTHERS.items()
    )
    return (*each, *order)


_ALL_IDENTITY, _VO_IDENTITY = ("L*.W_[QKVO]=identity",), ("L*.W_[VO]=identity",)
_FIRST = (
    arm("trained", "everything trained", probes=("reset", "ledger", "drift")),
    *map(_frozen, _FROZEN),
    arm("MLP frozen", "W_in and W_out frozen, for comparison", changes=("L*.W_in,L*.W_out=freeze",)),
)
_CHANGED = (
    arm("QK identity", "W_Q = W_K = I: q = k = x", changes=("L*.W_[QK]=identity",)),
    arm("VO identity", "W_V = W_O = I: v = x", changes=_VO_IDENTITY),
    arm("all identity", "W_Q = W_K = W_V = W_O = I: q = k = v = x", changes=_ALL_IDENTITY),
    *(arm(f"{a} = {b}", f"one matrix serves as W_{a} and W_{b}", changes=shared(a + b)) for a, b in ("QK", "KV")),
    *(
        arm(f"{letter} identity", f"W_{letter} = I: {what}, the rest trained", changes=(f"L*.W_{letter}=identity",))
        for letter, what in {
            "Q": "q = x",
            "K": "k = x",
            "V": "v = x",
            "O": "heads write to separate coordinates",
        }.items()
    ),
)


def _quick(ask: Ask) -> Design:
    return make_design(
        ask,
        study="which-matrix",
        scale=QUICK,
        arms=_FIRST,
        contrasts=(_order(), *(_cost(one.name) for one in _FIRST[1:]), *map(_interaction, _PAIRS), *_accounts()),
        replicates=5,
    )


_SKIPLESS: Settings = {"layout": (("skip", False), *GLOROT)}
_TUTORIAL: Settings = {
    "layout": tuple(
        (name, getattr(find_preset("bloem", "causal").layout, name))
        for name in ("positions", "norm", "mlp", "skip", "start")
    ),
    "sizes": (("n_layers", 1), ("n_heads", 1)),
}
"""What makes the preset `bloem`, beside its change: one layer of one head, and no more."""
_ELSEWHERE = (
    arm(
        "skipless trained", "no skip connections, everything trained from Glorot initialization", _SKIPLESS,
        probes=("learned",),
    ),
    arm(
        "skipless VO identity", "no skip connections, W_V = W_O = I", _SKIPLESS, changes=_VO_IDENTITY,
        probes=("learned",),
    ),
    *(_frozen(pair, "skipless ", _SKIPLESS) for pair in _PAIRS),
    arm("bloem trained", "one attention and nothing else, W_Q, W_K, W_V and W_O trained from I", _TUTORIAL),
    arm(
        "bloem identity", "the same with W = I: the first step of a well-known tutorial", _TUTORIAL,
        changes=_ALL_IDENTITY,
    ),
    arm("recall trained", "associative recall, everything trained", LEARNS_RECALL),
    *(_frozen(pair, "recall ", LEARNS_RECALL) for pair in _PAIRS),
    arm("glorot trained", "everything trained from Glorot initialization", layout=GLOROT),
    *(_frozen(pair, "glorot ", {"layout": GLOROT}) for pair in _PAIRS),
)  # fmt: skip


def _of_elsewhere() -> tuple[Contrast, ...]:
    """The same without skip connections, with nothing but attention, and on recall."""
    skipless = cost(
        "glorot skipless: VO identity - trained", "what W_V = W_O = I costs without skip connections",
        "skipless VO identity", "skipless trained", MARGIN, expected=near(0.0, MARGIN),
    )  # fmt: skip
    bloem = cost(
        "bloem identity - bloem trained", "what W = I costs where there is one attention and nothing else",
        "bloem identity", "bloem trained", MARGIN, expected=ABOVE,
    )  # fmt: skip
    return (
        *of_learned((skipless, *_pair_costs("skipless ")), ("skipless trained",)),
        bloem,
        _order("recall ", BELOW, "nats per answer"),
        *_pair_costs("recall ", "nats per answer"),
    )


def _full(ask: Ask) -> Design:
    sharing = cost(
        "sharing: Q = K - K = V", "cost of W_Q = W_K minus cost of W_K = W_V", "Q = K", "K = V", MARGIN,
        expected=ABOVE,
    )  # fmt: skip
    return make_design(
        ask,
        study="which-matrix",
        texts={"text": Text(), "recall": RECALLED},
        scale=FULL,
        arms=(*_FIRST, *_CHANGED, *_ELSEWHERE),
        contrasts=(
            _order(),
            *(_cost(one.name) for one in (*_FIRST[1:], *_CHANGED)),
            *map(_interaction, _PAIRS),
            sharing,
            *_of_elsewhere(),
            *_accounts(),
            *_pair_costs("glorot "),
            _order("glorot ", near(0.0, MARGIN)),
        ),
    )


QUESTION = read_question("which-matrix", design=quick_or_full(_quick, _full))
