"""What a study measures on a trained model beside its loss: one function per probe, named in `PROBES`.

A probe takes a `Finished` training and gives named numbers, one value per quantity, never NaN; it leaves the model as
it found it. Matrices are taken together over layers by kind, since a study speaks of *the* W_Q, and raw factors are
never compared across seeds: a drift is of one seed's matrix from its own start.
"""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from typing import cast

import numpy as np
import torch
from torch import Tensor

from qkv.data.examples import Examples
from qkv.data.images import ImageSet
from qkv.errors import ConfigError, QkvError
from qkv.extensions import load
from qkv.inspection.changepoints import half_way
from qkv.inspection.token_rows import drifts, rank_correlation
from qkv.inspection.what_moved import what_moved
from qkv.instruments.gradients import gradient_path
from qkv.instruments.tokens import count_tokens
from qkv.models.matrices import Catalogue
from qkv.studies.engine.training_log import Finished
from qkv.studies.probes.attention import ablation, patterns, replaced, roles
from qkv.studies.probes.basis import change_of_basis, triplets
from qkv.studies.probes.collocations import collocations
from qkv.studies.probes.contextual import analogies, contextual, published
from qkv.studies.probes.identity import hidden_identity, identity
from qkv.studies.probes.pairs import common_word, pairs
from qkv.studies.probes.positions import loss_by_position, order, position
from qkv.studies.probes.relatedness import relatedness
from qkv.studies.probes.watchers import PERIODS, Ledger, Way
from qkv.studies.probes.words import word_relatedness
from qkv.studies.synthetic.tasks import Modular
from qkv.tasks import validation_loss
from qkv.tasks.batch import Batch
from qkv.tasks.masked import Masked

KINDS: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("W_E", "W_pos", "W_Q", "W_K", "W_V", "W_O")},
    "QK": ("W_Q", "W_K"),
    "VO": ("W_V", "W_O"),
    "MLP": ("W_in", "W_out"),
    "norms": ("gain", "bias"),
    "W_U": ("W_U",),
}
"""What a study calls a matrix -> the kinds of catalogue entries it stands for, in every layer."""
_SINGLE = ("W_E", "W_pos", "W_Q", "W_K", "W_V", "W_O", "MLP", "norms", "W_U")
"""Those that together are every matrix once."""
_BATCH_TOKENS = 2048


def _members(finished: Finished, name: str) -> list[str]:
    """Addresses of the entries that a name stands for; empty where the model has none."""
    return [entry.address for entry in finished.parts.catalogue if entry.kind in KINDS[name]]


def _drift(finished: Finished) -> dict[str, float]:
    """|W - S| / |S| over all layers together, S the start: how far, against how large it was."""
    state, start, found = finished.parts.catalogue.state(), finished.parts.start, {}
    for name in KINDS:
        members = _members(finished, name)
        size = _norm([start[a] for a in members])
        if members and size > 0:
            found[f"drift {name}"] = _norm([state[a] - start[a] for a in members]) / size
    return found


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.stack([t.double().square().sum() for t in tensors]).sum().sqrt()) if tensors else 0.0


def _reset(finished: Finished) -> dict[str, float]:
    """Loss with a matrix set back to its start, less the loss: what its learning is worth to the finished model.

    Zhang, Bengio and Singer 2019 (arXiv 1902.01996).
    """
    return {
        f"reset {name}": _loss_with(finished, {a: finished.parts.start[a] for a in members}) - finished.loss
        for name in KINDS
        if (members := _members(finished, name))
    }


def _loss_with(finished: Finished, values: Mapping[str, Tensor]) -> float:
    """The validation loss with some matrices replaced."""
    entry, batch = finished.parts.catalogue.entry, max(1, _BATCH_TOKENS // finished.trial.scale.n_ctx)
    with replaced([(entry(address).parameter.detach(), tensor) for address, tensor in values.items()]):
        return validation_loss(finished.model, finished.parts.task, finished.corpus, batch)


def _ledger(finished: Finished) -> dict[str, float]:
    """Nats that the movement of each matrix earned, of all together, and the fall of the loss that they add up to."""
    ledger = finished.watched["ledger"]
    assert isinstance(ledger, Ledger)
    earned = ledger.earned
    found = {
        f"earned {name}": sum(earned.get(address, 0.0) for address in members)
        for name in KINDS
        if (members := _members(finished, name))
    }
    everything = sum(found[f"earned {name}"] for name in _SINGLE if f"earned {name}" in found)
    return found | {"earned all": everything, "fall": ledger.fall}


def _rows(finished: Finished) -> dict[str, float]:
    """Rows of W_E: how far those moved that training never met, those it met, and whether frequent ones moved more."""
    parts, corpus = finished.parts, finished.corpus
    counts = count_tokens(corpus.train.ids, corpus.tokenizer.d_vocab)
    drift = drifts(parts.start["W_E"].numpy(), parts.catalogue.state()["W_E"].numpy())
    seen = counts > 0
    found = {"rows unseen": float((~seen).sum()), "row drift": float(np.median(drift[seen]))}
    if (~seen).any():
        found["unseen row drift"] = float(drift[~seen].max())
    correlation = rank_correlation(drift[seen], counts[seen])
    if correlation is not None:
        found["row drift with count"] = correlation
    return found


def _frequency(finished: Finished) -> dict[str, float]:
    """Loss on common, middling and rare target tokens, each a third of the validation targets by training count."""
    corpus, nats, targets = finished.corpus, [], []
    counts = count_tokens(corpus.train.ids, corpus.tokenizer.d_vocab)
    for part in finished.val_batches():
        nats.append(finished.parts.task.score(finished.model, part).nats.double().numpy())
        targets.append(part.targets.numpy())
    loss, frequency = np.concatenate(nats), counts[np.concatenate(targets)]
    thirds = np.array_split(np.argsort(-frequency, kind="stable"), 3)
    bands = zip(("common", "middling", "rare"), thirds, strict=True)
    return {f"loss {band}": float(loss[part].mean()) for band, part in bands}


_TEXTS = 4
_PATH_WINDOWS = 4


def _moved(
    finished: Finished, earlier: Mapping[str, Tensor] | None = None, later: Mapping[str, Tensor] | None = None
) -> dict[str, float]:
    """Share of each cause in the change of q, k, v and scores from start to end, or from some weights to others, by
    layer, over validation windows. See `qkv.inspection.what_moved`; shares of one product sum to 1.
    """
    before, after = copy.deepcopy(finished.model), copy.deepcopy(finished.model)
    Catalogue(before).load_state(earlier or finished.parts.start)
    Catalogue(after).load_state(later or finished.parts.catalogue.state())
    n_ctx = finished.trial.scale.n_ctx
    ids = torch.from_numpy(finished.corpus.val.ids[: _TEXTS * n_ctx].astype(np.int64)).view(_TEXTS, 1, n_ctx)
    found: dict[str, float] = {}
    for text in ids:
        for product in what_moved(before, after, text):
            for cause, share in product.shares.items():
                name = f"{product.address} {cause}"
                found[name] = found.get(name, 0.0) + share / _TEXTS
    return {name: share for name, share in found.items() if np.isfinite(share)}


def _moved_when(finished: Finished) -> dict[str, float]:
    """The same of each period of the training: `PERIOD L0.q encodings`."""
    way = finished.watched["what moved when"]
    assert isinstance(way, Way)
    return {
        f"{period} {name}": share
        for period, earlier, later in zip(PERIODS, way.states[:-1], way.states[1:], strict=True)
        for name, share in _moved(finished, earlier, later).items()
    }


def _order_of_movement(finished: Finished) -> dict[str, float]:
    """`half way NAME`: the step at which matrices were first half as far from their start as at the end, interpolated.

    NAME is one of `KINDS`, over all layers together, or a layer (`L0`) with all its matrices.
    """
    way = finished.watched["order of movement"]
    assert isinstance(way, Way)
    groups = {name: _members(finished, name) for name in KINDS}
    for entry in finished.parts.catalogue:
        if entry.layer is not None and entry.layer >= 0:
            groups.setdefault(f"L{entry.layer}", []).append(entry.address)
    found = {}
    for name, members in groups.items():
        distances = [(step, math.hypot(*(moved[address] for address in members))) for step, moved in way.looks]
        if members and (step := half_way(distances)) is not None:
            found[f"half way {name}"] = step
    return found


def _gradient_path(finished: Finished) -> dict[str, float]:
    """Share of each path in the gradient that reaches every block and the rows of W_E, on a validation batch.

    In float64, see `qkv.instruments.gradients`; `around` is the share at the bottom that went through no sublayer at
    all. Empty where no gradient arrives, as from a W_U of zeros.
    """
    model = copy.deepcopy(finished.model).double().requires_grad_(True)
    batch = next(iter(finished.parts.task.val_batches(finished.corpus, model.config.sizes, _PATH_WINDOWS)))
    path = gradient_path(model, finished.parts.task, batch)
    if not path.blocks[-1].norm:
        return {}
    found = {f"{block.address} {name}": share for block in path.blocks for name, share in block.shares.items()}
    return found | {"around": path.crossed[0], "gradient at the bottom": path.blocks[0].norm / path.blocks[-1].norm}


def _accuracy(finished: Finished) -> dict[str, float]:
    """Share of validation texts whose class is told rightly, in points of 100."""
    accuracy = finished.parts.task.evaluate(finished.model, finished.corpus).accuracy
    return {} if accuracy is None else {"accuracy": 100 * accuracy}


def _bits(finished: Finished) -> dict[str, float]:
    """Bits per byte of the validation text, what the tokenizer loses charged, and its bytes per token.

    By `Corpus.bits_per_byte`; comparable between tokenizers where all are measured on the same bytes.
    """
    bits = finished.corpus.bits_per_byte(finished.loss)
    return {} if bits is None else {"bits per byte": bits, "bytes per token": finished.corpus.bytes_per_token}


def _learned(finished: Finished) -> dict[str, float]:
    """`beyond frequencies`: nats per target that the model saves whoever knows how often each answer is one.

    0 for a model that learned the frequencies and nothing else. They are those of the training part, one added to each
    count; what is never asked, such as [UNK] of a masked model, is no answer.
    """
    corpus = finished.corpus
    asked = np.concatenate([batch.targets.numpy() for batch in finished.val_batches()])
    if isinstance(corpus, Examples):
        counts = 1.0 + np.bincount(corpus.train.classes, minlength=len(corpus.classes))
    else:
        counts = 1.0 + count_tokens(corpus.train.ids, corpus.tokenizer.d_vocab)
        if isinstance(finished.parts.task, Masked):
            counts[list(corpus.tokenizer.special.values())] = 0.0
    return {"beyond frequencies": float(-np.log(counts[asked] / counts.sum()).mean()) - finished.loss}


def _told(finished: Finished) -> dict[str, float]:
    """Share of what the frequencies of answers leave open that the model tells: 1 - loss / entropy of the answers.

    0 for a model that knows the frequencies and nothing else, 1 for one that is sure and right; so that a nat per image
    and a nat per token compare.
    """
    train = finished.corpus.train
    counts = np.bincount(train.labels if isinstance(train, ImageSet) else train.ids)
    shares = counts[counts > 0] / counts.sum()
    return {"told": 1 + finished.loss / float((shares * np.log(shares)).sum())}


def _answers(finished: Finished) -> dict[str, float]:
    """Share of the task's validation targets that are told rightly, in points of 100; by heart, of pairs it was shown.

    `by heart` is there for tasks that know which answers they hold out.
    """
    task = finished.parts.task
    found = {"answers": _right(finished, finished.val_batches())}
    if isinstance(task, Modular):
        batch = max(1, _BATCH_TOKENS // finished.model.config.sizes.n_ctx)
        found["by heart"] = _right(finished, task.batches_of(task.pairs(held_out=False), finished.corpus, batch))
    return found


def _right(finished: Finished, batches: Iterable[Batch]) -> float:
    correct = [finished.parts.task.score(finished.model, batch).correct.double() for batch in batches]
    return 100 * float(torch.cat(correct).mean())


PROBES: Mapping[str, Callable[[Finished], dict[str, float]]] = {
    "drift": _drift,
    "reset": _reset,
    "ledger": _ledger,
    "rows": _rows,
    "frequency": _frequency,
    "what moved": _moved,
    "what moved when": _moved_when,
    "order of movement": _order_of_movement,
    "accuracy": _accuracy,
    "answers": _answers,
    "bits": _bits,
    "told": _told,
    "learned": _learned,
    "gradient path": _gradient_path,
    "pairs": pairs,
    "commonest word": common_word,
    "collocations": collocations,
    "contextual": contextual,
    "change of basis": change_of_basis,
    "triplets": triplets,
    "analogies": analogies,
    "published": published,
    "relatedness": relatedness,
    "relatedness of words": word_relatedness,
    "tokens named": identity,
    "hidden tokens named": hidden_identity,
    "roles": roles,
    "patterns": patterns,
    "ablation": ablation,
    "position": position,
    "loss by position": loss_by_position,
    "order": order,
}
"""Name -> probe. A new probe is one function and one line here."""


def is_metric(name: str) -> bool:
    """Whether a probe is a function of one's own, `module:name`."""
    return ":" in name


def metric(spec: str) -> Callable[[Finished], float]:
    """A function of one's own. Raises ConfigError where it is not there, or is no function."""
    found = load(spec, "of")
    if not callable(found) or isinstance(found, type):
        raise ConfigError(f"of is {spec!r}, a {type(found).__name__}; expected a function of a finished training")
    return cast("Callable[[Finished], float]", found)


def measured(name: str, finished: Finished) -> dict[str, float]:
    """What a probe gives. Raises ConfigError where a function of one's own fails, or gives no finite number."""
    if not is_metric(name):
        return PROBES[name](finished)
    try:
        value: object = metric(name)(finished)
        number = float(value)  # type: ignore[arg-type]
    except QkvError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise ConfigError(f"{name} fails on a finished training: {said}") from None
    if not math.isfinite(number):
        raise ConfigError(f"{name} gives {value!r:.60}; expected a finite number")
    return {name: number}


OF_THE_LOSS = ("bits", "told", "learned")
"""Those that read the loss and no weights: a training that diverged has them too."""
OF_A_TEXT = ("contextual", "tokens named", "hidden tokens named", "relatedness", "relatedness of words", "ablation")
"""Those that raise SourceError for a text that holds too little, whatever a model learned of it."""
