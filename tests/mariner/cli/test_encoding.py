"""Paths that the encoding of the terminal lacks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONF = """
type: mariner
name: gateway
mariner: {host: 127.0.0.1, port: 0}
event_core: {server_id: 1, backend: {type: memory}}
clients: []
"""


@pytest.mark.parametrize(
    ("name", "encoding", "shown"),
    [
        (b"caf\xc3\xa9.yaml", "iso8859-5", "caf\\xe9.yaml"),
        (b"caf\xc3\xa9.yaml", "utf-8", "caf\u00e9.yaml"),
        (b"caf\xe9.yaml", "utf-8", "caf\\udce9.yaml"),
    ],
)
def test_a_path_is_shown_as_far_as_it_can_be(
    tmp_path: Path, name: bytes, encoding: str, shown: str
) -> None:
    path = os.fsencode(tmp_path) + b"/" + name
    Path(os.fsdecode(path)).write_text(CONF)
    done = subprocess.run(
        [sys.executable, "-m", "mariner", "check", "--conf", path],
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode(encoding).splitlines()[-1] == f"{tmp_path}/{shown}: ok"
