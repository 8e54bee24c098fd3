"""Patching as a page shows it: two texts of as many tokens, every layer and position on its own."""

from collections.abc import Sequence

from qkv.errors import UserError
from qkv.inspection.patching import asked, patch
from qkv.tasks import find_task
from qkv.views.forward import LONGEST_FORWARD
from qkv.views.looker import Looker
from qkv.views.packed import pack
from qkv.views.payloads import Patched

__all__ = ["patched"]


def patched(looker: Looker, text: str, other: str, step: int | None, changes: Sequence[str] = ()) -> Patched:
    """Every layer and position of `other` put into `text`, one at a time, under the weights of a step, changed first.

    Raises UserError for texts that do not fit each other, or the model, or a page.
    """
    task, config = find_task(looker.config.task), looker.config.model
    first, second = (asked(task, looker.tokenizer, config, each) for each in (text, other))
    if len(first.tokens) > LONGEST_FORWARD:
        raise UserError(
            f"the text has {len(first.tokens)} tokens; a page traces up to {LONGEST_FORWARD}: qkv show RUN --text TEXT"
            " --patch OTHER takes longer ones"
        )
    found = patch(looker.model(step, changes), first, second)
    assert found.position is not None, "a task that predicts tokens is asked at one of them"
    a, b = (looker.tokenizer.token(i) for i in found.answers)
    return Patched(
        tokens=tuple(found.tokens),
        others=tuple(found.others),
        position=found.position,
        causal=looker.causal,
        answers=(a, b),
        odds=found.odds,
        shares={kind: pack(shares.numpy()) for kind, shares in found.shares.items()},
        heads=None if found.heads is None else pack(found.heads.numpy()),
    )
