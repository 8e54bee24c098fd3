"""One text, one token and one head for the whole page, and the step of every number, in a real browser."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import qkv
from qkv.models import build
from qkv.models.matrices import Catalogue
from qkv.tasks.generation import _cut_to_share
from qkv.telemetry import Store
from qkv.tokenizers.tokenizer import fit_tokenizer
from qkv.views.report.report import write_report

pytestmark = pytest.mark.browser
TEXT = "the day and the night"


@pytest.fixture(autouse=True)
def patient():
    """A busy machine is slow, not wrong."""
    from playwright.sync_api import expect

    expect.set_options(timeout=60_000)
    yield
    expect.set_options(timeout=5_000)


def type_text(page, text):
    page.locator(".sentence textarea").fill(text)
    page.keyboard.press("Enter")


def test_one_text_token_and_head_drive_every_section(look, server):
    from playwright.sync_api import expect

    page = look(f"http://127.0.0.1:{server}/", offline=False, fragment="#section=forward")
    page.get_by_role("button", name=re.compile("the way back")).click()
    gradient = page.locator("#forward .way-back .chart svg").first
    expect(gradient).to_contain_text("O")
    type_text(page, TEXT)
    other = page.locator("#forward .way-back textarea")
    expect(other).to_have_value(TEXT)
    expect(gradient).not_to_contain_text("O")
    assert "".join(gradient.locator("text").all_text_contents()).count("d") == TEXT.count("d")
    page.locator("#attention .detail").scroll_into_view_if_needed()  # what is out of sight waits
    expect(page.locator("#attention .detail .word")).to_have_count(len(TEXT))
    page.locator(".tokens .word").nth(4).click()
    page.locator(".sentence select[aria-label=layer]").select_option("L2")
    page.locator(".sentence select[aria-label=head]").select_option("H3")
    expect(page.locator("#attention .detail h3 code")).to_have_text("L2.H3")
    expect(page.locator("#attention .word.on")).to_have_text("d")
    page.locator("#forward .answer-box").scroll_into_view_if_needed()
    expect(page.locator("#forward h3").first).to_have_text(f"L2.H3 on {len(TEXT)} tokens")
    expect(page.locator("#forward .answer-box h3")).to_have_text("after d (4)")
    assert "addr=L2.H3.pattern" in page.url
    other.fill(TEXT.replace("day", "way"))
    page.keyboard.press("Enter")
    expect(page.locator("#forward .chart svg", has_text="d←w")).to_have_count(3)
    page.locator("#words").scroll_into_view_if_needed()
    expect(page.locator("#words .near-columns")).to_contain_text("among all")
    expect(page.locator("#words h4", has_text="d (4)")).to_be_visible()
    page.locator("#attention .word").nth(9).click()  # chosen in one section, it is that of all
    expect(page.locator(".tokens .word.on")).to_have_text("n")
    page.locator("#words").scroll_into_view_if_needed()
    expect(page.locator("#words h4", has_text="n (9)")).to_be_visible()
    assert page.complaints == [] and page.locator("#attention textarea, #words textarea").count() == 0


def expected_shares(logits, temperature, top_k, top_p):
    """softmax(logits / temperature), cut as generation cuts it, in float64."""
    x = np.asarray(logits, np.float64)
    if temperature == 0:
        return (np.arange(len(x)) == x.argmax()).astype(float)
    p = np.exp((x - x.max()) / temperature)
    if top_k:
        p[x < np.sort(x)[-top_k]] = 0
    if top_p < 1:
        _cut_to_share(rows := p[None].copy(), top_p)
        p = rows[0]
    return p / p.sum()


def test_the_next_tokens_distribution_is_the_softmax_of_the_logits_over_the_temperature(look, server, run_folder):
    model = build(run_folder.config.model, 1)
    Catalogue(model).load_state({name: torch.tensor(values) for name, values in run_folder.last.items()})
    with torch.no_grad():
        logits = model.eval()(torch.as_tensor(run_folder.tokenizer.encode(TEXT))[None])[0, -1].numpy()
    ordered = np.sort(logits)[::-1]
    page = look(f"http://127.0.0.1:{server}/", offline=False, fragment="#section=forward")
    given = [(1, 0, 1), (0.7, 0, 1), (0, 0, 1), (2, 5, 1), (1.3, 0, 0.5), (0.9, 7, 0.8)]
    shown = page.evaluate(
        """async ([logits, given]) => {
      const { distribution } = await import("./static/sampling.js");
      return given.map(([temperature, topK, topP]) => [...distribution(logits, { temperature, topK, topP })]);
    }""",
        [ordered.tolist(), given],
    )
    for how, found in zip(given, shown, strict=True):
        np.testing.assert_allclose(found, expected_shares(ordered, *how), rtol=1e-9, atol=1e-12, err_msg=str(how))
    type_text(page, TEXT)
    page.locator("#forward .next-token").scroll_into_view_if_needed()
    page.get_by_label("temperature", exact=True).fill("0.5")
    page.get_by_label("top-k", exact=True).fill("4")
    rows = page.locator("#forward .next-token li")
    names = [
        run_folder.tokenizer.token(int(i)).replace(" ", "␣").replace("\n", "⏎")
        for i in np.argsort(-logits, kind="stable")[:12]
    ]
    page.wait_for_function(f"document.querySelector('.next-token li code').textContent === {names[0]!r}")
    assert rows.locator("code").all_inner_texts() == names
    amounts = [float(text) for text in rows.locator(".amount").all_inner_texts()]
    np.testing.assert_allclose(amounts, expected_shares(ordered, 0.5, 4, 1)[:12], atol=5.1e-4)
    assert rows.and_(page.locator(".cut")).count() == 8


WRITTEN = "a😀日本שלום👨‍👩‍👧e\u0301"


def test_tokens_that_spell_one_character_are_grouped(look, server):
    page = look(f"http://127.0.0.1:{server}/", offline=False)
    grouped = """async (all) => {
      const { characters } = await import("./static/tokens.js");
      return all.map((tokens) => characters(tokens).map(({ from, to, text }) => [text, to - from]));
    }"""
    byte, bpe = fit_tokenizer("byte", ["a"]), fit_tokenizer("bpe", ["the cat " * 50], vocab=260)
    names = [[tokenizer.token(int(i)) for i in tokenizer.encode(WRITTEN)] for tokenizer in (byte, bpe)]
    expected = [["😀", 4], ["日", 3], ["本", 3], *([c, 2] for c in "שלום"), ["👨‍👩‍👧", 18], ["e\u0301", 3]]
    cut = names[0][:3]  # an emoji that lost its end spells nothing
    assert page.evaluate(grouped, [*names, cut, ["the", " cat"]]) == [expected, expected, [], []]


@pytest.fixture(scope="module")
def byte_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "text.txt").write_text("the cat 😀 sees 日本 and שלום. " * 120, encoding="utf-8")
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_ctx": 32, "batch_size": 4}
    options = {"tokenizer": "byte", "steps": 3, "threads": 1, "precision": "fp32"}
    return qkv.train(folder / "text.txt", out=folder / "run", set=sizes, report=False, **options)


def test_any_script_can_be_typed_and_what_is_too_long_is_reported(look, serving, byte_run, faults, shot):
    from playwright.sync_api import expect

    server = serving(byte_run.path)
    address = f"http://127.0.0.1:{next(server)}/"
    page = look(address, offline=False, width=380, scheme="dark", fragment="#section=attention")
    for text, character, parts, way in (
        ("😀 cat", "😀", 4, None),
        ("日本 a", "日", 3, None),
        ("שלום a", "ש", 2, "rtl"),
    ):
        type_text(page, text)
        group = page.locator(".tokens .character").first
        expect(group.locator(".word")).to_have_count(parts)
        expect(group.locator(".word").first).to_have_text(character)
        assert page.locator(".tokens .words").get_attribute("dir") == way
        expect(page.locator("#attention .detail .axis.down text").first).to_have_text(f"{character} 1/{parts}")
        expect(page.locator("#attention .detail .axis.across text")).to_have_count(len(text.encode()))
    assert page.locator(".sentence .note").inner_text() == ""
    first = page.locator(".tokens .word").first
    first.click()
    page.keyboard.press("ArrowLeft")  # the next token of a text that runs to the left
    expect(page.locator("#attention .word.on")).to_have_attribute("aria-label", "ש 2/2, <0xA9>")
    type_text(page, "the cat sees " * 4)
    note = "The text has 52 tokens; only the first 32 are shown. This model reads 32 at once."
    expect(page.locator(".sentence .note")).to_have_text(note)
    type_text(page, "a" * 20_001)
    told = "The text has 20,001 characters; a page reads up to 20,000: shorten it."
    expect(page.locator(".sentence form [role=status]")).to_have_text(told)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    shot(page, "one-text-380-dark")
    assert faults(page) == [] and page.complaints == []
    word = page.locator("#attention dfn").first
    word.focus()
    expect(page.get_by_role("tooltip")).to_have_text(word.get_attribute("aria-description"))
    page.keyboard.press("Escape")
    expect(page.get_by_role("tooltip")).to_be_hidden()
    page.close()
    assert list(server) == []


def test_a_saved_page_offers_the_texts_that_it_holds(look, run_folder, tmp_path):
    from playwright.sync_api import expect

    page = look(write_report(run_folder.folder, tmp_path / "r.html", [TEXT, "O Romeo, Romeo!"]))
    note = "This page was saved with 2 texts. To type your own, open the run: qkv view RUN."
    assert page.locator(".sentence .note").inner_text() == note and page.locator(".sentence textarea").count() == 0
    page.locator(".sentence select[aria-label=text]").select_option(label="“O Romeo, Romeo!”")
    page.locator("#attention .detail").scroll_into_view_if_needed()
    expect(page.locator("#attention .detail .word")).to_have_count(len("O Romeo, Romeo!"))
    page.locator("#forward").scroll_into_view_if_needed()
    page.locator("#forward [role=status]", has_text="was not saved with the page").wait_for()
    assert page.locator("#forward .stage").count() == 0  # no numbers of another text under this one
    page.locator(".sentence select[aria-label=text]").select_option(index=1)
    page.locator("#forward .stage").first.wait_for()
    assert page.complaints == []


SETTLED = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(() => done((%s)()))))"
STALE = """() => {
  const now = document.documentElement.dataset.now;
  const says = (el, step) => new RegExp(`step ${Number(step).toLocaleString("en-US")}(?!\\\\d|,\\\\d)`).test(el.innerText);
  const faults = [];
  for (const el of document.querySelectorAll("main [data-step]")) {
    const line = el.querySelector(":scope > .as-of");
    const said = line ? !line.hidden && says(line, el.dataset.step) : says(el, el.dataset.step);
    if (el.dataset.step !== now && el.innerText && !said) faults.push([el.id || el.className, el.dataset.step, now]);
  }
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const dated = "[data-step], nav, .dock, .tour, .live, h1, .eyebrow, #which-q, #measures, #play, #words figure, #forward";
  while (walker.nextNode()) {
    const { data, parentElement: parent } = walker.currentNode;
    if (/\\d/.test(data) && parent.checkVisibility() && !parent.closest(dated)) faults.push([data, parent.className]);
  }
  const facts = document.querySelector(".page-head [data-step]");
  const steps = [...facts.querySelectorAll(".facts div")].find((row) => row.firstChild.textContent === "steps").lastChild.textContent;
  if (Number(steps.replaceAll(",", "")) !== Number(facts.dataset.step)) faults.push(["head", steps, facts.dataset.step]);
  if (!facts.querySelector(".verdict").textContent.includes(`${steps} update`)) faults.push(["verdict", steps]);
  const drawn = document.querySelector("#loss svg[aria-label]")?.ariaLabel.match(/over (\\d+) steps/)[1];
  if (drawn && drawn !== document.querySelector("#loss").dataset.step) faults.push(["loss", drawn]);
  return { faults, now, read: facts.dataset.step, answers: document.querySelector("#answers")?.dataset.step };
}"""  # noqa: E501


def test_no_number_of_a_training_is_of_another_step_without_saying_so(look, make, serving):
    run = make()
    (run.folder / "manifest.json").unlink()  # as while it trains
    server = serving(run.folder)
    seen = []
    with Store(run.folder / "telemetry.sqlite") as store:
        page = look(f"http://127.0.0.1:{next(server)}/", offline=False)
        for step in range(1001, 1012):
            store.add_step(step, tokens=step * 4096, loss=1.5, lr=0.001, grad_norm=0.5)
            if step % 3 == 0:
                store.add_evaluation(step, 1.5 - step / 1e4, is_best=True, bits_per_byte=1.0)
            store.flush()
            page.wait_for_timeout(700)
            seen.append(page.evaluate(SETTLED % STALE))
    assert [one["faults"] for one in seen if one["faults"]] == []
    assert len({one["now"] for one in seen}) > 2 and any(one["now"] != one["answers"] for one in seen)
    page.evaluate("document.querySelector('#answers').dataset.step = 1")  # the check can fail
    assert page.evaluate(SETTLED % STALE)["faults"] != []
    assert page.complaints == []
    page.close()
    assert list(server) == []


@pytest.mark.slow
def test_a_real_training_is_never_stale_without_saying_so(look, serving, tmp_path):
    from playwright.sync_api import Error

    (tmp_path / "text.txt").write_text("the cat sees a dog and the dog sees a cat. " * 400, encoding="utf-8")
    command = ["train", "text.txt", "--out", "run", "--minutes", "0.5", "--threads", "1", "--set", "d_model=16"]
    training = subprocess.Popen([sys.executable, "-m", "qkv", *command], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        while not list((tmp_path / "run").glob("checkpoints/*/model.safetensors")):
            assert training.poll() is None
            torch.set_num_threads(1)
        server = serving(tmp_path / "run")
        page = look(f"http://127.0.0.1:{next(server)}/", offline=False)
        steps = set()
        while training.poll() is None:
            page.wait_for_load_state()
            try:
                ready = page.evaluate(
                    "document.documentElement.dataset.ready === 'yes' && 'now' in document.documentElement.dataset"
                )
                found = page.evaluate(SETTLED % STALE) if ready else None
            except Error:  # the page has just loaded itself again, because the run has more to show
                continue
            if found:
                assert found["faults"] == []
                steps.add(found["now"])
            page.wait_for_timeout(200)
        assert len(steps) > 3
        page.close()
        assert list(server) == []
    finally:
        training.kill()
        training.wait()


def test_a_page_opens_with_its_name_and_losses_before_the_rest_is_read(look, serving, run_folder, monkeypatch):
    from threading import Event

    from qkv.views.live.server import Page

    whole, payload = Event(), Page.payload
    monkeypatch.setattr(Page, "payload", lambda self: (whole.wait(60), payload(self))[1])
    server = serving(run_folder.folder)
    page = look(f"http://127.0.0.1:{next(server)}/", offline=False, ready=False)
    page.locator("#loss svg[role=img], .section svg[role=img]").first.wait_for()
    assert page.locator("h1").inner_text() == run_folder.folder.name
    assert page.locator(".verdict").inner_text().startswith("Trained for 1,000 updates")
    whole.set()
    page.wait_for_selector("html[data-ready=yes]")
    assert page.locator("#answers").count() == 1 and page.complaints == []
    page.close()
    assert list(server) == []
