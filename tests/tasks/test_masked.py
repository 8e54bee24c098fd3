"""What the masked task hides, shows and asks for."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.data.config import DataConfig
from qkv.data.packing import train_window
from qkv.errors import ConfigError, SourceError
from qkv.models.layout import Sizes
from qkv.tasks import Masked, crossentropy, validation_loss
from qkv.tasks.masked import VALIDATION_RATE
from qkv.tokenizers.tokens import Tokens

TASK = Masked()


@pytest.fixture(scope="module")
def corpus(corpus_of):
    return corpus_of(specials=True)


@pytest.fixture(scope="module")
def model(model_of, corpus):
    return model_of("MaskedLM", corpus.tokenizer.d_vocab)


def test_hidden_tokens_show_the_mask_and_are_the_targets(corpus, model):
    examples = np.arange(6)
    batch = TASK.train_batch(corpus, model.config.sizes, 1, 0, examples)
    windows = train_window(corpus.train, 15, 1, examples).reshape(-1)
    shown = batch.inputs.flatten().numpy()
    positions = batch.positions.numpy()
    assert (np.diff(positions) > 0).all()
    assert batch.targets.numpy().tolist() == windows[positions].tolist()
    assert (shown[positions] == corpus.tokenizer.special["[MASK]"]).all()
    others = np.setdiff1d(np.arange(len(windows)), positions)
    assert (shown[others] == windows[others]).all()


@pytest.mark.parametrize("rate", [0.01, 0.15, 0.3, 1.0])
def test_every_window_hides_the_same_share_and_every_position_is_as_likely(corpus, model, rate):
    task, sizes = Masked(rate=rate), model.config.sizes
    batches = [task.train_batch(corpus, sizes, 0, step, np.arange(64)) for step in range(30)]
    positions = torch.cat([batch.positions for batch in batches]).numpy()
    count = max(1, round(rate * 16))
    assert len(positions) == count * 64 * 30
    by_place = np.bincount(positions % 16, minlength=16) / (64 * 30)
    share = count / 16
    assert (np.abs(by_place - share) <= 4.5 * np.sqrt(share * (1 - share) / (64 * 30))).all()


def test_a_window_is_masked_anew_in_every_step_and_for_every_seed(corpus, model):
    sizes = model.config.sizes
    ask = lambda seed, step: TASK.train_batch(corpus, sizes, seed, step, np.array([3])).positions.tolist()  # noqa: E731
    assert ask(0, 0) == ask(0, 0)
    assert ask(0, 0) != ask(0, 1) and ask(0, 0) != ask(1, 0)


def test_an_example_is_the_same_in_whatever_batch_it_comes(corpus, model):
    for task in (TASK, Masked(random=0.2, kept=0.2)):
        whole = task.train_batch(corpus, model.config.sizes, 1, 5, np.arange(8, 16))
        part = task.train_batch(corpus, model.config.sizes, 1, 5, np.array([10]))
        inside = whole.positions // 16 == 2
        assert part.inputs[0].equal(whole.inputs[2])
        assert part.positions.equal(whole.positions[inside] - 32)
        assert part.targets.equal(whole.targets[inside])


def test_the_rule_of_2018_shows_its_shares(corpus, model):
    task = Masked(random=0.1, kept=0.1)
    shown, truth = [], []
    for step in range(40):
        batch = task.train_batch(corpus, model.config.sizes, 0, step, np.arange(64))
        shown.append(batch.inputs.flatten()[batch.positions])
        truth.append(batch.targets)
    shown, truth = torch.cat(shown), torch.cat(truth)
    masked = (shown == corpus.tokenizer.special["[MASK]"]).double().mean()
    same = (shown == truth).double().mean()
    assert abs(masked - 0.8) < 0.015
    assert abs(same - (0.1 + 0.1 / 29)) < 0.015
    assert not torch.isin(shown, torch.tensor([0, 1, 2, 3])).any()


def test_special_tokens_are_never_hidden(corpus_of):
    corpus = corpus_of(specials=True)
    ids = corpus.train.ids.copy()
    ids[::2] = corpus.tokenizer.special["[UNK]"]
    corpus.train = Tokens(ids=ids, offsets=np.array([0, len(ids)]), n_bytes=len(ids))
    sizes = Sizes(d_vocab=34, d_model=8, n_layers=1, n_heads=1, n_ctx=16)
    for rate in (0.3, 0.9):
        batch = Masked(rate=rate).train_batch(corpus, sizes, 0, 0, np.arange(20))
        assert not (batch.targets < 5).any()
        assert batch.n_targets == 20 * min(8, round(16 * rate))


def test_validation_masks_are_the_same_whatever_the_run(corpus, model):
    def ask(task, batch_size):
        batches = list(task.val_batches(corpus, model.config.sizes, batch_size))
        offsets = np.cumsum([0, *(batch.inputs.numel() for batch in batches)])
        places = [batch.positions.numpy() + o for batch, o in zip(batches, offsets, strict=False)]
        return np.concatenate(places).tolist(), torch.cat([batch.targets for batch in batches]).tolist()

    places, targets = ask(TASK, 7)
    assert (places, targets) == ask(TASK, 1) == ask(Masked(rate=0.5, kept=0.3), 1000)
    assert targets == corpus.val.ids[places].tolist()
    assert len(targets) == round(16 * VALIDATION_RATE) * 62 + round(11 * VALIDATION_RATE)


def test_validation_loss_does_not_depend_on_batch_size_or_padding(corpus, model):
    losses = [validation_loss(model, TASK, corpus, batch_size) for batch_size in (1, 5, 64)]
    total, n = 0.0, 0
    for batch in TASK.val_batches(corpus, model.config.sizes, 1):
        length = 16 if batch.mask is None else int(batch.mask.sum())
        with torch.no_grad():
            logits = model(batch.inputs[:, :length])[0]
        total += float(F.cross_entropy(logits[batch.positions], batch.targets, reduction="sum"))
        n += batch.n_targets
    assert losses == pytest.approx([total / n] * 3, rel=1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_loss_and_gradients_equal_cross_entropy_at_hidden_positions(corpus, model_of, bias):
    model = model_of("MaskedLM", corpus.tokenizer.d_vocab, bias=bias).double()
    batch = TASK.train_batch(corpus, model.config.sizes, 0, 0, np.arange(4))
    nats, n = TASK.loss(model, batch)
    ours = torch.autograd.grad(nats, list(model.parameters()))
    logits = model(batch.inputs).flatten(0, 1)[batch.positions]
    plain = F.cross_entropy(logits, batch.targets, reduction="sum")
    theirs = torch.autograd.grad(plain, list(model.parameters()))
    assert n == len(batch.positions) == 4 * 5
    torch.testing.assert_close(nats, plain, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shares", [{"rate": 0.0}, {"rate": 1.1}, {"random": -0.1}, {"random": 0.6, "kept": 0.5}])
def test_shares_out_of_range_are_refused(shares):
    with pytest.raises(ConfigError, match="expected"):
        Masked(**shares)


def test_one_position_is_too_few(corpus):
    sizes = Sizes(d_vocab=34, d_model=8, n_layers=1, n_heads=1, n_ctx=1)
    with pytest.raises(ConfigError, match="at least 2 positions"):
        TASK.train_batch(corpus, sizes, 0, 0, np.arange(2))


def test_a_masked_loss_has_no_bits_per_byte(corpus):
    assert TASK.bits_per_byte(corpus, 100.0) is None


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=9), st.integers(0, 3), st.integers(0, 99))
def test_batches_are_pure_functions_of_their_names(corpus, model, examples, seed, step):
    task = Masked(random=0.1, kept=0.1)
    first, second = (task.train_batch(corpus, model.config.sizes, seed, step, np.array(examples)) for _ in range(2))
    assert all(a.equal(b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_documents_in_one_window_do_not_see_each_other(corpus_of, model_of, positions):
    corpus = corpus_of(specials=True)
    offsets = np.unique(np.concatenate([[0, len(corpus.train)], np.arange(3, len(corpus.train), 7)]))
    train = Tokens(ids=corpus.train.ids, offsets=offsets, n_bytes=1)
    many = SimpleNamespace(tokenizer=corpus.tokenizer, train=train, val=train)
    model = model_of("MaskedLM", corpus.tokenizer.d_vocab, positions=positions).double()
    batches = [
        TASK.train_batch(many, model.config.sizes, 0, 0, np.arange(5)),
        next(TASK.val_batches(many, model.config.sizes, 3)),
    ]
    for batch in batches:
        assert batch.documents is not None
        nats, n = TASK.loss(model, batch)
        ours = torch.autograd.grad(nats, list(model.parameters()))
        alone = torch.zeros((), dtype=torch.float64)
        width, targets = batch.inputs.shape[1], dict(zip(batch.positions.tolist(), batch.targets.tolist(), strict=True))
        for row, documents in enumerate(batch.documents.tolist()):
            for document in set(documents):
                places = [p for p in range(width) if documents[p] == document]
                logits = model(batch.inputs[row, places][None])[0]
                asked = [(i, targets[row * width + p]) for i, p in enumerate(places) if row * width + p in targets]
                for i, target in asked:
                    alone = alone - logits[i].log_softmax(-1)[target]
        theirs = torch.autograd.grad(alone, list(model.parameters()))
        torch.testing.assert_close(nats, alone, rtol=1e-11, atol=0)
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-11)


def test_a_window_inside_one_document_needs_no_documents(corpus, model):
    train = Tokens(ids=corpus.train.ids, offsets=np.array([0, len(corpus.train) - 8, len(corpus.train)]), n_bytes=1)
    two = SimpleNamespace(tokenizer=corpus.tokenizer, train=train, val=train)
    batches = list(TASK.val_batches(two, model.config.sizes, 1))
    plain = list(TASK.val_batches(corpus_like(corpus), model.config.sizes, 1))
    assert [batch.documents is None for batch in batches].count(False) == 1
    assert all(a.inputs.equal(b.inputs) for a, b in zip(batches, plain, strict=True))


def corpus_like(corpus):
    """The training part, also to validate on."""
    return SimpleNamespace(tokenizer=corpus.tokenizer, train=corpus.train, val=corpus.train)


@pytest.mark.parametrize("layout", [{}, {"positions": "learned", "norm": "layer", "embed_scale": True}])
def test_rows_of_a_large_tied_table_join_its_gradient_as_a_second_table_would(corpus, model_of, layout):
    model = model_of("MaskedLM", 200, tied=True, **layout).double()
    batch = TASK.train_batch(corpus, model.config.sizes, 0, 0, np.arange(4))
    assert batch.inputs.numel() < 200
    nats, _ = TASK.loss(model, batch)
    ours = torch.autograd.grad(nats, list(model.parameters()))
    logits = model(batch.inputs).flatten(0, 1)[batch.positions]
    theirs = torch.autograd.grad(F.cross_entropy(logits, batch.targets, reduction="sum"), list(model.parameters()))
    assert not ours[0].is_sparse
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


class Tables(TorchDispatchMode):
    """Where operators put tables of a table's shape, turned or not, but for the table itself."""

    def __init__(self, table):
        super().__init__()
        self.shape, self.own, self.made = sorted(table.shape), table.data_ptr(), set()

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        out = call(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(out):
            if isinstance(x, torch.Tensor) and not x.is_sparse and sorted(x.shape) == self.shape:
                self.made.add(x.data_ptr())
        self.made.discard(self.own)
        return out


@pytest.mark.parametrize("chunk", [3, 10_000])
def test_the_gradient_of_a_large_tied_table_is_one_table_of_numbers_and_adds_up(corpus, model_of, chunk, monkeypatch):
    monkeypatch.setattr(crossentropy, "chunk_rows", lambda *_: chunk)
    model = model_of("MaskedLM", 50_000, tied=True).train()
    batch, table = TASK.train_batch(corpus, model.config.sizes, 0, 0, np.arange(4)), model.embedding.W_E
    TASK.loss(model, batch)[0].backward()
    once = table.grad.clone()
    table.grad = None
    with Tables(table) as tables:
        nats, _ = TASK.loss(model, batch)
        nats.backward(retain_graph=True)
    assert table.grad.equal(once)
    assert tables.made == {table.grad.data_ptr()}
    nats.backward()
    torch.testing.assert_close(table.grad, 2 * once, rtol=1e-5, atol=1e-7)


def test_a_large_tied_table_learns_as_an_output_alone_where_nothing_is_read_of_it(corpus, model_of):
    model = model_of("MaskedLM", 200, tied=True).double()
    batch, table = TASK.train_batch(corpus, model.config.sizes, 0, 0, np.arange(4)), model.embedding.W_E
    hidden = model.hidden
    model.hidden = lambda inputs, **how: hidden(inputs.detach(), **how)
    (ours,) = torch.autograd.grad(TASK.loss(model, batch)[0], [table])
    with torch.no_grad():
        h = model.head.transformed(hidden(batch.inputs).flatten(0, 1)[batch.positions])
    (expected,) = torch.autograd.grad(F.cross_entropy(h @ table.t(), batch.targets, reduction="sum"), [table])
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)


def test_the_gradient_of_a_large_tied_table_has_the_same_bits_every_time(corpus, model_of):
    model = model_of("MaskedLM", 5000, tied=True, n_ctx=128)
    batch = TASK.train_batch(corpus, model.config.sizes, 0, 0, np.arange(16))
    assert len(np.unique(batch.inputs.numpy())) < 40  # each row is read many times
    found = set()
    threads = torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    try:
        torch.set_num_threads(4)
        for _ in range(20):
            model.zero_grad()
            TASK.loss(model, batch)[0].backward()
            found.add(model.embedding.W_E.grad.numpy().tobytes())
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
    assert len(found) == 1


def test_a_text_of_which_the_tokenizer_knows_nothing_is_refused_and_one_that_it_half_knows_is_told(tmp_path):
    words = "the king sees a dog at home and the queen sees the sea. " * 300
    letters = np.random.default_rng(0).choice(list("acgt"), (99, 120))
    strange = "\n".join(map("".join, letters))  # words too long for WordPiece
    for name, text in (("words", words), ("strange", strange), ("both", words + (" " + "x" * 200) * 4000)):
        (tmp_path / f"{name}.txt").write_text(text)
    load = lambda source, **how: TASK.load(DataConfig(source=str(tmp_path / source), **how), cache=None)  # noqa: E731
    with pytest.raises(SourceError, match=r"'strange': of the training text the tokenizer \(wordpiece\) knows nothing"):
        load("strange.txt", tokenizer="wordpiece", val=str(tmp_path / "words.txt"))
    with pytest.raises(SourceError, match="of the validation text .* train with --tokenizer bpe"):
        load("words.txt", tokenizer="wordpiece", val=str(tmp_path / "strange.txt"))
    sizes = Sizes(d_vocab=0, d_model=8, n_layers=1, n_heads=1, n_ctx=16)
    assert TASK.cautions(load("strange.txt", tokenizer="bpe"), sizes) == []
    assert TASK.cautions(load("words.txt", tokenizer="wordpiece"), sizes) == []
    corpus = load("words.txt", tokenizer="wordpiece", val=str(tmp_path / "both.txt"))
    assert [int(corpus.tokenizer.unknown_id == i) for i in corpus.val.ids].count(1) == corpus.val.n_unknown > 1000
    (told,) = TASK.cautions(corpus, sizes)
    assert told.startswith(f"{corpus.val.n_unknown / len(corpus.val):.0%} of the validation tokens are [UNK]")


@pytest.mark.parametrize(("text", "expected"), [("a b c d e", ["a b c [MASK] e"]), ("a b c", []), ("", [])])
def test_a_text_of_fewer_than_four_words_is_no_sample(text, expected):
    val = SimpleNamespace(ids=np.array([ord(c) for c in text], dtype=np.int64))
    data = SimpleNamespace(val=val, tokenizer=SimpleNamespace(decode=lambda ids: "".join(map(chr, ids))))
    assert TASK.sample_inputs(data) == expected


def test_counting_is_asked_for_the_very_tokens_that_a_model_is_and_sees_what_it_sees(corpus_of, model):
    corpus, sizes = corpus_of(specials=True), model.config.sizes
    unseen, text = corpus.tokenizer.d_vocab, TASK.hidden_text(corpus, sizes)
    batches = list(TASK.val_batches(corpus, sizes, 5))
    assert text.answers.tolist() == torch.cat([batch.targets for batch in batches]).tolist()
    assert (text.shown[text.places] == unseen).all()
    rows = text.shown.reshape(-1, sizes.n_ctx + 1)  # one document: each window with what keeps it apart before it
    assert (rows[:, 0] == unseen).all()
    shown = torch.cat([batch.inputs for batch in batches]).numpy()
    real = np.concatenate([np.ones(b.inputs.shape, bool) if b.mask is None else b.mask.numpy() for b in batches]) & (
        shown != corpus.tokenizer.special["[MASK]"]
    )
    assert np.array_equal(rows[:, 1:], np.where(real, shown, unseen))
    corpus.sha256 = corpus.tokenizer.sha256 = "0" * 64
    found = TASK.baselines(corpus, sizes, None)
    assert found.nats["ngram"] == pytest.approx(float(found.by_target.mean())) and found.nats["unigram"] > 0
    assert len(found.by_target) == len(text.answers) and found.summary == {}


def test_counting_that_is_kept_takes_no_time(corpus_of, model, tmp_path):
    corpus, sizes = corpus_of(specials=True), model.config.sizes
    corpus.sha256 = corpus.tokenizer.sha256 = "0" * 64
    assert TASK.baselines_seconds(corpus, sizes, None) == TASK.baselines_seconds(corpus, sizes, tmp_path) > 0
    TASK.baselines(corpus, sizes, tmp_path)
    assert TASK.baselines_seconds(corpus, sizes, tmp_path) == 0.0


def test_counting_does_not_read_from_one_document_to_another(corpus_of, model):
    corpus, n_ctx = corpus_of(specials=True), model.config.sizes.n_ctx
    corpus.val = Tokens(ids=corpus.val.ids[: 4 * n_ctx], offsets=np.array([0, 7, 4 * n_ctx]), n_bytes=64)
    shown = TASK.hidden_text(corpus, model.config.sizes).shown
    assert len(shown) == 4 * (n_ctx + 1) + 1 and shown[8] == corpus.tokenizer.d_vocab
