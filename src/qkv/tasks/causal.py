"""Causal language modelling: predict every token from those before it, and continue a text.

Loss is in nats per token and, through the bytes of the original text, in bits per byte. Training windows overlap by one
token, so that inside an epoch each token is a target once; validation predicts every token after the first exactly
once. A window begins without context: its first targets see little of what stood before, in training and validation
alike. Where a text is several documents, windows run on over their ends as GPT-2's did, an [END] between them: what
follows can see what came before it. Masked models and classifiers keep documents apart.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from qkv.data.baseline.text import baselines, expected_seconds
from qkv.data.packing import train_window, val_windows
from qkv.models.zoo import LanguageModel
from qkv.tasks.batch import Batch
from qkv.tasks.evaluation import evaluate
from qkv.tasks.figures import Evaluation, Figure
from qkv.tasks.generation import Sampling, context_start, generate
from qkv.tasks.task import PredictOptions, Ranked, Stack, Yardsticks, ranked
from qkv.tasks.text import TextTask
from qkv.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from qkv.data.corpus import Corpus
    from qkv.models.layout import Sizes

DEFAULT_TEMPERATURE = 0.8


_SAMPLED_WORDS = 6
_LARGEST_EXPONENT = 700.0
"""e to the power of more than 709.78 is no float64."""


@dataclass(frozen=True, kw_only=True)
class Causal(TextTask):
    """The task `causal`."""

    name: str = "causal"
    model_kind: str = "CausalLM"
    needs_specials: bool = False

    stack: ClassVar[Stack] = "decoder"
    starts_from: ClassVar[Mapping[str, str]] = {"CausalLM": "CausalLM"}
    asked: ClassVar[str] = "the next {unit}"
    prompt: ClassVar[str] = "The "
    predict_options: ClassVar[tuple[str, ...]] = ("tokens", "temperature", "top_k", "top_p", "seed", "special", "chat")
    too_long: ClassVar[str] = "its beginning is not read"
    continues: ClassVar[bool] = True
    metric: ClassVar[str] = "bits_per_byte"
    higher_is_better: ClassVar[bool] = False
    yardsticks: ClassVar[Mapping[str, str]] = {
        "unigram": "unigram (how often each token occurs)",
        "bigram": "bigram (which token follows which)",
        "ngram": "best n-gram (Kneser-Ney, order {order})",
        "xz": "compressor xz, given the training text",
    }

    def baselines(self, data: "Corpus", sizes: "Sizes", cache: Path | None) -> Yardsticks:
        """Counting and compressing, by `qkv.data.baseline.text`; the summary is in bits per byte."""
        found = baselines(data, cache)
        names = ("unigram", "bigram", "ngram", "ngram_order", "xz")
        return Yardsticks(
            summary=dict(found.bits_per_byte) | {"ngram_order": found.ngram_order},
            nats={name: getattr(found, name) for name in names},
            facts=found.facts,
            by_target=found.by_token,
            note=found.note,
        )

    def baselines_seconds(self, data: "Corpus", sizes: "Sizes", cache: Path | None) -> float:
        """By `qkv.data.baseline.text.expected_seconds`."""
        return expected_seconds(data, cache)

    def train_batch(self, corpus: "Corpus", sizes: "Sizes", seed: int, step: int, examples: np.ndarray) -> Batch:
        """Windows of n_ctx inputs, each with the token after it as target; see `Task.train_batch`."""
        windows = train_window(corpus.train, sizes.n_ctx, seed, examples)
        return Batch(_tensor(windows[:, :-1]), _tensor(windows[:, 1:]).flatten())

    def val_batches(self, corpus: "Corpus", sizes: "Sizes", batch_size: int) -> Iterator[Batch]:
        """Every token of the validation split after the first as a target once, in windows of n_ctx; the first as well
        where something belongs before a text, which then begins each window."""
        for windows, real in val_windows(corpus.val, sizes.n_ctx, batch_size, _before(corpus)):
            inputs, targets = _tensor(windows[:, :-1]), _tensor(windows[:, 1:]).flatten()
            if real.all():
                yield Batch(inputs, targets)
            else:  # what fills a short window stands after its real tokens, which cannot see it
                positions = _tensor(np.flatnonzero(real))
                yield Batch(inputs, targets[positions], positions)

    def bits_per_byte(self, corpus: "Corpus", nats: float) -> float | None:
        """By `Corpus.bits_per_byte`: nats / ln 2 / bytes of the original text, with what the tokenizer lost charged."""
        return corpus.bits_per_byte(nats / (len(corpus.val) - (not len(_before(corpus)))))

    def evaluate(self, model: LanguageModel, data: "Corpus") -> Evaluation:
        """Loss, bits per byte, accuracy, the share of [UNK] where there is any, and perplexity by words whatever the
        tokens are.

        An [UNK] is a token like others in the loss, which says that something unknown stands there; what stands there
        is charged to bits per byte by `qkv.tokenizers.lossy_charge`.

        Word perplexity is exp(N / W): N the nats of the whole text as bits per byte count them (what the tokenizer lost
        charged, the first token at the mean), W its words between white space plus its line ends, each of which is a
        token in the usual figures of WikiText (Merity et al. 2016, arXiv 1609.07843). Left out where a word costs so
        much that its exponential is no number, as in a text without spaces.
        """
        found = evaluate(model, self, data)
        figures = dict(found.figures)
        if data.val.n_unknown:
            share = data.val.n_unknown / len(data.val)
            figures["unknown_share"] = Figure(share, None, "share of tokens that are [UNK]")
        bits, n_words = figures["bits_per_byte"], getattr(data, "n_words", lambda: 0)()
        if bits.value is None:
            figures["bits_per_byte"] = bits._replace(missing=getattr(data, "uncharged", ""))
        elif n_words:
            per_bit = math.log(2) * data.val.n_bytes / n_words
            nats = [per_bit * value for value in (bits.value, *(bits.interval or ()))]
            if not max(nats) > _LARGEST_EXPONENT:
                value, *interval = map(math.exp, nats)
                ends = (interval[0], interval[1]) if interval else None
                figures["word_perplexity"] = Figure(value, ends, "perplexity by words")
        return dataclasses.replace(found, figures=figures)

    def sample_inputs(self, data: "Corpus") -> list[str]:
        """The first words of prose in the validation text."""
        words = " ".join(self.prose(data, _SAMPLED_WORDS))
        return [words] if words else []

    def shown(self, text: str, output: str) -> str:
        """The text and what follows it."""
        return text + output

    def predict(
        self, model: LanguageModel, tokenizer: Tokenizer | None, texts: Sequence[str], options: PredictOptions
    ) -> list[str]:
        """The continuation of each text, without the text itself, so that text + continuation reads on.

        A continuation has `options.tokens` tokens, or ends where the model ends the document, at the earliest after one
        token. An empty text is continued as a new document begins, or a new line, or a new sentence, whichever of these
        the tokenizer knows. No other special token is ever chosen, and none is shown; a model that was imported chooses
        any of them, or ends at once, where it wants to.
        """
        assert tokenizer is not None, "a task on text has one"
        special, imported = set(tokenizer.special_ids), tokenizer.framed
        ends = {*tokenizer.ends, *([] if tokenizer.end_id is None or tokenizer.ends else [tokenizer.end_id])}
        prompts = _prompts(tokenizer, texts, options)
        how = Sampling(
            temperature=DEFAULT_TEMPERATURE if options.temperature is None else options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            banned=() if imported else sorted(special - ends),
            ends=sorted(ends),
            may_be_empty=imported,
        )
        continuations = generate(model, prompts, tokens=options.tokens, how=how, seed=options.seed)
        return [_after(tokenizer, *each) for each in zip(texts, prompts, continuations, strict=True)]

    def scores(
        self, model: LanguageModel, tokenizer: Tokenizer | None, texts: Sequence[str], k: int, options: PredictOptions
    ) -> list[Ranked]:
        """The k most probable next tokens after each text, as the tokenizer spells them."""
        assert tokenizer is not None, "a task on text has one"
        device, n_ctx, found = next(model.parameters()).device, model.config.sizes.n_ctx, []
        for ids in _prompts(tokenizer, texts, options):
            read = _tensor(ids[context_start(len(ids), n_ctx) :])[None].to(device)
            with torch.inference_mode():
                logits = model.unembed(model.hidden(read)[0, -1:])[0]
            found.append(ranked(tokenizer.token, logits.double().softmax(-1).cpu().numpy(), k))
        return found


def _prompts(tokenizer: Tokenizer, texts: Sequence[str], options: PredictOptions) -> list[np.ndarray]:
    """What each text is read as: int64 [1 or more]."""
    special = options.special or options.chat
    before = tokenizer.around[0][: 0 if options.chat else None]
    found = [np.concatenate([before, tokenizer.encode(text, special=special)]).astype(np.int64) for text in texts]
    return [ids if len(ids) else _beginning(tokenizer, set(tokenizer.special_ids)) for ids in found]


def _before(corpus: "Corpus") -> np.ndarray | tuple[()]:
    """What belongs before a text; synthetic data have no tokenizer that would say so."""
    tokenizer: Tokenizer | None = getattr(corpus, "tokenizer", None)
    return () if tokenizer is None else tokenizer.around[0]


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def _beginning(tokenizer: Tokenizer, special: set[int]) -> np.ndarray:
    """What an empty text is continued from, int64 [1 or more]: a document's end, a line break or a full stop."""
    if tokenizer.end_id is not None:
        return np.array([tokenizer.end_id])
    for text in ("\n", "."):
        ids = np.asarray(tokenizer.encode(text), dtype=np.int64)
        if len(ids) and special.isdisjoint(ids.tolist()):
            return ids
    return np.array([next((i for i in range(tokenizer.d_vocab) if i not in special), 0)])


def _after(tokenizer: Tokenizer, text: str, prompt: np.ndarray, continuation: np.ndarray) -> str:
    """How `continuation` reads after `text`: a word piece joins on, a new word brings its space unless one is there."""
    before, whole = tokenizer.decode(prompt), tokenizer.decode(np.concatenate([prompt, continuation]))
    new = whole[len(before) :] if whole.startswith(before) else tokenizer.decode(continuation)
    if new.startswith(" ") and (not text or (text[-1].isspace() and not before[-1:].isspace())):
        return new[1:]
    return new
