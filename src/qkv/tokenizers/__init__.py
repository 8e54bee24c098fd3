"""Text to token ids and back: tokenizers fitted here, tokenizers read from files, and how ids are made quickly."""
