"""Is NEW better than BEST? Two configurations, trained on one seed after another until the test decides.

A pair is one seed: both arms draw from it their initial values by address, their batches by step, and their dropout.
What they have in common is therefore equal, and arms that do the same differ by exactly 0. Each try has seeds of its
own (try k: 1000 k + 1, 1000 k + 2, ...), so what was learned from earlier tries cannot favor a later one.
"""

import dataclasses
import hashlib
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qkv.config import flat, to_dict
from qkv.errors import ConfigError, Interrupted, NonFiniteError, SpikeError, missing_file, typed
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.recipe import RunConfig, assemble
from qkv.recipe.build import check_machine, check_reached
from qkv.recipe.manifest import code_of
from qkv.recipe.training import bits_per_byte
from qkv.recipe.unused_settings import unused_settings
from qkv.studies.engine.assembly import software
from qkv.studies.engine.design import canonical
from qkv.studies.gate import sequential
from qkv.studies.gate.tries import ARMS, Tries
from qkv.tasks import Data, find_task
from qkv.words import many, number, percent, plural

_SEEDS = 1000
"""Between the seeds of one try and those of the next."""
_WITHOUT_EFFECT = ("preset", "seed", "watch", "report", "control_share", "watching.", "ledger.", "data.source")
"""Settings, or beginnings of them, that change no loss; of the source it is the content that counts."""
_CUT = ("tokenizer", "vocab", "train_bytes")
"""What may differ in how the text is read where the metric is in bytes."""


@dataclass(frozen=True, kw_only=True)
class _Arm:
    """One of the two, and the data that it learns from."""

    path: Path
    config: RunConfig
    corpus: Data

    @property
    def key(self) -> str:
        """The sha256 of all that its losses depend on beside the seed."""
        idle = unused_settings(self.config)
        counts = {k: v for k, v in flat(self.config).items() if not k.startswith(_WITHOUT_EFFECT) and k not in idle}
        code = code_of(self.config)
        decides = [counts, self.corpus.sha256, software(), *([code] if code else [])]
        return hashlib.sha256(canonical(decides).encode()).hexdigest()

    @property
    def unit(self) -> str:
        """Of its loss: bits per byte where the task has them."""
        task = find_task(self.config.task)
        in_bits = task.bits_per_byte(self.corpus, 1.0) is not None
        return "bits per byte" if in_bits else f"nats per {task.target}"

    def record(self) -> JsonObject:
        """What it takes to train it again."""
        code = code_of(self.config)
        found: JsonObject = {"file": str(self.path), "key": self.key, "config": to_dict(self.config)}
        return found | ({"code": code} if code else {})


def trial(
    new: Path, against: Path, *, max_seeds: int, gain: float, ledger: Path | None, cache: Path | None,
    say: Callable[[str], None] = lambda sentence: None,
) -> JsonObject:  # fmt: skip
    """Train both on one seed after another until NEW is shown to be better, or not better by `gain`; the result.

    `ledger` is where tries are kept, by default beside BEST. An undecided pair goes on with more `max_seeds`.

    Raises UserError before anything is trained where the two cannot be compared, or so few seeds decide nothing.
    """
    arms = {name: _read(path, cache) for name, path in zip(ARMS, (new, against), strict=True)}
    _check_alike(arms["new"], arms["best"])
    if not sequential.fewest() <= max_seeds <= sequential.MOST_SEEDS:
        least, most = sequential.fewest(), sequential.MOST_SEEDS
        raise ConfigError(
            f"--max-seeds is {max_seeds}; expected {least} to {most}: fewer than {least} pairs can never decide"
        )
    key = canonical([arms["new"].key, arms["best"].key, gain])
    with Tries(ledger or _beside(against)) as tries:
        if arms["new"].key == arms["best"].key:
            return _result(None, tries, arms["new"].unit, gain)
        tried = tries.find(key)
        if tried and tries.decided.get(tried["try"], {}).get("decision") in ("keep", "discard"):
            say(f"The same pair was try {tried['try']}; nothing is trained again.")
            return _result(tried, tries, tried["unit"], gain)
        for arm in arms.values():
            check_machine(arm.config)
            check_reached(assemble(arm.config, arm.corpus))
        if tried is None:
            n = len(tries.tries) + 1
            both = {name: arm.record() for name, arm in arms.items()}
            about = {"unit": arms["new"].unit, "gain": gain, "data": arms["best"].corpus.sha256, **both}
            tries.append({"record": "try", "try": n, "alpha": sequential.alpha(n), "key": key, **about})
            tried = tries.tries[-1]
        if max_seeds < (least := sequential.fewest(tried["alpha"])):
            say(f"{max_seeds} seeds can only discard; in this try a keep takes at least --max-seeds {least}.")
        _decide(tried, arms, tries, max_seeds, say)
        return _result(tried, tries, tried["unit"], gain)


def _beside(against: Path) -> Path:
    """The ledger of a BEST: beside it; of a run's config.toml, beside the run."""
    is_run = against.name == "config.toml" and (against.parent / "manifest.json").is_file()
    place = against.absolute().parent if is_run else against
    return place.with_name(f"{place.name if is_run else place.stem}.trials.jsonl")


def _read(path: Path, cache: Path | None) -> _Arm:
    """A configuration and its data. Raises UserError that names the file."""
    if not path.is_file():
        raise missing_file(path, "file", "one like the config.toml of a run")
    config = RunConfig.read(path, altered=True)
    config = dataclasses.replace(config, model=config.model.resolved())
    training = config.training
    for wrong, what in (
        (config.imported or config.watched, "is a model of another program, which qkv did not train"),
        (training.until_loss, "stops at a loss (training.until_loss), so its loss says nothing; set that to 0"),
        (training.teaching.teachers, "learns from teachers, which trial does not train; set teaching.teachers to 0"),
        (config.machine.ranks > 1, "trains in several processes; set machine.ranks to 1"),
        (not (training.minutes or training.schedule.steps), "has no budget; set training.schedule.steps"),
    ):
        if wrong:
            raise ConfigError(f"{path} {what}")
    return _Arm(path=path, config=config, corpus=find_task(config.task).load(config.data, cache=cache))


def _check_alike(new: _Arm, best: _Arm) -> None:
    """Make sure that both are judged by the same figure on the same data after equal budgets. Raises ConfigError."""
    if new.config.task != best.config.task:
        raise ConfigError(
            f"{new.path} has the task {new.config.task}, {best.path} {best.config.task}; compare one task"
        )
    free = _CUT if {new.unit, best.unit} == {"bits per byte"} else ()
    a, b = ({k: v for k, v in flat(arm.config.data).items() if k not in free} for arm in (new, best))
    if other := next((k for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)), None):
        raise ConfigError(
            f"data.{other} is {a.get(other)!r} in {new.path} and {b.get(other)!r} in {best.path}; both must be"
            " scored on the same data"
            + ("" if free or other not in _CUT else f", and {new.unit} differ between tokenizers")
        )
    budgets = [_budget(arm.config) for arm in (new, best)]
    if budgets[0] != budgets[1]:
        raise ConfigError(
            f"unequal budgets: {new.path} trains {_spelled(new.config)}, {best.path} {_spelled(best.config)}; set"
            " training.schedule.steps, or training.minutes, so that both are equal"
        )


def _budget(config: RunConfig) -> tuple[float, int]:
    """Minutes, or else the tokens (windows of n_ctx) or examples that it trains on."""
    training, counts_tokens = config.training, find_task(config.task).target == "token"
    examples = training.schedule.steps * training.batch_size * (config.model.sizes.n_ctx if counts_tokens else 1)
    return (0.0, examples) if training.schedule.steps else (training.minutes, 0)


def _spelled(config: RunConfig) -> str:
    minutes, examples = _budget(config)
    if minutes:
        return f"for {minutes:g} {plural(minutes, 'minute')}"
    noun = "token" if find_task(config.task).target == "token" else "example"
    return f"{many(config.training.schedule.steps, 'step')} on {many(examples, noun)}"


def _decide(
    tried: JsonMapping, arms: dict[str, _Arm], tries: Tries, max_seeds: int, say: Callable[[str], None]
) -> None:
    """Train pairs, and write down the decision after the first that allows one, or after the last."""
    n, i, decision = tried["try"], 0, "undecided"
    for i in range(1, max_seeds + 1):
        seed = _SEEDS * n + i
        for name in ARMS if i % 2 else ARMS[::-1]:  # by turns: where the budget is time, neither is always the first
            if (seed, name) not in tries.trained[n]:
                made = _train(arms[name], seed, tries.path)
                tries.append({"record": "training", "try": n, "seed": seed, "arm": name, **made})
        made = tries.pairs(n)[:i]
        differences = [ours - theirs for _, ours, theirs in made]
        say(
            f"try {n}, seed {seed}: NEW {made[-1][1]:.4f}, BEST {made[-1][2]:.4f} {tried['unit']};"
            f" NEW is lower on {sum(d < 0 for d in differences)} of {many(i, 'seed')}"
        )
        decision = sequential.decide(differences, tried["gain"], tried["alpha"])
        if decision != "undecided":
            break
    tries.append({"record": "decision", "try": n, "seeds": i, "decision": decision})


def _train(arm: _Arm, seed: int, ledger: Path) -> JsonObject:
    """The lowest validation loss of one training; one that diverges counts as uniform guessing."""
    began = time.perf_counter()
    parts = assemble(dataclasses.replace(arm.config, seed=seed), arm.corpus)
    model, minutes = arm.config.model, arm.config.training.minutes
    try:
        deadline = 60 * minutes if minutes and not arm.config.training.schedule.steps else None
        outcome = parts.train(scores_start=parts.goes_on, deadline_seconds=deadline)
        loss = math.nan if outcome.stopped_because == "diverged" else outcome.best_loss
    except (NonFiniteError, SpikeError):
        loss = math.nan
    except Interrupted as error:
        how = f"trainings that ended are kept in {typed(ledger)}, and the same command continues"
        raise Interrupted(f"stopped; {how}", exit_status=error.exit_status) from None
    finally:
        parts.plan.at_end()
    diverged = not math.isfinite(loss)
    loss = math.log(len(model.classes) or model.sizes.d_vocab) if diverged else loss
    bits = bits_per_byte(parts, loss)
    seconds = round(time.perf_counter() - began, 3)
    return {"loss": loss if bits is None else bits, "diverged": diverged, "seconds": seconds}


def _result(tried: JsonMapping | None, tries: Tries, unit: str, gain: float) -> JsonObject:
    """What `--json` prints; without a try NEW does what BEST does."""
    n, at = len(tries.tries), tried["try"] if tried else None
    made = tries.decided[at] if at else {"decision": "discard", "seeds": 0}
    pairs = tries.pairs(at)[: made["seeds"]] if at else []
    differences = [ours - theirs for _, ours, theirs in pairs]
    low, high = sequential.interval(differences) if at else (0.0, 0.0)
    rows = tries.trained[at].values() if at else ()
    found = {
        "decision": made["decision"],
        "effect": statistics.median(differences) if at else 0.0,
        "low": low if math.isfinite(low) else None,
        "high": high if math.isfinite(high) else None,
        "unit": unit,
        "seeds": made["seeds"],
        "seconds": round(sum(row["seconds"] for row in rows), 3),
        "history": [{"seed": seed, "new": ours, "best": theirs} for seed, ours, theirs in pairs],
        "gain": gain,
        "duplicate": at is None,
        "diverged": {arm: sum(row["diverged"] for row in rows if row["arm"] == arm) for arm in ARMS},
        "try": at,
        "alpha": sequential.alpha(at) if at else 0.0,
        "alpha_spent": sequential.spent(n),
        "error_rate": sequential.ERROR,
        "seeds_to_keep": sequential.fewest(sequential.alpha(at or n + 1)),
        "ledger": str(tries.path),
    }
    return {**found, "sentence": _sentence(found), "about": _about(found)}


def _sentence(found: JsonMapping) -> str:
    """The decision, and what it rests on."""
    unit, effect, gain = found["unit"], found["effect"], found["gain"]
    if found["duplicate"]:
        return "Discard: NEW does what BEST does; no setting that counts differs, so nothing was trained."
    figures = many(found["seeds"], "seed")
    if found["low"] is not None:
        figures = f"95% interval {number(found['low'], 3)} to {number(found['high'], 3)}, {figures}"
    change = f"{number(effect, 3)} {unit} ({figures})"
    if found["decision"] == "keep":
        return f"Keep: NEW is better; its median loss minus that of BEST is {change}."
    if found["decision"] == "discard":
        why = "is worse" if (found["low"] or 0) > 0 else f"is not better by {gain:g} {unit} or more"
        return f"Discard: NEW {why}; its median loss minus that of BEST is {change}."
    return (
        f"Undecided: the median loss of NEW minus that of BEST is {change}. A larger --max-seeds"
        f" continues; a keep takes at least {found['seeds_to_keep']} seeds in this try."
    )


def _about(found: JsonMapping) -> str:
    """What the error rate is of, and how much of it is spent."""
    this = f"this was try {found['try']}" if found["try"] else "a duplicate spends none of it"
    return (
        f"Over all tries in {found['ledger']}, the chance that anything is kept which is no better is at most"
        f" {percent(found['error_rate'])}; {this}, {percent(found['alpha_spent'])} is spent. Pairs share seed, initial"
        " values and batches; they do not vary the text."
    )
