"""Answer "What is trained in self-attention?" on a page, teach it in six lessons, and check a student's code.

qkv learn writes the page, with the lessons in it, and opens it; it works offline. LESSON opens it at that lesson:
trained (which of x, W and q is trained), scores (q . k term by term), induction (a head that looks back), contextual
(static versus contextual), identity (W = I) or size (what changes with size). --text gives the lesson on the terminal.

qkv learn check FILE runs FILE (Python, or a notebook) in a process of its own with a time limit, calls its functions
attention and attention_backward on eight cases, and compares them with torch in float64. A typical mistake is named,
with what to look at. Exit status: 0 right; 1 wrong; 2 the file does not run, or lacks a function.

Example:
  qkv learn
  qkv learn scores
  qkv learn scores --text
  qkv learn --run runs/my-1
  qkv learn check --template my_attention.py
  qkv learn check my_attention.py
"""

import argparse
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

from qkv.commands.arguments import a_run, add_json, one_of, option, positive
from qkv.commands.printing import screen
from qkv.errors import UserError, typed
from qkv.lessons import LESSONS
from qkv.words import many

_OF = {"text": "prints lessons"} | dict.fromkeys(("run", "out"), "writes the page")
_OF |= dict.fromkeys(("template", "seconds"), "checks a file")
"""Option -> what the command does where it has an effect."""


def configure(parser: argparse.ArgumentParser) -> None:
    option(parser, "lesson LESSON", "a lesson, or check", one_of(*LESSONS, "check"), nargs="?")
    option(parser, "file FILE", "check: the file with attention and attention_backward", nargs="?")
    option(parser, "--text", "print the lesson instead of opening the page")
    option(parser, "--out PATH", "where to write the page (learn.html)")
    option(parser, "--run RUN", "show a small run of yours on the page, without lessons", a_run)
    option(parser, "--template", "check: write FILE, with both functions to fill in")
    option(parser, "--seconds S", "check: the time limit (20)", positive)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.lesson != "check" and args.file is not None:
        raise UserError(f"{args.file!r} is one argument too many; a file is given to: qkv learn check")
    if args.lesson not in (None, "check") and args.run:
        raise UserError("lessons use the model that comes with qkv; leave out LESSON or --run")
    does = _OF["template" if args.lesson == "check" else "text" if args.text or args.json else "out"]
    for name, of in _OF.items():
        if getattr(args, name) and of != does:
            raise UserError(f"--{name} has no effect where qkv learn {does}; leave it out")
    if does != _OF["out"]:
        return _print(args) if does == _OF["text"] else _check(args)
    from qkv.lessons.course import write_page
    from qkv.views.browser import open_browser

    path = Path(args.out or "learn.html")
    write_page(path, None if args.run is None else Path(args.run))
    lessons = "" if args.run else f"; lessons: {', '.join(LESSONS)}"
    print(f"{path}  (open it in a browser{lessons})")
    open_browser(path.resolve().as_uri() + (f"#lesson={args.lesson}" if args.lesson else ""))
    return 0


def _print(args: argparse.Namespace) -> int:
    """A lesson on the terminal, pausing before each answer where somebody sits there; without a name, all titles."""
    from qkv.lessons.course import lesson, lines

    names = [args.lesson] if args.lesson else LESSONS
    if args.json:
        screen.print_json({"lessons": [asdict(lesson(name)) for name in names]})
    elif not args.lesson:
        for name in names:
            one = lesson(name)
            print(f"{name:<11} {one.title} ({one.minutes} minutes)")
    else:
        pauses = sys.stdin.isatty() and sys.stdout.isatty()
        try:
            for line in lines(args.lesson, (lambda: input("   (Enter shows the answer) ")) if pauses else lambda: None):
                print(textwrap.fill(line, 100, subsequent_indent="   "))
        except EOFError:  # Ctrl-D: enough of it
            print()
    return 0


def _check(args: argparse.Namespace) -> int:
    from qkv.lessons.check import check, write_template

    if args.file is None:
        raise UserError("qkv learn check takes a file; to make one: qkv learn check --template my_attention.py")
    path = Path(args.file)
    if args.template:
        write_template(path)
        print(f"{path} is written. Fill in its two functions, then type: qkv learn check {typed(path)}")
        return 0
    findings, lines = check(path, args.seconds or 20.0)
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
