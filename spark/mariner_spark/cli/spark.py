"""Commands that work with Spark: the extra they need, their session, what they say when they fail.

Nothing of it is imported before such a command runs: the extra need not be installed, and
takes a second to import.
"""

import contextlib
import logging
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from mariner.cli.run import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, CommandError
from mariner.errors import MarinerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# an error of ours, in the traceback of a Python process that Spark tells of
_OURS: Final = re.compile(
    r"^(?:mariner|mariner_spark|eventer_bridge)\.errors\.\w+: (.+)$", re.MULTILINE
)

_OTHER_SIDE: Final = frozenset(("host, port", "client_name, token"))
"""Options that a gateway did not like."""

_SECRETS: Final = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*@")
_CANCEL_PERIOD_S: Final = 0.2
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def spark_errors() -> Iterator[None]:
    """What goes wrong with Spark becomes an exit code and a line.

    Raises:
        CommandError: something did; also where the extra is not installed.
    """
    try:
        import numpy as np  # noqa: F401, PLC0415  # see the module
        import pyarrow as pa  # noqa: F401, PLC0415
        from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415
        from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415
    except ImportError as e:
        text = f"this needs the extra 'spark': pip install 'mariner-gateway[spark]' ({e})"
        raise CommandError(text, EXIT_USAGE) from None

    from mariner_spark.errors import (  # noqa: PLC0415
        MarinerSparkError,
        NoLakeError,
        OptionError,
    )

    # what goes wrong is told here, once
    logging.basicConfig(handlers=[logging.NullHandler()])
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError("", EXIT_INTERRUPTED) from None
    except OptionError as e:
        raise CommandError(
            without_secrets(str(e)), EXIT_FAILED if e.option in _OTHER_SIDE else EXIT_USAGE
        ) from e
    except NoLakeError as e:
        raise CommandError(without_secrets(str(e)), EXIT_USAGE) from e
    except (MarinerSparkError, MarinerError) as e:
        raise CommandError(without_secrets(str(e)), EXIT_FAILED) from e
    except PySparkException as e:
        told = without_secrets(reason(str(e)))
        is_usage = isinstance(e, AnalysisException) and told.partition(":")[0] not in _OTHER_SIDE
        raise CommandError(told, EXIT_USAGE if is_usage else EXIT_FAILED) from e
    except Py4JJavaError as e:
        text = str(e)  # a line about the call, and then what happened
        raise CommandError(reason(text.partition("\n: ")[2] or text), EXIT_FAILED) from e
    except (Py4JError, ConnectionError, EOFError) as e:
        raise CommandError(
            "Java ended while Spark worked. If it was out of memory (1 GB, unless told), give it"
            " more: SPARK_DRIVER_MEMORY=4g",
            EXIT_FAILED,
        ) from e


@contextlib.contextmanager
def spark_session() -> Iterator[tuple["SparkSession", Callable[[], None]]]:
    """The session of a command; one that was not there before is quiet, and stopped at the end.

    SIGINT and SIGTERM cancel what Spark does, and then end the command: Spark does not take it
    well if it is left in the middle of something. The second one ends it at once.

    Yields:
        The session, and what to call between two steps: it raises KeyboardInterrupt after a
        signal.

    Raises:
        KeyboardInterrupt: there was a signal.
        JavaError: there is no Java.
    """
    from pyspark import SparkContext  # noqa: PLC0415  # others need not import it
    from pyspark.sql import SparkSession  # noqa: PLC0415

    import mariner_spark  # noqa: PLC0415

    # an active session is one of this thread, a context is one of the process
    is_ours = SparkContext._active_spark_context is None and SparkSession.getActiveSession() is None
    interrupted, ended = threading.Event(), threading.Event()
    with _handled(signal.default_int_handler):
        spark = mariner_spark.get_session()

    def cancel() -> None:
        while not ended.wait(_CANCEL_PERIOD_S):
            with contextlib.suppress(Exception):  # Java may have got the signal as well
                spark.interruptAll()

    def on_signal(*_: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()
        threading.Thread(target=cancel, daemon=True).start()

    def check() -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt

    try:
        if is_ours:
            _silence(spark)
        with _handled(on_signal):
            yield spark, check
    except Exception:
        check()
        raise
    finally:
        ended.set()
        if is_ours:
            _stop(spark)


@contextlib.contextmanager
def _handled(handler: Callable[..., Any]) -> Iterator[None]:
    """Handle signals meanwhile; only the main thread of a process can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _silence(spark: "SparkSession") -> None:
    """Keep Spark from telling what goes wrong: the command does."""
    from pyspark.errors import PySparkAttributeError  # noqa: PLC0415

    with contextlib.suppress(PySparkAttributeError):  # Spark Connect has none
        context = spark.sparkContext
        context.setLogLevel("OFF")
        # prints a traceback when Java is gone
        context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]


def _stop(spark: "SparkSession") -> None:
    """Stop a session, whose Java may be gone: that is told by what failed before."""
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        spark.stop()


def without_secrets(text: str) -> str:
    """Text without what precedes the bucket in ``s3://key:secret@bucket/lake``."""
    return _SECRETS.sub("", text)


def reason(text: str) -> str:
    """What a text of Spark says: the error of ours in it, or else its first line."""
    found = _OURS.findall(text)
    return str(found[-1]) if found else text.strip().partition("\n")[0]
