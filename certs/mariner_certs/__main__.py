"""``python -m mariner_certs``: the same as ``mariner certs``."""

from mariner_certs.cli import certs

if __name__ == "__main__":
    certs(prog_name="mariner_certs")
