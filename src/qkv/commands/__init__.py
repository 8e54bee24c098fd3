"""One module per command: `configure(parser)` declares its options, `run(args)` calls the library, prints and
gives the exit status, where that may be another than 0.

A command knows nothing that the library does not offer to Python too; it parses, calls and prints. No module here loads
torch when it is imported, so that help and mistakes are answered at once: the library is imported inside `run`.
A new command is a module of that name and one line in `COMMANDS`.
"""

COMMANDS: dict[str, str] = {
    "train": "train a model on a text and write a run folder",
    "predict": "continue texts, fill [MASK] in them, or label them",
    "probe": "linear probes by layer for labels of words or texts, with a control task",
    "eval": "validation loss of a run, on its own text or another",
    "embed": "contextual vectors of texts, by layer",
    "vectors": "static word vectors: train them by skip-gram, or ask what they know of words",
    "step": "one step of gradient descent on one text: what would move, and what it would buy",
    "show": "what training did: the reading, matrices, tokens, attention",
    "runs": "list the runs in a folder: settings that differ, loss, steps",
    "compare": "what differs between runs, matrix by matrix",
    "study": "answer a question by experiment, with statistics",
    "trial": "keep, discard or undecided: is one training better than another, by a test with an error rate",
    "verify": "check a run folder: hashes, continuity, and its training made again bit for bit",
    "report": "write the self-contained HTML report of a run",
    "import": "read a Hugging Face folder, or all checkpoints of a training, into a run folder",
    "export": "write a run as a Hugging Face folder, a GGUF or an ONNX file",
    "view": "show a run, or all in a folder, as a live page that follows training",
    "learn": "what is trained in self-attention: a page, six lessons, and a checker for your own attention",
    "plan": "memory and time of a training before it starts",
    "bench": "our benchmarks on this machine, side by side with the peers that are installed",
    "doctor": "versions, threads, precision, devices, and what is missing for what",
    "schema": "the JSON Schema of what a command prints with --json",
    "completion": "a script that completes commands and options in bash, zsh or fish",
}
"""Name of each command -> what it does, in a line; the order is that of `qkv --help`."""
