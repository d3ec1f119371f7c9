"""Mariner server: rights of clients, their connections, notification, the listener."""

from mariner.server.connection import MarinerServer, listen
from mariner.wire import contract  # noqa: F401  # not when the first message is refused

__all__ = ["MarinerServer", "listen"]
