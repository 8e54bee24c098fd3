"""C++ of ours is compiled where that can be done, once; elsewhere there is a reason and nothing else changes."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qkv import native
from qkv.native.levels import LEVELS, options


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


@pytest.mark.skipif(native.compiler() is None or sys.platform != "linux", reason="there is no C++ compiler")
def test_a_folder_that_others_may_write_to_is_not_used_and_that_is_said(fresh):
    assert native.load("passes") is not None
    fresh.chmod(0o777)
    assert native.load("passes") is None and "could be written by somebody else" in native.why_not("passes")
    fresh.chmod(0o700)
    assert native.load("passes") is not None


def test_what_the_bits_of_native_passes_depend_on_is_named():
    made = native.build()
    assert made is None or (made["compiler"] and "-fno-math-errno" in made["options"])


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
def test_a_compiler_that_fails_is_a_reason_and_leaves_no_library(fresh, monkeypatch, tmp_path, says, expected):
    monkeypatch.setenv("CXX", fake(tmp_path / "c++", says))
    assert native.load("passes") is None
    assert expected in native.why_not("passes")
    assert [path.suffix for path in fresh.iterdir()] == [".failed"]  # what was said


def test_it_can_be_switched_off(fresh, monkeypatch):
    monkeypatch.setenv(native.OFF, "0")
    assert native.load("passes") is None and native.why_not("passes") == "QKV_NATIVE is 0"


@pytest.mark.skipif(native.compiler() is None or sys.platform != "linux", reason="there is no C++ compiler")
def test_several_processes_may_compile_at_the_same_time(fresh):
    program = "from qkv import native; raise SystemExit(native.load('passes') is None)"
    started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [process.wait(timeout=300) for process in started] == [0, 0, 0]
    assert len(list(fresh.iterdir())) == 1


@pytest.fixture
def tiny(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A source that compiles in a moment, and a compiler that writes a line into the file returned for each call."""
    (tmp_path / "source").mkdir()
    for name, number in (("seven", 7), ("eight", 8)):
        (tmp_path / "source" / f"{name}.cpp").write_text(f'extern "C" long {name}() {{ return {number}; }}\n')
    monkeypatch.setattr(native, "_source", lambda name: tmp_path / "source" / f"{name}.cpp")
    calls, real = tmp_path / "calls", native.compiler()
    monkeypatch.setenv("CXX", fake(tmp_path / "c++", f'echo . >>"{calls}"; exec "{real}" "$@"'))
    return calls


def asked(calls: Path) -> int:
    return len(calls.read_text().split()) if calls.exists() else 0


def other_machine(content: bytes) -> bytes:
    """The same ELF file, said to be for arm64."""
    return content[:18] + b"\xb7\x00" + content[20:]


needs_a_compiler = pytest.mark.skipif(
    native.compiler() is None or sys.platform != "linux", reason="there is no C++ compiler"
)


@needs_a_compiler
@pytest.mark.parametrize(
    "broken",
    [
        lambda content, other: b"",
        lambda content, other: content[: len(content) // 2],
        lambda content, other: content[:-1],
        lambda content, other: b"not a library" * 100,
        lambda content, other: bytes(len(content)),
        lambda content, other: other_machine(content),
        lambda content, other: content[:200] + bytes([content[200] ^ 1]) + content[201:],
        lambda content, other: other,  # whole, and without the functions that are wanted
    ],
    ids=["empty", "half", "a byte short", "garbage", "zeros", "another machine's", "one bit", "another library"],
)
def test_a_library_that_is_not_whole_is_deleted_and_compiled_once(fresh, tiny, broken):
    assert native.load("eight") is not None and native.load("seven") is not None
    (made,), (other,) = fresh.glob("seven-*.so"), fresh.glob("eight-*.so")
    whole, before = made.read_bytes(), asked(tiny)
    made.unlink()  # it is loaded in this process: another file takes its place
    made.write_bytes(broken(whole, other.read_bytes()))
    made.chmod(0o700)
    for _ in range(2):
        library = native.load("seven")
        assert library is not None and library.seven() == 7 and native.why_not("seven") == ""
    assert asked(tiny) == before + 1 and made.read_bytes() == whole


@needs_a_compiler
def test_a_broken_library_goes_even_where_nothing_can_be_compiled(fresh, tiny, monkeypatch, tmp_path):
    native.load("seven")
    (made,) = fresh.glob("seven-*.so")
    made.unlink()
    made.write_bytes(b"cut off")
    made.chmod(0o700)
    monkeypatch.setattr(native, "_compile", lambda name, path: (_ for _ in ()).throw(RuntimeError("no more room")))
    assert native.load("seven") is None and "no more room" in native.why_not("seven")
    assert not made.exists()


@needs_a_compiler
def test_processes_that_find_it_broken_at_once_compile_it_once(fresh, tiny, tmp_path):
    native.load("seven")
    (made,) = fresh.glob("seven-*.so")
    made.unlink()
    made.write_bytes(b"cut off")
    made.chmod(0o700)
    program = (
        "import pathlib, sys; from qkv import native\n"
        "native._source = lambda name: pathlib.Path(sys.argv[1]) / f'{name}.cpp'\n"
        "raise SystemExit(native.load('seven').seven() != 7)"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "source")]
    started = [subprocess.Popen(words) for _ in range(4)]
    assert [process.wait(timeout=300) for process in started] == [0] * 4
    assert asked(tiny) == 2 and [path.suffix for path in fresh.iterdir()] == [".so"]


@pytest.mark.skipif(sys.platform != "linux", reason="made for Linux")
def test_what_cannot_be_compiled_is_not_tried_by_every_process(fresh, monkeypatch, tmp_path):
    calls = tmp_path / "calls"
    monkeypatch.setenv("CXX", fake(tmp_path / "c++", f'echo . >>"{calls}"; echo "error: no such unit" >&2; exit 1'))
    for _ in range(3):
        assert native.load("passes") is None
    (note,) = fresh.iterdir()
    assert asked(calls) == 1
    assert native.why_not("passes") == (
        f"it could not be compiled (error: no such unit); it is tried again in an hour, or as soon as {note} is deleted"
    )
    note.unlink()
    assert native.load("passes") is None and asked(calls) == 2
    os.utime(note, (note.stat().st_mtime - 3700,) * 2)
    assert native.load("passes") is None and asked(calls) == 3


@needs_a_compiler
def test_a_source_that_compiles_again_leaves_no_note(fresh, tiny, monkeypatch):
    compiled = native._compile
    monkeypatch.setattr(native, "_compile", lambda name, path: (_ for _ in ()).throw(RuntimeError("busy")))
    assert native.load("seven") is None
    (note,) = fresh.iterdir()
    os.utime(note, (0, 0))
    monkeypatch.setattr(native, "_compile", compiled)
    assert native.load("seven") is not None and [path.suffix for path in fresh.iterdir()] == [".so"]


def test_a_cache_that_cannot_be_written_is_a_reason_that_says_what_to_do(fresh, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert native.load("passes") is None
    assert sys.platform != "linux" or native.compiler() is None or "set XDG_CACHE_HOME" in native.why_not("passes")
    assert native.remembered("numbers", ("passes",), dict) is None


@needs_a_compiler
def test_a_library_serves_from_a_cache_that_cannot_be_written(fresh, tiny, monkeypatch):
    native.load("seven")
    monkeypatch.setattr(native, "_alone", lambda path: (_ for _ in ()).throw(PermissionError(13, "no")))
    library = native.load("seven")
    assert library is not None and library.seven() == 7


@needs_a_compiler
def test_a_lock_that_a_killed_process_left_holds_nobody_up(fresh, tiny):
    native.load("seven")
    (made,) = fresh.glob("seven-*.so")
    made.unlink()
    made.with_suffix(".lock").touch()
    assert native.load("seven") is not None and asked(tiny) == 2


@pytest.fixture
def shipped(fresh: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The libraries of a wheel: seven.cpp for two instruction sets, and `passes`, a copy of it under another name."""
    libraries = tmp_path / "libraries"
    assert native.load("seven") is not None
    (made,) = fresh.glob("seven-*.so")
    hashes = {}
    for level in ("x86-64-v2", "x86-64-v4"):
        (libraries / level).mkdir(parents=True)
        for name in ("seven", "passes"):
            (libraries / level / f"{name}.so").write_bytes(made.read_bytes())
            hashes[f"{level}/{name}.so"] = hashlib.sha256(made.read_bytes()).hexdigest()
    (libraries / "build.json").write_text(json.dumps({"compiler": "c++ 1", "sha256": hashes}))
    monkeypatch.setattr(native, "_SHIPPED", libraries)
    monkeypatch.setattr(native, "build", native.build.__wrapped__)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("CXX")
    return libraries


def processor(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setattr(native, "_processor", lambda: f"model name : any\nflags : {LEVELS[level][1]}")


@needs_a_compiler
@pytest.mark.parametrize(
    ("has", "used"),
    [("x86-64-v2", "x86-64-v2"), ("x86-64-v3", "x86-64-v2"), ("x86-64-v4-amx", "x86-64-v4")],
)
def test_the_library_of_a_wheel_that_fits_the_processor_is_loaded_without_a_compiler(shipped, monkeypatch, has, used):
    processor(monkeypatch, has)
    library = native.load("seven")
    assert library is not None and library.seven() == 7 and library._name == str(shipped / used / "seven.so")
    assert native.build() == {"compiler": "c++ 1", "options": options(used)}
    assert f"-march={used}" in options(used) and "-march=native" not in options(used)


@needs_a_compiler
def test_what_was_measured_belongs_to_the_library_of_the_wheel_and_the_processor(shipped, monkeypatch):
    measure = measured(1, 2, 3)
    processor(monkeypatch, "x86-64-v2")
    assert [native.remembered("numbers", ("seven",), measure) for _ in range(2)] == [{"number": 1}] * 2
    processor(monkeypatch, "x86-64-v4")
    assert native.remembered("numbers", ("seven",), measure) == {"number": 2}


@needs_a_compiler
def test_a_damaged_library_of_a_wheel_is_not_loaded_and_that_is_said(shipped, monkeypatch):
    processor(monkeypatch, "x86-64-v2")
    (shipped / "x86-64-v2" / "seven.so").write_bytes(b"cut off")
    assert native.load("seven") is None and "is damaged; install qkv again" in native.why_not("seven")


@needs_a_compiler
def test_a_processor_that_no_library_of_the_wheel_fits_gets_one_compiled_here(shipped, fresh, tiny, monkeypatch):
    monkeypatch.setattr(native, "_processor", lambda: "flags : fpu")
    assert native.load("seven") is None and "no C++ compiler" in native.why_not("seven")
    monkeypatch.setenv("CXX", str(tiny.with_name("c++")))
    monkeypatch.setenv("PATH", os.defpath)
    assert native.load("seven") is not None and len(list(fresh.glob("seven-*.so"))) == 2


def measured(*numbers: int):
    """A measurement that gives another number each time."""
    left = list(numbers)
    return lambda: {"number": left.pop(0)}


def test_what_was_measured_once_is_what_everybody_gets(fresh):
    measure = measured(1, 2, 3)
    assert [native.remembered("numbers", ("passes",), measure) for _ in range(2)] == [{"number": 1}] * 2
    assert native.remembered("numbers", ("passes", "vectors"), measure) == {"number": 2}  # of other code
    assert sorted(path.suffix for path in fresh.iterdir()) == [".json", ".json"]


@pytest.mark.parametrize("broken", [b"", b'{"number": ', b"[1]", b"\xff\x00"])
def test_what_was_measured_and_is_not_whole_is_measured_again(fresh, broken):
    measure = measured(1, 2)
    native.remembered("numbers", ("passes",), measure)
    (kept,) = fresh.iterdir()
    kept.write_bytes(broken)
    assert native.remembered("numbers", ("passes",), measure) == {"number": 2}
    assert native.remembered("numbers", ("passes",), measure) == {"number": 2}


def test_processes_that_measure_at_once_agree(fresh):
    program = (
        "import os, time; from qkv import native\n"
        "def measure():\n    time.sleep(0.5)\n    return {'number': os.getpid()}\n"
        "print(native.remembered('numbers', ('passes',), measure)['number'])"
    )
    words = [sys.executable, "-c", program]
    started = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert len({process.communicate(timeout=300)[0] for process in started}) == 1
