"""The probe of a model of two stacks: what it reads of self- and cross-attention is what the patterns hold."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from qkv.data.config import DataConfig
from qkv.instruments.attention_stats import STATISTICS
from qkv.instruments.probe import Probe, fixed_batch
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.tasks import Batch, find_task
from qkv.tasks.causal import Causal
from qkv.tokenizers.tokens import Tokens


@pytest.fixture(scope="module")
def corpus(small_pairs):
    return find_task("translate").load(DataConfig(source=":".join(map(str, small_pairs))), cache=None)


@pytest.mark.parametrize("n_kv_heads", [4, 2])
def test_statistics_of_an_encoder_decoder_are_those_of_its_patterns(corpus, n_kv_heads):
    task = find_task("translate")
    sizes = Sizes(d_vocab=corpus.tokenizer.d_vocab, d_model=16, n_layers=2, n_heads=4, n_kv_heads=n_kv_heads, n_ctx=64)
    model = build(ModelConfig(kind="EncoderDecoderLM", sizes=sizes, layout=Layout(start="xavier")).resolved(), 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    probe = Probe.of(task, corpus, model, 0)
    assert probe is not None and probe.repeated is None and probe.measures == tuple(STATISTICS)
    batch = probe.batch
    assert batch.source_mask is not None and batch.mask is not None, "nothing is padded, so this shows too little"
    read = dict(zip([a for a, _, _ in probe.addresses(model)], probe.read(model).T, strict=True))
    with torch.no_grad():
        _, record = model.forward_recorded(batch.source, batch.inputs, source_mask=batch.source_mask)
    names = [n for n in record if n.endswith(".pattern")]
    assert len(read) == 4 * len(names) == 4 * 6
    for name in names:
        pattern, scores = record[name].double().numpy(), record[name.replace("pattern", "scores")].double().numpy()
        asking = batch.source_mask if name.startswith("enc.") else batch.mask
        rows = asking.numpy().copy()
        if name.startswith("dec.") and ".cross" not in name:
            rows[:, 0] = False  # one key, no choice
        for head in range(4):
            p, s = pattern[:, head][rows], scores[:, head][rows]
            found = dict(zip(STATISTICS, read[name.replace(".pattern", f".H{head}.pattern")], strict=True))
            entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1).mean()
            assert found["entropy"] == pytest.approx(entropy, abs=1e-5), name
            assert found["first_mass"] == pytest.approx(p[:, 0].mean(), abs=1e-6), name
            assert found["dominant_rows"] == pytest.approx((p.max(-1) > 0.9).mean(), abs=1e-9), name
            assert found["largest_score"] == pytest.approx(s[p > 0].max(), abs=1e-4), name
            if ".cross" in name:
                assert np.isnan([found["own_mass"], found["previous_mass"], found["distance"]]).all()
            else:
                own = np.diagonal(pattern[:, head], axis1=1, axis2=2)[rows]
                assert found["own_mass"] == pytest.approx(own.mean(), abs=1e-6), name


def test_of_pairs_the_probe_is_one_of_middling_length(corpus):
    task, sizes = find_task("translate"), Sizes(d_vocab=9, d_model=16, n_layers=1, n_heads=2, n_ctx=64)
    lengths = [batch.source.shape[1] for batch in task.val_batches(corpus, sizes, 1)]
    assert lengths[0] <= fixed_batch(task, corpus, sizes, 1).source.shape[1] <= lengths[-1]
    assert fixed_batch(task, corpus, sizes, 1).source.equal(fixed_batch(task, corpus, sizes, 1).source)


def test_what_fills_a_short_window_is_no_text():
    ids = np.arange(41, dtype=np.uint8) * 7 % 23
    part = Tokens(ids=ids, offsets=np.array([0, 41]), n_bytes=41)
    sizes = Sizes(d_vocab=23, d_model=16, n_layers=2, n_heads=4, n_ctx=64)
    model = build(ModelConfig(kind="CausalLM", sizes=sizes, layout=Layout(positions="learned")).resolved(), 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    probe = Probe.of(Causal(), SimpleNamespace(val=part, tokenizer=None), model, 0)
    assert probe is not None and probe.batch.inputs.shape == (1, 64) and int(probe.batch.mask.sum()) == 40
    real = torch.from_numpy(ids[:40].astype(np.int64))[None]
    alone = Probe(Batch(inputs=real, targets=real), probe.repeated)
    np.testing.assert_allclose(probe.read(model), alone.read(model), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n_kv_heads", [4, 2])
def test_by_window_the_same_is_read_of_each_pair_alone(corpus, n_kv_heads):
    """Padded sequences of two stacks, self- and cross-attention."""
    task = find_task("translate")
    sizes = Sizes(d_vocab=corpus.tokenizer.d_vocab, d_model=16, n_layers=1, n_heads=4, n_kv_heads=n_kv_heads, n_ctx=64)
    model = build(ModelConfig(kind="EncoderDecoderLM", sizes=sizes, layout=Layout(start="xavier")).resolved(), 0)
    wide = Probe.of(task, corpus, model, 0, is_wide=True)
    found = wide.read(model, by_window=True)
    assert found.shape == (len(STATISTICS), 12, len(wide.batch.inputs)) and len(wide.batch.inputs) > 2
    for i in (0, len(wide.batch.inputs) - 1):
        b, row = wide.batch, slice(i, i + 1)
        one = Batch(b.inputs[row], b.targets, mask=b.mask[row], source=b.source[row], source_mask=b.source_mask[row])
        np.testing.assert_allclose(found[:, :, i], Probe(one, None).read(model), rtol=1e-4, atol=1e-6)
