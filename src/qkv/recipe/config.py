"""The configuration of a run: one training with nothing left to decide, as it is in `config.toml`."""

from dataclasses import dataclass, field
from pathlib import Path

from qkv.config import from_dict, load_toml
from qkv.data.config import DataConfig
from qkv.errors import ConfigError, RunFolderError
from qkv.folder.verified import check_file
from qkv.instruments.ledger import LedgerConfig
from qkv.instruments.schedule import WatchConfig
from qkv.models.layout import ModelConfig
from qkv.training.config import TrainingConfig
from qkv.training.precision import Machine
from qkv.words import many, short


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training with nothing left to decide; `config.toml` is this, table by table."""

    task: str
    """Name of the task."""
    preset: str
    """Name of the preset the laws started from."""
    seed: int
    """Names every random draw."""
    watch: str
    """What is measured while training: off, light, full, or the share of the time that was asked for, as 2%."""
    from_run: str = ""
    """The run folder whose best weights it starts from; empty is a start of its own."""
    imported: str = ""
    """The Hugging Face folder that it was read from; empty for what was trained here."""
    history: str = ""
    """Of a training history that was imported: weights where those of each step are kept, measures where not."""
    watched: str = ""
    """Trained by another program that qkv watched: layout where its layout is one of ours, names where it is not."""
    report: bool = True
    """Whether a report is written at the end, and the random-label control trained that drifts are compared with."""
    control_share: float = 0.07
    """Share of the run's updates that the random-label control may take; 1 gives it the whole run, 0 trains none."""
    changes: tuple[str, ...] = ()
    """Changes in the change language, those of the preset first."""
    data: DataConfig
    """Where the text comes from and how it is cut."""
    model: ModelConfig
    """The model."""
    training: TrainingConfig
    """How it is trained."""
    machine: Machine
    """Where and how exactly it is computed."""
    watching: WatchConfig = field(default_factory=WatchConfig)
    """When each kind of look at the matrices is taken."""
    ledger: LedgerConfig = field(default_factory=LedgerConfig)
    """Whether a ledger records how much of the loss change is due to each matrix."""

    def __post_init__(self) -> None:
        if not self.control_share >= 0:
            raise ConfigError(f"control_share is {self.control_share:g}; expected a share of 0 or more, such as 0.07")

    def model_words(self, n_parameters: int) -> str:
        """Which model it makes: `modern CausalLM with 2.3M parameters (4 layers, d_model 192, ...)`."""
        sizes = self.model.sizes
        return (
            f"{self.preset} {self.model.kind} with {short(n_parameters)} parameters ({many(sizes.n_layers, 'layer')},"
            f" d_model {sizes.d_model}, {many(sizes.n_heads, 'head')}, context {sizes.n_ctx})"
        )

    @classmethod
    def read(cls, path: Path, *, altered: bool = False) -> "RunConfig":
        """The configuration in a `config.toml`; with `altered` also where it is not the one that was written.

        Raises RunFolderError where the file is not one of ours.
        """
        if not altered:
            check_file(path)
        try:
            return from_dict(cls, load_toml(path))
        except (ConfigError, TypeError) as error:
            raise RunFolderError(f"{path} is not the configuration of a run: {error}") from None
