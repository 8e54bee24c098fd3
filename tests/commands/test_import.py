"""What `qkv import` proposes to type next is in words of the model's own."""

from importlib import import_module

import pytest

from qkv.tokenizers.tokenizer import fit_tokenizer

GREEK = "το παιδί έτρεχε στην ακτή και φώναζε τη μητέρα του. ο σκύλος κοιμόταν δίπλα στη βάρκα. " * 20
ENGLISH = "The cat sat on the mat of the king. " * 20
CHINESE = "孩子在海边跑着叫他的母亲。狗睡在船旁边。" * 20
example = import_module("qkv.commands.import")._example


@pytest.mark.parametrize(
    ("kind", "text", "prompt", "proposed"),
    [
        ("bpe", ENGLISH, "The ", "The "),
        ("char", ENGLISH, "The ", "The "),
        ("byte", GREEK, "The ", "The "),
        ("word", GREEK, "The ", "κοιμόταν"),
        ("wordpiece", GREEK, "the [MASK] of", "κοιμόταν [MASK]"),
        ("word", ENGLISH, "Ein Mann schläft.", "king"),
        ("char", CHINESE, "The ", "亲"),
        ("char", GREEK, "The ", ""),
    ],
)
def test_an_example_is_in_words_of_the_model(kind, text, prompt, proposed):
    tokenizer = fit_tokenizer(kind, [text], 0 if kind in ("char", "byte") else 400, specials="[MASK]" in prompt)
    assert example(prompt, tokenizer) == proposed
