"""Text in, tokens out: sources, splits, tokenizers, windows, and what counting and compressing reach on the same text.

open_source(config) -> Source       a text file, folder, table, or the corpus inside the user's own Python
split_source(source) -> Split       what is trained on and what is measured on, without near-copies across
load_corpus(config) -> Corpus       tokens of both parts, their tokenizer, and the way to bits per byte
train_window, val_windows           windows of tokens as pure functions of their numbers
baselines(corpus) -> Baselines      unigram, bigram, Kneser-Ney, xz
"""

from qkv.data.baseline.text import Baselines, baselines
from qkv.data.config import DataConfig
from qkv.data.corpus import Corpus, load_corpus
from qkv.data.packing import (
    check_window,
    n_val_windows,
    n_windows,
    train_starts,
    train_window,
    val_windows,
    window_documents,
)
from qkv.data.sources.source import Chunk, Source, open_source
from qkv.data.split import Part, Split, split_source
from qkv.tokenizers.tokenizer import KINDS, Tokenizer, fit_tokenizer, load_tokenizer, vocabulary_law
from qkv.tokenizers.tokens import Tokens, id_type

__all__ = [
    "KINDS",
    "Baselines",
    "Chunk",
    "Corpus",
    "DataConfig",
    "Part",
    "Source",
    "Split",
    "Tokenizer",
    "Tokens",
    "baselines",
    "check_window",
    "fit_tokenizer",
    "id_type",
    "load_corpus",
    "load_tokenizer",
    "n_val_windows",
    "n_windows",
    "open_source",
    "split_source",
    "train_starts",
    "train_window",
    "val_windows",
    "vocabulary_law",
    "window_documents",
]
