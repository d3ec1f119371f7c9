"""The units of deploy/lake keep a lake: what they run, run in a folder, but for the report."""

from pathlib import Path

from click.testing import CliRunner

from mariner.cli import main
from mariner_spark.lake.tables import Lake
from tests.deploy.test_examples import jobs_of_systemd
from tests.spark.support import fill, plain_events
from tests.support.systemctl import inside


def test_they_keep_a_lake(tmp_path: Path) -> None:
    jobs = {job[1]: job for job in jobs_of_systemd() if job[0] == "lake"}
    fill(tmp_path / "var/lib/mariner/events", plain_events(30))
    for name in ("ingest", "compact"):
        arguments = [inside(i, tmp_path) for i in jobs.pop(name)]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
    assert not jobs
    lake = Lake(str(tmp_path / "var/lib/mariner-lake/lake"))
    assert lake.open().to_pyarrow_table().num_rows == 30
