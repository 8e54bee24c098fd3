"""The name map of every family of checkpoints: its configuration and its tensors, read in both directions.

One family is one entry of `FAMILIES`. Addresses, shapes and what a layout can be are ours (`qkv.models`); names are
those of Hugging Face `transformers`. Rotary positions pair coordinate i with i + d/2 in both, so W_Q and W_K are copied
as they are; only weights in Meta's original Llama format pair neighbours, and those are not read here.
"""

from collections.abc import Mapping

from qkv.interop.decoders import GPT2, LLAMA, MISTRAL, NEOX, QWEN2, QWEN3
from qkv.interop.encoders import BERT, DISTILBERT, ROBERTA, VIT
from qkv.interop.family import Family
from qkv.interop.translators import MARIAN

__all__ = ["FAMILIES"]

FAMILIES: Mapping[str, Family] = {
    family.name: family for family in (GPT2, LLAMA, QWEN3, QWEN2, MISTRAL, NEOX, BERT, ROBERTA, DISTILBERT, VIT, MARIAN)
}
"""`model_type` -> family; for export the first that fits is taken."""
