"""What a study will do, written down before it does any of it: arms, learning rates, replicates, contrasts, scale.

All frozen dataclasses, checked at construction, with one canonical JSON form that is hashed. A `Design` has two hashes:
its own, and that of its *protocol*, which leaves out the number of replicates: designs of one protocol share a folder,
so that more seeds add to the runs that are there. A `Trial` is one training; its key names everything that decides its
outcome, so a run that is there is never made again. Nothing is run here.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from qkv.changes import parse_changes
from qkv.errors import ConfigError
from qkv.jsontypes import JsonMapping, JsonObject
from qkv.studies.expectation import Expected

FORMAT = 2
"""Goes up when a training of a study would come out otherwise than before; keys of runs hold it. Logs of format 1 chose
the best of rates a factor 3 apart, and scored both roles on the same tokens of one text."""
_TUNING_SEEDS = 1_000_000
"""Seeds of tuning runs start here, so that no training is both tuned on and reported."""

OF_TRAININGS = "of the trainings"
"""The unit of a share of trainings: each value is 1 or 0, and its interval is that of a rate. One that reads several
trainings of a replicate is 1 where any of them is: they share its seed, and are one try."""

Pairs = tuple[tuple[str, Any], ...]
"""Settings as (name, value), hashable and in order."""


def in_order(table: JsonMapping) -> Pairs:
    """A table as (name, value) pairs, lists as the tuples that the dataclasses here hold."""

    def tupled(value: object) -> object:
        return tuple(map(tupled, value)) if isinstance(value, list) else value

    return tuple((name, tupled(value)) for name, value in table.items())


def canonical(value: object) -> str:
    """One JSON text per value: keys sorted, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(value: object) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Text:
    """Tokens to train on: the user's text cut by a tokenizer, or a stream made by a rule."""

    stream: str = "text"
    """Name in `studies.synthetic.streams.STREAMS`."""
    tokenizer: str = "char"
    """Of a text: char, bpe, word, ...; a made stream brings its own."""
    vocab: int = 0
    """Of a fitted tokenizer; 0 is the law of its kind."""
    settings: Pairs = ()
    """Of a made stream; of a text `val_bytes`, how much of it is measured on, cut before it is cut into tokens, and
    `train_tokens`, how many of its first are trained on; `specials`, whether [MASK] is a token; of
    images their `name` and `sha256`, and `val_images`, how many are measured on; `vectors`, the sha256 of word vectors
    beside a text."""

    @property
    def tokens(self) -> tuple[str, str, int]:
        """What a token is."""
        return self.stream, self.tokenizer, self.vocab


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large every training of a study is, unless an arm says otherwise."""

    d_model: int
    n_layers: int
    n_heads: int
    n_ctx: int
    batch_size: int
    """Windows a step."""
    steps: int
    val_tokens: int
    """The validation split is cut to this many tokens, the same for every arm."""
    evaluations: int = 4
    """Points of each loss curve, evenly spaced over the steps."""
    d_head: int = 0
    """Width of one head; 0 is d_model / n_heads."""
    d_mlp: int = 0
    """Hidden width of the MLP; 0 is 4 d_model."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < int(field.name not in ("d_head", "d_mlp")):
                raise ConfigError(f"{field.name} of a study is {getattr(self, field.name)}; expected at least 1")


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Which part of a text a training learns from, and which validation tokens it is scored on."""

    index: int = 0
    of: int = 1
    """Equal contiguous slices of the training part, and of the validation part; 1 is all of it."""
    overlapping: bool = False
    """Whether each slice of the training part is twice as long as it is behind the one before."""
    tunes: bool = False
    """Scored on the last third of its validation tokens, by which rates are chosen, instead of the first two."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Learning rates centre * ratio^k: `points` around an arm's own, then past the edge that is best, to `reach`."""

    ratio: float = 2.0
    points: int = 3
    reach: int = 7
    """Largest |k| that is tried."""
    fitted: bool = True
    """Whether the rate is the vertex of a quadratic in log rate, or the best of those tried (as in format 1)."""
    pooled: int = 0
    """Tune in that many replicates and take the rate of the least mean loss in all; 0 tunes in each for itself."""

    def __post_init__(self) -> None:
        if self.ratio <= 1 or self.points < 3 or self.points % 2 == 0 or self.reach < self.points // 2:
            raise ConfigError(
                f"a grid of {self.points} rates a factor {self.ratio:g} apart has no interior; expected an odd number"
                " of at least 3, a factor above 1"
            )

    def rate(self, centre: float, k: float) -> float:
        """centre * ratio^k, rounded to six digits so that it reads the same everywhere."""
        return float(f"{centre * self.ratio**k:.6g}")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to train: what is done to which matrices, on which tokens, with which optimizer."""

    name: str
    what: str
    """For a table: what this arm does."""
    text: str = "text"
    """Key in the design's `texts`."""
    task: str = "causal"
    changes: tuple[str, ...] = ()
    """In the change language."""
    layout: Pairs = ()
    """Fields of the preset's layout that differ."""
    sizes: Pairs = ()
    """Fields of the scale that differ."""
    optimizer: str = "adamw"
    lr: float = 0.01
    """Centre of the grid."""
    tune: str = "own"
    """`own`: tuned in each replicate; `none`: at the centre; else the arm whose rate it takes over."""
    trainer: str = "loop"
    """Name in `studies.engine.training.TRAINERS`."""
    labels: str = "real"
    """`uniform` trains the random-label control (`tasks.batch.with_uniform_labels`). Studies of earlier versions may
    hold `random`, tokens from random places of the text, which nothing trains on any more."""
    tables: tuple[tuple[str, str], ...] = ()
    """(address, table): start values made from the text, by a name in `studies.engine.initial_tables.TABLES`."""
    probes: tuple[str, ...] = ()
    """What is measured on the trained model: names in `studies.probes.registry.PROBES`."""
    before: Pairs = ()
    """What the trainer `pretrained` trains the body for first: task, lr, changes, fields of the scale that differ."""
    settings: Pairs = ()
    """`preset` where it is not the textbook's, and settings by whole path, as in config.toml, over all of the above.
    One of `training.optimizer.lr` is the rate that the others, such as `muon_lr`, go with: tuned, they move with it."""
    code: tuple[tuple[str, str], ...] = ()
    """Code of one's own that it trains or is measured with: `module:name` and the sha256 of its file."""

    def content(self) -> JsonObject:
        """All that decides the outcome: everything but its name and words."""
        return {k: v for k, v in _plain(self).items() if k not in ("name", "what")}


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """One effect: a weighted sum of what arms measured in the same replicate."""

    name: str
    what: str
    """For a table: what a positive number means."""
    terms: tuple[tuple[float, str, str], ...]
    """(weight, arm, quantity); `loss` is the loss at the last step, others come from probes."""
    margin: float
    """The largest effect that would not matter."""
    unit: str = "nats per token"
    expected: Expected | None = None
    """What is expected of it before the first training."""
    nominal: float | None = None
    """Where each value is a rate: the one that was promised; the effect is the rate seen less this one."""
    tries: int = 1
    """How many independent tries each such value is a rate of."""
    constant: bool = False
    """The same number whatever a replicate's seed is: of the text, or by algebra. It is told, not tested."""
    needs: str = ""
    """The contrast that has to come out above 0, and not trivially, for this one to say anything."""
    beside: tuple[str, ...] = ()
    """The same of designs that were hashed before it was asked for: a rule of judging, and no part of the protocol."""

    def __post_init__(self) -> None:
        if not isinstance(self.expected, Expected | None):
            raise ConfigError(
                f"the expectation of {self.name} is {self.expected!r}, which cannot be judged; write"
                " Expected(above=0.0) or another of its forms, or None"
            )
        if not 0 < self.margin < float("inf"):
            raise ConfigError(
                f"the margin of {self.name} is {self.margin:g}; expected a number above 0: the largest difference that"
                " would not matter"
            )

    @property
    def gates(self) -> tuple[str, ...]:
        """All that it needs, however that was said."""
        return tuple(filter(None, (self.needs, *self.beside)))

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms it reads."""
        return tuple(dict.fromkeys(arm for _, arm, _ in self.terms))


def cost(name: str, what: str, arm: str, baseline: str, margin: float) -> Contrast:
    """loss(arm) - loss(baseline)."""
    return Contrast(name=name, what=what, terms=((1.0, arm, "loss"), (-1.0, baseline, "loss")), margin=margin)


_LATER = ("d_head", "d_mlp", "before", "needs", "settings", "code", "pooled")
_JUDGED = ("constant", "beside")


def _plain(part: "Arm | Scale | Contrast | Grid") -> JsonObject:
    """Its fields, but for later ones at the value that they had before they were there: keys of old runs stay.

    What is constant is no choice: it is seen in the values. Nor are rules that only judge them.
    """
    fields = dataclasses.asdict(part)
    if isinstance(part, Contrast) and part.expected:
        fields["expected"] = part.expected.to_json()
    return {name: value for name, value in fields.items() if name not in _JUDGED and (name not in _LATER or value)}


@lru_cache(maxsize=4096)
def _written(part: Arm | Scale | Text) -> str:
    """Its share in a trial's key, as canonical JSON: of an arm, what it does to a training."""
    if isinstance(part, Arm):
        return canonical({k: v for k, v in part.content().items() if k not in ("lr", "tune", "text")})
    return canonical(_plain(part) if isinstance(part, Scale) else dataclasses.asdict(part))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training, complete in itself: a worker needs nothing else to run it."""

    arm: Arm
    text: Text
    scale: Scale
    source: str
    """Path of the user's text; empty is the text inside Python."""
    source_sha256: str
    lr: float
    seed: int
    software: str
    """Versions that the bits depend on."""
    slice: Slice | None = None
    """None, as in format 1, is the whole text, scored on the first validation tokens in either role."""
    format: int = FORMAT

    @property
    def key(self) -> str:
        """Of everything that decides the outcome; where the file lies does not."""
        parts = {"arm": _written(self.arm), "scale": _written(self.scale), "text": _written(self.text)}
        parts |= {name: canonical(getattr(self, name)) for name in ("lr", "seed", "software", "source_sha256")}
        if self.slice is not None:
            parts["slice"] = canonical(dataclasses.asdict(self.slice))
        what = ",".join(f'"{name}":{parts[name]}' for name in sorted(parts))
        return hashlib.sha256(f"[{self.format},{{{what}}}]".encode()).hexdigest()[:20]

    def to_json(self) -> str:
        """The trial as text; `from_json` undoes it."""
        return canonical(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Trial":
        """A trial from `to_json`."""
        data = json.loads(text)
        arm, cut, scale = (dict(in_order(data.pop(name))) for name in ("arm", "text", "scale"))
        data["slice"] = data["slice"] and Slice(**data["slice"])
        return cls(arm=Arm(**arm), text=Text(**cut), scale=Scale(**scale), **data)


@dataclass(frozen=True, kw_only=True)
class Design:
    """A whole study. Raises ConfigError for one that could not answer anything."""

    study: str
    quick: bool
    source_name: str
    source_sha256: str
    texts: tuple[tuple[str, Text], ...]
    scale: Scale
    grid: Grid
    arms: tuple[Arm, ...]
    contrasts: tuple[Contrast, ...]
    """The first is primary: its verdict is the study's."""
    replicates: int
    software: str
    slices: int = 1
    """Of the text: replicate r trains and is scored on slice (r - 1) mod `slices`; 1 is one text for all."""
    overlapping: bool = False
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.replicates < 2:
            raise ConfigError(
                f"{self.replicates} seed has no spread, so nothing could be told from chance; expected --seeds 2 or"
                " more (8 is usual)"
            )
        if not self.contrasts:
            raise ConfigError(f"the study {self.study} has no contrast, so it would answer nothing")
        self._check_arms()

    def _check_arms(self) -> None:
        names, contents = [arm.name for arm in self.arms], {}
        for arm in self.arms:
            if names.count(arm.name) > 1:
                raise ConfigError(f"two arms are called {arm.name!r}; give each a name of its own")
            differs = {k: v for k, v in arm.content().items() if k not in ("lr", "probes")}
            differs["changes"] = [str(change) for text in arm.changes for change in parse_changes(text)]
            content = canonical(differs | {"rate": arm.lr if arm.tune == "none" else None})
            if content in contents:
                raise ConfigError(
                    f"the arms {contents[content]!r} and {arm.name!r} are the same, so their difference is 0 by"
                    " construction; change one of them"
                )
            contents[content] = arm.name
            if arm.text not in dict(self.texts):
                raise ConfigError(f"the arm {arm.name!r} trains on {arm.text!r}, which the design does not have")
            followed = next((one for one in self.arms if one.name == arm.tune), None)
            if arm.tune not in ("own", "none") and (followed is None or followed.tune not in ("own", "none")):
                why = "which is no arm" if followed is None else "which has none of its own"
                raise ConfigError(f"the arm {arm.name!r} takes its learning rate from {arm.tune!r}, {why}")
        texts = {arm.name: dict(self.texts)[arm.text] for arm in self.arms}
        for contrast in self.contrasts:
            for arm in contrast.arms:
                if arm not in names:
                    raise ConfigError(f"the contrast {contrast.name!r} reads {arm!r}, which is no arm of the design")
            if contrast.unit == "nats per token" and len({texts[arm].tokens for arm in contrast.arms}) > 1:
                raise ConfigError(
                    f"the contrast {contrast.name!r} compares nats per token of different tokenizers, which are"
                    " different units; give it in bits per byte"
                )
            effects = {other.name for other in self.contrasts} - {contrast.name}
            if contrast.expected and (other := contrast.expected.other) and other not in effects:
                raise ConfigError(f"{contrast.name!r} is expected to differ from {other!r}, which is no other effect")
            for gate in set(contrast.gates) - effects:
                raise ConfigError(f"the contrast {contrast.name!r} needs {gate!r}, which is none of the design")

    @property
    def primary(self) -> Contrast:
        """The contrast that the verdict is about."""
        return self.contrasts[0]

    @property
    def main_arms(self) -> tuple[str, ...]:
        """The arms that the primary contrast reads, and those whose learning rates these take over."""
        read = self.primary.arms
        followed = (self.arm(name).tune for name in read)
        return tuple(dict.fromkeys((*read, *(name for name in followed if name not in ("own", "none")))))

    @property
    def images(self) -> tuple[str, str] | None:
        """Name and sha256 of the source's images; None where it holds none."""
        found = [dict(text.settings) for _, text in self.texts if text.stream == "images"]
        return (found[0]["name"], found[0]["sha256"]) if found else None

    @property
    def vectors(self) -> str:
        """The sha256 of the word vectors that the source names; empty where it names none."""
        return next((found for _, text in self.texts if (found := dict(text.settings).get("vectors"))), "")

    @property
    def has_labels(self) -> bool:
        """Whether the source is a table of labelled texts, and arms classify."""
        return any(text.stream == "labelled" for _, text in self.texts)

    def arm(self, name: str) -> Arm:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def as_dict(self) -> JsonObject:
        """Plain values, as written to the study's folder."""
        plain = {name: tuple(_plain(part) for part in getattr(self, name)) for name in ("arms", "contrasts")}
        return dataclasses.asdict(self) | plain | {"scale": _plain(self.scale), "grid": _plain(self.grid)}

    @property
    def protocol(self) -> str:
        """Hash of everything but the number of replicates."""
        return _digest([self.format, {k: v for k, v in self.as_dict().items() if k != "replicates"}])

    @property
    def hash(self) -> str:
        """Hash of the whole design."""
        return _digest([self.format, self.as_dict()])

    @property
    def over(self) -> str:
        """What differs between replicates, and so what an interval is about."""
        texts = dict(self.texts)
        if not any(texts[self.arm(name).text].stream == "text" for name in self.primary.arms):
            return "over seeds"
        n = min(self.slices, self.replicates)
        half = "half-overlapping " if self.overlapping else ""
        return "over seeds on one text" if n == 1 else f"over seeds and {n} {half}slices of the text"

    def slice(self, text: Text, replicate: int, *, tunes: bool) -> Slice | None:
        """What a replicate learns from and is scored on; arms of a replicate share it."""
        if self.format == 1:
            return None
        if self.slices == 1 or text.stream != "text":
            return Slice(tunes=tunes)
        index = (replicate - 1) % self.slices
        return Slice(index=index, of=self.slices, overlapping=self.overlapping, tunes=tunes)

    def scored(self, text: Text) -> tuple[Slice | None, ...]:
        """Every part of a text that is reported on, once."""
        of = range(1, self.replicates + 1)
        return tuple(dict.fromkeys(self.slice(text, replicate, tunes=False) for replicate in of))

    def trial(self, arm: Arm, replicate: int, k: float, *, source: str, report: bool) -> Trial:
        """The training of an arm in a replicate at grid point k: to tune by, or to report.

        Arms of one replicate share seeds and slices, so they share batches and the start of every address they have in
        common.
        """
        text, seed = dict(self.texts)[arm.text], replicate if report else _TUNING_SEEDS + replicate
        probes = arm.probes if report else ()
        return Trial(
            arm=dataclasses.replace(arm, probes=probes),
            text=text,
            scale=dataclasses.replace(self.scale, **dict(arm.sizes)),
            source=source,
            source_sha256=self.source_sha256,
            lr=self.grid.rate(arm.lr, k),
            seed=seed,
            software=self.software,
            slice=self.slice(text, replicate, tunes=not report),
            format=self.format,
        )
