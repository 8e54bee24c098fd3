# %% [markdown]
# # Self-attention from the inside
#
# One head reads five positions with eight numbers each. The vectors are random, so this says nothing about language; the
# formulas hold for any vectors. **x** is the input, **W_Q, W_K, W_V and W_O** are trained matrices, and **q, k and v** are
# their products with x ([more](../docs/which-q.md)).

# %%
import numpy as np
import torch

from qkv.models import MultiHeadAttention, SelfAttention

x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))
attention = SelfAttention(d_model=8, seed=1)
out, seen = attention.forward_recorded(x)
{name: tuple(values.shape) for name, values in seen.items()}

# %% [markdown]
# ## The same in five lines of NumPy

# %%
X = x[0].numpy()
W_Q, W_K, W_V, W_O = (getattr(attention, name).detach().numpy() for name in ("W_Q", "W_K", "W_V", "W_O"))
scores = (X @ W_Q) @ (X @ W_K).T / np.sqrt(8)
pattern = np.exp(scores - scores.max(axis=1, keepdims=True))
pattern /= pattern.sum(axis=1, keepdims=True)
np.testing.assert_allclose(pattern @ (X @ W_V) @ W_O, out[0].detach().numpy(), rtol=1e-5, atol=1e-6)
pattern.round(2)

# %% [markdown]
# Each row sums to 1. It says how much each position takes from every other.
#
# ## Attention ignores order unless something adds it
#
# Without positions and without a mask, shuffling the input shuffles the output in the same way.

# %%
order = torch.tensor([3, 1, 4, 0, 2])
torch.testing.assert_close(attention(x[:, order]), attention(x)[:, order])
causal = SelfAttention(d_model=8, causal=True, seed=1)
(causal(x[:, order]) - causal(x)[:, order]).abs().max().item()  # not 0: a mask is a kind of order

# %% [markdown]
# ## W_Q by itself means nothing
#
# Multiply W_Q by any invertible M and W_K by its inverse transpose. Every number in both changes, but the function does not.
# So the distance between the W_Q of two trainings says nothing. The product W_Q W_K^T can be compared.

# %%
M = torch.randn(8, 8, generator=torch.Generator().manual_seed(2))
other = SelfAttention(d_model=8, seed=1)
with torch.no_grad():
    other.W_Q.copy_(attention.W_Q @ M)
    other.W_K.copy_(attention.W_K @ torch.linalg.inv(M).T)
torch.testing.assert_close(other(x), attention(x), rtol=1e-3, atol=1e-4)
(other.W_Q - attention.W_Q).norm().item() / attention.W_Q.norm().item()

# %% [markdown]
# ## Several heads are a sum

# %%
heads = MultiHeadAttention(8, n_heads=2, seed=1)
W = {name: getattr(heads, name).detach() for name in ("W_Q", "W_K", "W_V", "W_O")}
total = torch.zeros_like(x)
for h in range(2):
    part = slice(4 * h, 4 * h + 4)
    q, k, v = (x @ W[name][:, part] for name in ("W_Q", "W_K", "W_V"))
    total += torch.softmax(q @ k.transpose(1, 2) / 4**0.5, dim=-1) @ v @ W["W_O"][part]
torch.testing.assert_close(heads(x), total)
