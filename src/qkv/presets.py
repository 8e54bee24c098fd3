"""Presets: a layout and an optimizer recipe under one name.

A preset is one entry of presets.toml; nothing else in the project knows a preset's name. At which size it is laid out
is said by `laws`. Which textbook sentences hold in a preset's layout is said by `cards`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from qkv.config import Table, from_dict, load_toml
from qkv.errors import ConfigError, unknown
from qkv.laws import SHORT, WIDE, Scale
from qkv.models.counting import n_parameters, with_parameters
from qkv.models.layout import Layout, ModelConfig, Patches, Sizes
from qkv.tasks import TASKS, find_task
from qkv.training.config import OptimizerConfig, ScheduleConfig
from qkv.training.optimizers import defaults_of, own_class


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How one family of models is laid out and trained."""

    name: str
    """What is typed after --preset."""
    summary: str
    """One sentence for people."""
    source: str
    """Where the layout comes from."""
    stacks: tuple[str, ...]
    """Stacks it can be laid out as (`Task.stack`); the first is what it was made for."""
    layout: Layout
    optimizer: OptimizerConfig
    warmup_share: float = 0.0
    """Share of the horizon over which the rate climbs."""
    decay_share: float = 0.5
    """Share of the horizon over which the rate falls."""
    floor: float = 0.0
    """The rate at the horizon as a share of the peak."""
    head_width: int = 32
    """Width of one head that the size law aims at, twice that from d_model 192 on; 0 is a single head."""
    mlp_ratio: float = 4.0
    """d_mlp as a multiple of d_model."""
    one_table: tuple[str, ...] = ()
    """Kinds of model whose W_U is W_E transposed although `layout` has two tables (benchmarks/laws.md)."""
    largest_layers: int = 99
    """Most blocks the size law may give it."""
    changes: tuple[str, ...] = ()
    """Changes that belong to the preset, in the change language."""
    matches: str = ""
    """The preset whose number of parameters at the same scale it is given, by its width; empty: the law's width."""

    def optimizer_for(self, steps: int, kind: str = "") -> OptimizerConfig:
        """The optimizer over a horizon of `steps` (0 where the loop measures one), or one of another `kind`.

        Muon's momentum of 0.95 averages over 20 updates, too many where there are few: below 400 it is 0.85, with a
        lower rate. Measured on characters, 220 steps: 1.855 nats against 1.869 with 0.9 (one seed each). A class of
        one's own has the values that it gives itself. Raises ConfigError.
        """
        optimizer = self.optimizer if kind in ("", self.optimizer.kind) else OTHER_OPTIMIZERS.get(kind)
        optimizer = optimizer or OptimizerConfig(kind=kind, **defaults_of(own_class(kind)))
        if optimizer.kind != "muon" or not 0 < steps < SHORT:
            return optimizer
        return replace(optimizer, momentum=0.85, muon_lr=0.015)

    def schedule(self, steps: int, expected: int = 0) -> ScheduleConfig:
        """The schedule over a horizon of `steps`; 0 where the loop measures one, of which `expected` is a guess.

        The warm-up has to be known before the first update, and the same whenever the run is resumed.
        """
        return ScheduleConfig(
            steps=steps,
            warmup_steps=round(self.warmup_share * (steps or expected)),
            decay_share=self.decay_share,
            floor=self.floor,
        )


_MUON = OptimizerConfig(kind="muon", lr=0.01, muon_lr=0.02, beta1=0.9, beta2=0.95, weight_decay=0.0, clip=0.0)
_ADAMW = OptimizerConfig(kind="adamw", lr=1e-3, beta1=0.9, beta2=0.99, weight_decay=0.1, clip=1.0)

OTHER_OPTIMIZERS: Mapping[str, OptimizerConfig] = {
    "muon": _MUON,
    "adamw": replace(_ADAMW, lr=3e-3),
    "sgd": OptimizerConfig(kind="sgd", lr=0.1, momentum=0.9, weight_decay=0.0, clip=1.0),
}
"""Kind -> what a training gets that was asked for another kind than its preset's (benchmarks/laws.md)."""


def _preset(name: str, said: Table) -> Preset:
    """One entry of presets.toml."""
    optimizer = replace({"muon": _MUON, "adamw": _ADAMW}[said["optimizer"]["kind"]], **said["optimizer"])
    return from_dict(Preset, said | {"name": name, "optimizer": optimizer}, f"{name}.")


PRESETS: Mapping[str, Preset] = {
    name: _preset(name, said) for name, said in load_toml(Path(__file__).with_name("presets.toml")).items()
}
"""Name -> preset."""


def find(name: str, task: str, *, goes_on: bool = False) -> Preset:
    """The preset of that name, if it can be laid out as the task's stack; an empty name is the task's default.

    A training that `goes_on` from a run has the preset of that run, whatever the task is that it now learns.

    Raises ConfigError for an unknown name, or one that was not made for such a stack.
    """
    wanted = find_task(task)
    name = name or wanted.preset
    if name not in PRESETS:
        raise ConfigError(unknown("preset", name, PRESETS))
    stacks = PRESETS[name].stacks
    if wanted.stack not in stacks and not goes_on:
        fitting = ", ".join(p.name for p in PRESETS.values() if wanted.stack in p.stacks)
        made_for = " or ".join(t.name for t in TASKS.values() if t.stack in stacks)
        raise ConfigError(f"preset {name!r} is for --task {made_for}, not {task}; for {task} use one of: {fitting}")
    return PRESETS[name]


def model_config(
    preset: Preset,
    kind: str,
    d_vocab: int,
    scale: Scale,
    pinned: Mapping[str, int],
    classes: tuple[str, ...] = (),
    patches: Patches | None = None,
) -> ModelConfig:
    """The model of a preset at a scale; `pinned` sizes (d_model, n_layers, ...) were chosen by the user or the data."""
    d_model = pinned.get("d_model", scale.d_model)
    head_width = preset.head_width * (2 if d_model >= WIDE else 1)  # half the patterns, and no worse where it is wide
    n_heads = max(1, d_model // head_width) if head_width else 1
    turned = 2 if patches is None else 4  # rotary positions turn pairs of a head's coordinates; of images, by two axes
    turned = turned if preset.layout.positions == "rotary" else 1
    while n_heads > 1 and d_model % (n_heads * turned):
        n_heads -= 1
    chosen: dict[str, int] = {
        "d_vocab": d_vocab,
        "d_model": d_model,
        "n_layers": min(scale.n_layers, preset.largest_layers),
        "n_heads": n_heads,
        "n_ctx": scale.n_ctx,
        "d_mlp": max(16, round(d_model * preset.mlp_ratio / 16) * 16),
    }
    tied = (preset.layout.tied or kind in preset.one_table) and not classes
    layout = replace(preset.layout, dropout=scale.dropout, tied=tied)
    if patches is not None:  # there is no table of tokens whose rows could be scaled
        layout = replace(layout, embed_scale=False)
    sizes = Sizes(**(chosen | dict(pinned)))
    config = ModelConfig(kind=kind, sizes=sizes, layout=layout, classes=classes, patches=patches)  # type: ignore[arg-type]
    if not preset.matches or "d_model" in pinned:
        return config
    data = {name: value for name, value in pinned.items() if name in ("d_vocab", "n_ctx", "n_types")}
    other = model_config(PRESETS[preset.matches], kind, d_vocab, scale, data, classes, patches)
    matched = with_parameters(config, n_parameters(other)).sizes
    return replace(config, sizes=replace(sizes, d_model=matched.d_model, d_mlp=matched.d_mlp))


def optimizer_config(preset: Preset, scale: Scale, steps: int, kind: str = "") -> OptimizerConfig:
    """The preset's optimizer over a horizon of `steps`, or one of another `kind`, with what the size law knows better
    of that kind."""
    optimizer = preset.optimizer_for(steps, kind)
    return replace(optimizer, **scale.optimizer.get(optimizer.kind, {}))  # type: ignore[arg-type]
