"""A section of the page: the largest matrices, in digits."""

from qkv.telemetry import Telemetry
from qkv.views.own_sections import Section


def digits(run):
    """`run` is a `qkv.inspection.stored_run.StoredRun`: its folder, settings, manifest, tokenizer and task."""
    with Telemetry(run.folder.telemetry) as telemetry:
        last = {name: series.value[-1] for name, series in telemetry.series("**.W_*", "digits").items()}
    rows = sorted(last.items(), key=lambda row: -row[1])[:5]
    return Section(
        heading="Digits",
        lead="The largest matrices at the last step.",
        columns=("matrix", "digits"),
        rows=tuple((name, f"{value:.2f}") for name, value in rows),
    )
