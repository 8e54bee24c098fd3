"""Somebody else's checkpoint as a run folder: everything that shows a run opens it, and `--from` trains it further.

It has no history: no text, no losses, no earlier weights. What it has is measured once, at step 0.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.config import dump_toml, to_dict
from qkv.data.config import DataConfig
from qkv.data.examples import n_columns
from qkv.errors import DamagedFileError
from qkv.folder.run_folder import RunFolder, link, write_atomically
from qkv.folder.staging import staged
from qkv.instruments.recorder import Recorder
from qkv.interop import Imported
from qkv.jsontypes import JsonObject
from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.presets import PRESETS
from qkv.recipe.config import RunConfig
from qkv.recipe.manifest import machine_facts
from qkv.tasks import TASKS
from qkv.telemetry import Store
from qkv.tokenizers.tokenizer import Tokenizer, load_tokenizer
from qkv.training.config import TrainingConfig
from qkv.training.precision import resolve as resolve_machine
from qkv.training.record import RunContext
from qkv.training.tensorfile import streamed

LARGEST_MEASURED = 20_000_000
"""Parameters up to which spectra and single heads are measured at import; beyond, whole matrices only."""
_MARKED = (
    "a run of the task answer reads its question and text with a mark on each word that both have (W_type), which texts"
    " elsewhere lack; ask it with qkv predict"
)


def import_run(imported: Imported, out: Path) -> Path:
    """Write a checkpoint as a new run folder, which is there whole or not at all, and give its path.

    Raises RunFolderError where the place is taken, StorageError where it cannot be written; nothing is left then.
    """
    final = RunFolder(out)
    final.check_vacant()
    n_parameters = sum(values.numel() for values in imported.state.values())
    config = run_config(imported, str(imported.folder.absolute()))
    with staged(out) as place, RunFolder.create(place) as folder:
        folder.write("config.toml", dump_toml(to_dict(config)))
        if imported.tokenizer is not None:
            for name, content in imported.tokenizer.files().items():
                folder.write(name, content)
        write_atomically(folder.model, streamed(imported.state))
        link(folder.model, folder.best)
        _measure(folder, config, imported)
        about = imported_facts(imported) | {"folder": config.imported}
        folder.seal(
            machine_facts(config)
            | {"parent": "", "imported": about, "summary": summary_of_import(out, 0, n_parameters)}
        )
        final.make_room()
    return out


def run_config(imported: Imported, source: str, *, history: str = "", text: str = "") -> RunConfig:
    """What config.toml says of a model read from `source`; of a history also what is kept of it, and a text."""
    n_parameters = sum(values.numel() for values in imported.state.values())
    preset = PRESETS[imported.family.preset]
    return RunConfig(
        task=next(t.name for t in TASKS.values() if imported.config.kind in (t.model_kind, f"Causal{t.model_kind}")),
        preset=preset.name,
        seed=1,
        watch="full" if n_parameters <= LARGEST_MEASURED else "light",
        imported=source,
        history=history,
        data=DataConfig(source=text),
        model=imported.config,
        training=TrainingConfig(batch_size=1, optimizer=preset.optimizer),
        machine=resolve_machine("cpu", "fp32", 0),
    )


def summary_of_import(out: Path, steps: int, n_parameters: int) -> JsonObject:
    """What the manifest says of the length and the size of an imported run."""
    why = {"stopped_because": "import", "val_loss": None}
    return {"run": str(out), "steps": steps, "tokens": 0, "parameters": n_parameters} | why


def imported_facts(imported: Imported) -> JsonObject:
    """What the manifest says of where a model came from."""
    about = {"family": imported.family.name, "notes": imported.notes, "marks": imported.marks}
    return about | ({"chat": imported.chat} if imported.chat else {})


def _measure(folder: RunFolder, config: RunConfig, imported: Imported) -> None:
    """The matrices as they came, as step 0 of the telemetry."""
    model = build(config.model, config.seed, materialise=False).to_empty(device="cpu")
    catalogue = Catalogue(model)
    catalogue.load_state(imported.state)
    with Store(folder.telemetry) as store:
        recorder = Recorder(store, config.watch)
        recorder.on_start(
            RunContext(
                seed=config.seed,
                model=model,
                catalogue=catalogue,
                task=TASKS[config.task],
                config=config.training,
                machine=config.machine,
                folder=folder.path,
            )
        )


def origin_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What an export of an imported run goes back to: `wanted`, its family, `marks`, its tokens with a meaning, and
    `chat`, its chat template.
    """
    told = manifest.get("imported", {})
    return {"wanted": told.get("family", ""), "marks": told.get("marks", {}), "chat": told.get("chat", {})}


def check_vocabulary(folder: RunFolder, config: RunConfig, tokenizer: Tokenizer | None) -> None:
    """Make sure that a run's model has a row for each token. Raises DamagedFileError where it has not."""
    rows = config.model.sizes.d_vocab
    if tokenizer is not None and rows and tokenizer.d_vocab > rows:
        raise DamagedFileError(
            f"{folder.tokenizer} is not the tokenizer of this run: it has ids up to {tokenizer.d_vocab - 1}, and the"
            f" model has {rows} tokens (0 to {rows - 1}); put the run's own back"
        )


def tokenizer_of(folder: RunFolder, config: RunConfig) -> Tokenizer:
    """The tokenizer of a run as its model expects it; one that came from elsewhere is told whether texts are framed,
    which tokens end them, and which one begins a target.

    Raises SourceError where the folder has none that can be read, DamagedFileError where it is another model's.
    """
    tokenizer = load_tokenizer(folder.tokenizer)
    check_vocabulary(folder, config, tokenizer)
    tokenizer.framed = bool(config.imported or config.watched)
    answers = config.task == "answer"
    tokenizer.columns = 2 if answers else n_columns(config.data)
    if answers and config.model.sizes.n_types:
        tokenizer.unread = _MARKED
    if config.imported and folder.is_finished:
        marks = origin_of(folder.read_manifest())["marks"]
        ends = marks.get("eos_token_id", [])
        tokenizer.ends = tuple(ends if isinstance(ends, list) else [ends])
        tokenizer.start = marks.get("decoder_start_token_id")
    return tokenizer
