"""Logs: JSON lines by default, and whatever the configuration says."""

import json
import subprocess
import sys

CODE = """
import logging, sys
from mariner.gateway import logs
logs.configure({})
logging.getLogger("mariner.x").debug("not shown")
logging.getLogger("mariner.x").info("shown", extra={{"peer": "p", "count": 3}})
logging.getLogger("other").info("not shown")
logging.getLogger("other").warning("shown too")
"""


def run(log: str) -> list[str]:
    command = [sys.executable, "-c", CODE.format(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stderr.splitlines()


def test_json_lines_by_default() -> None:
    first, second = (json.loads(line) for line in run("None"))
    time = first.pop("time")
    assert time[10] == "T"
    assert first == {
        "level": "INFO",
        "logger": "mariner.x",
        "message": "shown",
        "peer": "p",
        "count": 3,
    }
    assert (second["level"], second["message"]) == ("WARNING", "shown too")


def test_the_configuration_wins() -> None:
    log = {
        "version": 1,
        "formatters": {"f": {"format": "%(levelname)s|%(message)s"}},
        "handlers": {"h": {"class": "logging.StreamHandler", "formatter": "f"}},
        "root": {"level": "INFO", "handlers": ["h"]},
    }
    lines = run(repr(log))
    assert lines == ["INFO|shown", "INFO|not shown", "WARNING|shown too"]


def test_loggers_that_are_there_already_are_not_silenced() -> None:
    code = """
import logging
from mariner.gateway import logs
logger = logging.getLogger("mariner.x")
logs.configure({"version": 1, "handlers": {"h": {"class": "logging.StreamHandler"}},
                "root": {"level": "INFO", "handlers": ["h"]}})
logger.info("shown")
logs.configure(None)
logger.info("shown again")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stderr.splitlines()
    assert first == "shown"
    assert json.loads(second)["message"] == "shown again"


def test_counts_go_on_with_another_configuration() -> None:
    code = """
import logging
from mariner.gateway import logs
logs.configure(None)
for _ in range(2_000):
    logging.getLogger("mariner.x").info("flood")
before = logs.counts()
logs.configure(None)
assert logs.counts() == before, (logs.counts(), before)
assert before.left_out > 1_000
"""
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
