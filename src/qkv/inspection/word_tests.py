"""What static vectors know of words: analogies (3CosAdd and 3CosMul, by section) and similarity (Spearman).

Analogies "a is to b as c is to ?" are asked of unit vectors among all words but a, b and c: 3CosAdd takes the word d
with the largest cos(d, b - a + c) (Mikolov et al. 2013, arXiv 1301.3781), 3CosMul the largest cos(d, b) cos(d, c) /
(cos(d, a) + 0.001) with cosines brought to 0..1 (Levy and Goldberg 2014). Only questions whose four words are there are
asked: how many that is is told, and a score over few questions is no score over all. Similarity is the rank correlation
of cosines with people's scores. No vectors are changed, centred or cut
here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qkv.data.vectors import Vectors
from qkv.errors import SourceError
from qkv.inspection.token_rows import ranks
from qkv.tasks.evaluation import wilson

_EPSILON = 0.001
_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section of analogies, or all of them together."""

    name: str
    n_questions: int
    """In the file."""
    n_asked: int
    """Whose four words have vectors: the coverage."""
    add: float | None
    """Share answered rightly by 3CosAdd, 0..1; None where none was asked."""
    mul: float | None
    """Share answered rightly by 3CosMul."""
    add_interval: tuple[float, float] | None
    """95 % Wilson interval of `add` over questions; they share words, so it is too narrow."""
    chance: float
    """Of answering by a guess among all words that may be an answer."""


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """Agreement with people on how alike two words are."""

    n_pairs: int
    n_scored: int
    """Pairs both of whose words have vectors: the coverage."""
    spearman: float | None
    """Rank correlation of cosines and scores, -1..1; None with fewer than 4 pairs. By chance it is 0."""
    interval: tuple[float, float] | None
    """95 % interval, by Fisher's z with the standard error 1.03 / sqrt(n - 3) (Fieller et al. 1957)."""


def answered(vectors: Vectors, sections: Mapping[str, Sequence[Sequence[str]]]) -> list[Section]:
    """Every section of questions (a, b, c, d), and "all" at the end.

    Raises SourceError for vectors of fewer than 5 words.
    """
    unit = _unit(vectors)
    if len(unit) < 5:
        raise SourceError(f"there are vectors of {len(unit)} words only; analogies need at least 5")
    out = []
    for name, questions in sections.items():
        found = [[vectors.row(word) for word in question] for question in questions]
        asked = np.array([row for row in found if None not in row and len(set(row)) == 4], dtype=np.int64).reshape(
            -1, 4
        )
        right = [_answered(unit, asked[i : i + _AT_ONCE]) for i in range(0, len(asked), _AT_ONCE)]
        add, mul = (sum(int(part[k].sum()) for part in right) for k in (0, 1))
        out.append(_section(name, len(questions), len(asked), add, mul, len(unit)))
    n_questions, n_asked = sum(s.n_questions for s in out), sum(s.n_asked for s in out)
    add, mul = (sum(round((getattr(s, score) or 0.0) * s.n_asked) for s in out) for score in ("add", "mul"))
    return [*out, _section("all", n_questions, n_asked, add, mul, len(unit))]


def similarity(vectors: Vectors, pairs: Sequence[tuple[str, str, float]]) -> Similarity:
    """The rank correlation with people's scores of pairs of words."""
    unit = _unit(vectors)
    found = [(vectors.row(a), vectors.row(b), score) for a, b, score in pairs]
    known = [(a, b, score) for a, b, score in found if a is not None and b is not None]
    n = len(known)
    if n < 4:
        return Similarity(n_pairs=len(pairs), n_scored=n, spearman=None, interval=None)
    cosines = np.array([float(unit[a] @ unit[b]) for a, b, _ in known])
    first, second = ranks(cosines), ranks(np.array([score for _, _, score in known]))
    if not first.std() or not second.std():
        return Similarity(n_pairs=len(pairs), n_scored=n, spearman=None, interval=None)
    rho = float(np.corrcoef(first, second)[0, 1])
    z, reach = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, rho))), 1.96 * 1.03 / math.sqrt(n - 3)
    return Similarity(
        n_pairs=len(pairs), n_scored=n, spearman=rho, interval=(math.tanh(z - reach), math.tanh(z + reach))
    )


def _unit(vectors: Vectors) -> np.ndarray:
    values = vectors.values.astype(np.float64)
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-30)


def _answered(unit: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether 3CosAdd and 3CosMul give the fourth word: two bool [n], of questions [n, 4] of rows."""
    a, b, c = (unit[asked[:, k]] @ unit.T for k in range(3))  # cosines with every word, [n, words]
    places = np.arange(len(asked))[:, None]
    scores = b - a + c, ((b + 1) / 2) * ((c + 1) / 2) / ((a + 1) / 2 + _EPSILON)
    right = []
    for score in scores:
        score[places, asked[:, :3]] = -np.inf
        right.append(score.argmax(axis=1) == asked[:, 3])
    return right[0], right[1]


def _section(name: str, n_questions: int, n_asked: int, add: int, mul: int, n_words: int) -> Section:
    return Section(
        name=name,
        n_questions=n_questions,
        n_asked=n_asked,
        add=add / n_asked if n_asked else None,
        mul=mul / n_asked if n_asked else None,
        add_interval=wilson(add / n_asked, n_asked) if n_asked else None,
        chance=1 / (n_words - 3),
    )


def questions(path: Path) -> dict[str, list[list[str]]]:
    """The questions of a file of analogies (": name" lines, then "a b c d" lines), by section.

    Raises SourceError for a file that is no such thing.
    """
    sections: dict[str, list[list[str]]] = {}
    for number, line in enumerate(_lines(path), start=1):
        words = line.split()
        if line.startswith(":"):
            sections.setdefault(line[1:].strip(), [])
        elif words:
            if len(words) != 4:
                raise SourceError(f"{str(path)!r}, line {number}: expected four words 'a b c d', or ': section'")
            sections.setdefault(next(reversed(sections), "questions"), []).append(words)
    if not any(sections.values()):
        raise SourceError(f"{str(path)!r} holds no analogies; expected lines of four words 'a b c d'")
    return sections


def scored_pairs(path: Path) -> list[tuple[str, str, float]]:
    """The pairs of a file of "word<TAB>word<TAB>score" lines. Raises SourceError for a file that is no such thing."""
    found = []
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.strip().split("\t") if "\t" in line else line.split()
        try:
            first, second, score = parts[0], parts[1], float(parts[2])
        except (IndexError, ValueError):
            if number == 1:  # names of the columns
                continue
            raise SourceError(
                f"{str(path)!r}, line {number}: expected two words and a score, with tabs between"
            ) from None
        found.append((first, second, score))
    if not found:
        raise SourceError(f"{str(path)!r} holds no pairs; expected lines of two words and a score")
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise SourceError(f"{str(path)!r} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{str(path)!r} cannot be read as text: {error}") from None
