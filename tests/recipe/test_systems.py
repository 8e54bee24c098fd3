"""Every system, trained for a moment: each of its matrices shows in the report, in `show` and in `compare`."""

import gzip
import re
import shlex
import struct
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv import cli
from qkv.models.matrices import Catalogue
from qkv.randomness import generator

TASKS = ("causal", "masked", "classify", "translate", "image")
SIZES = "d_model=16,n_layers=1,n_heads=2"


@pytest.fixture(scope="module")
def sources(tmp_path_factory, small_text, small_pairs) -> dict[str, str]:
    """What each task trains on."""
    folder = tmp_path_factory.mktemp("sources")
    draws = generator("tests", "systems")
    others = "the a of film plot cast score scene and with".split()
    rows = [" ".join(draws.permutation([*draws.choice(others, 6), ("good", "bad")[i % 2]])) for i in range(200)]
    (folder / "films.tsv").write_text(
        "text\tlabel\n" + "".join(f"{row}\t{'up' if 'good' in row else 'down'}\n" for row in rows), encoding="utf-8"
    )
    for name, n in (("train", 60), ("t10k", 20)):
        pixels, labels = draws.integers(0, 256, (n, 8, 8), dtype=np.uint8), np.arange(n, dtype=np.uint8) % 3
        _write_idx(folder / "images" / f"{name}-images-idx3-ubyte.gz", pixels)
        _write_idx(folder / "images" / f"{name}-labels-idx1-ubyte.gz", labels)
    pairs = ":".join(map(str, small_pairs))
    text = str(small_text)
    return {
        "causal": text,
        "masked": text,
        "classify": str(folder / "films.tsv"),
        "translate": pairs,
        "image": str(folder / "images"),
    }


def _write_idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(header + values.tobytes()))


@pytest.mark.parametrize("task", TASKS)
def test_every_matrix_shows_in_report_show_and_compare(task, sources, tmp_path, capsys):
    runs = [str(tmp_path / seed) for seed in ("1", "2")]
    for seed, run in enumerate(runs, 1):
        words = ["train", sources[task], "--task", task, "--steps", "2", "--set", SIZES, "--seed", str(seed)]
        assert cli.main([*words, "--threads", "1", "--out", run, *(["--no-report"] if seed == 2 else [])]) == 0
    addresses = Catalogue(qkv.load(runs[0]).model).addresses
    said = {}
    for name, words in {"show": ("show", runs[0], "--all"), "compare": ("compare", *runs)}.items():
        capsys.readouterr()
        assert cli.main(list(words)) == 0
        said[name] = capsys.readouterr().out
    said["report"] = (tmp_path / "1" / "report.html").read_text(encoding="utf-8")
    for name, text in said.items():
        missing = [address for address in addresses if not re.search(rf"(?<![\w.]){re.escape(address)}(?![\w.])", text)]
        assert not missing, (name, missing)
    for address in addresses:
        assert cli.main(["show", runs[0], address]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("task", ["classify", "translate"])
def test_what_a_training_tells_to_type_next_is_of_its_own_data_and_works(task, sources, tmp_path, capsys):
    words = ["train", sources[task], "--task", task, "--steps", "1", "--set", SIZES, "--no-report"]
    assert cli.main([*words, "--threads", "1", "--out", str(tmp_path / "r")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "qkv predict " in line]
    _, predict, run, text = shlex.split(line)
    assert cli.main([predict, run, text]) == 0
    own = Path(sources[task].split(":")[0]).read_text(encoding="utf-8")
    assert all(word in own for word in text.split())


def test_compare_knows_the_circuits_of_every_attention(sources, tmp_path, capsys):
    words = ["train", sources["translate"], "--task", "translate", "--steps", "1", "--set", SIZES, "--no-report"]
    assert cli.main([*words, "--threads", "1", "--out", str(tmp_path / "r")]) == 0
    capsys.readouterr()
    assert cli.main(["compare", str(tmp_path / "r"), str(tmp_path / "r")]) == 0
    out = capsys.readouterr().out
    assert all(
        f"{attention}.{kind}" in out for attention in ("enc.L0", "dec.L0", "dec.L0.cross") for kind in ("QK", "OV")
    )
