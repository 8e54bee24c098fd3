"""From a model of ours to a folder with model.onnx, for any batch and length: the whole graph in standard operators.

Text models take `input_ids` and `attention_mask` (int64, 1 for real tokens), a translation also `decoder_input_ids` and
`decoder_attention_mask`, an image model `pixels` in 0..1; each gives `logits` in float32. Inputs of unequal lengths are
padded and masked. There is no cache of keys and values. Recurrent models are refused: their loop over positions has no
such graph.
"""

import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, MissingExtra
from qkv.folder.run_folder import write_atomically
from qkv.folder.staging import staged
from qkv.installing import install
from qkv.interop.exporting import check_export
from qkv.interop.tokenizer_files import tokenizer_files
from qkv.jsontypes import JsonMapping
from qkv.models.layout import ModelConfig
from qkv.models.zoo import Model
from qkv.tokenizers.tokenizer import Tokenizer

ONNX_FILE = "model.onnx"
_TEXT = ("input_ids", "attention_mask")
_LARGEST = 1 << 30
"""Bytes of weights within the file; it can hold 2 GB, and more lie beside it."""


class _Exported(nn.Module):
    """The model as a function of what stands for its input: every text with its mask behind it, or pixels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, *given: Tensor) -> Tensor:
        return self.model(*given[::2], *(mask != 0 for mask in given[1::2]))


def input_names(config: ModelConfig) -> tuple[str, ...]:
    """What the graph takes, in order."""
    if config.patches is not None:
        return ("pixels",)
    return (*_TEXT, *(f"decoder_{name}" for name in _TEXT)) if config.kind == "EncoderDecoderLM" else _TEXT


def write_onnx(
    model: Model, config: ModelConfig, tokenizer: Tokenizer | None, out: Path, *, card: str, chat: JsonMapping
) -> None:
    """Write a model as a folder with model.onnx, the files of its tokenizer and `card` as README.md.

    Raises ConfigError for a recurrent model, MissingExtra where ONNX is not installed, RunFolderError where `out` is
    taken, StorageError where it cannot be written; nothing is left then.
    """
    if config.layout.mixer == "lstm":
        raise ConfigError(
            "a recurrent model (mixer = lstm) cannot be exported as ONNX: its loop over positions would have one length"
        )
    try:
        import onnx  # noqa: F401  what torch's exporter needs
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingExtra(f"--format onnx needs other libraries; type: {install('exits')}") from None
    check_export(out)
    given, shapes = _examples(config, names := input_names(config))
    was_training = model.training
    log, level = logging.getLogger("torch.onnx"), logging.getLogger("torch.onnx").level
    log.setLevel(logging.ERROR)  # it warns of a library for images that nothing here needs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(_Exported(model).eval(), given, dynamic_shapes={"given": shapes})
            program._guards_code = []  # a window's are no code for torch 2.9, and a graph has none
            graph = torch.onnx.export(program, input_names=names, output_names=["logits"], dynamo=True, verbose=False)
    finally:
        model.train(was_training)
        log.setLevel(level)
    assert graph is not None
    graph.model.metadata_props["classes"] = "\n".join(config.classes)
    n_bytes = sum(parameter.nbytes for parameter in model.parameters())
    with staged(out) as folder:
        graph.save(str(folder / ONNX_FILE), external_data=n_bytes > _LARGEST)
        for name, data in tokenizer_files(tokenizer, config, chat).items() if tokenizer is not None else ():
            write_atomically(folder / name, data)
        write_atomically(folder / "README.md", card.encode())


def _examples(config: ModelConfig, names: tuple[str, ...]) -> tuple[tuple[Tensor, ...], tuple[dict[int, object], ...]]:
    """Inputs to follow through the model, and which of their axes may have any length."""
    batch = torch.export.Dim("batch")
    if (cut := config.patches) is not None:
        return (torch.zeros(3, cut.channels, cut.height, cut.width),), ({0: batch},)
    n_ctx = config.sizes.n_ctx
    n = min(7, max(2, n_ctx - 1))
    sides = [torch.export.Dim(f"{side}position", max=n_ctx) if n_ctx > 2 else None for side in ("", "decoder_")]
    shapes = tuple({0: batch, 1: sides[name.startswith("decoder_")]} for name in names)
    return tuple(torch.ones(3, min(n, n_ctx), dtype=torch.int64) for _ in names), shapes
