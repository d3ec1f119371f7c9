"""The process that Spark forks its workers from (``spark.python.daemon.module``), but silent.

A query that needs no more rows (``show``, ``take``, ``limit``) closes the connection to a worker
that is still writing. That one then ends, and ``pyspark.daemon`` prints a traceback.
"""

import socket

from pyspark import daemon

_work = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """As ``pyspark.daemon.worker``; that nobody reads the rest is a failure without a text."""
    try:
        return int(_work(sock, authenticated))
    except ConnectionError:  # reset, where the worker had not read everything either
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
