"""What most tasks say and answer alike."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Self, cast

from qkv.tasks.evaluation import evaluate
from qkv.tasks.figures import Evaluation
from qkv.tasks.task import DataT, ModelT, Objective, Stack, Yardsticks

if TYPE_CHECKING:
    from qkv.data.config import DataConfig
    from qkv.models.layout import Patches, Sizes

__all__ = ["TaskDefaults"]


class TaskDefaults(Generic[DataT, ModelT]):
    """What most tasks say and answer alike; a task inherits it and says what is different."""

    stack: ClassVar[Stack] = "encoder"
    preset: ClassVar[str] = "modern"
    size_law: ClassVar[str] = "text"
    starts_from: ClassVar[Mapping[str, str]] = {}
    tokenizer: ClassVar[str] = ""
    label_column: ClassVar[bool] = False
    reads: ClassVar[str] = "text"
    examples: ClassVar[str] = "examples"
    items: ClassVar[str] = ""
    target: ClassVar[str] = "target"
    asked: ClassVar[str] = "the class"
    prompt: ClassVar[str] = ""
    continues: ClassVar[bool] = False
    predict_options: ClassVar[tuple[str, ...]] = ()
    given: ClassVar[str] = "the text"
    marks: ClassVar[bool] = False
    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    judged: ClassVar[bool] = False
    taught: ClassVar[bool] = False
    afterwards_seconds: ClassVar[float] = 0.0
    ordered: ClassVar[bool] = False
    yardsticks: ClassVar[Mapping[str, str]] = {}

    @property
    def control(self) -> str:
        """Frequencies are all that stays, of tokens or of classes."""
        return f"labels shuffled, {'token' if self.target == 'token' else 'class'} frequencies kept"

    def with_settings(self, config: "DataConfig") -> Self:
        """As it is."""
        return self

    def model_sizes(self, data: DataT) -> Mapping[str, int]:
        """d_vocab of the tokenizer, 0 without one."""
        return {"d_vocab": 0 if data.tokenizer is None else data.tokenizer.d_vocab}

    def classes(self, data: DataT) -> tuple[str, ...]:
        """None."""
        return ()

    def patches(self, data: DataT) -> "Patches | None":
        """None."""
        return None

    def needed_positions(self, data: DataT) -> int:
        """Left to the size law."""
        return 0

    def positions(self, data: DataT, sizes: "Sizes") -> int:
        """A whole window."""
        return sizes.n_ctx

    def cautions(self, data: DataT, sizes: "Sizes") -> list[str]:
        """None."""
        return []

    def baselines(self, data: DataT, cache: Path | None) -> Yardsticks | None:
        """None."""
        return None

    def baselines_seconds(self, data: DataT, cache: Path | None) -> float:
        """Hardly anything."""
        return 0.0

    def evaluate(self, model: ModelT, data: DataT) -> Evaluation:
        """By `qkv.tasks.evaluation.evaluate`."""
        return evaluate(model, cast("Objective[DataT, ModelT]", self), data)

    def bits_per_byte(self, corpus: DataT, nats: float) -> float | None:
        """None."""
        return None

    def sample_inputs(self, data: DataT) -> list[str]:
        """None."""
        return []

    def keepsakes(self, data: DataT) -> Mapping[str, object]:
        """None."""
        return {}

    def shown(self, text: str, output: str) -> str:
        """The output alone."""
        return output
