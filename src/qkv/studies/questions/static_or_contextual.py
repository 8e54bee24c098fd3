"""What `static-or-contextual` looks for in its text, and the word vectors beside it."""

import dataclasses
from pathlib import Path

import numpy as np

from qkv.data.vectors import read_vectors
from qkv.folder.run_folder import sha256_of
from qkv.jsontypes import JsonObject
from qkv.studies.engine.design import Scale, Text
from qkv.studies.probes.analogies import FEWEST_ASKED, FEWEST_WORDS, N_QUESTIONS, grouped, n_askable
from qkv.studies.probes.contextual import MOST_TOKENS
from qkv.studies.question import Ask
from qkv.studies.synthetic.streams import given


def words_known(ask: Ask, texts: dict[str, Text], scale: Scale) -> JsonObject:
    """Whether the text holds the words of enough analogies and triplets; and word vectors as a text `beside` it."""
    found: JsonObject = {"analogies": False, "triplets": False, "of_file": "", "n_questions": N_QUESTIONS}
    if ask.has_vectors():
        path = Path(given(ask.source).vectors)
        if not ask.named:
            read_vectors(path)  # what is wrong with it is said before anything is made
        found["of_file"] = path.name and f" of {path.name}"
        settings = (("vectors", ask.vectors or sha256_of(path)),)
        texts["beside"] = dataclasses.replace(texts["text"], settings=settings)
    if not ask.named:
        corpus = ask.corpus(texts["text"])
        words = {corpus.tokenizer.token(int(i)) for i in np.unique(corpus.val.ids[:MOST_TOKENS])}
        found["analogies"] = n_askable(words) >= FEWEST_ASKED
        found["triplets"] = len(grouped(corpus.tokenizer)) >= FEWEST_WORDS
    return found
