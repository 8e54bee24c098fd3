"""Ctrl-C and SIGTERM save, say how to go on, and end with 130 and 143."""

import os
import signal
import subprocess
import sys

import pytest


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_resume(number, status, small_text, tmp_path):
    words = [
        "train",
        small_text,
        "--tokenizer",
        "char",
        "--steps",
        "1000000",
        "--set",
        "d_model=16,n_layers=1,n_heads=1",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "qkv", *map(str, words), "--threads", "1", "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in process.stderr:
            if line.startswith("step "):
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == status, err
    assert out == "" and "--resume" in err and "Traceback" not in err
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
