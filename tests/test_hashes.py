"""What is remembered of a file holds for as long as nobody writes to it; a cache that cannot be trusted is none."""

import os
import stat
import time
from pathlib import Path

import pytest

from qkv.folder import hashes
from qkv.folder.hashes import Known, Stamp, known, remember, sha256_remembered, stamp_of
from qkv.folder.run_folder import sha256_of


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the cache, in a folder of its own; files count as quiet at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "QUIET_SECONDS", -1.0)
    return tmp_path / "cache" / "qkv" / "hashes-1.txt"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that is read from end to end."""
    found: list[Path] = []

    def reading(path: Path) -> str:
        found.append(path)
        return sha256_of(path)

    monkeypatch.setattr(hashes, "sha256_of", reading)
    return found


def another_process() -> None:
    """Forget what this process holds, so that the file of the cache is read again."""
    hashes._cache.cache_clear()


def test_a_file_is_read_once_by_this_and_by_the_next_process(cache, file, reads):
    for _ in range(2):
        assert sha256_remembered(file) == sha256_of(file)
    another_process()
    assert sha256_remembered(file) == sha256_of(file)
    assert reads == [file] and stat.S_IMODE(cache.stat().st_mode) == 0o600


def test_one_bit_turned_over_under_its_old_date_is_seen(cache, file, reads):
    """Size and mtime stay, as a tool can make them; the system moves ctime."""
    before = file.stat()
    sha256_remembered(file)
    time.sleep(0.05)  # more than a tick
    file.write_bytes(b"weightS")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert sha256_remembered(file) == sha256_of(file) and len(reads) == 2


def test_another_file_under_the_same_name_is_another(cache, file, tmp_path, reads):
    sha256_remembered(file)
    (tmp_path / "other").write_bytes(b"WEIGHTS")
    (tmp_path / "other").replace(file)
    assert sha256_remembered(file) == sha256_of(file) and len(reads) == 2


def test_a_file_that_has_just_changed_is_not_remembered(cache, file, reads, monkeypatch):
    """A second change within one tick of the clock would leave the same stamp."""
    monkeypatch.setattr(hashes, "QUIET_SECONDS", 2.0)
    for _ in range(2):
        sha256_remembered(file)
    assert len(reads) == 2 and not cache.exists()
    long_ago = time.time_ns() - 3_000_000_000
    remember(Stamp(1, 2, 3, long_ago, long_ago), Known("ab", False), time.time_ns())
    assert known(Stamp(1, 2, 3, long_ago, long_ago)) == Known("ab", False)


def test_what_changes_while_it_is_read_is_not_remembered(cache, file, monkeypatch):
    def reading(path: Path) -> str:
        digest = sha256_of(path)
        path.write_bytes(b"longer than before")
        return digest

    monkeypatch.setattr(hashes, "sha256_of", reading)
    sha256_remembered(file)
    assert known(stamp_of(file)) is None and not cache.exists()


@pytest.mark.parametrize("torn", [b"", b"\0" * 300, b"1 2 3", b"a b c d e f 1 00000000", "ü\n".encode() * 9])
def test_a_torn_cache_is_passed_over_and_goes_on(cache, file, reads, torn):
    sha256_remembered(file)
    whole = cache.read_bytes()
    for content in (torn, whole[:-3], whole + b"\n" + torn, torn + whole):
        cache.write_bytes(content)
        another_process()
        assert sha256_remembered(file) == sha256_of(file)
    cache.write_bytes(whole[:-3])  # the line that is appended next is not glued to the torn one
    another_process()
    sha256_remembered(file)
    n_reads = len(reads)
    another_process()
    assert sha256_remembered(file) == sha256_of(file) and len(reads) == n_reads


def test_a_line_with_another_hash_and_its_old_checksum_is_not_believed(cache, file):
    digest = sha256_remembered(file)
    cache.write_bytes(cache.read_bytes().replace(digest.encode(), b"0" * 64))
    another_process()
    assert sha256_remembered(file) == digest


@pytest.mark.skipif(os.name == "nt", reason="no such permissions")
@pytest.mark.parametrize("kind", ["writable by others", "a link", "a folder", "a pipe"])
def test_a_cache_that_could_be_somebody_elses_is_neither_read_nor_written(cache, file, reads, tmp_path, kind):
    sha256_remembered(file)
    lie = cache.read_bytes()
    if kind == "writable by others":
        cache.chmod(0o666)
    elif kind == "a link":
        cache.replace(tmp_path / "elsewhere")
        cache.symlink_to(tmp_path / "elsewhere")
    else:
        cache.unlink()
        cache.mkdir() if kind == "a folder" else os.mkfifo(cache)
    another_process()
    (tmp_path / "second").write_bytes(b"second")
    for path in (file, tmp_path / "second"):
        assert sha256_remembered(path) == sha256_of(path)
    assert len(reads) == 3
    if kind in ("writable by others", "a link"):
        assert cache.read_bytes() == lie


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(file, tmp_path, monkeypatch, reads):
    (tmp_path / "cache").write_bytes(b"a file where the folder would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "QUIET_SECONDS", -1.0)
    assert sha256_remembered(file) == sha256_of(file) == sha256_remembered(file)
    assert len(reads) == 1  # this process still knows


def test_a_large_cache_is_cut_to_its_newest_half(cache, monkeypatch):
    monkeypatch.setattr(hashes, "MOST_BYTES", 4000)
    for i in range(60):
        remember(Stamp(1, i, 3, 4, 5), Known("ab" * 32, True), 0)
    another_process()
    assert known(Stamp(1, 59, 3, 4, 5)) == Known("ab" * 32, True)
    assert known(Stamp(1, 0, 3, 4, 5)) is not None  # it was read before it was cut
    assert cache.stat().st_size < 4000
    another_process()
    assert known(Stamp(1, 59, 3, 4, 5)) is not None and known(Stamp(1, 0, 3, 4, 5)) is None
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
