"""A study on a real Ray cluster of this machine: the verdict of one process, also where workers are killed."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qkv.cli import main
from qkv.errors import ConfigError, MissingExtra
from qkv.installing import install
from qkv.studies.engine import cluster, workers
from qkv.studies.engine.cluster import Cluster, is_cluster
from qkv.studies.engine.store import read_rows

ALONE = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def test_where_a_study_may_train() -> None:
    assert is_cluster("ray") and is_cluster("ray://10.0.0.5:6379") and not is_cluster("local")
    for wrong in ("rays", "ray://", "ray://head", ""):
        with pytest.raises(ConfigError, match="expected local, ray .*ray://HOST:PORT"):
            is_cluster(wrong)


def test_a_wrong_place_is_one_sentence_and_makes_nothing(small_text, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study", "frozen-embeddings", str(small_text), "--quick", "--on", "moon"]) == 2
    said = capsys.readouterr().err
    assert "--on is 'moon'; expected local, ray" in said and not (tmp_path / "runs").exists()


def test_without_ray_the_line_to_type_is_said(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match="--on ray needs another library; type: " + re.escape(install("cluster"))):
        Cluster("ray", None)


def test_a_machine_with_another_torch_makes_no_row() -> None:
    said = cluster.made_there("{}", "", "torch 0.1")
    assert '"RunError"' in said and "torch 0.1: its rows would be of other bits" in said


def test_on_this_machine_there_are_no_more_workers_than_trainings() -> None:
    with workers.places("local", 4, None) as (size, make), contextlib.closing(make(1)) as one:
        assert size == 4 and isinstance(one, workers.Here)


def at_work() -> list[int]:
    """Processes of Ray that are making a training at this moment: they say so in their title."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and b"ray::made_there" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.cluster
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc to see what a worker does")
def test_killed_workers_of_a_cluster_are_made_up_for_and_the_verdict_is_that_of_one_process(
    tiny_study, small_text, tmp_path
) -> None:
    pytest.importorskip("ray", reason="needs the extra cluster")
    runs = {place: tmp_path / place for place in ("local", "ray")}
    command = [sys.executable, tiny_study.__file__, str(small_text)]
    subprocess.run([*command, str(runs["local"]), "1", "local", "30"], check=True, timeout=300)
    killed: set[int] = set()
    with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
        process = subprocess.Popen([*command, str(runs["ray"]), "1", "ray", "30"], env=ALONE, stdout=out, stderr=err)
        until = time.monotonic() + 600
        while process.poll() is None and time.monotonic() < until:
            fresh = [pid for pid in at_work() if pid not in killed]
            if fresh and len(killed) < 3:
                os.kill(fresh[0], signal.SIGKILL)
                killed.add(fresh[0])
            time.sleep(0.005)
        status = process.wait(timeout=60)
    assert status == 0, (tmp_path / "err").read_text()[-3000:]
    assert len(killed) == 3 and "retried" in (tmp_path / "err").read_text()
    assert (tmp_path / "out").read_text() == "", "stdout is for the verdict"
    (mine,), (theirs,) = (list(place.iterdir()) for place in (runs["ray"], runs["local"]))
    texts = [
        (folder / "verdict.json").read_bytes().replace(str(place).encode(), b"")
        for folder, place in ((mine, runs["ray"]), (theirs, runs["local"]))
    ]
    assert texts[0] == texts[1]
    keys = [row["key"] for row in read_rows(mine)]
    assert len(keys) == len(set(keys)), "nothing is written twice"
