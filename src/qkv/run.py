"""An opened run: its model, its history and answers to questions about it, all read from its folder.

`qkv.load` and `qkv.train` give one.
"""

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from qkv import recipe
from qkv.changes import parse_changes, plan_changes
from qkv.config import from_dict
from qkv.data.config import DataConfig
from qkv.data.labelled import read_labelled
from qkv.data.sources.tagged import is_tagged, read_tagged
from qkv.errors import ConfigError, DamagedFileError, MissingExtra, RunFolderError, UserError, several, unknown
from qkv.folder.run_folder import RunFolder
from qkv.folder.verified import Damage, check_file, check_weights, is_whole
from qkv.inspection.contextual import Contextual, contextual_vectors, read_in_turn
from qkv.inspection.one_text import OneText, float64_copy, one_text
from qkv.inspection.patching import Patching, asked, named, patch
from qkv.instruments.ledger import check_kept
from qkv.jsontypes import JsonObject
from qkv.models.factored import FactoredMatrix
from qkv.models.matrices import Catalogue
from qkv.othernames import unknown_setting
from qkv.tasks import Data, Evaluation, PredictOptions, Task, find_task
from qkv.telemetry import History, Telemetry, damage, write_table
from qkv.telemetry.own import read_own, write_own
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.words import many, percent

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from qkv.inspection.answers.answer import Answer
    from qkv.inspection.answers.ledger import Balance
    from qkv.inspection.attribution import Direct
    from qkv.inspection.gradient_step import OneStep
    from qkv.inspection.lens import LensLayer
    from qkv.inspection.probes.linear import Probes
    from qkv.inspection.representation import LayerMeasures
    from qkv.inspection.research.cka import Alike
    from qkv.inspection.research.composition import Composition
    from qkv.inspection.research.noise_scale import NoiseScale
    from qkv.inspection.research.pairs import Attributed, Pair
    from qkv.inspection.research.seeds import Spread
    from qkv.inspection.what_moved import ProductChange
    from qkv.instruments.gradients import GradientPath
    from qkv.interop.exporting import Fit
    from qkv.tasks.task import Ranked
    from qkv.views.notebook import AttentionView

FORMATS = ("huggingface", "gguf", "onnx")
"""What a model can be exported as."""


class Run:
    """A model that is trained or training, with everything that its folder holds."""

    def __init__(self, folder: RunFolder, weights: str, cache: Path) -> None:
        self.folder, self.weights, self._cache = folder, weights, cache
        self.path: Path = folder.path
        self.config: recipe.RunConfig = recipe.RunConfig.read(folder.config)
        """What it was made with."""
        task = find_task(self.config.task).with_settings(self.config.data)
        self.task: Task = task.of_classes(self.config.model.classes)
        """What it was trained to do."""

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.config.preset} {self.config.model.kind}, weights={self.weights!r})"

    @cached_property
    def answering(self) -> Task:
        """The task with what its answers need beside weights. Raises DamagedFileError where that is damaged."""
        path = self.path / self.task.companion
        if not self.task.companion or not path.is_file():
            return self.task
        check_file(path)
        return self.task.with_companion(path.read_bytes())

    @cached_property
    def model(self) -> Any:
        """The model, a plain `torch.nn.Module` in evaluation mode: `model(ids [batch, pos]) -> logits`."""
        from qkv.models.decoding import keep_layout

        model = self._with_weights(self._checked())
        keep_layout(model)
        return model

    def _checked(self) -> Path:
        """The file of the weights that were asked for, whole.

        Raises RunFolderError where it is not there, DamagedFileError that also says whether the other one is whole.
        """
        path, other = self.folder.best, self.folder.model
        if self.weights != "best":
            path, other = other, path
        if not path.is_file():
            raise recipe.no_weights(self.folder, self.config, path.name)
        try:
            check_weights(path)
        except DamagedFileError as error:
            name = "last" if self.weights == "best" else "best"
            if not is_whole(other):
                raise
            how = f"the {name} weights are whole: a command that has the option takes them by --weights {name}"
            raise DamagedFileError(f"{error}; {how}") from None
        return path

    def _with_weights(self, path: Path) -> Any:
        return recipe.opened_model(self.config, path, self._readable)[0]

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """Text to ids and back; `.hf` is the library's own. None of a run that reads no text, or was imported so."""
        elsewhere = bool(self.config.imported or self.config.watched)
        if not self.task.tokenizer or (elsewhere and not self.folder.tokenizer.is_file()):
            return None
        return recipe.tokenizer_of(self.folder, self.config)

    def _reads_text(self) -> None:
        """Raises RunFolderError where a model came without a tokenizer, ConfigError where it came without its code."""
        if self.config.watched == "names":
            self.model.forward()  # raises what it says
        if self.tokenizer is None and self.task.tokenizer:
            raise RunFolderError(
                f"{self.path} has no tokenizer, since {self.config.imported or 'qkv.watch'} gave none: the model takes"
                " ids (run.model(ids)); to give it texts, put its tokenizer.json into the run folder"
            )

    @property
    def namer(self) -> Tokenizer | None:
        """`tokenizer`, or None if its file is damaged."""
        with contextlib.suppress(DamagedFileError):
            return self.tokenizer
        return None

    @property
    def _readable(self) -> Mapping[str, int] | None:
        """Token -> row, for addresses."""
        return None if self.namer is None else self.namer.readable

    @property
    def summary(self) -> JsonObject:
        """What `qkv train --json` printed, empty while the run is not finished."""
        return dict(self.folder.read_manifest().get("summary", {})) if self.folder.is_finished else {}

    @property
    def receipt(self) -> JsonObject:
        """What became of every file, row, column and class of its data; empty while it is not finished."""
        return dict(self.folder.read_manifest().get("receipt", {})) if self.folder.is_finished else {}

    @property
    def loss(self) -> float | None:
        """The lowest loss on all validation data, nats per target; finished, of its answers (regress: of attention)."""
        if (stored := self.summary.get("stored_loss")) is not None:
            return stored
        with self.telemetry() as telemetry:
            return best.loss if (best := telemetry.best_evaluation()) else None

    def telemetry(self) -> Telemetry:
        """What was recorded while it trained; use it as a context manager."""
        return Telemetry(self.folder.telemetry)

    def recorded(self) -> Telemetry:
        """`telemetry()`, or an empty one (`is_lost`) if its file is damaged."""
        try:
            return self.telemetry()
        except DamagedFileError:
            return Telemetry.lost(self.folder.telemetry)

    def damage(self) -> tuple[Damage, ...]:
        """Each damaged file of the run: its name, what is wrong, and what you can do."""
        return damage(self.folder)

    def history(self, selector: str, measure: str) -> History:
        """A measure over the steps: address -> series with arrays `.step` and `.value`.

        `.arrays()` gives it on common steps, `.frame()` as a pandas table, `.save("h.csv")` as a file.
        Raises AddressError for a selector that matches nothing, a measure that was not recorded, or one that is a list.
        """
        check_kept(measure, self.config.ledger)
        with self.telemetry() as telemetry:
            return History(telemetry.series(selector, measure))

    def log(self, numbers: Mapping[str, object], step: int | None = None) -> None:
        """Add your own numbers of a step (the last one, if `step` is None): `run.log({"accuracy": 0.71})`.

        `qkv view` of the folder draws them beside ours. They are kept in own.jsonl, outside what a finished run is
        sealed with. Raises UserError for what is no table of numbers.
        """
        if step is None:
            with self.recorded() as telemetry:
                step = telemetry.last_step() or int(self.summary.get("steps") or 0)
        write_own(self.path, step, numbers)

    def logged(self) -> "dict[str, tuple[np.ndarray, np.ndarray]]":
        """Your own numbers: name -> (steps int64 [n], values float64 [n])."""
        return read_own(self.path)

    def save_telemetry(self, path: str | Path) -> Path:
        """Every recorded number as one table of address, measure, step and value: .csv, .csv.gz or .parquet.

        Lists, such as row_drift, stay out. Raises ConfigError for another ending, or where Parquet needs pyarrow.
        """
        with self.telemetry() as telemetry:
            return write_table(path, telemetry.everything())

    def snapshots(self) -> dict[int, Path]:
        """Step -> file of weights, for every step whose weights were kept, oldest first."""
        return self.folder.weights()

    @property
    def has_start(self) -> bool:
        """Whether the weights before the first update were kept, and are whole."""
        return 0 in (kept := self.snapshots()) and is_whole(kept[0])

    def catalogue(self, at: int | None = None) -> Catalogue:
        """Every matrix by address, now or at a step whose weights were kept; raises RunFolderError for another."""
        return Catalogue(self.model_at(at), self._readable)

    @property
    def lora(self) -> dict[str, str]:
        """Of each matrix that was trained as a sum with two factors, the change; its weights here are the sum."""
        changes = [change for text in self.config.changes for change in parse_changes(text) if change.op == "lora"]
        found = plan_changes(changes, self.catalogue(), 0).lora if changes else {}
        return {address: str(change) for address, change in found.items()}

    def model_at(self, at: int | None = None) -> Any:
        """The model now, or with the weights of a step that were kept; raises RunFolderError for another step."""
        if at is None:
            return self.model
        snapshots = self.snapshots()
        if at not in snapshots:
            there = ", ".join(map(str, snapshots)) or "none"
            raise RunFolderError(f"{self.path} kept no weights of step {at}; steps with weights: {there}")
        return self._with_weights(snapshots[at])

    def matrix(self, address: str, at: int | None = None) -> Tensor | FactoredMatrix:
        """A matrix, head or token row in the field's shape (a copy), or a circuit (`L2.H3.OV`) as its factors.

        Raises AddressError for what the model does not have.
        """
        catalogue = self.catalogue(at)
        if address.rpartition(".")[2] in ("QK", "OV"):
            return catalogue.circuit(address)
        return catalogue.view(address).detach().clone()

    def predict(self, texts: Sequence[str], options: PredictOptions | None = None, **given: Any) -> list[str]:
        """One output per input, by its task: a continuation, the text with every [MASK] filled, a label, a translation.

        Options are keywords (`tokens=50, temperature=0`) of `qkv.tasks.PredictOptions`, or such an object. Raises
        ConfigError for an unknown keyword, or one without meaning for the task.
        """
        self._reads_text()
        options = options or PredictOptions()
        for name in given:
            if name not in vars(options):
                raise ConfigError(unknown_setting("option of predict", name, vars(options)))
            if name not in self.task.predict_options:
                known = " or ".join(self.task.predict_options) or "no option"
                raise ConfigError(
                    f"{name} has no meaning for the task {self.task.name}, whose predictions go by {known}"
                )
        read = from_dict(PredictOptions, given)
        options = dataclasses.replace(options, **{name: getattr(read, name) for name in given})
        return self.answering.predict(self.model, self.tokenizer, several("texts", texts), options)

    def spans(self, texts: Sequence[str]) -> list[list[JsonObject]] | None:
        """What a run of the task tag labels in each text, in order: words or entities, each {"start", "end", "text",
        "label", "probability"} with places in characters; of the task answer the answer, with its place in the text
        behind [SEP]; None of other tasks.
        """
        self._reads_text()
        return self.answering.spans(self.model, self.tokenizer, several("texts", texts))

    def scores(
        self, texts: Sequence[str], k: int, options: PredictOptions | None = None
    ) -> "list[Ranked] | list[list[Ranked]]":
        """The k most probable answers to each input (causal: next tokens), each {"output", "probability"}, best first;
        of a masked model one such list for each [MASK] of an input.

        Raises ConfigError for a translation model, whose outputs are no single choice.
        """
        self._reads_text()
        return self.answering.scores(
            self.model, self.tokenizer, several("texts", texts), k, options or PredictOptions()
        )

    def chat(self, messages: Sequence[str]) -> list[str]:
        """What a person says to a chat model, each in the model's own format, for `predict(..., chat=True)`; a JSON
        list of {"role", "content"} is a whole conversation.

        Raises RunFolderError for a model that came without a chat template.
        """
        from qkv.interop.chat import render

        template = recipe.origin_of(self.folder.read_manifest())["chat"] if self.folder.is_finished else {}
        if not template:
            raise RunFolderError(
                f"{self.path} has no chat template (tokenizer_config.json or chat_template.jinja of an imported model);"
                " type the whole prompt, with --special for its special tokens"
            )
        return [render(template, text) for text in several("messages", messages)]

    def too_long(self, texts: Sequence[str], options: PredictOptions) -> list[str]:
        """A sentence for each text that is longer than the context, on what is not read of it."""
        n_ctx, told, how, tokenizer = self.config.model.sizes.n_ctx, [], self.task.too_long, self.tokenizer
        if not how or tokenizer is None:
            return []
        special = options.special or options.chat or self.task.marks
        for i, text in enumerate(texts):
            if (n := len(tokenizer.encode_whole(text, special=special))) > n_ctx:
                told.append(f"input {i + 1} has {n:,} tokens, more than the context of {n_ctx:,}: {how}")
        return told

    def corpus(
        self, source: str | Path | None = None, *, text_column: str | None = None, label_column: str | None = None
    ) -> Data:
        """The data it was trained and validated on, or others, all for validation, under its tokenizer and classes.

        Columns are those of `source`; without them it has columns of the same names, or they are found.
        """
        self._reads_text()
        if source is None and (self.config.imported or self.config.watched):
            how = "imported" if self.config.imported else "trained elsewhere"
            raise ConfigError(f"{self.path} was {how} and has no text of its own; name one: qkv eval RUN SOURCE")
        columns = {"text_column": text_column, "label_column": label_column}
        given = {name: column for name, column in columns.items() if column}
        data = recipe.data_of(self.folder, self.config, str(source or ""), self._cache, given)
        if data.tokenizer is not None and self.tokenizer is not None:
            data.tokenizer.framed = self.tokenizer.framed  # a text is read here as `predict` reads it
        return data

    def evaluate(
        self,
        source: str | Path | None = None,
        *,
        changes: Sequence[str] = (),
        text_column: str | None = None,
        label_column: str | None = None,
    ) -> Evaluation:
        """Loss and accuracy with intervals over the validation text, or over `source`, with matrices changed first.

        `text_column` and `label_column` name columns of `source` that are not called as in the run's own data.

        Computed in the run's own precision, so that its own loss is repeated. The changes are made on a copy; see
        `changed`.
        """
        model = self.changed(changes)[0] if changes else self.model
        with torch.inference_mode(), self.config.machine.passing():
            return self.answering.evaluate(
                model, self.corpus(source, text_column=text_column, label_column=label_column)
            )

    def changed(self, changes: Sequence[str]) -> tuple[Any, list[str]]:
        """A copy of the model with matrices changed, and a sentence for each change, which says who shares the matrix.

        Raises ChangeError or AddressError for one that does not fit.
        """
        model, told = recipe.opened_model(self.config, self._checked(), self._readable, several("changes", changes))
        return model, list(told)

    def embed(self, texts: Sequence[str]) -> list[Contextual]:
        """Contextual vectors of every token of each text, by layer; see `qkv.inspection.contextual`."""
        self._reads_text()
        return contextual_vectors(self.model, self.tokenizer, several("texts", texts), offsets=True)

    def gradient_path(self, text: str, at: int | None = None) -> "GradientPath":
        """How the gradient of `text`'s loss reaches every block and embedding row; see `instruments.gradients`."""
        from qkv.instruments.gradients import gradient_path

        batch = self._one_text(text).batch
        return gradient_path(float64_copy(self.model_at(at)), self.task, batch)

    def patch(
        self,
        text: str,
        other: str,
        *,
        answers: Sequence[str] | None = None,
        addresses: Sequence[str] = (),
        at: int | None = None,
        estimate: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Patching:
        """Activation patching: which activations carry the difference between `text` and `other`, two texts with
        equally many tokens, or two image files. Each is replaced by that of `other`, to see how much of the answer
        follows (`qkv.inspection.patching`). If the answers barely differ, `caution` says so: then read nats.

        `answers` names two tokens or classes; `addresses` limits the activations (`L1.H0.z`). `estimate` takes the
        first-order estimate of every share (attribution patching), from two passes forward and one backward.
        """
        first, second, which = self._pair(text, other, answers)
        return patch(
            self.model_at(at), first, second, answers=which, addresses=addresses, estimate=estimate, progress=progress
        )

    def _pair(self, text: str, other: str, answers: Sequence[str] | None) -> "Pair":
        """Two inputs and two answers as the model takes them."""
        self._reads_text()
        of = self.task, self.tokenizer, self.config.model
        return asked(*of, text), asked(*of, other), named(*of, answers)

    def patch_pairs(
        self, pairs: str | Path | Sequence[Sequence[str]], *, exact: bool = False, at: int | None = None
    ) -> "Attributed":
        """Attribution patching over a data set: what each head and layer carries of the difference between two texts,
        with a 95% interval over pairs; see `qkv.inspection.research.pairs`.

        A pair is (text, other) or (text, other, a, b) with two answers; or give a file with one pair per line, its
        parts separated by tabs. `exact` also patches every site, for comparison.
        """
        from qkv.inspection.research.pairs import attribute, read_pairs

        rows = read_pairs(pairs) if isinstance(pairs, str | Path) else pairs
        given = [self._pair(row[0], row[1], row[2:] or None) for row in rows]
        return attribute(self.model_at(at), given, exact=exact)

    def composition(self, at: int | None = None) -> "Composition | None":
        """How much each head reads what each head of an earlier layer writes (Q, K and V composition), with a random
        baseline; None if no head stands above another. See `qkv.inspection.research.composition`.
        """
        from qkv.inspection.research.composition import composition

        return composition(self.catalogue(at))

    def noise_scale(self, source: str | Path | None = None, *, n: int = 64, at: int | None = None) -> "NoiseScale":
        """The gradient noise scale on `n` examples of the validation data, or of `source`, with a 95% interval.

        See `qkv.inspection.research.noise_scale`. An imported history takes the text that it was imported with.
        """
        from qkv.inspection.research.noise_scale import noise_scale

        return noise_scale(self.model_at(at), self.task, self.corpus(self._text_of(source)), n=n)

    def cka(
        self,
        other: "Run | None" = None,
        texts: Sequence[str] = (),
        *,
        at: int | None = None,
        other_at: int | None = None,
    ) -> "Alike":
        """How alike the vectors of each layer are to those of `other`, or of this run at step `other_at` (linear CKA).

        Both read `texts`, or the first 64 windows of this run's validation text. See `qkv.inspection.research.cka`.
        """
        from qkv.inspection.research.cka import alike

        self._reads_text()
        texts, other = several("texts", texts) or self._windows(), other or self
        one, two = ((self, at), (other, other_at))
        return alike(*(contextual_vectors(run.model_at(step), run.tokenizer, texts) for run, step in (one, two)))

    def side_by_side(self, others: "Sequence[Run]", selector: str, measure: str) -> "Spread":
        """A measure of this run and others, such as other seeds: its mean and 95% interval over runs, at the steps that
        all recorded. Raises AddressError as `history` does, UserError where they have no matrix or step in common.
        """
        from qkv.inspection.research.seeds import side_by_side

        return side_by_side([run.history(selector, measure) for run in (self, *others)])

    def research(
        self,
        source: str | Path | None = None,
        *,
        pairs: str | Path | Sequence[Sequence[str]] = (),
        exact: bool = False,
        against: Sequence["Run"] = (),
    ) -> "list[Answer]":
        """What the measures of research find, as answers for the report: composition of heads, the noise scale and CKA
        of the kept steps (with a text), attribution patching (with `pairs`), and other runs (with `against`).

        Raises UserError or another QkvError where one of those that are asked for cannot be had.
        """
        from qkv.inspection.research import answers

        found = [] if (composed := self.composition()) is None else [answers.of_composition(composed)]
        has_text = bool(source or self.config.data.source or not (self.config.imported or self.config.watched))
        if has_text:
            example = {"buckets": "pairs"}.get(self.task.examples, self.task.examples)
            batch = 0 if self.config.imported or self.config.watched else self.config.training.batch_size
            found.append(answers.of_noise_scale(self.noise_scale(source), example, batch))
        if pairs:
            found.append(answers.of_pairs(self.patch_pairs(pairs, exact=exact)))
        steps, texts = list(self.snapshots()), self._windows(source) if has_text and self._predicts_text else []
        if texts and len(steps) > 1:
            chosen = sorted({steps[i * (len(steps) - 1) // 5] for i in range(5)} - {steps[-1]})
            each = [(f"step {step:,}", self.cka(None, texts, at=steps[-1], other_at=step)) for step in chosen]
            found.append(answers.of_cka(each, "steps", "In which layers did training change the vectors most?"))
        if against:
            every = [(run.path.name, self.cka(run, texts)) for run in against]
            found.append(answers.of_cka(every, "runs", "How alike are the vectors of the other runs?"))
            measure = (
                "norm" if any(run.config.imported and not run.config.history for run in (self, *against)) else "drift"
            )
            found.append(answers.of_seeds(self.side_by_side(against, "**.W_*", measure)))
        return found

    def attribution(self, text: str, *, answers: Sequence[str] | None = None, at: int | None = None) -> "Direct | None":
        """Direct attribution of the answer to `text`, as nats that sum to log p(a) - log p(b).

        `answers` names the tokens a and b; the default is the two likeliest. None if the answer is no such sum: a mean
        over positions, norms after the sublayers, no skip connections, a transform before the output.
        """
        from qkv.inspection.attribution import direct

        self._reads_text()
        of = self.task, self.tokenizer, self.config.model
        return direct(self.model_at(at), asked(*of, text), named(*of, answers))

    def logit_lens(self, text: str, at: int | None = None) -> "list[LensLayer]":
        """What the model would answer to `text` if it ended after each layer; see `qkv.inspection.lens`."""
        from qkv.inspection.lens import logit_lens

        return logit_lens(self.model_at(at), self._one_text(text))

    def _one_text(self, text: str) -> OneText:
        """`text` as the task asks it; an error where there is no tokenizer, or no code of the model."""
        self._reads_text()
        return one_text(self.task, self.tokenizer, self.config.model.sizes, text)

    def ledger(self, first: int = 0, last: int | None = None) -> "Balance | None":
        """How much of the drop in loss from step `first` to `last` is due to each matrix; None without a ledger.

        See `qkv.inspection.answers.ledger.balance`; `set={"ledger.every": 1}` keeps one.
        """
        from qkv.inspection.answers.ledger import balance

        with self.telemetry() as telemetry:
            return balance(telemetry, first, last)

    def layer_measures(self, texts: Sequence[str] = (), at: int | None = None) -> "list[LayerMeasures]":
        """How contextual each layer's vectors are, with baselines; see `qkv.inspection.representation`.

        Over `texts`, or over the first 64 windows of the validation text; `at` takes the weights of a kept step.
        """
        from qkv.inspection.representation import layer_measures

        if self.tokenizer is None:
            raise UserError(f"{self.path} reads no text")
        texts = several("texts", texts) or self._windows()
        return layer_measures(contextual_vectors(self.model_at(at), self.tokenizer, texts))

    @property
    def _predicts_text(self) -> bool:
        from qkv.tasks.text import TextTask

        return isinstance(self.task, TextTask) and self.tokenizer is not None

    def _text_of(self, source: str | Path | None) -> str | Path | None:
        """`source`, or the text that a history was imported with; None for the run's own data."""
        return source or (self.config.data.source if self.config.imported else None) or None

    def _windows(self, source: str | Path | None = None) -> list[str]:
        """The first 64 windows of the validation text, or of `source`, as texts."""
        source = self._text_of(source)
        if not self._predicts_text or (source is None and (self.config.imported or self.config.watched)):
            raise UserError(f"{self.path} has no plain validation text of its own; give texts")
        corpus: Any = self.corpus(source)
        assert self.tokenizer is not None
        ids, n = corpus.val.ids, self.config.model.sizes.n_ctx
        return [self.tokenizer.decode(ids[a : a + n]) for a in range(0, min(64 * n, max(1, len(ids) - n + 1)), n)]

    def what_moved(self, text: str, a: int, b: int, *, placed: bool = True) -> "list[ProductChange]":
        """Why q, k, v and scores changed on `text` from step `a` to `b`; see `qkv.inspection.what_moved`."""
        from qkv.inspection.what_moved import what_moved

        if self.tokenizer is None or not hasattr(self.model, "blocks"):
            raise UserError(f"{self.path} is no model of one stack that reads a text; there is nothing to compare")
        ids = self.tokenizer.encode_whole(text, special=self.task.marks)
        if not 0 < len(ids) <= (most := self.config.model.sizes.n_ctx):
            raise UserError(f"the text has {many(len(ids), 'token')}; this model reads 1 to {most}")
        return what_moved(self.model_at(a), self.model_at(b), torch.tensor([list(map(int, ids))]), placed=placed)

    def step(self, text: str, *, on: str = "**", rate: float | None = None) -> "OneStep":
        """What one step of gradient descent on `text` would change; see `qkv.inspection.gradient_step`.

        `on` selects matrices, heads or rows. The step of the run's own optimizer, at its peak rate, is given too if the
        newest checkpoint has its state and the weights are the last ones.
        """
        from qkv.inspection.gradient_step import one_step

        asked = self._one_text(text)
        own = recipe.own_step(self.folder, self.config) if self.weights == "last" else None
        return one_step(self.model, self.task, asked, on, vocabulary=self._readable, rate=rate, own=own)

    def attention(self, text: str, at: int | None = None) -> "AttentionView":
        """Every head's attention on `text` under the weights of a kept step (the last): show it in a notebook, or
        `.save("a.html")`, `.save("a.svg")`.

        Raises UserError for a text of fewer than two tokens or more than 20,000 characters.
        """
        from qkv.views.notebook import AttentionView
        from qkv.views.viewer import Viewer

        return AttentionView(Viewer(self.path), text, at)

    def probe(
        self,
        source: str | Path,
        *,
        at: int | None = None,
        text_column: str | None = None,
        label_column: str | None = None,
    ) -> "Probes":
        """How much of the labels in a file (of words: CoNLL-U and the like; of texts: a table) can be read off the
        vectors of each layer, at a step whose weights were kept, if given; see `qkv.inspection.probes.linear`.

        Raises SourceError for a file that cannot be read as labels, UserError for too few of them.
        """
        from qkv.inspection.probes.linear import MOST_LABELS, probe, text_items, word_items

        self._reads_text()
        model = self.model_at(at)
        if is_tagged(Path(source)):
            if text_column:
                raise ConfigError(f"{source} holds labels of words and has no column of texts; leave --text-column out")
            tagged = read_tagged(Path(source), label_column or "")
            n = int(np.searchsorted(np.cumsum([len(one.words) for one in tagged]), MOST_LABELS)) + 1
            read = contextual_vectors(model, self.tokenizer, [one.text for one in tagged[:n]], offsets=True)
            return probe(word_items(tagged[:n], read), by_word=True)
        config = DataConfig(source=str(source), text_column=text_column or "", label_column=label_column or "")
        found = read_labelled(config)
        read = read_in_turn(model, self.tokenizer, found.texts[:MOST_LABELS])
        return probe(text_items(found.labels[:MOST_LABELS], read), by_word=False)

    def export(self, out: str | Path, format: str = "huggingface") -> "Fit":
        """Write it for other programs: as a Hugging Face folder, a `gguf` file or a folder with `onnx`.

        A Hugging Face folder has config.json, safetensors, tokenizer and a model card. `fit.family` is the layout of
        transformers that loads it. If it is None, `fit.why_not` says why, and the folder has a modeling file of ours.
        `fit.notes` says what to know of the file, such as what it has not.

        Raises RunFolderError if `out` already exists, ConfigError for a kind of model that cannot be written or an
        unknown format, MissingExtra where ONNX is not installed.
        """
        if format not in FORMATS:
            raise ConfigError(unknown("format", format, FORMATS))
        if not self.task.exported:
            raise ConfigError(
                f"{self.path} is a run of the task {self.task.name}, whose answers no other format holds; qkv predict"
                " and qkv.load give them"
            )
        if self.config.watched == "names":
            raise ConfigError(f"{self.path} holds the matrices of a model of another program, and not its layout")
        if code := self.config.model.code:
            raise ConfigError(f"{self.path} is a model of your own class {code}, whose code no other program has")
        from qkv.interop.card import model_card
        from qkv.interop.exporting import Fit, check_export, find_family, write_checkpoint
        from qkv.interop.formats.gguf import check_file, write_gguf
        from qkv.interop.formats.onnx import write_onnx

        (check_file if format == "gguf" else check_export)(out := Path(out))
        manifest = self.folder.read_manifest() if self.folder.is_finished else {}
        told, name = recipe.origin_of(manifest), self.path.resolve().name
        config, summary = self.config.model.resolved(), dict(self.summary)
        if format == "gguf":
            return write_gguf(config, self._stored_state(), self.tokenizer, out, name=name, **told)
        summary.setdefault("parameters", sum(p.numel() for p in self.model.parameters()))
        fit = find_family(config, told["wanted"]) if format == "huggingface" else None
        columns = 1 if self.tokenizer is None else self.tokenizer.columns
        card = model_card(name, config, fit, manifest, summary, weights=self.weights, columns=columns)
        if fit is None:
            write_onnx(self.model, config, self.tokenizer, out, card=card, chat=told["chat"])
            made = Fit(None, "")
        else:
            made = write_checkpoint(config, self._stored_state(), self.tokenizer, out, card=card, **told)
        return dataclasses.replace(made, notes=(*made.notes, *self._left_behind()))

    def _left_behind(self) -> list[str]:
        """A sentence on what an export has not, of a classifier that attention is a part of; else none."""
        if "attention_accuracy" not in self.summary:
            return []
        own, alone = (percent(self.summary[name]) for name in ("accuracy", "attention_accuracy"))
        return [
            f"It holds attention alone, whose validation accuracy is {alone}; with the linear model, which no format"
            f" has, `qkv predict` reaches {own}"
        ]

    def _stored_state(self) -> dict[str, Tensor]:
        """The values of every address, shared ones under each of their names."""
        state = (entries := Catalogue(self.model)).state()
        shared = {name: state[first] for name, first in entries.aliases.items() if not entries.entry(name).transposed}
        return state | shared

    def to_transformers(self) -> "PreTrainedModel":
        """The model as a class of transformers, whose modules PEFT and torchao know (`nn.Linear`, GPT-2's `Conv1D`).

        A layout that transformers has no class for is loaded by the modeling file of ours, whose weights are plain
        parameters. Changes to it do not come back to this run.

        Raises MissingExtra where transformers is not installed, ConfigError as `export` does.
        """
        try:
            import transformers
        except ImportError:
            raise MissingExtra("to_transformers needs another library; type: pip install transformers") from None
        with tempfile.TemporaryDirectory() as folder:
            fit = self.export(Path(folder) / "model")
            loader = getattr(transformers, fit.auto)
            return loader.from_pretrained(Path(folder) / "model", trust_remote_code=fit.family is None).eval()

    def report(
        self, out: str | Path | None = None, texts: Sequence[str] = (), research: "Sequence[Answer]" = ()
    ) -> Path:
        """Write the self-contained HTML report, with what `Run.research` found if that is given; returns its path."""
        from qkv.views.report.report import write_report

        place = Path(out) if out else None
        return write_report(self.path, out=place, texts=tuple(several("texts", texts)), research=research)
