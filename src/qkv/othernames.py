"""What other programs call what a training is told, and its name here: for the sentence about a name that is not ours.

Theirs are names of nanoGPT, of the Trainer and the configurations of transformers, and of torch.nn, and words that
people try first. Nothing is read under them.
"""

import re
from collections.abc import Iterable

from qkv.errors import nearest, unknown

THEIRS = {
    # settings
    "n_layers": "n_layer num_layers num_hidden_layers layers depth encoder_layers decoder_layers num_encoder_layers",
    "n_heads": "n_head num_heads num_attention_heads heads nhead attention_heads",
    "n_kv_heads": "num_key_value_heads kv_heads n_kv_head",
    "d_model": "n_embd hidden_size embed_dim embedding_dim embedding_size hidden_dim dim",
    "d_head": "head_dim head_size",
    "d_mlp": "n_inner intermediate_size ffn_dim d_ff d_ffn dim_feedforward mlp_dim",
    "n_ctx": "block_size context context_length ctx max_length max_len max_seq_length max_seq_len seq_len seq_length"
    " sequence_length max_position_embeddings n_positions",
    "batch_size": "batch bs train_batch_size per_device_train_batch_size",
    "accumulate": "gradient_accumulation_steps grad_accum grad_accumulation accumulation_steps",
    "lr": "learning_rate learningrate",
    "weight_decay": "wd",
    "clip": "grad_clip max_grad_norm gradient_clip clip_grad clip_grad_norm",
    "warmup_steps": "warmup warmup_iters num_warmup_steps",
    "beta1": "adam_beta1",
    "beta2": "adam_beta2",
    "eps": "epsilon adam_epsilon adam_eps",
    "dropout": "resid_pdrop embd_pdrop attn_pdrop hidden_dropout hidden_dropout_prob dropout_rate p_drop",
    "optimizer.kind": "optimizer optimiser optim opt",
    "tied": "tie tie_weights tie_word_embeddings weight_tying tie_embeddings",
    "norm_eps": "layer_norm_eps layer_norm_epsilon rms_norm_eps",
    "eval_every": "eval_interval eval_steps eval_freq",
    "compile": "torch_compile",
    # options
    "steps": "max_iters max_steps iters iterations n_iters num_steps n_steps updates",
    "minutes": "time max_time",
    "preset": "model arch architecture model_type",
    "from": "init_from pretrained from_pretrained checkpoint ckpt model_name_or_path",
    "out": "out_dir output output_dir save_dir run_name",
    "val": "val_file validation validation_file valid eval_file eval_data test",
    "vocab": "vocab_size n_vocab",
    "parameters": "params n_params",
    "device": "gpu cuda use_cuda",
    "precision": "dtype bf16 fp16 fp32 amp mixed_precision",
    "nproc": "num_processes nproc_per_node world_size workers gpus",
    "threads": "num_threads n_threads",
    "log": "report_to wandb tensorboard wandb_log",
    "freeze": "frozen",
    "tokens": "max_new_tokens n_tokens num_tokens max_tokens",
    "temperature": "temp",
    "top_k": "topk",
    "top_p": "topp nucleus",
    "beams": "num_beams beam_size beam",
    "source": "data dataset data_dir file input input_file text train train_file train_data corpus",
}
"""Name here -> what others call it."""

COMMANDS = {
    "train": "fit run finetune fine-tune pretrain pre-train resume continue",
    "predict": "generate sample complete chat infer inference translate classify fill",
    "eval": "test score validate perplexity evaluation",
    "embed": "encode embeddings embedding",
    "show": "inspect info print describe history attention heads",
    "view": "serve ui visualize visualise visualization dashboard app web browse open live",
    "report": "plot html",
    "study": "experiment experiments ask",
    "import": "load convert download pull from-hf",
    "compare": "diff",
    "verify": "check",
    "bench": "benchmark benchmarks profile speed",
    "learn": "lesson lessons teach tutorial course exercise",
    "plan": "estimate cost memory",
    "doctor": "env system status",
}
"""Command here -> what others call it, or what people try first."""

_NOT_HERE = {
    name: said
    for said, names in {
        "there are no epochs here; give a number of updates (steps) or of minutes": (
            "epochs epoch n_epochs num_epochs num_train_epochs max_epochs"
        ),
        "attention has no window here, every token sees all before it in its context; n_ctx is the context's length": (
            "window sliding_window attention_window local_window window_size"
        ),
        "a text is given as it is, without an option": "prompt start prompts",
    }.items()
    for name in names.split()
}

_OURS = {theirs: name for name, words in THEIRS.items() for theirs in words.split()}
_OUR_COMMANDS = {theirs: name for name, words in COMMANDS.items() for theirs in words.split()}


def ours(given: str) -> str:
    """The name here of what others call so; `given` itself, as a setting is written, where nobody is known to."""
    name = given.lstrip("-").lower().replace("-", "_")
    return _OURS.get(name, name)


def unknown_setting(what: str, given: str, options: Iterable[str], n: int = 3) -> str:
    """As `qkv.errors.unknown`, of an option or a setting, which may have been typed as another program calls it."""
    options = list(options)
    name = ours(given)
    if name in _NOT_HERE:
        return f"unknown {what} {given!r}; {_NOT_HERE[name]}"
    if name == "source":
        return f"unknown {what} {given!r}; what to train on is named first, without an option"
    for option in options:
        if option != given and f".{option.lstrip('-').replace('-', '_')}".endswith(f".{name}"):
            return f"unknown {what} {given!r}; here it is {option!r}"
    alike = nearest(given, options, n, alike=0.6)
    share_a_word = sorted((o for o in options if _words(o) & _words(given)), key=len)
    return unknown(what, given, alike or share_a_word[:n] or options, n)


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]{2,}", name.lower()))


def unknown_command(given: str, commands: Iterable[str]) -> str:
    """The same of a command."""
    name = _OUR_COMMANDS.get(given.lower().replace("_", "-"), "")
    return f"unknown command {given!r}; here it is {name!r}" if name else unknown("command", given, commands)
