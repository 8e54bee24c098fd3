"""Pictures that a person looks at: one set of ES modules (`static/`) for every host, fed by versioned payloads.

sections/     one module per section of a page: its payload, which is a versioned dataclass, and its reader, which gives
              None for what a run does not have; nothing is estimated or filled in (what is missing is shown as a dash)
report/       the page of a run: which sections it has, the arrays' one safe way into it, modules and style as one
              offline file, and `write_report`, the file that `qkv report` writes
live/         the same over HTTP, with Python behind it; `host` says who shows a payload, and what can be asked there
study/        the page of a study
static/       the modules of every page; `play/` those of the playground
"""
