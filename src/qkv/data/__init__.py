"""Text in, tokens out: sources, splits, tokenizers, windows, and the n-gram and xz baselines of a corpus."""
