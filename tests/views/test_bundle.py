"""The bundler: our modules as one script, and nothing that asks the network."""

import hashlib
import re
import shutil
import subprocess
from importlib.resources import files

import pytest

from qkv.views.report.bundle import bundle, script_safe, static_text

STATIC = files("qkv.views") / "static"
MODULES = sorted(item.name for item in STATIC.iterdir() if item.name.endswith(".js"))


def test_bundle_holds_every_module_once_after_those_it_imports():
    held = {"live.js", "server.js", "workbench_live.js"}
    for entry in ("report.js", "alone.js", "widget.js", "study_alone.js", "workbench_alone.js"):
        order = re.findall(r"^modules\['([\w-]+\.js)'\] = ", bundle(entry), re.MULTILINE)
        held |= {*order}
        _check_order(order)
    assert sorted(held) == MODULES


def _check_order(order):
    assert len(order) == len(set(order))
    for name in order:
        for needed in re.findall(r'from "\./([\w-]+\.js)"', static_text(name)):
            assert order.index(needed) < order.index(name)


def test_no_import_or_export_is_left_in_the_bundle():
    assert not re.search(r"^\s*(import|export)\b", bundle("report.js"), re.MULTILINE)


def test_forms_that_the_bundler_does_not_know_are_refused(monkeypatch):
    from qkv.views.report import bundle as module

    for source in ('export * from "./x.js";', 'import * as x from "./x.js";', "export let a = 1;"):
        monkeypatch.setattr(module, "static_text", lambda name, source=source: source)
        with pytest.raises(AssertionError, match="does not know"):
            module.bundle("a.js")


def test_modules_that_import_each_other_are_refused(monkeypatch):
    from qkv.views.report import bundle as module

    sources = {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'}
    monkeypatch.setattr(module, "static_text", sources.__getitem__)
    with pytest.raises(AssertionError, match="ring"):
        module.bundle("a.js")


def test_every_view_is_a_function_and_that_of_a_notebook_a_module_with_render():
    views = [name for name in MODULES if "export default" in static_text(name)]
    assert len(views) >= 12
    for name in views:
        found = re.search(r"^export default (.*)$", static_text(name), re.MULTILINE)
        wanted = (
            r"\{ render \};" if name == "widget.js" else r"function render\(\{ model, el \}\) \{|view\(build\b.*\);"
        )
        assert found and re.fullmatch(wanted, found[1]), name


def test_no_module_writes_markup_or_asks_the_network():
    for name in MODULES:
        text = static_text(name)
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "fetch(",
            "XMLHttpRequest",
            "WebSocket",
            "sendBeacon",
            "import(",
        ):
            asks = name in ("live.js", "server.js") and forbidden == "fetch("
            assert forbidden not in text or asks, (name, forbidden)
        addresses = set(re.findall(r"https?://[^\s\"'`]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name  # the SVG namespace is a name, not a request


def test_style_fetches_nothing():
    assert not re.search(r"url\(|@import|@font-face", static_text("report.css"))


def test_script_text_cannot_end_its_element():
    assert "</script" not in script_safe('const a = "</script>", b = "</SCRIPT>", c = "<!--";').lower()


def test_vendored_libraries_are_the_ones_described():
    table = (STATIC / "vendor" / "README.md").read_text(encoding="utf-8")
    for name in ("d3", "plot"):
        assert "Permission to use, copy, modify" in (STATIC / "vendor" / f"{name}.LICENSE.txt").read_text(
            encoding="utf-8"
        )
    for name in ("d3.min.js", "plot.umd.min.js"):
        data = (STATIC / "vendor" / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() in table
        version = re.search(rb"v(\d+\.\d+\.\d+) Copyright", data)
        assert version and version[1].decode() in table


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine to parse the script with")
def test_bundle_parses(tmp_path):
    path = tmp_path / "bundle.js"
    path.write_text(bundle("report.js"), encoding="utf-8")
    subprocess.run(["node", "--check", str(path)], check=True, timeout=60)
