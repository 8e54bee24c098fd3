"""The model card of an export (README.md), from the run's own facts: nothing in it is made up or rounded up."""

from qkv.interop.exporting import Fit
from qkv.jsontypes import JsonMapping
from qkv.models.layout import ModelConfig
from qkv.words import many

_OF_TEXTS = ("text-classification", "names the class of a text", "text")
_WORDS = {
    "CausalLM": ("text-generation", "predicts the next token", "token"),
    "MaskedLM": ("fill-mask", "fills in hidden tokens", "hidden token"),
    "ImageClassifier": ("image-classification", "names the class of an image", "image"),
    "EncoderDecoderLM": ("translation", "predicts the next token of a translation from its source", "target token"),
    "Classifier": _OF_TEXTS,
    "CausalClassifier": _OF_TEXTS,
}
"""Kind of model -> its pipeline, by the hub; what it does, behind "a model that"; what its loss is counted in."""


def model_card(
    name: str,
    config: ModelConfig,
    fit: Fit | None,
    manifest: JsonMapping,
    summary: JsonMapping,
    *,
    weights: str,
    columns: int = 1,
) -> str:
    """The card of a run: what it is, how to load it, what it was trained on, how good it is and beside what.

    `fit` is the class of transformers that it is written for; None for ONNX. `columns`: of how many texts one is made.
    """
    sizes, (pipeline, what, unit) = config.sizes, _WORDS[config.kind]
    library = f"library_name: {'transformers' if fit else 'onnx'}"
    lines = ["---", library, f"pipeline_tag: {pipeline}", "tags:", "- qkv", "---", "", f"# {name}", ""]
    title = fit.family.title if fit and fit.family else "its own"
    lines += [
        f"A model that {what}: {summary.get('parameters', 0):,} parameters, {many(sizes.n_layers, 'layer')},"
        f" d_model {sizes.d_model}, {many(sizes.n_heads, 'head')}"
        + (f" ({sizes.n_kv_heads} of keys and values)" if sizes.n_kv_heads != sizes.n_heads else "")
        + f", {what_it_reads(config)}."
        + (f" Its layout is {title}." if fit else "")
        + f" Made with qkv {manifest.get('versions', {}).get('qkv', '')}, {weights} weights.",
        "",
        *(_loading(config, fit) if fit else _loading_onnx(config)),
        "",
        *(["It reads two texts as one with [SEP] between: `tokenizer(first, second)`.", ""] if columns == 2 else []),
        *_training(manifest, summary, weights),
        *_figures(summary, weights, unit),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def what_it_reads(config: ModelConfig) -> str:
    """`context 64, vocabulary 512`, or the images that go in; and how many classes come out."""
    cut, sizes = config.patches, config.sizes
    what = f"context {sizes.n_ctx}, vocabulary {sizes.d_vocab:,}"
    if cut is not None:
        cuts = many(cut.n_patches, "patch", "patches")
        what = f"images of {cut.height} x {cut.width} pixels in {cuts} of {cut.patch} x {cut.patch}"
    return what + (f", {len(config.classes)} classes" if config.classes else "")


def _loading(config: ModelConfig, fit: Fit) -> list[str]:
    reader = ("AutoImageProcessor", "processor") if config.patches else ("AutoTokenizer", "tokenizer")
    more = "" if fit.family else ", trust_remote_code=True"
    lines = ["## Loading it", ""]
    if not fit.family:
        lines += [
            f"No class of transformers has this layout ({fit.why_not}),",
            "so `modeling_qkv.py` lies beside the weights and is run when you load it: read it first.",
            "",
        ]
    return [
        *lines,
        "```python",
        f"from transformers import {fit.auto}, {reader[0]}",
        "",
        f'model = {fit.auto}.from_pretrained("FOLDER"{more})',
        f'{reader[1]} = {reader[0]}.from_pretrained("FOLDER"{more})',
        "```",
    ]


def _loading_onnx(config: ModelConfig) -> list[str]:
    texts = "{name: array, ...}  # int64 [batch, position]; attention_mask is 1 for real tokens"
    pixels = '{"pixels": pixels}  # float32 [batch, channels, height, width] in 0..1'
    return [
        "## Loading it",
        "",
        "```python",
        "import onnxruntime",
        "",
        'session = onnxruntime.InferenceSession("FOLDER/model.onnx")',
        f"given = {texts if config.patches is None else pixels}",
        'logits = session.run(["logits"], given)[0]',
        "```",
        *(["", f"The classes are, in order: {', '.join(config.classes)}."] if config.classes else []),
    ]


def _training(manifest: JsonMapping, summary: JsonMapping, weights: str) -> list[str]:
    if imported := manifest.get("imported"):
        return [f"It was imported from `{imported.get('folder', '')}` and not trained by qkv.", ""]
    data = manifest.get("data") or {}
    lines = ["## Training", ""]
    if parent := manifest.get("parent"):
        lines += [f"It goes on from the weights of `{parent}`.", ""]
    rows = [
        ("text", data.get("name")),
        ("its sha256", data.get("sha256")),
        ("steps", summary.get("steps")),
        ("step of these weights", summary.get("best_step") if weights == "best" else summary.get("steps")),
        ("tokens seen", summary.get("tokens")),
        ("seconds", summary.get("train_seconds")),
        ("processor", manifest.get("cpu")),
        ("ended because of", summary.get("stopped_because")),
    ]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {label} | {_shown(value)} |" for label, value in rows if value not in (None, "")]
    return [*lines, ""]


def _figures(summary: JsonMapping, weights: str, unit: str) -> list[str]:
    """The loss of these weights; of the last ones, where they are not the best, bits per byte were not taken."""
    best = weights == "best" or summary.get("best_step") == summary.get("steps")
    loss = summary.get("val_loss") if best else summary.get("last_val_loss")
    if loss is None:
        return []
    lines = ["## How good it is", "", f"On the data that it was validated on, nats per {unit} (less is better):", ""]
    others = [(name, v) for name, v in (summary.get("baselines_nats") or {}).items() if isinstance(v, float)]
    lines += [f"| | nats per {unit} |", "|---|---|"]
    lines += [f"| {name} | {value:.4f} |" for name, value in [("this model", loss), *others]]
    if best and summary.get("bits_per_byte") is not None:
        lines += ["", f"That is {summary['bits_per_byte']:.4f} bits per byte of text."]
    if others:
        lines += ["", "The other rows need no Transformer; they were fitted on the same training data."]
    return [*lines, ""]


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
