"""What a model is trained to do: one module per task, found by name in `TASKS`.

A new task is one new module with a class that keeps the protocol `Task` (most of it by inheriting it), one line in
`TASKS`, and the module of its data.
"""

from typing import cast

from qkv.errors import ConfigError, unknown
from qkv.extensions import Registry
from qkv.tasks.batch import Batch
from qkv.tasks.causal import Causal
from qkv.tasks.classify import Classify
from qkv.tasks.evaluation import evaluate, validation_loss
from qkv.tasks.figures import Evaluation, Figure, Scores
from qkv.tasks.image import Image
from qkv.tasks.labels.answer import Answer
from qkv.tasks.labels.multilabel import MultiLabel
from qkv.tasks.labels.regress import Regress
from qkv.tasks.labels.tag import Tag
from qkv.tasks.masked import Masked
from qkv.tasks.task import (
    Data,
    Drop,
    Objective,
    PredictOptions,
    Presentation,
    Standing,
    Task,
    TaskData,
    Yardsticks,
    standing,
    worse_than_nothing,
)
from qkv.tasks.translate import Translate

__all__ = [
    "TASKS",
    "Answer",
    "Batch",
    "Causal",
    "Classify",
    "Data",
    "Drop",
    "Evaluation",
    "Figure",
    "Image",
    "Masked",
    "MultiLabel",
    "Objective",
    "PredictOptions",
    "Presentation",
    "Regress",
    "Scores",
    "Standing",
    "Tag",
    "Task",
    "TaskData",
    "Translate",
    "Yardsticks",
    "evaluate",
    "find_task",
    "standing",
    "worse_than_nothing",
    "validation_loss",
]


def _task(name: str, thing: object) -> Task:
    """What another package adds, where it is a task of that name. Raises ConfigError."""
    made = thing() if isinstance(thing, type) else thing
    if getattr(made, "name", "") != name or not callable(getattr(made, "train_batch", None)):
        raise ConfigError(f"it is {made!r:.60}; expected a subclass of a task in qkv.tasks whose name is {name!r}")
    return cast(Task, made)


_OWN = (Causal(), Masked(), Classify(), MultiLabel(), Regress(), Tag(), Answer(), Image(), Translate())

TASKS = Registry("tasks", {task.name: task for task in _OWN}, _task)
"""By name: those of qkv, and those that other packages add."""


def find_task(name: str) -> Task:
    """The task of that name.

    Raises ConfigError for an unknown one, with the nearest names.
    """
    if name not in TASKS:
        raise ConfigError(unknown("task", name, TASKS))
    return TASKS[name]
