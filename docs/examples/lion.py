"""An optimizer of your own: Lion, the sign of a momentum (Chen et al. 2023, arXiv 2302.06675)."""

import torch


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for p in (p for p in group["params"] if p.grad is not None):
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.mul_(1 - lr * group["weight_decay"]).sub_(lr * torch.sign(beta1 * momentum + (1 - beta1) * p.grad))
                momentum.mul_(beta2).add_(p.grad, alpha=1 - beta2)
