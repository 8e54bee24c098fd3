"""Studies of a person's own images: TEXT:IMAGES, or images alone beside the text inside Python."""

import gzip
import struct

import numpy as np
import pytest

from qkv.errors import SourceError
from qkv.randomness import generator
from qkv.studies.engine.design import Text
from qkv.studies.engine.training import run_trial
from qkv.studies.question import Ask
from qkv.studies.questions import find
from qkv.studies.synthetic import streams
from qkv.studies.synthetic.streams import Given, given
from qkv.studies.verdict.wording import setting_words


def _write(path, values: np.ndarray) -> None:
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape))
        file.write(values.astype(np.uint8).tobytes())


@pytest.fixture
def bars(tmp_path):
    """A folder of IDX files: a bright row, in the upper half or in the lower one, in noise."""
    draws, folder = generator("tests", "own images"), tmp_path / "bars"
    folder.mkdir()
    for part, n in (("train", 1200), ("t10k", 300)):
        labels = draws.integers(2, size=n)
        pixels = draws.integers(40, size=(n, 8, 8))
        pixels[np.arange(n), 4 * labels + draws.integers(4, size=n)] = 250
        _write(folder / f"{part}-images-idx3-ubyte.gz", pixels)
        _write(folder / f"{part}-labels-idx1-ubyte.gz", labels)
    return folder


def _asked(source: str, **more):
    return find("words-or-pixels").design(Ask(source=source, quick=True, **more))


def test_a_source_is_a_text_or_images_or_both(bars, long_text):
    assert given(str(long_text)) == Given(text=str(long_text)) and given("") == Given()
    assert given(str(bars)) == Given(images=str(bars)) == given(f":{bars}")
    assert given(f"{long_text}:{bars}") == Given(text=str(long_text), images=str(bars))
    pair = f"{long_text}:{long_text}"
    assert given(pair) == Given(text=pair), "a pair of texts stays one"


def test_images_take_the_place_of_the_digits_and_the_words_stay(bars, long_text):
    design, of_digits = _asked(f"{long_text}:{bars}"), _asked(str(long_text))
    assert design.images and design.images[0] == "bars" and of_digits.images is None
    assert design.source_sha256 == of_digits.source_sha256
    assert "on the images of bars" in (words := setting_words(design, [design.primary])) and "scikit-learn" not in words

    def keys(which) -> dict[str, str]:
        return {arm.name: which.trial(arm, 1, 0, source="", report=True).key for arm in which.arms}

    same = {name for name, key in keys(design).items() if keys(of_digits)[name] == key}
    assert same == {arm.name for arm in design.arms if arm.name.startswith("words")}, "those are taken over"
    kept = find("words-or-pixels").design(Ask(named=(design.source_name, "0" * 64), images=design.images, quick=True))
    assert setting_words(kept, [kept.primary]) == words and kept.texts == design.texts


def test_a_model_of_images_is_trained_and_measured_on_some_of_those_held_out(bars, long_text):
    design = _asked(f"{long_text}:{bars}")
    drawn = streams.corpus(dict(design.texts)["pixels"], f"{long_text}:{bars}", 0, None)
    few = streams.corpus(Text(stream="images", settings=(("val_images", 50),)), f"{long_text}:{bars}", 0, None)
    assert (len(drawn.val), len(few.val), len(few.train)) == (300, 50, 1200)
    assert (few.val.pixels == drawn.val.pixels[:50]).all(), "more are measured on by adding some"
    row = run_trial(design.trial(design.arm("pixels, trained"), 1, 0, source=f"{long_text}:{bars}", report=True), None)
    assert row["measures"]["accuracy"] > 90 and row["measures"]["told"] > 0.5


def test_images_that_changed_or_that_nothing_reads_are_said(bars, long_text):
    source = f"{long_text}:{bars}"
    design = _asked(source)
    labels = bars / "t10k-labels-idx1-ubyte.gz"
    _write(labels, np.zeros(300))
    with pytest.raises(SourceError, match="have changed since the study began"):
        run_trial(design.trial(design.arms[0], 1, 0, source=source, report=False), None)
    for asked in (str(bars), source):
        with pytest.raises(SourceError, match="three-roles reads text alone"):
            find("three-roles").design(Ask(source=asked, quick=True))
