"""``python -m mariner_spark.warm_up``: make the class cache, so that sessions start quickly.

Done once for a Java and a version of Spark. It takes about half a minute and up to 200 MB in
the user's cache folder (``java.cache_folder``). A session whose Java finds no cache that fits
starts without; the only difference is the time.
"""

import subprocess
import sys
from pathlib import Path

import click

from mariner_spark import java, limits, session
from mariner_spark.errors import JavaError


def warm_up() -> Path:
    """Make the class cache of the Java that :func:`session.get_session` would use.

    The work is done in a process of its own, whose Java writes the cache when it ends.

    Returns:
        The cache.

    Raises:
        JavaError: there is no Java, or it could not make the cache.
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
    """Do what sessions do first, and wait until Java has written the classes that took."""
    spark = session.make_local("local[2]", True, {}, path)
    try:
        frame = spark.range(1_000).selectExpr("id % 10 AS k", "string(id) AS v")
        frame.groupBy("k").count().orderBy("k").collect()
        frame.selectExpr("count(DISTINCT v)", "max(k)").collect()
    finally:
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        spark.stop()
        gateway.proc.stdin.close()  # Java ends by it
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
