"""The sections of a page, read from a run folder when asked for, so that a live page can ask for some again.

A folder of a run that is still training, was interrupted or was not watched gives what is there; a section without
data is None and `missing` says why. Use a `Sections` as a context manager: it holds the telemetry open.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import Tensor

from qkv.errors import QkvError, UserError
from qkv.inspection.answers.answer import unit_of
from qkv.inspection.answers.reading import read
from qkv.inspection.control import labels
from qkv.inspection.stored_run import StoredRun
from qkv.jsontypes import JsonObject
from qkv.models.layout import RopeScaling
from qkv.models.positions import Rotary
from qkv.telemetry import Memory, Telemetry, damage
from qkv.views.host import VERSION, Host
from qkv.views.own_sections import Section, own_sections
from qkv.views.sections.answers import AnswerNote, note
from qkv.views.sections.attention import (
    Exhibit,
    attention_on,
    exhibited,
    exhibits_of,
    n_attentions,
    picture_of,
    texts_to_show,
)
from qkv.views.sections.forward import LONGEST_CARRIED, ForwardText, forward, forward_image, layers_that_fit
from qkv.views.sections.grids import GridSection, OtherRun, grid_section
from qkv.views.sections.header import RunFacts, head_facts, machine_words, seconds, verdict
from qkv.views.sections.heads import LONGEST, AttentionText
from qkv.views.sections.ledger import LedgerSection, ledger_section
from qkv.views.sections.loss import LossSection, baselines, loss_section
from qkv.views.sections.made import Made, made_section
from qkv.views.sections.matrices import MatricesSection, Snapshots, matrices_section
from qkv.views.sections.measures_map import MapSection, map_section
from qkv.views.sections.samples import SampleNote, samples
from qkv.views.sections.token_rows import RowsSection, rows_section
from qkv.views.sections.training_in_page import PlaySection, play_section
from qkv.views.sections.vocabulary import WordsSection, words_section
from qkv.views.sharing import still_wanted
from qkv.views.viewer import Viewer

_NO_MAP = "This run has no measurements (it was trained with --watch off), so there is no map of its matrices."
_NO_MAP_YET = (
    "No matrix of this run has been measured yet: the first measurements are those of step 0, before its first update."
)
_LOST = "What was recorded of this run cannot be shown: telemetry.sqlite is damaged."
_NO_WEIGHTS = "No weights can be read from this folder yet, so there are no pictures of the matrices."
_VERDICT_IMPORTED = "This model was imported. Nothing was trained here; its matrices are shown unchanged."
_VERDICT_HISTORY = (
    "The training history of this model was imported. It has no losses or gradients: they are not saved with weights."
)
_NO_TEXT = 'Give a text to see attention on it: qkv report RUN --text "your text".'
_NO_IMAGE = "Give an image to see attention on it: qkv report RUN --text picture.png."

STEPPED_BYTES = 900_000
"""Section for one text's attention at several steps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Everything a page shows: each field is one model key of the ES modules in `static/` (`model.get("loss")`).

    A section for which a run has no data is None, and its view says so or stays away.
    """

    host: Host
    run: RunFacts
    answers: tuple[AnswerNote, ...]
    made: Made
    loss: LossSection | None = None
    samples: tuple[SampleNote, ...] = ()
    rows: RowsSection | None = None
    map: MapSection | None = None
    grid: GridSection | None = None
    matrices: MatricesSection | None = None
    attention: tuple[AttentionText, ...] = ()
    forward: ForwardText | None = None
    words: WordsSection | None = None
    ledger: LedgerSection | None = None
    play: PlaySection | None = None
    other: OtherRun | None = None
    decisions: JsonObject | None = None
    """Of a classifier, as `qkv.tasks.labels.decisions` makes it."""
    own: tuple[Section, ...] = ()
    """What other packages show."""
    kept: tuple[int, ...] = ()
    """Every step whose weights were kept."""
    as_of: int = 0
    """The last update that anything here was read from."""
    pulse: object = None
    """Of a live page, how far the run was when this was read, as its events tell it."""
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    """section -> why it is not here and what to type to have it."""
    damaged: tuple[str, ...] = ()
    """What of the run is not what was written, a sentence for each file; nothing that is shown comes from these."""
    version: int = VERSION


class Sections:
    """A run folder as payloads. `texts` are those that attention is shown on; without any, the run's last sample."""

    def __init__(
        self,
        run: Path | StoredRun,
        texts: Sequence[str] = (),
        viewer: Viewer | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.stored, self._texts, self._viewer = StoredRun.of(run), texts, viewer
        self.folder = self.stored.path
        try:
            self.telemetry: Telemetry | None = Telemetry(self.stored.folder.telemetry, memory)
            self.telemetry.hold()
        except QkvError:
            self.telemetry = None

    def __enter__(self) -> "Sections":
        return self

    def __exit__(self, *_: object) -> None:
        if self.telemetry is not None:
            self.telemetry.close()

    @cached_property
    def snapshots(self) -> Snapshots:
        """The weights that were kept."""
        # until a run is finished its model.safetensors is the newest checkpoint
        return Snapshots(self.folder, self.n_steps if self.stored.folder.is_finished else None)

    @cached_property
    def counts(self) -> np.ndarray | None:
        """How often each token stands in the training text, int [d_vocab]; None where it was not counted."""
        return self.telemetry.vector(self.telemetry.token_table(), "row_count") if self.telemetry else None

    @cached_property
    def facts(self) -> JsonObject:
        """The facts that telemetry keeps."""
        return self.telemetry.facts() if self.telemetry else {}

    @cached_property
    def n_steps(self) -> int | None:
        """Updates made."""
        said = self.stored.manifest.get("summary", {}).get("steps")
        return (self.telemetry.last_step() if self.telemetry else 0) or said

    @property
    def sizes(self) -> dict[str, int]:
        """d_model, n_layers and the others by name, with d_head where it can be derived."""
        said = self.stored.settings.get("model", {}).get("sizes", {})
        sizes = {name: int(size) for name, size in said.items() if isinstance(size, int)}
        if sizes.get("n_heads") and sizes.get("d_model") and not sizes.get("d_head"):
            sizes["d_head"] = sizes["d_model"] // sizes["n_heads"]
        if sizes.get("n_heads") and not sizes.get("n_kv_heads"):
            sizes["n_kv_heads"] = sizes["n_heads"]
        return sizes

    # the sections

    def loss(self) -> LossSection | None:
        """Training and validation loss beside the baselines."""
        found = self.facts.get("baselines")
        n_classes = len(self.stored.settings.get("model", {}).get("classes", ()))
        n_answers = self.stored.task.guessed or n_classes or self.sizes.get("d_vocab")
        lines = baselines(found, n_answers, self.stored.task.yardsticks)
        return loss_section(self.telemetry, lines, found or {}) if self.telemetry else None

    def answers(self) -> tuple[AnswerNote, ...]:
        """Common questions, answered from the run, in their order of weight; all of them rest on telemetry."""
        still_wanted()
        return tuple(map(note, read(self.stored, self.telemetry))) if self.telemetry else ()

    def ledger(self) -> LedgerSection | None:
        """What each matrix's movement took off the loss."""
        return ledger_section(self.telemetry) if self.telemetry else None

    def samples(self, *, whole: bool = False) -> tuple[SampleNote, ...]:
        """What the model wrote, step by step; `whole` as for `samples`."""
        if self.telemetry is None:
            return ()
        task = self.stored.task
        return samples(self.telemetry, continues=task.continues, given=task.given, whole=whole)

    def map(self) -> MapSection | None:
        """Every matrix x every recorded step x every measure."""
        still_wanted()
        return map_section(self.telemetry) if self.telemetry else None

    def grid(self) -> GridSection | None:
        """Every head at every step."""
        still_wanted()
        stretch = _stretch(self.stored.settings, self.sizes)
        return grid_section(self.telemetry, self.snapshots, _heads(self.sizes), stretch)

    def matrices(self) -> MatricesSection | None:
        """The weights as pictures."""
        still_wanted()
        inputs = "values of a patch" if self.stored.task.reads == "images" else "tokens"
        return matrices_section(self.snapshots, _heads(self.sizes), inputs=inputs)

    def rows(self) -> RowsSection | None:
        """The token table row by row."""
        still_wanted()
        tokenizer = self.stored.tokenizer
        if tokenizer is None:
            return None
        words = [tokenizer.token(i) for i in range(tokenizer.d_vocab)]
        specials = sorted(self.facts.get("special_tokens", {}).values())
        return rows_section(self.telemetry, self.snapshots, words, self.counts, specials, self._example())

    def attention(self) -> tuple[tuple[AttentionText, ...], str]:
        """(patterns on each text, why there are none).

        Raises UserError or another QkvError for a text that was asked for and cannot be shown.
        """
        texts, exhibits = self._shown
        try:
            viewer = self._viewer or Viewer(self.stored, self.n_steps)
            if not viewer.has_code:
                viewer.reader()  # says why
            if not texts and not exhibits:
                return (), _NO_IMAGE if self.stored.task.reads == "images" else _NO_TEXT
            if self.stored.tokenizer is None and self.stored.task.reads == "text":
                raise UserError("the tokenizer of this run cannot be read")
            steps = self._steps_of_attention(viewer)
            return exhibited(viewer, exhibits, steps) if exhibits else attention_on(viewer, texts, steps), ""
        except QkvError as error:
            if self._texts:
                raise
            return (), f"There is no attention to show: {error}."

    @cached_property
    def _shown(self) -> tuple[list[tuple[str, str]], list[Exhibit]]:
        """Texts, or paths of images, that are shown, as (name, text); without any, the images that a run keeps."""
        texts = texts_to_show(self._texts, self.samples(whole=True))
        return texts, exhibits_of(self.telemetry) if self.stored.task.reads == "images" and not texts else []

    def forward(self) -> ForwardText | None:
        """The first text or image on its way through the model, as much as fits a page; None without any or a model."""
        still_wanted()
        texts, exhibits = self._shown
        if not (texts or exhibits) or (self.stored.tokenizer is None and self.stored.task.reads == "text"):
            return None
        try:
            viewer = self._viewer or Viewer(self.stored, self.n_steps)
            if self.stored.task.reads != "images":
                layers = layers_that_fit(viewer, LONGEST_CARRIED)
                return forward(viewer, texts[0][1], None, layers=layers, longest=LONGEST_CARRIED)
            image = viewer.pixels(exhibits[0].pixels) if exhibits else viewer.image(Path(texts[0][1]))
            name, label = (exhibits[0].name, exhibits[0].label) if exhibits else (texts[0][0], "")
            layers = layers_that_fit(viewer, len(image.tokens))
            return forward_image(viewer, image, name, picture_of(viewer, image, label), layers) if layers else None
        except QkvError:  # what the attention section says of it holds here too
            return None

    def words(self) -> WordsSection | None:
        """Neighbours and a map of the most frequent tokens."""
        still_wanted()
        if self.stored.tokenizer is None:
            return None
        tokens = [self.stored.tokenizer.token(i) for i in range(self.stored.tokenizer.d_vocab)]
        specials = sorted(self.facts.get("special_tokens", {}).values())
        try:
            viewer = self._viewer or Viewer(self.stored, self.n_steps)
            viewer.reader()
        except QkvError:
            viewer = None
        return words_section(self.snapshots, tokens, self.counts, specials, viewer)

    def play(self) -> PlaySection | None:
        """What the playground needs to go on training."""
        return play_section(self.folder, self.stored.settings, self.stored.tokenizer, self.snapshots)

    def _steps_of_attention(self, viewer: Viewer) -> list[int]:
        """Kept steps at which the first text is shown: as many as fit, the last among them."""
        sizes = self.sizes
        n = min(LONGEST, sizes.get("n_ctx", LONGEST))
        maps = sizes.get("n_layers", 1) * sizes.get("n_heads", 1) * n_attentions(viewer)
        cells = maps * n * ((n + 1) / 2 if viewer.causal else n)
        n = min(6, int(STEPPED_BYTES / (cells * 4 / 3))) if cells else 0
        kept = [step for step in self.snapshots.spread(max(n, 1)) if step in viewer.steps()]
        return kept if n > 1 else []

    def run(self) -> RunFacts:
        """The head of the page."""
        kind = self.stored.tokenizer.kind if self.stored.tokenizer else ""
        layout = self.stored.settings.get("model", {}).get("layout", {})
        unit = unit_of(self.stored.task, self.stored.tokenizer)
        return RunFacts(
            name=self.folder.resolve().name,
            task=str(self.stored.settings.get("task", "")),
            preset=str(self.stored.settings.get("preset", "")),
            verdict=_VERDICT_HISTORY
            if self.stored.settings.get("history")
            else _VERDICT_IMPORTED
            if self.stored.settings.get("imported")
            else verdict(
                f"{self.stored.task.asked.format(unit=unit)} of {self.stored.task.reads}",
                self.n_steps,
                validated=bool(self.telemetry and self.telemetry.n_evaluations()),
                finished=self.stored.folder.is_finished,
            ),
            unit=unit,
            n_parameters=sum(math.prod(shape) for shape in self.snapshots.shapes.values()) or None,
            n_tokens=self.telemetry.tokens_seen() if self.telemetry else None,
            n_steps=self.n_steps,
            train_seconds=seconds(self.telemetry, self.stored.manifest),
            machine=machine_words(self.stored.settings, self.stored.manifest),
            facts=tuple(head_facts(self.stored.settings, self.stored.manifest, kind, self.sizes.get("d_vocab"))),
            sizes=self.sizes,
            mixer=str(layout.get("mixer", "attention")),
            control=labels(self.telemetry),
        )

    def report(self, host: Host) -> Report:
        """Every section."""
        loss, chart, matrices = self.loss(), self.map(), self.matrices()
        attention, why = self.attention()
        absent = {
            "map": "" if chart else self._why_no_map,
            "matrices": _NO_WEIGHTS if matrices is None else "",
            "attention": why,
        }
        return Report(
            host=host,
            run=self.run(),
            answers=self.answers(),
            made=made_section(self.folder, self.stored.manifest, self.telemetry, self.n_steps),
            loss=loss,
            samples=self.samples(),
            rows=self.rows(),
            map=chart,
            grid=self.grid(),
            matrices=matrices,
            attention=attention,
            forward=self.forward(),
            words=self.words(),
            ledger=self.ledger(),
            play=self.play(),
            decisions=self.facts.get("decisions"),
            own=own_sections(self.stored),
            kept=tuple(self.snapshots.steps),
            as_of=self.n_steps or 0,
            damaged=self.damaged,
            missing={section: why for section, why in absent.items() if why},
        )

    @cached_property
    def damaged(self) -> tuple[str, ...]:
        """A sentence for each file of the run that is not what was written."""
        found = [one.sentence for one in damage(self.stored.folder)]
        return tuple(dict.fromkeys([*found, *self.snapshots.damaged]))

    @property
    def _why_no_map(self) -> str:
        if self.telemetry is None and any("telemetry.sqlite" in sentence for sentence in self.damaged):
            return _LOST
        return _NO_MAP if self.stored.folder.is_finished or self.stored.settings.get("watch") == "off" else _NO_MAP_YET

    def _example(self) -> int | None:
        """The token whose row is shown first: `the`, where it is one and stands in the text."""
        the = self.stored.tokenizer.readable.get("the") if self.stored.tokenizer else None
        return the if the is not None and (self.counts is None or self.counts[the] > 0) else None


def _heads(sizes: dict[str, int]) -> dict[str, int]:
    """Heads side by side in each kind of attention matrix."""
    query, shared = sizes.get("n_heads", 0), sizes.get("n_kv_heads", 0)
    return {"W_Q": query, "W_O": query, "W_K": shared, "W_V": shared}


def _stretch(settings: JsonObject, sizes: dict[str, int]) -> Tensor | None:
    """By what positions make each coordinate of q and of k longer, [d_head]; None where by none."""
    layout = settings.get("model", {}).get("layout", {})
    scaling = RopeScaling(stretch=layout.get("rope_scaling", {}).get("stretch", 1.0))
    if layout.get("positions") != "rotary" or not sizes.get("d_head"):
        return None
    return Rotary(sizes["d_head"], 10000.0, layout.get("rope_share", 1.0), scaling).stretch(sizes["d_head"])
