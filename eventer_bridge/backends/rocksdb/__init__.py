"""Durable backend on RocksDB; see ``keys`` for the layout, ``query`` for the cost of queries."""

from eventer_bridge.backends.rocksdb.backend import RocksDbBackend, create, create_temporary
from eventer_bridge.backends.rocksdb.control import checkpoint

__all__ = ["RocksDbBackend", "checkpoint", "create", "create_temporary"]
