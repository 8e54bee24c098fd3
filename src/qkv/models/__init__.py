"""Self-attention models: their parts, usable alone in any torch code, and how they are built and looked into."""

from qkv.models.attention import MultiHeadAttention, SelfAttention, attend, attend_explicit
from qkv.models.blocks import MLP, Block
from qkv.models.cache import KVCache
from qkv.models.layout import Layout, ModelConfig, Sizes
from qkv.models.norms import LayerNorm, RMSNorm
from qkv.models.start import START, start_values
from qkv.models.zoo import CausalLM, Decoder, Encoder, EncoderDecoder, MaskedLM, build

__all__ = [
    "MLP",
    "START",
    "Block",
    "CausalLM",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "KVCache",
    "LayerNorm",
    "Layout",
    "MaskedLM",
    "ModelConfig",
    "MultiHeadAttention",
    "RMSNorm",
    "SelfAttention",
    "Sizes",
    "attend",
    "attend_explicit",
    "build",
    "start_values",
]
