"""A study of your own: a question, its arms and its effects in one TOML file.

An arm trains what `qkv train SOURCE --steps N` trains with the settings of `[base]` and its own: the laws of size, the
preset's optimizer and its schedule. Its learning rate is tuned in every replicate around the one that this training
would have, unless the file sets one. The file is checked as a whole, against its text, before anything is written.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from qkv.changes import parse_changes
from qkv.config import flat, leaves, load_toml, whole_path
from qkv.data.config import whole_source
from qkv.data.corpus import Corpus
from qkv.errors import ConfigError, UserError, missing_file, several, unknown
from qkv.extensions import hashes, look_in
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.laws import PASSES
from qkv.recipe import RunConfig, assemble
from qkv.recipe.build import check_reached
from qkv.recipe.manifest import code_of
from qkv.recipe.request import OPTIONS, Request, as_written, resolve
from qkv.studies import table as form
from qkv.studies.designed import Design as Designed
from qkv.studies.engine.assembly import config_of, software
from qkv.studies.engine.design import Arm, Contrast, Design, Scale, Text, Trial
from qkv.studies.engine.estimate import Estimate, estimate
from qkv.studies.engine.store import designs_in, folder_of, folders_beside
from qkv.studies.engine.training import run_trial
from qkv.studies.probes.registry import is_metric, metric
from qkv.studies.question import Ask, Plain, Question, make_design
from qkv.studies.verdict.judging import ON_THE_WAY
from qkv.studies.verdict.sentences import expected_words
from qkv.tasks import find_task
from qkv.tokenizers.tokenizer import KINDS
from qkv.words import many

_NATS, _NO_UNIT = "nats per token", "units"
QUANTITIES: Mapping[str, tuple[str, str]] = {
    "loss": ("", _NATS),
    **{quantity: ("", _NATS) for quantity in ON_THE_WAY},
    **{f"loss {band}": ("frequency", _NATS) for band in ("common", "middling", "rare")},
    "beyond frequencies": ("learned", _NATS),
    "bits per byte": ("bits", "bits per byte"),
    "drift": ("drift", "times the initial norm"),
    "reset": ("reset", _NATS),
    "earned": ("ledger", _NATS),
    "row drift": ("rows", "times the initial norm"),
    "half way": ("order of movement", "steps"),
    "around": ("gradient path", "of the gradient"),
    "angle": ("roles", "degrees"),
    "symmetric share": ("roles", "of the square"),
    "exchanged": ("roles", _NATS),
    "entropy share": ("patterns", "of the largest entropy"),
    "one head": ("ablation", _NATS),
}
"""What an effect can be of -> the probe that gives it (empty: every training has it) and its unit. Of a quantity of one
matrix (drift, reset, earned, half way: `drift W_Q`) or of two (`angle QK`) it is the first word."""
_OF_ONE = ("drift", "reset", "earned", "half way", "angle")

_TASKS = ("causal", "masked")
_KEYS = {
    "question": "text", "source": "text", "budget": "a table", "steps": "a whole number", "seeds": "a whole number",
    "task": "text", "tokenizer": "text", "vocab": "a whole number", "base": "a table", "arms": "a table",
    "effects": "a list", "values": "a table", "sets": "a table", "usual": "a table",
}  # fmt: skip
_OWN_ARM_KEYS = {key: kind for key, kind in form.ARM_KEYS.items() if key not in ("before", "when")}
_OWN_EFFECT_KEYS = {key: kind for key, kind in form.EFFECT_KEYS.items() if key not in ("use", "when")}
_TRAINERS = ("loop", "none", "other seed", "two halves", "mapped rows", "timed")
_SETTABLE = ("model.", "training.optimizer.", "training.schedule.", "training.batch_size", "training.accumulate")
"""Beginnings of the settings that arms may have."""
_RATES = ("training.optimizer.lr", "training.optimizer.muon_lr")

_VAL_TOKENS = 16_384
_FEWEST_STEPS, _SHORT_STEPS = 50, 200
_USUAL_REPLICATES, _MOST_REPLICATES = 8, 12
_USED = 0.9
"""Share of a budget that is planned for."""
_TRIED_STEPS, _LONGER = 8, 1000


@dataclass(frozen=True, kw_only=True)
class _Arm:
    name: str
    what: str
    settings: JsonMapping
    """Those of `[base]` and its own, by whole path, and `preset`."""
    changes: tuple[str, ...]
    fields: JsonMapping = field(default_factory=dict)
    """How it is trained, if not as usual, and what is measured beside what its effects need."""

    @property
    def measures_more(self) -> bool:
        """Whether it may measure what no effect names a probe of."""
        return bool(self.fields.get("probes")) or self.fields.get("trainer", "loop") not in ("loop", "none")


@dataclass(frozen=True, kw_only=True)
class Own:
    """A study as its file has it; nothing in it is left to check that can be seen without the text."""

    path: Path
    asks: str
    source: str
    minutes: float
    """0 where the file gives no budget."""
    steps: int
    """Of every training; 0 where the budget decides."""
    seeds: int | None
    task: str
    text: Text
    base: _Arm
    """What arms have in common."""
    arms: tuple[_Arm, ...]
    effects: tuple[Contrast, ...]

    @property
    def name(self) -> str:
        """Of its folder: the file's, in letters that any file system takes."""
        return re.sub(r"[^\w.-]+", "-", self.path.stem)[:60]

    @property
    def question(self) -> Question:
        """The same as a built-in question, of the steps that the file gives, or of the fewest."""
        first, *others = self.effects
        expected = expected_words(first.expected.to_json()) if first.expected else ""
        return Question(
            name=self.name,
            asks=self.asks,
            answer="; ".join(effect.name for effect in self.effects),
            falsified_by=f"{_capital(first.name)} is not {expected}." if expected else "",
            literature="",
            design=lambda ask: self.design(ask, self.steps or _FEWEST_STEPS),
            plain=_plain(first),
            also={effect.name: _plain(effect) for effect in others},
        )

    def design(self, ask: Ask, steps: int) -> Design:
        """The design at so many steps. Raises UserError for what does not fit the text, the model or one another."""
        corpus = ask.corpus(self.text)
        usual = self._resolved(self.base, corpus, steps)
        s = usual.model.sizes
        scale = Scale(
            d_model=s.d_model, n_layers=s.n_layers, n_heads=s.n_heads, n_ctx=s.n_ctx, d_head=s.d_head, d_mlp=s.d_mlp,
            batch_size=usual.training.batch_size, steps=steps, val_tokens=_VAL_TOKENS,
            evaluations=4 if any(q in ON_THE_WAY for effect in self.effects for _, _, q in effect.terms) else 2,
        )  # fmt: skip
        arms = [self._arm(arm, corpus, scale) for arm in self.arms]
        with _located(self.path):
            return make_design(
                ask,
                study=self.name,
                texts={"text": self.text},
                scale=scale,
                arms=arms,
                contrasts=self.effects,
                replicates=self.seeds or _USUAL_REPLICATES,
            )

    def at_size(self, d_model: int, n_layers: int, n_heads: int) -> "Own":
        """The same at another size. Raises ConfigError where the file sets the size."""
        sizes = {f"model.sizes.{name}": n for name, n in (("d_model", d_model), ("n_layers", n_layers))}
        for arm in self.arms:
            if set_here := sorted(sizes.keys() & arm.settings.keys()):
                raise ConfigError(f"{self.path}: a ladder sets {set_here[0]} itself; leave it out, or --ladder")
        heads = {"model.sizes.n_heads": n_heads}
        base, *arms = (
            dataclasses.replace(arm, settings={**heads, **arm.settings, **sizes}) for arm in (self.base, *self.arms)
        )
        return dataclasses.replace(self, base=base, arms=tuple(arms))

    def _resolved(self, arm: _Arm, corpus: Corpus, steps: int) -> RunConfig:
        """What `qkv train` would train."""
        settings = dict(arm.settings)
        preset = settings.pop("preset", None)
        with _located(self.path, f"arms.{arm.name}" if arm in self.arms else "base"):
            request = Request(
                source=self.source, task=self.task, preset=preset, steps=steps, set=settings, changes=arm.changes,
                watch="off", device="cpu", precision="fp32", threads=1,
            )  # fmt: skip
            return resolve(request, None, corpus)[0]

    def _arm(self, arm: _Arm, corpus: Corpus, scale: Scale) -> Arm:
        """An arm whose settings are all that its training has otherwise than a study's usual one."""
        config = self._resolved(arm, corpus, scale.steps)
        sizes = {**vars(config.model.sizes), "batch_size": config.training.batch_size}
        terms = [(name, quantity) for effect in self.effects for _, name, quantity in effect.terms]
        probes = {_probe_and_unit(quantity)[0] for name, quantity in terms if name == arm.name}
        probes |= set(arm.fields.get("probes", ()))
        tune = "none" if any(rate in arm.settings for rate in _RATES) else "own"
        if arm.fields.get("tune", "none") not in ("own", "none") and tune == "none":
            told = f"sets a learning rate and takes that of {arm.fields['tune']!r}; keep one of set and tune"
            raise ConfigError(f"{self.path}: arms.{arm.name} {told}")
        made = Arm(
            name=arm.name,
            what=arm.what,
            task=self.task,
            changes=config.changes,
            sizes=tuple((name, sizes[name]) for name, usual in vars(scale).items() if sizes.get(name, usual) != usual),
            optimizer=config.training.optimizer.kind,
            lr=config.training.optimizer.lr,
            **{"tune": tune, **arm.fields, "probes": tuple(sorted(probes - {""}))},
            settings=(("preset", config.preset),),
            code=tuple(sorted((code_of(config) | hashes({p: metric(p) for p in probes if is_metric(p)})).items())),
        )
        trial = Trial(
            arm=made, text=self.text, scale=dataclasses.replace(scale, **dict(made.sizes)), source=self.source,
            source_sha256=corpus.sha256, lr=made.lr, seed=1, software=software(),
        )  # fmt: skip
        usual, own = flat(config_of(trial, corpus)), flat(config)
        differs = {k: v for k, v in own.items() if k.startswith(_SETTABLE) and usual.get(k) != v}
        differs["training.optimizer.lr"] = made.lr
        with _located(self.path, f"arms.{arm.name}"):
            check_reached(assemble(config, corpus))
        return dataclasses.replace(made, settings=(*made.settings, *differs.items()))

    def fitted(
        self, ask: Ask, within: Path, workers: int, minutes: float, spent: Callable[[], float]
    ) -> tuple[Design, Estimate | None]:
        """The design that a budget affords, of which some minutes are spent, and what it takes.

        One that was begun keeps its steps and replicates, and has no estimate. Otherwise replicates come first, then
        steps, at most 4 passes over the text. Raises ConfigError where not even 2 replicates fit.
        """
        fewest = self.steps or _FEWEST_STEPS
        design = self.design(ask, fewest)
        if begun := self._begun(ask, design, within):
            return begun, None
        self._check_quantities(design, ask.cache)
        timed = estimate(design, self.source, ask.cache, workers)
        left = minutes - spent()
        asked = ask.seeds or self.seeds
        longer = timed.of_steps(fewest + _LONGER)

        def affords(n: int) -> int:
            """Most steps for so many replicates; below 0 where there is no time for any."""
            now = timed.minutes(n)
            more, spare = longer.minutes(n) - now, _USED * left - now
            return fewest + math.floor(spare / more * _LONGER if more else min(spare, 0))  # nothing is trained: 0

        wishes = [(n, fewest) for n in range(_MOST_REPLICATES, 1, -1)]
        if not self.steps:
            wishes = [(_USUAL_REPLICATES, _SHORT_STEPS), *((n, fewest) for n in range(6, 1, -1))]
        if asked:
            wishes = [(asked, fewest)]
        fitting = next(((n, affords(n)) for n, least in wishes if affords(n) >= least), None)
        if fitting is None:
            n = asked or 2
            raise ConfigError(
                f"{self.path}: {minutes:g} minutes are too few: {n} replicates of {fewest} steps take about"
                f" {timed.minutes(n):.1f} on {many(workers, 'core')}; type --minutes"
                f" {math.ceil(minutes - left + timed.minutes(n) / _USED)}, or set fewer steps or a smaller model"
            )
        replicates, steps = fitting[0], self.steps or self._readable(design, ask, fitting[1])
        fitted = dataclasses.replace(self.design(ask, steps), replicates=replicates)
        return fitted, timed.of_steps(steps)

    def _readable(self, design: Design, ask: Ask, steps: int) -> int:
        """At most so many steps and passes over the text, of two digits."""
        scale = design.scale
        n_train = len(ask.corpus(self.text).train)
        most = max(_FEWEST_STEPS, PASSES * n_train // (scale.batch_size * scale.n_ctx))
        steps = min(steps, most)
        unit = 10 ** max(0, len(str(steps)) - 2)
        return steps // unit * unit

    def _begun(self, ask: Ask, design: Design, within: Path) -> Design | None:
        """The design of a folder of this file and text, with the replicates asked for, else the most it had."""
        found = []
        for place in sorted((folder_of(design, within), *folders_beside(design, within))):
            for made in designs_in(place):
                steps = made["scale"]["steps"]
                if made["source_sha256"] == design.source_sha256 and self.steps in (0, steps):
                    n = ask.seeds or self.seeds or made["replicates"]
                    as_begun = dataclasses.replace(self.design(ask, steps), replicates=n)
                    found += [as_begun] if folder_of(as_begun, within) == place else []
        return max(found, key=lambda each: each.replicates, default=None)

    def _check_quantities(self, design: Design, cache: Path | None) -> None:
        """Make sure that trainings measure what effects are of, by a few steps of each arm that is asked for more."""
        more = {arm.name for arm in self.arms if arm.measures_more}
        for arm in (arm for arm in design.arms if arm.probes or arm.name in more):
            changes = tuple(change.partition("@")[0] for change in arm.changes)
            trial = design.trial(dataclasses.replace(arm, changes=changes), 1, 0, source=self.source, report=True)
            val_tokens = min(trial.scale.val_tokens, 64 * trial.scale.n_ctx)
            scale = dataclasses.replace(trial.scale, steps=_TRIED_STEPS, val_tokens=val_tokens, evaluations=1)
            with _located(self.path, f"arms.{arm.name}"):
                measures = run_trial(dataclasses.replace(trial, scale=scale), cache)["measures"]
            for effect in self.effects:
                for _, name, quantity in effect.terms:
                    in_every = quantity in QUANTITIES and not QUANTITIES[quantity][0]
                    if name == arm.name and not in_every and quantity not in measures:
                        kind = _kind_of(quantity)
                        known = [each for each in measures if each.startswith(kind)] or list(measures)
                        raise ConfigError(f"{self.path}: effects {effect.name!r}: {unknown('of', quantity, known)}")


@contextmanager
def _located(path: Path, where: str = "") -> Iterator[None]:
    """Puts the file, and where in it, before the words of a mistake."""
    try:
        yield
    except UserError as error:
        if str(error).startswith(str(path)):
            raise
        raise type(error)(f"{path}: {where and f'{where}: '}{error}") from None


def of_design(design: Designed) -> Own:
    """The study that a `Design` describes. Raises as `read`."""
    path = Path(design.title)
    with _located(path):
        return _read(path, design.table())


def read(path: Path) -> Own:
    """The study that a file describes, whose own modules may lie beside it.

    Raises ConfigError or SourceError that names the file and the key: one that is missing, unknown or of another type,
    a setting that there is not, an arm that is not there, an arm that nothing reads.
    """
    if not path.is_file():
        raise missing_file(path, "file", "one with a question, a source, arms and effects")
    look_in(path.parent)
    with _located(path):
        return _read(path, load_toml(path))


def _read(path: Path, given: JsonObject) -> Own:
    """The study that a table describes; `path` names it, and is where its source may lie."""
    table = form.checked(given, "", _KEYS, ("question", "source", "arms", "effects"))
    budget = form.checked(table.get("budget", {}), "budget", {"minutes": "a number"}, ())
    for name, value in {"steps": table.get("steps", 1), "seeds": table.get("seeds", 2), **budget}.items():
        least = 2 if name == "seeds" else 0
        if not (value >= least and 0 < value < math.inf):
            raise ConfigError(f"{name} is {value}; expected {f'at least {least}' if least else 'a number above 0'}")
    task = table.get("task", "causal")
    for what, value, known in (("task", task, _TASKS), ("tokenizer", table.get("tokenizer", "char"), KINDS)):
        if value not in known:
            raise ConfigError(unknown(what, value, known))
    values, of_base = table.get("values", {}), dict(table.get("base", {}))
    changes = _changes(of_base.pop("changes", []), "base.changes")
    base = _Arm(name="base", what="", settings=_settings(of_base, "base"), changes=changes)
    items = [{"name": name, **_item(value, f"arms.{name}", _OWN_ARM_KEYS)} for name, value in table["arms"].items()]
    of_sets = {name: _item(value, f"sets.{name}", _OWN_ARM_KEYS) for name, value in table.get("sets", {}).items()}
    arms = tuple(_read_arm(item, names, base, of_sets) for item, names in form.repeated(items, _OWN_ARM_KEYS, values))
    called = [arm.name for arm in arms]
    if twice := [name for name in called if called.count(name) > 1]:
        raise ConfigError(f"two arms are called {twice[0]!r}; where each repeats one, put braces into its name")
    effects = tuple(_read_effects(table, arms, values))
    _check(arms, effects, table)
    return Own(
        path=path,
        asks=table["question"],
        source=_source(path, table["source"]),
        minutes=float(budget.get("minutes", 0.0)),
        steps=table.get("steps", 0),
        seeds=table.get("seeds"),
        task=task,
        text=Text(
            tokenizer=table.get("tokenizer", find_task(task).tokenizer),
            vocab=table.get("vocab", 0),
            settings=(("specials", task == "masked"),),
        ),
        base=base,
        arms=arms,
        effects=effects,
    )


def _source(path: Path, source: str) -> str:
    """Its whole path: a file or folder beside the study's file, else in the folder where the command is typed."""
    beside = path.parent / source
    return whole_source(str(beside) if source and beside.exists() else source)


def _item(value: object, where: str, keys: Mapping[str, str]) -> JsonObject:
    """A table; what its keys hold is checked once it is repeated. Raises ConfigError for what is none."""
    return value if isinstance(value, dict) else form.checked(value, where, keys)


def _read_arm(item: JsonObject, names: JsonMapping, base: _Arm, sets: Mapping[str, JsonObject]) -> _Arm:
    made = form.filled_item(form.with_sets(item, sets, names), names, f"arms.{item['name']}")
    name = str(made.pop("name"))
    where = f"arms.{name}"
    table = form.checked(made, where, _OWN_ARM_KEYS)
    own, changes = _settings(table.get("set", {}), f"{where}.set"), _changes(table.get("changes", []), where)
    does = [f"{_called(path)} {str(v).lower() if isinstance(v, bool) else v}" for path, v in own.items()]
    what = table.get("what") or "; ".join([*does, *changes]) or "as the base"
    if table.get("trainer", "loop") not in _TRAINERS:
        raise ConfigError(f"{where}: {unknown('trainer', table['trainer'], _TRAINERS)}")
    settings, fields = {**base.settings, **own}, form.arm_fields(table, where)
    return _Arm(name=name, what=what, settings=settings, changes=(*base.changes, *changes), fields=fields)


def _called(path: str) -> str:
    """The last part of a setting's name; of what is of a kind, the one before."""
    *above, last = path.split(".")
    return above[-1] if last in ("kind", "code") else last


def _changes(given: list[str], where: str) -> tuple[str, ...]:
    changes = tuple(several(f"{where}.changes", given))
    for change in changes:
        parse_changes(change)
    return changes


def _settings(given: JsonMapping, where: str) -> JsonObject:
    """Settings by whole path, of tables inside tables too. Raises ConfigError for one that arms cannot have."""
    found: JsonObject = {}
    for name, value in (as_written(*leaf) for leaf in leaves(given)):
        try:
            path = name if name == "preset" else whole_path(RunConfig, name)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if path in ("task", "data.tokenizer", "data.vocab", "data.source", "training.schedule.steps"):
            raise ConfigError(f"{where}: {path.rpartition('.')[2]} is the same for all arms; give it outside any table")
        if path != "preset" and (path in OPTIONS or not path.startswith(_SETTABLE)):
            raise ConfigError(
                f"{where}: {path} is no setting of an arm; expected preset, or settings of model, training.optimizer or"
                " training.schedule, training.batch_size or training.accumulate"
            )
        if path == "preset" and not isinstance(value, str):
            raise ConfigError(f"{where}: preset is {value!r}; expected text")
        if path in found:
            raise ConfigError(f"{where}: {path} is given twice; leave one out")
        found[path] = value
    return found


def _read_effects(table: JsonMapping, arms: Sequence[_Arm], values: JsonMapping) -> Iterator[Contrast]:
    usual, words = table.get("usual", {}), {arm.name: arm.what for arm in arms}
    items = [
        {**form.with_usual(_item(value, where, _OWN_EFFECT_KEYS), usual), "where": where}
        for where, value in ((f"effects[{i}]", value) for i, value in enumerate(table["effects"], start=1))
    ]
    for item, names in form.repeated(items, _OWN_EFFECT_KEYS, values):
        where = item.pop("where")
        yield _with_unit(form.contrast_of(item, names, words, where, _OWN_EFFECT_KEYS), "unit" in item, arms, where)


def _with_unit(effect: Contrast, has_unit: bool, arms: Sequence[_Arm], where: str) -> Contrast:
    """The effect in the unit of what it is of, once its arms and quantities are known to be there."""
    by_name, units = {arm.name: arm for arm in arms}, set()
    for _, name, quantity in effect.terms:
        if name not in by_name:
            raise ConfigError(f"{where}: {unknown('arm', name, by_name)}")
        if is_metric(quantity):
            with _located(Path(where)):
                metric(quantity)
        elif not _is_known(quantity) and not by_name[name].measures_more:
            raise ConfigError(f"{where}: {unknown('of', quantity, QUANTITIES)}")
        units.add(_probe_and_unit(quantity)[1])
    unit = units.pop() if len(units) == 1 else _NO_UNIT
    if has_unit and unit != _NO_UNIT:
        of = effect.terms[0][2]
        raise ConfigError(f"{where}.unit is for a function of your own; {of} has its own, so leave it out")
    if effect.nominal is not None and unit != _NO_UNIT and not unit.startswith("of "):
        raise ConfigError(f"{where}.nominal is for a rate, but {effect.terms[0][2]} is in {unit}; leave it out")
    return effect if has_unit else dataclasses.replace(effect, unit=unit)


def _is_known(quantity: str) -> bool:
    return quantity in QUANTITIES or _kind_of(quantity) in _OF_ONE


def _probe_and_unit(quantity: str) -> tuple[str, str]:
    """What measures it, empty where it needs no probe of its own, and its unit."""
    if is_metric(quantity):
        return quantity, _NO_UNIT
    kind = quantity if quantity in QUANTITIES else _kind_of(quantity)
    return QUANTITIES[kind] if _is_known(quantity) else ("", _NO_UNIT)


def _kind_of(quantity: str) -> str:
    """`drift` of `drift W_Q`."""
    return quantity.rpartition(" ")[0]


def _check(arms: Sequence[_Arm], effects: Sequence[Contrast], table: JsonMapping) -> None:
    """Make sure that arms and effects fit one another. Raises ConfigError."""
    names = [effect.name for effect in effects]
    read_by = {name for effect in effects for name in effect.arms} | {arm.fields.get("tune") for arm in arms}
    for arm in arms:
        if arm.name not in read_by:
            raise ConfigError(f"arms.{arm.name} is read by no effect; name it in one's between, or leave it out")
        timed = any(change.start or change.stop is not None for text in arm.changes for change in parse_changes(text))
        if timed and "steps" not in table:
            raise ConfigError(f"arms.{arm.name} has a change between two steps; set steps, how many each training has")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two effects are called {name!r}; give each a name of its own")
    units = {effect.name: effect.unit for effect in effects}
    for effect in effects:
        other = effect.expected.other if effect.expected else ""
        if units.get(other, effect.unit) != effect.unit:
            told = f"{effect.name!r} is in {effect.unit} and {other!r} in {units[other]}"
            raise ConfigError(
                f"{told}, so their difference is no number; expect it above a number, or compare two of one unit"
            )


# words


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _plain(effect: Contrast) -> Plain:
    """The sentences of an effect, by how it comes out; a cost is told as one."""
    unit = effect.unit
    within = f"(within ±{effect.margin:g} {unit})"
    quantities = dict.fromkeys(quantity for _, _, quantity in effect.terms)
    is_difference = [weight for weight, _, _ in effect.terms] == [1.0, -1.0] and len(quantities) == 1
    name, of, *arms = (
        words.replace("{", "{{").replace("}", "}}") for words in (effect.name, next(iter(quantities)), *effect.arms)
    )
    if is_difference and name.lower().startswith("cost of ") and of == "loss":
        thing = _capital(name[len("cost of ") :])
        return Plain(
            above=f"{thing} costs {{effect}} {unit}.",
            below=f"{thing} lowers the loss by {{effect}} {unit}.",
            same=f"{thing} makes no meaningful difference {within}.",
        )
    if not is_difference:
        return Plain(
            above=f"{_capital(name)}: {{effect}} {unit}.",
            below=f"{_capital(name)}: {{effect}} {unit} below 0.",
            same=f"{_capital(name)}: no meaningful difference from 0 {within}.",
        )
    a, b = arms
    return Plain(
        above=f"{_capital(name)}: the {of} of ‘{a}’ is {{effect}} {unit} higher than that of ‘{b}’.",
        below=f"{_capital(name)}: the {of} of ‘{a}’ is {{effect}} {unit} lower than that of ‘{b}’.",
        same=f"{_capital(name)}: no meaningful difference in {of} between ‘{a}’ and ‘{b}’ {within}.",
    )
