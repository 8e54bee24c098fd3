"""A packed log gives back the bytes that it was made of, or says that it is damaged."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import RunFolderError
from qkv.studies.engine import archive
from qkv.studies.engine.design import canonical
from qkv.studies.engine.store import read_rows

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.none() | st.booleans()
WORDS = st.text("abW_E |0", max_size=6)
ROWS = st.lists(
    st.dictionaries(WORDS, NUMBERS | st.lists(NUMBERS, max_size=3), max_size=4)
    | st.fixed_dictionaries({"key": WORDS, "measures": st.dictionaries(WORDS, NUMBERS, max_size=5)})
)


@given(ROWS)
def test_a_packed_log_gives_back_every_row_as_it_was(tmp_path_factory, log):
    folder = tmp_path_factory.mktemp("study")
    (folder / archive.ARCHIVE).write_bytes(archive.pack(log))
    assert [canonical(row) for row in archive.rows(folder)] == [canonical(row) for row in log]
    assert [canonical(row) for row in read_rows(folder)] == [canonical(row) for row in log]


def test_the_log_comes_before_the_archive_where_both_are_there(tmp_path):
    (tmp_path / archive.ARCHIVE).write_bytes(archive.pack([{"key": "old"}]))
    (tmp_path / "runs.jsonl").write_text(json.dumps({"key": "new"}) + "\n")
    assert [row["key"] for row in read_rows(tmp_path)] == ["new"]


@pytest.mark.parametrize("content", [b"", b"BZh9", b"[]", archive.pack([{"key": "a"}])[:-4]])
def test_a_damaged_archive_is_one_sentence(tmp_path, content):
    (tmp_path / archive.ARCHIVE).write_bytes(content)
    with pytest.raises(RunFolderError, match="is damaged; get it again"):
        list(archive.rows(tmp_path))
