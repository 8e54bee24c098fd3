"""Check a student's own attention and its backward pass against torch.

qkv learn check FILE runs FILE (Python, or a notebook) in a process of its own with a time limit, calls its functions
attention and attention_backward on eight cases, and compares them with torch in float64. A mistake that is known is
named, with what to look at. Exit status: 0 right; 1 wrong; 2 the file does not run, or lacks a function.

Example:
  qkv learn check --template my_attention.py
  qkv learn check my_attention.py
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from qkv.commands.arguments import add_json, one_of, positive
from qkv.commands.printing import screen
from qkv.errors import UserError, typed
from qkv.words import many


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("lesson", metavar="LESSON", type=one_of("check"), help="check")
    parser.add_argument("file", nargs="?", metavar="FILE", help="check: the file with attention and attention_backward")
    parser.add_argument("--template", action="store_true", help="check: write FILE, with both functions to fill in")
    parser.add_argument("--seconds", type=positive, default=20.0, metavar="S", help="check: the time limit (20)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Do it, print, and return the exit status."""
    return _check(args)


def _check(args: argparse.Namespace) -> int:
    from qkv.lessons.check import check, write_template

    if args.file is None:
        raise UserError("qkv learn check takes a file; to make one: qkv learn check --template my_attention.py")
    path = Path(args.file)
    if args.template:
        write_template(path)
        print(f"{path} is written. Fill in its two functions, then type: qkv learn check {typed(path)}")
        return 0
    findings, lines = check(path, args.seconds)
    broken = next((one for one in findings if one.state == "broken"), None)
    status = 2 if broken else int(any(one.state == "wrong" for one in findings))
    if args.json:
        screen.print_json({"file": args.file, "right": status == 0, "functions": list(map(asdict, findings))})
        return status
    for one in findings:
        if one.state != "broken":
            print(one.sentence)
    if lines:
        print(f"{path} printed {many(lines, 'line')}, not shown here.")
    if broken:
        raise UserError(broken.sentence)
    return status
