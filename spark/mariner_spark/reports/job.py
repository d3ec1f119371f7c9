"""What is asked of ``mariner report``: reports, and the events that they are about."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from eventer_bridge.backends.rocksdb import database
from eventer_bridge.errors import StorageError
from eventer_bridge.model import EventType
from mariner_spark import values
from mariner_spark.errors import OptionError
from mariner_spark.lake.tables import Lake, refuse_within_store, value_path_of
from mariner_spark.reports import links, zones
from mariner_spark.source import options
from mariner_spark.source.options import Options

PAGE: Final = "report.html"


class ReportJob(NamedTuple):
    """Reports to generate (no names: all), and the events that they are about.

    ``source`` are arguments of ``reader.read`` for a store, a gateway or a lake, ``types``,
    ``first`` and ``last`` those that select events. The title contains no secret. The folder is
    created, and files in it are replaced. ``value_path`` is that of the number in a payload
    (``values``); None: the lake's, or ``values.DEFAULT_PATH``. ``depth``: number of segments of a
    type prefix. ``zone`` is the time zone of the page, ``console`` the address of a console that it
    leads to; ``is_compared``: with the span before. ``is_open``: its time ends at its last event,
    although ``last`` is set. ``version`` of a lake's table ``events`` is the
    one that all of the job sees; None: the latest.
    """

    source: Mapping[str, Any]
    title: str
    folder: Path
    names: Sequence[str] = ()
    types: Sequence[EventType] | None = None
    first: str | None = None
    last: str | None = None
    value_path: str | None = None
    depth: int = 2
    zone: str = "UTC"
    console: str | None = None
    is_compared: bool = False
    is_open: bool = False
    version: int | None = None

    @property
    def selection(self) -> dict[str, Any]:
        """Arguments of ``reader.read`` that select the events."""
        return {"types": self.types, "from_": self.first, "to": self.last}

    @property
    def lake(self) -> str | None:
        """The lake, if the source is one."""
        return self.source.get("lake")

    def pinned(self) -> "ReportJob":
        """The same; of a lake, about its present version. Raises LakeError."""
        if self.lake is None:
            return self
        return self._replace(version=Lake(self.lake).open().version())

    @property
    def number_path(self) -> str:
        """Path in payloads of the numbers."""
        return self.path_of_lake or self.value_path or values.DEFAULT_PATH

    @property
    def path_of_lake(self) -> str | None:
        """Path in payloads of the numbers in the lake."""
        return None if self.lake is None else value_path_of(Lake(self.lake).open())

    @property
    def options(self) -> Options:
        """Options of the data source; for a lake, only those that select events count."""
        source = self.source if self.lake is None else {"store": "/"}
        return options.parse(options.to_options({**source, **self.selection}))


def check(job: ReportJob) -> None:
    """Check a job before anything is started.

    Raises MarinerSparkError if an option is wrong, there is no store or lake, or the files would be
    in a store.
    """
    if job.value_path is not None:
        values.parse(job.value_path)
    if job.console is not None:
        links.check(job.console)
    if job.is_compared and job.first is None:
        raise OptionError("compare", "needs the begin of the span: give --from")
    zones.check(job.zone)
    try:
        str(job.folder).encode()  # for those who write files
    except UnicodeEncodeError as e:
        raise OptionError("out", f"{str(job.folder)!r}: expected a name in UTF-8") from e
    refuse_within_store(job.folder / PAGE)
    path, of_lake = job.options.path, job.path_of_lake
    if of_lake is not None:
        if job.value_path is not None and values.parse(job.value_path) != values.parse(of_lake):
            raise OptionError(
                "value_path", f"{job.value_path}: the numbers of this lake are those at {of_lake}"
            )
    elif path is not None:
        try:
            database.check_exists(path)
        except StorageError as e:
            raise OptionError("path", str(e)) from e
