"""The documentation site: it builds without a warning and without a network, and what its pages say to type works."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import qkv
from qkv.cli import command_parser, main
from qkv.tokenizers.tokenizer import fit_tokenizer

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GUIDE = (
    "index", "your-text", "report", "ask", "how-it-works", "which-q", "views", "coming-from", "classify", "images",
    "translate", "verify", "without-attention", "gradients", "getting-started",
)  # fmt: skip
"""Pages whose code runs from top to bottom, beside the files and runs that they speak of."""
OTHERS = ("watching", "studies", "faults", "addresses", "scaling", "cost-of-watching", "parity")
PARSED = ("view", "study")
"""Commands that do not end by themselves, or take minutes: their options are read, and no more."""


def blocks(name):
    """(language, code) of every fenced block and every indented line of qkv of a page, in order."""
    text = re.sub(r" \\\n +", " ", (DOCS / f"{name}.md").read_text(encoding="utf-8"))  # lines that are gone on with
    found = re.finditer(r"^```(?P<kind>python|sh)\n(?P<code>.*?)^```|^ {4}(?P<line>qkv .*)$", text, flags=re.S | re.M)
    return [(block["kind"] or "sh", block["code"] or block["line"]) for block in found]


def commands(code):
    """The words of every command line of qkv in a block."""
    lines = [line.partition("  #")[0] for line in code.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("qkv ")]


@pytest.mark.parametrize("name", [*GUIDE, *OTHERS])
def test_every_command_on_a_page_is_one_that_is_there(name):
    for words in (words for kind, code in blocks(name) if kind == "sh" for words in commands(code)):
        words = [word for word in words if word not in ("...", "[...]")]
        if not {"RUN", "SEL"} & set(words) and "<" not in words:
            command_parser(words[0]).read(words[1:])


@pytest.mark.parametrize("name", [*GUIDE, *OTHERS])
def test_every_python_block_is_python(name):
    for kind, code in blocks(name):
        if kind == "python":
            compile(code, f"{name}.md", "exec")


CONLLU = "{0}\t{1}\t_\t{2}\t_\t_\t_\t_\t_\t_\n"


def write_files(folder, text):
    """What the pages give their commands: texts, tables, pairs of lines, images."""
    (folder / "my.txt").write_bytes(text)
    (folder / "big.txt").write_bytes(text)
    lines = text.decode().splitlines()[:200]
    for name, some in (("reviews", lines[:120]), ("more", lines[120:160]), ("other", lines[160:])):
        rows = [f"{line}\t{'pos' if 'cat' in line else 'neg'}" for line in some]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]))
    sets = ({"text": line, "labels": [w for w in ("cat", "dog", "the") if w in line]} for line in lines)
    (folder / "posts.jsonl").write_text("\n".join(map(json.dumps, sets)))
    rows = [f'"{line}",{len(line) / 4}' for line in (line.replace('"', "") for line in lines)]
    (folder / "ratings.csv").write_text("\n".join(["text,score", *rows]))
    for name, some in (("train", lines[:160]), ("val", lines[160:])):
        (folder / f"{name}.en").write_text("\n".join(some))
        (folder / f"{name}.de").write_text("\n".join(line.upper() for line in some))
    for name, some in (("train", lines[:160]), ("dev", lines[160:])):
        rows = ((i, word, "NX"[len(word) % 2]) for line in some if line for i, word in enumerate(line.split(), 1))
        told = "".join("\n" * (row[0] == 1) + CONLLU.format(*row) for row in rows)
        (folder / f"en_ewt-{name}.conllu").write_text(told.lstrip() + "\n")
    named = ({"text": f"Ada {line}", "entities": [[0, 3, "PER"]]} for line in lines)
    (folder / "names.jsonl").write_text("\n".join(map(json.dumps, named)))
    facts = [{"question": "Who was there?", "text": f"Ada {line}", "answer": "Ada"} for line in lines if line]
    for name, some in (("facts", facts[:150]), ("more-facts", facts[150:])):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, some)))
    draws = np.random.default_rng(0)
    (folder / "fashion-mnist").mkdir()
    for part, n in (("train", 60), ("t10k", 20)):
        pixels, labels = draws.integers(0, 256, (n, 28, 28)), np.arange(n) % 3
        for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            (folder / "fashion-mnist" / f"{part}-{kind}-ubyte").write_bytes(head + values.astype(np.uint8).tobytes())
    Image.fromarray(pixels[0].astype(np.uint8)).save(folder / "shoe.png")


@pytest.fixture
def beside(tmp_path, monkeypatch, small_text):
    """A folder with what the pages speak of and two short runs; trainings that are asked for there are short too."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, small_text.read_bytes())
    short = {"d_model": 16, "batch_size": 4, "n_layers": 2}
    train = qkv.train

    def briefly(source="", **asked):
        if asked.get("resume"):
            return train(source, **asked)
        asked = {key: value for key, value in asked.items() if key not in ("minutes", "until_loss", "progress", "say")}
        text, task, preset = source or tmp_path / "my.txt", asked.get("task", "causal"), asked.get("preset", "modern")
        size = {} if "from_run" in asked else dict(short)
        size |= {"n_ctx": 16} if task in ("causal", "masked") and size else {}
        size |= {"n_heads": 2} if preset not in ("lstm", "bag") and size else {}
        size = {"batch_size": 4} if task == "image" else size
        words = {} if task == "image" or "from_run" in asked else {"vocab": 300}
        return train(text, **asked | words | {"steps": 4, "set": size | asked.get("set", {})})

    monkeypatch.setattr("qkv.api.train", briefly)
    for name in ("my-1", "frozen"):
        briefly("my.txt", out=f"runs/{name}", report=False)
    qkv.load("runs/my-1").export("path/to/folder")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDE)
def test_what_a_page_says_to_type_works(name, beside, capsys):
    names = {"qkv": qkv}
    for kind, code in blocks(name):
        if kind == "python":
            exec(compile(code, f"{name}.md", "exec"), names)
            continue
        for words in commands(code):
            words = ["runs/my-1" if word == "RUN" else word for word in words]
            if "--out" in words and "--resume" not in words:
                shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
            if words[0] not in PARSED and "FOLDER" not in words:
                assert main(words) == 0, (words, capsys.readouterr().err)


class Own(nn.Module):
    """A model with the names of the table on the page about watching."""

    def __init__(self):
        super().__init__()
        self.tok, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.blocks = nn.ModuleList(nn.ModuleDict({"norm1": nn.LayerNorm(16, bias=False)}) for _ in range(2))
        for block in self.blocks:
            block["attn"] = nn.ModuleDict({"qkv": nn.Linear(16, 48, bias=False), "proj": nn.Linear(16, 16, bias=False)})
            block["mlp"] = nn.ModuleDict({"up": nn.Linear(16, 32, bias=False), "down": nn.Linear(32, 16, bias=False)})


def test_the_code_on_the_page_about_watching_runs(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers", reason="needs the dev extra (transformers)")
    monkeypatch.chdir(tmp_path)
    words = fit_tokenizer("word", ["the cat sat on the mat"], 20)
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    live = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    examples = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 4
    arguments = transformers.TrainingArguments(
        output_dir="out", max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no"
    )
    beside = {
        "torch": torch, "qkv": qkv, "Trainer": transformers.Trainer, "arguments": arguments, "examples": examples,
        "tokenizer": transformers.PreTrainedTokenizerFast(tokenizer_object=words.hf),
    }  # fmt: skip
    codes = [code for kind, code in blocks("watching") if kind == "python"]
    assert len(codes) == 4
    for code, model in zip(codes, (live, live, Own(), live), strict=True):
        shutil.rmtree("runs", ignore_errors=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        names = beside | {"model": model, "optimizer": optimizer}
        exec(compile(code, "watching.md", "exec"), names)
        if "watcher" in names:
            names["watcher"].close()
            assert (tmp_path / "runs" / "mine" / "manifest.json").is_file()
    assert names["found"].tokens and names["found"].patterns.ndim == 4


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built; a warning fails the build."""
    pytest.importorskip("zensical", reason="needs the extra docs")
    out = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, DOCS / "site" / "build.py", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.browser
def test_the_search_finds_pages_that_were_opened_as_files(site, browser):
    asked, wrong = [], []
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__button").first.click()
    page.get_by_role("combobox").fill("orthogonal")
    page.wait_for_selector("a[role=option]", timeout=60_000)
    found = [link.get_attribute("href") for link in page.locator("a[role=option]").all()]
    page.close()
    assert any(link and "matrices.html" in link for link in found)
    assert wrong == [] and [url for url in asked if not url.startswith("file:")] == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_asks_nothing_from_elsewhere(site):
    pages = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert {"index.html", "measures.html", "settings.html", "api/qkv.models.html", "answers/proofs.html"} <= set(pages)
    assert 'href="learn/index.html"' in pages["index.html"]
    assert set(re.findall(r'href="\.\./(answers/[\w-]+\.html)"', pages["learn/index.html"])) <= set(pages)
    assert "<math" in pages["how-it-works.html"] and "$" not in re.sub(
        r"<code.*?</code>", "", pages["how-it-works.html"]
    )
    assert "MultiHeadAttention" in pages["api/qkv.models.html"]
    loaded = r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(https?:)?//|<link[^>]*stylesheet[^>]*href=["']?(https?:)?//"""
    assert [name for name, page in pages.items() if re.search(loaded, page)] == []
    assert {"playground/index.html", "assets/iframe-worker.js"} <= {
        p.relative_to(site).as_posix() for p in site.rglob("*")
    }
    assert "../answers/${name}.html" in pages["playground/index.html"]


@pytest.mark.slow
def test_a_broken_link_fails_the_build(builder, tmp_path, monkeypatch):
    pytest.importorskip("zensical", reason="needs the extra docs")
    whole = builder.stage

    def broken(place):
        whole(place)
        (place / "docs" / "ask.md").write_text("# A page\n\n[There](install.md#no-such-heading).\n", "utf-8")

    monkeypatch.setattr(builder, "stage", broken)
    with pytest.raises(SystemExit, match="(?s)no-such-heading"):
        builder.build(tmp_path / "site")
    assert not (tmp_path / "site").exists()


@pytest.fixture(scope="module")
def builder():
    """docs/site/build.py as a module."""
    pytest.importorskip("latex2mathml", reason="needs the extra docs")
    spec = importlib.util.spec_from_file_location("docs_site_build", DOCS / "site" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_page_for_the_site_keeps_its_links_within_docs_and_loses_those_that_leave(builder):
    page = "[Why](../studies.md#one) and [`code`](../../src/qkv/cli.py)."
    assert builder.page_markdown(page, DOCS / "answers" / "x.md") == "[Why](../studies.md#one) and `code`."
    assert "<math" in builder.page_markdown("$$x$$ and `$$`") and "`$$`" in builder.page_markdown("$$x$$ and `$$`")


def navigation(items):
    """The pages of a navigation, in order, with their titles."""
    for title, what in (pair for item in items for pair in item.items()):
        if isinstance(what, str):
            yield title, what
        else:
            yield from navigation(what)


def test_the_navigation_has_every_guide_once_under_a_short_title():
    project = tomllib.loads((DOCS / "site" / "zensical.toml").read_text("utf-8"))["project"]
    found = list(navigation(project["nav"]))
    pages = [page for _, page in found]
    wanted = {p.relative_to(DOCS).as_posix() for p in [*DOCS.glob("*.md"), *(DOCS / "answers").glob("*.md")]}
    others = {"api/index.md", "benchmarks/README.md", "decisions/README.md"}
    assert len(pages) == len(set(pages)) and set(pages) == wanted | others
    groups = [title for item in project["nav"] for title in item]
    assert groups == ["Start", "Tutorials", "How-to guides", "Explanation", "Answers by experiment", "Reference"]
    assert all(len(title) <= 50 for title, _ in found) and len({title for title, _ in found}) == len(found)
    start = (DOCS / "index.md").read_text("utf-8")
    guides = [page for page in pages if "/" not in page and page != "index.md"]
    assert [page for page in guides if f"]({page})" not in start] == [], "docs/index.md lists every guide too"


def test_the_site_has_the_colors_and_the_type_of_the_report():
    def variables(css):
        return dict(re.findall(r"(--[\w-]+): ([^;]+);", css))

    report = (ROOT / "src/qkv/views/static/report.css").read_text("utf-8")
    site = (DOCS / "site" / "site.css").read_text("utf-8")
    light, dark = (variables(report.partition(head)[2].partition("}")[0]) for head in (":root {", "scheme: dark) {"))
    for scheme, colors in (("default", light), ("slate", dark)):
        ours = variables(site.partition(f'[data-md-color-scheme="{scheme}"]')[2].partition("}")[0])
        assert set(ours) == {"--paper", "--panel", "--ink", "--ink-soft", "--line", "--accent"}
        assert {name: colors[name] for name in ours} == ours
    root = variables(site.partition("}")[0])
    assert root["--md-text-font-family"] == light["--sans"] and root["--md-code-font-family"] == light["--mono"]
    assert root["--serif"] == light["--serif"]
