"""A lake in an object store that speaks S3: as on a local path."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs
from pyspark.sql import SparkSession

import mariner_spark
from mariner.cli import main
from mariner_spark.errors import LakeError
from mariner_spark.lake import maintenance
from mariner_spark.lake.ingest import ingest_store
from mariner_spark.lake.maintenance import compact, info
from mariner_spark.lake.tables import Lake
from tests.spark.lake.oracle import check_rollups
from tests.spark.lake.support import append, opened, stored, write
from tests.spark.lake.test_ingest import registering, values
from tests.spark.reports.support import table
from tests.spark.support import fill, plain_events, rows_of
from tests.spark.support import read as rows_by_spark


@pytest.mark.usefixtures("only_users_packages")
def test_writers_at_once_compaction_and_reports(
    spark: SparkSession,
    root: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("DEBUG", "mariner_spark")
    for name, value in os.environ.items():
        if name.startswith("AWS_"):  # the workers have what there was when Java started
            monkeypatch.setitem(spark.sparkContext.environment, name, value)
    parts = [plain_events(20, server=i) for i in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for half in (10, 20):
            list(pool.map(lambda part, n=half: append(root, part[:n]), parts))
    fill(tmp_path / "store", plain_events(200))
    ingest_store(root, tmp_path / "store")
    everything = [*plain_events(200), *(event for part in parts for event in part)]
    expected = rows_of(everything)
    assert stored(root) == expected

    orphan = write(root, plain_events(210)).parts[0].files[0].path
    done = compact(root)
    assert (done.replaced, done.written, done.deleted) == (7, 1, 0)
    found = info(root)
    assert (found.tables["events"].rows, set(found.positions)) == (260, {0, 1, 2, 7})
    table_ = Lake(root).open()
    files = fs.PyFileSystem(DeltaStorageHandler(f"{root}/events"))
    unused = table_.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert orphan in unused
    kept = pa.table(opened(root).get_add_actions()).column("path").to_pylist()
    assert {i.type for i in files.get_file_info(kept)} == {fs.FileType.File}
    assert stored(root) == expected
    assert rows_by_spark(mariner_spark.read(spark, lake=root)) == expected
    assert rows_by_spark(mariner_spark.read(spark, lake=root, servers=7)) == rows_of(
        plain_events(200)
    )
    maintenance.update(root, is_new=True)
    check_rollups(root)

    said = [caplog.text]
    if root.startswith("s3:"):  # of a local path, tests/spark/reports/test_command.py has them
        command = ["report", "top", "--lake", root, "--out", str(tmp_path)]
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
        assert sum(row["events"] for row in table(tmp_path, "top")) == 260
        said += [(tmp_path / "report.html").read_text(encoding="utf-8"), result.output]
    for text in said:
        assert "secret-of-s3" not in text


@pytest.mark.slow
def test_from_a_gateway(object_store: str, tmp_path: Path) -> None:
    root = f"{object_store}/{tmp_path.name}"
    with registering(tmp_path) as (source, register):
        register(1)
        command = (sys.executable, "-m", "mariner", "lake", "ingest", root, "--name", "app")
        done = subprocess.run(
            [*command, "--port", source["port"]],
            env={**os.environ, "MARINER_TOKEN": "secret"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert re.match(rf"{root}: \d+ events added, ", done.stdout)
    assert values(root) == {"1"}
    assert "secret-of-s3" not in done.stdout + done.stderr


def test_a_bucket_that_is_not_there(object_store: str) -> None:
    with pytest.raises(LakeError, match=r"^s3://no-such-bucket/lake: ") as caught:
        Lake("s3://no-such-bucket/lake").create("events")
    assert "secret-of-s3" not in str(caught.value)


def test_the_format_before_is_told(object_store: str, tmp_path: Path) -> None:
    root = f"{object_store}/{tmp_path.name}-old"
    files = fs.PyFileSystem(DeltaStorageHandler(root))
    with files.open_output_stream("_manifest.json", buffer_size=100) as file:
        file.write(b"{}")
    for work in (Lake(root).find, partial(Lake(root).check, None)):
        with pytest.raises(LakeError, match="a lake of Parquet files with a manifest"):
            work()
