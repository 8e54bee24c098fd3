"""When queries change in training, is it because W_Q changed or because the encodings did?

dq = dx W_Q + x dW_Q + dx dW_Q splits the change of a query exactly, from the start of training to its end, on
validation text; likewise for k, v and scores. A share is the projection of one term on the whole change; shares sum
to 1.
"""

from qkv.studies.design import Arm, Contrast, Design, Grid, Scale, Text
from qkv.studies.question import Ask, Plain, Question, make_design
from qkv.studies.verdicts import Findings

__all__ = ["QUESTION"]

MARGIN = 0.1
_UNIT = "of the change"


def _more_by_encodings(arm: str, product: str) -> Contrast:
    return Contrast(
        name=f"{product}: encodings - matrix ({arm})",
        what=f"share of the change of {product} that the encodings made, less the share of its matrix",
        terms=((1.0, arm, f"{product} encodings"), (-1.0, arm, f"{product} matrix")),
        margin=MARGIN,
        unit=_UNIT,
    )


def _both(arm: str, product: str) -> Contrast:
    return Contrast(
        name=f"{product}: both together ({arm})",
        what=f"share of the change of {product} that needs both to have moved",
        terms=((1.0, arm, f"{product} both"),),
        margin=MARGIN,
        unit=_UNIT,
    )


def _arm(optimizer: str, lr: float) -> Arm:
    return Arm(name=optimizer, what=f"trained by {optimizer}", optimizer=optimizer, lr=lr, probes=("what moved",))


def _design(ask: Ask) -> Design:
    quick = ask.quick
    arms = (
        (_arm("adamw", 0.01), _arm("sgd", 0.5))
        if quick
        else (_arm("adamw", 0.01), _arm("sgd", 0.5), _arm("muon", 0.01))
    )
    products = [f"L{layer}.{letter}" for layer in range(2) for letter in "qkv"]
    return make_design(
        ask,
        study="what-moved-q",
        texts={"text": Text(tokenizer="bpe", vocab=512 if quick else 1024)},
        scale=Scale(d_model=32, n_layers=2, n_heads=2, n_ctx=32, batch_size=16, steps=300, val_tokens=8_192)
        if quick
        else Scale(d_model=64, n_layers=2, n_heads=2, n_ctx=64, batch_size=16, steps=1500, val_tokens=32_768),
        grid=Grid(),
        arms=arms,
        contrasts=(
            *(_more_by_encodings("adamw", product) for product in products),
            *(_both("adamw", product) for product in products),
            *(_more_by_encodings(arm.name, product) for arm in arms[1:] for product in ("L0.q", "L1.q")),
        ),
        replicates=6 if quick else 8,
    )


def _claim(findings: Findings) -> str:
    verdict, effect = findings.primary.result.verdict, findings.primary.result.effect or 0.0
    both = findings.effect("L0.q: both together (adamw)").told
    share, more = both.effect or 0.0, ""
    if both.verdict == "differs":
        more = f"{share:.0%} of the change needs" if share > 0 else f"{-share:.0%} of it is taken back by what needs"
        more = f" (and {more} both to have moved)"
    if verdict == "unresolved":
        return (
            "Whether queries of the first layer changed by their encodings or by W_Q is not"
            f" settled{more}; encodings less matrix"
        )
    if verdict == "equivalent":
        return (
            f"Queries of the first layer changed as much by their encodings as by W_Q{more}; the"
            " difference of the shares is"
        )
    cause = "the encodings changed than because W_Q did" if effect > 0 else "W_Q changed than because the encodings did"
    small = ", though by less than would matter" if verdict == "differs but trivially" else ""
    return f"Queries of the first layer changed more because {cause}{small}{more}; encodings less matrix"


QUESTION = Question(
    name="what-moved-q",
    asks="When queries change in training, is it because W_Q changed or because the encodings did?",
    answer="share of each term of dq = dx W_Q + x dW_Q + dx dW_Q, by layer, and for k and v",
    falsified_by="The shares of a product do not sum to 1; the sign of the difference turns with another seed.",
    literature=(
        "The split is exact algebra; no published shares have been found. A share of q is a property of this"
        " parametrisation: a change of basis inside a head that alters no score alters it."
    ),
    plain=Plain(
        above=(
            "Under AdamW queries of the first layer change more because the vectors that come in changed than because"
            " W_Q did; the table says how much needs both, and what other optimizers do."
        ),
        below=(
            "Under AdamW queries of the first layer change more because W_Q did than because the vectors that come in"
            " changed; the table says how much needs both, and what other optimizers do."
        ),
        slightly=(
            "Under AdamW queries of the first layer change almost exactly as much because of W_Q as because of the"
            " vectors that come in."
        ),
        equivalent=(
            "Under AdamW queries of the first layer change as much because of W_Q as because of the vectors that come"
            " in."
        ),
        unresolved=(
            "Whether queries of the first layer change more by W_Q or by the vectors that come in, this run cannot"
            " tell."
        ),
    ),
    heard=(
        'That *the query is learned*. A query is a product, x W_Q, and "Q" is said of the vectors x that come in, of'
        " the matrix W_Q and of the product. What changes in it splits exactly into dx W_Q, x dW_Q and dx dW_Q."
    ),
    design=_design,
    claim=_claim,
)
