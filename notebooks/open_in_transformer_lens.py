# %% [markdown]
# # Open a run in TransformerLens
#
# TransformerLens 4 opens an exported run as it is: the export is a Hugging Face folder. This notebook trains a small model for a few
# seconds, opens it there, and compares logits and attention patterns. Install TransformerLens first (`pip install transformer-lens`);
# without it, the cells that need it say so and the rest still runs.

# %%
import os
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here asks the network

import torch

import qkv

place = Path(tempfile.mkdtemp())
(place / "text.txt").write_text("the sun and the rain and the wind and the snow.\n" * 300)
sizes = {"d_model": 32, "n_layers": 2, "n_heads": 2, "n_ctx": 16}
run = qkv.train(place / "text.txt", vocab=280, steps=60, out=place / "run", report=False, set=sizes)
run.export(place / "exported").family.title

# %% [markdown]
# `TransformerBridge` is the class of version 4 that takes a folder. Its names are its own: `blocks.0.attn.hook_pattern` is `L0.pattern`
# in qkv.

# %%
try:
    from transformer_lens.model_bridge import TransformerBridge
except ImportError:
    lens = None
    print("TransformerLens is not installed: pip install transformer-lens")
else:
    lens = TransformerBridge.boot_transformers(str(place / "exported"), device="cpu")

# %%
ids = torch.tensor([run.tokenizer.encode("the sun and the rain").tolist()])
with torch.no_grad():
    logits, record = run.model.forward_recorded(ids)
    if lens is not None:
        theirs, cache = lens.run_with_cache(ids)
        torch.testing.assert_close(theirs, logits, rtol=0, atol=1e-4)
        for layer in range(2):
            pattern = cache[f"blocks.{layer}.attn.hook_pattern"]
            torch.testing.assert_close(pattern, record[f"L{layer}.pattern"], rtol=0, atol=1e-5)
        print("TransformerLens gives the same logits and patterns")

# %% [markdown]
# The same experiment in both: set the output of one head to zero, and see how far the logits move.

# %%
silent = torch.zeros_like(record["L1.z"][:, 0])
with torch.no_grad():
    moved = run.model.forward_with(ids, replace={"L1.H0.z": silent}) - logits
    print(f"without L1.H0, logits of qkv move by up to {moved.abs().max():.3f}")
    if lens is not None:

        def zero(z, hook):
            z[:, :, 0] = 0
            return z

        theirs = lens.run_with_hooks(ids, fwd_hooks=[("blocks.1.attn.hook_z", zero)])
        print(f"in TransformerLens they move by up to {(theirs - logits).abs().max():.3f}")
