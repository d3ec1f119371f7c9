"""Logs: JSON lines by default, text in a terminal, and whatever the configuration says."""

import io
import json
import logging
import re
import subprocess
import sys

import pytest

from mariner.gateway import logs
from mariner.gateway.logs import lines
from mariner.gateway.logs.records import shorten

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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_text_with_milliseconds_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    handler = logging.StreamHandler(terminal)
    assert logs.DEFAULT["handlers"]["stderr"]["formatter"] in logs.DEFAULT["formatters"]
    handler.setFormatter(lines.of_stderr())
    try:
        raise ValueError("wrong\x1b[31m")
    except ValueError as e:
        record = logging.makeLogRecord(
            {
                "name": "mariner.x",
                "levelname": "ERROR",
                "msg": "failed\n%s",
                "args": ("\x1b[2J",),
                "exc_info": (type(e), e, e.__traceback__),
                "created": 1_714_564_800.0456,
                "msecs": 45.0,
                "peer": "127.0.0.1:5",
                "reason": "a=b \x07",
                "none": None,
                "counts": {"ä": [1, 2.5]},
                "empty": "",
            }
        )
    for written in (record, shorten(record)):
        terminal.truncate(0)
        terminal.seek(0)
        handler.emit(written)
        first, *trace = terminal.getvalue().splitlines()
        assert re.fullmatch(r"2024-05-01 \d\d:\d\d:00\.045 ERROR mariner\.x: .*", first)
        assert first.partition("mariner.x: ")[2] == (
            r"failed\n\x1b[2J peer=127.0.0.1:5"
            r' reason="a=b \u0007" none=null counts={"ä": [1, 2.5]} empty=""'
        )
        assert trace[0] == "Traceback (most recent call last):"
        assert trace[-1] == r"ValueError: wrong\x1b[31m"


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
