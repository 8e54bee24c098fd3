"""Tokens for the arms of a study: the user's own text, or streams made by a rule whose truth is known.

`corpus(text, source, val_tokens)` gives the same corpus for the same arguments, in any process. A made stream is a text
of words as well, so that everything that reads a corpus reads it. A new stream is one function and one line in
`STREAMS`. What the streams are for stands in their docstrings.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from qkv.data.config import DataConfig
from qkv.data.corpus import Corpus, load_corpus, measured_on
from qkv.data.examples import Examples, Labelled, load_examples
from qkv.data.images import Images, ImageSet, holds_images, load_images
from qkv.data.sources.source import files_below
from qkv.data.vectors import holds_vectors
from qkv.errors import MissingExtra, SourceError
from qkv.installing import install
from qkv.randomness import generator
from qkv.studies.engine.design import Slice, Text
from qkv.tasks import Data
from qkv.tokenizers.tokenizer import Tokenizer, fit_tokenizer
from qkv.tokenizers.tokens import Tokens, id_type

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def corpus(text: Text, source: str, val_tokens: int, cache: Path | None, part: Slice | None = None) -> Any:
    """What an arm trains on, of a corpus its validation part cut to `val_tokens` (0: all of it).

    With a `part`, that slice of both parts alone: the first two thirds of its validation part are reported on, the last
    third tunes. Raises SourceError or ConfigError for a text that cannot be read or cut as asked.
    """
    return _corpus(text, source, val_tokens, cache, _stamp(source), part)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
    """What a source names: paths, empty where it names none; without a text it is the one inside Python."""

    text: str = ""
    images: str = ""
    vectors: str = ""


def given(source: str) -> Given:
    """Of TEXT, IMAGES, TEXT:IMAGES or TEXT:VECTORS. Raises SourceError where the second is not there."""
    if source and holds_images(Path(source)):
        return Given(images=source)
    text, colon, other = source.rpartition(":")
    if colon and not Path(source).exists():
        if holds_images(Path(other)):
            return Given(text=text, images=other)
        if holds_vectors(Path(other)):
            return Given(text=text, vectors=other)
        if Path(text).is_file() and not Path(other).exists():
            raise SourceError(f"no file or folder {other!r}, which was given beside {text!r}")
    return Given(text=source)


def _stamp(source: str) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of the file of a source, or of every file that its folder is read from."""
    files: list[Path] = []
    for path in map(Path, filter(None, vars(given(source)).values())):
        files += files_below(path, []) if path.is_dir() else [path] if path.is_file() else []
    return tuple((str(file), facts.st_mtime_ns, facts.st_size) for file in files for facts in [file.stat()])


Stamp = tuple[object, ...]


@lru_cache(maxsize=8)
def _whole(text: Text, source: str, cache: Path | None, stamp: Stamp) -> Corpus | Examples | Images:
    """All of it, remembered for as long as no file changes."""
    return STREAMS[text.stream](text, source, cache)


@lru_cache(maxsize=64)
def _corpus(text: Text, source: str, val_tokens: int, cache: Path | None, stamp: Stamp, part: Slice | None) -> Any:
    """A part of it; its tokens are views of those of the whole."""
    made, settings = _whole(text, source, cache, stamp), dict(text.settings)
    if not isinstance(made, Corpus):
        return made if part is None else _third(made, part.tunes)
    train, whole = made.train, made.val
    if part is not None and part.of > 1:
        train = _span(train, *_bounds(len(train), part, part.overlapping))
        whole = _span(whole, *_bounds(len(whole), part))
    if text.stream == "text" and "train_tokens" in settings:
        train = _span(train, 0, min(len(train), settings["train_tokens"]))
    if text.stream == "text" and "val_bytes" in settings:
        n_bytes = settings["val_bytes"] if part is None else min(settings["val_bytes"], 2 * whole.n_bytes // 3)
        measured = measured_on(made, n_bytes)
        reported, made = len(measured.val), measured if part is None or not part.tunes else made
        val = _span(whole, reported, len(whole)) if part is not None and part.tunes else measured.val
    elif part is None:
        val = whole
    else:
        reported = 2 * len(whole) // 3
        val = _span(whole, *((reported, len(whole)) if part.tunes else (0, reported)))
    if val_tokens and len(val) > val_tokens:
        val = _span(val, 0, val_tokens)
    charge = None if made.charge_nats is None else len(val) / len(made.val) * made.charge_nats
    return dataclasses.replace(made, train=train, val=val, charge_nats=charge)


def _bounds(n: int, part: Slice, overlapping: bool = False) -> tuple[int, int]:
    """Where a slice of n tokens begins and ends; half of an overlapping one is in the next."""
    of = part.of + overlapping
    return part.index * n // of, (part.index + 1 + overlapping) * n // of


def _span(tokens: Tokens, start: int, end: int) -> Tokens:
    """Some contiguous tokens of more, whose documents stay apart."""
    if (start, end) == (0, len(tokens)):
        return tokens
    inside = tokens.offsets[(tokens.offsets > start) & (tokens.offsets < end)] - start
    offsets, share = np.concatenate([[0], inside, [end - start]]), (end - start) / len(tokens)
    return Tokens(ids=tokens.ids[start:end], offsets=offsets, n_bytes=round(share * tokens.n_bytes))


def _third(made: Examples | Images, tunes: bool) -> Examples | Images:
    """The same, measured on every third of what is held out, or on the others."""
    chosen = np.flatnonzero((np.arange(len(made.val)) % 3 == 2) == tunes)
    if isinstance(made, Images):
        return dataclasses.replace(made, val=ImageSet(pixels=made.val.pixels[chosen], labels=made.val.labels[chosen]))
    tokens, lengths = made.val.tokens, made.val.lengths[chosen]
    ids = np.concatenate([tokens.document(i) for i in chosen.tolist()])
    share = len(ids) / len(tokens)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    val = Labelled(
        tokens=Tokens(ids=ids, offsets=offsets, n_bytes=round(share * tokens.n_bytes)),
        classes=made.val.classes[chosen],
        texts=[made.val.texts[i] for i in chosen],
    )
    return dataclasses.replace(made, val=val)


def _own_text(text: Text, source: str, cache: Path | None) -> Corpus:
    config = DataConfig(source=given(source).text, tokenizer=text.tokenizer, vocab=text.vocab)
    specials = dict(text.settings).get("specials", True)
    return load_corpus(config, cache=cache, task_specials=specials)


def _labelled(text: Text, source: str, cache: Path | None) -> Examples:
    """The same source read as texts with labels, for arms that classify.

    Raises SourceError where it holds none.
    """
    if not source:
        raise SourceError("the text inside Python has no labels")
    config = DataConfig(source=source, tokenizer=text.tokenizer, vocab=text.vocab)
    return load_examples(config, cache=cache, task_specials=dict(text.settings).get("specials", False))


@lru_cache(maxsize=8)
def without_labels(made: Examples) -> Corpus:
    """The same texts, in the same parts and tokens, for tasks that read no labels."""
    return Corpus(
        name=made.name,
        kind=made.kind,
        sha256=made.sha256,
        tokenizer=made.tokenizer,
        train=made.train.tokens,
        val=made.val.tokens,
        rule=made.rule,
        note=made.note,
        charge_nats=None,
        split=partial(_unsplit, f"{made.name!r} is a table of labelled texts; it was not split as a text"),
    )


def _unsplit(why: str) -> NoReturn:
    """The split of what was none of a text."""
    raise SourceError(why)


def word(index: int) -> str:
    """The name of the index-th made word, letters only: aa, ab, ..., zz, aaa, ..."""
    letters, n = "", index + 26  # two letters at least, so that no word is a single letter
    while n >= 0:
        letters = _LETTERS[n % 26] + letters
        n = n // 26 - 1
    return letters


def _words(n: int) -> tuple[Tokenizer, np.ndarray]:
    """A tokenizer of made words 0 to n - 1, each met once, and the special tokens; the id of each word, int64 [n]."""
    words = list(map(word, range(n)))
    tokenizer = fit_tokenizer("word", [" ".join(words)], n + 16, specials=True)
    return tokenizer, np.array([tokenizer.vocabulary[each] for each in words])


def _made(name: str, rule: str, tokenizer: Tokenizer, train: np.ndarray, val: np.ndarray) -> Corpus:
    """A corpus of ids that were made here."""

    def tokens(ids: np.ndarray) -> Tokens:
        ids = ids.astype(id_type(tokenizer.d_vocab))
        return Tokens(ids=ids, offsets=np.array([0, len(ids)]), n_bytes=3 * len(ids))

    return Corpus(
        name=name,
        kind="made",
        sha256=hashlib.sha256(train.tobytes() + val.tobytes()).hexdigest(),
        tokenizer=tokenizer,
        train=tokens(train),
        val=tokens(val),
        rule=rule,
        note="",
        charge_nats=None,
        split=partial(_unsplit, f"{name} is made by a rule; it has no text to split"),
    )


# a Markov source, whose entropy is known


def markov_matrix(n_states: int, sharpness: float, noise: float) -> np.ndarray:
    """Transition probabilities [n_states, n_states].

    Softmax of `sharpness` * N(0, 1), mixed with `noise` of uniform.
    """
    logits = sharpness * generator("study", "markov", n_states).standard_normal((n_states, n_states))
    sharp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (1 - noise) * sharp / sharp.sum(axis=1, keepdims=True) + noise / n_states


def markov_entropy(matrix: np.ndarray) -> float:
    """Entropy rate in nats per token: the mean over the stationary distribution of the rows' entropies."""
    values, vectors = np.linalg.eig(matrix.T)
    stationary = np.real(vectors[:, np.argmin(np.abs(values - 1))])
    stationary = stationary / stationary.sum()
    return float(-(stationary[:, None] * matrix * np.log(matrix)).sum())


def _markov(text: Text, source: str, cache: Path | None) -> Corpus:
    """A chain of few states.

    Counting pairs is all there is to learn, and the best possible loss is its entropy rate.
    """
    s = dict(text.settings)
    matrix = markov_matrix(s["states"], s["sharpness"], s["noise"])
    chain = _walk(matrix, s["tokens"], "train"), _walk(matrix, s["val_tokens"], "val")
    tokenizer, ids = _words(s["states"])
    rule = f"a Markov chain of {s['states']} states with {markov_entropy(matrix):.4f} nats per token"
    return _made("markov", rule, tokenizer, ids[chain[0]], ids[chain[1]])


def _walk(matrix: np.ndarray, n: int, part: str) -> np.ndarray:
    """n states of the chain, int64 [n]; the same uniform draws for every matrix, so that sources pair."""
    draws, cumulative = generator("study", "markov walk", part).random(n), matrix.cumsum(axis=1)
    cumulative[:, -1] = 1.0
    state, states = 0, np.empty(n, dtype=np.int64)
    for i in range(n):
        state = int(np.searchsorted(cumulative[state], draws[i], side="right"))
        states[i] = state
    return states


def halves(made: Data) -> tuple[Corpus, Corpus]:
    """The same corpus with the first half of its training tokens alone, and with the second.

    Raises SourceError for data that are no text.
    """
    if not isinstance(made, Corpus):
        raise SourceError(f"{made.name!r} is no plain text, and only a text is cut into halves; give one")
    half, end = len(made.train) // 2, len(made.train)
    first, second = _span(made.train, 0, half), _span(made.train, half, end)
    return dataclasses.replace(made, train=first), dataclasses.replace(made, train=second)


# pairs of words in a 2 x 2: do they occur together, do they share contexts?


@dataclasses.dataclass(frozen=True)
class PairCell:
    """One cell of the 2 x 2."""

    together: bool
    """The two words stand side by side, and never one without the other; else never in one frame."""
    shared: bool
    """What may stand before and behind is the same for both; else they have nothing in common."""


CELLS = (PairCell(True, True), PairCell(True, False), PairCell(False, True), PairCell(False, False))


def pair_words(pairs: int) -> dict[PairCell, list[tuple[int, int]]]:
    """Cell -> its pairs of words, as indices of made words."""
    return {
        cell: [(2 * (c * pairs + i), 2 * (c * pairs + i) + 1) for i in range(pairs)] for c, cell in enumerate(CELLS)
    }


def _pairs(text: Text, source: str, cache: Path | None) -> Corpus:
    """Frames `before w behind stop` around the words of pairs, every word of every cell equally often.

    Contexts are `fillers` drawn for each word from two common pools (before, behind), `choices` each. The words of a
    pair with *shared* contexts draw from one choice, others from two that have no filler in common. Words that occur
    *together* stand side by side: where contexts are shared in both orders alike, else in one order, so that what is
    before the first and behind the second belongs to each alone. Words that do not occur together have frames of
    their own.
    """
    s = dict(text.settings)
    pairs, fillers, choices = s["pairs"], s["fillers"], s["choices"]
    n_words = 2 * pairs * len(CELLS)
    n = n_words + 2 * fillers + 1
    (tokenizer, ids), contexts = _words(n), _contexts(pairs, fillers, choices, n_words)
    parts = [
        ids[_frames(contexts, s[size], part, n - 1)] for size, part in (("tokens", "train"), ("val_tokens", "val"))
    ]
    rule = f"{pairs} pairs of words in each cell of {{together}} x {{shared contexts}}, {fillers} fillers on each side"
    return _made("pairs", rule, tokenizer, parts[0], parts[1])


def _contexts(pairs: int, fillers: int, choices: int, n_words: int) -> list[tuple[PairCell, tuple[int, int], list]]:
    """(cell, pair, [(before, behind) of each of its two words]), the fillers as indices of made words."""
    draws, out = generator("study", "pair contexts", pairs, fillers, choices), []
    for cell, members in pair_words(pairs).items():
        for pair in members:
            sides = []
            for side in range(2):
                pool = n_words + side * fillers + draws.permutation(fillers)
                sides.append((pool[:choices], pool[:choices] if cell.shared else pool[choices : 2 * choices]))
            out.append((cell, pair, [(sides[0][i], sides[1][i]) for i in range(2)]))
    return out


def _frames(contexts: Sequence[tuple[PairCell, tuple[int, int], list]], n: int, part: str, stop: int) -> np.ndarray:
    """About n indices of made words: rounds of one use of every word, the pairs of a round in random order."""
    draws = generator("study", "pair frames", part)
    tokens_per_round = sum(5 if cell.together else 8 for cell, _, _ in contexts)
    rounds = -(-n // tokens_per_round)
    frames = [_uses(cell, pair, sides, rounds, stop, draws) for cell, pair, sides in contexts]
    orders = draws.permuted(np.tile(np.arange(len(frames)), (rounds, 1)), axis=1)
    return np.concatenate([frames[i][r] for r in range(rounds) for i in orders[r]])[:n]


def _uses(
    cell: PairCell, pair: tuple[int, int], sides: list, rounds: int, stop: int, draws: np.random.Generator
) -> np.ndarray:
    """Both words of a pair once in every round, int64 [rounds, 5 or 8]: in one frame side by side, or in two."""
    drawn = [[draws.choice(sides[i][side], rounds) for side in range(2)] for i in range(2)]
    words, stops = [np.full(rounds, i) for i in pair], np.full(rounds, stop)
    if not cell.together:
        return np.stack([x for i in range(2) for x in (drawn[i][0], words[i], drawn[i][1], stops)], axis=1)
    turned = draws.integers(2, size=rounds).astype(bool) if cell.shared else np.zeros(rounds, dtype=bool)
    first, second = np.where(turned, words[1], words[0]), np.where(turned, words[0], words[1])
    before = np.where(turned, drawn[1][0], drawn[0][0])
    behind = np.where(turned, drawn[0][1], drawn[1][1])
    return np.stack([before, first, second, behind, stops], axis=1)


# tasks made by a rule


_RULES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "recall": (("keys", "values"), "{keys} keys, {values} values, told once and asked for in another order"),
    "repeat": (("letters",), "blocks of {letters} letters, again and again"),
    "modular": (("modulus",), "addition modulo {modulus}, a tenth of all pairs held out"),
}
"""Stream -> the settings that together are how many words there are (keys first, then values), and the rule."""


def _by_rule(text: Text, source: str, cache: Path | None) -> Corpus:
    """The vocabulary of a task whose batches are made by `studies.synthetic.tasks`: the first made words."""
    settings, (counted, rule) = dict(text.settings), _RULES[text.stream]
    tokenizer, ids = _words(sum(settings[name] for name in counted))
    ids = np.resize(ids, max(64, len(ids)))
    return _made(text.stream, rule.format(**settings), tokenizer, ids, ids)


# pictures


def _digits(text: Text, source: str, cache: Path | None) -> Images:
    """1,797 handwritten digits of 8 x 8 pixels, a fifth of them held out (Alpaydin and Kaynak 1998, UCI repository).

    Raises MissingExtra without scikit-learn, with which they come.
    """
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra(f"the digits come with scikit-learn; type: {install('study')}") from None
    pixels, labels = load_digits(return_X_y=True)
    pixels = np.rint(np.asarray(pixels) * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    order = generator("study", "digits").permutation(len(labels))
    train, val = (
        ImageSet(pixels=pixels[part], labels=np.asarray(labels)[part].astype(np.int64))
        for part in (order[len(order) // 5 :], order[: len(order) // 5])
    )
    return Images(
        name="digits",
        kind="made",
        sha256=hashlib.sha256(pixels.tobytes()).hexdigest(),
        classes=tuple(str(digit) for digit in range(10)),
        train=train,
        val=val,
        rule="a fifth of all digits for validation",
    )


def _images(text: Text, source: str, cache: Path | None) -> Images:
    """The user's own images with labels, measured on `val_images` of those held out, drawn by chance.

    Raises SourceError where they are not those of the settings' `sha256`, if it names any.
    """
    made, settings = load_images(given(source).images), dict(text.settings)
    if settings.get("sha256", made.sha256) != made.sha256:
        raise SourceError(f"the images {made.name!r} have changed since the study began; bring the old ones back")
    drawn = generator("study", "images").permutation(len(made.val))[: settings["val_images"]]
    return dataclasses.replace(made, val=ImageSet(pixels=made.val.pixels[drawn], labels=made.val.labels[drawn]))


STREAMS: Mapping[str, Callable[[Text, str, Path | None], Corpus | Examples | Images]] = {
    "text": _own_text,
    "labelled": _labelled,
    "markov": _markov,
    "pairs": _pairs,
    **dict.fromkeys(_RULES, _by_rule),
    "digits": _digits,
    "images": _images,
}
"""Name -> stream."""


def check_size(made: Corpus | Examples | Images, *, steps: int, batch_size: int, n_ctx: int) -> None:
    """Make sure that a text is worth a study: no token is seen more than 20 times, and enough is held out.

    Raises SourceError that says how much there is and how much would do.
    """
    small = f"{made.name!r} is too small for this study:"
    longer = "Give a longer text, or none for the text inside your own Python"
    if not isinstance(made, Corpus):
        needed, entries = math.ceil(steps * batch_size / 20), "images" if isinstance(made, Images) else "labelled texts"
        if made.n_train < needed:
            raise SourceError(f"{small} {made.n_train:,} {entries} to train on; expected at least {needed:,}")
        return
    needed = math.ceil(steps * batch_size * n_ctx / 20)
    if len(made.train) < needed:
        raise SourceError(
            f"{small} {len(made.train):,} training tokens, and {steps:,} steps of {batch_size} windows of {n_ctx} would"
            f" see each of them more than 20 times; expected at least {needed:,} tokens. {longer}"
        )
    if len(made.val) < 16 * n_ctx:
        raise SourceError(
            f"{small} {len(made.val):,} tokens are held out for validation; expected at least {16 * n_ctx:,}. {longer}"
        )
