"""The commands of Spark (``mariner lake``, ``mariner report``): their session, and their errors.

Spark is imported only when such a command runs: the extra is optional, and takes a second to
import.
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
from mariner_spark.limits import CANCEL_PERIOD_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# one of our errors, in the traceback of a Python process in an error of Spark
_OWN_ERROR: Final = re.compile(
    r"^(?:mariner|mariner_spark|eventer_bridge)\.errors\.\w+: (.+)$", re.MULTILINE
)

_GATEWAY_ERRORS: Final = frozenset(("host, port", "client_name, token"))
"""Options in the errors of a gateway that refused this client or is unavailable."""

_STORE_OPTION: Final = re.compile(r"^path(?=: )")
"""Option of a store in errors of the data source; on the command line it is ``--store``."""

_SECRETS: Final = re.compile(r"(?<=://)[^/@:\s]*:(?:[^/\s]*@|(?![0-9]+/)[^@\s]*@)")
"""A secret may have a slash; a host with a port is none."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def spark_errors() -> Iterator[None]:
    """Convert errors of Spark and DuckDB to an exit code and a line: raises CommandError."""
    try:
        import duckdb  # noqa: PLC0415  # see the module
        import numpy as np  # noqa: F401, PLC0415
        import pyarrow as pa  # noqa: F401, PLC0415
        from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415
        from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415
    except ImportError as e:
        text = f"this needs the extra 'spark': pip install 'mariner-gateway[spark]' ({e})"
        raise CommandError(text, EXIT_USAGE) from None

    from mariner_spark import errors  # noqa: PLC0415

    # errors are reported here, once
    logging.basicConfig(handlers=[logging.NullHandler()])
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError("", EXIT_INTERRUPTED) from None
    except errors.OptionError as e:
        code = EXIT_FAILED if e.option in _GATEWAY_ERRORS else EXIT_USAGE
        raise _error(_STORE_OPTION.sub("--store", str(e)), code) from e
    except errors.NoLakeError as e:
        raise _error(str(e), EXIT_USAGE) from e
    except (errors.MarinerSparkError, MarinerError) as e:
        raise _error(str(e)) from e
    except duckdb.Error as e:
        raise _error(f"DuckDB: {reason(str(e))}") from e
    except PySparkException as e:
        text = reason(str(e))
        is_of_gateway = text.partition(":")[0] in _GATEWAY_ERRORS
        is_usage = isinstance(e, AnalysisException) and not is_of_gateway
        code = EXIT_USAGE if is_usage else EXIT_FAILED
        raise _error(_STORE_OPTION.sub("--store", text), code) from e
    except Py4JJavaError as e:
        text = str(e)  # a line about the call, and then what happened
        raise _error(reason(text.partition("\n: ")[2] or text)) from e
    except (Py4JError, ConnectionError, EOFError) as e:
        raise _error(
            "Java ended while Spark was working. If it ran out of memory (1 GB by default), give"
            " it more: SPARK_DRIVER_MEMORY=4g"
        ) from e


def _error(text: str, code: int = EXIT_FAILED) -> CommandError:
    return CommandError(without_secrets(text), code)


@contextlib.contextmanager
def spark_session() -> Iterator[tuple["SparkSession", Callable[[], None]]]:
    """The session of a command; a new one is quiet, and stopped at the end. Raises JavaError.

    SIGINT and SIGTERM cancel the jobs of Spark, and then end the command by KeyboardInterrupt: to
    interrupt Spark itself leaves it in a bad state. A second signal ends the command at once. The
    check that is yielded is to be called between two steps; it raises after a signal.
    """
    from pyspark import SparkContext  # noqa: PLC0415  # others need not import it
    from pyspark.sql import SparkSession  # noqa: PLC0415

    import mariner_spark  # noqa: PLC0415

    # a session is active per thread, a context per process
    is_ours = SparkContext._active_spark_context is None and SparkSession.getActiveSession() is None
    interrupted, ended = threading.Event(), threading.Event()
    with interruptible():
        spark = mariner_spark.get_session()

    def cancel() -> None:
        while not ended.wait(CANCEL_PERIOD_S):
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
        if is_ours:  # errors are ignored, because Java may have exited already
            with warnings.catch_warnings(), contextlib.suppress(Exception):
                warnings.simplefilter("ignore")
                spark.stop()


def interruptible() -> contextlib.AbstractContextManager[None]:
    """Have SIGINT and SIGTERM raise KeyboardInterrupt in the block."""
    return _handled(signal.default_int_handler)


@contextlib.contextmanager
def _handled(handler: Callable[..., Any]) -> Iterator[None]:
    """Set signal handlers for the block; only the main thread can."""
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
    """Keep Spark from logging errors: the command reports them."""
    from pyspark.errors import PySparkAttributeError  # noqa: PLC0415

    with contextlib.suppress(PySparkAttributeError):  # Spark Connect has none
        context = spark.sparkContext
        context.setLogLevel("OFF")
        # prints a traceback when Java is gone
        context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]


def without_secrets(text: str) -> str:
    """Text without the credentials in ``s3://key:secret@bucket/lake``."""
    return _SECRETS.sub("", text)


def reason(text: str) -> str:
    """The reason in an error text of Spark: our own error in it, or else its first line."""
    found = _OWN_ERROR.findall(text)
    return str(found[-1]) if found else text.strip().partition("\n")[0]
