"""What `words-or-pixels` reads beside its table."""

from qkv.jsontypes import JsonObject
from qkv.studies.engine.design import Scale, Text
from qkv.studies.question import Ask


def own_images(ask: Ask, texts: dict[str, Text], scale: Scale) -> JsonObject:
    """The images of the source, where it holds some, instead of the digits."""
    if ask.has_images():
        measured = Text(stream="images", settings=(("val_images", 2048),))
        name, sha256 = ask.images or ((made := ask.corpus(measured)).name, made.sha256)
        texts["pixels"] = Text(stream="images", settings=(("name", name), ("sha256", sha256), *measured.settings))
    return {}
