"""The Spark session: a given one as it is, otherwise one on this machine that needs only pip.

A session is *given* when one is active already, when ``spark-submit`` runs the program, or
when ``SPARK_REMOTE`` names a Spark Connect server. A local one is quiet, has no web interface,
listens on the loopback only, counts time in UTC, and is made for short work: see
:func:`get_session`.

Belongs to the driver.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from mariner_spark import java
from mariner_spark.source import register

LOOPBACK: Final = "127.0.0.1"

SHORT_WORK_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
)
"""Options of Java: the quick compiler only, and one thread for garbage. The room for what it
compiled is what Java has with both compilers; with the 48 MB that it has with one, a session
of some hundred queries compiles again and again what it threw away (11 % of its time)."""

_LOG_CONFIGURATION: Final = Path(__file__).parent / "log4j2.properties"

_CONFIGURATION: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    # where in Python a column was made costs five more calls of Java for each one
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    # JSON may have a key twice, and payloads do (`values`)
    "spark.sql.variant.allowDuplicateKeys": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def get_session(
    *,
    master: str = "local[*]",
    is_short: bool = True,
    configuration: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session to work with; the data source ``mariner`` is registered in it.

    Args:
        master: master of a local session.
        is_short: start quickly and compile little, which suits reports and tests. False is
            for work of minutes and more, which Java's full compiler makes faster.
        configuration: properties of a local session, over ours.

    Returns:
        A session. ``stop()`` it when done, if it is a local one.

    Raises:
        JavaError: there is no Java for a local session.
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
    """A local session; with ``class_cache`` its Java writes that file when it ends."""
    found = java.find_java()
    options = SHORT_WORK_OPTIONS if is_short else ""
    if class_cache is not None:
        cache_options = java.class_cache_making_options(found, class_cache)
    else:
        cache_options = java.class_cache_options(found, options) if is_short else ""
    given = configuration.pop("spark.driver.extraJavaOptions", "")
    log_options = f'"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}"'
    all_options = f"-XX:+ExitOnOutOfMemoryError {log_options} {options} {cache_options} {given}"
    builder = SparkSession.builder.master(master).appName("mariner")
    for key, value in {**_CONFIGURATION, **configuration}.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.driver.extraJavaOptions", all_options.strip())
    environment = {
        "JAVA_HOME": str(java.make_home(found)),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "SPARK_HOME": os.environ.get("SPARK_HOME") or str(java.make_spark_home()),
        "SPARK_LOCAL_IP": LOOPBACK,
    }
    with _environment(environment):
        return builder.getOrCreate()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for what is started meanwhile."""
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
