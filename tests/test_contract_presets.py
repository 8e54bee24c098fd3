"""One contract for every preset and every task that it fits: what any model of this project must do."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.changes import plan_changes
from qkv.data.config import DataConfig
from qkv.data.corpus import load_corpus
from qkv.laws import Scale
from qkv.models.matrices import Catalogue
from qkv.models.zoo import build
from qkv.presets import PRESETS, Preset, model_config
from qkv.randomness import generator
from qkv.tasks import TASKS, PredictOptions, Task
from qkv.tasks.text import TextTask
from qkv.training.optimizers import clip_and_measure, make_optimizer

TEXT_TASKS = [task for task in TASKS.values() if isinstance(task, TextTask)]
CASES = {f"{p.name}-{t.name}": (p, t) for p in PRESETS.values() for t in TEXT_TASKS if t.stack in p.stacks}
SCALE = Scale(d_model=32, n_layers=2, n_ctx=24, batch_tokens=0)

pytestmark = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@pytest.fixture(scope="module")
def corpora(small_text: Path) -> dict[str, object]:
    """The same small text under character tokenizers, by task."""
    config = DataConfig(source=str(small_text), tokenizer="char")
    return {t.name: load_corpus(config, cache=None, task_specials=t.needs_specials) for t in TEXT_TASKS}


def small(case: tuple[Preset, Task], d_vocab: int, *, generic: bool = False, seed: int = 0):
    """A small model of the preset as it starts, or with every parameter a generic number (no zero, no symmetry)."""
    preset, task = case
    pinned = {"n_heads": 2} if preset.head_width else {}
    model = build(model_config(preset, task.model_kind, d_vocab, SCALE, pinned), seed)
    if generic:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                noise = generator("contract", name).normal(0, 0.2, size=parameter.shape)
                parameter += torch.from_numpy(noise).to(parameter.dtype)
    return model


def batch_of(case: tuple[Preset, Task], corpora, step: int = 0, n: int = 8):
    _, task = case
    sizes = SimpleNamespace(n_ctx=SCALE.n_ctx)
    corpus = corpora[task.name]
    return task.train_batch(corpus, sizes, 0, step, np.arange(step * n, (step + 1) * n)), corpus.tokenizer.d_vocab


def test_loss_is_finite_and_that_of_the_logits(case, corpora):
    batch, d_vocab = batch_of(case, corpora)
    for generic in (False, True):
        model = small(case, d_vocab, generic=generic)
        logits = model(batch.inputs)
        assert logits.shape == (*batch.inputs.shape, d_vocab) and logits.dtype == torch.float32
        answers = logits.flatten(0, 1)[slice(None) if batch.positions is None else batch.positions]
        nats, n = case[1].loss(model, batch)
        expected = F.cross_entropy(answers, batch.targets, reduction="sum")
        torch.testing.assert_close(nats, expected, rtol=1e-5, atol=1e-4)
        assert n == batch.n_targets and torch.isfinite(nats)


def test_catalogue_covers_every_parameter_exactly_once(case, corpora):
    model = small(case, batch_of(case, corpora)[1])
    catalogue = Catalogue(model)
    named = [id(catalogue.entry(address).parameter) for address in catalogue.addresses]
    assert len(named) == len(set(named))
    assert set(named) == {id(parameter) for parameter in model.parameters()}


def test_gradient_reaches_every_catalogued_matrix(case, corpora):
    batch, d_vocab = batch_of(case, corpora)
    model = small(case, d_vocab, generic=True).double()
    case[1].loss(model, batch)[0].backward()
    catalogue = Catalogue(model)
    largest = max(float(catalogue.entry(address).parameter.grad.norm()) for address in catalogue.addresses)
    for address in catalogue.addresses:
        size = float(catalogue.entry(address).parameter.grad.norm())
        # a bias of all keys shifts every score of a query alike, and softmax does not see that
        keys_alike = address.endswith(".b_K") and case[0].layout.positions != "rotary"
        assert (size < 1e-12 * largest) if keys_alike else (size > 1e-8 * largest), address


def test_nothing_leaks_from_hidden_positions(case, corpora):
    batch, d_vocab = batch_of(case, corpora)
    model, ids = small(case, d_vocab, generic=True), batch.inputs[:2]
    other = (ids + 1 + torch.arange(ids.shape[1])) % d_vocab
    later = torch.arange(ids.shape[1]) >= 10
    changed = torch.where(later, other, ids)
    with torch.no_grad():
        if case[1].model_kind == "CausalLM":
            a, b = model(ids), model(changed)
        else:
            mask = (~later).expand(ids.shape)
            a, b = model(ids, mask), model(changed, mask)
            torch.testing.assert_close(a[:, :10], model(ids[:, :10]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(a[:, :10], b[:, :10], rtol=0, atol=0)


def test_documents_packed_together_do_not_see_each_other(case, corpora):
    batch, d_vocab = batch_of(case, corpora)
    model, ids = small(case, d_vocab, generic=True), batch.inputs[:1]
    cuts = (0, 7, 16, ids.shape[1])
    documents = torch.searchsorted(torch.tensor(cuts[1:]), torch.arange(ids.shape[1]), right=True)[None]
    with torch.no_grad():
        packed = model.unembed(model.hidden(ids, documents=documents))
        for a, b in zip(cuts, cuts[1:], strict=False):
            torch.testing.assert_close(packed[:, a:b], model(ids[:, a:b]), rtol=1e-4, atol=1e-4)


def test_state_saved_and_loaded_gives_the_same_bits(case, corpora):
    batch, d_vocab = batch_of(case, corpora)
    model, other = small(case, d_vocab, generic=True), small(case, d_vocab, seed=5)
    state = {address: tensor.clone() for address, tensor in Catalogue(model).state().items()}
    Catalogue(other).load_state(state)
    with torch.no_grad():
        assert model(batch.inputs).equal(other(batch.inputs))
    again = Catalogue(other).state()
    assert list(again) == list(state) and all(again[address].equal(state[address]) for address in state)


def test_the_recorded_pass_agrees_with_the_fused_one(case, corpora):
    batch, d_vocab = batch_of(case, corpora)
    model = small(case, d_vocab, generic=True)
    with torch.no_grad():
        logits, record = model.forward_recorded(batch.inputs[:2])
        torch.testing.assert_close(logits, model(batch.inputs[:2]), rtol=1e-4, atol=1e-4)
    assert set(model.activation_names()) == set(record)
    if case[0].layout.mixer != "attention":
        return
    sums = record["L0.pattern"].sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_the_same_seed_builds_the_same_bits_and_another_seed_others(case, corpora):
    _, d_vocab = batch_of(case, corpora)
    first, again, other = (Catalogue(small(case, d_vocab, seed=seed)).state() for seed in (1, 1, 2))
    assert all(first[address].equal(again[address]) for address in first)
    assert not first["W_E"].equal(other["W_E"])


def test_twenty_steps_of_its_own_recipe_lower_the_loss_and_repeat_bit_for_bit(case, corpora):
    runs = [_train(case, corpora) for _ in range(2)]
    (losses, state), (_, again) = runs
    assert np.isfinite(losses).all()
    assert np.mean(losses[-3:]) < np.mean(losses[:2]) - 0.02
    assert all(state[address].equal(again[address]) for address in state)


def _train(case: tuple[Preset, Task], corpora) -> tuple[list[float], dict[str, torch.Tensor]]:
    preset, task = case
    model = small(case, batch_of(case, corpora)[1])
    plan = plan_changes(preset.changes, Catalogue(model), 0, None)
    catalogue = plan.at_start()
    optimizer = make_optimizer(catalogue, preset.optimizer)
    losses = []
    for step in range(20):
        plan.before_step(step)
        batch, _ = batch_of(case, corpora, step)
        nats, n = task.loss(model, batch)
        optimizer.zero_grad()
        (nats / n).backward()
        clip_and_measure([p for p in model.parameters() if p.requires_grad], preset.optimizer.clip)
        optimizer.step(1.0)
        plan.after_step(step)
        losses.append(float(nats.detach()) / n)
    return losses, {address: tensor.clone() for address, tensor in catalogue.state().items()}


def test_it_predicts_text(case, corpora):
    _, task = case
    tokenizer = corpora[task.name].tokenizer
    model = small(case, tokenizer.d_vocab, generic=True)
    text = "the cat s" if task.name == "causal" else "the [MASK]at sees"
    first, again = (task.predict(model, tokenizer, [text], PredictOptions(tokens=40)) for _ in range(2))
    assert first == again and len(first[0]) == (40 if task.name == "causal" else len("the cat sees"))
