"""Mariner server: rights of clients, their connections, notification, the listener."""

from mariner.server.server import MarinerServer, listen

__all__ = ["MarinerServer", "listen"]
