"""`qkv bench`: what is registered is there, sides are alike, figures and ratios are right, what is missing is named."""

import functools
import importlib
import inspect
import itertools
import json
import math
import os
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from qkv import cli
from qkv.benchmarks import BENCHMARKS, time_to_loss
from qkv.benchmarks.curve import _text
from qkv.benchmarks.nanogpt import prepare
from qkv.benchmarks.session import DATA, Asked, Session, alternate
from qkv.data.config import DataConfig
from qkv.data.corpus import load_corpus
from qkv.data.sources.source import open_source
from qkv.data.split import split_source
from qkv.errors import RunError


@pytest.fixture
def session():
    return Session(Asked(quick=True, rounds=2), say=lambda sentence: None)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_is_a_module_that_measures(name):
    module = importlib.import_module(f"qkv.benchmarks.{name.replace('-', '_')}")
    assert list(inspect.signature(module.measure).parameters) == ["session"]


def test_sides_take_turns_after_one_that_does_not_count():
    called = []

    def side(name):
        return lambda: lambda: called.append(name) or float(len(called))

    values = alternate({"A": side("A"), "B": side("B")}, 3, apart=False)
    assert called == list("AB" * 4)
    assert values == {"A": [3.0, 5.0, 7.0], "B": [4.0, 6.0, 8.0]}


def counting(first):
    """A side that says in which process it is, and how many turns it has had."""
    turns = itertools.count(first)
    return lambda: os.getpid() + next(turns) / 8


def failing(message):
    def turn():
        raise ValueError(message)

    return turn


def dying():
    os._exit(3)


def test_sides_keep_a_process_of_their_own_from_turn_to_turn():
    values = alternate({"A": functools.partial(counting, 0), "B": functools.partial(counting, 4)}, 2)
    places = {side: {int(value) for value in found} for side, found in values.items()}
    assert [len(found) for found in places.values()] == [1, 1]
    assert len({os.getpid()}.union(*places.values())) == 3
    assert {side: [8 * (value % 1) for value in found] for side, found in values.items()} == {"A": [1, 2], "B": [5, 6]}
    for pid in {int(value) for found in values.values() for value in found}:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_side_that_fails_says_so_in_a_sentence():
    with pytest.raises(RunError, match="failed: ValueError: no memory"):
        alternate({"A": functools.partial(failing, "no memory")}, 1)
    with pytest.raises(RunError, match="ended with 3"):
        alternate({"A": dying}, 1)


@pytest.mark.parametrize(("lower_is_better", "ratio"), [(True, 0.25), (False, 4.0)])
def test_a_ratio_is_that_of_medians_and_above_one_where_ours_is_better(session, lower_is_better, ratio):
    values = {"peer": [1.0, 9.0, 2.0], "qkv": [8.0, 80.0, 0.8]}
    session.record("case", values, "s", peers={"qkv": "peer"}, lower_is_better=lower_is_better)
    peer, ours = session.figures
    assert (peer.median, peer.low, peer.high, peer.rounds, peer.ratio) == (2.0, 1.0, 9.0, 3, None)
    assert (ours.median, ours.ratio) == (8.0, ratio)


def test_a_peer_that_is_not_there_leaves_no_ratio(session):
    session.record("case", {"qkv": [1.0]}, "s", peers={"qkv": "peer"})
    assert session.figures[0].ratio is None


def test_what_is_missing_is_named_once(session, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not session.has_transformers() and not session.has_transformers()
    assert session.path("phrases") is None
    assert [sentence.split(":")[0] for sentence in session.left_out] == ["Hugging Face transformers", "phrases"]


def test_ours_and_theirs_have_the_same_parameters():
    pytest.importorskip("transformers", reason="transformers is in the extra dev")
    from qkv.benchmarks import masked, step
    from qkv.models import build
    from qkv.presets import PRESETS

    def count(model):
        return sum(p.numel() for p in model.parameters())

    shape = step.SHAPES[0]
    gpt2 = build(step.our_model(shape, PRESETS["gpt2"].layout), 0)
    assert count(gpt2) == count(step.their_model(shape))
    assert count(build(masked.our_model(1000), 0)) == count(masked.their_model(1000))


def test_both_sides_make_the_same_update_of_the_same_weights():
    """One update of GPT-2 with its own AdamW and of ours, from the same weights, on the same batch."""
    pytest.importorskip("transformers", reason="transformers is in the extra dev")
    from qkv.benchmarks import sides, step
    from qkv.presets import PRESETS
    from qkv.tasks import Batch, Causal

    shape = step.Shape("small", 1, 2, 16, 8, 2, 11)
    ids = torch.arange(16).view(2, 8) % 11
    theirs = step.their_model(shape)
    made = {}

    def keep(config, seed):
        from qkv.models import build

        made["model"] = build(config, seed)
        return made["model"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sides, "build", keep)
        our_step = sides.our_step(step.our_model(shape, PRESETS["gpt2"].layout), Causal(), "fp32")
    ours = made["model"]
    with torch.no_grad():
        ours.embedding.W_E.copy_(theirs.transformer.wte.weight)
        ours.embedding.W_pos.copy_(theirs.transformer.wpe.weight)
        block, there = ours.blocks[0], theirs.transformer.h[0]
        for name, part in zip("QKV", there.attn.c_attn.weight.chunk(3, dim=1), strict=True):
            getattr(block.attention, f"W_{name}").copy_(part)
        block.attention.W_O.copy_(there.attn.c_proj.weight)
        block.mlp.W_in.copy_(there.mlp.c_fc.weight)
        block.mlp.W_out.copy_(there.mlp.c_proj.weight)
    before = ours.embedding.W_E.detach().clone()
    loss = sides.their_step(theirs, "fp32")({"input_ids": ids, "labels": ids})
    targets, positions = ids[:, 1:].flatten(), torch.arange(16).view(2, 8)[:, :-1].flatten()
    assert our_step(Batch(ids, targets, positions)) == pytest.approx(loss, rel=1e-5)
    assert (ours.embedding.W_E - before).abs().max() > 5e-5
    torch.testing.assert_close(ours.embedding.W_E, theirs.transformer.wte.weight, rtol=0, atol=2e-6)


def test_nanogpt_gets_the_same_split_in_characters(tmp_path, small_text):
    rows = tmp_path / "many.jsonl"
    rows.write_text("".join(json.dumps({"text": f"é {line}"}) + "\n" for line in small_text.read_text().splitlines()))
    for path, many in ((small_text, False), (rows, True)):
        split = split_source(open_source(DataConfig(source=str(path)), None), None)
        train, val = (_text(part, split.many_documents) for part in (split.train, split.val))
        corpus = load_corpus(DataConfig(source=str(path), tokenizer="char"), cache=None)
        assert split.many_documents == many and ("\0" in val) == many
        assert split.val.n_bytes == corpus.val.n_bytes == len(val.replace("\0", "").encode())
        assert (len(train), len(val)) == (len(corpus.train), len(corpus.val))
        prepare(tmp_path / f"many-{many}", train, val)
        ids = np.fromfile(tmp_path / f"many-{many}" / "val.bin", dtype=np.uint16)
        assert "".join(sorted(set(train + val))[i] for i in ids[:200]) == val[:200]


@pytest.mark.parametrize(
    ("theirs", "ours", "until", "compares"),
    [(1.89, 1.87, 1.88, True), (1.89, 1.55, 1.558, False), (1.89, 1.95, 1.88, False), (3.1, 1.87, 1.88, False)],
)
def test_times_are_compared_where_both_sides_end_at_the_target(
    theirs, ours, until, compares, tmp_path, small_text, monkeypatch
):
    for place in ("train.py", "data/shakespeare_char/prepare.py"):
        (tmp_path / "nano" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "nano" / place).write_text(f"print('step 2000: train loss 1.7, val loss {theirs:.4f}')")
    found = {"val_loss": ours, "steps": 1, "tokens": 1, "train_seconds": 1.0, "stopped_because": "loss"}
    monkeypatch.setattr(time_to_loss, "qkv", lambda *words: (2.0, found))
    asked = Asked(source=str(small_text), nanogpt=tmp_path / "nano", until=until, seeds=1)
    session = Session(asked, print)
    time_to_loss.measure(session)
    nano, qkv = session.figures
    assert (qkv.ratio is not None) == compares and f"ended at {theirs:.4f}" in nano.note


def test_a_gpu_is_compared_with_the_command_for_gpus(tmp_path, small_text, monkeypatch):
    """What is typed on both sides; neither is run."""
    (tmp_path / "train.py").touch()
    typed = []
    monkeypatch.setattr(time_to_loss, "nanogpt_command", lambda *words: typed.append(words) or (9.0, 1.47))
    found = {"val_loss": 1.46, "steps": 1, "tokens": 1, "train_seconds": 1.0, "stopped_because": "loss"}
    monkeypatch.setattr(time_to_loss, "qkv", lambda *words: typed.append(words) or (3.0, found))
    asked = Asked(source=str(small_text), nanogpt=tmp_path, until=1.4697, seeds=1, device="cuda")
    session = Session(asked, print)
    time_to_loss.measure(session)
    nano, ours = typed
    assert nano[2] == "train.py config/train_shakespeare_char.py"
    assert ours[ours.index("--device") + 1] == "cuda" and session.figures[1].ratio == 3.0


def test_quick_keeps_what_was_typed_and_names_the_peer_that_it_leaves_out(tmp_path, small_text, monkeypatch):
    (tmp_path / "train.py").touch()
    typed = []
    found = {"val_loss": 1.5, "steps": 1, "tokens": 1, "train_seconds": 1.0, "stopped_because": "loss"}
    monkeypatch.setattr(time_to_loss, "qkv", lambda *words: typed.append(words) or (3.0, found))
    for given in ({"until": 1.5, "seeds": 2}, {}):
        session = Session(Asked(source=str(small_text), nanogpt=tmp_path, quick=True, **given), print)
        time_to_loss.measure(session)
        assert [sentence.split(",")[0] for sentence in session.left_out] == ["nanoGPT's command"]
    assert [words[words.index("--until-loss") + 1] for words in typed] == ["1.5", "1.5", "2.6"]
    assert (Session(Asked(), print).rounds, Session(Asked(quick=True, rounds=4), print).rounds) == (5, 4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_its_benchmark_says_so(capsys):
    assert cli.main(["bench", "step", "--device", "cuda"]) == 2
    assert "there is no cuda device here" in capsys.readouterr().err


def test_a_shape_that_drops_does_so_on_both_sides_anew_in_each_step():
    pytest.importorskip("transformers", reason="transformers is in the extra dev")
    from qkv.benchmarks import sides, step
    from qkv.presets import PRESETS
    from qkv.tasks import Batch, Causal

    shape = step.Shape("small", 1, 2, 64, 8, 2, 11, dropout=0.5)
    ids = torch.arange(18).view(2, 9) % 11
    config = step.our_model(shape, PRESETS["gpt2"].layout)
    batch = Batch(ids[:, :-1], ids[:, 1:].flatten())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sides, "ADAMW", replace(sides.ADAMW, lr=1e-12))
        ours = sides.our_step(config, Causal(), "fp32")
        kept = sides.our_step(replace(config, layout=replace(config.layout, dropout=0.0)), Causal(), "fp32")
    assert kept(batch) == pytest.approx(kept(batch), abs=1e-6)
    assert len({round(ours(batch), 6) for _ in range(4)}) == 4
    theirs = step.their_model(shape).config
    assert theirs.resid_pdrop == theirs.embd_pdrop == 0.5 and theirs.attn_pdrop == 0.0


def test_a_step_on_a_named_device_is_the_step(monkeypatch):
    """The CPU named as a device, and its share of the peak beside the tokens."""
    from qkv.benchmarks import step

    monkeypatch.setattr(step, "SLICE", 0.0)
    monkeypatch.setattr(step, "alternate", lambda sides, rounds, apart: alternate(sides, rounds, apart=not apart))
    session = Session(Asked(rounds=1), print)
    step.measure_shape(session, step.Shape("small", 1, 2, 16, 8, 2, 11))
    assert {figure.side.split(",")[0] for figure in session.figures} >= {"qkv gpt2", "qkv fast"}
    assert all(re.fullmatch(r"[\d,]+ tokens/s, \d+ % of [\d,]+ GFLOP/s", f.note) for f in session.figures)
    for figure in session.figures:
        assert (figure.ratio is not None) == (figure.side.startswith("qkv") and len(session.figures) > 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_both_sides_step_on_a_gpu():
    from qkv.benchmarks import step

    session = Session(Asked(rounds=1, device="cuda"), print)
    step.measure_shape(session, step.Shape("small", 1, 2, 16, 8, 2, 11))
    assert {figure.side for figure in session.figures} >= {"qkv gpt2, bf16", "qkv gpt2, compiled, bf16"}


WRONG = {
    "bench nonsense": "did you mean|expected one of",
    "bench step some.txt": "leave it out",
    "bench curve nowhere/some.txt": "there is no folder",
    "bench time-to-loss empty.txt": "is empty; expected text",
    "bench masked --data nowhere": "not a folder",
    "bench step --tune": "--tune is of curve, not of step; leave it out",
    "bench step,memory --minutes 3": "--minutes is of curve and time-to-loss, not of step and memory; leave it out",
    "bench step --until-loss 1.5": "--until-loss is of time-to-loss, not of step; leave it out",
    "bench masked --tokenizer char": "--tokenizer is of curve and time-to-loss, not of masked; leave it out",
    "bench generation --seeds 2": "--seeds is of curve and time-to-loss, not of generation; leave it out",
    "bench step --nanogpt nano": "--nanogpt is of curve and time-to-loss, not of step; leave it out",
    "bench curve --rounds 2": "--rounds is of start, step, masked, memory and generation, not of curve; leave it out",
    "bench step --data .": "--data is of start, masked, curve and time-to-loss, not of step; leave it out",
    "bench time-to-loss --minutes 1,5": "takes one --minutes",
    "bench curve --nanogpt .": "no train.py",
    "bench curve --minutes 0": "above 0",
    "bench step --rounds 0": "at least 1",
    "bench masked --device cuda": "is of step and time-to-loss, not of masked; leave it out",
    "bench step --device tpu": "invalid choice|expected",
}


@pytest.mark.parametrize("typed", WRONG)
def test_a_wrong_bench_command_is_one_sentence(typed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    assert cli.main(typed.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and re.search(WRONG[typed], err) and "Traceback" not in err


@pytest.mark.slow
def test_bench_prints_one_json_object_and_says_what_was_left_out(capsys, monkeypatch):
    from qkv.benchmarks import generation

    monkeypatch.setattr(generation, "N_CTX", 24)
    monkeypatch.setattr(generation, "QUICK_TOKENS", 8)
    assert cli.main(["bench", "generation,masked", "--quick", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"] and found["results"]["masked"] == []
    assert [sentence for sentence in found["left_out"] if sentence.startswith("BERT's vocabulary")]
    figures = found["results"]["generation"]
    assert {figure["case"].split(", ")[2] for figure in figures} == {"1 at a time", "16 at a time"}
    assert all(figure["median"] > 0 and math.isfinite(figure["median"]) for figure in figures)
    ours = [figure for figure in figures if figure["side"] == "qkv gpt2"]
    for mine in ours:
        sides = [other for other in figures if other["case"] == mine["case"] and other["side"].startswith("HF")]
        assert not sides or mine["ratio"] == pytest.approx(mine["median"] / max(other["median"] for other in sides))


def test_the_table_names_the_machine(capsys, monkeypatch):
    from qkv.benchmarks import start

    monkeypatch.setattr(start, "measure", lambda session: session.record("case", {"qkv": [1.0, 3.0, 2.0]}, "s"))
    assert cli.main(["bench", "start"]) == 0
    out = capsys.readouterr().out
    assert "torch" in out.splitlines()[0] and "1.000 to 3.000 of 3" in out


def test_the_command_reads_what_data_holds(tmp_path):
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / DATA["tinyshakespeare"]).write_text("to be")
    session = Session(Asked(data=tmp_path), say=lambda sentence: None)
    assert session.path("tinyshakespeare") == tmp_path / DATA["tinyshakespeare"]
    assert session.path("phrases") is None and "is not there" in session.left_out[0]


@pytest.mark.slow
def test_the_first_step_is_seen_and_the_training_ends(small_text, tmp_path):
    from qkv.benchmarks.start import first_step

    words = [str(small_text), "--tokenizer", "char", "--steps", "50000"]
    assert 0.1 < first_step(words, tmp_path / "run", {}) < 120
