"""When queries change in training, is it because W_Q changed or because the encodings did?

dq = dx W_Q + x dW_Q + dx dW_Q splits the change of a query exactly, from the start of training to its end, on
validation text; likewise for k, v and scores. A share is the projection of one term on the whole change; shares sum to
1. They cover the whole training, and under AdamW three periods of it too, each from its own start. A share of scores
does not depend on the basis inside a head; one of q or k does.
"""

import dataclasses

from qkv.studies.engine.design import Arm, Contrast, Design, Text
from qkv.studies.probes.watchers import PERIODS
from qkv.studies.question import Ask, make_design, read_question
from qkv.studies.vocabulary import FULL, QUICK, arm, level

MARGIN = 0.1
_UNIT = "of the change"
_CAUSES = {
    "encodings": "due to the encodings",
    "matrix": "due to its matrix",
    "both": "needing both",
}
_FOLLOWED = ("L0.q", "L1.q")
"""Products of which the causes are told period by period."""


def _more_by_encodings(
    arm: str, product: str, named: str = "matrix", matrices: tuple[str, ...] = ("matrix",), words: str = "its matrix"
) -> Contrast:
    """Scores change by W_Q alone, by W_K alone, and by what the two do together; a product by its matrix."""
    return Contrast(
        name=f"{product}: encodings - {named} ({arm})",
        what=f"share of the change of {product} due to the encodings, minus the share due to {words}",
        terms=((1.0, arm, f"{product} encodings"), *((-1.0, arm, f"{product} {matrix}") for matrix in matrices)),
        margin=MARGIN,
        unit=_UNIT,
    )


def _of_scores(layer: int) -> tuple[Contrast, Contrast]:
    product, matrices = f"L{layer}.scores", ("W_Q", "W_K", "W_Q and W_K")
    return _more_by_encodings("adamw", product, "matrices", matrices, "W_Q and W_K"), _both("adamw", product)


def _both(arm: str, product: str) -> Contrast:
    what = f"share of the change of {product} that needs both to change"
    return level(f"{product}: both together ({arm})", what, arm, f"{product} both", MARGIN, unit=_UNIT)


def _when(period: str, product: str, cause: str) -> Contrast:
    return level(
        f"{product}, {period}: {cause} (adamw)",
        f"share of the change of {product} in the {period}, {_CAUSES[cause]}", "adamw",
        f"{period} {product} {cause}", MARGIN, unit=_UNIT,
    )  # fmt: skip


def _arm(optimizer: str, lr: float) -> Arm:
    probes = ("what moved", "what moved when") if optimizer == "adamw" else ("what moved",)
    return arm(optimizer, f"trained by {optimizer}", optimizer=optimizer, lr=lr, probes=probes)


def _design(ask: Ask) -> Design:
    others = {"sgd": 0.5} if ask.quick else {"sgd": 0.5, "muon": 0.01}
    products = [f"L{layer}.{letter}" for layer in range(2) for letter in "qkv"]
    return make_design(
        ask,
        study="what-moved-q",
        texts={"text": Text(tokenizer="bpe", vocab=512 if ask.quick else 1024)},
        scale=dataclasses.replace(QUICK, evaluations=4) if ask.quick else dataclasses.replace(FULL, steps=1500),
        arms=(_arm("adamw", 0.01), *(_arm(name, lr) for name, lr in others.items())),
        contrasts=(
            *(_more_by_encodings("adamw", product) for product in products),
            *(_both("adamw", product) for product in products),
            *(_more_by_encodings(name, product) for name in others for product in ("L0.q", "L1.q")),
            *(_both(name, "L0.q") for name in others),
            *(contrast for layer in range(2) for contrast in _of_scores(layer)),
            *(_when(period, product, cause) for product in _FOLLOWED for period in PERIODS for cause in _CAUSES),
        ),
    )


QUESTION = read_question("what-moved-q", design=_design)
