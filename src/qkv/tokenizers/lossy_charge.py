"""What a tokenizer throws away, charged by a stated byte model, so that bits per byte stay honest.

A tokenizer that drops the space between tokens or writes [UNK] for a word leaves the reader short of something.
Given the tokens, the original text is its gaps (what stands between two tokens, mostly one space or nothing) and
its unknown spellings. The charge is the code length of these under a model counted on the training text:

- a gap, given whether a letter, a mark or nothing stands on either side: (count + P_bytes(gap)) / (total + 1);
- an unknown spelling: P_bytes(spelling);
- P_bytes of a string: its UTF-8 bytes and an end mark, each given the byte before it, counts smoothed by 1/257
  (counted on nothing, each costs ln 257).

Both are proper distributions (the second given the first), so that loss + charge is the length of a code that gives the
text back byte for byte. Where even that does not hold, as with a tokenizer that puts text in lower case, there is no
charge and no bits per byte.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from qkv.tokenizers.tokenizer import Tokenizer

_END = 256


def charge_nats(tokenizer: Tokenizer, train_texts: Iterable[str], val_texts: Iterable[str]) -> float | None:
    """Nats needed to restore all of val_texts from its tokens, at least 0; None where tokens do not keep the letters.

    train_texts is what the model is counted on; about a megabyte suffices, and for characters none has to be given.
    """
    counted, needed = _Tally(), _Tally()
    if not counted.add(tokenizer, train_texts) or not needed.add(tokenizer, val_texts):
        return None
    spelling_nats = _byte_model(counted.strings)
    totals = {sides: gaps.total() for sides, gaps in counted.gaps.items()}
    nats = sum(count * spelling_nats(spelling) for spelling, count in needed.unknown.items())
    for sides, gaps in needed.gaps.items():
        seen = counted.gaps.get(sides, Counter())
        for gap, count in gaps.items():
            share = (seen[gap] + math.exp(-spelling_nats(gap))) / (totals.get(sides, 0) + 1)
            nats -= count * math.log(share)
    return max(nats, 0.0)


class _Tally:
    """Counts of gaps by what stands on either side, of unknown spellings, and of all strings between cuts."""

    def __init__(self) -> None:
        self.gaps: dict[str, Counter[str]] = {}
        self.unknown: Counter[str] = Counter()
        self.strings: Counter[str] = Counter()

    def add(self, tokenizer: Tokenizer, texts: Iterable[str]) -> bool:
        """Count some texts; False where a token hides its letters."""
        if tokenizer.kind == "char":
            for text in texts:
                self.strings.update(text)
                self.unknown.update(text[at] for at in np.flatnonzero(tokenizer.encode(text) == tokenizer.unknown_id))
            return True
        return all(self._add_text(tokenizer, text) for text in texts)

    def _add_text(self, tokenizer: Tokenizer, text: str) -> bool:
        encoding = tokenizer.plain.encode(text, add_special_tokens=False)
        surfaces, unknown = tokenizer.surfaces, tokenizer.unknown_id
        # Letter or digit, another character, or nothing, one place later than the character itself.
        sides = "-" + "".join(["w" if character.isalnum() else "m" for character in text]) + "-"
        pairs: Counter[tuple[str, str]] = Counter()
        at = 0
        for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            spelling = text[start:end]
            if i == unknown:
                self.unknown[spelling] += 1
            elif start < at or spelling != surfaces[i]:
                return False
            pairs[sides[at] + sides[start + 1], text[at:start]] += 1
            self.strings[spelling] += 1
            at = end
        pairs[sides[at] + "-", text[at:]] += 1
        for (around, gap), count in pairs.items():
            self.gaps.setdefault(around, Counter())[gap] += count
            self.strings[gap] += count
        return True


def _byte_model(strings: Counter[str]) -> Callable[[str], float]:
    """Nats of a string's bytes and its end mark, each given the byte before it, counted on `strings`."""
    pairs = np.full((_END + 1, _END + 1), 1 / (_END + 1))
    for string, count in strings.items():
        data = [_END, *string.encode("utf-8", "replace"), _END]
        np.add.at(pairs, (data[:-1], data[1:]), count)
    log_shares = np.log(pairs / pairs.sum(1, keepdims=True))

    def nats(string: str) -> float:
        data = [_END, *string.encode("utf-8", "replace"), _END]
        return -float(log_shares[data[:-1], data[1:]].sum())

    return nats
