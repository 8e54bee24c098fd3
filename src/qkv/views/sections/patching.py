"""Who carries and who writes an answer, as a page shows it: patching of two texts, and direct attribution of one."""

import dataclasses
from collections.abc import Sequence

from qkv.errors import UserError
from qkv.inspection.attribution import direct
from qkv.inspection.patching import Asked, asked, patch
from qkv.tasks import find_task
from qkv.views.report.packed import Packed, pack, payload
from qkv.views.sections.forward import LONGEST_FORWARD
from qkv.views.viewer import Viewer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patched:
    """Two texts of as many tokens, and which activations carry what tells them apart (`qkv.inspection.patching`)."""

    step: int
    tokens: tuple[str, ...]
    others: tuple[str, ...]
    position: int
    """Where both are answered."""
    causal: bool
    answers: tuple[str, str]
    """a and b."""
    odds: tuple[float, float]
    """log p(a) - log p(b), nats, of each text; a share times their difference is what it carries in nats."""
    caution: str
    """A sentence where the texts are answered so much alike that there is nothing to carry, and nats are shown
    alone; else empty."""
    shares: dict[str, Packed]
    """stream, mixer, mlp -> [layer, pos]: how far the answer goes over, 0 to 1 and beyond."""
    heads: Packed | None
    """[layer, head]; None without attention."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """Who writes the answer at one token, in nats that sum to `log_odds` (`qkv.inspection.attribution`)."""

    step: int
    tokens: tuple[str, ...]
    position: int
    causal: bool
    answers: tuple[str, str]
    """The likeliest and the next."""
    log_odds: float
    embed: float
    heads: Packed | None
    """[layer, head]; None without attention."""
    mixer: Packed
    """[layer]: attention with its bias, or what stands in its place."""
    mlp: Packed | None
    """[layer]; None without MLPs."""
    biases: float
    """b_O of every layer, where there are heads, the last norm's and the output's."""


def patched(viewer: Viewer, text: str, other: str, step: int | None, changes: Sequence[str] = ()) -> Patched:
    """Every layer and position of `other` put into `text`, one at a time, under the weights of a step, changed first.

    Raises UserError for texts that do not fit each other, or the model, or a page.
    """
    task, config = find_task(viewer.config.task), viewer.config.model
    first, second = (asked(task, viewer.tokenizer, config, each) for each in (text, other))
    if len(first.tokens) > LONGEST_FORWARD:
        raise UserError(
            f"the text has {len(first.tokens)} tokens; a page traces up to {LONGEST_FORWARD}: qkv show RUN --text TEXT"
            " --patch OTHER takes longer ones"
        )
    found = patch(viewer.model(step, changes), first, second)
    assert found.position is not None, "a task that predicts tokens is asked at one of them"
    a, b = (viewer.tokenizer.token(i) for i in found.answers)
    shares = {kind: pack(values.numpy()) for kind, values in found.shares.items()}
    return payload(Patched, found, step=viewer.nearest(step), causal=viewer.causal, answers=(a, b), shares=shares)


def written(viewer: Viewer, text: str, position: int, step: int | None, changes: Sequence[str] = ()) -> Written:
    """What each part writes into the answer at one token of a text, under the weights of a step, changed first.

    Raises UserError for a token that is not there, or a model whose answer is no sum of what its parts write.
    """
    words = viewer.words(text, LONGEST_FORWARD)
    if position >= len(words.tokens):
        raise UserError(f"there is no token {position}; the text has {len(words.tokens)}")
    found = direct(viewer.model(step, changes), Asked(words.ids, list(words.tokens), position))
    if found is None:
        raise UserError(
            "what this model answers is no sum of what its parts write: its norms stand after the sublayers, it has no"
            " skip connections, or a transform stands before its output"
        )
    a, b = (viewer.tokenizer.token(i) for i in found.answers)
    b_O = 0.0 if found.heads is None else float(found.mixer.sum() - found.heads.sum())
    asked_of = {"step": viewer.nearest(step), "tokens": words.tokens, "position": position, "causal": viewer.causal}
    return payload(Written, found, **asked_of, answers=(a, b), biases=found.biases + b_O)
