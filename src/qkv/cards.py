"""Which textbook sentences about attention hold in a preset's layout, exactly; tests prove every line numerically."""

from dataclasses import dataclass

from qkv.models.layout import ADDED, Layout
from qkv.presets import Preset
from qkv.tasks import TASKS

__all__ = ["Sentence", "card"]


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """One textbook sentence and whether it holds in a layout."""

    key: str
    """A word for tests and links."""
    text: str
    """The sentence."""
    holds: bool
    """Whether it is true of the layout, exactly."""
    why: str
    """Why not, or under which condition."""


_NO_ATTENTION = "there is no attention"


def card(preset: Preset) -> tuple[Sentence, ...]:
    """Which textbook sentences hold in a preset's layout, in a fixed order."""
    return (*_of_scores(preset), *_of_the_stream(preset.layout), *_of_tables(preset))


def _of_scores(preset: Preset) -> tuple[Sentence, ...]:
    """Of q, k and v."""
    layout = preset.layout
    rotary, attends = layout.positions == "rotary", layout.mixer == "attention"
    blockers = {"rotary positions": rotary, "QK-norm": layout.qk_norm, "biases": layout.bias}
    between = " and ".join(name for name, on in blockers.items() if on)
    between = f"{between} stand between x W_Q and the scores" if between else ""
    between = between if attends else _NO_ATTENTION
    return (
        Sentence(
            key="scores-need-only-the-product",
            text="Scores depend on W_Q and W_K only through W_Q W_K^T.",
            holds=not between,
            why=between,
        ),
        Sentence(
            key="identity-gives-x",
            text="With W_Q = W_K = W_V = I, q = k = v = x.",
            holds=not between,
            why=between or ("each head is its coordinate slice of x" if preset.head_width else ""),
        ),
        Sentence(
            key="symmetric-scores",
            text="With W_Q = W_K the scores are symmetric.",
            holds=attends and not layout.bias and not (rotary and layout.qk_norm),
            why=_why_not_symmetric(layout) if attends else _NO_ATTENTION,
        ),
    )


def _of_the_stream(layout: Layout) -> tuple[Sentence, ...]:
    """Of what a block reads, and of what it adds."""
    attends = layout.mixer == "attention"
    return (
        Sentence(
            key="norm-gain-folds",
            text="The gain of the norm before attention folds into W_Q, W_K and W_V.",
            holds=attends and layout.norm != "none" and layout.norm_place == "pre" and not layout.bias,
            why=_why_not_folding(layout) if attends else _NO_ATTENTION,
        ),
        Sentence(
            key="heads-add-up",
            text="The output is the sum over heads of pattern x W_V W_O.",
            holds=attends and not layout.bias,
            why=_NO_ATTENTION if not attends else "b_V and b_O are added" if layout.bias else "",
        ),
        Sentence(
            key="positions-are-added",
            text="Positions are vectors added to the embedding rows.",
            holds=layout.positions in ADDED,
            why={"rotary": "they turn q and k inside attention", "none": "there are none"}.get(layout.positions, ""),
        ),
    )


def _of_tables(preset: Preset) -> tuple[Sentence, ...]:
    """Of the matrices at both ends, and of what gradient reaches them."""
    zero_out = "W_O, W_out (and an untied W_U) start at zero, so at step 0 none reaches what lies behind them"
    starts_at_zero = preset.layout.start == "zero_out"
    return (
        Sentence(
            key="gradient-reaches-all",
            text="From step 0 on, gradient reaches every weight matrix.",
            holds=not starts_at_zero,
            why=zero_out if starts_at_zero else "",
        ),
        Sentence(
            key="two-tables",
            text="The rows that tokens enter with (W_E) and the columns that predict them (W_U) are two matrices.",
            holds=not preset.layout.tied,
            why=_why_one_table(preset),
        ),
    )


def _why_one_table(preset: Preset) -> str:
    one = "W_U is W_E transposed"
    if preset.layout.tied:
        return one
    tasks = " or ".join(task.name for task in TASKS.values() if task.model_kind in preset.one_table)
    return f"except with --task {tasks}, where {one}" if tasks else ""


def _why_not_folding(layout: Layout) -> str:
    if layout.norm == "none" or layout.norm_place == "post":
        return "no norm stands between the skip connection and W_Q"
    return "the norm has a bias, which would have to fold into b_Q, b_K and b_V as well" if layout.bias else ""


def _why_not_symmetric(layout: Layout) -> str:
    if layout.bias:
        return "b_Q and b_K may differ"
    mixed = layout.positions == "rotary" and layout.qk_norm
    return "the gains of QK-norm may differ, and rotary turns do not commute with them" if mixed else ""
