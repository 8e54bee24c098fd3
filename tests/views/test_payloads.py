"""Payloads: what goes into a page comes out as it was, and no string of a run can leave its place."""

import base64
import json
import re
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.views.host import VERSION
from qkv.views.report.packed import Packed, carried, embed, pack, parted, to_json, wire
from qkv.views.sections.made import Fact


def unpacked(packed: Packed) -> np.ndarray:
    stored = np.frombuffer(
        base64.b64decode(packed.data), dtype={"float32": "<f4", "uint8": "u1", "int32": "<i4"}[packed.dtype]
    )
    return stored.reshape(packed.shape) * packed.scale


def test_floats_and_integers_come_back_bit_for_bit():
    values = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    assert unpacked(pack(values)).astype(np.float32).tobytes() == values.tobytes()
    assert unpacked(pack(np.arange(5))).tolist() == [0, 1, 2, 3, 4]


def test_missing_numbers_stay_missing_in_floats():
    assert np.isnan(unpacked(pack(np.array([1.0, np.nan])))[1])


@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-30, 1e6)), min_size=1, max_size=50))
def test_bytes_keep_two_digits(values):
    array = np.array(values)
    packed = pack(array, as_bytes=True)
    assert packed.digits == 2
    assert np.abs(unpacked(packed) - array).max() <= array.max() / 510 * (1 + 1e-9)


def test_bytes_refuse_what_they_cannot_hold():
    for bad in ([np.nan], [np.inf], [-1.0]):
        with pytest.raises(AssertionError):
            pack(np.array(bad), as_bytes=True)


def test_numbers_that_are_not_finite_become_null():
    assert to_json({"a": float("nan"), "b": (np.float64("inf"), np.int64(3))}) == {"a": None, "b": [None, 3]}


@given(st.text(st.characters(exclude_categories=())))
def test_embedded_text_comes_back_and_cannot_close_its_script(text):
    written = embed(Fact(label=text, value="</script><!--<script>&amp;\u2028\u2029"))
    assert not re.search(r"[<>&\u2028\u2029]", written)
    assert written.isascii()
    assert json.loads(written)["label"] == text


def test_what_a_page_carries_is_its_words_to_read_and_its_numbers_without_loss():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(7, 3)).astype(np.float32), np.arange(5), np.full(4, np.nan, np.float32)]
    value = {"said": "</script>", "arrays": [pack(array) for array in arrays], "again": pack(arrays[0])}
    words, numbers = re.findall(r"<script [^>]*>(.*?)</script>", carried(value), re.DOTALL)
    header, stored = json.loads(words), zlib.decompress(base64.b64decode(numbers))
    assert header["said"] == "</script>"
    for array, at in zip([*arrays, arrays[0]], [*header["arrays"], header["again"]], strict=True):
        kind = {"float32": "<f4", "int32": "<i4"}[at["dtype"]]
        assert at["at"] % 8 == 0
        assert stored[at["at"] : at["at"] + at["bytes"]] == array.astype(kind).tobytes()
    assert header["again"] == header["arrays"][0]  # the same numbers are there once
    assert wire(value).endswith(parted(value)[1])


def test_payload_version_is_the_one_that_the_modules_read():
    from qkv.views.report.bundle import static_text

    assert f"const VERSION = {VERSION};" in static_text("version.js")
