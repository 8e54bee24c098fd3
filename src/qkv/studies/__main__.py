"""A worker of a study, started by `qkv.studies.workers`: trials on stdin, rows on stdout."""

from qkv.studies.workers import serve

if __name__ == "__main__":
    serve()
