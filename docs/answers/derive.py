"""Every effect of a kept run again, from the log of its trainings: python docs/answers/derive.py frozen-embeddings-full

Prints the median over replicates. Leaves out, and counts, effects that read several trainings at once.
"""

import bz2
import json
import sys
from pathlib import Path

import numpy as np

ON_THE_WAY = {"loss at a quarter": 0.25, "loss at half": 0.5, "loss at three quarters": 0.75}
here = Path(__file__).parent
logged = sorted(p.stem for p in (here / "results").glob("*-full.json"))
if len(sys.argv) != 2 or sys.argv[1] not in logged:
    print(f"type the name of a run whose log is kept: {', '.join(logged)}", file=sys.stderr)
    sys.exit(2)
kept = json.loads((here / "results" / f"{sys.argv[1]}.json").read_text("utf-8"))
packed = (here / "runs" / Path(kept["run"]).name / "archive.json.bz2").read_bytes()
columns = [block["columns"] for block in json.loads(bz2.decompress(packed))]
rows = [dict(zip(some, values, strict=True)) for some in columns for values in zip(*some.values(), strict=True)]
last = {(row["arm"], row["replicate"]): row for row in rows if row.get("role") == "report"}


def read(row, name):
    if name in ON_THE_WAY and row.get("curve"):
        return min(row["curve"], key=lambda point: abs(point[0] - ON_THE_WAY[name] * row["steps"]))[1]
    value = row.get(name, row.get(f"measures {name}"))
    return np.nan if value is None else value


differ, left_out = 0, 0
for effect in kept["contrasts"]:
    terms, again = effect["terms"] or [(np.nan, "", "")], []
    for replicate in effect["replicates"]:
        again.append(sum(weight * read(last.get((arm, replicate), {}), name) for weight, arm, name in terms))
    again = np.minimum(again, 1.0 if effect["unit"] == "of the trainings" else np.inf)
    if np.isnan(again).any():
        left_out += 1
        continue
    differ += not np.allclose(again, effect["values"], rtol=1e-9, atol=1e-12)
    print(f"{effect['what']}: {np.median(again) if len(again) else None} {effect['unit']} (n = {len(again)})")
print(f"{differ} effects differ from those kept, {left_out} left out")
sys.exit(differ > 0)
