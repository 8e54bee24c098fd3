"""How alike words became: over the 2 x 2 of made pairs, and of the commonest word of a real text to all others.

Cosines are between rows less the mean row of the table: every table drifts as a whole, and the raw cosine of any two
rows reads that (Bis et al. 2021). Bilinear forms (QK, OV, output after input) are taken relative to their spread over
all pairs of words, so that they compare across arms. They are of the matrices alone: rows pass through the norm before
attention without its gain, positions and the last norm are left out; so they change where a gain is folded into W_Q.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from qkv.data.corpus import Corpus
from qkv.inspection.token_rows import rank_correlation
from qkv.instruments.tokens import count_tokens
from qkv.studies.engine.training_log import Finished
from qkv.studies.synthetic.streams import CELLS, PairCell, pair_words, word

_CONTEXTS = 64
"""Windows of the validation part that contextual vectors are averaged over."""


def pairs(finished: Finished) -> dict[str, float]:
    """For each measure of likeness its two main effects over the 2 x 2, their interaction, and its mean by cell.

    `together M`: mean over pairs that occur together less the mean over those that do not, contexts alike in both
    halves by design. `shared M`: likewise for shared contexts. `interaction M`: how much more the one does given the
    other.
    """
    n_pairs = dict(finished.trial.text.settings)["pairs"]
    vocabulary = finished.corpus.tokenizer.vocabulary
    places = {
        cell: torch.tensor([[vocabulary[word(i)] for i in pair] for pair in members])
        for cell, members in pair_words(n_pairs).items()
    }
    everyone = torch.cat(list(places.values())).flatten()
    found: dict[str, float] = {}
    measures = likenesses(finished, everyone) | {"contextual cos": _cosines(_contextual(finished), everyone)}
    for name, likeness in measures.items():
        found |= effects(name, {cell: float(of_pairs(likeness, p).mean()) for cell, p in places.items()})
    return found


def effects(name: str, means: Mapping[PairCell, float]) -> dict[str, float]:
    """Main effects and interaction of a measure from its means over the cells."""
    both, together, shared, neither = (means[cell] for cell in CELLS)
    return {
        f"together {name}": (both + together) / 2 - (shared + neither) / 2,
        f"shared {name}": (both + shared) / 2 - (together + neither) / 2,
        f"interaction {name}": both - together - shared + neither,
    }


def of_pairs(likeness: Tensor, places: Tensor) -> Tensor:
    """Likeness of each pair, both ways round, [n_pairs]."""
    a, b = places[:, 0], places[:, 1]
    return (likeness[a, b] + likeness[b, a]) / 2


@torch.no_grad()
def likenesses(finished: Finished, everyone: Tensor) -> dict[str, Tensor]:
    """Name -> likeness of every two tokens by rows of W_E and W_U and by circuits, [d_vocab, d_vocab] float64."""
    catalogue, sizes = finished.parts.catalogue, finished.model.config.sizes
    table, output = catalogue.view("W_E").double(), catalogue.view("W_U").double().T
    found = {
        "cos(e, e)": _cosines(table, everyone),
        "cos(u, u)": _cosines(output, everyone),
        "e.u": _in_spread(table @ output.T, everyone),
    }
    x = torch.nn.functional.layer_norm(table, table.shape[-1:])
    for circuit in ("QK", "OV"):
        maps = [catalogue.circuit(f"L0.H{h}.{circuit}") for h in range(sizes.n_heads)]
        whole = sum(m.left.double() @ m.right.double() for m in maps)
        right = x if circuit == "QK" else output
        found[circuit] = _in_spread(x @ whole @ right.T, everyone)
    return found


def _cosines(rows: Tensor, everyone: Tensor) -> Tensor:
    """Cosines of rows less the mean row of the words that count."""
    centred = rows - rows[everyone].mean(0)
    unit = centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return unit @ unit.T


def _in_spread(values: Tensor, everyone: Tensor) -> Tensor:
    """In standard deviations over all pairs of the words that count, from their mean."""
    among = values[everyone][:, everyone]
    return (values - among.mean()) / among.std().clamp_min(1e-12)


@torch.no_grad()
def _contextual(finished: Finished) -> Tensor:
    """Mean vector of each token after the last layer, over validation windows, float64 [d_vocab, d_model]."""
    model, corpus = finished.model, finished.corpus
    sizes = model.config.sizes
    total = torch.zeros(sizes.d_vocab, sizes.d_model, dtype=torch.float64)
    ids = torch.from_numpy(corpus.val.ids[: _CONTEXTS * sizes.n_ctx].astype(np.int64))
    ids = ids[: len(ids) // sizes.n_ctx * sizes.n_ctx].view(-1, sizes.n_ctx)
    hidden = model.hidden(ids).double().flatten(0, 1)
    total.index_add_(0, ids.flatten(), hidden)
    return total / torch.bincount(ids.flatten(), minlength=sizes.d_vocab).clamp_min(1)[:, None]


def commonest_word(corpus: Corpus) -> tuple[int, np.ndarray]:
    """Id of the commonest token of letters alone in the training part (none of punctuation), or where none is of
    letters, of the commonest; and the counts of all tokens, special ones as 0.
    """
    tokenizer = corpus.tokenizer
    counts = count_tokens(corpus.train.ids, tokenizer.d_vocab)
    counts[list(tokenizer.special.values())] = 0
    order = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i]]
    return next((i for i in order if tokenizer.token(i).strip().isalpha()), order[0]), counts


@torch.no_grad()
def common_word(finished: Finished) -> dict[str, float]:
    """The commonest word of a text against all other tokens met in it, by rows of W_E: is it apart from them?

    In root-mean-square dot products of two different rows: `dot of the word`, its mean dot product with all others;
    `... over others`, that less the same of every other token, in the mean; `... with common`, with the tenth of tokens
    that are met most; `... with rare`, with the half that are met least. `dot of the word by count` is the rank
    correlation over the others of that dot product with their count, and `dot by count` that of every token's own mean
    dot product with its count.
    """
    word, counts = commonest_word(finished.corpus)
    seen = np.flatnonzero(counts)
    rows = finished.parts.catalogue.view("W_E").double()[torch.from_numpy(seen)]
    dots = (rows @ rows.T).numpy()
    np.fill_diagonal(dots, np.nan)
    mean, spread = np.nanmean(dots, axis=1), np.sqrt(np.nanmean(dots**2))
    place, others = int(np.flatnonzero(seen == word)[0]), seen != word
    own, often = dots[place, others], counts[seen[others]]
    order = np.argsort(-often, kind="stable")
    return {
        "dot of the word": float(mean[place] / spread),
        "dot of the word over others": float((mean[place] - mean[others].mean()) / spread),
        "dot of the word with common": float(own[order[: max(1, len(order) // 10)]].mean() / spread),
        "dot of the word with rare": float(own[order[len(order) // 2 :]].mean() / spread),
        "dot of the word by count": rank_correlation(own, often) or 0.0,
        "dot by count": rank_correlation(mean, counts[seen]) or 0.0,
    }
