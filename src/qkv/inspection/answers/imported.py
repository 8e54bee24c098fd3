"""What an imported model can say of itself: where it comes from, and that nothing was trained here."""

from qkv.inspection.answers.answer import Answer, Evidence
from qkv.words import many


def imported(evidence: Evidence) -> Answer | None:
    """Where it was read from, what was left out, and what it therefore does not have."""
    source = evidence.run.settings.get("imported")
    if not source:
        return None
    manifest = evidence.run.manifest
    about = manifest.get("imported", {})
    family = f" ({about['family']})" if about.get("family") else ""
    n = int(manifest.get("summary", {}).get("parameters", 0))
    notes = [f"{note[:1].upper()}{note[1:]}." for note in about.get("notes", [])]
    if evidence.run.settings.get("history"):
        steps = about.get("steps", [])
        return Answer(
            key="import",
            question="Where does this history come from?",
            sentence=f"{many(len(steps), 'step')} of a training were imported from {source}{family}.",
            more=(
                "Losses, learning rates and gradients were not saved with the weights, so there are none here.",
                *([f"Movement is measured from step {steps[0]:,}, the first one."] if steps and steps[0] else []),
                *notes,
            ),
            numbers={"parameters": float(n), "steps": float(len(steps))},
        )
    return Answer(
        key="import",
        question="Where does this model come from?",
        sentence=f"It was imported from {source}{family}: {many(n, 'parameter')}, unchanged.",
        more=(
            "Nothing was trained here, so there are no losses, no text and no earlier weights. To train it further and"
            " record everything, type: qkv train SOURCE --from RUN",
            *notes,
        ),
        numbers={"parameters": float(n)},
    )
