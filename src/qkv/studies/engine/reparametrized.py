"""A table of embeddings whose rows are frozen but for one trained d_model x d_model map: W_E = E M, M trained from I.

Rows may be turned, stretched and mixed all in one way, and none of them by itself. (Projecting an update of AdamW onto
such tables instead would hardly move: it has one size for every number, whatever the rows have in common.)
"""

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError
from qkv.training.config import TrainingConfig
from qkv.training.optimizers import AdamW
from qkv.training.record import Constraint
from qkv.training.schedules import lr_scale


class MappedRows:
    """A constraint around another: the map takes the gradient and the updates that `table` [d_vocab, d_model] would.

    Its AdamW, rate, schedule and largest gradient norm are those of `config`, the norm its own.

    Raises ConfigError where every table is a map of the start: rows with d_vocab <= d_model can be independent.
    """

    def __init__(self, rest: Constraint, table: nn.Parameter, config: TrainingConfig) -> None:
        rows, columns = table.shape
        if rows <= columns:
            raise ConfigError(f"{rows} rows of {columns} numbers can be mapped to any; expected more rows than columns")
        if config.optimizer.kind != "adamw":
            raise ConfigError(f"a map of rows is trained by adamw; the optimizer is {config.optimizer.kind}")
        self._rest, self._table, self._config = rest, table, config
        self._start = table.detach().clone()
        self._map = torch.eye(columns, dtype=table.dtype)
        self._rule = AdamW({"map": self._map}, config.optimizer, weight_decay=0.0)
        table.register_post_accumulate_grad_hook(self._take)

    def _take(self, table: Tensor) -> None:
        """dL/dM = E^T dL/dW_E; the table itself has none, so it is passed over."""
        assert table.grad is not None
        gradient = self._start.T @ table.grad
        self._map.grad = gradient if self._map.grad is None else self._map.grad + gradient
        table.grad = None

    def before_step(self, step: int) -> None:
        self._rest.before_step(step)

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """What the other does, then an update of the map."""
        self._rest.after_step(step)
        if self._map.grad is None:
            return
        norm, most = float(self._map.grad.norm()), self._config.optimizer.clip
        if most and norm > most:
            self._map.grad *= most / norm
        self._rule.step(lr_scale(step, self._config.schedule))
        self._map.grad = None
        self._table.copy_(self._start @ self._map)

    def acts_at(self, step: int) -> bool:
        return self._rest.acts_at(step)
