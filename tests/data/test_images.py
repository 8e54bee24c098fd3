"""Images from IDX files and folders: what is read, how parts are made, and every mistake in one sentence."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from qkv.data.baseline import classes as room
from qkv.data.config import ImageOptions
from qkv.data.images import Images, ImageSet, load_images, read_idx
from qkv.data.sources.image_files import read_pictures
from qkv.errors import ConfigError, SourceError
from qkv.randomness import generator

Pillow = pytest.importorskip("PIL.Image", reason="needs the extra `image` (Pillow)")


def write_idx(path: Path, values: np.ndarray, kind: int = 8) -> Path:
    data = bytes([0, 0, kind, values.ndim]) + struct.pack(f">{values.ndim}i", *values.shape)
    data += values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def pair(folder: Path, name: str, n: int, *, gz: str = "", shape: tuple[int, ...] = (6, 5)) -> Path:
    """An IDX pair of n random images, labels 0, 1, 2, 0, ..."""
    folder.mkdir(exist_ok=True)
    pixels = generator("tests", "images", name).integers(0, 256, (n, *shape))
    write_idx(folder / f"{name}-labels-idx1-ubyte{gz}", np.arange(n) % 3)
    return write_idx(folder / f"{name}-images-idx3-ubyte{gz}", pixels)


def classes_of(folder: Path, modes: dict[str, str], size: tuple[int, int] = (8, 6), n: int = 12) -> Path:
    """A folder for each class, with n image files of that mode."""
    for name, mode in modes.items():
        (folder / name).mkdir(parents=True)
        for i in range(n):
            colour = 20 * i if mode == "L" else (20 * i, 5, 250 - 20 * i)
            Pillow.new(mode, size, colour).save(folder / name / f"{i}.png")
    return folder


# what is read


def test_idx_files_are_read_as_they_were_written_and_test_files_beside_are_for_validation(tmp_path):
    pair(tmp_path, "train", 30, gz=".gz")
    pair(tmp_path, "t10k", 9)
    images = load_images(str(tmp_path))
    assert images.kind == "idx" and images.classes == ("0", "1", "2") and images.shape == (1, 6, 5)
    assert len(images.train) == images.n_train == 30 and len(images.val) == 9
    assert np.array_equal(images.val.pixels[:, 0], read_idx(tmp_path / "t10k-images-idx3-ubyte", (3,)))
    assert np.array_equal(images.train.labels, np.arange(30) % 3)
    assert load_images(str(tmp_path / "train-images-idx3-ubyte.gz")).sha256 == images.sha256
    mean, std = images.level
    assert mean == pytest.approx(images.train.pixels.mean() / 255) and std == pytest.approx(
        images.train.pixels.std() / 255
    )


def test_images_that_are_trained_on_and_measured_on_are_counted(tmp_path):
    train = pair(tmp_path / "a", "train", 30)
    val = pair(tmp_path / "b", "t10k", 9)
    assert "also stand" not in load_images(str(train), str(val)).rule
    both = load_images(str(train), str(train))
    assert both.rule.endswith("(30 of its 30 images also stand in the training part)") and both.rule in both.describe()


def test_without_validation_files_a_tenth_of_each_class_is_held_out_and_copies_stay_together(tmp_path):
    path = pair(tmp_path, "digits", 300)
    pixels = read_idx(path, (3,)).copy()
    pixels[150:] = pixels[:150]  # every image twice, with the same label
    write_idx(path, pixels)
    images = load_images(str(path))
    assert np.array_equal(np.bincount(images.val.labels), [10, 10, 10])
    held, kept = ({p.tobytes() for p in part.pixels} for part in (images.val, images.train))
    assert not held & kept and len(held) == 15
    order = generator("tests", "order").permutation(300)
    labels = np.arange(300) % 3
    write_idx(path, pixels[order])
    write_idx(tmp_path / "digits-labels-idx1-ubyte", labels[order])
    assert {p.tobytes() for p in load_images(str(path)).val.pixels} == held  # whatever their order


def test_a_share_of_less_than_a_tenth_is_said(tmp_path, monkeypatch):
    path = pair(tmp_path, "digits", 300)
    assert load_images(str(path)).rule.startswith("the tenth of each class whose")
    monkeypatch.setattr("qkv.data.images._MOST_HELD_OUT", 12)
    images = load_images(str(path))
    assert images.rule.startswith("the 4% of each class whose") and len(images.val) == 12


def test_labels_may_have_gaps_and_keep_their_numbers(tmp_path):
    pair(tmp_path, "train", 30)
    pair(tmp_path, "test", 6)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.array([7, 2, 40] * 10))
    write_idx(tmp_path / "test-labels-idx1-ubyte", np.array([40, 7] * 3))
    images = load_images(str(tmp_path))
    assert images.classes == ("2", "7", "40") and images.val.labels.tolist() == [2, 1] * 3
    assert load_images(str(tmp_path), classes=("40", "2", "7")).val.labels.tolist() == [0, 2] * 3


def test_a_folder_for_each_class_is_read_grey_or_in_colour(tmp_path):
    images = load_images(str(classes_of(tmp_path / "grey", {"cat": "L", "dog": "L"}, n=20)))
    assert images.kind == "classes" and images.classes == ("cat", "dog") and images.shape == (1, 6, 8)
    assert len(images.train) + len(images.val) == 40 and set(images.val.labels) == {0, 1}
    images = load_images(str(classes_of(tmp_path / "mixed", {"cat": "L", "dog": "RGB"}, n=20)))
    assert images.shape == (3, 6, 8)
    dog = images.train.pixels[images.train.labels == 1]
    assert {(int(p[0, 0, 0]), int(p[1, 0, 0]), int(p[2, 0, 0])) for p in dog} <= {
        (20 * i, 5, 250 - 20 * i) for i in range(20)
    }


def test_folders_named_train_and_test_are_the_parts_and_eval_finds_them_again(tmp_path):
    classes_of(tmp_path / "all" / "train", {"a": "L", "b": "L"})
    classes_of(tmp_path / "all" / "test", {"a": "L", "b": "L"}, n=2)
    for val in ("", str(tmp_path / "all"), str(tmp_path / "all" / "test")):
        images = load_images(str(tmp_path / "all"), val)
        assert (len(images.train), len(images.val)) == (24, 4), val


@pytest.mark.parametrize(
    ("name", "test"), [("val", "test"), ("valid", "testing"), ("validation", "Test"), ("dev", "test")]
)
def test_where_there_is_a_part_for_validation_the_test_is_left_alone(tmp_path, name, test):
    for part, n in (("train", 12), (name, 3), (test, 2)):
        classes_of(tmp_path / "folders" / part, {"a": "L", "b": "L"}, n=n)
        pair(tmp_path / "files", part, 6 * n)
    (tmp_path / "folders" / test / "a" / "0.png").write_bytes(b"never read")
    (tmp_path / "files" / f"{test}-images-idx3-ubyte").write_bytes(b"never read")
    folders, files = load_images(str(tmp_path / "folders")), load_images(str(tmp_path / "files"))
    assert (len(folders.train), len(folders.val), len(files.train), len(files.val)) == (24, 6, 72, 18)
    assert folders.rule.startswith(f"validated on {name}, {test} left alone")
    assert files.rule == f"validated on {name}-images-idx3-ubyte, {test}-images-idx3-ubyte left alone"
    assert load_images(str(tmp_path / "files" / "train-images-idx3-ubyte")).sha256 == files.sha256


def test_several_folders_for_training_are_asked_about(tmp_path):
    for name in ("train", "train2", "test"):
        classes_of(tmp_path / name, {"a": "L", "b": "L"})
    with pytest.raises(SourceError, match=r"several folders of training images \(train, train2\); name one of them"):
        load_images(str(tmp_path))


def test_images_of_other_sizes_are_brought_to_the_most_frequent_one_and_that_is_said(tmp_path):
    folder = classes_of(tmp_path / "some", {"a": "L", "b": "L"}, size=(8, 6), n=15)
    Pillow.new("L", (40, 30), 99).save(folder / "a" / "large.png")
    Pillow.new("RGBA", (3, 3), (255, 255, 255, 0)).save(folder / "b" / "clear.png")
    images = load_images(str(folder))
    assert images.shape == (3, 6, 8) and "2 of 32 images were resized to 8 x 6" in images.note
    everything = np.concatenate([images.train.pixels, images.val.pixels])
    assert sum((p == 99).all() for p in everything) == 1  # the large one, all of one shade
    assert sum((p == 0).all() for p in everything) >= 1  # what is transparent lies on black
    assert load_images(str(folder), options=ImageOptions(size=4)).shape == (3, 3, 4)


def test_grey_of_16_bits_keeps_its_shades(tmp_path):
    shades = np.linspace(0, 65535, 48).astype(np.uint16).reshape(6, 8)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i, ending in enumerate(("png", "tiff", "png", "png")):
            Pillow.fromarray(shades + np.uint16(i) % 2).save(tmp_path / name / f"{i}.{ending}")
        (tmp_path / name / "4.pgm").write_bytes(b"P5 8 6 65535\n" + shades.astype(">u2").tobytes())
    png, chunk = (tmp_path / "a" / "0.png").read_bytes(), b"tRNS" + struct.pack(">H", shades[5, 7])
    clear = struct.pack(">I", 2) + chunk + struct.pack(">I", zlib.crc32(chunk))
    (tmp_path / "a" / "0.png").write_bytes(png[:33] + clear + png[33:])  # after the head, 33 bytes long
    images = load_images(str(tmp_path))
    expected = np.round(shades / 257).astype(np.uint8)
    clear = expected.copy()
    clear[5, 7] = 0
    found = {p.tobytes() for part in (images.train, images.val) for p in part.pixels}
    assert images.shape == (1, 6, 8) and found == {expected.tobytes(), clear.tobytes()}
    assert (read_pictures([tmp_path / "b" / "0.png"], (3, 6, 8)) == expected).all()


@pytest.mark.parametrize(("kind", "words"), [(np.float32, "real numbers"), (np.int32, "whole numbers of 32 bits")])
def test_grey_without_a_known_white_is_refused(tmp_path, kind, words):
    folder = classes_of(tmp_path / "some", {"a": "L", "b": "L"})
    Pillow.fromarray(np.full((6, 8), 0.5, kind)).save(folder / "b" / "depth.tiff")
    with pytest.raises(SourceError, match=f"depth.tiff' holds {words}, of which none is known as white; save it as"):
        load_images(str(folder))


@pytest.mark.parametrize("name", ["test", "val"])
def test_files_without_classes_beside_the_training_folder_are_left_alone(tmp_path, name):
    classes_of(tmp_path / "train", {"a": "L", "b": "L"}, n=20)
    (tmp_path / name / "empty").mkdir(parents=True)
    Pillow.new("L", (8, 6), 7).save(tmp_path / name / "1.png")
    images = load_images(str(tmp_path))
    assert len(images.train) + len(images.val) == 40 and "held out" in images.rule
    classes_of(tmp_path / "valid", {"a": "L", "b": "L"}, n=3)
    assert len(load_images(str(tmp_path)).val) == 6


def test_an_image_with_two_labels_is_on_one_side(tmp_path):
    path = pair(tmp_path, "digits", 300)
    pixels = read_idx(path, (3,)).copy()
    pixels[150:299] = pixels[1:150]  # an image is there again with the label after its own
    write_idx(path, pixels)
    images = load_images(str(path))
    held, kept = ({p.tobytes() for p in part.pixels} for part in (images.val, images.train))
    assert not held & kept and len(images.val) + len(images.train) == 300 and len(images.val) < 90


def test_the_linear_model_is_asked_about_a_few_images_at_a_time(tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="needs the extra `study` (scikit-learn)")
    pair(tmp_path, "train", 60)
    pair(tmp_path, "test", 50)
    images = load_images(str(tmp_path))
    whole, asked = room.image_baselines(images), []
    flat = room._flat
    monkeypatch.setattr(room, "_flat", lambda pixels: asked.append(len(pixels)) or flat(pixels))
    monkeypatch.setattr(room, "MOST_VALUES", 30 * 20 + 7)
    assert room.image_baselines(images) == pytest.approx(whole[:-1] + ("",))
    assert asked == [60, 20, 20, 10]


def test_an_image_unlike_all_others_leaves_the_linear_model_a_figure():
    """Low contrast makes large weights: white, labelled as the darker class, has probability 0 in float32."""
    pytest.importorskip("sklearn", reason="needs the extra `study` (scikit-learn)")
    draws, labels = np.random.default_rng(0), np.repeat([0, 1], 500)
    pixels = draws.normal(124 + 6 * labels[:, None, None, None], 2, (1000, 1, 28, 28)).astype(np.uint8)
    white = np.full((1, 1, 28, 28), 255, dtype=np.uint8)
    val = ImageSet(pixels=np.concatenate([pixels[[0, -1]], white]), labels=np.array([0, 1, 0]))
    train = ImageSet(pixels=pixels, labels=labels)
    images = Images(name="low", kind="idx", sha256="", classes=("a", "b"), train=train, val=val, rule="")
    found = room.image_baselines(images)
    assert found.linear == pytest.approx(2 / 3) and found.linear_nats == pytest.approx(-np.log(1e-9) / 3, rel=0.02)


# mistakes


@pytest.mark.parametrize(
    "name, change, sentence",
    [
        ("short", lambda f: f.write_bytes(f.read_bytes()[:-7]), "holds 893 of the 900 bytes of 30 x 6 x 5"),
        ("long", lambda f: f.write_bytes(f.read_bytes() + b"x"), "holds more than the 900 bytes"),
        ("head", lambda f: f.write_bytes(f.read_bytes()[:9]), "cut off inside its header"),
        ("other", lambda f: f.write_bytes(b"PK\3\4" + bytes(99)), "no IDX file"),
        ("float", lambda f: write_idx(f, np.zeros((30, 6, 5)), kind=13), "type 0x0d; expected unsigned bytes"),
        ("flat", lambda f: write_idx(f, np.zeros((30, 6))), "has 2 dimensions; expected 3 or 4"),
        ("uneven", lambda f: write_idx(f, np.zeros((29, 6, 5))), "29 images but uneven-labels-idx1-ubyte 30 labels"),
        (
            "lonely",
            lambda f: (f.parent / "lonely-labels-idx1-ubyte").unlink(),
            "its labels were looked for in lonely-l",
        ),
        ("same", lambda f: write_idx(f.parent / "same-labels-idx1-ubyte", np.full(30, 4)), r"one class only \(4\)"),
    ],
)
def test_a_broken_idx_pair_is_told_in_one_sentence(tmp_path, name, change, sentence):
    change(pair(tmp_path, name, 30))
    with pytest.raises(SourceError, match=sentence):
        load_images(str(tmp_path))


def test_a_gzipped_file_that_is_cut_off_or_is_none_is_told(tmp_path):
    path = pair(tmp_path, "train", 30, gz=".gz")
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"not gzip"):
        path.write_bytes(data)
        with pytest.raises(SourceError, match="train-images-idx3-ubyte.gz"):
            load_images(str(tmp_path))


def test_validation_of_another_size_or_with_a_class_never_trained_on_is_told(tmp_path):
    pair(tmp_path, "train", 30)
    pair(tmp_path, "test", 30, shape=(6, 6))
    with pytest.raises(SourceError, match="training images are 5 x 6 in 1 channel, those of .* 6 x 6"):
        load_images(str(tmp_path))
    pair(tmp_path, "test", 30)
    write_idx(tmp_path / "test-labels-idx1-ubyte", np.full(30, 9))
    with pytest.raises(SourceError, match="a class that training does not have: 9; expected 0, 1, 2"):
        load_images(str(tmp_path))


def test_a_folder_that_holds_no_images_several_or_one_class_is_told(tmp_path):
    with pytest.raises(SourceError, match="does not exist"):
        load_images(str(tmp_path / "nowhere"))
    with pytest.raises(SourceError, match="holds no images that can be read"):
        load_images(str(tmp_path))
    classes_of(tmp_path / "dat", {"cat": "L"})
    for file in (tmp_path / "dat" / "cat").iterdir():
        file.rename(file.with_suffix(".dat"))
    with pytest.raises(SourceError, match=r"files whose names end in \.png, \.jpg"):
        load_images(str(tmp_path / "dat"))
    classes_of(tmp_path / "one", {"cat": "L"})
    with pytest.raises(SourceError, match=r"one class only \(cat\)"):
        load_images(str(tmp_path / "one"))
    with pytest.raises(SourceError, match="is one image; give the folder"):
        load_images(str(tmp_path / "one" / "cat" / "0.png"))
    pair(tmp_path / "two", "a", 3)
    pair(tmp_path / "two", "b", 3)
    with pytest.raises(SourceError, match="several files of training images"):
        load_images(str(tmp_path / "two"))
    with pytest.raises(SourceError, match="size has no effect"):
        load_images(str(tmp_path / "two" / "a-images-idx3-ubyte"), options=ImageOptions(size=4))


@pytest.mark.parametrize("data", [b"", b"not an image", None])
def test_a_file_that_is_no_image_is_named(tmp_path, data):
    folder = classes_of(tmp_path / "some", {"a": "L", "b": "RGB"}, size=(30, 30))
    broken = folder / "a" / "broken.png"
    noise = generator("tests", "noise").integers(0, 256, (30, 30, 3)).astype(np.uint8)
    Pillow.fromarray(noise).save(broken)
    broken.write_bytes(broken.read_bytes()[:200] if data is None else data)
    with pytest.raises(SourceError, match="broken.png.* cannot be read as an image"):
        load_images(str(folder))


@pytest.mark.parametrize(
    "change, sentence",
    [(dict(size=-1), "size is -1"), (dict(shift=0.6), "from 0 to 0.5"), (dict(erase=2.0), "from 0 to 1")],
)
def test_options_out_of_range_are_refused(change, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ImageOptions(**change)


def test_fashion_mnist_is_read_whole(real_data):
    folder = real_data / "fashion-mnist"
    if not folder.is_dir():
        pytest.skip("QKV_DATA holds no fashion-mnist")
    images = load_images(str(folder))
    assert (len(images.train), len(images.val), images.shape) == (60_000, 10_000, (1, 28, 28))
    assert images.level == pytest.approx((0.2860, 0.3530), abs=5e-5)  # as published
    assert np.bincount(images.val.labels).tolist() == [1000] * 10


def test_a_class_of_which_none_can_be_held_out_is_named(tmp_path):
    folder = classes_of(tmp_path / "some", {"cat": "RGB", "dog": "L", "eel": "RGB"})
    for file in sorted((folder / "eel").iterdir())[1:]:
        file.unlink()
    with pytest.raises(SourceError, match="too few images of 'eel' that differ .*with --val"):
        load_images(str(folder))
