"""Bits per byte after so many minutes with default settings, beside nanoGPT's CPU configuration and the best n-gram.

Each budget is a run of its own on both sides: a rate that falls over the budget makes earlier points of a longer run
worse than a run of that length. Ours is `qkv train --minutes M`, all of it inside the budget (start, data, validation,
checkpoints, report); nanoGPT gets as many iterations as fit, its data already prepared. With --tune its learning rate
is also searched over `RATES`, each a run of the whole budget, and the best on the validation text is taken.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qkv.benchmarks.nanogpt import NanoGPT
from qkv.benchmarks.processes import fresh, qkv
from qkv.benchmarks.session import Session
from qkv.errors import ConfigError
from qkv.jsontypes import JsonObject

if TYPE_CHECKING:
    from qkv.data.split import Part

BUDGETS = (1 / 6, 1.0, 5.0)
"""Minutes."""
RATES = (2e-3, 4e-3, 8e-3)
"""nanoGPT's configuration has 1e-3."""
RESERVE = 0.03
"""Share of nanoGPT's budget kept back, so that it ends inside."""


def measure(session: Session) -> None:
    """Every text and budget, ours and nanoGPT's in turn."""
    asked = session.asked
    budgets = asked.minutes or ((1 / 12,) if asked.quick else BUDGETS)
    for name, source in _sources(session).items():
        words = [source] if source else []
        words += ["--tokenizer", asked.tokenizer] if asked.tokenizer else []
        peer = _peer(session, source)
        for minutes in budgets:
            _budget(session, name, words, minutes, peer)


def _sources(session: Session) -> dict[str, str]:
    """Name -> source; empty is the default text."""
    if session.asked.source:
        return {session.asked.source.rpartition("/")[2]: session.asked.source}
    path = session.path("enwikinews")
    return {"the default text": ""} | ({} if path is None or session.asked.quick else {"enwikinews": str(path)})


def _peer(session: Session, source: str) -> NanoGPT | None:
    """nanoGPT with the same split of the text, documents set apart by one character."""
    checkout = session.nanogpt()
    if checkout is None:
        return None
    from qkv.api import cache_folder
    from qkv.data.config import DataConfig, whole_source
    from qkv.data.sources.source import open_source
    from qkv.data.split import split_source

    split = split_source(open_source(DataConfig(source=whole_source(source)), cache_folder()), None)
    train, val = (_text(part, split.many_documents) for part in (split.train, split.val))
    return NanoGPT(checkout, train, val, split.val.n_bytes)


def _text(part: "Part", many: bool) -> str:
    """All of a part; each of many documents ends with NUL, as each of ours ends with an end mark."""
    return "".join(chunk.text + ("\0" if many and chunk.ends else "") for chunk in part.read())


def _budget(session: Session, name: str, words: Sequence[str], minutes: float, peer: NanoGPT | None) -> None:
    """One budget: ours for every seed, nanoGPT once a rate."""
    ours: list[JsonObject] = []
    theirs: dict[float | None, list[float]] = {}
    rates: tuple[float | None, ...] = (None, *RATES) if session.asked.tune else (None,)
    for seed in session.seeds:
        typed = [*words, "--minutes", f"{minutes:.6g}", "--seed", str(seed), "--out", str(fresh() / "run")]
        taken, found = qkv("train", *typed)
        if found["bits_per_byte"] is None:
            raise ConfigError(
                f"the tokenizer {session.asked.tokenizer} changes letters, so its losses are no bits per byte; choose"
                " another --tokenizer"
            )
        ours.append(found)
        session.say(
            f"{name}, {60 * minutes:.0f} s, seed {seed}: {found['bits_per_byte']:.4f} bits a byte, {taken:.1f} s"
        )
        if peer is None or seed > 1:
            continue
        start, each = peer.pace()
        iterations = max(20, int((60 * minutes * (1 - RESERVE) - start) / each))
        for rate in rates:
            trained = peer.train(iterations, rate)
            theirs[rate] = [trained.bits_per_byte]
            session.say(
                f"nanoGPT, rate {rate or 1e-3:g}: {trained.bits_per_byte:.4f} bits a byte after {trained.iterations}"
                f" iterations, {trained.seconds:.1f} s"
            )
    case = f"{name}, {60 * minutes:.0f} s"
    values = {"qkv": [found["bits_per_byte"] for found in ours]}
    notes = {"qkv": f"{ours[0]['parameters']:,} parameters, {ours[0]['steps']:,} steps"}
    if theirs:
        values["nanoGPT, CPU configuration"] = theirs[None]
        best = min(theirs, key=lambda rate: theirs[rate][0])
        if len(theirs) > 1:
            values["nanoGPT, rate tuned"] = theirs[best]
            notes["nanoGPT, rate tuned"] = f"rate {best or 1e-3:g}, the best of {len(theirs)}"
    baselines = ours[0].get("baselines") or {}
    if baselines.get("ngram") is not None:
        values["n-gram"] = [baselines["ngram"]]
        notes["n-gram"] = f"Kneser-Ney, order {baselines.get('ngram_order')}"
    session.record(case, values, "bits per byte", notes=notes)
