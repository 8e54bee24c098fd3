"""Imported models are asked as their own library asks them: special tokens, chat formats, frames and probabilities."""

import json

import numpy as np
import pytest
import torch
import transformers

import qkv
from qkv.cli import main
from qkv.commands.printing import screen

PROSE = "the cat sat on a mat and the dog saw it. a king likes the sea, the queen meets a dog at home. "
CHAT = (
    "{% for m in messages %}{{ bos_token if loop.first else '' }}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="module")
def place(theirs, tmp_path_factory):
    """A Llama whose texts begin with <s>, with four special tokens and a chat template; and a BERT."""
    from tokenizers import ByteLevelBPETokenizer, processors

    place = tmp_path_factory.mktemp("chat")
    made = ByteLevelBPETokenizer()
    made.train_from_iterator([PROSE] * 5, vocab_size=300, special_tokens=MARKS, show_progress=False)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made._tokenizer, bos_token="<s>", eos_token="</s>", chat_template=CHAT,
        additional_special_tokens=MARKS[2:],
    )  # fmt: skip
    more = dict(vocab_size=len(fast), max_position_embeddings=64, bos_token_id=0, eos_token_id=[1, 3])
    theirs.save_theirs(place / "llama-hf", "llama", torch.float32, **more)
    fast.save_pretrained(place / "llama-hf")
    theirs.save_theirs(place / "bert-hf", "bert")
    theirs.save_tokenizer(place / "bert-hf", "wordpiece", 57, specials=True)
    for name in ("llama", "bert"):
        assert main(["import", str(place / f"{name}-hf"), "--out", str(place / name)]) == 0
    return place


@pytest.fixture(scope="module")
def library(place):
    """Their tokenizer and their model."""
    read = transformers.AutoTokenizer, transformers.AutoModelForCausalLM
    return tuple(kind.from_pretrained(place / "llama-hf") for kind in read)


def answer(capsys, *words):
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def theirs_say(library, ids, n):
    tokenizer, model = library
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=n, do_sample=False, pad_token_id=1)[0, len(ids) :]
    return tokenizer.decode(out, skip_special_tokens=True), out.tolist()


def test_greedy_continuations_of_prompts_with_special_tokens_are_theirs(place, library, capsys):
    draw, words = np.random.default_rng(0), PROSE.split() + MARKS * 4
    prompts = ["".join(draw.choice(words, 6)) + " the" for _ in range(40)]
    mine = answer(capsys, "predict", place / "llama", *prompts, "--special", "--temperature", 0, "--tokens", 12)
    special = set()
    for prompt, output in zip(prompts, mine["outputs"], strict=True):
        text, ids = theirs_say(library, library[0](prompt)["input_ids"], 12)
        assert output == text, prompt
        special |= set(ids) & set(range(4))
    assert {0, 3} <= special  # such a token was generated, and an end met
    plain = answer(capsys, "predict", place / "llama", *prompts, "--temperature", 0, "--tokens", 12)
    assert plain["outputs"] != mine["outputs"]


def test_a_chat_model_is_asked_in_its_own_format(place, library, capsys):
    asked = ["the cat", '[{"role": "system", "content": "sea"}, {"role": "user", "content": "a dog"}]']
    mine = answer(capsys, "predict", place / "llama", *asked, "--chat", "--temperature", 0, "--tokens", 8)
    for text, output in zip(asked, mine["outputs"], strict=True):
        talk = json.loads(text) if text.startswith("[") else [{"role": "user", "content": text}]
        ids = library[0].apply_chat_template(talk, add_generation_prompt=True, return_dict=False)
        assert output == theirs_say(library, ids, 8)[0]
    assert main(["predict", str(place / "llama"), "the cat", "--chat", "--temperature", "0", "--tokens", "8"]) == 0
    assert capsys.readouterr().out == screen.shown(mine["outputs"][0]) + "\n"
    assert main(["predict", str(place / "bert"), "a [MASK]", "--chat"]) == 2
    assert "--chat has no meaning for a run of the task masked" in capsys.readouterr().err


def test_a_chat_template_goes_out_and_comes_back_and_a_broken_one_is_one_sentence(place, tmp_path, capsys):
    assert main(["export", str(place / "llama"), "--out", str(tmp_path / "out")]) == 0
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert read.chat_template == CHAT and read.bos_token == "<s>"
    for template, cause in (
        ("{% for", "unexpected"),
        ("{{ raise_exception('no') }}", "no"),
        ("{{ ''.x.y }}", "has no attribute"),
    ):
        (tmp_path / "out" / "chat_template.jinja").write_text(template)
        run = tmp_path / f"run {cause}"
        assert main(["import", str(tmp_path / "out"), "--out", str(run)]) == 0
        capsys.readouterr()
        assert main(["predict", str(run), "the", "--chat"]) == 2
        err = capsys.readouterr().err
        assert "the model's chat template does not take 'the'" in err and cause in err, err
    (tmp_path / "out" / "chat_template.jinja").unlink()
    assert main(["import", str(tmp_path / "out"), "--out", str(tmp_path / "plain")]) == 0
    assert main(["predict", str(tmp_path / "plain"), "the", "--chat"]) == 2
    assert "has no chat template" in capsys.readouterr().err


def test_scores_are_the_probabilities_of_their_models(place, library, capsys):
    tokenizer, model = library
    texts = ["the cat", "a king likes the"]
    found = answer(capsys, "predict", place / "llama", *texts, "--tokens", 1, "--scores", 5)["scores"]
    for text, one in zip(texts, found, strict=True):
        with torch.no_grad():
            p = model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).logits[0, -1].softmax(-1)
        best = p.topk(5)
        assert [s["probability"] for s in one] == pytest.approx(best.values.tolist(), rel=1e-4)
        ours = qkv.load(place / "llama").tokenizer
        assert [s["output"] for s in one] == [ours.token(int(i)) for i in best.indices]
    text = "the [MASK] sat on a [MASK]"
    (found,) = answer(capsys, "predict", place / "bert", text, "a [MASK]", "--scores", 3)["scores"][:1]
    read = transformers.AutoModelForMaskedLM.from_pretrained(place / "bert-hf")
    ids = torch.from_numpy(qkv.load(place / "bert").tokenizer.encode_whole(text, special=True))[None]
    mask = qkv.load(place / "bert").tokenizer.special["[MASK]"]
    with torch.no_grad():
        p = read(ids).logits[0, (ids[0] == mask).nonzero().flatten()].softmax(-1)
    assert len(found) == 2
    for one, q in zip(found, p, strict=True):
        assert [s["probability"] for s in one] == pytest.approx(q.topk(3).values.tolist(), rel=1e-4)
    assert main(["predict", str(place / "bert"), "a [MASK]", "--scores", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].strip() == "[MASK]" and len(lines) == 4 and "%" in lines[2]


def test_eval_reads_a_text_in_the_frame_in_which_predict_does(place, library, tmp_path):
    tokenizer, model = library
    text = PROSE * 3
    (tmp_path / "one.txt").write_text(text)
    found = qkv.load(place / "llama").evaluate(tmp_path / "one.txt")
    ids = np.array(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert found.n_targets == len(ids)  # the first token is a target too, behind <s>
    nats = 0.0
    for first in range(0, len(ids), 64):
        window = torch.tensor([0, *ids[first : first + 64]])[None]
        with torch.no_grad():
            p = model(window[:, :-1]).logits[0].log_softmax(-1)
        nats -= float(p.gather(1, window[0, 1:, None]).sum())
    assert found.loss == pytest.approx(nats / len(ids), rel=1e-5)


def test_masked_windows_are_framed_too(place, tmp_path):
    (tmp_path / "one.txt").write_text(PROSE * 3)
    run = qkv.load(place / "bert")
    data, sizes = run.corpus(tmp_path / "one.txt"), run.config.model.sizes
    tokenizer = data.tokenizer
    first, last = tokenizer.special["[CLS]"], tokenizer.special["[SEP]"]
    rows, seen = 0, []
    for batch in run.task.val_batches(data, sizes, 4):
        inputs = batch.inputs.numpy()
        real = np.ones(inputs.shape, dtype=bool) if batch.mask is None else batch.mask.numpy()
        assert (inputs[:, 0] == first).all()
        assert [row[there][-1] for row, there in zip(inputs, real, strict=True)] == [last] * len(inputs)
        seen += [i for row, there in zip(inputs, real, strict=True) for i in row[there][1:-1]]
        rows += len(inputs)
    assert len(seen) == len(data.val) and rows == -(-len(data.val) // (sizes.n_ctx - 2))
    kept = np.array(seen) != tokenizer.special["[MASK]"]
    assert (np.array(seen)[kept] == data.val.ids[kept]).all()


def test_what_is_not_read_of_a_long_text_is_reported(place, capsys):
    assert main(["predict", str(place / "llama"), "the cat", PROSE * 4, "--tokens", "2", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["inputs"][0] == "the cat"
    assert captured.err.count("Note:") == 1 and "input 2 has" in captured.err
    assert "more than the context of 64: its beginning is not read" in captured.err


def test_filled_words_stand_out_on_a_terminal_alone(place, capsys, monkeypatch):
    words = ["predict", str(place / "bert"), "the [MASK] sat on a [MASK] ."]
    assert main(words) == 0
    plain = capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert shown.count("\x1b[1;4m") == shown.count("\x1b[0m") == 2 and "\x1b" not in plain
    assert shown.replace("\x1b[1;4m", "").replace("\x1b[0m", "") == plain
