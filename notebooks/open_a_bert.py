# %% [markdown]
# # Open a BERT
#
# qkv opens a Hugging Face folder (`config.json`, safetensors, tokenizer files) as a run. If you have none, this notebook makes a
# small BERT with **random weights**: everything works, but it says nothing about language. Set `FOLDER` to a real model, for
# example a snapshot in your Hugging Face cache.

# %%
import os
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here asks the network

import torch
import transformers

FOLDER = ""  # e.g. "~/.cache/huggingface/hub/models--google-bert--bert-base-uncased/snapshots/..."
place = Path(tempfile.mkdtemp())
words = "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog king queen sat on mat sees likes and at home .".split()
if not FOLDER:
    sizes = dict(hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96)
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=64, **sizes)
    transformers.BertForMaskedLM(config).save_pretrained(place / "bert")
    (place / "bert" / "vocab.txt").write_text("\n".join(words) + "\n")
    FOLDER = str(place / "bert")

# %%
from qkv.api import import_checkpoint

run = import_checkpoint(Path(FOLDER).expanduser(), place / "run", say=print)
run.config.model.sizes, run.config.model.layout.norm_place

# %% [markdown]
# Logits and the output of every layer equal those of transformers:

# %%
live = transformers.AutoModelForMaskedLM.from_pretrained(Path(FOLDER).expanduser()).eval()
ids = torch.tensor([run.tokenizer.encode_whole("the cat sat on the mat").tolist()])
with torch.no_grad():
    logits, record = run.model.forward_recorded(ids)
    theirs = live(ids, output_hidden_states=True)
torch.testing.assert_close(logits, theirs.logits, rtol=1e-4, atol=1e-4)
torch.testing.assert_close(record["L0.resid_post"], theirs.hidden_states[1], rtol=1e-4, atol=1e-4)

# %% [markdown]
# Where does each head of layer 0 attend to from `cat`? And one of its circuits, whose rank is at most d_head:

# %%
view = run.attention("the cat sat on the mat")
print(record["L0.pattern"][0, :, 2].numpy().round(2))
print(run.matrix("L0.H1.OV").singular_values()[:5])
view.save(place / "attention.html")

# %% [markdown]
# How much does the prediction change without one head?

# %%
with torch.no_grad():
    silent = run.model.forward_with(ids, replace={"L0.H1.z": torch.zeros_like(record["L0.z"][:, 1])})
(logits - silent).abs().max().item()
