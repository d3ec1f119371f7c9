"""The servers of a store, for readers that continue after events that they have.

Runs in the process that plans a read.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from eventer_bridge.backends import history
from eventer_bridge.backends.history import History
from eventer_bridge.backends.rocksdb import keys
from eventer_bridge.backends.rocksdb.info import ServerInfo, ext_servers
from eventer_bridge.backends.rocksdb.store import Store
from eventer_bridge.errors import StorageError
from eventer_bridge.model import Timestamp
from mariner_spark.errors import OptionError
from mariner_spark.source import snapshots
from mariner_spark.source.driver_process import DriverProcess
from mariner_spark.times import Interval


class StoreServers(NamedTuple):
    """Servers of a store, at one moment.

    Attributes:
        events: number of events, an estimate.
        servers: sessions of each server.
        histories: the last history that each server registered.
        timestamps: of the sessions that were asked for, if they are there.
    """

    events: int
    servers: Mapping[int, ServerInfo]
    histories: Mapping[int, History]
    timestamps: Mapping[int, Timestamp]

    def events_after(self, sessions: Mapping[int, int]) -> int:
        """Number of events after a session of each server, an estimate."""
        n_all = sum(i.last_session - i.first_session + 1 for i in self.servers.values())
        n_after = sum(
            max(0, i.last_session - max(sessions.get(server, 0), i.first_session - 1))
            for server, i in self.servers.items()
        )
        return -(-self.events * n_after // max(n_all, 1))

    def time_after(self, timestamps: Mapping[int, int]) -> Interval:
        """Time of the events after a timestamp of each server, in microseconds.

        Timestamps of a server never go back.
        """
        if not self.servers.keys() <= timestamps.keys():
            return Interval()
        return Interval(min((timestamps[i] for i in self.servers), default=None))


def find(path: Path, driver: DriverProcess, sessions: Mapping[int, int]) -> StoreServers:
    """Find the servers of a store.

    Args:
        path: the store.
        driver: process of the driver, which owns the snapshot.
        sessions: a session of each server, of which the timestamp is found.

    Raises:
        OptionError: ``path`` is no store, or cannot be read.
    """
    try:
        store = Store(snapshots.create(path, driver), read_only=True)
        try:
            type_ids = {i: name for i, name in store.ext_types() if history.is_history(name)}
            events = [keys.decode_event(*row, type_ids) for _, row in store.ext_latest(type_ids)]
            return StoreServers(
                store.n_events(),
                {i.server_id: i for i in ext_servers(store)},
                history.read_all(events),
                _timestamps(store, sessions),
            )
        finally:
            store.ext_close()
    except StorageError as e:
        raise OptionError("path", str(e)) from e


def _timestamps(store: Store, sessions: Mapping[int, int]) -> dict[int, Timestamp]:
    """Timestamps of those sessions that are stored, by server."""
    snapshot = store.snapshot()
    stored = {i: snapshot.find_session(i, session) for i, session in sessions.items()}
    return {i: keys.decode_timestamp(key) for i, key in stored.items() if key is not None}
