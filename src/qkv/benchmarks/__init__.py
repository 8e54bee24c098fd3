"""Benchmarks, side by side with the peers that are installed: one module each, found in `BENCHMARKS`.

A benchmark is a module of that name (dashes are underscores) with one function `measure(session)`, which runs both
sides in turn and hands figures to the session. Figures are of this machine and this moment: nothing is compared with a
stored figure, and nothing fails for being slow.
"""

from collections.abc import Mapping

BENCHMARKS: Mapping[str, str] = {
    "start": "how soon the help is there, and the first training step, after the command is typed",
    "step": "one training step of the same model on the same batch, beside Hugging Face GPT-2",
    "masked": "real tokens a second of masked language modelling, beside Hugging Face BERT and its collator",
    "memory": "peak memory of a masked training step with 30,522 words, beside Hugging Face BERT",
    "generation": "tokens a second of text generation, beside Hugging Face generate",
    "curve": "bits per byte after so many minutes, beside nanoGPT's CPU configuration and the best n-gram",
    "time-to-loss": "whole-process time until a validation loss, beside nanoGPT's documented CPU command",
}
"""Name, as typed after `qkv bench` -> what it measures, in a line; the order in which all are run."""
