"""A model of your own: an MLP with the cube of ReLU in every block."""

import torch.nn.functional as F

from qkv.models import MLP, CausalLM
from qkv.models.start import fill


class CubicMLP(MLP):
    def forward(self, x):
        return F.relu(x @ self.W_in).pow(3) @ self.W_out


class CubicLM(CausalLM):
    def __init__(self, config, *, seed=0):
        super().__init__(config, seed=seed)
        for block in self.blocks:
            block.mlp = CubicMLP("relu2", self.sizes.d_model, self.sizes.d_mlp, bias=False)
        fill(self, self.layout.start, self.sizes.n_layers, seed)
