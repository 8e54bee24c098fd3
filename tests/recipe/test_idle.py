"""A setting that changes nothing is refused where a person gave it: by the table, and by training with and without."""

import dataclasses
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.cli import main
from qkv.config import field_paths, override
from qkv.errors import ConfigError
from qkv.recipe.build import assemble
from qkv.recipe.config import RunConfig
from qkv.recipe.request import BESIDE_SET, OPTIONS, Request, resolve, same_run
from qkv.recipe.unused_settings import UNUSED, unused_settings

SMALL: dict[str, Any] = {"d_model": 8, "n_layers": 1, "batch_size": 2}


def write_idx(path: Path, values: np.ndarray) -> None:
    head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}i", *values.shape)
    path.write_bytes(head + values.astype(np.uint8).tobytes())


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> dict[str, str]:
    """Task -> a little to train on."""
    place = tmp_path_factory.mktemp("sources")
    text, table, images, left, right = (place / name for name in ("a.txt", "b.tsv", "c", "d.de", "d.en"))
    text.write_text("".join(f"the cat saw {i} dogs.\n" for i in range(80)), encoding="utf-8")
    rows = "".join(f"the {'good' if i % 2 else 'bad'} one of {i}\t{i % 2}\n" for i in range(60))
    table.write_text("text\tlabel\n" + rows, encoding="utf-8")
    numbers = place / "e.tsv"
    numbers.write_text("text\tlabel\n" + "".join(f"the one of {i}\t{i / 4}\n" for i in range(60)), encoding="utf-8")
    left.write_text("".join(f"der Hund {i} lacht\n" for i in range(60)), encoding="utf-8")
    right.write_text("".join(f"the dog {i} laughs\n" for i in range(60)), encoding="utf-8")
    images.mkdir()
    write_idx(images / "train-images-idx3-ubyte", np.arange(30 * 144).reshape(30, 12, 12) * 7 % 251)
    write_idx(images / "train-labels-idx1-ubyte", np.arange(30) % 3)
    found = {"causal": text, "masked": text, "classify": table, "image": images, "translate": f"{left}:{right}"}
    found["regress"], found["tag"] = numbers, place / "f.conll"
    found["tag"].write_text("".join(f"the A\ncat{i} B\n\n" for i in range(60)), encoding="utf-8")
    found["answer"] = place / "g.jsonl"
    row = '{{"question": "Who is {0}?", "text": "Ada {0} laughs.", "answer": "Ada"}}\n'
    found["answer"].write_text("".join(row.format(i) for i in range(60)), encoding="utf-8")
    return {task: str(path) for task, path in found.items()}


def asked(sources, task: str = "causal", **given) -> Request:
    """A request of a small model on that task's source."""
    sizes = SMALL | ({} if task == "image" else {"n_ctx": 8})
    budget = {} if "minutes" in given or "until_loss" in given else {"steps": 2}
    kind = "word" if task in ("classify", "regress", "answer", "translate") else "char"
    usual = {"tokenizer": None if task == "image" else kind, "precision": "fp32"}
    more = {"set": sizes | given.pop("set", {}), "threads": 1}
    return Request(source=sources[task], task=task, **budget, **(usual | more | given))


CASES = (  # what was asked for, the setting that changes nothing, what is said of it
    ({"task": "regress"}, "data.labels.disturbed=0.1", "--task regress, whose texts have no single class"),
    ({"task": "answer"}, "class_weights=balanced", "--task answer, whose texts have no classes"),
    ({"task": "answer"}, "data.labels.linear=true", "--task answer, whose texts have no classes"),
    ({"task": "tag"}, "class_weights=balanced", "--task tag, whose texts have no single class"),
    ({"preset": "textbook"}, "muon_lr=0.02", "has no effect with optimizer.kind=adamw; leave it out, or add --set opt"),
    ({"set": {"optimizer.kind": "sgd"}}, "training.optimizer.muon_lr=1", "has no effect with optimizer.kind=sgd;"),
    ({"set": {"machine.native": False}}, "machine.capture=false", "has no effect with machine.device=cpu, machine.nat"),
    ({"set": {"machine.compile": True}}, "machine.native=true", "machine.device=cpu and machine.compile=true: "),
    (
        {"set": {"machine.native": False}},
        "kernels.product=9",
        "machine.native=false and machine.compile=false: they are",
    ),
    ({"preset": "gpt2"}, "optimizer.momentum=0", "has no effect with optimizer.kind=adamw; leave it out, or add"),
    ({"set": {"optimizer.kind": "sgd"}}, "beta2=0.9", "has no effect with optimizer.kind=sgd; leave it out, or add"),
    ({"preset": "lstm", "set": {"optimizer.kind": "muon"}}, "muon_lr=0.1", "with mixer=lstm and mlp=none: Muon moves"),
    *(
        (
            {"set": {"optimizer.kind": "torch.optim:Rprop"}},
            f"{name}=0.5",
            "torch.optim:Rprop, whose constructor does not",
        )
        for name in ("beta1", "beta2", "eps", "weight_decay", "optimizer.momentum")
    ),
    ({}, "most_steps=9", "has no effect with a horizon of 2 steps, which no clock measures; leave it out, or give"),
    ({"set": {"decay_share": 0}}, "floor=0.1", "has no effect with schedule.decay_share=0; leave it out, or set that"),
    ({}, "teachers=2", "has no effect with --task causal, which does not learn from teachers; leave it out"),
    ({"task": "masked"}, "joined=0.1", "has no effect with --task masked, which does not learn from teachers;"),
    ({"task": "classify"}, "teacher_dropout=0.1", "has no effect with teaching.teachers=0; leave it out, or add --set"),
    ({"preset": "bloem"}, "d_mlp=32", "has no effect with mlp=none; leave it out, or add --set mlp=gelu"),
    ({"preset": "bloem"}, "norm_eps=0.1", "has no effect with norm=none; leave it out, or add --set norm=layer"),
    ({"preset": "bloem"}, "norm_place=post", "has no effect with norm=none; leave it out, or add --set norm=layer"),
    ({"preset": "lstm"}, "bias=true", "has no effect with mixer=lstm, attention_bias=same, norm=none, norm_bias=same,"),
    (
        {"set": {"attention_bias": "all", "mlp_bias": "all"}},
        "bias=true",
        "attention_bias=all, norm=rms, norm_bias=same",
    ),
    ({}, "norm_bias=all", "has no effect with norm=rms, which has no biases; leave it out, or add --set norm=layer"),
    ({"set": {"mlp": "none"}}, "mlp_bias=all", "has no effect with mlp=none; leave it out, or add --set mlp=gelu"),
    ({"set": {"score_factor": 0.5}}, "scale=false", "has no effect with score_factor=0.5, which scores are multiplied"),
    (
        {},
        "window=8",
        "has no effect with n_ctx=8: no layer sees more positions anyway; leave it out, or give a smaller",
    ),
    ({"set": {"window": 4}}, "window_layers=f", "has no effect with n_layers=1, none of which is windowed; leave it"),
    ({"set": {"rope_layers": "n"}}, "rope_base=50", "has no effect with rope_layers=n, by which no layer is turned;"),
    ({"task": "classify"}, "tied=true", "has no effect with --task classify, whose output is W_cls and not W_U; leave"),
    ({"preset": "bag"}, "rope_base=50", "has no effect with mixer=mean, which has no rotary positions; leave it out"),
    ({"preset": "gpt2"}, "rope_base=50", "has no effect with positions=learned; leave it out, or add --set positions"),
    ({"preset": "gpt2"}, "rope_share=1", "has no effect with positions=learned; leave it out, or add --set positions"),
    ({"task": "image"}, "rope_scaling.stretch=2", "has no effect with --task image: it is for longer texts; leave"),
    ({}, "rope_scaling.factor=2", "has no effect with rope_scaling.kind=none; leave it out, or add --set rope_scaling"),
    ({}, "rope_scaling.slow=2", "has no effect with rope_scaling.kind=none; leave it out, or set that to llama3 or"),
    ({"set": {"rope_scaling.kind": "linear"}}, "whole_pairs=false", "has no effect with rope_scaling.kind=linear;"),
    ({"watch": "off"}, "watching.attention=8", "has no effect with --watch off; leave it out, or give --watch light"),
    ({"report": False}, "control_share=1", "has no effect with watch=light and report=false: no control is trained;"),
    ({"set": {"positions": "alibi"}}, "watching.attention=16", "or alibi or relative positions: there what heads"),
    ({"preset": "lstm"}, "watching.circuits=8", "has no effect with mixer=lstm, which has no heads; leave it out"),
    ({"preset": "lstm", "set": {"watching.matrices": 0}}, "per_doubling=8", "has no effect with intervals of 0 every"),
    ({}, "ledger.windows=2", "has no effect with ledger.every=0; leave it out, or add --set ledger.every=1"),
    ({"set": {"ledger.every": 1, "ledger.most_panels": 1}}, "tolerance=1", "since panels are never doubled; leave it"),
    ({"task": "image"}, "--tokenizer char", "has no effect with --task image, which reads no text; leave it out"),
    ({"task": "image"}, "vocab=30", "has no effect with --task image, which reads no text; leave it out"),
    ({"task": "image"}, "n_types=2", "has no effect with --task image, which reads no text; leave it out"),
    ({"task": "image"}, "shift=0.01", "has no effect with images of 12 x 12 pixels, of which that is less than half"),
    ({"task": "image", "set": {"pixels": "1,12,12"}}, "images.size=0", "has no effect with data.pixels=(1, 12, 12),"),
    ({"task": "classify"}, "train_bytes=9", "has no effect with --task classify, which reads its data whole; leave"),
    ({"task": "classify"}, "document_end=x", "has no effect with --task classify, whose texts are not cut into docu"),
    ({"task": "translate"}, "data.classes=a,b", "has no effect with --task translate, which tells no classes; leave"),
    ({}, "pixels=1,12,12", "has no effect with --task causal, which reads no images; leave it out"),
)


def with_it(given: dict[str, Any], words: str) -> dict[str, Any]:
    """The same with one more setting, as it is typed."""
    if words.startswith("--"):
        name, _, value = words.removeprefix("--").partition(" ")
        return given | {name: value}
    name, _, value = words.partition("=")
    return given | {"set": given.get("set", {}) | {name: value}}


@pytest.mark.parametrize(("given", "words", "said"), CASES)
def test_what_was_given_and_changes_nothing_is_refused_in_one_sentence(sources, given, words, said) -> None:
    resolve(asked(sources, **given), None)  # by itself it is sound, whatever its preset and laws filled in
    with pytest.raises(ConfigError) as error:
        resolve(asked(sources, **with_it(given, words)), None)
    sentence = str(error.value)
    assert sentence.startswith(f"{words} has no effect with ") and said in sentence and "\n" not in sentence
    if "or add --set " in sentence:
        name, _, value = sentence.rpartition("or add --set ")[2].partition(",")[0].partition("=")
        other = given | {"set": {n: v for n, v in given.get("set", {}).items() if n != name} | {name: value}}
        resolve(asked(sources, **with_it(other, words)), None)


def test_every_row_of_the_table_has_a_case_and_names_settings_that_there_are(sources) -> None:
    rows = []
    for given, words, _ in CASES:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("qkv.recipe.request.refuse_unused", lambda config, given: None)
            request = asked(sources, **with_it(given, words))
            (path,) = (path for path, shown in request.given().items() if shown == words)
            rows.append(unused_settings(resolve(request, None)[0])[path])
    assert {id(row) for row in rows} == {id(row) for row in UNUSED}
    paths = field_paths(RunConfig)
    assert {path for row in UNUSED for path in row.settings} | set(BESIDE_SET.values()) <= set(paths)
    assert not {path for row in UNUSED for path in row.settings} & set(OPTIONS)


@pytest.mark.parametrize("given", [{"tied": False}, {"teachers": 0}, {"bias": False}, {"qk_norm": False}])
def test_what_says_that_a_part_is_not_there_is_no_idle_setting(sources, given) -> None:
    resolve(asked(sources, "classify", preset="lstm", set=given), None)


def test_nothing_is_made_and_python_says_the_same(sources, tmp_path: Path, capsys) -> None:
    words = ["train", sources["causal"], "--preset", "textbook", "--tokenizer", "char", "--steps", "1"]
    assert main([*words, "--set", "muon_lr=0.5", "--out", str(tmp_path / "run")]) == 2
    assert "muon_lr=0.5 has no effect with optimizer.kind=adamw" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"rope_base=50 has no effect with positions=learned"):
        qkv.train(sources["causal"], preset="textbook", steps=1, set={"rope_base": 50}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tokenizer": "char", "set": {"tokenizer": "bpe"}}, "--tokenizer char and tokenizer=bpe give one setting"),
        ({"shard": False, "set": {"machine.shard": "true"}}, "--no-shard and machine.shard=true give one setting"),
        ({"source": "a.txt", "set": {"source": "b.txt"}}, r"a\.txt and source=.*b\.txt give one setting; leave one"),
        ({"set": {"lr": 1, "optimizer.lr": 2}}, "lr=1 and optimizer.lr=2 give one setting; leave one of them out"),
    ],
)
def test_a_setting_that_is_given_twice_is_refused(given, words) -> None:
    with pytest.raises(ConfigError, match=words):
        Request(**given)


def test_a_run_that_was_made_with_idle_settings_is_read_and_gone_on_with(sources, tmp_path: Path) -> None:
    config = resolve(asked(sources, preset="textbook"), None)[0]
    old = override(config, {"muon_lr": 0.5, "rope_base": 50.0, "ledger.windows": 2})
    path = tmp_path / "config.toml"
    path.write_text(qkv.config.dump_toml(qkv.config.to_dict(old)), encoding="utf-8")
    assert RunConfig.read(path) == old
    same_run(Request(set={"muon_lr": 0.5, "ledger.windows": 2}), old)


BASES = (
    {"preset": "modern"},
    {"preset": "textbook"},
    {"preset": "gpt2", "set": {"optimizer.kind": "sgd"}},
    {"preset": "bloem"},
    {"preset": "lstm", "set": {"optimizer.kind": "muon"}},
    {"task": "classify"},
    {"task": "image"},
)
OTHERS = {  # another value of each setting that is a number, and of those that a row speaks of
    "d_mlp": 20, "n_types": 3, "norm_place": "post", "norm_eps": 0.5, "bias": True, "tied": True, "rope_base": 50.0,
    "scale": False, "window": 99, "window_rope_base": 50.0, "rope_share": 0.5,
    "rope_scaling.factor": 4.0, "slow": 0.5, "fast": 9.0, "original_ctx": 8, "stretch": 2.0, "whole_pairs": False,
    "beta1": 0.1, "beta2": 0.1, "optimizer.eps": 0.5, "momentum": 0.1, "muon_lr": 0.5, "optimizer.lr": 0.5,
    "embed_factor": 0.1, "weight_decay": 0.7, "clip": 1e-3, "warmup_steps": 9, "decay_share": 0.0, "dropout": 0.4,
    "most_steps": 1, "teacher_dropout": 0.1, "teacher_embed_factor": 0.1, "joined": 0.9, "ledger.windows": 2,
}  # fmt: skip


def trained(config: RunConfig, data: Any) -> dict[str, torch.Tensor]:
    """Every matrix after the training."""
    parts = assemble(config, data)
    parts.train()
    return parts.catalogue.state()


@pytest.mark.parametrize("base", BASES)
def test_the_table_says_what_training_says(sources, base) -> None:
    """A setting of another value gives other bits, unless the table names it."""
    config, data, _ = resolve(asked(sources, **base), None)
    usual, idle = trained(config, data), unused_settings(config)
    for name, value in OTHERS.items():
        (path,) = (path for path in field_paths(RunConfig) if path == name or path.endswith(f".{name}"))
        try:
            other = override(config, {name: value})
            other = dataclasses.replace(other, model=other.model.resolved())
        except ConfigError:
            continue  # told already
        if other == config:
            continue
        found = trained(other, data)
        same = found.keys() == usual.keys() and all(torch.equal(found[a], usual[a]) for a in usual)
        assert same == (path in idle or path in unused_settings(other)), f"{base}: {name}={value}"
