"""Text in, tokens out: sources, splits, tokenizers, windows, and what counting and compressing reach on the same text.

sources/            a text file, folder, table, images, the hub, or the corpus inside the user's own Python
split.py            what is trained on and what is measured on, without near-copies across
corpus.py           tokens of both parts, their tokenizer, and the way to bits per byte
examples.py, images.py, pairs.py    the same for labelled texts, images, and translations
packing.py, buckets.py              windows, rows and batches as pure functions of their numbers
baseline/           unigram, bigram, Kneser-Ney, xz, linear models, a dictionary
"""
