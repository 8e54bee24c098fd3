"""The tiny study as a fixture."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("scipy.stats", reason="SciPy is in the extra study")


@pytest.fixture(scope="session")
def tiny_study() -> ModuleType:
    """The module tiny_study.py."""
    spec = importlib.util.spec_from_file_location("tiny_study", Path(__file__).with_name("tiny_study.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def long_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 330 kB of made words by Zipf's law, with some structure, the same every time."""
    from qkv.randomness import generator
    from qkv.studies.synthetic.streams import word

    draws = generator("tests", "long_text")
    ranks = draws.zipf(1.3, size=110_000) % 3000
    ranks[1::2] = (7 * ranks[::2] + 1) % 3000
    path = tmp_path_factory.mktemp("text") / "long.txt"
    path.write_text(" ".join(word(int(rank)) for rank in ranks), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def finish(small_text: Path) -> Callable[..., Any]:
    """finish(task, changes=, layout=, text=, source=, **scale) -> a `Finished` of the model at its start, float32."""
    from qkv.studies.engine.assembly import parts_of
    from qkv.studies.engine.design import Arm, Scale, Text, Trial
    from qkv.studies.engine.training_log import Finished
    from qkv.studies.synthetic.streams import corpus
    from qkv.tasks import validation_loss

    def make(task: str = "causal", text: Text | None = None, source: Path | None = None, **more: Any) -> Finished:
        source, text = source or small_text, text or Text()
        arm = Arm(
            name="a", what="", task=task, changes=more.pop("changes", ()), layout=tuple(more.pop("layout", {}).items())
        )
        sizes = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 16, "batch_size": 8, "steps": 4} | more
        made = corpus(text, str(source), 1024, None)
        scale = Scale(**({"val_tokens": 1024} | sizes))
        trial = Trial(
            arm=arm, text=text, scale=scale, source=str(source), source_sha256=made.sha256, lr=0.01, seed=1, software=""
        )
        parts = parts_of(trial, made)
        loss = validation_loss(parts.model, parts.task, made, 64)
        return Finished(trial=trial, parts=parts, loss=loss)

    return make


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of tokens and vocabularies for all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def untrained() -> Callable[..., Any]:
    """untrained(path, task, tokenizer=..., stream=..., **layout): a small model at its start, as probes get it."""
    from qkv.studies.engine.assembly import parts_of
    from qkv.studies.engine.design import Arm, Scale, Text, Trial
    from qkv.studies.engine.training_log import Finished
    from qkv.studies.synthetic import streams

    scale = Scale(d_model=16, n_layers=2, n_heads=2, n_ctx=16, batch_size=4, steps=1, val_tokens=4096)

    def make(path: Path, task: str, *, tokenizer: str, stream: str = "text", seed: int = 1, **layout: Any) -> Finished:
        text = Text(stream=stream, tokenizer=tokenizer)
        corpus = streams.corpus(text, str(path), scale.val_tokens, None)
        arm = Arm(name=task, what="", task=task, layout=tuple(layout.items()))
        trial = Trial(
            arm=arm, text=text, scale=scale, source=str(path), source_sha256=corpus.sha256, lr=0.01, seed=seed,
            software="x",
        )  # fmt: skip
        parts = parts_of(trial, corpus)
        return Finished(trial=trial, parts=parts, loss=0.0)

    return make


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """5,000 texts of 3 to 20 words in two classes."""
    from qkv.randomness import generator
    from qkv.studies.synthetic.streams import word

    draws, rows = generator("tests", "occurrences"), ["text\tlabel"]
    for i in range(5000):
        words = [word(int(w)) for w in draws.zipf(1.5, size=int(draws.integers(3, 21))) % 40]
        rows.append(" ".join(words) + f"\t{i % 2}")
    path = tmp_path_factory.mktemp("labelled") / "labelled.tsv"
    path.write_text("\n".join(rows) + "\n")
    return path
