"""A worker of a study, started by `qkv.studies.engine.workers`: trials on stdin, rows on stdout."""

from qkv.studies.engine.worker import serve

if __name__ == "__main__":
    serve()
