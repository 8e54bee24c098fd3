"""Image files that are damaged, or something else: one sentence each, and no other program is ever started."""

import io
import os
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

from qkv.cli import main
from qkv.data.images import load_images
from qkv.data.sources.image_files import read_pictures
from qkv.errors import SourceError
from qkv.randomness import generator

Pillow = pytest.importorskip("PIL.Image", reason="needs the extra `image` (Pillow)")

SHAPE = (3, 9, 12)
KINDS = {
    "a.png": {},
    "palette.png": {"mode": "P"},
    "a.jpg": {},
    "a.bmp": {},
    "a.gif": {},
    "a.webp": {"lossless": True},
    "a.tif": {},
    "lzw.tiff": {"compression": "tiff_lzw"},
    "deflated.tiff": {"compression": "tiff_adobe_deflate"},
    "a.ppm": {},
}
"""Name of a file -> how it is saved."""

POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 12 9\n%%EndComments\n(ran) print showpage\n%%EOF\n"


def saved(name: str) -> bytes:
    """An image of noise, 12 x 9 in colour, as a file of that name holds it."""
    options = dict(KINDS[name])
    noise = generator("tests", "noise").integers(0, 256, (9, 12, 3)).astype(np.uint8)
    image, file = Pillow.fromarray(noise).convert(options.pop("mode", "RGB")), io.BytesIO()
    image.save(
        file, format={"jpg": "JPEG", "tif": "TIFF", "ppm": "PPM"}.get(name[-3:], Path(name).suffix[1:]), **options
    )
    return file.getvalue()


def said(path: Path) -> str:
    """What is said of a file that cannot be read; "" of one that can."""
    try:
        pixels = read_pictures([path], SHAPE)
    except SourceError as error:
        message = str(error)
        assert message.startswith(f"'{path}' ") and "\n" not in message and len(message) < 400
        return message
    assert pixels.shape == (1, *SHAPE)
    return ""


@pytest.fixture
def no_program(tmp_path, monkeypatch):
    """Whoever starts another program fails the test; one called gs lies where it would be found."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("gs", "gswin64c"):
        (bin_folder / name).write_text(f"#!/bin/sh\necho ran > {tmp_path / 'ran'}\n")
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_folder), prepend=os.pathsep)
    started = []

    class Watched(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            started.append(args)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", Watched)
    yield
    assert not started and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_read_whole(tmp_path, name):
    (tmp_path / name).write_bytes(saved(name))
    pixels = read_pictures([tmp_path / name], SHAPE)[0]
    noise = generator("tests", "noise").integers(0, 256, (9, 12, 3)).astype(np.uint8)
    if name not in ("palette.png", "a.jpg", "a.gif"):
        assert np.array_equal(pixels, np.moveaxis(noise, 2, 0))


@pytest.mark.parametrize("data", [POSTSCRIPT, b"\xc5\xd0\xd3\xc6" + bytes(60) + POSTSCRIPT], ids=["plain", "DOS"])
@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tiff", "a.eps"])
def test_postscript_under_any_name_starts_no_program(tmp_path, no_program, data, name):
    (tmp_path / name).write_bytes(data)
    assert "cannot be read as an image: it is a PostScript file; expected PNG, JPEG" in said(tmp_path / name)


@pytest.mark.parametrize("name", ["a.fits", "a.ico", "a.pcx", "a.tga", "a.sgi", "a.dds"])
def test_other_formats_are_not_tried_under_a_name_that_is_read(tmp_path, no_program, name):
    file = io.BytesIO()
    try:
        Pillow.new("RGB", (16, 16), 7).save(file, format=Path(name).suffix[1:])
    except (KeyError, OSError):
        pytest.skip("Pillow does not write it here")
    (tmp_path / "a.png").write_bytes(file.getvalue())
    assert "cannot be read as an image: it is of no kind that is known" in said(tmp_path / "a.png")


def test_a_picture_under_the_ending_of_another_kind_is_read(tmp_path):
    (tmp_path / "a.jpg").write_bytes(saved("a.png"))
    assert not said(tmp_path / "a.jpg")


@pytest.mark.parametrize("name", KINDS)
def test_a_file_that_is_cut_off_anywhere_is_one_sentence(tmp_path, no_program, name):
    whole = saved(name)
    refused = 0
    for n in range(0, len(whole), max(1, len(whole) // 80)):
        (tmp_path / name).write_bytes(whole[:n])
        message = said(tmp_path / name)
        refused += "cannot be read as an image" in message
        assert n >= len(whole) // 2 or message  # of the last bytes of some kinds no pixel depends
    assert refused > 30


@pytest.mark.parametrize("name", KINDS)
def test_flipped_bytes_are_read_or_one_sentence(tmp_path, no_program, name, capfd, recwarn):
    whole, draws = saved(name), generator("tests", "flipped", name)
    for _ in range(150):
        data = bytearray(whole)
        for place in draws.integers(0, len(data), int(draws.integers(1, 6))):
            data[place] ^= int(draws.integers(1, 256))
        (tmp_path / name).write_bytes(data)
        said(tmp_path / name)
    assert not recwarn.list
    if name[-4:] != "tiff":  # libtiff, which decompresses these, has its own way to the terminal
        assert capfd.readouterr().err == ""


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG that claims a size, with these chunks behind its header."""
    header = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in (header, *chunks, (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("size", [(10_000, 9_000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_a_picture_that_claims_more_pixels_than_anybody_has_is_refused_before_it_is_decoded(tmp_path, size):
    (tmp_path / "bomb.png").write_bytes(png(*size, (b"IDAT", zlib.compress(bytes(1 << 16)))))
    assert "cannot be read as an image: it claims more than 89,478,485 pixels" in said(tmp_path / "bomb.png")


def test_a_text_in_a_picture_that_unpacks_to_megabytes_is_refused(tmp_path):
    text = (b"zTXt", b"note\0\0" + zlib.compress(bytes(8 << 20), 9))
    (tmp_path / "bomb.png").write_bytes(png(12, 9, text, (b"IDAT", zlib.compress(bytes(9 * 37)))))
    assert "cannot be read as an image" in said(tmp_path / "bomb.png")


def test_a_picture_too_narrow_to_be_scaled_is_refused(tmp_path):
    Pillow.new("L", (1, 3_000_000)).save(tmp_path / "line.png")
    message = "is 1 x 3000000 pixels, too narrow to be brought to 12 x 9"
    assert message in said(tmp_path / "line.png")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is of no kind that is known, or damaged"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n", "it is a git-lfs pointer"),
        (b"<!DOCTYPE html>\n<html>not found", "it is a web page (HTML)"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "it is an HEIC image"),
        (b"%PDF-1.7\n", "it is a PDF; expected PNG"),
    ],
)
def test_what_is_no_picture_is_called_what_it_is(tmp_path, data, words):
    (tmp_path / "a.png").write_bytes(data)
    assert words in said(tmp_path / "a.png")


def test_the_command_refuses_a_folder_with_one_such_file_and_makes_nothing(tmp_path, no_program, capsys):
    for label in ("cat", "dog"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        for i in range(4):
            Pillow.new("L", (8, 6), 20 * i).save(tmp_path / "pets" / label / f"{i}.png")
    (tmp_path / "pets" / "dog" / "5.png").write_bytes(POSTSCRIPT)
    out = tmp_path / "never"
    assert main(["train", str(tmp_path / "pets"), "--task", "image", "--steps", "2", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "5.png' cannot be read as an image: it is a PostScript file" in error and not out.exists()


def test_files_and_folders_that_may_not_be_read_are_named(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").write_bytes(saved("a.png"))

    def refusing(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refusing)
        with pytest.raises(SourceError, match=r"0.png' cannot be read: Permission denied"):
            load_images(str(tmp_path))
    monkeypatch.setattr(Path, "iterdir", refusing)
    with pytest.raises(SourceError, match="cannot be read: Permission denied"):
        load_images(str(tmp_path))
