"""Pictures that a person looks at: one set of ES modules (`static/`) for every host, fed by versioned payloads.

payloads, packed    what a view is given, and its one safe way into a page
collect, maps, rows, weights, heads, looking, answers, origins, verdict, command
                    from a run folder to a payload, one section each
bundle, page        the modules, libraries and style as one offline file
report              `write_report`, the file that `qkv report` writes
"""
