"""Mariner server: rights of clients, their connections, notification, the listener."""

from mariner.server.connection import MarinerServer, listen

__all__ = ["MarinerServer", "listen"]
