"""Durable backend on RocksDB; see ``keys`` for what is stored, ``query`` for what it costs."""

from eventer_bridge.backends.rocksdb.backend import RocksDbBackend, create

__all__ = ["RocksDbBackend", "create"]
