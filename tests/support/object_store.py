"""An object store that speaks S3, with a bucket: moto's server."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

_SERVER = """
import threading

from moto.s3.responses import S3Response
from moto.server import main

# it looks whether there is an object, and then puts it: of two at once, both would succeed
one_at_a_time, put_object = threading.Lock(), S3Response.put_object

def put_alone(self):
    with one_at_a_time:
        return put_object(self)

S3Response.put_object = put_alone
main()
"""
_READY = re.compile(rb"Running on (http://127\.0\.0\.1:\d+)")


@contextlib.contextmanager
def object_store(directory: Path) -> Iterator[str]:
    """Run it; this process, and those that it starts, find it by the environment.

    Args:
        directory: for the output.

    Yields:
        The URL of an empty bucket.
    """
    log = directory / "object-store.log"
    command = [sys.executable, "-c", _SERVER, "-H", "127.0.0.1", "-p", "0"]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        while (ready := _READY.search(log.read_bytes())) is None:
            assert server.poll() is None, log.read_text()
        endpoint = ready[1].decode()
        variables = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret-of-s3",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            urlopen(Request(f"{endpoint}/bucket", method="PUT")).close()  # noqa: S310
            yield "s3://bucket"
    finally:
        server.terminate()
        server.wait()
