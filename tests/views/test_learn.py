"""The page "What is trained in self-attention?": every claim of the threads answered, and the model in it works."""

import importlib.util
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from qkv.api import train
from qkv.errors import UserError
from qkv.views.learn.model import shipped
from qkv.views.learn.page import page, questions, write

ROOT = Path(__file__).parents[2]
LARGEST = 3_000_000
CLAIMS = {
    "the original encodings of BERT are fixed": (
        "the original encodings are fixed",
        r"No: BERT's tables .* are parameters",
    ),
    "W_Q, W_K, W_V are always trained and the main focus": ("main focus", r"unless frozen, but not more than W_E"),
    "are the embeddings trained?": ("Are the embeddings trained", r"Both are trained"),
    "if the W are trained, must the embeddings be?": (
        "do we need to train the input embeddings",
        r"No, but training them helps",
    ),
    "does the gradient reach the embeddings?": ("reach the embeddings through all", r"Yes: each layer passes"),
    "a frozen matrix stops learning below it": ("does learning stop below", r"No: .*still flows to x and to W_E"),
    "identity is lost after the first layer": ("identity lost", r"No: each layer adds to x"),
    "W = I gives Q = K = V = X": ("so that Q = K = V = X", r"softmax\(X Xᵀ / √d\) X"),
    "the W make self-attention more expressive": ("more expressive", r"Yes: with W = I every score"),
    "three different roles": ("three different roles", r"Three matrices make three roles possible"),
    "collocated words get similar vectors": ("occur together", r"There is no guarantee"),
    "`the` has low dot products": ("low dot product", r"Nothing in the formulas demands it"),
    "related is what the end task rewards": ("end task", r"Partly"),
    "analogies for contextual vectors": ("Analogies", r"which vector is meant"),
    "one-hot times a matrix": ("one-hot", r"Yes: onehot\(t\) W_E is row t"),
    "the W are the embedding matrix": ("embedding matrix", r"No: W_E has one row per token"),
    "an activation after W_Q": ("nonlinearity", r"No: q, k and v are linear"),
    "which technique": ("technique", r"By backpropagation alone"),
    "what of q, k, v is trained": ("What exactly is trained", r"the vectors q, k and v are computed"),
    "subwords make the examples nonsense": ("subwords", r"No: the tokenizer only decides"),
    "LSTMs and pixels": ("LSTMs", r"trained by the same rule in all of them"),
}
"""Claim or question of the three threads -> (words of the question on the page, what its answer says)."""


class Text(HTMLParser):
    """What a reader sees, without scripts and style."""

    def __init__(self, markup):
        super().__init__()
        self.parts, self.off = [], False
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.off = tag in ("script", "style")

    def handle_endtag(self, tag):
        self.off = False

    def handle_data(self, data):
        if not self.off:
            self.parts.append(data)

    def __str__(self):
        return " ".join("".join(self.parts).split())


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("learn") / "learn.html"
    write(path)
    return path


def test_each_of_the_21_claims_is_answered_with_its_condition():
    asked = questions()
    assert len(CLAIMS) == len(asked) == 21
    assert sum(each["large"] for each in asked) == 6
    found = []
    for words, answer in CLAIMS.values():
        (one,) = [each for each in asked if words in each["asked"]]
        assert re.search(answer, one["answer"]), one["asked"]
        assert one["holds"].endswith(".")
        found.append(one["asked"])
    assert len(set(found)) == 21


def test_an_answer_has_at_most_two_sentences_and_is_read_without_scripts(file):
    seen = str(Text(file.read_text(encoding="utf-8")))
    for each in questions():
        assert len(re.findall(r"[.!?](?=\s|$)", each["answer"])) <= 2, each["answer"]
        for words in (each["asked"], each["answer"], each["holds"], each["measured"]):
            assert " ".join(words.split()) in seen


def test_what_was_measured_is_what_the_page_of_the_study_says_today():
    for each in questions():
        if not each["study"]:
            assert each["measured"] == ""
            continue
        answer = (ROOT / f"docs/answers/{each['study']}.md").read_text(encoding="utf-8").replace("**", "")
        for sentence in re.split(r"(?<=[a-z0-9)]\.) (?=[A-Z])", each["measured"]):
            assert sentence in answer, (each["study"], sentence)


@pytest.mark.parametrize(
    "words",
    [
        "x̄ = q̄ W_Qᵀ + k̄ W_Kᵀ + v̄ W_Vᵀ (+ skip)",
        "∂L/∂W_E[t] = Σ x̄_i, over positions i with token t",
        "∂L/∂W_Q = xᵀ q̄",
        "A frozen W_Q stops nothing: its own gradient is not applied, but q̄ W_Qᵀ still flows down",
        "the first layer, without a norm before attention, and for untied embeddings",
        "No activation follows x W_Q",
        "There is no other technique.",
        "W_Q, W_K and W_V are not the embedding matrix.",
        "Let d_vocab ≤ d_model (here 31 ≤ 32)",
    ],
)
def test_the_page_says(file, words):
    assert words in str(Text(file.read_text(encoding="utf-8")))


def test_the_page_is_one_small_file_that_asks_for_nothing(file):
    text = file.read_text(encoding="utf-8")
    assert len(text.encode()) < LARGEST
    assert "default-src 'none'" in text and not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=\"https?:", text)


def test_links_lead_to_the_answers_where_there_are_any():
    names = {each["study"] for each in questions() if each["study"]}
    linked = set(re.findall(r'href="\.\./answers/([\w-]+)\.html"', page(answers="../answers")))
    assert linked == names == {n for n in names if (ROOT / f"docs/answers/{n}.md").is_file()}
    assert 'href="../answers' not in page()


@pytest.fixture(scope="module")
def learn_model():
    spec = importlib.util.spec_from_file_location("learn_model", ROOT / "docs/learn_model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_text_of_the_model_is_what_the_program_writes(learn_model):
    assert shipped().text == learn_model.text()


def test_the_model_of_the_page_knows_more_than_counting():
    model = shipped()
    assert model.val_loss < model.ngram
    assert model.steps[0] == 0 and model.steps[-1] == 1000 and len(model.tokens) == model.settings["d_vocab"] == 31


@pytest.mark.slow
def test_the_weights_are_those_that_training_again_gives(learn_model):
    assert learn_model.difference(learn_model.trained()) <= learn_model.SAME


def test_a_folder_that_is_no_run_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UserError):
        write(tmp_path / "page.html", run=tmp_path)
    assert not (tmp_path / "page.html").exists()


def own(folder):
    text = folder.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="qkv-payload">(.*?)</script>', text, re.S)[1])["own"]


def test_a_small_run_travels_with_the_page(make, tmp_path):
    run = make()
    write(tmp_path / "mine.html", run=run.folder)
    found = own(tmp_path / "mine.html")
    assert found["name"] == run.folder.name and found["steps"][-1] == max(found["steps"])
    assert (tmp_path / "mine.html").stat().st_size < LARGEST


# in a browser


@pytest.mark.browser
@pytest.mark.parametrize("width", [380, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_has_no_serious_fault(look, file, faults, shot, width, scheme):
    view = look(file, width=width, scheme=scheme)
    assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert faults(view) == []
    assert view.asked == [file.as_uri()] and view.complaints == []
    shot(view, f"learn-{width}-{scheme}")


@pytest.mark.browser
def test_the_first_picture_and_a_typed_sentence_come_quickly(look, file):
    view = look(file)
    first = view.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    typed = """() => { const box = document.getElementById("sentence"); const began = performance.now();
      box.value = "the king finds the girl and he waits"; box.dispatchEvent(new Event("input"));
      document.body.offsetHeight; return performance.now() - began; }"""
    times = sorted(view.evaluate(typed) for _ in range(5))
    print(f"first picture {first:.0f} ms, sentence {times[2]:.0f} ms")
    assert first < 1000 and times[2] < 300
    assert "he" in view.locator(".predictions li").first.inner_text()


@pytest.mark.browser
def test_words_that_the_model_does_not_know_are_named(look, file):
    view = look(file)
    view.locator("#sentence").fill("The zebra sat on the mat")
    assert "left out: zebra" in view.locator("#model > p").first.inner_text()
    assert view.locator("[data-pick^=i]").all_inner_texts() == ["the", "sat", "on", "the", "mat"]
    view.locator("#sentence").fill("the " * 40)
    assert "reads the first 32" in view.locator("#model > p").first.inner_text()
    view.locator("#sentence").fill("zebra")
    assert "at least two tokens" in view.locator("#model > p").first.inner_text()


@pytest.mark.browser
def test_step_token_and_head_are_chosen_once_and_by_keyboard(look, file):
    view = look(file)
    slider = view.get_by_label("step of the training")
    assert "step 128 of 1,000" in view.locator(".step-now").inner_text()
    assert "“queen” (81%)" in view.locator(".summary").inner_text()
    slider.focus()
    view.keyboard.press("End")
    assert "step 1,000 of 1,000" in view.locator(".step-now").inner_text()
    view.locator("[data-pick=head1]").focus()
    view.keyboard.press("Enter")
    assert view.evaluate("document.activeElement.dataset.pick") == "head1"
    assert "head 1" in view.locator(".summary").inner_text() and "in head 1" in view.locator(".walk").inner_text()
    view.locator("[data-pick=i1]").click()
    assert "the row of “queen”" in view.locator(".walk").inner_text()


WEIGHTS = """() => Object.fromEntries(learn.model.entries.map(({ address, start, size }) =>
  [address, [...learn.model.weights.subarray(start, start + size)]]))"""


def train_a_little(view, *labels):
    for label in labels:
        view.get_by_label(label, exact=True).check()
    view.get_by_role("button", name="Train 300 steps").click()
    end = time.monotonic() + 90
    while view.evaluate("learn.state.snapshots.at(-1).step < 10 || !learn.state.live"):
        assert time.monotonic() < end
        time.sleep(0.1)
    view.get_by_role("button", name="Stop").click()
    view.get_by_role("button", name="Train 300 steps").wait_for()


@pytest.mark.browser
def test_a_frozen_W_E_stays_and_a_fixed_W_Q_is_the_identity_while_the_rest_trains(look, file):
    view = look(file)
    view.get_by_label("step of the training").fill("0")
    start = view.evaluate(WEIGHTS)
    train_a_little(view, "freeze W_E", "W_Q = I")
    now = view.evaluate(WEIGHTS)
    assert now["W_E"] == start["W_E"] and now["L0.W_K"] != start["L0.W_K"]
    np.testing.assert_array_equal(np.reshape(now["L0.W_Q"], (32, 32)), np.eye(32))
    words = view.locator(".walk").inner_text()
    assert "W_E is frozen: this is not applied." in words
    assert "W_Q is I: this is not applied, but q̄ W_Qᵀ still flows down." in words
    assert "With W_E frozen and with W_Q = I" in view.locator(".told").inner_text()
    view.get_by_role("button", name="back to the model that came with the page").click()
    assert "of 1,000" in view.locator(".step-now").inner_text()
    assert view.complaints == []


@pytest.mark.browser
def test_stop_and_train_at_once_is_one_training_and_back_ends_it(look, file):
    view = look(file)
    asked = """() => { globalThis.asked = 0; const post = Worker.prototype.postMessage;
      Worker.prototype.postMessage = function (m) { if (m.make) globalThis.asked++; post.call(this, m); }; }"""
    view.evaluate(asked)
    button = view.locator(".switch-row button")
    button.evaluate("(b) => { b.click(); b.click(); b.click(); }")
    view.get_by_role("button", name="Train 300 steps").wait_for()
    assert view.evaluate("globalThis.asked") == 2  # one an arm
    button.click()
    while not view.evaluate("learn.state.live"):
        time.sleep(0.05)
    view.locator("#back").click()
    view.get_by_role("button", name="Train 300 steps").wait_for()
    assert not view.evaluate("learn.state.live") and "of 1,000" in view.locator(".step-now").inner_text()
    assert view.complaints == []


@pytest.mark.browser
def test_keys_that_are_queries_have_one_gradient(look, tmp_path):
    (tmp_path / "letters.txt").write_text("xyz zyx yyx\n" * 300, encoding="utf-8")
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 32}
    how = {"preset": "textbook", "tokenizer": "char", "steps": 4, "seed": 1, "report": False, "set": sizes}
    train(tmp_path / "letters.txt", out=tmp_path / "run", change=["L0.W_K=share(L0.W_Q)"], **how)
    write(tmp_path / "mine.html", run=tmp_path / "run")
    view = look(tmp_path / "mine.html")
    assert "This is your run run." in view.locator("#which").inner_text()
    lines = [line for line in view.locator(".up-block p").all_inner_texts() if "∂L/∂W_" in line]
    assert len(lines) == 2 and lines[0].startswith("∂L/∂W_Q = xᵀ (q̄ + k̄)") and "W_V" in lines[1]


@pytest.mark.browser
def test_tied_matrices_train_as_one(look, file):
    view = look(file)
    train_a_little(view, "tie W_U to W_E")
    assert "W_U" not in view.evaluate(WEIGHTS)
    assert "its gradient is in this number too" in view.locator(".walk").inner_text()
    first, last = (view.evaluate(f"learn.state.snapshots.at({i}).step") for i in (0, -1))
    assert 0 < first <= last


@pytest.mark.browser
def test_a_run_that_does_not_fit_says_why_and_the_page_shows_its_own_model(look, make, tmp_path):
    run = make()
    write(tmp_path / "mine.html", run=run.folder)
    view = look(tmp_path / "mine.html")
    words = view.locator("#which").inner_text()
    assert "This model" in words and "so the model that comes with the page is shown instead." in words
    assert "queen" in view.locator(".summary").inner_text()


@pytest.mark.browser
def test_a_run_of_characters_is_walked_through(look, tmp_path):
    text = tmp_path / "letters.txt"
    text.write_text("xyz zyx yyx\n" * 300, encoding="utf-8")
    sizes = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_ctx": 32}
    train(
        text, out=tmp_path / "run", preset="textbook", tokenizer="char", steps=4, seed=1, report=False, set=sizes
    )  # knows none of the letters of the first sentence
    write(tmp_path / "mine.html", run=tmp_path / "run")
    view = look(tmp_path / "mine.html")
    assert "This is your run run." in view.locator("#which").inner_text()
    assert "step 4 of 4" in view.locator(".step-now").inner_text()
    view.locator("#sentence").fill("zyx")
    assert view.locator("[data-pick^=i]").all_inner_texts() == ["z", "y", "x"]
    assert "then through the norm" in view.locator(".walk").inner_text()
    assert "no text of this run to train on" in view.locator("#retrain").inner_text()
    assert view.complaints == []
