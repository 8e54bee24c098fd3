"""Write a run for other programs: as a Hugging Face folder, a GGUF file for llama.cpp, or a folder with ONNX.

huggingface: config.json, safetensors, tokenizer files, a model card. Where a class of transformers has the run's layout
(GPT-2, Llama, BERT, ViT, Marian, ...), it loads the folder as it is; else a small modeling file of ours lies beside the
weights, and the command says so. gguf: one file in float32, for a model that llama.cpp computes (GPT-2, Llama, Qwen2,
Qwen3, GPT-NeoX, and so the default preset); any other is refused. onnx: model.onnx for any batch and length. A run of
the tasks multilabel, tag, answer and regress and a recurrent model (an LSTM) cannot be exported.

Example:
  qkv export runs/my-1 --out my-model
  qkv export runs/my-1 --out my-model --weights last
  qkv export runs/my-1 --format gguf --out my-model.gguf
  qkv export runs/my-1 --format onnx --out my-onnx
"""

import argparse

from qkv.commands.arguments import add_json, add_run, add_weights, one_of, option
from qkv.commands.printing import screen


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    option(parser, "--out PATH", "the folder to make; for gguf the file", required=True)
    formats, said = one_of("huggingface", "gguf", "onnx"), "huggingface (default), gguf or onnx"
    parser.add_argument("--format", type=formats, default="huggingface", help=said)
    add_weights(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    from pathlib import Path

    from qkv import api

    loaded = api.load(args.run, weights=args.weights)
    fit = loaded.export(args.out, format=args.format)
    out = Path(args.out)
    files = sorted(path.name for path in out.iterdir()) if out.is_dir() else [out.name]
    if args.json:
        about = {
            "run": str(loaded.path),
            "format": args.format,
            "file" if args.format == "gguf" else "folder": args.out,
        }
        about |= {"family": fit.family.name if fit.family else None, "why_not": fit.why_not}
        return screen.print_json(about | {"notes": list(fit.notes), "files": files})
    if args.format == "onnx":
        print(f"{out} takes any batch and length: onnxruntime.InferenceSession('{out}/model.onnx')")
    elif fit.family is not None:
        title, loader = fit.family.title, f"{fit.auto}.from_pretrained({args.out!r})"
        print(f"{out} is a {title}" + (" for llama.cpp, in float32" if args.format == "gguf" else f": {loader}"))
    else:
        print(f"No class of transformers has this layout: {fit.why_not}.")
        print(f"modeling_qkv.py is next to the weights; {fit.auto} loads it with trust_remote_code=True.")
    for line in fit.notes:
        print(line)
    if args.format != "gguf":
        print("Files: " + ", ".join(files))
