"""Certificates for tests, made by our own tool."""

from pathlib import Path
from typing import NamedTuple

from mariner_certs import development


class Certificates(NamedTuple):
    """Files of a CA, a server on this machine and a client named ``development``."""

    ca: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path


def make_certificates(directory: Path) -> Certificates:
    """Make them in a directory of their own."""
    development.ensure(directory)
    names = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
    return Certificates(*(directory / name for name in names))
