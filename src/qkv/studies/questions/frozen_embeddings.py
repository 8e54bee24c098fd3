"""What `frozen-embeddings` counts on its texts."""

import math

from qkv.jsontypes import JsonObject
from qkv.studies.engine.design import Design, Scale, Text
from qkv.studies.question import Ask

_TOLD_SHARE = 0.01
"""Of validation texts that stand within training texts: more is told beside the figures."""
_TOLD_BYTES = 2.0
"""In a token of a text that is not read."""


def bits(ask: Ask, texts: dict[str, Text], scale: Scale) -> JsonObject:
    """Bits per byte in a nat per token of either vocabulary, and the same with a minus."""
    found = {}
    for name, text in (("many", texts.get("many pieces")), ("few", texts["pieces"])):
        if "many pieces" in texts and text:
            n_bytes = _TOLD_BYTES if ask.named else ask.corpus(text, scale.val_tokens).bytes_per_token
            value = 1 / math.log(2) / n_bytes
            found |= {f"bits of {name}": value, f"-bits of {name}": -value}
    return found


def stand_in_others(ask: Ask, design: Design) -> str:
    """Of labelled texts, how many of those that are measured on stand word for word in one that is trained on."""
    if not design.has_labels:
        return ""
    made = ask.corpus(dict(design.texts)["labelled"])
    asked = [tuple(text.split()) for text in made.val.texts]
    lengths = {len(words) for words in asked}
    wanted, found = set(asked), set()
    for words in (text.split() for text in made.train.texts):
        for n in lengths:
            found |= wanted.intersection(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    share = sum(words in found for words in asked) / len(asked)
    if share < _TOLD_SHARE:
        return ""
    return (
        f"{100 * share:.0f}% of the validation texts occur word for word within a training text, as phrases of one"
        " sentence do; so no figure here is about entirely unseen sentences, and memorized texts help"
    )
