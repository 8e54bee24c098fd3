"""A run opened to be looked at: which weights stand for which step, and what a model without its code can tell."""

import base64
import dataclasses
import shutil

import numpy as np
import pytest
import torch

from qkv.config import dump_toml, to_dict
from qkv.errors import ConfigError, UserError
from qkv.folder.run_folder import RunFolder
from qkv.models.matrices import Catalogue
from qkv.views.live.asking import Desk
from qkv.views.live.server import Page
from qkv.views.report.report import read_report
from qkv.views.viewer import Viewer

TEXT = "the day and the night"


def floats(packed):
    return np.frombuffer(base64.b64decode(packed.data), "<f4").reshape(packed.shape)


def watched(run, how):
    """The run as `qkv.watch` leaves one: the weights of the start and of the end."""
    config = dataclasses.replace(run.config, watched=how)
    folder = RunFolder(run.folder)
    folder.note_hash("config.toml", folder.write("config.toml", dump_toml(to_dict(config))))
    for place in (run.folder / "checkpoints").glob("step-*"):
        if place.name != "step-00000000":
            shutil.rmtree(place)
    return run.folder


def test_the_last_step_of_a_finished_run_is_its_model_where_no_checkpoint_is(make):
    run = make()
    whole = read_report(run.folder, [TEXT])
    folder = watched(run, "layout")
    viewer = Viewer(folder)
    assert viewer.steps() == [0, 1000] and viewer.last_step() == viewer.nearest(None) == 1000
    assert viewer.nearest(999) == 0
    for step, expected in ((None, run.last), (1000, run.last), (999, run.start)):
        state = Catalogue(viewer.model(step)).state()
        assert all(torch.equal(state[name], torch.tensor(values)) for name, values in expected.items()), step
    report = read_report(folder, [TEXT])
    assert report.attention[0].steps == (0, 1000) and report.forward.step == 1000 and report.words.steps == (0, 1000)
    assert report.forward.loss == whole.forward.loss
    for name in ("x", "heads"):
        np.testing.assert_array_equal(floats(getattr(report.words.trio, name))[-1],
                                      floats(getattr(whole.words.trio, name))[-1])  # fmt: skip
    assert Desk(viewer).answer("matrix", {"address": "L0.W_Q"}).step == 1000


def test_a_run_that_goes_on_has_no_last_step_but_its_newest_checkpoint(make):
    folder = watched(make(), "layout")
    (folder / "manifest.json").unlink()
    assert Viewer(folder).steps() == [0] and Viewer(folder, 1000).last_step() == 0


def test_a_model_without_its_code_is_shown_as_matrices_and_says_why_it_reads_no_text(make):
    folder = watched(make(), "names")
    viewer = Viewer(folder)
    with pytest.raises(UserError, match="not its code"):
        viewer.reader()
    with pytest.raises(ConfigError, match="not its code"):
        read_report(folder, [TEXT])
    report = read_report(folder)
    assert report.attention == () and report.forward is None
    assert "not its code" in report.missing["attention"]
    assert report.words.steps == (0, 1000) and report.words.trio is None
    page = Page(folder).payload()
    assert page.host.can == ("matrix",) and page.words.trio is None
    answer = Desk(viewer).answer("matrix", {"address": "L1.H2.W_Q"})
    assert answer.step == 1000 and answer.start_step == 0 and answer.shape == (48, 12)
    assert report.play is None and page.play is None  # of what layout it is nobody said
    (folder / "tokenizer.json").unlink()  # most such models come without one
    assert Page(folder).payload().host.can == ("matrix",)
    (note,) = Desk(viewer).answer("matrix", {"address": "L1.H2.QK"}).notes
    assert "not known" in note
