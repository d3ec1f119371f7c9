"""The Spark session: an existing one, or a local one that needs only pip.

An existing session is used if one is active, if ``spark-submit`` runs the program, or if
``SPARK_REMOTE`` names a Spark Connect server. A local one is quiet, has no web interface, listens
on the loopback only, uses UTC, and is configured for short work: see :func:`get_session`.

Runs in the driver.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from mariner_spark import java
from mariner_spark.source import register

LOOPBACK: Final = "127.0.0.1"

SHORT_WORK_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
)
"""Options of Java: the C1 compiler only, and the serial garbage collector. The code cache is as
large as with both compilers; with the 48 MB that Java has with one, a session of some hundred
queries keeps recompiling evicted code (11 % of its time)."""

_LOG_CONFIGURATION: Final = Path(__file__).parent / "log4j2.properties"

_CONFIGURATION: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    # recording where in Python a column was created costs five more Java calls per column
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    # JSON payloads may have the same key twice (`values`)
    "spark.sql.variant.allowDuplicateKeys": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


_SHORT_WORK: Final[Mapping[str, str]] = {
    # planning again after each stage costs more than it saves
    "spark.sql.adaptive.enabled": "false",
}


def get_session(
    *,
    master: str = "local[*]",
    is_short: bool = True,
    configuration: Mapping[str, str] | None = None,
) -> SparkSession:
    """Get a session with the data source ``mariner``.

    Args:
        master: master of a local session.
        is_short: start quickly and compile little, for reports and tests. False is for work of
            minutes and more, which Java's full compiler makes faster.
        configuration: properties of a local session, which override the defaults.

    Returns:
        A session. Call ``stop()`` on a local one when done.

    Raises:
        JavaError: there is no Java for a local session.
        SparkHomeError: ``SPARK_HOME`` names no Spark, or one of another version.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return register(active)
    if "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ:
        return register(SparkSession.builder.getOrCreate())
    return register(make_local(master, is_short, dict(configuration or {}), None))


def make_local(
    master: str, is_short: bool, configuration: dict[str, str], class_cache: Path | None
) -> SparkSession:
    """Create a local session; with ``class_cache``, Java writes that file when it exits."""
    found = java.find_java()
    options = SHORT_WORK_OPTIONS if is_short else ""
    if class_cache is not None:
        cache_options = java.class_cache_creation_options(found, class_cache)
    else:
        cache_options = java.class_cache_options(found, options) if is_short else ""
    given = configuration.pop("spark.driver.extraJavaOptions", "")
    log_options = f'"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}"'
    all_options = f"-XX:+ExitOnOutOfMemoryError {log_options} {options} {cache_options} {given}"
    builder = SparkSession.builder.master(master).appName("mariner")
    defaults = {**_CONFIGURATION, **_SHORT_WORK} if is_short else _CONFIGURATION
    for key, value in {**defaults, **configuration}.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.driver.extraJavaOptions", all_options.strip())
    environment = {
        "JAVA_HOME": str(java.make_home(found)),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "SPARK_HOME": str(java.spark_home()),
        "SPARK_LOCAL_IP": LOOPBACK,
    }
    # pyspark imports this when Java has started, and it pandas where that is installed: 0.2 s
    threading.Thread(target=import_module, args=("pyspark.testing.utils",), daemon=True).start()
    with _environment(environment):
        return builder.getOrCreate()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started in the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
