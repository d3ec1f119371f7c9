"""Records that are as long as anybody wants to read."""

import logging
import sys
from typing import Any

import pytest

from eventer_bridge import limits as core_limits
from mariner import limits
from mariner.gateway.logs.records import shorten

HUGE = "x" * 10_000_000
N = core_limits.MAX_LOG_CHARACTERS


def record(msg: Any, *args: Any, **extra: Any) -> logging.LogRecord:
    logger = logging.getLogger("a")
    return logger.makeRecord("a", logging.INFO, "file.py", 1, msg, args, None, extra=extra)


@pytest.mark.parametrize("made", [record(HUGE), record("%s of %d", HUGE, 3), record({"a": HUGE})])
def test_a_message_is_cut(made: logging.LogRecord) -> None:
    short = shorten(made)
    text = short.msg["a"] if isinstance(short.msg, dict) else short.getMessage()
    assert len(text) == N
    assert text.endswith("…")
    assert made.msg in (HUGE, "%s of %d", {"a": HUGE})  # others may have it, too


def test_what_comes_with_it_is_cut() -> None:
    short = shorten(
        record(
            "a",
            text=HUGE,
            short="é",
            number=5,
            nothing=None,
            yes=True,
            deep={HUGE: [HUGE] * 1_000},
            other=ValueError(HUGE),
        )
    )
    found = vars(short)
    assert [found[i] for i in ("short", "number", "nothing", "yes")] == ["é", 5, None, True]
    assert len(found["text"]) == len(found["other"]) == N
    [(key, value)] = found["deep"].items()
    assert len(key) == N
    assert [len(i) for i in value] == [N] * limits.MAX_LOG_ITEMS


def recursive(n: int) -> None:
    if n == 0:
        raise ValueError(HUGE)
    # two functions that call each other: Python tells of repeated lines once
    recursive_too(n)


def recursive_too(n: int) -> None:
    recursive(n - 1)


def test_a_traceback_is_cut_in_its_middle_and_lets_go_of_its_frames() -> None:
    made = record("failed")
    try:
        recursive(100)
    except ValueError:
        made.exc_info = sys.exc_info()
    short = shorten(made)
    assert short.exc_info is None
    text = short.exc_text or ""
    assert len(text) < N * (limits.MAX_LOG_ITEMS + 1)
    assert text.startswith("Traceback (most recent call last):")
    assert "test_a_traceback_is_cut" in text
    assert "raise ValueError(HUGE)" in text
    assert "\nValueError: xxx" in text


def test_a_mistake_of_who_logs_is_a_line() -> None:
    assert shorten(record("%d", "a")).getMessage().startswith("%d (%d format: a")


def test_what_has_standard_formats_stays() -> None:
    short = shorten(record("%s|%s", 1, "b", peer="p"))
    line = logging.Formatter("%(levelname)s %(name)s %(lineno)d %(message)s %(peer)s").format(short)
    assert line == "INFO a 1 1|b p"
