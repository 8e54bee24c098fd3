"""What `collocation` counts on its text."""

from qkv.jsontypes import JsonObject
from qkv.studies.engine.design import Design, Scale, Text
from qkv.studies.probes.collocations import FEWEST_FOURS, chosen
from qkv.studies.probes.pairs import commonest_word
from qkv.studies.question import Ask


def enough(ask: Ask, texts: dict[str, Text], scale: Scale) -> JsonObject:
    """Whether the text has enough matched pairs of words."""
    return {"enough pairs": bool(ask.named) or len(chosen(ask.corpus(texts["text"]))) >= FEWEST_FOURS}


def counted(ask: Ask, design: Design) -> str:
    """Which word the commonest is, and that the commonest token may be no word."""
    corpus = ask.corpus(dict(design.texts)["text"], design.scale.val_tokens)
    word, counts = commonest_word(corpus)
    first, said = int(counts.argmax()), f"{counts[word]:,} of {counts.sum():,} tokens of the training part"
    name = corpus.tokenizer.token(word).strip()
    apart = "" if first == word else f"; the commonest token, {corpus.tokenizer.token(first)!r}, is none of letters"
    if not name.isalpha():
        return f"No token is of letters, so the commonest stands for the commonest word: {name!r}, {said}"
    return f"The commonest word of letters is {name!r}, {said}{apart}"
