"""``python -m mariner_spark.warm_up``: create the class cache, so that sessions start quickly.

Needed once per Java and version of Spark. It makes reports of a small store and of a lake, so that
the cache has what reports need; with all of them it took longer, and reports started no faster.
Then Java writes the cache, which takes as long again: up to 250 MB in the user's cache folder
(``session.cache_folder``). Without a fitting cache, sessions only start more slowly.
"""

import asyncio
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click
from rich.console import Console

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

_REPORTS: Final = ("values", "gaps")

_STEP: Final = "step: "
"""What lines of the subprocess begin with that name its steps; Java says other things."""


def warm_up(on_step: Callable[[str], None] = lambda _step: None) -> Path:
    """Create the class cache of the Java that ``get_session`` would use; raises JavaError.

    This runs in a subprocess, whose Java writes the cache when it exits. ``on_step`` is called at
    the begin of each step, with its name.
    """
    path = session.class_cache(session.find_java(), session.SHORT_WORK_OPTIONS)
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    command = [sys.executable, "-m", "mariner_spark.warm_up", "--train", str(partial)]
    try:
        code, said = _run(command, on_step)
        if code == -signal.SIGKILL:
            said = f"it was killed, or took longer than {limits.WARM_UP_TIMEOUT_S:.0f} s"
        if code != 0 or not partial.exists():
            raise JavaError(f"{path}: the class cache was not made: {said}")
        partial.replace(path)
    finally:
        for file in path.parent.glob(f"{partial.name}*"):  # also what Java notes for itself
            file.unlink()
    return path


def _run(command: Sequence[str], on_step: Callable[[str], None]) -> tuple[int, str]:
    """Run the subprocess to its end: its exit code, and the last line that it or its Java said."""
    said = ""
    with subprocess.Popen(  # noqa: S603  # ourselves
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        timer = threading.Timer(limits.WARM_UP_TIMEOUT_S, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            for line in map(str.strip, process.stdout):
                if line.startswith(_STEP):
                    on_step(line.removeprefix(_STEP))
                else:
                    said = line or said
        finally:
            timer.cancel()
    return process.returncode, said


def _train(path: Path) -> None:
    """Make reports, and wait until Java has written their classes."""
    with tempfile.TemporaryDirectory(prefix="mariner-warm-up-") as name:
        folder = Path(name)
        asyncio.run(_fill(folder / "store"))
        ingest_store(str(folder / "lake"), folder / "store")
        _tell("starting Spark")
        spark = register(session.make_local("local[2]", True, {}, path))
        try:
            for kind in ("store", "lake"):
                _tell(f"making reports of a {kind}")
                job = ReportJob({kind: str(folder / kind)}, "warm-up", folder / "report", _REPORTS)
                generate(SparkSource(spark), job, lambda _step, _n_steps: None)
        finally:
            _tell("writing the classes")
            gateway = spark.sparkContext._gateway
            assert gateway is not None
            spark.stop()
            gateway.proc.stdin.close()  # makes Java exit
            gateway.proc.wait(limits.WARM_UP_TIMEOUT_S)


def _tell(step: str) -> None:
    print(f"{_STEP}{step}", flush=True)


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
    with Console(stderr=True).status("") as status:
        path = warm_up(status.update)
    click.echo(f"{path}: {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main(prog_name="python -m mariner_spark.warm_up")
