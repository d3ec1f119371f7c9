"""Places that a lake can be at: a folder, and an object store that speaks S3."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

_SERVER = "from moto.server import main; main()"
_READY = re.compile(rb"Running on (http://127\.0\.0\.1:\d+)")


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URI of a bucket; this process finds its server by the environment."""
    log = tmp_path_factory.mktemp("s3") / "log"
    command = [sys.executable, "-c", _SERVER, "-H", "127.0.0.1", "-p", "0"]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        while (ready := _READY.search(log.read_bytes())) is None:
            assert server.poll() is None, log.read_text()
        variables = {
            "AWS_ENDPOINT_URL": ready[1].decode(),
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret-of-s3",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            uri = "s3://bucket?allow_bucket_creation=true"
            fs.FileSystem.from_uri(uri)[0].create_dir("bucket")
            yield "s3://bucket"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a lake can be, with a name that is not simple."""
    if request.param == "local":
        return str(tmp_path / "l a{k}e*?#%é")
    bucket: str = request.getfixturevalue("object_store")
    return f"{bucket}/{tmp_path.name}/l a{{k}}e"
