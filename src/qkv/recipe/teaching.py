"""Teachers: the same training by seeds of its own, several times, whose mean answers a run then learns.

Trainings that differ in their seed alone answer differently, and the mean of their probabilities is better than any of
them (Hansen and Salamon 1990, IEEE PAMI 12). A single model can be taught most of what they know together (Bucila et
al. 2006, KDD, "Model compression"; Hinton et al. 2015, arXiv 1503.02531), also one of their own size (Furlanello et al.
2018, arXiv 1805.04770). Teachers answer what the run itself is shown, words left out and all, so that there are as many
questions as updates need (Beyer et al. 2022, arXiv 2106.05237).

Teacher k of a run is a pure function of its configuration and k. Weights of those that are done lie in
`teachers.safetensors` of the run folder, as `k/ADDRESS`; a run that was killed goes on with the first that is missing.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.errors import Interrupted, RunFolderError, typed
from qkv.folder.run_folder import RunFolder, write_atomically
from qkv.randomness import key
from qkv.recipe.build import Parts, assemble
from qkv.recipe.config import RunConfig
from qkv.tasks import Batch
from qkv.training.config import TeachingConfig
from qkv.training.distributed.ranks import ALONE, Ranks
from qkv.training.record import Observer
from qkv.training.tensorfile import load_weights, streamed

STUDENT_COST = 3.5
"""What an update costs that asks three teachers of texts half of which are joined, in updates that ask none."""
_NEVER = 1 << 30
"""Updates between two validations of a teacher, which is validated at its end only."""


def asking_cost(teachers: int) -> float:
    """What an update costs that asks so many teachers, in updates that ask none."""
    return 1 + (STUDENT_COST - 1) * teachers / 3


class Teachers:
    """The mean of some models' probabilities: call it with a batch."""

    def __init__(self, parts: Sequence[Parts]) -> None:
        self._parts = parts

    def __call__(self, batch: Batch) -> Tensor:
        """Probability of each class for each text: float32 [n_texts, n_classes], on the CPU, each row of sum 1."""
        machine = self._parts[0].config.machine
        batch, total = batch.to(machine.device), None
        with torch.no_grad(), machine.passing():
            for parts in self._parts:
                task: Any = parts.task  # one that is `taught`
                answers = task.answers(parts.model, batch)
                total = answers if total is None else total + answers
        assert total is not None
        return (total / len(self._parts)).cpu()


def teacher_seed(seed: int, number: int) -> int:
    """The seed of a run's teacher, of which the first is number 1: a whole number below 2^31."""
    return key(seed, "teacher", number) & 0x7FFFFFFF


def train_teachers(
    parts: Parts,
    folder: RunFolder,
    *,
    seconds: Callable[[], float] | None = None,
    observers: Sequence[Observer] = (),
    say: Callable[[str], None] = lambda sentence: None,
    ranks: Ranks = ALONE,
) -> None:
    """Train the teachers that `folder` has not yet, one behind another, and write each when it is done.

    `seconds()` is what is left of a wall-time budget for teachers and run; each takes its share of it, and ends before
    where its largest horizon does. All ranks make the same call, the first writes.

    Raises what the loop raises; Interrupted once the teachers that are done are kept.
    """
    wanted, done = parts.config.training.teaching.teachers, _kept(folder)
    for number in range(1, wanted + 1):
        if _of(done, number):
            continue
        try:
            say(f"Teacher {number} of {wanted}:")
            share = None if seconds is None else ranks.of_first(seconds() / (wanted - number + 1 + STUDENT_COST))
            weights = _train(parts, number, share, observers, ranks)
        except (KeyboardInterrupt, Interrupted) as error:
            told = f"stopped while teacher {number} of {wanted} was trained; those before it are kept; continue with:"
            again = f"qkv train --out {typed(folder.path)} --resume"
            raise Interrupted(f"{told} {again}", exit_status=getattr(error, "exit_status", 130)) from None
        done |= {f"{number}/{address}": values for address, values in weights.items()}
        if ranks.is_first:
            write_atomically(folder.teachers, streamed(dict(sorted(done.items()))))
        ranks.meet()


def taught(parts: Parts, folder: RunFolder) -> Parts:
    """The parts of a run whose batches hold the mean answers of its teachers; as they are where it has none.

    Raises RunFolderError where a teacher is not in the folder.
    """
    teaching = parts.config.training.teaching
    wanted = teaching.teachers
    if not wanted:
        return parts
    kept, teachers = _kept(folder), []
    for number in range(1, wanted + 1):
        weights = _of(kept, number)
        if not weights:
            raise RunFolderError(f"{folder.teachers} has no teacher {number} of {wanted}; they are trained by --resume")
        teacher = assemble(_config(parts, number), parts.corpus, resumed_at=1, keeps_start=False)
        teacher.catalogue.load_state(weights)
        teacher.plan.at_end()
        teacher.model.requires_grad_(False)
        teachers.append(teacher)
    task = dataclasses.replace(parts.task, teachers=Teachers(teachers), joined=teaching.joined)  # type: ignore
    return dataclasses.replace(parts, task=task)


def _config(parts: Parts, number: int) -> RunConfig:
    """The configuration of a teacher: the run's own by another seed, but for what teachers have of their own, and
    without what could end it early."""
    config, teaching = parts.config, parts.config.training.teaching
    training = dataclasses.replace(
        config.training,
        teaching=TeachingConfig(),
        optimizer=dataclasses.replace(config.training.optimizer, embed_factor=teaching.teacher_embed_factor),
        until_loss=0.0,
        patience=0,
        on_spike="ignore",
        eval_every=_NEVER,
    )
    layout = dataclasses.replace(config.model.layout, dropout=teaching.teacher_dropout)
    model = dataclasses.replace(config.model, layout=layout)
    return dataclasses.replace(config, seed=teacher_seed(config.seed, number), model=model, training=training)


def _train(
    parts: Parts, number: int, seconds: float | None, observers: Sequence[Observer], ranks: Ranks
) -> dict[str, Tensor]:
    """The weights of a teacher at its last step, by address."""
    config = _config(parts, number)
    shares = config.machine.shard and ranks.world > 1
    teacher = assemble(config, parts.corpus, keeps_start=False, shares=shares)
    deadline = None if seconds is None else max(1.0, seconds)
    teacher.train(observers=observers, deadline_seconds=deadline, ranks=ranks)
    weights = {address: values.clone().cpu() for address, values in teacher.catalogue.state().items()}
    teacher.plan.at_end()
    return weights


def _kept(folder: RunFolder) -> dict[str, Tensor]:
    """Every tensor of the file of teachers; none where there is no such file."""
    path: Path = folder.teachers
    return load_weights(path) if path.is_file() else {}


def _of(kept: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    """The weights of one teacher by address."""
    start = f"{number}/"
    return {name.removeprefix(start): values for name, values in kept.items() if name.startswith(start)}
