"""Static word vectors: train them on a text by skip-gram, or ask what vectors know of words.

WHAT is a file of vectors (GloVe or word2vec: .txt, .vec or .bin, also .gz), a run folder, whose W_E is asked, or with
--out a text to train on. A run is asked about the words that are one token. Chance and coverage stand beside every
score.

Example:
  qkv vectors my.txt --out vectors.txt
  qkv train my.txt --tokenizer word --set d_model=100 --change 'W_E=load(vectors.txt)' --freeze W_E
  qkv vectors vectors.txt --analogies questions-words.txt --similarity EN-WS-353-ALL.txt
  qkv vectors runs/my-1 --similarity EN-WS-353-ALL.txt --json
  qkv vectors runs/my-1 --similarity EN-WS-353-ALL.txt --among vectors.txt
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.commands.arguments import add_json, option, whole
from qkv.commands.printing import screen
from qkv.errors import UserError
from qkv.jsontypes import JsonObject
from qkv.words import percent

if TYPE_CHECKING:
    from qkv.data.vectors import Vectors
    from qkv.inspection.word_tests import Section, Similarity

_TRAINING = ("width", "window", "negative", "least_count", "epochs", "seed")


def configure(parser: argparse.ArgumentParser) -> None:
    option(parser, "what WHAT", "a file of vectors, a run folder, or with --out a text")
    option(parser, "--analogies FILE", "lines 'a b c d' under ': section' lines")
    option(parser, "--similarity FILE", "lines of two words and a score, with tabs between")
    option(parser, "--among WHAT", "use only words that this file or run also has", action="append", default=[])
    option(parser, "--out FILE", "train skip-gram vectors on WHAT and write them here, as text (.bin: binary)")
    option(parser, "--width N", "numbers in a vector (100)", whole())
    option(parser, "--window N", "words to each side, at most (5)", whole())
    option(parser, "--negative N", "random words per true one, as negatives (5)", whole())
    option(parser, "--least-count N", "rarer words get no vector (5)", whole())
    option(parser, "--epochs N", "how often the text is read (5)", whole())
    option(parser, "--seed N", "the same seed gives the same vectors (1)", whole(0))
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    given = {name: getattr(args, name) for name in _TRAINING if getattr(args, name) is not None}
    if not (args.out or args.analogies or args.similarity):
        raise UserError("nothing was asked: give --analogies FILE, --similarity FILE, or --out FILE to train vectors")
    if given and not args.out:
        raise UserError(f"--{next(iter(given)).replace('_', '-')} is for training vectors; give --out FILE as well")
    if args.among and not (args.analogies or args.similarity):
        raise UserError("--among says which words are asked about; give --analogies FILE or --similarity FILE as well")
    from qkv.data.vectors import shared
    from qkv.inspection.word_tests import answered, questions, scored_pairs, similarity

    vectors = None if args.out else _vectors(Path(args.what))
    asked = questions(Path(args.analogies)) if args.analogies else None
    pairs = scored_pairs(Path(args.similarity)) if args.similarity else None
    others = [_vectors(Path(other)) for other in args.among]  # a mistake in a file is told before the training
    trained, part = _train(args.what, Path(args.out), given) if args.out else (None, "")
    found: JsonObject = {"vectors": args.out or args.what, "trained_words": trained}
    found |= {"trained_on": part} if part else {}
    if asked or pairs:
        vectors = vectors or _vectors(Path(args.out))
        vectors = shared(vectors, others) if others else vectors
        found |= {"words": len(vectors.words), "width": vectors.width}
        found["analogies"] = answered(vectors, asked) if asked else None
        found["similarity"] = similarity(vectors, pairs) if pairs else None
    if args.json:
        sections = [vars(section) for section in found.get("analogies") or ()]
        alike = vars(found["similarity"]) if found.get("similarity") else None
        return screen.print_json(found | {"analogies": sections or None, "similarity": alike})
    if trained is not None:
        print(f"{trained:,} words have a vector in {args.out}" + (f", trained on {part}" if part else ""))
    if vectors is not None:
        print(f"{len(vectors.words):,} words, {vectors.width} numbers each")
        _print_analogies(found["analogies"])
        _print_similarity(found["similarity"])


def _train(source: str, out: Path, given: dict[str, int]) -> tuple[int, str]:
    """How many words got a vector, and which part of a folder with a published split was read (else "")."""
    from qkv.api import cache_folder
    from qkv.data.config import DataConfig
    from qkv.data.skipgram import SkipGram, train_vectors
    from qkv.data.sources.source import open_source

    opened = open_source(DataConfig(source=source), cache_folder())
    part = opened.published.train_name if opened.published else ""
    return train_vectors(opened, out, SkipGram(**given)), part


def _vectors(path: Path) -> "Vectors":
    from qkv.data.vectors import Vectors, read_vectors

    if not path.is_dir():
        return read_vectors(path)
    from qkv import api

    loaded = api.load(path)
    if loaded.tokenizer is None:
        raise UserError(f"{path} reads no text, so its W_E has no words")
    special, named = set(loaded.tokenizer.special.values()), loaded.tokenizer.readable
    bare = {row: loaded.tokenizer.token(row).strip() for row in set(named.values()) - special}
    words = {word: row for row, word in bare.items() if named.get(word) == row}  # each once, by one of its names
    table = loaded.catalogue().view("W_E").float().numpy()
    return Vectors(words=tuple(words), values=table[list(words.values())])


def _print_analogies(sections: "list[Section] | None") -> None:
    if sections is None:
        return
    rows = []
    for s in sections:
        scores = ["" if value is None else percent(value) for value in (s.add, s.mul)]
        interval = "" if s.add_interval is None else "{:.1f} to {:.1f} %".format(*(100 * x for x in s.add_interval))
        rows.append((s.name, f"{s.n_asked:,} of {s.n_questions:,}", scores[0], interval, scores[1]))
    screen.print_table(["analogies", "asked", "3CosAdd", "95% interval", "3CosMul"], rows)
    print(f"Chance is {percent(sections[-1].chance)}. Only questions whose four words all have a vector are asked.")


def _print_similarity(found: "Similarity | None") -> None:
    if found is None:
        return
    what = f"Similarity: {found.n_scored:,} of {found.n_pairs:,} pairs have vectors"
    if found.spearman is None or found.interval is None:
        print(f"{what}, too few for a rank correlation")
        return
    low, high = found.interval
    print(f"{what}; rank correlation with people {found.spearman:.3f} (95% interval {low:.3f} to {high:.3f}; chance 0)")
