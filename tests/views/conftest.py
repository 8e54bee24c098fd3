"""A synthetic run folder, for tests only: the contract's files with made-up dynamics, so that views are tested alone.

The numbers are smooth inventions, consistent with each other (drifts are those of the written weights), which is what
the tests compare. Nothing of this ships.
"""

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from qkv.config import dump_toml, to_dict
from qkv.data.config import DataConfig
from qkv.folder.run_folder import RunFolder
from qkv.instruments.registry import MEASURES
from qkv.models import Layout, ModelConfig, Sizes, build
from qkv.models.matrices import Catalogue
from qkv.recipe.config import RunConfig
from qkv.telemetry import NULL_ARM, AddressRow, Store
from qkv.tokenizers.tokenizer import fit_tokenizer
from qkv.training.config import ScheduleConfig, TrainingConfig
from qkv.training.precision import Machine
from qkv.views.live.serving import _listen, make_server, shown_of

CHARACTERS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
STEPS = [0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, *range(128, 1000, 32), 1000]
SNAPSHOTS = [0, 1, 4, 16, 64, 256, 1000]
PROMPT = "ROMEO:"
REACH = {
    "W_E": 0.9,
    "W_Q": 1.3,
    "W_K": 1.2,
    "W_V": 0.8,
    "W_O": 1.0,
    "W_in": 0.9,
    "W_gate": 0.8,
    "W_out": 0.85,
    "W_U": 1.6,
}
NULL_REACH = 0.42
NULL_LAST = 64
LAST_SAMPLE = "O Romeo, Romeo! wherefore art thou so?\nI am\nthe day."
BASELINES = {"unigram": 3.32, "bigram": 2.47, "ngram": 1.558, "xz": 2.03}


SIZES = {"d_model": 48, "n_layers": 3, "n_heads": 4, "n_ctx": 64, "d_head": 12, "d_mlp": 96, "n_kv_heads": 4}


def configuration(d_vocab, tied=False, changes=(), layout=None, **sizes):
    sizes = Sizes(d_vocab=d_vocab, **SIZES | sizes)
    return RunConfig(
        task="causal",
        preset="textbook",
        seed=1,
        watch="light",
        changes=changes,
        data=DataConfig(source="/data/shakespeare.txt", tokenizer="char"),
        model=ModelConfig(kind="CausalLM", sizes=sizes, layout=Layout(tied=tied, start="gpt2", **layout or {})),
        training=TrainingConfig(batch_size=64, schedule=ScheduleConfig(steps=STEPS[-1])),
        machine=Machine(threads=2),
    )


def directions(rng, start, counts):
    """Where each matrix goes: a low-rank part with structure, of the start's norm."""
    out = {}
    for name, weights in start.items():
        if weights.ndim == 1:
            out[name] = 0.3 * rng.normal(size=weights.shape).astype(np.float32)
            continue
        rows, columns = weights.shape
        left = rng.normal(size=(rows, 3)) * np.exp(rng.normal(size=(rows, 1)))
        right = rng.normal(size=(3, columns)) * np.exp(rng.normal(size=(1, columns)))
        move = left @ right
        if name == "W_E":
            move[counts == 0] = 0
        out[name] = (move / np.linalg.norm(move) * np.linalg.norm(weights)).astype(np.float32)
    return out


def progress(step):
    return float((1 - np.exp(-step / 260)) * 0.75 + 0.25 * np.sqrt(step / 1000))


def weights_at(start, move, step, reach=1.0):
    out = {}
    for name, weights in start.items():
        kind = name.rsplit(".", 1)[-1]
        layer = int(name[1:].split(".")[0]) if name.startswith("L") else 0
        far = REACH.get(kind, 0.4) * (1 - 0.12 * layer) * reach
        out[name] = weights + np.float32(far * progress(step)) * move[name]
    return out


def make_run(
    folder: Path, *, null=True, snapshots=True, tied=False, sample_text=None, rare="€", seed=7, telemetry=True, **sizes
) -> SimpleNamespace:
    """`rare` is a character that is in the vocabulary and never in the text; `sizes` (and `layout`) are the model's."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    tokenizer = fit_tokenizer("char", [CHARACTERS + rare])
    tokenizer.save(folder / "tokenizer.json")
    config = configuration(tokenizer.d_vocab, tied, **sizes)
    (folder / "config.toml").write_text(dump_toml(to_dict(config)), encoding="utf-8")
    start = {name: values.numpy() for name, values in Catalogue(build(config.model, config.seed)).state().items()}
    counts = np.array([frequency(tokenizer.token(i)) for i in range(tokenizer.d_vocab)])
    move = directions(rng, start, counts)
    last = weights_at(start, move, STEPS[-1])
    save_file(last, folder / "model.safetensors")
    save_file(last, folder / "best.safetensors")
    for step in SNAPSHOTS if snapshots else ():
        place = folder / "checkpoints" / f"step-{step:08d}"
        place.mkdir(parents=True, exist_ok=True)
        save_file(weights_at(start, move, step), place / "model.safetensors")
    if telemetry:
        write_telemetry(folder, start, move, rng, counts, tokenizer, null=null, sample_text=sample_text)
    facts = {"cpu": "Test CPU", "versions": {"qkv": "0"}, "data": {"name": "shakespeare", "sha256": "0" * 64}}
    RunFolder.open(folder).seal(
        facts | {"summary": {"steps": STEPS[-1], "train_seconds": 51.5, "stopped_because": "steps"}}
    )
    return SimpleNamespace(
        folder=folder, start=start, last=last, move=move, counts=counts, tokenizer=tokenizer, config=config, steps=STEPS
    )


def frequency(token):
    place = CHARACTERS.find(token)
    return 0 if place < 0 or len(token) != 1 else int(4e5 / (1 + (place * 37) % len(CHARACTERS)) ** 1.2)


def write_telemetry(folder, start, move, rng, counts, tokenizer, *, null, sample_text):
    with Store(folder / "telemetry.sqlite") as store:
        store.register_addresses([address_row(name, w) for name, w in start.items()])
        store.register_measures([item.row() for item in MEASURES.values()])
        write_arm(store, 0, start, move, rng, STEPS, 1.0)
        if null:
            write_arm(store, NULL_ARM, start, move, rng, [s for s in STEPS if s <= NULL_LAST], NULL_REACH)
        texts = ["qZ;wn\n!kAe b'sR", "the the and, he then", "ROMEO:\nWhat the wor", LAST_SAMPLE]
        for step, text in zip((0, 128, 512, 1000), texts, strict=True):
            store.add_sample(step, PROMPT, sample_text if sample_text and step == 1000 else text)
        store.add_vector(0, "row_count", "W_E", counts)
        store.set_fact("special_tokens", tokenizer.special)
        store.set_fact("tokens_counted", {"counted": int(counts.sum()), "of": int(counts.sum())})
        bits = {name: value / np.log(2) for name, value in BASELINES.items()}
        store.set_fact("baselines", BASELINES | {"ngram_order": 6, "bits_per_byte": bits})


def address_row(name, weights):
    layer = int(name[1:].split(".")[0]) if name.startswith("L") else None
    kind = name.rsplit(".", 1)[-1]
    site = (
        "norm"
        if weights.ndim == 1
        else "embed"
        if name == "W_E"
        else "head"
        if name == "W_U"
        else "mlp"
        if kind in ("W_in", "W_gate", "W_out")
        else "attn"
    )
    return AddressRow(address=name, site=site, layer=layer, kind=kind, shape=weights.shape)


def write_arm(store, arm, start, move, rng, steps, reach):
    names = list(start)
    d_vocab = len(start["W_E"])
    floor, ceiling = (1.52, np.log(d_vocab)) if arm == 0 else (3.3, np.log(d_vocab))
    for step in range(1, steps[-1] + 1):
        loss = (
            floor + (ceiling - floor) * (0.55 * np.exp(-step / 25) + 0.45 * np.exp(-step / 230)) + 0.04 * rng.normal()
        )
        store.add_step(step, tokens=step * 4096, loss=float(loss), lr=0.001, grad_norm=0.5, arm=arm)
    for step in steps:
        now = weights_at(start, move, step, reach)
        before = weights_at(start, move, max(0, step - 1), reach)
        norms = {n: float(np.linalg.norm(now[n].astype(np.float64))) for n in names}
        store.add_values(step, "norm", names, [norms[n] for n in names], arm=arm)
        drifts = [float(np.linalg.norm(now[n].astype(np.float64) - start[n]) / np.linalg.norm(start[n])) for n in names]
        store.add_values(step, "drift", names, drifts, arm=arm)
        moved = np.linalg.norm(now["W_E"] - start["W_E"], axis=1) / np.linalg.norm(start["W_E"], axis=1)
        store.add_vector(step, "row_drift", "W_E", moved.astype(np.float32), arm=arm)
        if step:
            store.add_values(
                step,
                "update_ratio",
                names,
                [float(np.linalg.norm(now[n] - before[n]) / norms[n]) for n in names],
                arm=arm,
            )
            store.add_values(
                step,
                "grad_norm",
                names,
                [float(0.3 * np.exp(-step / 400) * rng.uniform(0.5, 1.5)) for n in names],
                arm=arm,
            )
        if arm == 0 and (step % 128 == 0 or step == 1000):
            loss = floor + 0.05 + (ceiling - floor) * (0.55 * np.exp(-step / 25) + 0.45 * np.exp(-step / 230))
            store.add_evaluation(step, float(loss), is_best=True, bits_per_byte=float(loss / np.log(2)))
            store.add_clock(step, step * 0.05, tokens_per_second=80000.0)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "shakespeare-1")


@pytest.fixture
def make(tmp_path):
    return lambda **options: make_run(tmp_path / "run", **options)


@pytest.fixture
def look(browser):
    """Open a file with the network denied (or an address); says what it asked for and what it complained of."""
    contexts = []

    def open_page(path, *, width=1280, scheme="light", fragment="", ready=True, offline=True):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=offline, reduced_motion="reduce"
        )  # a cell stays where it was measured
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)  # a busy machine is slow, not wrong
        page.asked, page.complaints = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on(
            "console",
            lambda message: page.complaints.append(message.text) if message.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.goto((path if isinstance(path, str) else path.as_uri()) + fragment)
        if ready:
            page.wait_for_selector("html[data-ready=yes]")
        return page

    yield open_page
    for context in contexts:
        context.close()


def verdict_of_a_study(**more):
    """The contract's verdict.json with invented numbers."""
    contrast = {
        "name": "frozen - trained", "what": "cost", "unit": "nats per token", "margin": 0.03,
        "expected": {"above": 0.0}, "outcome": "met", "terms": [], "nominal": None, "tries": 1, "constant": False,
        "needs": [], "replicates": [1, 2], "diverged": 0,
        "verdict": "differs", "effect": 0.12, "low": 0.08, "high": 0.16, "sd": 0.02, "n": 4, "p": 0.001,
        "p_corrected": 0.002, "p_equivalent": 0.9, "detectable": 0.05, "needed": 5, "values": [0.1, 0.14],
    }  # fmt: skip
    arm = {
        "name": "frozen", "what": "W_E <frozen>", "task": "causal", "text": "text", "changes": [],
        "frozen": ["W_E"],
        "optimizer": "adamw", "loss": 2.5, "sd": 0.02, "losses": [2.5, 2.52], "rates": [0.01, 0.03], "at_edge": 0,
        "diverged": 1, "trainings": 9, "curve": [[10, 3.0], [20, 2.5]],
    }  # fmt: skip
    return {
        "format": 2, "study": "frozen-embeddings", "asks": "Must they?", "sentence": "It costs <something>.",
        "plain": "Yes.", "condition": "On s.", "full_answer": "", "quick": False, "notes": [], "seeds": 4,
        "baseline": {"ngram": None, "trained": None}, "baselines": [], "intervals": "Student's t", "accounts": None,
        "refuted_by": "", "otherwise": [],
        "contrasts": [contrast, contrast | {"name": "other", "low": None, "high": None, "effect": None}],
        "arms": [arm, arm | {"name": "untrained", "rates": [], "curve": []}], "not_reached": ["x: 1 of 4 replicates"],
        "falsified_by": "If not.", "literature": "Little.", "earlier_designs": [4], "trainings": 9,
        "source": {"name": "s", "sha256": "0" * 64}, "software": "torch x", "design": "d" * 64,
    } | more  # fmt: skip


@pytest.fixture
def verdict():
    return verdict_of_a_study


@pytest.fixture
def faults():
    """`faults(page)` gives what axe-core calls serious or critical: (rule, elements)."""
    from axe_playwright_python.sync_playwright import Axe

    def found(page):
        violations = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
        bad = [v for v in violations if v["impact"] in ("serious", "critical")]
        return [(v["id"], [node["target"] for node in v["nodes"]][:4]) for v in bad]

    return found


@pytest.fixture
def shot(request):
    """`shot(page, name)` keeps a picture of the whole page in a folder that git ignores."""

    def take(page, name):
        place = request.config.rootpath / "runs/screenshots"
        place.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=place / f"{name}.png", full_page=True)

    return take


def serve_in_thread(folder, token=""):
    listener = _listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    hosts = None if token else {f"127.0.0.1:{port}"}
    server = make_server(shown_of(folder), hosts, token)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield port
    server.should_exit = True
    thread.join(10)
    listener.close()
    assert not thread.is_alive()


@pytest.fixture(scope="session")
def serving():
    """`serving(folder, token="")` is a generator that gives the port of a server in this process, and ends it."""
    return serve_in_thread


@pytest.fixture(scope="session")
def server(run_folder):
    """The port of a server of the shared run."""
    yield from serve_in_thread(run_folder.folder)
