"""What a new user meets: the wheel in an environment of its own, with the core dependencies and nothing else."""

import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "qkv"
ALONE = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="links need a right on Windows"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the sdist and of the wheel that was made from it."""
    pytest.importorskip("build", reason="needs the dev extra (build, hatchling)")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT]
    done = subprocess.run(command, env=ALONE, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


LINUX = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="libraries are made for Linux on x86-64"
)


@LINUX
def test_the_wheel_holds_native_code_that_trains_without_a_compiler_as_compiled_here_does(built, tmp_path, small_text):
    if not shutil.which("g++"):
        pytest.skip("there is no C++ compiler to build the wheel with")
    (wheel,) = built.glob("*.whl")
    assert "-py3-none-manylinux_2_" in wheel.name and wheel.name.endswith("_x86_64.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "unpacked")
    libraries = tmp_path / "unpacked" / "qkv" / "native" / "libraries"
    assert {path.parent.name for path in libraries.rglob("passes.so")} >= {"x86-64-v2", "x86-64-v3"}
    (tmp_path / "empty").mkdir()
    found = {}
    for where, path in (("wheel", tmp_path / "empty"), ("here", os.environ["PATH"])):
        code = tmp_path / "unpacked" if where == "wheel" else ROOT / "src"
        cache, run = tmp_path / f"cache-{where}", tmp_path / where
        environment = os.environ | {"PYTHONPATH": str(code), "PATH": str(path), "XDG_CACHE_HOME": str(cache)}
        words = [sys.executable, "-m", "qkv", "train", small_text, "--steps", "2", "--vocab", "300", "--no-report"]
        words += ["--set", "d_model=32,n_layers=2,n_ctx=32,batch_size=8", "--seed", "1", "--threads", "1", "--json"]
        words += ["--watch", "off", "--out", run]
        done = subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        manifest = json.loads((run / "manifest.json").read_text())
        assert manifest["native"] is True
        found[where] = json.loads(done.stdout)["val_loss"], manifest["build"]["options"]
        compiled = list(cache.glob("qkv/native/*.so"))
        assert (compiled == []) == (where == "wheel")
    assert any(option.startswith("-march=x86-64-v") for option in found["wheel"][1])
    assert "-march=native" in found["here"][1]
    assert found["wheel"][0] == pytest.approx(found["here"][0], rel=1e-5)


def core():
    """The direct dependencies of the core install."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(need) for need in project["dependencies"]]


def closure(names):
    """Distributions and all that they need here."""
    from packaging.requirements import Requirement

    found, waiting = {}, list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in found:
            found[name] = importlib.metadata.distribution(name)
            needs = map(Requirement, found[name].requires or [])
            waiting += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture(scope="module")
def user(built, tmp_path_factory):
    """The folder of programs of an environment in which the wheel was installed, and nothing beside what it needs.

    The packages that it needs are links to those that the tests run with; pip installs the wheel without an index, so
    it would refuse where one were missing or of a version that does not fit.
    """
    place = tmp_path_factory.mktemp("user") / "env"
    venv.EnvBuilder(with_pip=True).create(place)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    for found in closure(need.name for need in core()).values():
        tops = {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(found.locate_file(top))
    programs = place / "bin"
    (wheel,) = built.glob("*.whl")
    command = [programs / "python", "-m", "pip", "install", "--no-index", "--no-cache-dir", wheel]
    done = subprocess.run(command, env=ALONE | {"PIP_CONFIG_FILE": os.devnull}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return programs


@pytest.fixture(scope="module")
def ask(user, tmp_path_factory):
    """Run a program of that environment in an empty folder of the user's; what it printed."""
    home = tmp_path_factory.mktemp("home")

    def ask(*words):
        words = [str(user / words[0]), *map(str, words[1:])]
        environment = ALONE | {"XDG_CACHE_HOME": str(home / "cache"), "HOME": str(home)}
        done = subprocess.run(words, cwd=home, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    ask.home = home
    return ask


@pytest.fixture(scope="module")
def run(ask, small_text):
    """A short run on the user's own text."""
    (ask.home / "own.txt").write_bytes(small_text.read_bytes())
    words = ["--steps", 30, "--vocab", 300, "--set", "d_model=32,n_layers=2,n_ctx=32,batch_size=8", "--json"]
    summary = json.loads(ask("qkv", "train", "own.txt", "--out", "runs/mine", *words))
    assert summary["steps"] == 30 and summary["baselines"]["unigram"] > 0
    return ask.home / "runs" / "mine"


def test_the_wheel_comes_from_the_sdist_and_holds_every_file_of_the_package(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert "## Two commands" in metadata and "](docs/" not in metadata and "![" not in metadata
    packed = {name.removeprefix("qkv/") for name in names if name.startswith("qkv/")}
    sources = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in packed if not name.startswith("native/libraries/")} == sources
    vendored = {f"views/static/vendor/{name}" for name in ("d3.min.js", "plot.umd.min.js", "d3.LICENSE.txt")}
    assert {"py.typed", "views/static/report.css", *vendored} <= packed
    assert any(name.endswith("licenses/LICENSE") for name in names)
    with tarfile.open(sdist) as archive:
        unpacked = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    wanted = {"README.md", "LICENSE", "pyproject.toml", "constraints.txt", "docs/generate.py", "tests/conftest.py"}
    assert wanted <= unpacked
    assert not [name for name in unpacked if name.startswith(("runs/", ".venv", "site/")) or name.endswith(".bz2")]


def test_the_core_install_suffices_and_nothing_else_is_there(ask, user):
    found = json.loads(ask("qkv", "doctor", "--json"))
    assert found["extras"]["study"] == ["scipy", "sklearn"] and found["extras"]["dev"]
    assert "-F _shtab_qkv qkv" in ask("qkv", "completion", "bash")
    where = ask("python", "-c", "import qkv; print(qkv.__file__)")
    assert Path(where.strip()).is_relative_to(user.parent)
    assert "No broken requirements" in ask("python", "-m", "pip", "check")


def test_the_core_install_beside_torch_and_numpy_is_below_60_megabytes():
    everything = closure(need.name for need in core())
    ours = {name: everything[name] for name in everything.keys() - closure(["torch", "numpy"]).keys()}
    paths = [Path(str(file.locate())) for found in ours.values() for file in found.files or []]
    paths += [path for path in SOURCES.rglob("*") if path.is_file()]
    megabytes = sum(path.stat().st_size for path in paths if path.is_file() and "__pycache__" not in path.parts) / 1e6
    assert 10 < megabytes < 60


def test_import_qkv_adds_less_than_300_milliseconds_to_import_torch(ask):
    code = "import time, torch; began = time.process_time(); import qkv; print(time.process_time() - began)"
    assert sorted(float(ask("python", "-c", code)) for _ in range(3))[1] < 0.3


def test_a_new_user_trains_reads_exports_and_transformers_writes_the_same_text(ask, run):
    import transformers

    assert "<html" in (run / "report.html").read_text(encoding="utf-8")[:2000].lower()
    ask("qkv", "report", "runs/mine", "--text", "the cat sees a dog", "--out", "again.html")
    assert "the cat" in (ask.home / "again.html").read_text(encoding="utf-8")
    assert "W_E" in ask("qkv", "show", "runs/mine")
    ask("qkv", "export", "runs/mine", "--out", "theirs")
    words = ["--temperature", 0, "--tokens", 16, "--json"]
    (mine,) = json.loads(ask("qkv", "predict", "runs/mine", "the cat sees", *words))["outputs"]
    model = transformers.AutoModelForCausalLM.from_pretrained(ask.home / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(ask.home / "theirs")
    asked = tokenizer("the cat sees", return_tensors="pt")
    out = model.generate(**asked, do_sample=False, max_new_tokens=16, eos_token_id=None, pad_token_id=0)
    assert tokenizer.decode(out[0]) == "the cat sees" + mine
    code = "import qkv; run = qkv.load('runs/mine'); print(run.loss, len(run.history('L*.W_Q', 'drift')))"
    loss, n_layers = ask("python", "-c", code).split()
    assert float(loss) > 0 and n_layers == "2"


def test_the_live_page_starts_from_the_wheel(ask, user, run):
    environment = ALONE | {"HOME": str(ask.home), "BROWSER": "true"}
    served = subprocess.Popen(
        [user / "qkv", "view", run, "--port", "0"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert served.stdout is not None
        address = next(word for word in served.stdout.readline().split() if word.startswith("http://127.0.0.1:"))
        with urllib.request.urlopen(address, timeout=60) as answer:
            page = answer.read().decode()
        assert answer.status == 200 and "<html" in page.lower() and "d3" in page
    finally:
        served.send_signal(signal.SIGINT)
        served.communicate(timeout=30)
    assert served.returncode in (0, 130, -signal.SIGINT)
