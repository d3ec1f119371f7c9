"""What tests of the process that a gateway is share."""

import logging
from collections.abc import Iterator

import pytest

from mariner.gateway import logs


@pytest.fixture
def logging_restored() -> Iterator[None]:
    """Logging of this process as it was."""
    root = logging.getLogger()
    handlers, level = tuple(root.handlers), root.level
    yield
    logs.configure(None)
    logs.close()
    audit = logging.getLogger("audit")
    audit.disabled, audit.propagate = False, True
    for logger in (audit, logging.getLogger("mariner"), logging.getLogger("eventer_bridge")):
        logger.setLevel(logging.NOTSET)
    for handler in tuple(root.handlers):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(False)
