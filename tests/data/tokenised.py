"""A text into ids in a process of its own, in small pieces: python tokenised.py TEXT CACHE WORKERS [--peak]

Prints how many characters were made into ids by this call; with --peak the most memory that it and its processes held.
"""

import resource
import sys
from pathlib import Path

from qkv.data import corpus, tokenizing
from qkv.data.config import DataConfig
from qkv.tokenizers import encoders


def main() -> None:
    text, cache, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    corpus.IN_MEMORY_BYTES = 1000
    corpus.most_workers = lambda: workers
    tokenizing._BATCH_CHARS, tokenizing._PIECE_CHARS = 1 << 17, 1 << 20
    encoded = 0
    whole = tokenizing.encode_all

    def counted(*given):
        nonlocal encoded
        for found in whole(*given):
            encoded += found.n_chars
            yield found

    tokenizing.encode_all = counted
    corpus.load_corpus(DataConfig(source=str(text), tokenizer="bpe", vocab=300), cache=cache)
    peaks = [resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(peaks[0] + workers * peaks[1] if "--peak" in sys.argv else encoded)


if __name__ == "__main__":
    assert encoders.most_workers() >= 1
    main()
