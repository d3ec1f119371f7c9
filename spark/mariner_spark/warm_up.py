"""``python -m mariner_spark.warm_up``: create the class cache, so that sessions start quickly.

Needed once per Java and version of Spark. It takes about half a minute, and up to 200 MB in the
user's cache folder (``java.cache_folder``). Without a fitting cache, sessions only start more
slowly.
"""

import subprocess
import sys
from pathlib import Path

import click

from mariner_spark import java, limits, session
from mariner_spark.errors import JavaError


def warm_up() -> Path:
    """Create the class cache of the Java that :func:`session.get_session` would use.

    This runs in a subprocess, whose Java writes the cache when it exits.

    Returns:
        Path of the cache.

    Raises:
        JavaError: there is no Java, or it could not create the cache.
    """
    path = java.class_cache(java.find_java(), session.SHORT_WORK_OPTIONS)
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    command = [sys.executable, "-m", "mariner_spark.warm_up", "--train", str(partial)]
    try:
        subprocess.run(  # noqa: S603  # ourselves
            command, check=True, timeout=limits.WARM_UP_TIMEOUT_S, stdout=subprocess.DEVNULL
        )
    except subprocess.SubprocessError as e:
        partial.unlink(missing_ok=True)
        raise JavaError(f"{path}: the class cache was not made: {e}") from e
    if not partial.exists():
        raise JavaError(f"{path}: Java did not write the class cache")
    partial.replace(path)
    return path


def _train(path: Path) -> None:
    """Run typical first queries, and wait until Java has written their classes."""
    spark = session.make_local("local[2]", True, {}, path)
    try:
        frame = spark.range(1_000).selectExpr("id % 10 AS k", "string(id) AS v")
        frame.groupBy("k").count().orderBy("k").collect()
        frame.selectExpr("count(DISTINCT v)", "max(k)").collect()
    finally:
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        spark.stop()
        gateway.proc.stdin.close()  # makes Java exit
        gateway.proc.wait(limits.WARM_UP_TIMEOUT_S)


@click.command()
@click.option("--train", type=click.Path(path_type=Path), hidden=True)
def main(train: Path | None) -> None:
    """Make the class cache, so that sessions of Spark start quickly."""
    if train is not None:
        _train(train)
        return
    path = warm_up()
    click.echo(f"{path}: {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main(prog_name="python -m mariner_spark.warm_up")
