"""Watching a training that runs in another program's loop: the same run folder, telemetry and pictures as our own.

The optimizer calls back before and after each of its steps (hooks of `torch.optim`); nothing of the model, its graph or
its random numbers is touched. What is read is copied into a mirror with our addresses, at the steps at which our own
trainer would look. Gradients are those that the optimizer sees, after whatever clipping the loop does. What goes wrong
here (a full disk, a model that was given other shapes) ends the watching with a warning, never the training.
"""

import atexit
import contextlib
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from qkv.config import dump_toml, to_dict
from qkv.data.config import DataConfig
from qkv.errors import ConfigError, unknown
from qkv.folder.run_folder import RunFolder, link, write_atomically
from qkv.instruments.recorder import Recorder
from qkv.instruments.schedule import LEVELS
from qkv.interop.mirror import Mirror, unwrapped
from qkv.jsontypes import JsonObject
from qkv.models.layout import ModelConfig, Sizes
from qkv.recipe.config import RunConfig
from qkv.recipe.manifest import machine_facts
from qkv.tasks import TASKS, Task
from qkv.telemetry import Store
from qkv.telemetry.own import write_own
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.training.config import OptimizerConfig, TrainingConfig
from qkv.training.precision import resolve as resolve_machine
from qkv.training.record import EvaluationRecord, Event, Outcome, RunContext, StepRecord
from qkv.training.tensorfile import streamed

_Args = tuple[object, ...]
_Kwargs = JsonObject
"""What torch hands to a hook: the arguments of a step, or of a pass."""


class _Unasked(Task):
    """The task of a training that is not ours: what most tasks say of themselves."""


class Watcher:
    """Writes the run folder of a training that goes on elsewhere; `close` it, or use it as a context manager.

    A program that ends without closing closes it. `step` counts the optimizer's steps. `log` tells what the hooks
    cannot see: losses and tokens.
    """

    def __init__(
        self,
        mirror: Mirror,
        live: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        folder: RunFolder,
        *,
        level: str,
        tokenizer: Tokenizer | None,
        log: Callable[[int], Mapping[str, object]] | None = None,
    ) -> None:
        if level not in LEVELS:
            raise ConfigError(unknown("level of watch", level, LEVELS))
        self.folder, self.path, self.step = folder, folder.path, 0
        self.unnamed: list[str] = mirror.unnamed
        """Parameters that have no address and are not watched."""
        self._own = log
        self._mirror, self._optimizers = mirror, list(optimizers)
        self._config = _run_config(mirror, level)
        self._loss: Tensor | float | None = None  # of this step, as told
        self._losses: list[Tensor] = []  # of the passes of this step, as seen
        self._summed = False  # those of a trainer that divides each by the targets of all
        self._pid, self._ended = os.getpid(), False
        self._val: float | None = None
        self._seconds, self._began = 0.0, time.monotonic()
        self._before_step, self._told, self._seen = 0, 0, 0  # tokens: of earlier steps; of this one, told and seen
        self._best, self._norm = (math.inf, -1), math.nan
        folder.write("config.toml", dump_toml(to_dict(self._config)))
        if tokenizer is not None:
            for name, content in tokenizer.files().items():
                folder.write(name, content)
        self._save(folder.checkpoints / "step-00000000")
        self._store = Store(folder.telemetry)
        self._recorder = Recorder(self._store, level=level)
        self._recorder.on_start(self._context())
        self._handles = [
            self._optimizers[0].register_step_pre_hook(self._before),
            self._optimizers[-1].register_step_post_hook(self._after),
            unwrapped(live).register_forward_hook(_Seeing(self._forward), with_kwargs=True),
        ]
        atexit.register(self.close)

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def log(
        self,
        numbers: Mapping[str, object] | None = None,
        *,
        loss: Tensor | float | None = None,
        val_loss: Tensor | float | None = None,
        tokens: int = 0,
    ) -> None:
        """Tell what the loop knows: the training loss of this step and the tokens it saw, a validation loss (nats), or
        `numbers` of your own by name, which are of the steps made so far (see `Run.log`).

        Told before the optimizer's step, loss and tokens are of that step; behind it they are of the next one.

        Without it, the loss is the `.loss` of the model's output where it has one (the mean of all passes of a step,
        or their sum where a trainer divides each by the targets of all), and tokens those of its inputs.
        """
        if not self._watches:
            return
        with self._sparing():
            if loss is not None:
                self._loss = loss.detach() if isinstance(loss, Tensor) else loss
            self._told += tokens
            if numbers is not None:
                write_own(self.path, self.step, numbers)
            if val_loss is not None:
                self._evaluated(float(val_loss))

    def _evaluated(self, val_loss: float) -> None:
        if not math.isfinite(val_loss):
            sentence = f"the validation loss is {val_loss:g}"
            self._recorder.on_event(Event(step=self.step, kind="nan", sentence=sentence))
            return
        best = val_loss < self._best[0]
        self._best = (val_loss, self.step) if best else self._best
        self._mirror.refresh()
        if best:
            write_atomically(self.folder.best, streamed(self._mirror.catalogue.state()))
        self._recorder.on_evaluation(
            EvaluationRecord(
                step=self.step, loss=val_loss, n_targets=1, is_best=best, seconds=0.0,
                wall_seconds=time.monotonic() - self._began,
            )
        )  # fmt: skip

    def close(self) -> Path:
        """Take the last look, write the weights, seal the folder; once more does nothing. Returns the folder."""
        for handle in self._handles:
            handle.remove()
        if not self._watches:
            return self.path
        with self._sparing():
            self._mirror.refresh()
            outcome = self._outcome()
            self._recorder.on_end(outcome)
            self._store.close()
            self._save(self.folder.path)
            if self._best[1] in (-1, self.step):  # no validation loss was logged, or the last is the lowest
                link(self.folder.model, self.folder.best)
            self.folder.seal(
                machine_facts(self._config) | {"parent": "", "watched": True, "summary": self._summary(outcome)}
            )
            self._let_go()
        return self.path

    @contextlib.contextmanager
    def _sparing(self) -> Iterator[None]:
        """Let what goes wrong inside end the watching, and not the training that is watched."""
        try:
            yield
        except Exception as error:
            self._let_go()
            sentence = (
                f"qkv.watch ended at step {self.step} of {self.path}, and your training goes on without it: {error}"
            )
            warnings.warn(sentence, stacklevel=2)

    @property
    def _watches(self) -> bool:
        """Whether this has not ended, and is not the copy of it in a forked process."""
        return not self._ended and os.getpid() == self._pid

    def _let_go(self) -> None:
        self._ended = True  # the hooks stay: torch may be going through them
        atexit.unregister(self.close)
        with contextlib.suppress(Exception):
            self._store.close()
        self.folder.close()

    # the hooks

    def _before(self, optimizer: object, args: _Args, kwargs: _Kwargs) -> tuple[_Args, _Kwargs] | None:
        """Look at gradients; where the step is given a closure that makes them, as Lightning does, once it has."""
        if not (self._watches and self._recorder.reads(self.step + 1)):
            return None
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if closure is None:
            self._look()
            return None
        return args[:1], kwargs | {"closure": self._after_closure(cast(Callable[[], object], closure))}

    def _after_closure(self, closure: Callable[[], object]) -> Callable[[], object]:
        """The same closure, with a look at the gradients after its first call (some optimizers call it often)."""
        waits = True

        def look_too() -> object:
            nonlocal waits
            loss = closure()
            if waits:
                waits = False
                self._look()
            return loss

        return look_too

    def _look(self) -> None:
        began = time.monotonic()
        with self._sparing():
            self._mirror.refresh(gradients=True)
            self._norm = self._mirror.gradient_norm()
            self._recorder.before_update(self._record(self.step + 1))
        self._seconds += time.monotonic() - began

    def _after(self, optimizer: object, args: _Args, kwargs: _Kwargs) -> None:
        if not self._watches:
            return
        began, self.step = time.monotonic(), self.step + 1
        with self._sparing():
            looked = self._recorder.reads(self.step)
            if looked:
                self._mirror.refresh()
            self._recorder.after_update(self._record(self.step, looked=looked))
            if looked and self._own is not None:
                write_own(self.path, self.step, self._own(self.step))
        self._loss, self._losses = None, []
        self._before_step, self._told, self._seen = self._tokens, 0, 0
        self._seconds += time.monotonic() - began

    def _forward(self, module: nn.Module, args: _Args, kwargs: _Kwargs, output: object) -> None:
        """See the loss and the tokens of a training pass, where the model's inputs and output tell them."""
        if not (self._watches and module.training and torch.is_grad_enabled()):
            return
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            if not self._mirror.has_gradients():  # the first pass of a step, also after one that was skipped
                self._losses = []
            self._losses.append(loss.detach())
            self._summed = kwargs.get("num_items_in_batch") is not None
        ids = args[0] if args else kwargs.get("input_ids")
        if isinstance(ids, Tensor) and not ids.is_floating_point():
            self._seen += ids.numel()

    # inside

    @property
    def _tokens(self) -> int:
        """Tokens so far; of each step those that were told, else those that were seen."""
        return self._before_step + (self._told or self._seen)

    def _record(self, step: int, *, looked: bool = True) -> StepRecord:
        loss = math.nan if self._loss is None else float(self._loss)
        if self._loss is None and self._losses:
            loss = sum(map(float, self._losses)) / (1 if self._summed else len(self._losses))
        return StepRecord(
            step=step,
            steps=0,
            tokens=self._tokens,
            loss=loss,
            lr=float(self._optimizers[0].param_groups[0]["lr"]),
            grad_norm=self._norm if looked else math.nan,
            wall_seconds=time.monotonic() - self._began,
            catalogue=self._mirror.catalogue,
            optimizer=None,  # type: ignore[arg-type]
        )

    def _context(self) -> RunContext:
        return RunContext(
            seed=self._config.seed,
            model=self._mirror.model,
            catalogue=self._mirror.catalogue,
            task=_Unasked(),  # type: ignore[abstract]  # without a corpus nobody asks it for batches
            config=self._config.training,
            machine=self._config.machine,
            folder=self.path,
        )

    def _outcome(self) -> Outcome:
        seconds = time.monotonic() - self._began
        return Outcome(
            steps=self.step,
            horizon=self.step,
            tokens=self._tokens,
            best_loss=self._best[0] if self._best[1] >= 0 else math.nan,
            best_step=self._best[1],
            last_loss=math.nan,
            stopped_because="steps",
            train_seconds=seconds,
            tokens_per_second=self._tokens / seconds if seconds else 0.0,
            resumed_from_step=None,
        )

    def _summary(self, outcome: Outcome) -> JsonObject:
        found = outcome.best_step >= 0
        return {
            "run": str(self.path),
            "steps": self.step,
            "tokens": self._tokens,
            "val_loss": outcome.best_loss if found else None,
            "best_step": outcome.best_step if found else None,
            "train_seconds": round(outcome.train_seconds, 3),
            "parameters": sum(entry.parameter.numel() for entry in self._mirror.catalogue),
            "stopped_because": "watched",
            "watch_seconds": round(self._seconds, 3),
        }

    def _save(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        write_atomically(folder / "model.safetensors", streamed(self._mirror.catalogue.state()))


class _Seeing:
    """A hook that a copy of the model, made by deepcopy or pickle, does not take along."""

    def __init__(self, see: Callable[..., None] | None = None) -> None:
        self._see = see

    def __call__(self, *passed: object) -> None:
        if self._see is not None:
            self._see(*passed)

    def __reduce__(self) -> "tuple[type[_Seeing], tuple[()]]":
        return _Seeing, ()


def _run_config(mirror: Mirror, level: str) -> RunConfig:
    """What config.toml says of a training that was not ours."""
    model = mirror.config or _sizes_only(mirror)
    return RunConfig(
        task=next(task.name for task in TASKS.values() if task.model_kind == model.kind),
        preset={"CausalLM": "gpt2", "EncoderDecoderLM": "vaswani"}.get(model.kind, "bert"),
        seed=1,
        watch=level,
        watched="layout" if mirror.config is not None else "names",
        data=DataConfig(),
        model=model,
        training=TrainingConfig(batch_size=1, optimizer=OptimizerConfig(kind="adamw", clip=0.0)),
        machine=resolve_machine("cpu", "fp32", 0),
    )


def _sizes_only(mirror: Mirror) -> ModelConfig:
    """The sizes that the matrices tell of a model whose code is not known."""
    catalogue = mirror.catalogue
    shapes = {entry.address: entry.shape for entry in catalogue}
    heads = next((entry for entry in catalogue if entry.kind == "W_Q"), None)
    table = shapes.get("W_E", (1, 1))
    sizes = Sizes(
        d_vocab=table[0],
        d_model=heads.shape[0] if heads else table[1],
        n_layers=1 + max((entry.layer for entry in catalogue if entry.layer is not None), default=0),
        n_heads=heads.n_heads if heads else 1,
        n_kv_heads=next((entry.n_heads for entry in catalogue if entry.kind == "W_K"), 1),
        d_head=heads.width if heads else 1,
        d_mlp=next((entry.shape[1] for entry in catalogue if entry.kind == "W_in"), 0),
        n_ctx=shapes.get("W_pos", (1,))[0],
    )
    return ModelConfig(kind="CausalLM", sizes=sizes)
