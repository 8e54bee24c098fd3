"""What a family of checkpoints is, and what the files of most of them share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from qkv.interop.name_map import SAME, TRANSPOSED, Form, Row
from qkv.interop.settings import YES_NO, Always, Piece, Setting
from qkv.jsontypes import JsonMapping
from qkv.models.layout import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Family:
    """How one kind of checkpoint is written."""

    name: str
    """`model_type` of its config.json, and behind a space what else tells it from others of that type."""
    title: str
    """As people call it."""
    kind: str
    """The kind of model it becomes: CausalLM, MaskedLM, ImageClassifier or EncoderDecoderLM."""
    preset: str
    """The preset whose optimizer fits it, for training it further."""
    architecture: str
    """The class of transformers that loads what we export."""
    also: tuple[str, ...] = ()
    """Other `architectures` whose files hold the same model."""
    auto: str
    """The class of transformers that finds it: AutoModelForCausalLM, AutoModelForSeq2SeqLM, ..."""
    base: str
    """What every name begins with, save those of the way out; some files leave it out."""
    pieces: tuple[Piece, ...]
    """Its config.json."""
    layout: JsonMapping
    """What of our layout is the same in all of them."""
    rows: Callable[[ModelConfig], Sequence[Row]]
    """Its tensors."""
    buffers: tuple[str, ...] = ()
    """Patterns of tensors that are constants, and not weights."""
    sines: tuple[str, ...] = ()
    """Patterns of position tables that the model computes by the rule, and that are compared with it where there."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Patterns of tensors that belong to another use of the model -> what they are, in words."""
    even_heads: bool = False
    """Whether transformers insists that d_model divides into n_heads."""
    absent: tuple[str, ...] = ()
    """Addresses that its files have not and that are 0 here; the head of a model that has none."""

    spare: Mapping[str, str] = field(default_factory=dict)
    """Address that its files may leave out -> the table that it then is transposed."""

    @property
    def model_type(self) -> str:
        """`model_type` of its config.json."""
        return self.name.partition(" ")[0]


def row(stored: str, *addresses: str, form: Form = SAME, copy: bool = False) -> Row:
    """One stored tensor and the addresses that it holds."""
    return Row(stored, addresses, form, copy)


def linear(stored: str, weight: str, bias: str = "") -> list[Row]:
    """The rows of a torch Linear: weight [out, in] and, where there may be one, a bias."""
    rows = [row(f"{stored}.weight", weight, form=TRANSPOSED)]
    return rows + ([row(f"{stored}.bias", bias)] if bias else [])


def norm(stored: str, address: str) -> list[Row]:
    """The rows of a norm; one without a bias has no second."""
    return [row(f"{stored}.weight", f"{address}.gain"), row(f"{stored}.bias", f"{address}.bias")]


def attention(stem: str, names: str, place: str = "L{L}.") -> list[Row]:
    """The rows of four Linears behind `stem`, whose names are those of q, k, v and o."""
    return [
        one
        for name, kind in zip(names.split(), "QKVO", strict=True)
        for one in linear(f"{stem}{name}", f"{place}W_{kind}", f"{place}b_{kind}")
    ]


def mlp(stem: str, names: str, place: str = "L{L}.") -> list[Row]:
    """The rows of two Linears behind `stem`: the way into the hidden layer and the way out of it."""
    into, out = names.split()
    return linear(stem + into, f"{place}W_in", f"{place}b_in") + linear(stem + out, f"{place}W_out", f"{place}b_out")


TABLE = row("lm_head.weight", "W_U", form=TRANSPOSED)
"""The output matrix of most."""
TIED = Setting("tie_word_embeddings", "layout.tied", False, YES_NO)
"""Whether it is W_E transposed, where a file that is silent means no."""
TIED_USUALLY = Setting("tie_word_embeddings", "layout.tied", True, YES_NO)
"""The same, where a file that is silent means yes."""
_GELUS = tuple((name, "gelu_tanh") for name in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"))
ACTS = (("gelu", "gelu"), *_GELUS, ("relu", "relu"), ("relu2", "relu2"))
"""Name of a nonlinearity in their files -> ours."""


def idle(**values: object) -> tuple[Always, ...]:
    """Keys that compute nothing where they have this value."""
    return tuple(Always(key, value, written=False) for key, value in values.items())


PLAIN = idle(
    is_decoder=False, is_encoder_decoder=False, add_cross_attention=False, cross_attention_hidden_size=None,
    tie_encoder_decoder=False, chunk_size_feed_forward=0, pruned_heads={},
)  # fmt: skip
"""What nearly every file says, and no model that is read here does."""
