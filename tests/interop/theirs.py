"""Small random checkpoints of every family, as transformers itself writes them."""

import io
import json
import os

os.environ["HF_HUB_OFFLINE"] = "1"

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers.processors import TemplateProcessing

from qkv.tokenizers.tokenizer import fit_tokenizer

N_CTX, D_VOCAB = 24, 61
GATED = dict(
    vocab_size=D_VOCAB,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=N_CTX,
    initializer_range=0.4,
)
MASKED = dict(
    vocab_size=D_VOCAB,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=3,
    max_position_embeddings=N_CTX,
    initializer_range=0.4,
)
THETA = {"rope_type": "default", "rope_theta": 500.0}
SCALED = {
    "linear": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.5},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 4.0,
        "beta_fast": 2.0,
        "beta_slow": 0.5,
        "original_max_position_embeddings": 12,
    },
    "yarn uneven": {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 4.0,
        "attention_factor": 1.25,
        "beta_fast": 2.0,
        "beta_slow": 0.5,
        "original_max_position_embeddings": 12,
        "truncate": False,
    },
}

Made = tuple[str, dict[str, Any]]
KINDS: dict[str, Made] = {
    "gpt2": ("GPT2LMHead", dict(vocab_size=D_VOCAB, n_positions=N_CTX, n_embd=24, n_layer=3, n_head=3)),
    "gpt2 odd": (
        "GPT2LMHead",
        dict(
            vocab_size=D_VOCAB,
            n_positions=N_CTX,
            n_embd=20,
            n_layer=2,
            n_head=2,
            n_inner=36,
            activation_function="relu",
            scale_attn_weights=False,
            tie_word_embeddings=False,
        ),
    ),
    "llama": ("LlamaForCausalLM", GATED | dict(rope_parameters=THETA)),
    "llama biased": (
        "LlamaForCausalLM",
        GATED | dict(attention_bias=True, tie_word_embeddings=True, head_dim=10, num_key_value_heads=1),
    ),
    **{f"llama {name}": ("LlamaForCausalLM", GATED | dict(rope_parameters=rope)) for name, rope in SCALED.items()},
    "mistral": ("MistralForCausalLM", GATED | dict(rope_parameters=THETA, sliding_window=None, head_dim=8)),
    "qwen2": ("Qwen2ForCausalLM", GATED | dict(rope_parameters=THETA, tie_word_embeddings=True)),
    "qwen3": ("Qwen3ForCausalLM", GATED | dict(rope_parameters=THETA, head_dim=8)),
    "qwen3 biased": ("Qwen3ForCausalLM", GATED | dict(head_dim=6, attention_bias=True, tie_word_embeddings=True)),
    "neox": (
        "GPTNeoXForCausalLM",
        {k: v for k, v in GATED.items() if k != "num_key_value_heads"}
        | dict(hidden_size=32, rope_parameters=THETA | {"partial_rotary_factor": 0.25}),
    ),
    "neox in turn": (
        "GPTNeoXForCausalLM",
        {k: v for k, v in GATED.items() if k != "num_key_value_heads"}
        | dict(
            use_parallel_residual=False,
            attention_bias=False,
            hidden_act="gelu_new",
            rope_parameters=THETA | {"partial_rotary_factor": 0.7},
        ),
    ),
    "bert": ("BertForMaskedLM", MASKED),
    "bert untied": (
        "BertForMaskedLM",
        MASKED | dict(tie_word_embeddings=False, type_vocab_size=1, hidden_act="relu"),
    ),
    "roberta": ("RobertaForMaskedLM", MASKED | dict(max_position_embeddings=N_CTX + 2, type_vocab_size=1)),
    "distilbert": (
        "DistilBertForMaskedLM",
        dict(
            vocab_size=D_VOCAB,
            dim=24,
            hidden_dim=40,
            n_layers=2,
            n_heads=3,
            max_position_embeddings=N_CTX,
            initializer_range=0.4,
        ),
    ),
}
PAIRED = dict(
    vocab_size=D_VOCAB,
    d_model=24,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=3,
    decoder_attention_heads=3,
    encoder_ffn_dim=40,
    decoder_ffn_dim=40,
    max_position_embeddings=N_CTX,
    pad_token_id=D_VOCAB - 1,
    decoder_start_token_id=D_VOCAB - 1,
    eos_token_id=0,
    forced_eos_token_id=0,
)
PAIRS: dict[str, Made] = {
    "marian": ("MarianMTModel", PAIRED | dict(activation_function="swish", scale_embedding=True)),
    "marian untied": (
        "MarianMTModel",
        PAIRED
        | dict(
            activation_function="relu",
            share_encoder_decoder_embeddings=False,
            tie_word_embeddings=False,
            decoder_vocab_size=D_VOCAB,
        ),
    ),
}
IMAGES: dict[str, Made] = {
    "vit": (
        "ViTForImageClassification",
        dict(
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=40,
            image_size=12,
            patch_size=4,
            num_channels=3,
            id2label={0: "ant", 1: "bee", 2: "cat"},
            label2id={"ant": 0, "bee": 1, "cat": 2},
        ),
    ),
    "vit oblong": (
        "ViTForImageClassification",
        dict(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=24,
            image_size=[8, 12],
            patch_size=4,
            num_channels=1,
            hidden_act="gelu_new",
        ),
    ),
}


def make_theirs(name: str, dtype: torch.dtype = torch.float64, **more: Any) -> Any:
    """A model of transformers with random weights, biases and gains too, in evaluation mode."""
    stem, settings = (KINDS | IMAGES | PAIRS)[name]
    config_class = getattr(transformers, stem.removesuffix("LMHead").removesuffix("MTModel").split("For")[0] + "Config")
    config = config_class(**(settings | more))
    config._attn_implementation = "eager"
    model_class = getattr(transformers, f"{stem}Model" if stem.endswith("LMHead") else stem)
    model = model_class(config).double()
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        spread = 1 / parameter.shape[-1] ** 0.5 if parameter.ndim == 2 else 0.2
        frozen = not parameter.requires_grad  # tables of sines
        parameter.data = parameter.data if frozen else noise * spread + (0.9 if _is_gain(parameter) else 0)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(std=0.2, generator=generator)
    return model.to(dtype).eval()


def _is_gain(parameter: torch.Tensor) -> bool:
    return parameter.ndim == 1 and bool(parameter.mean() > 0.5)


def save_theirs(folder: Path, name: str, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """Their model, saved to `folder`; `max_shard_size` makes shards, other keywords are settings."""
    shards = more.pop("max_shard_size", "5GB")
    model = make_theirs(name, dtype, **more)
    model.save_pretrained(folder, max_shard_size=shards)
    return model


WORDS = "the cat sat on a mat and the dog saw it. a king likes the sea, the queen meets a dog at home. "


def save_tokenizer(folder: Path, kind: str = "word", vocab: int = D_VOCAB, *, specials: bool = False) -> Any:
    """A small fitted tokenizer as tokenizer.json in `folder`, with special tokens as BERT's frames a text."""
    tokenizer = fit_tokenizer(kind, [WORDS * 20], vocab, specials=specials)
    if specials:
        marks = [(mark, tokenizer.special[mark]) for mark in ("[CLS]", "[SEP]")]
        tokenizer.hf.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder / "tokenizer.json")
    return tokenizer


GERMAN = "der die das ein Haus Häuser Straße grüne rote läuft über unter schnell langsam Mädchen spielen zwei".split()
ENGLISH = "the a house houses street green red runs over under quickly slowly girl boys play two bridge".split()
ENDS = ("", "s", "en", "er", "ing", "ung", "ly")


def lines(words: list[str], seed: int, n: int = 600) -> list[str]:
    """Made-up sentences of these words with endings."""
    generator, spelled = np.random.default_rng(seed), [word + end for word in words for end in ENDS]
    return [" ".join(generator.choice(spelled, generator.integers(3, 9))) + "." for _ in range(n)]


def side(words: list[str], seed: int, **options: Any) -> bytes:
    """A SentencePiece model of made-up sentences."""
    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines(words, seed)), model_writer=out, minloglevel=2,
        **({"model_type": "unigram", "vocab_size": 80, "character_coverage": 1.0} | options),
    )  # fmt: skip
    return out.getvalue()


def pieces(data: bytes) -> list[str]:
    """What a SentencePiece model cuts texts into."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_proto=data)
    return [model.id_to_piece(i) for i in range(len(model)) if not model.is_control(i) and not model.is_unknown(i)]


def save_sides(place: Path, source: bytes, target: bytes, left_out: tuple[str, ...] = ()) -> Path:
    """Marian's three files: one table of the pieces of both sides, all but those `left_out`, <pad> last."""
    known = dict.fromkeys([*pieces(source), *pieces(target)])
    numbers = {piece: i for i, piece in enumerate(["</s>", "<unk>", *(p for p in known if p not in left_out), "<pad>"])}
    place.mkdir(parents=True, exist_ok=True)
    (place / "source.spm").write_bytes(source)
    (place / "target.spm").write_bytes(target)
    (place / "vocab.json").write_text(json.dumps(numbers, ensure_ascii=False), encoding="utf-8")
    return place


def without_islands(model: Any, monkeypatch: Any) -> None:
    """Make what they compute in float32 float64: norms, softmax, and rotary tables by their own formulas."""
    softmax = torch.nn.functional.softmax

    def wide(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs.pop("dtype", None)
        return softmax(x, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "softmax", wide)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            monkeypatch.setattr(module, "forward", _norm_forward(module))
        if type(module).__name__.endswith("RotaryEmbedding"):
            monkeypatch.setattr(module, "forward", _rotary_forward(module))


def _norm_forward(norm: Any) -> Any:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)

    return forward


def _rotary_forward(rotary: Any) -> Any:
    narrow = torch.float, torch.float32
    torch.float = torch.float32 = torch.float64  # what their formulas compute in
    try:
        exact = type(rotary)(rotary.config)
    finally:
        torch.float, torch.float32 = narrow

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].double() * exact.inv_freq.double()
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * exact.attention_scaling, angles.sin() * exact.attention_scaling

    return forward
