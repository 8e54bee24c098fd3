"""The layout of our own: how a model is written that no class of transformers has, and how it is read again.

`config.json` holds our sizes, layout, patches and classes as they are, every tensor has its address for a name, and
`modeling_qkv.py` lies beside the weights for `trust_remote_code=True`. Nothing of that file is run here.
"""

from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from qkv.config import from_dict
from qkv.errors import ConfigError, SourceError
from qkv.interop.family import Family, row
from qkv.interop.folders import OWN_TYPE
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.models import build
from qkv.models.layout import Layout, ModelConfig, Patches, Sizes
from qkv.models.matrices import Catalogue

OWN_FILE = "modeling_qkv.py"
OWN_CLASSES = {
    "CausalLM": "AutoModelForCausalLM",
    "MaskedLM": "AutoModelForMaskedLM",
    "Classifier": "AutoModelForSequenceClassification",
    "CausalClassifier": "AutoModelForSequenceClassification",
    "ImageClassifier": "AutoModelForImageClassification",
    "EncoderDecoderLM": "AutoModelForSeq2SeqLM",
}
"""Kind of model -> the class of transformers that finds the one of our file."""


def own_file() -> bytes:
    """The modelling file that lies beside the weights."""
    return files("qkv.interop").joinpath("standalone", OWN_FILE).read_bytes()


def own_settings(config: ModelConfig) -> JsonObject:
    """The config.json of a model, without ids of tokens."""
    auto, module = OWN_CLASSES[config.kind], OWN_FILE.removesuffix(".py")
    settings: JsonObject = {
        "architectures": [_class(config.kind)],
        "model_type": OWN_TYPE,
        "dtype": "float32",
        "auto_map": {"AutoConfig": f"{module}.QkvConfig", auto: f"{module}.{_class(config.kind)}"},
        "vocab_size": config.sizes.d_vocab,
        "tie_word_embeddings": False,  # where it is tied, there is one table only
        "sizes": asdict(config.sizes),
        "layout": asdict(config.layout),
    }
    if config.kind == "CausalClassifier":
        settings |= {"causal": True}
    if config.kind == "EncoderDecoderLM":
        settings |= {"is_encoder_decoder": True, "use_cache": False}
    if config.patches is not None:
        settings |= {"patches": asdict(config.patches)}
    if config.classes:
        settings |= {"id2label": {str(i): name for i, name in enumerate(config.classes)}}
        settings |= {"label2id": {name: i for i, name in enumerate(config.classes)}}
    return settings


def read_own(given: JsonMapping, path: Path) -> ModelConfig:
    """The model of a config.json that `own_settings` wrote. Raises SourceError for one that it did not."""
    found = given.get("architectures")
    kinds = [kind for kind in OWN_CLASSES if found == [_class(kind)]]
    if not kinds:
        known = ", ".join(sorted({_class(kind) for kind in OWN_CLASSES}))
        raise SourceError(f"{path}: architectures is {found}; an export of qkv has one of {known}")
    kind = next((kind for kind in kinds if kind.startswith("Causal") == bool(given.get("causal"))), kinds[0])
    parts: JsonObject = {}
    try:
        for name, cls in (("sizes", Sizes), ("layout", Layout), ("patches", Patches)):
            table = given.get(name)
            if not isinstance(table, dict) and (name != "patches" or table is not None):
                raise ConfigError(f"{name} is {table}; expected a table of settings")
            parts[name] = table and from_dict(cls, table, f"{name}.")
        classes = given.get("id2label", {}) if kind.endswith("Classifier") else {}
        names = tuple(str(classes[str(i)]) for i in range(len(classes)))
        return ModelConfig(kind=kind, classes=names, **parts).resolved()  # type: ignore[arg-type]
    except (ConfigError, KeyError, TypeError, AttributeError) as error:
        reason = error if isinstance(error, ConfigError) else f"id2label is {str(given.get('id2label'))[:80]}"
        raise SourceError(f"{path}: {reason}") from None


def own_family(kind: str) -> Family:
    """What is read of such a folder, by the kind of its model: every tensor is the matrix of its name."""
    return Family(
        name=OWN_TYPE, title="model in a layout of its own", kind=kind, preset="modern", architecture=_class(kind),
        auto=OWN_CLASSES[kind], base="", pieces=(), layout={},
        rows=lambda config: [row(a, a) for a in Catalogue(build(config, 0, materialise=False)).addresses],
    )  # fmt: skip


def _class(kind: str) -> str:
    """The class of our file that a kind of model is."""
    return f"Qkv{OWN_CLASSES[kind].removeprefix('AutoModel')}"
