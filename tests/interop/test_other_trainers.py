"""Other people's trainers, watched: the same numbers as ours gives for the same model, text and order of batches."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qkv
from qkv.data.packing import train_window
from qkv.interop import exporting
from qkv.models.matrices import Catalogue

STEPS, BATCH, N_CTX = 12, 4, 16
MEASURES = ("norm", "drift", "grad_norm", "update_ratio")


@pytest.fixture(scope="module")
def ours(small_text, tmp_path_factory):
    """A run of our own trainer: AdamW at a steady rate, decay of matrices only, no clipping."""
    pytest.importorskip("transformers", reason="needs the dev extra (transformers)")
    return qkv.train(
        small_text, preset="llama", tokenizer="char", steps=STEPS, out=tmp_path_factory.mktemp("ours") / "run",
        precision="fp32", threads=1, report=False, watch="light",
        set={
            "d_model": 24, "n_layers": 2, "n_heads": 3, "n_ctx": N_CTX, "batch_size": BATCH, "optimizer.kind": "adamw",
            "lr": 2e-3, "eps": 1e-5, "weight_decay": 0.1, "clip": 0, "warmup_steps": 0, "decay_share": 0,
        },
    )  # fmt: skip


@pytest.fixture
def live(ours, tmp_path):
    """The same model as it started, as transformers has it, and the batches that our trainer saw, in order."""
    import transformers

    catalogue = Catalogue(ours.model_at(0))
    exporting.write_checkpoint(ours.config.model.resolved(), catalogue.state(), None, tmp_path / "hf", card="")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").train()
    corpus = ours.corpus()
    windows = train_window(corpus.train, N_CTX, ours.config.seed, np.arange(STEPS * BATCH))
    ids = torch.from_numpy(windows)
    labels = ids.clone()
    labels[:, 0] = -100  # no token comes before it; transformers 5.0 counts it among those predicted all the same
    return model, [{"input_ids": i, "labels": j} for i, j in zip(ids, labels, strict=True)]


def adamw(model, ours):
    """torch's AdamW with our run's settings."""
    how = ours.config.training.optimizer
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": matrices, "weight_decay": how.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=how.lr, betas=(how.beta1, how.beta2), eps=how.eps)


def agree(run, ours, *, rtol):
    """Every measure of every matrix at every step that both looked at, and the losses."""
    with run.telemetry() as mine, ours.telemetry() as theirs:
        a, b = mine.steps(), theirs.steps()
    assert a.step.tolist() == b.step.tolist() == list(range(1, STEPS + 1))
    np.testing.assert_allclose(a.loss, b.loss, rtol=rtol)
    assert a.tokens.tolist()[-1] == STEPS * BATCH * (N_CTX + 1)
    for measure in MEASURES:
        found, expected = run.history("**", measure), ours.history("**", measure)
        assert set(found) == set(expected) == set(Catalogue(ours.model).addresses)
        for address, series in found.items():
            other = dict(zip(expected[address].step.tolist(), expected[address].value.tolist(), strict=True))
            steps = [step for step in series.step.tolist() if step in other]
            assert len(steps) >= 8
            values = dict(zip(series.step.tolist(), series.value.tolist(), strict=True))
            np.testing.assert_allclose(
                [values[s] for s in steps],
                [other[s] for s in steps],
                rtol=rtol,
                atol=1e-7,
                err_msg=f"{measure} {address}",
            )


def test_the_trainer_of_transformers_gives_our_numbers(ours, live, tmp_path):
    import transformers

    pytest.importorskip("accelerate", reason="needs the dev extra (accelerate)")
    model, examples = live
    optimizer = adamw(model, ours)
    watcher = qkv.watch(model, optimizer, tmp_path / "run")
    asked = transformers.TrainingArguments(
        output_dir=str(tmp_path / "hf-trainer"), max_steps=STEPS, per_device_train_batch_size=BATCH, max_grad_norm=0.0,
        lr_scheduler_type="constant", save_strategy="no", logging_strategy="no", report_to=[], use_cpu=True,
        disable_tqdm=True, dataloader_num_workers=0,
    )  # fmt: skip

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *args, **kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    InOrder(model=model, args=asked, train_dataset=examples, optimizers=(optimizer, None)).train()
    agree(qkv.load(watcher.close()), ours, rtol=1e-5)


class LightningModule(nn.Module):
    """The protocol of a LightningModule: what a step is, and which optimizer makes it."""

    def __init__(self, model, ours):
        super().__init__()
        self.model, self.ours = model, ours

    def training_step(self, batch):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return adamw(self.model, self.ours)


def fit(module, optimizer, batches):
    """The automatic optimization of Lightning: forward, zero_grad and backward in a closure that the step is given."""
    for batch in batches:

        def closure(batch=batch):
            loss = module.training_step(batch)
            optimizer.zero_grad()
            loss.backward()
            return loss

        optimizer.step(closure=closure)


def test_a_step_that_is_given_a_closure_gives_our_numbers(ours, live, tmp_path):
    model, examples = live
    module = LightningModule(model, ours)
    optimizer = module.configure_optimizers()
    watcher = qkv.watch(model, optimizer, tmp_path / "run")
    stacked = torch.stack([example["input_ids"] for example in examples]).split(BATCH)
    fit(module, optimizer, [{"input_ids": ids, "labels": ids} for ids in stacked])
    agree(qkv.load(watcher.close()), ours, rtol=1e-5)


def test_a_closure_changes_no_bit_and_its_loss_comes_back(tmp_path):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    one = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    two, x = copy.deepcopy(one), torch.randn(2, 3, 8)
    losses = []
    for model, watched in ((one, True), (two, False)):
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        watcher = qkv.watch(model, optimizer, tmp_path / "run") if watched else None

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x)
            loss.backward()
            return loss

        losses.append([float(optimizer.step(closure).detach()) for _ in range(4)])
        if watcher is not None:
            watcher.close()
    assert losses[0] == losses[1]
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert min(qkv.load(tmp_path / "run").history("L0.W_Q", "grad_norm")["L0.W_Q"].value) > 0


@pytest.mark.parametrize("summed", [True, False])
def test_the_loss_of_a_step_is_that_of_all_its_passes(live, tmp_path, summed):
    """A Trainer that accumulates divides each pass by the targets of all (num_items_in_batch); plain loops do not."""
    model, examples = live
    ids = torch.stack([one["input_ids"] for one in examples[:4]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    how = {"num_items_in_batch": torch.tensor(ids[:, 1:].numel())} if summed else {}
    with qkv.watch(model, optimizer, tmp_path / "run") as watcher:
        expected = float(model(ids, labels=ids).loss.detach())
        for step in range(3):  # the first is skipped, as a GradScaler does
            optimizer.zero_grad()
            for part in ids.split(1):
                model(part, labels=part, **how).loss.backward()
            if step:
                optimizer.step()
    with qkv.load(watcher.path).telemetry() as telemetry:
        np.testing.assert_allclose(telemetry.steps().loss, [expected] * 2, rtol=1e-5)
