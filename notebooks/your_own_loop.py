# %% [markdown]
# # Watch your own PyTorch loop
#
# Keep your model, your data and your loop. Two lines write a run folder, which every command of qkv opens. The training does
# not change: its results are bit-identical.

# %%
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import qkv


class Model(nn.Module):
    """A small model in plain PyTorch."""

    def __init__(self, d: int = 32, d_vocab: int = 20) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.table, self.place = nn.Embedding(d_vocab, d), nn.Embedding(16, d)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(d, d_vocab)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [batch, pos] -> logits [batch, pos, d_vocab]."""
        x = self.table(ids) + self.place.weight[: ids.shape[1]]
        return self.out(self.body(x))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

# %% [markdown]
# Name each kind of parameter of your model in one line. `in_proj_weight` holds three matrices and is split.

# %%
names = {
    "table.weight": "W_E",
    "place.weight": "W_pos",
    "body.layers.{L}.self_attn.in_proj_weight": "L{L}.W_Q, L{L}.W_K, L{L}.W_V",
    "body.layers.{L}.self_attn.out_proj.weight": "L{L}.W_O",
    "body.layers.{L}.linear1.weight": "L{L}.W_in",
    "body.layers.{L}.linear2.weight": "L{L}.W_out",
    "out.weight": "W_U",
}
folder = Path(tempfile.mkdtemp()) / "mine"
watcher = qkv.watch(model, optimizer, folder, names=names, n_heads=4)

# %% [markdown]
# The task is to reverse a sequence. It is synthetic and says nothing about language.

# %%
generator = torch.Generator().manual_seed(0)
for step in range(200):
    ids = torch.randint(0, 20, (32, 8), generator=generator)
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flip(1).flatten())
    optimizer.zero_grad()
    loss.backward()
    watcher.log(loss=loss.detach(), tokens=ids.numel())
    optimizer.step()
watcher.close()
print(float(loss))

# %% [markdown]
# Now it is a run. Open it with `qkv show` in the terminal, with `qkv view` in the browser, or here:

# %%
run = qkv.load(folder)
for address, series in run.history("L*.W_[QKVO]", "drift").items():
    print(address, [round(float(value), 2) for value in series.value[:: max(1, len(series.value) // 5)]])
print(run.matrix("L0.H2.QK").singular_values()[:4])
