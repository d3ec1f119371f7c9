"""``python -m mariner_spark.warm_up``: create the class cache, so that sessions start quickly.

Needed once per Java and version of Spark. It makes all reports of a small store and lake, so that
the cache has what reports need. It takes about a minute, and up to 250 MB in the user's cache
folder (``session.cache_folder``). Without a fitting cache, sessions only start more slowly.
"""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from eventer_bridge.backends import rocksdb
from eventer_bridge.core import engine
from eventer_bridge.model import JsonPayload, RegisterEvent, Source, SourceType, Timestamp
from mariner_spark import limits, session
from mariner_spark.errors import JavaError
from mariner_spark.lake.ingest import ingest_store
from mariner_spark.reports.generate import generate
from mariner_spark.reports.job import ReportJob
from mariner_spark.reports.sources import SparkSource
from mariner_spark.source import register


def warm_up() -> Path:
    """Create the class cache of the Java that ``get_session`` would use; raises JavaError.

    This runs in a subprocess, whose Java writes the cache when it exits.
    """
    path = session.class_cache(session.find_java(), session.SHORT_WORK_OPTIONS)
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
    """Make reports, and wait until Java has written their classes."""
    with tempfile.TemporaryDirectory(prefix="mariner-warm-up-") as name:
        folder = Path(name)
        asyncio.run(_fill(folder / "store"))
        ingest_store(str(folder / "lake"), folder / "store")
        spark = register(session.make_local("local[2]", True, {}, path))
        try:
            for source in ({"store": folder / "store"}, {"lake": str(folder / "lake")}):
                job = ReportJob(source, "warm-up", folder / "report")
                generate(SparkSource(spark), job, lambda _step, _n_steps: None)
        finally:
            gateway = spark.sparkContext._gateway
            assert gateway is not None
            spark.stop()
            gateway.proc.stdin.close()  # makes Java exit
            gateway.proc.wait(limits.WARM_UP_TIMEOUT_S)


async def _fill(path: Path) -> None:
    async with await rocksdb.create(path) as backend, await engine.create(backend, 1) as core:
        source = Source(SourceType.MODULE, 1)
        for value in range(20):
            kinds = (("warm", "up", str(i)) for i in range(5))
            payload = JsonPayload.of({"value": value})
            events = [RegisterEvent(kind, Timestamp.now(), payload) for kind in kinds]
            await core.register(source, events).committed


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
