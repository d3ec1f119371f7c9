"""Between those who log and the handlers: nobody waits, and what was not told is told."""

import logging
import threading
from collections.abc import Iterator

import pytest

from mariner import limits
from mariner.gateway.logs.pipeline import Pipeline

SECONDS = 30.0


class Slow(logging.Handler):
    """A handler that waits while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.is_at_work = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def emit(self, record: logging.LogRecord) -> None:
        self.is_at_work.set()
        assert self.may_go_on.wait(SECONDS)
        if record.msg == "broken":
            raise ValueError("a handler that does not handle its errors")
        self.records.append(record)

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def handler() -> Slow:
    return Slow()


@pytest.fixture
def logger(handler: Slow) -> Iterator[logging.Logger]:
    """The logger of all lines of the tests and of the pipeline itself."""
    logger = logging.getLogger("mariner.gateway.logs")
    logger.propagate = False  # pytest's own handlers stay as they are
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield logger
    logger.removeHandler(handler)
    logger.propagate = True


@pytest.fixture
def pipeline(
    logger: logging.Logger, handler: Slow, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pipeline]:
    monkeypatch.setattr(limits, "LOG_WAKE_S", 0.01)
    made = Pipeline()
    yield made
    handler.may_go_on.set()
    assert made.close()


def test_a_handler_that_hangs_holds_up_nobody_and_what_was_dropped_is_told(
    pipeline: Pipeline, logger: logging.Logger, handler: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler.may_go_on.clear()
    logger.debug("not of interest")
    logger.info("first")
    assert handler.is_at_work.wait(SECONDS)
    for n in range(limits.MAX_LOG_QUEUE_LINES + 5):
        record = logger.makeRecord(logger.name, logging.INFO, "f", n, "line", (), None)
        logger.handle(record)  # each from a place of its own
    assert pipeline.n_dropped == 5
    monkeypatch.setattr(limits, "LOG_CLOSE_TIMEOUT_S", 0.05)
    assert not pipeline.close()
    handler.may_go_on.set()
    monkeypatch.setattr(limits, "LOG_CLOSE_TIMEOUT_S", SECONDS)
    assert pipeline.close()
    *lines, told = handler.records
    assert len(lines) == limits.MAX_LOG_QUEUE_LINES + 1
    assert told.getMessage() == "lines dropped: the log is too slow"
    assert vars(told)["lines"] == 5
    assert handler in logger.handlers  # as it was


def test_what_is_left_out_is_told_when_the_flood_is_over(
    pipeline: Pipeline, logger: logging.Logger, handler: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(limits.LOG_ADDRESS_BURST_LINES + 30):
        logger.warning("closing connection", extra={"peer": f"10.0.0.1:{n}"})
    assert not [i for i in handler.lines if i.startswith("lines left out")]
    monkeypatch.setattr(limits, "LOG_SUMMARY_PERIOD_S", 0.01)
    while not (told := [i for i in handler.records if "lines left out" in i.msg]):
        threading.Event().wait(0.01)
    assert vars(told[0])["left_out"] == {"10.0.0.1": 30}
    assert vars(told[0])["lines"] == 30
    assert handler.lines.count("closing connection") == limits.LOG_ADDRESS_BURST_LINES


def test_a_record_counts_once_however_many_handlers_it_has(
    logger: logging.Logger, handler: Slow
) -> None:
    other = Slow()
    logger.addHandler(other)
    pipeline = Pipeline()
    n = limits.LOG_ADDRESS_BURST_LINES
    for _ in range(n + 1):
        logger.warning("closing connection", extra={"peer": "10.0.0.1:1"})
    assert pipeline.close()
    assert handler.lines[:n] == other.lines[:n] == ["closing connection"] * n
    assert pipeline.rate.n_left_out == 1
    assert "_is_admitted" not in vars(handler.records[0])
    logger.removeHandler(other)


def test_a_handler_that_raises_ends_nothing(
    pipeline: Pipeline, logger: logging.Logger, handler: Slow
) -> None:
    logger.warning("broken")
    logger.warning("whole")
    assert pipeline.close()
    assert handler.lines == ["whole", "lines dropped: the log is too slow"]


def test_levels_of_handlers_hold(logger: logging.Logger, handler: Slow) -> None:
    handler.setLevel(logging.ERROR)
    pipeline = Pipeline()
    logger.warning("no")
    logger.error("yes")
    assert pipeline.close()
    assert handler.lines == ["yes"]
