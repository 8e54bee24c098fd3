"""Does training change the input embeddings, or only W_Q, W_K, W_V? How much, and is it learning or just movement?

Every matrix is watched under AdamW, SGD and Muon, on real text and on random labels (the control), tied and untied,
with learned and with sinusoidal positions (which are no parameters, so truly fixed). Labels of the control are drawn
uniformly at every step: all it can learn is to guess evenly. It trains as long as the real arm, and both are compared
at the last step. Movement alone proves nothing, since the control moves too. So the primary measure is the increase in
loss of the finished model when W_E is reset to its initial values. The other matrices were trained to fit the rows as
they are, so this shows dependence, not how much the rows learned; the loss after a reset may exceed that of uniform
guessing. How much of the drop in loss on a fixed batch is due to each matrix is measured by the ledger, whose parts
should add up to the total; it is read under AdamW, since under SGD they do not. We speak of learning where W_E moved
farther than in the control and its change accounts for some of the drop.
"""

import dataclasses

from qkv.studies.engine.design import Arm, Contrast, Design, Text
from qkv.studies.expectation import Expected
from qkv.studies.question import Ask, make_design, quick_or_full, read_question
from qkv.studies.vocabulary import ABOVE, FULL, QUICK, arm, difference, level, near

MARGIN = 0.03
_PROBES = ("drift", "reset", "rows")
_LR = {"adamw": 0.01, "sgd": 0.5, "muon": 0.01}
_MATRICES = ("W_E", "W_pos", "W_Q", "W_K", "W_V", "W_O", "MLP", "W_U")


def _pairs(optimizers: tuple[str, ...]) -> tuple[Arm, ...]:
    """Of each, real labels, and the control at the same rate."""
    return tuple(
        each
        for name in optimizers
        for each in (
            arm(name, f"{name}, real text", optimizer=name, lr=_LR[name], probes=(*_PROBES, "ledger")),
            arm(
                f"{name} null", f"{name}, random labels, drawn uniformly at every step", optimizer=name,
                lr=_LR[name], labels="uniform", tune=name, probes=("drift", "rows"),
            ),
        )
    )  # fmt: skip


def _worth(arm: str, matrix: str, expected: Expected | None = None) -> Contrast:
    what = f"increase in loss when {matrix} is reset to its initial values"
    return level(f"{matrix} set back ({arm})", what, arm, f"reset {matrix}", MARGIN, expected=expected)


def _moved(optimizer: str, matrix: str) -> Contrast:
    return difference(
        f"{matrix} moved ({optimizer})", f"relative drift of {matrix} on real text, minus that on random labels",
        optimizer, f"{optimizer} null", f"drift {matrix}", 0.1, unit="of its start's norm",
    )  # fmt: skip


def _halves(optimizer: str) -> tuple[Arm, Arm]:
    """Two trainings from one start on the halves of the text, and two on uniform labels, at the optimizer's rate."""
    return tuple(
        arm(
            f"{optimizer} halves{name}", f"{optimizer}, twice from one start, on either half of the text{what}",
            optimizer=optimizer, lr=_LR[optimizer], tune=optimizer, trainer="two halves", labels=labels,
        )
        for name, what, labels in (("", "", "real"), (" null", ", random labels", "uniform"))
    )  # type: ignore[return-value]  # fmt: skip


def _shared(optimizer: str, matrix: str) -> Contrast:
    return difference(
        f"{matrix} shared ({optimizer})",
        f"agreement (cosine) of how {matrix} moved on the two halves of the text, minus that on random labels",
        f"{optimizer} halves", f"{optimizer} halves null", f"shared {matrix}", 0.05, unit="cosine",
    )  # fmt: skip


def _earned(optimizer: str, matrix: str) -> Contrast:
    what = f"drop in loss on a fixed batch that is due to the change of {'all norms' if matrix == 'norms' else matrix}"
    return level(f"{matrix} earned ({optimizer})", what, optimizer, f"earned {matrix}", MARGIN)


def _closes(optimizer: str) -> tuple[Contrast, Contrast]:
    """What there was to earn, and whether the parts of the ledger add up to it."""
    return (
        level(_fall_of(optimizer), "total drop in loss on that batch", optimizer, "fall", MARGIN),
        Contrast(
            name=f"ledger closes ({optimizer})", what="drop in loss due to all changes together, minus the total drop",
            terms=((1.0, optimizer, "earned all"), (-1.0, optimizer, "fall")), margin=MARGIN,
            expected=near(0.0, MARGIN),
        ),
    )  # fmt: skip


def _fall_of(optimizer: str) -> str:
    return f"the fall ({optimizer})"


def _rows(optimizer: str) -> tuple[Contrast, Contrast]:
    return (
        level(
            f"rows never met ({optimizer})",
            "largest relative drift of a row of W_E whose token does not occur in the training text", optimizer,
            "unseen row drift", 1e-6, unit="of the row's norm", expected=near(0.0, 1e-6), constant=True,
        ),
        level(
            f"frequent rows moved more ({optimizer})", "rank correlation of a row's drift with its token's count",
            optimizer, "row drift with count", 0.1, unit="rank correlation",
            expected=near(1.0, 0.1) if optimizer == "sgd" else Expected(less_than="frequent rows moved more (sgd)"),
        ),
    )  # fmt: skip


def _contrasts(optimizers: tuple[str, ...]) -> tuple[Contrast, ...]:
    main = optimizers[0]
    return (
        _worth(main, "W_E", ABOVE),
        *(_worth(main, matrix) for matrix in _MATRICES if matrix != "W_E"),
        *(_moved(optimizer, "W_E") for optimizer in optimizers),
        *(_moved(main, matrix) for matrix in _MATRICES if matrix != "W_E"),
        *(_moved(optimizer, pair) for optimizer in optimizers if optimizer != main for pair in ("QK", "VO")),
        *(_earned(main, matrix) for matrix in ("W_E", "W_pos", "QK", "VO", "MLP", "norms", "W_U")),
        *_closes(main),
        *(contrast for optimizer in optimizers for contrast in _rows(optimizer)),
    )


def _quick(ask: Ask) -> Design:
    optimizers = ("adamw", "sgd")
    return make_design(
        ask,
        study="what-is-trained",
        texts={"text": Text(tokenizer="bpe", vocab=512)},
        scale=dataclasses.replace(QUICK, val_tokens=16_384, evaluations=4),
        arms=_pairs(optimizers),
        contrasts=_contrasts(optimizers),
    )


def _full(ask: Ask) -> Design:
    optimizers, fixed = ("adamw", "sgd", "muon"), (("positions", "sinusoidal"),)
    return make_design(
        ask,
        study="what-is-trained",
        texts={"text": Text(tokenizer="bpe", vocab=1024)},
        scale=dataclasses.replace(FULL, steps=1500),
        arms=(
            *_pairs(optimizers),
            *_halves("adamw"),
            arm("tied", "adamw, W_U tied to W_E", layout=(("tied", True),), probes=_PROBES),
            arm("sinusoidal", "adamw, sinusoidal positions, which are fixed", layout=fixed, probes=_PROBES),
        ),
        contrasts=(
            *_contrasts(optimizers),
            *(_worth(arm, "W_E", ABOVE) for arm in ("tied", "sinusoidal")),
            *(_shared("adamw", matrix) for matrix in _MATRICES),
        ),
    )


QUESTION = read_question("what-is-trained", design=quick_or_full(_quick, _full))
