"""Queries that are read for until they are released, or ended because nobody waits."""

import threading
from collections.abc import Collection

import pytest

from eventer_bridge.backends.rocksdb.keys import TypeId
from eventer_bridge.backends.rocksdb.query import StoreReader
from eventer_bridge.model import QueryResult, QueryTimeseriesParams


class SlowReading:
    """Makes timeseries queries with ``MARK`` for ``max_results`` slow.

    Attributes:
        release: set it, and they are answered.
        n_under_way: those that are being read for.
        n_ended: those that were.
    """

    MARK = 77

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.release = threading.Event()
        self.n_under_way = self.n_ended = 0
        self._lock = threading.Lock()
        ext_timeseries = StoreReader.ext_timeseries

        def ext_slowly(
            reader: StoreReader, params: QueryTimeseriesParams, type_ids: Collection[TypeId]
        ) -> QueryResult:
            if params.max_results == self.MARK:
                self._ext_wait(reader)
            return ext_timeseries(reader, params, type_ids)

        monkeypatch.setattr(StoreReader, "ext_timeseries", ext_slowly)

    def _ext_wait(self, reader: StoreReader) -> None:
        with self._lock:
            self.n_under_way += 1
        try:
            while not self.release.is_set():
                reader._snapshot.pause()
        finally:
            with self._lock:
                self.n_under_way -= 1
                self.n_ended += 1
