"""A worker of a study, started by `qkv.studies.workers`: trials on stdin, rows on stdout."""

from qkv.studies.worker import serve

if __name__ == "__main__":
    serve()
