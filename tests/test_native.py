"""C++ of ours is compiled where that can be done, once; elsewhere there is a reason and nothing else changes."""

import subprocess
import sys
from pathlib import Path

import pytest

from qkv import native


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder with nothing in it, and nothing loaded; what is loaded elsewhere stays."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native, "_loaded", native._loaded.__wrapped__)
    return tmp_path / "qkv" / "native"


def fake(path: Path, says: str) -> str:
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(native.compiler() is None or sys.platform != "linux", reason="there is no C++ compiler")
def test_a_source_is_compiled_once_and_found_again(fresh):
    assert native.load("passes") is not None and native.why_not("passes") == ""
    (made,) = fresh.iterdir()
    written = made.stat().st_mtime_ns
    assert native.load("passes") is not None
    assert [path.stat().st_mtime_ns for path in fresh.iterdir()] == [written]
    assert made.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(native.compiler() is None or sys.platform != "linux", reason="there is no C++ compiler")
def test_a_library_that_others_could_have_written_is_made_again(fresh):
    native.load("passes")
    (made,) = fresh.iterdir()
    made.unlink()
    made.write_bytes(b"not ours")
    made.chmod(0o666)
    assert native.load("passes") is not None
    assert made.stat().st_size > 1000 and made.stat().st_mode & 0o077 == 0


def test_without_a_compiler_there_is_a_reason(fresh, monkeypatch):
    monkeypatch.setenv("PATH", str(fresh))
    monkeypatch.delenv("CXX", raising=False)
    assert native.load("passes") is None
    assert "no C++ compiler" in native.why_not("passes") or sys.platform != "linux"


@pytest.mark.skipif(sys.platform != "linux", reason="made for Linux")
@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ("echo 'error: no space left' >&2; exit 1", "error: no space left"),
        ("exit 3", "ended with 3"),
        ("for last; do :; done; exit 0", "could not be compiled"),  # says that all is well and writes nothing
    ],
)
def test_a_compiler_that_fails_is_a_reason_and_leaves_nothing(fresh, monkeypatch, tmp_path, says, expected):
    monkeypatch.setenv("CXX", fake(tmp_path / "c++", says))
    assert native.load("passes") is None
    assert expected in native.why_not("passes")
    assert not list(fresh.iterdir())


def test_it_can_be_switched_off(fresh, monkeypatch):
    monkeypatch.setenv(native.OFF, "0")
    assert native.load("passes") is None and native.why_not("passes") == "QKV_NATIVE is 0"


@pytest.mark.skipif(native.compiler() is None or sys.platform != "linux", reason="there is no C++ compiler")
def test_several_processes_may_compile_at_the_same_time(fresh):
    program = "from qkv import native; raise SystemExit(native.load('passes') is None)"
    started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [process.wait(timeout=300) for process in started] == [0, 0, 0]
    assert len(list(fresh.iterdir())) == 1
