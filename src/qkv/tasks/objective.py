"""What the language tasks share: the loss of a batch at the positions that have a target.

The output matrix is applied to the hidden vectors of those positions only. Positions are gathered by `F.embedding`,
whose backward adds in a fixed order (tensor indexing does not, with more than one thread); so does `index_add_`, by
which rows join the gradient of a large tied table.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from qkv.kernels.autograd import Context, once_differentiable
from qkv.models.embedding import capped
from qkv.models.zoo import LanguageModel
from qkv.tasks.batch import Batch, rows_of
from qkv.tasks.crossentropy import linear_cross_entropy, token_scores
from qkv.tasks.figures import Scores
from qkv.tasks.task import Drop


def output_matrix(model: LanguageModel) -> tuple[Tensor, Tensor | None]:
    """(W_U [d_model, d_vocab], b_U [d_vocab] or None) of a language model; a tied W_U is the transposed view of W_E."""
    own = model.head.W_U
    return (_table(model).t() if own is None else own), model.head.b_U


def _table(model: LanguageModel) -> Tensor:
    """W_E [d_vocab, d_model]."""
    table = model.embedding.W_E
    assert table is not None, "a language model reads tokens"
    return table


def batch_loss(model: LanguageModel, batch: Batch, drop: Drop | None = None) -> tuple[Tensor, int]:
    """(sum over targets of -log softmax(h W_U + b_U)[target], number of targets), the sum a float32 scalar in nats."""
    own = model.head.W_U
    inputs, table = _read(model, batch.inputs)
    h = _answering(model, batch, drop, inputs)
    if model.layout.logit_cap:
        return F.cross_entropy(_capped(model, h), batch.targets, reduction="sum"), batch.n_targets
    nats = linear_cross_entropy(h, table if own is None else own, model.head.b_U, batch.targets, is_table=own is None)
    return nats, batch.n_targets


def batch_scores(model: LanguageModel, batch: Batch) -> Scores:
    """Each target's own nats and whether it is the model's most probable answer; no gradient, no dropout."""
    with torch.no_grad():
        weight, bias = output_matrix(model)
        h = _answering(model, batch, None, batch.inputs)
        if model.layout.logit_cap:
            logits = _capped(model, h)
            nats = F.cross_entropy(logits, batch.targets, reduction="none")
            return Scores(nats, logits.argmax(-1) == batch.targets, rows_of(batch))
        return Scores(*token_scores(h, weight, bias, batch.targets), rows_of(batch))


def _capped(model: LanguageModel, h: Tensor) -> Tensor:
    """Capped logits of what W_U is applied to, at least in float32; no fused pass has the cap."""
    weight, bias = output_matrix(model)
    logits = F.linear(h, weight.t(), bias)
    return capped(logits.to(torch.promote_types(logits.dtype, torch.float32)), model.layout.logit_cap)


def _answering(model: LanguageModel, batch: Batch, drop: Drop | None, inputs: Tensor) -> Tensor:
    """What W_U is applied to at the positions that have a target: [n_targets, d_model]."""
    h = model.hidden(inputs, mask=batch.mask, documents=batch.documents, drop=drop).flatten(0, 1)
    return model.head.transformed(h if batch.positions is None else F.embedding(batch.positions, h))


def _read(model: LanguageModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """(what the model is given, W_E as the loss is given it).

    That is the ids and W_E itself; where a table is tied and large, rows of W_E [batch, pos, d_model] and a W_E whose
    gradient the rows that were read join one by one, instead of as a second table of zeros.
    """
    table = _table(model)
    if model.head.W_U is not None or ids.device.type != "cpu" or table.shape[0] <= ids.numel():
        return ids, table
    if not (torch.is_grad_enabled() and table.requires_grad) or torch.compiler.is_compiling():
        return ids, table
    return _TiedTable.apply(table, ids)


class _TiedTable(Function):
    """Rows of a table, as they are read, and the table itself, as the output matrix.

    Both lead back to one sum, made in the memory of the latter's gradient; autograd's own would be a third table.
    """

    @staticmethod
    def forward(ctx: Context, table: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(ids)
        ctx.shape = table.shape
        return F.embedding(ids, table), table.view_as(table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        rows, written = grads
        if rows is None:
            return written, None
        total = rows.new_zeros(ctx.shape) if written is None else written
        return total.index_add_(0, ctx.saved_tensors[0].flatten(), rows.flatten(0, -2)), None
