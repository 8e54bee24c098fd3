"""The live page's server: the run over HTTP, to the right asker only, and answers that are the model's own numbers."""

import asyncio
import dataclasses
import http.client
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file

from qkv.cli import main
from qkv.errors import RunFolderError, UserError
from qkv.telemetry import Store
from qkv.views.live.asking import Desk, Question
from qkv.views.live.follow import CREDIT, EACH, LOOK_EVERY, SHARE, Purse, pulse_of
from qkv.views.live.server import Page, _answer
from qkv.views.live.serving import _listen, _names, serve
from qkv.views.report.packed import pack, wire
from qkv.views.report.page_sections import Sections
from qkv.views.sections.heads import head_notes
from qkv.views.sections.long_text import LongText, largest_in_blocks
from qkv.views.viewer import Viewer

TEXT = "the day and the night"


def get(port, path, method="GET", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body=body, headers={k.replace("_", "-"): v for k, v in headers.items()})
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, data, dict(response.getheaders())


def ask(port, name, **question):
    status, data, _ = get(port, f"/ask/{name}", "POST", json.dumps(question))
    return (status, opened(data)) if status == 200 else (status, json.loads(data)["error"])


def attention(port, **question):
    """(status, the attention on a text)."""
    status, answer = ask(port, "attention", **question)
    (text,) = answer["texts"]
    return status, text


def opened(data):
    """The wire format, read again: arrays as NumPy."""
    length = int.from_bytes(data[:4], "little")

    def place(value):
        if isinstance(value, dict) and "dtype" in value and "bytes" in value:
            at = 8 + length + value["at"]
            stored = np.frombuffer(data[at : at + value["bytes"]], value["dtype"]).reshape(value["shape"])
            return stored if value["scale"] == 1 else stored * value["scale"]
        if isinstance(value, dict):
            return {k: place(v) for k, v in value.items()}
        return [place(v) for v in value] if isinstance(value, list) else value

    return place(json.loads(data[8 : 8 + length]))


def patterns(run, text, step=1000):
    """[layer, head, query_pos, key_pos] of the run's weights at a step, by the models section alone."""
    from qkv.models import build
    from qkv.models.matrices import Catalogue

    model = build(run.config.model, 1)
    Catalogue(model).load_state(load_file(run.folder / "checkpoints" / f"step-{step:08d}" / "model.safetensors"))
    with torch.no_grad():
        _, record = model.eval().forward_recorded(torch.as_tensor(run.tokenizer.encode(text))[None])
    return torch.stack([record[f"L{layer}.pattern"][0] for layer in range(3)]).numpy()


def test_page_modules_and_payload_come_from_the_server(server, run_folder):
    status, page, headers = get(server, "/")
    assert status == 200 and b'src="static/live.js"' in page
    assert "default-src 'none'" in headers["content-security-policy"]
    status, module, headers = get(server, "/static/live.js")
    assert status == 200 and headers["content-type"].startswith("text/javascript")
    status, payload, _ = get(server, "/payload")
    assert status == 200 and json.loads(payload)["host"] == {
        "kind": "page",
        "can": list(Desk(Viewer(run_folder.folder)).can),
    }


def test_only_files_of_the_page_are_served(server):
    for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static/", "/static/vendor", "/telemetry.sqlite"):
        assert get(server, path)[0] == 404, path


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_pages_from_elsewhere_are_refused(server, headers, status):
    assert get(server, "/payload", **headers)[0] == status


def test_a_link_from_another_page_still_shows_the_page(server):
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert get(server, "/", **headers)[0] == 200
    assert get(server, "/ask/attention", "POST", "{}", **headers)[0] == 403


def test_requests_beyond_a_size_are_refused_with_or_without_a_length(server):
    assert get(server, "/ask/attention", "POST", b"x" * 300_000)[0] == 413
    with socket.create_connection(("127.0.0.1", server), timeout=10) as wire_:
        wire_.sendall(
            f"POST /ask/attention HTTP/1.1\r\nHost: 127.0.0.1:{server}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        for _ in range(4):
            wire_.sendall(b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n")
        wire_.sendall(b"0\r\n\r\n")
        assert b" 413 " in wire_.recv(4096).split(b"\r\n")[0]


def test_attention_on_a_text_is_the_models_own(server, run_folder):
    status, answer = attention(server, text=TEXT, step=1000)
    assert status == 200 and answer["steps"] == [1000] and "".join(answer["tokens"]) == TEXT
    rows, columns = np.tril_indices(len(TEXT))
    expected = patterns(run_folder, TEXT)[:, :, rows, columns]
    np.testing.assert_allclose(answer["patterns"][0], expected, atol=1 / 500)


def test_attention_at_an_earlier_step_is_that_of_its_snapshot(server, run_folder):
    _, then = attention(server, text=TEXT, step=70)
    _, now = attention(server, text=TEXT)
    assert then["steps"] == [64] and now["steps"] == [1000]
    rows, columns = np.tril_indices(len(TEXT))
    expected = patterns(run_folder, TEXT, 64)[:, :, rows, columns]
    np.testing.assert_allclose(then["patterns"][0], expected, atol=1 / 500)
    assert np.abs(then["patterns"] - now["patterns"]).max() > 4 / 500


def test_changes_are_made_for_the_looking_only(server, run_folder):
    _, even = attention(server, text=TEXT, changes=["L0.W_Q=zero"])
    rows, columns = np.tril_indices(len(TEXT))
    np.testing.assert_allclose(even["patterns"][0, 0, 0], 1 / (rows + 1), atol=1 / 500)
    _, after = attention(server, text=TEXT)
    np.testing.assert_allclose(after["patterns"][0], patterns(run_folder, TEXT)[:, :, rows, columns], atol=1 / 500)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"text": "a" * 20_001}, "20,001 characters; expected at most 20,000"),
        ({"text": "a"}, "expected at least 2"),
        ({"text": 7}, "text is a text"),
        ({"text": TEXT, "step": -1}, "whole number"),
        ({"text": TEXT, "changes": ["L0.W_Q=sing"]}, "sing"),
        ({"text": TEXT, "changes": ["L9.W_Q=zero"]}, "L9.W_Q"),
        ({"text": TEXT, "changes": "L0.W_Q=zero"}, "changes is a list"),
    ],
)
def test_mistakes_are_told_in_a_sentence(server, question, words):
    status, sentence = ask(server, "attention", **question)
    assert status == 422 and words in sentence, sentence


def test_unknown_questions_and_bodies_are_told_too(server):
    assert ask(server, "attentions")[0] == 422
    assert get(server, "/ask/attention", "POST", b"{")[0] == 422
    assert get(server, "/ask/attention", "POST", b"[1]")[0] == 422
    assert get(server, "/sections?names=loss,secrets")[0] == 422


def test_off_loopback_nobody_gets_in_without_the_token(run_folder, serving):
    run = serving(run_folder.folder, token="sesame")
    port = next(run)
    try:
        assert get(port, "/payload")[0] == 401
        assert get(port, "/?token=wrong")[0] == 401
        status, _, headers = get(port, "/?token=sesame")
        assert status == 303 and headers["location"] == "/"
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert get(port, "/", Cookie=cookie.split(";")[0])[0] == 200
        name, secret = cookie.split(";")[0].split("=")
        assert get(port, "/payload", Cookie=f"{name}=wrong")[0] == 401
        beside = (
            f"{name.replace(str(port), str(port + 1))}=other; {name}={secret}"  # of a second page, which stays open
        )
        assert str(port) in name and get(port, "/payload", Cookie=beside)[0] == 200
        assert get(port, "/payload", Cookie=cookie.split(";")[0], Origin="http://evil.example")[0] == 403
    finally:
        assert list(run) == []


def test_a_page_at_port_80_is_called_by_its_host_alone():
    assert _names("127.0.0.1", 80) >= {"127.0.0.1", "127.0.0.1:80", "localhost"}
    assert "127.0.0.1" not in _names("127.0.0.1", 8642)


def test_a_port_in_use_says_so():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} is in use; give another one, such as --port"):
            _listen("127.0.0.1", port)


def test_what_is_no_run_is_refused_in_a_sentence(run_folder, tmp_path, capsys):
    assert main(["view", str(tmp_path)]) == 2
    assert "is not a run" in capsys.readouterr().err
    assert main(["view", str(run_folder.folder), "--beside", str(tmp_path / "nothing")]) == 2
    assert "is not there" in capsys.readouterr().err


def test_a_host_that_is_no_address_says_so(run_folder):
    with pytest.raises(UserError, match="no.such.host.invalid is no address of this machine"):
        serve(run_folder.folder, host="no.such.host.invalid")


def test_ctrl_c_ends_the_command_though_a_page_is_open(run_folder):
    command = [sys.executable, "-m", "qkv", "view", str(run_folder.folder), "--port", "0"]
    heard = (
        None if os.name == "nt" else lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )  # not so in background jobs
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    line = process.stdout.readline()
    port = int(line.split("http://127.0.0.1:")[1].split("/")[0])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/events")
    response = connection.getresponse()
    assert response.readline().startswith(b"event: pulse")
    began = time.monotonic()
    process.send_signal(signal.SIGINT if os.name != "nt" else signal.CTRL_C_EVENT)
    _, complaints = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in complaints, complaints
    assert time.monotonic() - began < 10
    connection.close()


def test_the_page_follows_within_two_seconds(make, serving):
    run = make()
    (run.folder / "manifest.json").unlink()  # as while it trains
    server = serving(run.folder)
    port = next(server)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/events")
        response = connection.getresponse()

        def pulse():
            while not (line := response.readline()).startswith(b"data: "):
                pass
            return json.loads(line[6:])

        assert pulse()["step"] == 1000
        with Store(run.folder / "telemetry.sqlite") as store:
            store.add_step(1001, tokens=1001 * 4096, loss=1.5, lr=0.001, grad_norm=0.5)
            store.flush()
            written = time.monotonic()
            assert pulse() == dataclasses.asdict(pulse_of(run.folder)) | {"step": 1001, "loss": 1.5}
        assert time.monotonic() - written < 2
        _, sections, _ = get(port, "/sections?names=loss")
        assert get(port, "/rooms?names=loss")[0] == 200  # the name of earlier versions
        assert json.loads(sections)["loss"]["train_steps"][-1] == 1001
        connection.close()
    finally:
        assert list(server) == []


def test_a_payload_is_read_again_when_a_page_that_opens_would_not_ask_for_what_has_changed(run_folder):
    page = Page(run_folder.folder)
    was = page.pulse

    def anew(**now):
        page.pulse = dataclasses.replace(was, **now)
        return page.as_of("/payload") != before, page.as_of("/sections") != was

    before = page.as_of("/payload")
    assert anew(step=was.step + 1, loss=1.0) == anew(recorded=was.recorded + 1) == (False, True)
    for field in ("edition", "evaluations", "snapshot", "finished"):
        assert anew(**{field: "other"}) == (True, True)
    assert anew(recorded=-1) == (True, True)


def test_a_payload_says_at_which_pulse_it_was_read(run_folder):
    page = Page(run_folder.folder)
    page.pulse = dataclasses.replace(page.pulse, edition="before", finished=False)
    assert page.payload().pulse == page.pulse  # not newer than what is read: a change in between is told of


def test_a_crowd_is_told_less_often_at_the_same_cost(run_folder, monkeypatch):
    page, slept, sleep, mine = Page(run_folder.folder), [], asyncio.sleep, threading.current_thread()

    async def rest(seconds):
        if threading.current_thread() is not mine:  # servers of other tests that are still closing
            return await sleep(seconds)
        slept.append(seconds)
        page.closing = True

    async def looked():
        page.closing = False
        await page.watch()

    async def listen():
        crowd = [page.events() for _ in range(200)]
        told = {await anext(events) for events in crowd}
        await looked()
        for events in crowd:
            await events.aclose()
        await looked()
        return told

    monkeypatch.setattr("qkv.views.live.follow.asyncio.sleep", rest)
    assert len(asyncio.run(listen())) == 1
    assert slept == [200 * EACH, LOOK_EVERY]


def test_reading_again_waits_until_what_was_read_is_paid_for():
    now, worked = [0.0], [0.0]

    def costly():
        now[0] += 9.0  # nearly all of it waiting for a core that the training has
        worked[0] += 0.1
        return now[0]

    purse = Purse(clock=lambda: now[0], cost=lambda: worked[0])
    assert purse.wait == 0 and purse.pay(costly) == 9.0
    assert purse.wait == 0  # 0.1 s of a credit of as much
    purse.pay(costly)
    rest = (0.1 + 0.1 - 9 * SHARE - CREDIT) / SHARE
    assert purse.wait == pytest.approx(rest) and rest > 15
    now[0] += rest - 1
    assert purse.wait == pytest.approx(1.0)
    now[0] += 1.1
    assert purse.wait == 0
    now[0] += 1e6  # what was not spent is not saved
    purse.pay(costly), purse.pay(costly)
    assert purse.wait == pytest.approx(rest)


def test_sections_of_a_training_wait_for_each_other_and_those_of_a_finished_run_do_not(run_folder):
    page = Page(run_folder.folder)
    assert page.pulse.finished
    assert page.sections(["loss", "map"]).keys() == {"wait", "kept", "as_of", "loss", "map"}
    page.pulse = dataclasses.replace(page.pulse, finished=False)
    page.purse = Purse(cost=itertools.count().__next__)  # a second each
    first = page.sections(["loss", "map"])
    assert first.keys() == {"wait", "kept", "as_of", "loss"} and first["wait"] > 100
    assert page.sections(["map"]).keys() == {"wait", "kept", "as_of"}


def test_sections_come_with_the_steps_whose_weights_are_there_now(make):
    run = make()
    (run.folder / "manifest.json").unlink()
    page = Page(run.folder)
    assert page.sections(["samples"])["kept"] == [0, 1, 4, 16, 64, 256, 1000]
    shutil.rmtree(run.folder / "checkpoints" / "step-00000004")
    assert page.sections(["samples"])["kept"] == [0, 1, 16, 64, 256, 1000]


def test_a_page_forgets_the_steps_that_a_rollback_took_back(make):
    run = make()
    (run.folder / "manifest.json").unlink()
    page, text = Page(run.folder), "the day and the night, " * 12
    drifts = lambda: page.sections(["map"])["map"].values["drift"].data  # noqa: E731
    page.purse = Purse(cost=lambda: 0.0)
    asked = {"text": text, "step": 256, "position": 40}
    before, reads = drifts(), [page.desk.answer("line", asked)["reads"].data]
    with Store(run.folder / "telemetry.sqlite") as store:
        store.drop_after(512)
        store.add_event(512, "rollback 1", "the loss spiked; back to step 512")
        for step in range(544, 1100, 32):
            store.add_values(step, "drift", ["L0.W_Q", "L1.W_Q"], [7.0, 8.0])
    save_file(run.start, run.folder / "checkpoints" / "step-00000256" / "model.safetensors")
    with Sections(run.folder) as fresh:
        assert drifts() == fresh.map().values["drift"].data != before
    reads.append(page.desk.answer("line", asked)["reads"].data)
    assert reads[0] != reads[1] == Desk(Viewer(run.folder)).answer("line", asked)["reads"].data


def test_a_page_that_was_opened_before_the_tokenizer_was_written_can_be_asked_when_it_is(make):
    run = make()
    tokenizer = run.folder / "tokenizer.json"
    written = tokenizer.read_bytes()
    tokenizer.unlink()
    page = Page(run.folder)
    before = pulse_of(run.folder)
    assert page.desk is None and page.payload().host.can == ()
    tokenizer.write_bytes(written)
    assert "attention" in page.payload().host.can
    assert page.desk is page.desk and page.desk.answer("attention", {"text": TEXT})["texts"]
    assert pulse_of(run.folder).edition != before.edition  # by which the page opens itself again


def test_a_page_shows_the_run_that_is_in_its_folder_now(make):
    first = make()
    page = Page(first.folder)
    before, told = page.payload(), pulse_of(first.folder)
    page.sections(["map", "grid"])
    shutil.rmtree(first.folder)
    assert page.desk is None and pulse_of(first.folder).edition == ""
    with pytest.raises(RunFolderError, match="not there"):
        page.payload()
    with pytest.raises(RunFolderError, match="not there"):  # and not that its model cannot be shown a text
        _answer(page, "attention", b'{"text": "the day"}')
    second = make(n_layers=2, seed=11, rare="€%")
    payload, sections = page.payload(), page.sections(["map", "grid"])
    assert pulse_of(second.folder).edition not in (told.edition, "")
    assert page.desk.viewer.config.model.sizes.n_layers == 2
    assert page.desk.viewer.tokenizer.d_vocab == second.tokenizer.d_vocab == first.tokenizer.d_vocab + 1
    assert payload.run.sizes["n_layers"] == 2 and before.run.sizes["n_layers"] == 3
    with Sections(second.folder) as fresh:
        assert sections["map"] == payload.map == fresh.map()
        assert sections["grid"] == payload.grid == fresh.grid()


def test_a_page_that_is_opened_again_reads_only_news(run_folder):
    page = Page(run_folder.folder)
    first = page.payload()
    held = dict(page._remembered()._held)
    assert held and page.payload().map == first.map
    assert page.sections(["map"])["map"] == first.map and page._remembered()._held.keys() == held.keys()


def test_tiles_and_lines_of_a_long_text_are_the_whole_patterns(run_folder):
    viewer = Viewer(run_folder.folder)
    text = ("the day and the night, " * 3)[:60]
    long = LongText(viewer, viewer.words(text, 2048), None)
    expected = patterns(run_folder, text)
    for layer, head in ((0, 0), (2, 3)):
        np.testing.assert_allclose(long.pattern(layer, head), expected[layer, head], atol=1e-6)
    reads, read_by = long.line(1, 2, 40)
    assert opened(wire(dataclasses.make_dataclass("A", ["v"])(reads)))["v"] == pytest.approx(
        expected[1, 2, 40], abs=1e-6
    )
    assert opened(wire(dataclasses.make_dataclass("A", ["v"])(read_by)))["v"] == pytest.approx(
        expected[1, 2, :, 40], abs=1e-6
    )
    received, entropy = (np.frombuffer(__import__("base64").b64decode(p.data), "<f4") for p in long.sums(1, 2))
    np.testing.assert_allclose(received, expected[1, 2].sum(0), atol=1e-5)
    p = expected[1, 2].astype(np.float64)
    np.testing.assert_allclose(entropy, -(p * np.log(np.where(p > 0, p, 1))).sum(1), atol=1e-5)


def test_notes_of_a_long_text_are_those_of_the_whole_patterns(run_folder):
    viewer = Viewer(run_folder.folder)
    text = ("the day and the night, " * 3)[:61]
    long = LongText(viewer, viewer.words(text, 2048), None, ("L*.W_Q=scale(60)",))  # rows far from even
    notes, heads = long.overview("x").heads, range(4)
    whole = [n for at in range(3) for n in head_notes(at, np.stack([long.pattern(at, head) for head in heads]), True)]
    assert [(n.layer, n.head, n.shares) for n in notes] == [(n.layer, n.head, n.shares) for n in whole]
    assert [n.entropy_nats for n in notes] == pytest.approx([n.entropy_nats for n in whole], abs=1e-4)
    assert min(n.entropy_nats for n in whole) < 0.9 * whole[0].even_entropy_nats


def test_blocks_hold_the_largest_of_their_cells():
    assert largest_in_blocks(np.ones((2, 3)), 5).tolist() == [[1]]
    array = np.random.default_rng(0).random((2, 7, 10))
    small = largest_in_blocks(array, 3)
    assert small.shape == (2, 3, 4)
    assert small[1, 2, 3] == array[1, 6:, 9:].max() and small[0, 0, 1] == array[0, :3, 3:6].max()


def test_the_wire_keeps_every_bit():
    array = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    answer = dataclasses.make_dataclass("Answer", ["a", "b", "word"])(pack(array), [pack(np.arange(3))], "é")
    found = opened(wire(answer))
    assert found["a"].tobytes() == array.tobytes() and found["b"][0].tolist() == [0, 1, 2] and found["word"] == "é"


def test_questions_ignore_what_they_do_not_know():
    assert Question.read({"text": "a", "colour": "red", "step": None}) == Question(text="a")
