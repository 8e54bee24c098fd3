"""Every family is theirs: outputs to 1e-5 in float32, back through an export, and what a silent file means."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import ast
import json
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from qkv.errors import ConfigError, SourceError
from qkv.interop import FAMILIES, decoders, read_checkpoint
from qkv.interop.exporting import write_checkpoint
from qkv.interop.families import BY_KEY, BY_TYPE
from qkv.interop.formats.gguf import write_gguf
from qkv.interop.formats.onnx import write_onnx
from qkv.interop.importing import as_model, read_model_config
from qkv.interop.mirror import mirror_of
from qkv.interop.settings import Reading, read_config
from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.tasks.generation import Sampling, generate

V, N = 61, 14
NAMES = "qkv has no table of its tensors' names"
DEC = dict(
    vocab_size=V, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
ENC = dict(
    vocab_size=V, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
    max_position_embeddings=34, pad_token_id=1,
)  # fmt: skip
GPT = dict(vocab_size=V, n_positions=32, n_embd=48, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2)
PAIR = dict(
    vocab_size=V, d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=3,
    encoder_ffn_dim=40, decoder_ffn_dim=40, max_position_embeddings=32, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    decoder_start_token_id=2, forced_eos_token_id=2,
)  # fmt: skip
T5 = dict(
    vocab_size=V, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=3, relative_attention_num_buckets=8,
    pad_token_id=0, decoder_start_token_id=0,
)  # fmt: skip
HEADS = dict(head_dim=8, query_pre_attn_scalar=5, sliding_window=4)
LOCAL = ["sliding_attention", "full_attention", "sliding_attention"]
THREE = dict(num_labels=3)
MADE = {
    "olmo": ("OlmoForCausalLM", DEC),
    "olmo2": ("Olmo2ForCausalLM", DEC),
    "olmo3": ("Olmo3ForCausalLM", DEC | dict(sliding_window=4, layer_types=LOCAL)),
    "smollm3": ("SmolLM3ForCausalLM", DEC | dict(no_rope_layers=[1, 0, 1])),
    "smollm3 windowed": (
        "SmolLM3ForCausalLM",
        DEC | dict(no_rope_layers=[1, 1, 0], use_sliding_window=True, sliding_window=5, layer_types=LOCAL),
    ),
    "phi3": ("Phi3ForCausalLM", DEC),
    "phi3 windowed": ("Phi3ForCausalLM", DEC | dict(sliding_window=5, tie_word_embeddings=True)),
    "mistral windowed": ("MistralForCausalLM", DEC | dict(sliding_window=5)),
    "qwen2 windowed": ("Qwen2ForCausalLM", DEC | dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "granite": (
        "GraniteForCausalLM",
        DEC | dict(embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.3, logits_scaling=6.0),
    ),
    "helium": ("HeliumForCausalLM", DEC | dict(head_dim=6)),
    "glm": ("GlmForCausalLM", DEC | dict(head_dim=8)),
    "glm4": ("Glm4ForCausalLM", DEC | dict(head_dim=8)),
    "arcee": ("ArceeForCausalLM", DEC | dict(attention_bias=True)),
    "nemotron": ("NemotronForCausalLM", DEC | dict(head_dim=8)),
    "starcoder2": ("Starcoder2ForCausalLM", DEC | dict(sliding_window=4)),
    "gemma": ("GemmaForCausalLM", DEC | dict(head_dim=8)),
    "gemma2": ("Gemma2ForCausalLM", DEC | HEADS | dict(layer_types=LOCAL, attn_logit_softcapping=2.0)),
    "gemma3_text": ("Gemma3ForCausalLM", DEC | HEADS | dict(layer_types=LOCAL)),
    "stablelm": ("StableLmForCausalLM", DEC | dict(hidden_size=32, use_qkv_bias=True)),
    "stablelm parallel": ("StableLmForCausalLM", DEC | dict(hidden_size=32, use_parallel_residual=True)),
    "cohere": ("CohereForCausalLM", DEC),
    "phi": ("PhiForCausalLM", DEC | dict(hidden_size=32)),
    "gptj": ("GPTJForCausalLM", GPT | dict(rotary_dim=6)),
    "falcon": ("FalconForCausalLM", dict(vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=3)),
    "falcon 40": (
        "FalconForCausalLM",
        dict(vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=6)
        | dict(num_kv_heads=2, new_decoder_architecture=True),
    ),
    "falcon in turn": (
        "FalconForCausalLM",
        dict(vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=3)
        | dict(multi_query=False, parallel_attn=False, bias=True),
    ),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        dict(vocab_size=V, hidden_size=24, num_layers=4, num_heads=3, attention_types=[[["global", "local"], 2]])
        | dict(window_size=4, max_position_embeddings=32),
    ),
    "opt": (
        "OPTForCausalLM",
        dict(vocab_size=V, hidden_size=24, word_embed_proj_dim=24, ffn_dim=40, num_hidden_layers=2)
        | dict(num_attention_heads=3, max_position_embeddings=32, pad_token_id=1),
    ),
    "opt post": (
        "OPTForCausalLM",
        dict(vocab_size=V, hidden_size=24, word_embed_proj_dim=24, ffn_dim=40, num_hidden_layers=2)
        | dict(num_attention_heads=3, max_position_embeddings=32, pad_token_id=1, do_layer_norm_before=False),
    ),
    "biogpt": ("BioGptForCausalLM", {k: v for k, v in DEC.items() if k != "num_key_value_heads"}),
    "bloom": ("BloomForCausalLM", dict(vocab_size=V, hidden_size=24, n_layer=2, n_head=3)),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", GPT),
    "mpt": ("MptForCausalLM", dict(vocab_size=V, d_model=24, n_heads=4, n_layers=2, max_seq_len=32)),
    "xlm-roberta": ("XLMRobertaForMaskedLM", ENC),
    "camembert": ("CamembertForMaskedLM", ENC),
    "electra": ("ElectraForMaskedLM", ENC | dict(embedding_size=16)),
    "electra wide": ("ElectraForMaskedLM", ENC | dict(embedding_size=24)),
    "albert": ("AlbertForMaskedLM", ENC | dict(embedding_size=16)),
    "modernbert": (
        "ModernBertForMaskedLM",
        {k: v for k, v in ENC.items() if k != "pad_token_id"}
        | dict(num_hidden_layers=4, local_attention=8, pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1)
        | dict(eos_token_id=2),
    ),
    "bert body": ("BertModel", ENC),
    "roberta body": ("RobertaModel", ENC),
    "distilbert body": (
        "DistilBertModel",
        dict(vocab_size=V, dim=24, hidden_dim=40, n_layers=2, n_heads=3, max_position_embeddings=32),
    ),
    "xlm-roberta body": ("XLMRobertaModel", ENC),
    "camembert body": ("CamembertModel", ENC),
    "bert classes": ("BertForSequenceClassification", ENC | THREE),
    "roberta classes": ("RobertaForSequenceClassification", ENC | THREE),
    "xlm-roberta classes": ("XLMRobertaForSequenceClassification", ENC | THREE),
    "camembert classes": ("CamembertForSequenceClassification", ENC | THREE),
    "bart": ("BartForConditionalGeneration", PAIR),
    "mbart": ("MBartForConditionalGeneration", PAIR),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5 far": ("T5ForConditionalGeneration", T5 | dict(relative_attention_max_distance=9, feed_forward_proj="gelu")),
    "t5 untied": (
        "T5ForConditionalGeneration",
        T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_decoder_layers=2),
    ),
    "mt5": ("MT5ForConditionalGeneration", T5),
    "mt5 untied": ("MT5ForConditionalGeneration", T5),
}


def made(name):
    """A model of transformers with random weights, in evaluation mode."""
    cls, settings = MADE[name]
    torch.manual_seed(len(name))
    config = getattr(transformers, cls).config_class(**settings)
    config._attn_implementation = "eager"  # fused attention knows no cap of scores (gemma2)
    model = getattr(transformers, cls)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.15)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.tie_weights()
    if name.endswith("t5 untied"):  # as files of T5 v1.1 and mT5 are; what transformers builds is tied
        model.lm_head.weight = torch.nn.Parameter(0.15 * torch.randn(model.lm_head.weight.shape))
    return model


def inputs(model):
    ids = torch.randint(5, V, (2, N), generator=torch.Generator().manual_seed(2))
    return {"input_ids": ids} | ({"decoder_input_ids": ids[:, :9].flip(1)} if model.config.is_encoder_decoder else {})


def said(model):
    """Logits, or the hidden vectors of a model without a head."""
    with torch.no_grad():
        out = model(**inputs(model))
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def ours(imported):
    model = build(imported.config, 0).eval()
    Catalogue(model).load_state(imported.state)
    return model


def gap(found, wanted):
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.fixture(scope="module")
def kept(theirs, tmp_path_factory):
    """Name -> a model of transformers, the folder that it saved, what is read of that, and it as ours; made once."""
    place = tmp_path_factory.mktemp("families")

    @cache
    def keep(name):
        model = made(name) if name in MADE else theirs.make_theirs(name)
        model.save_pretrained(place / name)
        imported = read_checkpoint(place / name)
        return SimpleNamespace(theirs=model, folder=place / name, imported=imported, ours=ours(imported))

    return keep


def state_of(model):
    """Address -> values, second names that are stored alike among them."""
    catalogue = Catalogue(model)
    state = catalogue.state()
    return state | {n: state[one] for n, one in catalogue.aliases.items() if not catalogue.entry(n).transposed}


@pytest.mark.parametrize("name", MADE)
def test_a_family_is_theirs_there_and_back(name, kept, tmp_path):
    found = kept(name)
    theirs, imported, model, wanted = found.theirs, found.imported, found.ours, said(found.theirs)
    if name in FAMILIES:
        assert imported.family.name == name
    with torch.no_grad():
        plain = model(*inputs(theirs).values())
        recorded, record = model.forward_recorded(*inputs(theirs).values())
    mine, explicit = (record["norm_f"],) * 2 if imported.family.absent else (plain, recorded)
    assert gap(mine, wanted) < 1e-5 and gap(explicit, wanted) < 1e-5
    fit = write_checkpoint(
        imported.config, state_of(model), None, tmp_path / "back", card="", wanted=imported.family.name,
        marks=imported.marks,
    )  # fmt: skip
    assert fit.family is imported.family
    cls = getattr(transformers, fit.family.architecture)
    back = cls.from_pretrained(tmp_path / "back", attn_implementation="eager").eval()
    assert gap(said(back), wanted) < 1e-5
    again = read_checkpoint(tmp_path / "back")
    assert again.config.resolved() == imported.config.resolved()


# ways out


OLDER = (
    "gpt2", "gpt2 odd", "llama", "llama biased", "llama linear", "llama llama3", "llama yarn", "mistral", "qwen2",
    "qwen3", "qwen3 biased", "neox", "neox in turn", "bert", "roberta", "distilbert", "vit", "marian",
)  # fmt: skip
GGUF = (
    "phi3", "helium", "falcon in turn", "gpt2", "llama", "llama biased", "llama linear", "llama llama3", "mistral",
    "qwen2", "qwen3", "neox",
)  # fmt: skip
"""What llama.cpp's architectures compute, as far as qkv writes them; any other lacks one of these."""
LACKS = {
    "olmo": "norm_gain", "olmo2": "norm_place", "olmo3": "norm_place", "smollm3": "rope_layers",
    "smollm3 windowed": "rope_layers", "phi3 windowed": "window", "mistral windowed": "window",
    "qwen2 windowed": "window", "granite": "embedding_factor", "glm": "rope_share", "glm4": "norm_place",
    "arcee": "mlp", "nemotron": "mlp", "starcoder2": "n_kv_heads", "gemma": "embed_scale", "gemma2": "norm_place",
    "gemma3_text": "norm_place", "stablelm": "norm_bias", "stablelm parallel": "norm_bias", "cohere": "parallel",
    "phi": "shared_norm", "gptj": "shared_norm", "falcon": "shared_norm", "falcon 40": "n_kv_heads",
    "gpt_neo": "window", "opt": "mlp", "opt post": "norm_place", "biogpt": "embed_scale", "bloom": "positions",
    "gpt_bigcode": "n_kv_heads", "mpt": "positions", "gpt2 odd": "scale", "llama yarn": "rope_scaling.stretch",
    "qwen3 biased": "attention_bias", "neox in turn": "attention_bias",
}  # fmt: skip


@pytest.mark.parametrize("name", [*MADE, *OLDER])
def test_a_gguf_file_is_exact_or_refused_by_the_ingredient(name, kept, beside, tmp_path):
    found, path = kept(name), tmp_path / "model.gguf"
    config, family = found.imported.config, found.imported.family
    write = partial(write_gguf, config, state_of(found.ours), None, path, name="a model", wanted=family.name)
    if name in GGUF:
        fit = write()
        ids = torch.randint(5, config.sizes.d_vocab, (2, 9), generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            apart = gap(beside("test_gguf").Read(path).logits(ids), found.ours(ids))
        assert apart < (1e-2 if any("GELU" in note for note in fit.notes) else 1e-5)
    else:
        lacks = f"has not .*{LACKS[name]} = " if config.kind == "CausalLM" else f"a CausalLM and no {config.kind}"
        with pytest.raises(ConfigError, match=lacks):
            write()
        assert not path.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MADE, *OLDER])
def test_onnx_is_exact_for_every_family(name, kept, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the dev extra (onnxruntime)")
    found = kept(name)
    config = found.imported.config.resolved()
    write_onnx(found.ours, config, None, tmp_path / "out", card="", chat={})
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    for n in (3, 8):
        if config.patches is not None:
            given = [torch.rand(n, config.patches.channels, config.patches.height, config.patches.width)]
        else:
            ids = torch.randint(5, config.sizes.d_vocab, (2, n))
            given = [ids, torch.ones_like(ids)] * (2 if config.kind == "EncoderDecoderLM" else 1)
        feed = {one.name: values.numpy() for one, values in zip(session.get_inputs(), given, strict=True)}
        with torch.no_grad():
            own = found.ours(*given[::2])
        assert gap(torch.from_numpy(session.run(None, feed)[0]), own) < 1e-4


# what is told of families


def test_a_family_without_a_new_ingredient_is_under_40_lines_of_data():
    tree = ast.parse(Path(decoders.__file__).read_text("utf-8"))
    named = {id(family): name for name, family in vars(decoders).items() if family in decoders.DECODERS}
    lines = {
        node.targets[0].id: node.end_lineno - node.lineno + 1
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id in named.values()
    }
    assert len(lines) == len(decoders.DECODERS) and max(lines.values()) < 40
    assert lines["GLM4"] < 10 and lines["GEMMA2"] < 20


def test_every_family_has_a_model_here_or_among_the_older_ones(theirs):
    older = {theirs.make_theirs(name).config.model_type for name in (*theirs.KINDS, *theirs.IMAGES, *theirs.PAIRS)}
    assert set(FAMILIES) <= set(MADE) | older and len({f.model_type for f in FAMILIES.values()}) >= 35


@pytest.mark.parametrize("name", [name for name in FAMILIES if name in MADE])
def test_a_silent_file_means_what_transformers_means_by_it(name):
    family = FAMILIES[name]
    spoken = getattr(transformers, family.architecture).config_class().to_dict()
    if name == "olmo3" and spoken["rope_parameters"].get("rope_theta") == 10000.0:
        pytest.skip("transformers had another base in its first versions with OLMo 3 than its checkpoints have")
    kept = {key: value for key, value in spoken.items() if value is not None or key == "sliding_window"}
    read = []
    for given in ({}, kept):
        reading = Reading(family.model_type, {"model_type": family.model_type} | given)
        read_config(family.pieces, reading)
        read.append(as_model(family, reading))
    assert read[0] == read[1]


@pytest.mark.parametrize(
    ("name", "key", "listed"),
    [
        ("gemma3_text", "sliding_window_pattern", "layer_types"),
        ("smollm3", "no_rope_layer_interval", "no_rope_layers"),
        ("modernbert", "global_attn_every_n_layers", "layer_types"),
        ("qwen2", "max_window_layers", "layer_types"),
    ],
)
def test_a_file_of_an_older_version_says_which_layers_differ_by_one_number(name, key, listed):
    family, windowed = FAMILIES[name], {"use_sliding_window": True, "sliding_window": 8, "num_hidden_layers": 10}
    given = {k: v for k, v in windowed.items() if name != "modernbert" or k == "num_hidden_layers"} | {key: 2}
    theirs = getattr(getattr(transformers, family.architecture).config_class(**given), listed)
    given = {k: v for k, v in given.items() if name != "gemma3_text" or not k.startswith("use_")}
    read = []
    for said in (given, given | {listed: theirs}):
        reading = Reading(family.model_type, said)
        read_config(family.pieces, reading)
        read.append(as_model(family, reading))
    assert read[0] == read[1] and len({str(one) for one in theirs}) == 2


@pytest.mark.parametrize("name", ["gemma2", "bloom", "gpt_neo", "smollm3 windowed", "falcon"])
def test_greedy_text_with_a_cache_is_theirs(name, kept):
    theirs, model = kept(name).theirs, kept(name).ours
    prompt = inputs(theirs)["input_ids"][:1, :9]
    mine = generate(model, [prompt[0].numpy()], tokens=8, how=Sampling(temperature=0), seed=0)[0]
    ids = prompt
    for _ in range(8):
        with torch.no_grad():
            ids = torch.cat((ids, theirs(ids).logits[:, -1:].argmax(-1)), dim=1)
    np.testing.assert_array_equal(mine, ids[0, 9:].numpy())


@pytest.mark.parametrize(
    "settings",
    [
        {"partial_rotary_factor": 0.5},
        {
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            "rope_parameters": {"full_attention": {"rope_theta": 9}},
        },
        {"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
        {"rope_parameters": {"full_attention": {"rope_theta": 9.0}, "sliding_attention": {"rope_theta": "x"}}},
    ],
)
def test_rotary_settings_of_two_kinds_of_layers_are_read_or_refused_and_none_passed_over(settings):
    family, reading = FAMILIES["gemma3_text"], Reading("config.json", settings)
    with pytest.raises(SourceError, match="config.json: (rope|partial)"):
        read_config(family.pieces, reading)


def test_caps_that_a_live_model_has_turned_off_are_off_in_its_mirror():
    theirs = made("gemma2")
    theirs.config.attn_logit_softcapping = theirs.config.final_logit_softcapping = None
    layout = mirror_of(theirs).config.layout
    assert (layout.score_cap, layout.logit_cap) == (0.0, 0.0)


def test_gradients_of_a_watched_model_are_its_own():
    theirs = made("gemma2")
    theirs(**inputs(theirs), labels=inputs(theirs)["input_ids"]).loss.backward()
    mirror = mirror_of(theirs)
    mirror.refresh(gradients=True)
    live = theirs.model.layers[1].input_layernorm.weight
    torch.testing.assert_close(mirror.catalogue.grad("L1.norm1.gain"), live.grad)
    torch.testing.assert_close(mirror.catalogue.view("L1.norm1.gain"), 1 + live.detach())


UNREAD = sorted(set(CONFIG_MAPPING_NAMES) - {family.model_type for family in FAMILIES.values()})


def refusal(model_type, config, folder):
    """What is said of a config.json of this type."""
    (folder / "config.json").write_text(json.dumps(config | {"model_type": model_type}, default=str))
    with pytest.raises(SourceError) as refused:
        read_model_config(folder)
    told = str(refused.value)
    assert told.startswith(f"{model_type} is not read: ") and "did you mean" not in told
    return told


def test_every_refusal_begins_with_the_type_and_guesses_nothing(tmp_path):
    assert len(UNREAD) > 400
    for model_type in UNREAD:
        refusal(model_type, {}, tmp_path)


@pytest.mark.slow
def test_every_refusal_of_a_whole_configuration_says_what_is_missing(tmp_path):
    known, told = {*BY_KEY.values(), *BY_TYPE.values()}, {}
    for model_type in UNREAD:
        try:
            config = transformers.AutoConfig.for_model(model_type).to_dict()
        except (ValueError, huggingface_hub.errors.StrictDataclassError):  # two need others to be made of
            config = {}
        told[model_type] = refusal(model_type, config, tmp_path)
        missing = told[model_type].split(" is not read: ")[1].split("; docs/")[0]
        ingredient = missing.removeprefix("it needs ").removesuffix(", which qkv does not have")
        assert ingredient in known or "several models in one" in missing or missing == NAMES, told
    assert sum(NAMES in words for words in told.values()) < 0.3 * len(UNREAD)


@pytest.mark.parametrize(
    "model_type, ingredient",
    [
        ("mixtral", "a mixture of experts"),
        ("umt5", "in another form than T5's"),
        ("mamba", "state-space"),
        ("deepseek_v3", "latent vector"),
        ("llava", "another medium"),
        ("deberta-v2", "to content and to position separately"),
        ("codegen", "in an order of its own"),
        ("reformer", "hashed attention"),
        ("prophetnet", "several predictions at each position"),
        ("rag", "several models in one"),
    ],
)
def test_a_refusal_names_the_ingredient(model_type, ingredient, tmp_path):
    try:
        config = transformers.AutoConfig.for_model(model_type).to_dict()
    except ValueError:  # in some versions RAG has no configuration without its parts
        config = {"question_encoder": {"model_type": "dpr"}, "generator": {"model_type": "bart"}}
    assert ingredient in refusal(model_type, config, tmp_path)


def test_no_family_is_listed_as_refused():
    read = {family.model_type for family in FAMILIES.values()}
    assert not read & set(BY_TYPE)
    written = {key for family in FAMILIES.values() for piece in family.pieces for key in piece.keys}
    assert not (written - {"image_size", "num_channels", "patch_size", "relative_attention_num_buckets"}) & set(BY_KEY)
