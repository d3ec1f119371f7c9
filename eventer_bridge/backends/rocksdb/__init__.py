"""Durable backend on RocksDB; see ``keys`` for what is stored, ``query`` for what it costs."""

from eventer_bridge.backends.rocksdb.backend import RocksDbBackend, create
from eventer_bridge.backends.rocksdb.control import checkpoint

__all__ = ["RocksDbBackend", "checkpoint", "create"]
