"""Cross-entropy of a large output matrix without ever holding all logits: unembedding and loss in one step, by rows.

For hidden vectors h [n, d_model] and targets t: logits = h W_U + b_U, and the loss is the sum over rows of
log sum exp(logits) - logits[t]. Its gradient by the logits is G = softmax(logits) - onehot(t), so that dh = G W_U^T,
dW_U = h^T G and db_U is the sum of G over rows. Rows are taken a chunk at a time: the chunk's logits become G in place
and go into dh and dW_U at once. So the forward pass already makes the gradient, in three products as in the plain way;
nothing is computed twice, and memory for logits is bounded by a chunk (about 32 MiB) however many rows and words there
are. Chunking of this kind: Wijmans et al. 2024 (arXiv 2411.09009), Hsu et al. 2024 (arXiv 2410.10989). Where all rows
are one or two chunks, G itself is kept, and the backward pass makes the products, with the factor that it is given in
them: dW_U is then written once, and with many words that is what takes the time.

On a CPU the softmax and its slope are one compiled pass over each row of logits where passes are compiled (`passes`);
elsewhere half a dozen of torch's operators, by strips of rows that stay in a core's cache. The products are not cut
into strips, which makes them slower. A GPU takes larger chunks (512 MiB), as each adds to dW_U once more, and
torch's log-softmax, one kernel. It pads the words of a 16-bit matrix to a multiple of 64, by words of probability 0:
its fast products take rows of whole vectors alone, and 50,257 words took an H100 45 ms as they are, of 98 ms for a step
of GPT-2's size.

With label smoothing e (Szegedy et al. 2016, arXiv 1512.00567) the target is (1 - e) onehot(t) + e / d_vocab: the loss
is log sum exp(logits) - (1 - e) logits[t] - e mean(logits), and G = softmax(logits) - (1 - e) onehot(t) - e / d_vocab.

The softmax is always in float32 (float64 for float64 input), products in the type of h or of autocast. The plain way,
`F.cross_entropy(h @ W_U, t)`, is the oracle of the tests; beside torch's operators it takes 0.8 to 1 times as long on
one core for 65 words, 1.1 to 1.6 times for 8 k, and 1.5 times for 30 k.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.kernels import elementwise
from qkv.kernels.autograd import Context, once_differentiable

_STRIP_BYTES = 4 << 20
"""Of logits that are read and written half a dozen times: so many stay in the caches of a core or two."""
_FEWEST_STRIP = 64
_CHUNK_BYTES = {"cpu": 32 << 20}
"""Of logits that are held at a time, by device."""
_MOST_BYTES = 512 << 20
"""The same on any other device."""
_FEWEST_ROWS = 256
"""Below this many rows the products lose more speed than the cache gives back."""
_PADDED_TO = 64
"""Words that a 16-bit output matrix is padded to a multiple of on a GPU."""
_WHOLE = 2
"""Up to so many chunks the slope of all rows is kept: about 64 MiB, less than a dW_U of 30 k words written twice."""


def chunk_rows(d_vocab: int, device: str = "cpu", n_bytes: int = 4) -> int:
    """How many rows of logits, each of so many bytes, are held at a time on a kind of device."""
    return max(_FEWEST_ROWS, _CHUNK_BYTES.get(device, _MOST_BYTES) // (n_bytes * d_vocab))


def linear_cross_entropy(
    h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0, *, is_table: bool = False
) -> Tensor:
    """Sum over rows of minus log softmax(h weight + bias)[target], in nats: a scalar, float32 (or float64).

    h [n, d_model]; weight [d_model, d_vocab], which may be the transposed view of a tied W_E, or with `is_table` that
    W_E itself, [d_vocab, d_model]; bias [d_vocab] or None; targets int64 [n]; smoothing 0 <= e < 1. Gradients of the
    first order reach h, weight and bias.
    """
    if smoothing or (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (h, weight, bias))):
        return _LinearCrossEntropy.apply(h, weight, bias, targets, smoothing, is_table)  # type: ignore[no-any-return]
    return _score(h, weight.t() if is_table else weight, bias, targets, None).sum()


def token_scores(h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(nats [n], correct bool [n]): each row's own loss, and whether its most probable answer is the target.

    Shapes as for `linear_cross_entropy`; no gradient. Among equal logits the first word is the answer.
    """
    correct = torch.empty(targets.shape, dtype=torch.bool, device=h.device)
    return _score(h, weight, bias, targets, correct), correct


def _score(h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, correct: Tensor | None) -> Tensor:
    """Each row's loss [n], without gradient; fills `correct` [n], where it is given."""
    nats = torch.empty(targets.shape, dtype=_wide(h), device=h.device)
    with torch.no_grad():
        matrix = _padded(weight.to(_product_type(h)))
        rows = _chunk(matrix, weight.shape[1])
        for first in range(0, len(targets), rows):
            whole = slice(first, first + rows)
            products = (h[whole].to(matrix.dtype) @ matrix)[:, : weight.shape[1]]
            if (by := _compiled(products)) is not None:
                nats[whole], is_correct = by.scores(products, bias, targets[whole])
                if correct is not None:
                    correct[whole] = is_correct
                continue
            for strip, logits in _strips(products, bias):
                part = slice(first + strip.start, first + strip.stop)
                target = targets[part, None]
                highest, at_target = logits.amax(dim=1, keepdim=True), logits.gather(1, target)
                if correct is not None:
                    correct[part] = _is_first(logits, highest, at_target, target)
                mass = logits.sub_(highest).exp_().sum(dim=1)
                nats[part] = mass.log() - (at_target - highest)[:, 0]
    return nats


def _is_first(logits: Tensor, highest: Tensor, at_target: Tensor, target: Tensor) -> Tensor:
    """Whether the argmax of each row of logits is the target: bool [rows]. Torch's own reads a row without vectors."""
    is_highest = at_target[:, 0] >= highest[:, 0]
    rows = is_highest.nonzero()[:, 0]
    is_highest[rows] = logits[rows].argmax(dim=1) == target[rows, 0]
    return is_highest


class _LinearCrossEntropy(torch.autograd.Function):
    """Forward forms the gradients too, or the slope that they are products of; backward scales them."""

    @staticmethod
    def forward(
        ctx: Context, h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, is_table: bool
    ) -> Tensor:
        ctx.is_table, weight = is_table, weight.t() if is_table else weight
        ctx.dtypes = h.dtype, weight.dtype, weight.dtype
        ctx.d_vocab = d_vocab = weight.shape[1]
        matrix = _padded(weight.to(_product_type(h)))
        rows = _chunk(matrix, d_vocab)
        ctx.is_whole = h.shape[0] <= _WHOLE * rows
        if ctx.is_whole:
            x = h.to(matrix.dtype)
            total, slope, dbias = _loss_and_slope(x, matrix, bias, targets, smoothing, d_vocab)
            ctx.tiles = None if torch.compiler.is_compiling() else elementwise.tiles_for(slope)
            ctx.save_for_backward(x, matrix, slope, dbias)
            return total
        ctx.smoothing = smoothing
        total, *ctx.made = _by_chunks(ctx, h, weight, bias, targets)
        ctx.save_for_backward(h, weight, bias, targets)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        if ctx.is_whole:
            dh, dweight, dbias = _products(ctx, grad)
        else:
            made, ctx.made = ctx.made, None  # scaled in place and handed over: a second backward pass makes them again
            if made is None:
                _, *made = _by_chunks(ctx, *ctx.saved_tensors)
            dh, dweight, dbias = (
                None if part is None else part.mul_(grad).to(dtype)
                for part, dtype in zip(made, ctx.dtypes, strict=True)
            )
            del made
            if ctx.is_table and dweight is not None:
                dweight = dweight.t()
        return dh, dweight, dbias, None, None, None


def _by_chunks(
    ctx: Context, h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The summed loss, and its gradients by h, weight and bias where needed, a chunk of rows at a time."""
    need_h, need_weight, need_bias, *_ = ctx.needs_input_grad
    wide, d_vocab = _wide(h), weight.shape[1]
    matrix = _padded(weight.to(_product_type(h)))
    rows = _chunk(matrix, d_vocab)
    room = h.new_empty(rows, matrix.shape[1], dtype=matrix.dtype) if _goes_by_strips(h) else None
    dh = torch.empty_like(h) if need_h else None
    dweight = torch.zeros_like(weight, dtype=wide) if need_weight else None  # keeps the strides of a tied W_E
    dbias = torch.zeros_like(bias, dtype=wide) if bias is not None and need_bias else None
    total = torch.zeros((), dtype=wide, device=h.device)
    for first in range(0, h.shape[0], rows):
        part = slice(first, first + rows)
        x = h[part].to(matrix.dtype)
        loss, slope, of_bias = _loss_and_slope(x, matrix, bias, targets[part], ctx.smoothing, d_vocab, room)
        total = total + loss  # not in place: what torch 2.11 compiles of that gives gradients of 0
        if dbias is not None and of_bias is not None:
            dbias += of_bias
        if dh is not None:
            dh[part] = slope @ matrix.t()
        if dweight is not None:
            _add_product(dweight, x.t(), slope)
        del slope  # before the next chunk's is made
    return total, dh, dweight, dbias


def _products(ctx: Context, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """grad * (slope matrix^T, x^T slope, sum of slope): dh, dweight (with the strides of what was given) and dbias.

    Where it can be, dweight is nothing but its own memory: autograd adds what was read of a tied table to it in place.
    """
    x, matrix, slope, dbias = ctx.saved_tensors
    needed, dtypes, dh, dweight = ctx.needs_input_grad, ctx.dtypes, None, None
    if needed[0]:
        dh = _times(slope, matrix.t(), grad).to(dtypes[0])
    if needed[1]:
        by_word = matrix.stride(0) == 1
        left, right = (slope, x) if by_word else (x, slope)
        if ctx.tiles is not None and dtypes[1] == torch.float32:
            dweight, _ = ctx.tiles.weight_grad(left, right, summed=False, factor=float(grad))
        else:
            dweight = _times(left.t(), right, grad)
            dweight = (dweight[: ctx.d_vocab] if by_word else dweight[:, : ctx.d_vocab]).to(dtypes[1])
        if by_word != ctx.is_table:
            dweight = dweight.t()
    return dh, dweight, (dbias * grad).to(dtypes[2]) if dbias is not None and needed[2] else None


def _times(left: Tensor, right: Tensor, grad: Tensor) -> Tensor:
    """grad left right, the factor inside the product where it can be read without waiting for a device."""
    if not _goes_by_strips(left):
        return (left @ right).to(grad.dtype) * grad
    return torch.addmm(left.new_empty(()), left, right, beta=0, alpha=float(grad))


def _wide(h: Tensor) -> torch.dtype:
    """The type of soft-max and sums."""
    return torch.float64 if h.dtype == torch.float64 else torch.float32


def _product_type(h: Tensor) -> torch.dtype:
    """The type that products run in: autocast's where it is on, else that of the hidden vectors."""
    kind = h.device.type
    if h.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return h.dtype


def _strips(products: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Rows, and their logits: `products` [rows, d_vocab] widened, plus the bias; of few rows, that fit a cache.

    Of one type the logits are the memory of the products themselves. All rows where no core's cache is at stake.
    """
    n, d_vocab = products.shape
    rows = max(_FEWEST_STRIP, _STRIP_BYTES // (4 * d_vocab))
    if not _goes_by_strips(products):
        rows = max(1, n)
    for first in range(0, n, rows):
        strip = slice(first, min(n, first + rows))
        logits = products[strip].to(_wide(products))
        yield strip, logits if bias is None else logits.add_(bias)


def _padded(matrix: Tensor) -> Tensor:
    """An output matrix [d_model, d_vocab] with columns of zeros after it, where a GPU multiplies it faster so."""
    lacking = -matrix.shape[1] % _PADDED_TO
    if matrix.device.type != "cuda" or matrix.element_size() != 2 or not lacking:
        return matrix
    if matrix.stride(0) == 1:
        return F.pad(matrix.t(), (0, 0, 0, lacking)).t()
    return F.pad(matrix, (0, lacking))


def _loss_and_slope(
    x: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float,
    d_vocab: int,
    room: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The rows' summed loss; its slope by the logits [rows, d_vocab], in the type of x; that summed over the rows.

    The last is None without a bias. Columns of the matrix from `d_vocab` on are padding, with a slope of 0. Where
    `room` is given, a tensor of as many rows or more, the slope lies in it.
    """
    kept, wide = x @ matrix if room is None else torch.mm(x, matrix, out=room[: len(x)]), _wide(x)
    if (by := _compiled(kept)) is not None:
        nats, dbias = by.loss_slope(kept, bias, targets, smoothing)
        return nats.sum(), kept, dbias
    if not _goes_by_strips(kept):
        return _loss_and_slope_at_once(kept, bias, targets, smoothing, d_vocab)
    total = torch.zeros((), dtype=wide, device=x.device)
    dbias = None if bias is None else torch.zeros(matrix.shape[1], dtype=wide, device=x.device)
    for strip, slope in _strips(kept, bias):
        total += _loss_into_slope(slope, targets[strip, None], smoothing)
        if dbias is not None:
            dbias += slope.sum(dim=0)
        if slope.dtype != kept.dtype:
            kept[strip] = slope
    return total, kept, dbias


def _loss_and_slope_at_once(
    products: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, d_vocab: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same from all products [rows, d_vocab and padding], in as few kernels as there are."""
    if products.shape[1] > d_vocab:
        products[:, d_vocab:] = -torch.inf
    logits, target = products, targets[:, None]
    if bias is not None:
        logits = products.to(_wide(products))
        logits[:, :d_vocab] += bias
    slope = F.log_softmax(logits, dim=1, dtype=_wide(products))
    at_target = slope.gather(1, target)
    total = (smoothing - 1) * at_target.sum()
    if smoothing:
        total = total - smoothing / d_vocab * slope[:, :d_vocab].sum()
    slope.exp_()
    if smoothing:
        slope[:, :d_vocab] -= smoothing / d_vocab
    at_target = at_target.exp() - smoothing / d_vocab - (1 - smoothing)
    if bias is not None:
        slope.scatter_(1, target, at_target)
        return total, slope.to(products.dtype), slope[:, :d_vocab].sum(dim=0)
    slope = slope.to(products.dtype)  # before the targets are written, so that a compiler makes one pass of it all
    return total, slope.scatter_(1, target, at_target.to(slope.dtype)), None


def _chunk(matrix: Tensor, d_vocab: int) -> int:
    """How many rows of logits are held at a time: compiled passes leave them in the type of the products."""
    return chunk_rows(d_vocab, matrix.device.type, 4 if _compiled(matrix) is None else matrix.element_size())


def _compiled(products: Tensor) -> elementwise.Compiled | None:
    """The compiled passes over logits, where they are taken now."""
    return None if torch.compiler.is_compiling() else elementwise.compiled_for(products)


def _goes_by_strips(x: Tensor) -> bool:
    """Whether passes over logits go strip by strip: where a core's cache is at stake."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _loss_into_slope(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """Overwrite logits [rows, d_vocab] by the slope of the loss on target [rows, 1]; return the rows' summed loss."""
    highest = logits.amax(dim=1, keepdim=True)
    at_target = logits.gather(1, target) - highest
    logits.sub_(highest)
    wanted = at_target if not smoothing else (1 - smoothing) * at_target + smoothing * logits.mean(dim=1, keepdim=True)
    logits.exp_()
    mass = logits.sum(dim=1, keepdim=True)
    logits.div_(mass)
    if smoothing:
        logits.sub_(smoothing / logits.shape[1])
    logits.scatter_(1, target, logits.gather(1, target) - (1 - smoothing))
    return (mass.log() - wanted).sum()


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left right, without its padding; in place where the types allow it."""
    if left.dtype == total.dtype and right.shape[1] == total.shape[1]:
        total.addmm_(left, right)
    elif total.stride(0) == 1:  # a tied table: its rows are words
        total += (right.t() @ left.t())[: total.shape[1]].t()
    else:
        total += (left @ right)[:, : total.shape[1]]
