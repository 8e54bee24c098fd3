"""Self-attention models: their parts, usable alone in any torch code, and how they are built and looked into."""

from qkv.kernels.cache import KVCache
from qkv.models.addresses import Address, parse_address
from qkv.models.attention import MultiHeadAttention, SelfAttention, attend, attend_explicit
from qkv.models.blocks import MLP, Block
from qkv.models.factored import FactoredMatrix
from qkv.models.layout import Layout, ModelConfig, Patches, RopeScaling, Sizes
from qkv.models.matrices import Catalogue, Entry, Part
from qkv.models.norms import LayerNorm, RMSNorm
from qkv.models.start import START, start_values
from qkv.models.zoo import (
    CausalClassifier,
    CausalLM,
    Classifier,
    Decoder,
    Encoder,
    EncoderDecoder,
    EncoderDecoderLM,
    ImageClassifier,
    MaskedLM,
    build,
)

__all__ = [
    "MLP",
    "START",
    "Address",
    "Block",
    "Catalogue",
    "CausalClassifier",
    "CausalLM",
    "Classifier",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "EncoderDecoderLM",
    "Entry",
    "FactoredMatrix",
    "ImageClassifier",
    "KVCache",
    "LayerNorm",
    "Layout",
    "MaskedLM",
    "ModelConfig",
    "MultiHeadAttention",
    "Part",
    "Patches",
    "RMSNorm",
    "RopeScaling",
    "SelfAttention",
    "Sizes",
    "attend",
    "attend_explicit",
    "build",
    "parse_address",
    "start_values",
]
